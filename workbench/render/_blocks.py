"""Titled blocks of facts, tables, code and notes, which panels of live views show."""

import re
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict

LONGEST_CODE = 20_000  # number of characters that fit in a side panel


class FactsBlock(TypedDict):
    """Terms and their values."""

    form: Literal["facts"]
    title: str
    rows: list[tuple[str, str]]


class TableBlock(TypedDict):
    """A small table."""

    form: Literal["table"]
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: NotRequired[str]


class CodeBlock(TypedDict):
    """Lines of code: number, text, and whether the line is marked."""

    form: Literal["code"]
    title: str
    lines: list[tuple[int | None, str, bool]]
    folded: NotRequired[bool]
    source: NotRequired[str]


class NoteBlock(TypedDict):
    """A paragraph."""

    form: Literal["note"]
    title: str
    text: str


Block = FactsBlock | TableBlock | CodeBlock | NoteBlock


class StageDetails(TypedDict):
    """A panel about a stage or about the whole program."""

    title: str
    kind: str
    subtitle: NotRequired[str]
    blocks: list[Block]


def facts(rows: Sequence[tuple[str, str]], title: str = "") -> FactsBlock:
    """A list of terms and values."""
    return {"form": "facts", "title": title, "rows": list(rows)}


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> TableBlock | None:
    """A small table; None if there are no rows."""
    if not rows:
        return None
    return {"form": "table", "title": title, "columns": list(columns), "rows": [list(row) for row in rows]}


def code(title: str, text: str) -> Block | None:
    """Lines of code, initially collapsed; None if there is no text."""
    if not text:
        return None
    shown = text if len(text) <= LONGEST_CODE else text[:LONGEST_CODE] + "\n… (cut)"
    # JAX prints source places far to the right, beyond the width of a panel.
    lines: list[tuple[int | None, str, bool]] = [
        (None, re.sub(r"\s+# .*$", "", line), False) for line in shown.splitlines()
    ]
    return {"form": "code", "title": title, "lines": lines, "folded": True}


def note(title: str, text: str) -> NoteBlock:
    """A paragraph."""
    return {"form": "note", "title": title, "text": text}
