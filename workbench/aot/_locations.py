"""Source locations in StableHLO text: keeps the frames of the program and drops the frames of its callers.

A location contains the whole Python call stack. The caller of `lower_for_target` is not part of the program, and the
file name of a cell contains the process id of its kernel. If either were in the text, the cache would never match.
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
    """The text with every call stack cut off where the program begins, and with locations renumbered.

    In a call stack, the program begins directly below this package's lowering frames, or at the top level of a module
    or notebook cell.
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
    """The text without the process id in names of notebook cells, and the id to restore ("": none)."""
    names = {match[0] for match in _CELL.finditer(text)}
    if len(names) != 1:
        return text, ""
    (name,) = names
    return text.replace(name, _NO_CELL), name


def show_cells(text: str, name: str) -> str:
    """Reverses `hide_cells`."""
    return text.replace(_NO_CELL, name) if name else text


def _innermost(definitions: dict[str, str], alias: str) -> str:
    """The innermost frame of a call stack."""
    call = _CALL.fullmatch(definitions.get(alias, ""))
    return call[1] if call else alias


def _frame(definitions: dict[str, str], alias: str) -> tuple[str, bool]:
    """Name of a frame's function, and whether the frame belongs to this package."""
    named = _NAMED.fullmatch(definitions.get(alias, ""))
    if named is None:
        return "", False
    return named[1], definitions.get(named[2], "").startswith(_HERE)


def _begins(definitions: dict[str, str], alias: str) -> bool:
    name, _ = _frame(definitions, alias)
    return name == "<module>" or name.startswith("<cell line")


def _renumbered(text: str, definitions: dict[str, str]) -> str:
    """The locations that are used, in order of first use; each location follows its parts.

    All locations are placed at the top. MLIR accepts a use before the definition only at the end of an operation, not
    at an argument or inside another definition.
    """
    body = _DEFINITION.sub("", text)
    numbers: dict[str, str] = {}
    for match in _ALIAS.finditer(body):
        stack = [match[0]]
        while stack:
            now = stack[-1]
            parts = _ALIAS.findall(definitions.get(now, ""))
            waiting = set(stack)  # a location that contains itself is also given a number
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
