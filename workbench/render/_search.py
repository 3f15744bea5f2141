"""Searches for shardings and machines as text, and the chosen specs as code."""

import re
from collections.abc import Sequence
from typing import Literal

from workbench.records import FitRecord, FitTableRecord, ShardingChoiceRecord, ShardingSearchRecord
from workbench.render._svg import bytes_text, seconds_text

_SHOWN = 8


def render_search_text(search: ShardingSearchRecord) -> str:
    """The choices as a table, the fastest that fits first, and the specs of that one."""
    head = (
        f"Shardings of {search.name}, seconds on {search.chip}: {search.planned_count} planned, "
        f"{search.compiled_count} compiled for {search.target}"
        + {"complete": ".", "time": "; the time was over.", "stopped": "; stopped."}[search.ended]
    )
    chunked = any(each.chunk_size for each in search.choices)
    rows = [("", "choice", "mesh", *(("chunk",) if chunked else ()), "seconds", "peak", "sent by one device", "how")]
    for each in search.choices[:_SHOWN]:
        sent = ", ".join(f"{bytes_text(n)} over {axis}" for axis, n in each.sent_bytes.items() if n >= 1) or "nothing"
        rows.append(
            (
                "*" if each.pareto else "",
                each.name,
                " x ".join(f"{name}={size}" for name, size in each.mesh.items()),
                *((str(each.chunk_size or "all"),) if chunked else ()),
                "unknown" if each.seconds is None else seconds_text(each.seconds),
                ("unknown" if each.peak_bytes is None else bytes_text(each.peak_bytes))
                + (" (does not fit)" if each.fits is False else ""),
                sent,
                each.how,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    specs = [f"  {pattern}: {spec_code(spec)}" for pattern, spec in search.best.specs.items()] or ["  all replicated"]
    notes = [f"Note: {note}" for note in search.notes]
    return "\n".join(
        [
            head,
            "",
            *table,
            "* no other choice is both faster and smaller",
            *(["chunk: clients that a device computes together"] if chunked else []),
            "",
            f"{search.best.name}:",
            *specs,
            *notes,
        ]
    )


def render_fit_text(table: FitTableRecord) -> str:
    """The smallest slice of each family that fits, its peak and the seconds of a call, and why smaller ones do not."""
    lines = [f"The smallest slice of each family on which {table.name} fits:"]
    for row in table.rows:
        peak = "unknown" if row.peak_bytes is None else bytes_text(row.peak_bytes)
        room = "" if row.available_bytes is None else f" of {bytes_text(row.available_bytes)}"
        seconds = "" if row.seconds is None else f", {seconds_text(row.seconds)} per call"
        verdict = "fits" if row.fits else "does not fit on any that was tried, the largest being this"
        note = f" ({row.note})" if row.note else ""
        chunk = "" if row.chunk_size is None else f", chunks of {row.chunk_size} clients"
        lines.append(
            f"  {row.chip}: {row.target} ({row.chips} chips) {verdict}: {peak}{room} on a device{seconds}{chunk}, "
            f"{row.how}{note}"
        )
        specs = "; ".join(f"{pattern} {spec_code(spec)}" for pattern, spec in list(row.specs.items())[:_SHOWN])
        if row.fits:
            lines.append(f"    with {specs or 'every argument whole on every device'}")
        lines += [f"    not {reason}" for reason in row.tried if ": " in reason and not reason.startswith(_own(row))]
    return "\n".join([*lines, *(f"Note: {note}" for note in table.notes)])


def _own(row: FitRecord) -> str:
    """What the reason of the row's own slice begins with: its figures are in the row already."""
    return f"{row.target}: a device needs"


def spec_code(spec: Sequence[Sequence[str]]) -> str:
    """A spec as one writes it.

    Example:
        >>> spec_code(((), ("data", "model")))
        "P(None, ('data', 'model'))"
    """
    entries = ["None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(tuple(axes)) for axes in spec]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def sharding_code(
    choice: ShardingChoiceRecord,
    *,
    style: Literal["rules", "nnx"] = "rules",
    arguments: Sequence[str] = (),
    function: str = "step",
) -> str:
    """Code that gives a program the specs of a choice.

    Args:
        choice: From a `ShardingSearchRecord`.
        style: "rules" writes rules by path and `in_shardings`; "nnx" writes one `nnx.with_partitioning` per parameter.
        arguments: The names of the arguments in order; by default those that have a spec.
        function: The name of the function.

    Returns:
        Python source; "rules" runs as it is where the arguments have these names.
    """
    if style == "nnx":
        lines = ["# where the parameter is made: nnx.Linear(..., kernel_init=...)"]
        lines += [
            f"{pattern}: nnx.with_partitioning(init, {_entries(spec)!r})" for pattern, spec in choice.specs.items()
        ]
        return "\n".join(["# " + line if not line.startswith("#") else line for line in lines])
    names = list(arguments) or list(
        dict.fromkeys(re.split(r"[\[.]", pattern, maxsplit=1)[0] for pattern in choice.specs)
    )
    sizes, axes = tuple(choice.mesh.values()), tuple(choice.mesh)
    chunk = choice.chunk_size
    compiles = f"jax.jit({function}, " if chunk is None else f"wb.jit({function}, chunk_size={chunk}, "
    rules = [f"    {_pattern_regex(pattern)!r}: {spec_code(spec)}," for pattern, spec in choice.specs.items()]
    call = ", ".join(f'shardings("{name}", {name})' for name in names)
    return "\n".join(
        [
            "import re",
            "",
            "import jax",
            "from jax.sharding import NamedSharding, PartitionSpec as P",
            *(["", "import workbench as wb"] if chunk is not None else []),
            "",
            f"mesh = jax.make_mesh({sizes}, {axes}, axis_types=(jax.sharding.AxisType.Auto,) * {len(axes)})",
            "SPECS = {  # path of a parameter -> its spec; optimizer states end in the same path",
            *rules,
            "}",
            "",
            "",
            "def spec_of(path):",
            "    return next((spec for rule, spec in SPECS.items() if re.search(rule, path)), P())",
            "",
            "",
            "def shardings(name, tree):",
            "    return jax.tree_util.tree_map_with_path(",
            "        lambda path, leaf: NamedSharding(",
            "            mesh, spec_of(name + jax.tree_util.keystr(path)) if leaf.ndim else P()",
            "        ),",
            "        tree,",
            "    )",
            "",
            "",
            f"{function} = {compiles}in_shardings=({call}{',' if len(names) == 1 else ''}))",
        ]
    )


def _entries(spec: Sequence[Sequence[str]]) -> tuple[str | tuple[str, ...] | None, ...]:
    return tuple(axes[0] if len(axes) == 1 else tuple(axes) or None for axes in spec)


def _pattern_regex(pattern: str) -> str:
    """What the path of a leaf ends with: the pattern without its argument, `*` being any number."""
    argument, rest = re.match(r"^([^\[.]*)(.*)$", pattern).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if not rest:
        return f"^{re.escape(argument)}$"
    return re.escape(rest).replace(r"\*", r"\d+") + r"(\.value)?$"
