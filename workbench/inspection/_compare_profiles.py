"""Compares recorded profiles by device, category and call path, to show what became faster."""

from collections.abc import Sequence

from workbench.records.advice import ComparedRecord, ComparisonRecord
from workbench.records.profile import ProfileRecord

_ALIKE = 0.01  # relative to the quantity; two runs of one program differ by about as much
_MOST_PATHS = 200


def compare_profiles(profiles: Sequence[ProfileRecord]) -> ComparisonRecord:
    """Compares profiles per call path, category and program; all seconds are means over devices."""
    rows = [
        _row("profile", "devices", [float(len(profile.devices)) for profile in profiles], "count"),
        _row("profile", "seconds per device", [_per_device(profile, profile.seconds) for profile in profiles]),
        _row("profile", "share matched to HLO", [profile.joined for profile in profiles], ""),
    ]
    rows += _table(
        "seconds per category", [{n: _per_device(p, s) for n, s in p.seconds_by_category().items()} for p in profiles]
    )
    rows += _table("seconds per call path", [profile.seconds_by_path() for profile in profiles])
    rows += _table(
        "seconds per program",
        [
            {program.module: _per_device(profile, program.seconds) for program in profile.programs}
            for profile in profiles
        ],
    )
    return ComparisonRecord(
        names=tuple(profile.name for profile in profiles),
        targets=tuple(
            f"{profile.devices[0].kind or profile.devices[0].platform if profile.devices else 'no device'} x "
            f"{len(profile.devices)}"
            for profile in profiles
        ),
        rows=tuple(rows),
        notes=(
            "measured seconds per device; the profiles may contain different numbers of calls to the program",
            *dict.fromkeys(note for profile in profiles for note in profile.notes),
        ),
    )


def _per_device(profile: ProfileRecord, seconds: float) -> float:
    return seconds / max(1, len(profile.devices))


def _table(group: str, columns: list[dict[str, float]]) -> list[ComparedRecord]:
    names = list(dict.fromkeys(name for column in columns for name in column))
    names.sort(key=lambda name: -max(column.get(name, 0.0) for column in columns))
    return [_row(group, name or "unknown", [column.get(name) for column in columns]) for name in names[:_MOST_PATHS]]


def _row(group: str, name: str, values: Sequence[float | None], unit: str = "seconds") -> ComparedRecord:
    first, last = values[0], values[-1]
    if first is None or last is None:
        status = "same" if first is last else "added" if first is None else "removed"
    else:
        status = "same" if abs(last - first) <= _ALIKE * max(abs(first), abs(last)) else "changed"
    return ComparedRecord(
        group=group,  # pyright: ignore[reportArgumentType] -- one of the literals
        name=name,
        values=tuple(values),
        unit=unit,  # pyright: ignore[reportArgumentType] -- one of the literals
        status=status,
    )
