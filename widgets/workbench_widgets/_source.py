"""The lines around a place in the user's code, also when that is a notebook cell."""

import linecache

from workbench.records import SourceLine

AROUND = 3
MOST = 40


def read_source(place: SourceLine) -> list[tuple[int, str]]:
    """Numbered lines from a little before `place` to a little after it; empty if the code cannot be read any more."""
    last = min(place.end_line or place.line, place.line + MOST)
    numbers = range(max(1, place.line - AROUND), last + AROUND + 1)
    found = [(number, linecache.getline(place.file, number)) for number in numbers]
    return [(number, line.rstrip("\n")) for number, line in found if line]
