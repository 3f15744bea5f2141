"""Merges the records of one run from several hosts."""

from collections.abc import Sequence

from workbench.errors import InspectionError
from workbench.records.run import RunRecord


def merge_runs(runs: Sequence[RunRecord]) -> RunRecord:
    """Merges the records of one run from several hosts.

    Example:
        >>> run = wb.measure(jnp.sin)(jnp.ones(8))
        >>> merge_runs([run, run]).notes[-1]
        'measured on 2 hosts'
    """
    names = sorted({run.name for run in runs})
    if len(names) != 1:
        message = (
            f"`merge_runs` was given {len(runs)} records, from the programs {names}. `merge_runs` merges the records "
            "of one run from several hosts: pass the records of one `measure` call, one from each host."
        )
        raise InspectionError(message)
    first = runs[0]
    clients = {(client.stage, client.client): client for run in reversed(runs) for client in run.clients}
    return first.replace(
        engine=f"{first.engine} on each of {len(runs)} hosts",
        seconds=max(run.seconds for run in runs),
        round_seconds=tuple(map(max, zip(*(run.round_seconds for run in runs), strict=False))),
        stages=tuple(stage for run in runs for stage in run.stages),
        clients=tuple(clients[key] for key in sorted(clients, key=str)),
        events=tuple(event for run in runs for event in run.events),
        attributed_seconds=_lowest([run.attributed_seconds for run in runs]),
        joined_events=_lowest([run.joined_events for run in runs]),
        memory_before_bytes=_fullest([run.memory_before_bytes for run in runs]),
        memory_peak_bytes=_fullest([run.memory_peak_bytes for run in runs]),
        memory_after_bytes=_fullest([run.memory_after_bytes for run in runs]),
        moved_bytes=_fullest([run.moved_bytes for run in runs]),
        errors=tuple(error for run in runs for error in run.errors),
        notes=(*dict.fromkeys(note for run in runs for note in run.notes), f"measured on {len(runs)} hosts"),
    )


def _lowest(shares: Sequence[float | None]) -> float | None:
    values = [share for share in shares if share is not None]
    return min(values) if values else None


def _fullest(figures: Sequence[int | None]) -> int | None:
    numbers = [figure for figure in figures if figure is not None]
    return max(numbers) if numbers else None
