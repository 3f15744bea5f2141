"""The user code in a program: whole cells and files."""

import re
import sys
from collections.abc import Iterable
from typing import Any

from workbench.records import cell_name, package_of, read_source_lines
from workbench.records.compiled import ProgramRecord

MOST_BYTES = 200_000  # of one file


def files_of(record: ProgramRecord) -> list[str]:
    """The files and cells that a program's stages, instructions and calls come from, most frequent first."""
    counts: dict[str, int] = {}
    places = [stage.source for stage in record.plan.walk()]
    if record.module is not None:
        places += [instruction.source for instruction in record.module.instructions]
    named = [place.file for place in places if place is not None]
    if record.call_tree is not None:
        named += [node.file for node in record.call_tree.nodes if node.file]
    for file in named:
        counts[file] = counts.get(file, 0) + 1
    return sorted(counts, key=lambda file: -counts[file])


def cells_of(files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The number and the original text of each file that represents a notebook cell."""
    cells = {}
    for file in files:
        name = file if file.startswith("In [") else cell_name(file)
        number = re.fullmatch(r"In \[(\d+)\]", name or "")
        text = _written(int(number[1])) if number else None
        if text is None and "ipykernel_" in file:
            text = "\n".join(read_source_lines(file)) or None
        if text is not None:
            cells[file] = {"number": int(number[1]) if number else None, "source": text.rstrip("\n")}
    return cells


def code_of(files: Iterable[str]) -> list[tuple[str, str]]:
    """Maps titles to a program's code: each cell and file once, without libraries and unreadable files."""
    files = list(files)
    cells = cells_of(files)
    code: dict[str, str] = {}
    for file in files:
        if file in cells:
            code.setdefault(f"In [{cells[file]['number'] or ' '}]", cells[file]["source"])
        elif package_of(file) is None and (lines := read_source_lines(file)):
            code.setdefault(file.replace("\\", "/").rsplit("/", 1)[-1], "\n".join(lines))
    return [(title, text) for title, text in code.items() if len(text) <= MOST_BYTES]


def _written(number: int) -> str | None:
    """The text of the cell with this number, with its original magics."""
    ipython = sys.modules.get("IPython")
    history = getattr(ipython.get_ipython() if ipython is not None else None, "history_manager", None)
    cells = getattr(history, "input_hist_raw", ())
    return cells[number] if 0 < number < len(cells) else None
