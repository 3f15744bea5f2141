"""The lines around a place in the user's code, including notebook cells."""

from workbench.records import read_source_lines
from workbench.records.program import SourceLine

AROUND = 3
MOST = 40


def read_source(place: SourceLine) -> list[tuple[int, str]]:
    """Numbered lines around `place`; empty if the code is no longer readable."""
    last = min(place.end_line or place.line, place.line + MOST)
    numbers = range(max(1, place.line - AROUND), last + AROUND + 1)
    lines = read_source_lines(place.file)
    return [(number, lines[number - 1]) for number in numbers if number <= len(lines)]


def read_lines(file: str, line: int, around: int) -> list[tuple[int, str]]:
    """Numbered lines around a line; empty if the code is no longer readable."""
    numbers = range(max(1, line - around), line + around + 1)
    lines = read_source_lines(file)
    excerpt = [(number, lines[number - 1]) for number in numbers if number <= len(lines)]
    while excerpt and not excerpt[-1][1]:
        excerpt.pop()
    return excerpt if any(number == line for number, _ in excerpt) else []
