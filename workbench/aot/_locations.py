"""Source locations in StableHLO text: kept where they are the program's, dropped where they only say who asked.

A location holds the whole Python call stack. Who called `lower_for_target` from which cell is no part of the program,
and a cell's file is named after the process of its kernel: with either in the text, no compilation would be found in
the cache again.
"""

import re
from pathlib import Path

_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.MULTILINE)
_CALL = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"\((#loc\d*)\)')
_ALIAS = re.compile(r"#loc\d*(?![\w])")
_CELL = re.compile(r"ipykernel_(\d+)")
_HERE = f'"{Path(__file__).parent}'
_NO_CELL = "ipykernel_0"


def drop_callers(text: str) -> str:
    """The text with every call stack cut where the program begins, its locations numbered again.

    The program begins below the frames of this package's lowering, and at the level of a module or notebook cell.
    """
    definitions = dict(_DEFINITION.findall(text))
    if not definitions:
        return text
    cut: dict[str, str] = {}
    for alias, body in definitions.items():
        if call := _CALL.fullmatch(body):
            callee, caller = call.groups()
            if _frame(definitions, callee)[1]:
                cut[alias] = "unknown"
            elif _begins(definitions, callee) or _frame(definitions, _innermost(definitions, caller))[1]:
                cut[alias] = definitions.get(callee, "unknown")
            elif _begins(definitions, _innermost(definitions, caller)):
                cut[alias] = definitions.get(callee, "unknown")
    return _renumbered(text, definitions | cut)


def hide_cells(text: str) -> tuple[str, str]:
    """The text without the process id in names of notebook cells, and what to put back ("": nothing)."""
    names = {match[0] for match in _CELL.finditer(text)}
    if len(names) != 1:
        return text, ""
    (name,) = names
    return text.replace(name, _NO_CELL), name


def show_cells(text: str, name: str) -> str:
    """The opposite of `hide_cells`."""
    return text.replace(_NO_CELL, name) if name else text


def _innermost(definitions: dict[str, str], alias: str) -> str:
    """The frame where a call stack begins."""
    call = _CALL.fullmatch(definitions.get(alias, ""))
    return call[1] if call else alias


def _frame(definitions: dict[str, str], alias: str) -> tuple[str, bool]:
    """Name of the function of a frame, and whether it is one of this package."""
    named = _NAMED.fullmatch(definitions.get(alias, ""))
    if named is None:
        return "", False
    return named[1], definitions.get(named[2], "").startswith(_HERE)


def _begins(definitions: dict[str, str], alias: str) -> bool:
    name, _ = _frame(definitions, alias)
    return name == "<module>" or name.startswith("<cell line")


def _renumbered(text: str, definitions: dict[str, str]) -> str:
    """Only the locations that are used, in the order of first use; each one below those that it is made of.

    All are at the top: MLIR reads a location before its definition at the end of an operation, but neither at an
    argument nor inside another definition.
    """
    body = _DEFINITION.sub("", text)
    numbers: dict[str, str] = {}
    for match in _ALIAS.finditer(body):
        stack = [match[0]]
        while stack:
            now = stack[-1]
            parts = _ALIAS.findall(definitions.get(now, ""))
            waiting = set(stack)  # a location that is made of itself is given a number all the same
            open_parts = (part for part in parts if part in definitions and part not in numbers and part not in waiting)
            missing = next(open_parts, None)
            if missing is not None and now not in numbers:
                stack.append(missing)
                continue
            stack.pop()
            if now in definitions:
                numbers.setdefault(now, f"#loc{len(numbers)}")

    def renumber(fragment: str) -> str:
        return _ALIAS.sub(lambda match: numbers.get(match[0], match[0]), fragment)

    tops = [f"{number} = loc({renumber(definitions[alias])})" for alias, number in numbers.items()]
    return "\n".join([*tops, renumber(body).strip("\n"), ""])
