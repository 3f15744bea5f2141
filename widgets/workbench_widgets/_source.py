"""The lines around a place in the user's code, also when that is a notebook cell."""

import re
import sys

from workbench.records import read_source_lines
from workbench.records.program import SourceLine

AROUND = 3
MOST = 40


def read_source(place: SourceLine) -> list[tuple[int, str]]:
    """Numbered lines from a little before `place` to a little after it; empty if the code cannot be read any more."""
    last = min(place.end_line or place.line, place.line + MOST)
    numbers = range(max(1, place.line - AROUND), last + AROUND + 1)
    lines = read_source_lines(place.file)
    return [(number, lines[number - 1]) for number in numbers if number <= len(lines)]


def read_lines(file: str, line: int, around: int) -> list[tuple[int, str]]:
    """Numbered lines around one; empty if the code cannot be read any more."""
    numbers = range(max(1, line - around), line + around + 1)
    lines = read_source_lines(file) if (cell := _cell(file)) is None else cell
    found = [(number, lines[number - 1]) for number in numbers if number <= len(lines)]
    while found and not found[-1][1]:
        found.pop()
    return found if any(number == line for number, _ in found) else []


def _cell(file: str) -> list[str] | None:
    """The lines of a notebook's cell that is named by its number, "In [3]"; None for files."""
    match = re.fullmatch(r"In \[(\d+)\]", file)
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    if match is None or shell is None:
        return None
    cells = shell.user_ns.get("In", [])
    number = int(match[1])
    return cells[number].splitlines() if number < len(cells) else None
