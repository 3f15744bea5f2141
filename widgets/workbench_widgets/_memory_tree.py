"""Buffers at the memory peak as a tree: arguments by name, temporaries by layer, or by line without name scopes."""

import re
from collections.abc import Sequence, Set as AbstractSet

from workbench.records.compiled import BufferRecord
from workbench.render.units import counted_text, source_text
from workbench_widgets.states import MemoryRow

ARGUMENTS, TEMPORARIES = "arguments", "temporaries and results"
NO_SCOPE, NO_LINE = "outside name scopes", "no source line"
_PART = re.compile(r"^[A-Za-z_]\w*|\.\w+|\[[^\]]*\]")
_WRAPPED = re.compile(r"^(?:transpose|jvp|vmap|checkpoint|remat|custom_[jv][vj]p_call|pjit)\((.*)\)$")
# Parts of a name scope that JAX adds; also the formula of an einsum.
_SILENT = frozenset("while body cond closed_call checkpoint rematted_computation shard_map remat".split()) | {""}


def buffer_tree(buffers: Sequence[BufferRecord], parameters: AbstractSet[str]) -> list[MemoryRow]:
    """The rows of the tree; a row precedes its children.

    Returns:
        Rows, each with the number of its parent row (-1: none) and the total bytes of its contents. A buffer's row also
        has its shape, its line and its group (the two outermost levels).
    """
    rows: list[MemoryRow] = []
    place: dict[tuple[str, ...], int] = {}
    temporaries = [buffer for buffer in buffers if buffer.name not in parameters]
    no_scope = NO_SCOPE if any(map(_scopes, temporaries)) else ""
    no_line = NO_LINE if any(buffer.source for buffer in temporaries) else ""
    for buffer in buffers:
        path = _path(buffer, buffer.name in parameters, no_scope, no_line)
        holder = -1
        for depth in range(1, len(path) + 1):
            if path[:depth] not in place:
                place[path[:depth]] = len(rows)
                rows.append(_row(path[depth - 1], holder))
            holder = place[path[:depth]]
            rows[holder]["bytes"] += buffer.size_bytes
            rows[holder]["padding"] += buffer.padding_bytes
            rows[holder]["count"] += 1
        line = buffer.source
        rows.append(
            {
                "name": buffer.op_name if (buffer.name in parameters) and buffer.op_name else buffer.name,
                "parent": holder,
                "count": 0,
                "bytes": buffer.size_bytes,
                "padding": buffer.padding_bytes,
                "shape": buffer.shape,
                "key": "" if line is None else f"{line.file}:{line.line}",
                "place": "" if line is None else source_text(line.file, line.line),
                "op_name": buffer.op_name,
                "group": " › ".join(path[:2]),
            }
        )
    return _joined(rows)


def _row(name: str, parent: int) -> MemoryRow:
    return {
        "name": name, "parent": parent, "count": 0, "bytes": 0, "padding": 0,
        "shape": "", "key": "", "place": "", "op_name": "", "group": "",
    }  # fmt: skip


def _path(buffer: BufferRecord, argument: bool, no_scope: str, no_line: str) -> tuple[str, ...]:
    """The levels above a buffer; `no_scope` and `no_line` name levels for temporaries without a scope or a line."""
    if argument:
        return (ARGUMENTS, *_PART.findall(buffer.op_name)[:-1])
    if scopes := _scopes(buffer):
        return (TEMPORARIES, *scopes)
    line = no_line if buffer.source is None else source_text(buffer.source.file, buffer.source.line)
    return tuple(filter(None, (TEMPORARIES, no_scope, line)))


def _scopes(buffer: BufferRecord) -> tuple[str, ...]:
    name = buffer.op_name.partition(";")[0]  # the compiler joins the names of merged copies
    return tuple(filter(None, map(_scope, name.split("/")[:-1])))


def _scope(part: str) -> str:
    """A part of a name scope, as its author wrote it; "" for a part that a transformation added."""
    while wrapped := _WRAPPED.match(part):
        part = wrapped[1]
    silent = part in _SILENT or "->" in part or part.startswith(("jit(", "branch_", "wb:", "while["))
    return "" if silent else part


def _joined(rows: list[MemoryRow]) -> list[MemoryRow]:
    """Merges each level with its only child, if the child is also a level."""
    inside: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        inside.setdefault(row["parent"], []).append(at)
    new: dict[int, int] = {-1: -1}
    joined_rows: list[MemoryRow] = []
    for at, row in enumerate(rows):
        only = inside.get(at, [])
        if len(only) == 1 and rows[only[0]]["count"] and row["parent"] >= 0:
            inner = rows[only[0]]
            inner["name"], inner["parent"] = _join(row["name"], inner["name"]), row["parent"]
            continue
        new[at] = len(joined_rows)
        joined_rows.append(row)
    for row in joined_rows:
        row["parent"] = new[row["parent"]]
        if row["count"]:
            row["shape"] = counted_text(row["count"], "buffer")
    return joined_rows


def _join(outer: str, inner: str) -> str:
    return f"{outer}{inner}" if inner.startswith((".", "[")) else f"{outer} › {inner}"
