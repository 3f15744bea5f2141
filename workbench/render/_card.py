"""Objects as cell results: a short text, and an HTML card in the page's colours.

The card has no script, no style sheet and no colours except grey lines. Text and background colours come from the page,
so the card fits every front end, light or dark. The card remains a readable table if a notebook host strips the styles.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from workbench.records import Record
from workbench.records.advice import ComparisonRecord
from workbench.records.compiled import MemoryRecord
from workbench.records.program import SourceLine
from workbench.records.run import RunRecord
from workbench.records.sharding import ShardingRecord
from workbench.render._compare import visible_differences
from workbench.render._svg import Markup, data_uri, element
from workbench.render._text import field_text, text as words_of
from workbench.render._treescope import picture_of
from workbench.render.units import amount_texts, count_text, shape_text, spec_text

TEXT_LINES = 40  # maximum number of lines of a text in a cell, about one screen
CARD_LINES = 24
TABLE_ROWS = 10

Row = Mapping[str, object]

_LINE = "1px solid rgba(128,128,128,.35)"
_CARD = f"display:block;box-sizing:border-box;max-width:960px;margin:4px 0;padding:8px 12px;border:{_LINE};"
_CARD += "border-radius:6px;font-size:13px;line-height:1.45;overflow-x:auto"
_KIND = "font-size:11px;opacity:.75;letter-spacing:.04em"
_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_BODY = f"margin:6px 0 0;padding:0;border:0;background:none;color:inherit;font:12px/1.5 {_MONO};white-space:pre-wrap;"
_BODY += "word-break:normal;overflow-wrap:anywhere"
_COLUMNS = _BODY.replace("pre-wrap", "pre") + ";overflow-x:auto"
_TABLE = "border-collapse:collapse;margin:6px 0 0;font-size:12px;font-variant-numeric:tabular-nums"
_CELL = f"padding:2px 12px 2px 0;border:0;border-bottom:{_LINE};vertical-align:top;text-align:"


def display_record(record: Record) -> dict[str, str]:
    """A record as a cell result, by MIME type.

    Example:
        >>> from workbench.records.hardware import MeshRecord
        >>> sorted(display_record(MeshRecord(axes=(), devices=())))
        ['text/html', 'text/plain']
    """
    kind = type(record).__name__.removesuffix("Record")
    try:
        picture = picture_of(record)
        rows = None if picture is not None else _rows(record)
        return display_object(kind, words_of(record), rows, picture)
    except Exception as error:  # a display must not raise
        return display_object(kind, f"{record!r}\nNote: not drawn ({type(error).__name__}: {error})")


def display_object(
    kind: str, text: str, rows: Iterable[Row] | None = None, picture: Markup | bytes | None = None
) -> dict[str, str]:
    """Any object as a cell result: `text/plain`, and `text/html` with a table or a picture.

    Args:
        kind: The kind of object, shown as the card's small heading.
        text: The object described in words; the first line is the card's headline.
        rows: The card's table, which replaces the remaining lines of `text`; column names determine units.
        picture: An SVG or a PNG, which replaces the remaining lines of `text`.

    Returns:
        The contents by MIME type, each at most about one screen in length.

    Example:
        >>> display_object("Run", "2 rounds", [{"round": 0, "seconds": 0.5}])["text/plain"]
        '2 rounds'
    """
    lines = text.splitlines() or [""]
    notes = [line.strip() for line in lines[1:] if line.startswith("Note: ")]
    body: list[Markup] = []
    if picture is not None:
        body.append(element("img", src=data_uri(picture), alt=lines[0], style="max-width:100%;margin:6px 0 0"))
    elif rows is not None and (table := _table(list(rows))) is not None:
        body.append(table)
    elif len(lines) > 1:
        body += _blocks(_cut(lines[1:], CARD_LINES))
        notes = []
    headline = element("div", lines[0], style="font-weight:600")
    shown = [element("div", note, style="margin:4px 0 0;opacity:.8") for note in _cut(notes, 3)]
    card = element("div", element("div", kind, style=_KIND), headline, *body, *shown, style=_CARD)
    return {"text/plain": "\n".join(_cut(lines, TEXT_LINES)), "text/html": str(card)}


def _blocks(lines: Sequence[str]) -> list[Markup]:
    """Blocks of lines: text wraps between words, and lines aligned in columns scroll if the card is narrow."""
    blocks = itertools.groupby(lines, key=lambda line: re.search(r"\S {2,}\S", line) is not None)
    return [element("pre", "\n".join(block), style=_COLUMNS if columns else _BODY) for columns, block in blocks]


@functools.singledispatch
def _rows(record: object) -> list[Row] | None:
    """The rows of a record that reads well as a table; None for a record that reads better as lines of text."""
    return None


@_rows.register
def _buffers(memory: MemoryRecord) -> list[Row] | None:
    return [
        {
            "buffer": buffer.name,
            "size_bytes": buffer.size_bytes,
            "shape": buffer.shape,
            "operation": buffer.op_name,
            "line": buffer.source,
        }
        for buffer in memory.largest
    ] or None


@_rows.register
def _leaves(sharding: ShardingRecord) -> list[Row] | None:
    if len(sharding.leaves) == 1:
        return None  # the text contains its grid of devices
    return [
        {
            "array": leaf.path,
            "type": shape_text(leaf.dtype, leaf.shape),
            "spec": spec_text(leaf.spec),
            "size_bytes": leaf.size_bytes,
            "bytes_per_device": leaf.bytes_per_device,
            "copies": leaf.replication,
        }
        for leaf in sharding.leaves
    ]


@_rows.register
def _differences(comparison: ComparisonRecord) -> list[Row]:
    names = [f"{number}. {name}" for number, name in enumerate(comparison.names, 1)]  # names may repeat
    place = {"per device": -1, "stages": 1}  # a card has room for ten rows: totals first, long types last
    return [
        {
            "of": row.group,
            "quantity": row.name,
            **dict(zip(names, amount_texts(row.values, row.unit), strict=True)),
            "ratio": "" if row.ratio is None else f"×{row.ratio:.3g}",
        }
        for row in sorted(visible_differences(comparison), key=lambda row: place.get(row.group, 0))
    ]


@_rows.register
def _measured(run: RunRecord) -> list[Row] | None:
    columns = ("stage", "where", "compute_seconds", "collective_seconds", "wait_seconds", "calls")
    return [{name: getattr(stage, name) for name in columns} for stage in run.stages] or None


def _table(rows: Sequence[Row]) -> Markup | None:
    """The first rows as HTML; empty columns are omitted and numbers are right-aligned."""
    columns = [name for name in dict.fromkeys(key for row in rows for key in row)
               if any(row.get(name) not in (None, "", ()) for row in rows)]  # fmt: skip
    if not columns:
        return None
    numeric = {name for name in columns if all(isinstance(row.get(name), int | float | None) for row in rows)}
    side = {name: _CELL + ("right" if name in numeric else "left") for name in columns}
    head = element("tr", *(element("th", _heading(name), style=side[name], scope="col") for name in columns))
    shown = [
        element("tr", *(element("td", _value(name, row.get(name)), style=side[name]) for name in columns))
        for row in rows[:TABLE_ROWS]
    ]
    count = len(rows) - TABLE_ROWS
    footer = [element("div", f"… and {count_text(count)} more", style="opacity:.8")] if count > 0 else []
    return element("div", element("table", element("thead", head), element("tbody", *shown), style=_TABLE), *footer)


def _heading(name: str) -> str:
    """A column's title without its unit, because every value carries the unit; a program's name is unchanged."""
    if name[:1].isdigit():
        return name
    for unit in ("_seconds", "_bytes"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def _value(name: str, value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float) and not name.endswith(("seconds", "bytes", "flops", "second")):
        return f"{value:.4g}"
    return str(value) if isinstance(value, SourceLine) else field_text(name, value)


def _cut(lines: Sequence[str], most: int) -> list[str]:
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"… {count_text(len(lines) - most + 1)} more lines: `print` shows all of them"]
