"""From a stack frame of an HLO header to the line of the user's code."""

import re
import sys
from pathlib import Path

from workbench.inspection.hlo._text import Hlo, Instruction
from workbench.records import SourceLine

_FIELD = re.compile(r"(\w+)=(\d+)")
_QUOTED = re.compile(r'^\s*(\d+) "(.*)"$')
_SOURCE = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_OURS = str(Path(__file__).resolve().parents[2]) + "/"
_TAUGHT = (_OURS + "algorithms", _OURS + "_cli")  # programs that come with the package are a user's programs


class Frames:
    """The stack frames of one module; frames inside JAX and the workbench are left out of every answer."""

    def __init__(self, hlo: Hlo) -> None:
        self._files = _names(hlo.tables.get("FileNames", []))
        self._functions = _names(hlo.tables.get("FunctionNames", []))
        self._locations = _rows(hlo.tables.get("FileLocations", []))
        self._frames = _rows(hlo.tables.get("StackFrames", []))
        self._cache: dict[int, SourceLine | None] = {0: None}

    @property
    def known(self) -> bool:
        """Whether the module carries any stack frame."""
        return bool(self._frames)

    def source(self, instruction: Instruction) -> SourceLine | None:
        """The innermost line of the user's code that an instruction comes from."""
        if instruction.frame:
            return self._line(instruction.frame)
        if 'source_file="' not in instruction.attributes:
            return None
        match = _SOURCE.search(instruction.attributes)
        if match is None or match[2] is None or _foreign(match[1]):
            return None
        return SourceLine(file=match[1], line=int(match[2]))

    def _line(self, frame: int) -> SourceLine | None:
        if frame not in self._cache:
            self._cache[frame] = next((line for line in self._stack(frame) if not _foreign(line.file)), None)
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
            frame = self._frames[frame].get("parent_frame_id", 1) - 1  # printed plus one; 1 is "none"
        return lines


def _foreign(file: str) -> bool:
    """Whether a file belongs to the workbench, to JAX or to a library on top of it."""
    if file.startswith(_TAUGHT):
        return False
    if file.startswith((_OURS, sys.prefix + "/lib/python3")) and "/site-packages/" not in file:
        return True
    match = re.search(r"/(?:site|dist)-packages/(\w+)", file)
    return match is not None and match[1] in {"jax", "jaxlib", "workbench", "flax", "optax"}


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
