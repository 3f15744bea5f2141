"""Maps stack frames in an HLO header to lines of the user's code."""

import re

from workbench.inspection._call_tree._frames import Frame, package_of
from workbench.inspection.hlo._text import Hlo, Instruction
from workbench.records.program import SourceLine

_FIELD = re.compile(r"(\w+)=(\d+)")
_QUOTED = re.compile(r'^\s*(\d+) "(.*)"$')
_SOURCE = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_NEVER = frozenset(("jax", "jaxlib", "workbench", "python"))


class Frames:
    """The stack frames of one module."""

    def __init__(self, hlo: Hlo) -> None:
        self._files = _names(hlo.tables.get("FileNames", []))
        self._functions = _names(hlo.tables.get("FunctionNames", []))
        self._locations = _rows(hlo.tables.get("FileLocations", []))
        self._frames = _rows(hlo.tables.get("StackFrames", []))
        self._cache: dict[int, SourceLine | None] = {0: None}
        self._stacks: dict[int, tuple[Frame, ...]] = {}

    @property
    def known(self) -> bool:
        """True if the module contains any stack frame."""
        return bool(self._frames)

    def source(self, instruction: Instruction) -> SourceLine | None:
        """The innermost line of the user's code that an instruction comes from.

        Frames inside JAX and the workbench are never returned; frames of other libraries are returned only if there is
        no user frame.
        """
        if instruction.frame:
            return self._line(instruction.frame)
        frame = _named_source(instruction)
        return None if frame is None or package_of(frame.file) else SourceLine(file=frame.file, line=frame.line)

    def stack(self, instruction: Instruction) -> tuple[Frame, ...]:
        """The Python call path of an instruction, outermost frame first; empty if unknown."""
        if not instruction.frame:
            frame = _named_source(instruction)
            return () if frame is None else (frame,)
        number = instruction.frame
        if number not in self._stacks:
            self._stacks[number] = tuple(
                Frame(line.file, line.function, line.line, line.column) for line in reversed(self._stack(number))
            )
        return self._stacks[number]

    def _line(self, frame: int) -> SourceLine | None:
        if frame not in self._cache:
            lines = [(line, package_of(line.file)) for line in self._stack(frame)]
            users = next((line for line, package in lines if package is None), None)
            libraries = (line for line, package in lines if package not in _NEVER)
            self._cache[frame] = users or next(libraries, None)
        return self._cache[frame]

    def _stack(self, frame: int) -> list[SourceLine]:
        lines, seen = [], set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            location = self._locations.get(self._frames[frame].get("file_location_id", 0), {})
            file = self._files.get(location.get("file_name_id", 0))
            if file is not None and "line" in location:
                lines.append(
                    SourceLine(
                        file=file,
                        line=location["line"],
                        column=location.get("column"),
                        end_line=location.get("end_line"),
                        function=self._functions.get(location.get("function_name_id", 0), ""),
                    )
                )
            frame = self._frames[frame].get("parent_frame_id", 1) - 1  # printed plus one, so 1 means "none"
        return lines


def _named_source(instruction: Instruction) -> Frame | None:
    """The file and line from older compilers, which do not emit a stack."""
    if 'source_file="' not in instruction.attributes:
        return None
    match = _SOURCE.search(instruction.attributes)
    return None if match is None or match[2] is None else Frame(match[1], "", int(match[2]))


def _names(rows: list[str]) -> dict[int, str]:
    matches = (_QUOTED.match(row) for row in rows)
    return {int(match[1]): match[2] for match in matches if match}


def _rows(rows: list[str]) -> dict[int, dict[str, int]]:
    table = {}
    for row in rows:
        number, _, fields = row.strip().partition(" ")
        if number.isdigit():
            table[int(number)] = {key: int(value) for key, value in _FIELD.findall(fields)}
    return table
