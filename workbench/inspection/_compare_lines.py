"""Line-by-line figures of several programs, side by side."""

import difflib
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from workbench.records import read_source_line
from workbench.records.advice import ComparedRecord, Group, Status, Unit
from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord, sum_figures

Codes = Mapping[tuple[str, int], str]  # file and line -> the code on that line
_MOST_LINES = 100  # of one figure
_LONGEST = 60  # maximum number of characters of a line's code
_TIME_TOLERANCE = 0.03  # relative; two runs of one program differ by about as much
_FIGURES: tuple[tuple[Group, Unit, Callable[[CallFiguresRecord], float | None]], ...] = (
    ("seconds per line", "seconds", lambda f: statistics.fmean(f.measured_seconds.values() or (0.0,))),
    ("bytes sent per line", "bytes", lambda f: f.sent),
    ("peak memory per line", "bytes", lambda f: f.peak_bytes),
    ("predicted seconds per line", "seconds", lambda f: f.predicted_seconds),
    ("FLOPs per line", "flops", lambda f: f.flops),
    ("memory traffic per line", "bytes", lambda f: f.traffic_bytes),
)


def line_rows(trees: Sequence[CallTreeRecord], codes: Sequence[Codes] | None = None) -> list[ComparedRecord]:
    """Rows with the figures of each line, for one call on one device.

    Lines are matched by function and code, because an edit above a line changes its number. A replaced line is compared
    with its replacement.

    Example:
        >>> once, twice = (wb.trace(lambda x: x @ x)(jnp.ones((n, n))).call_tree for n in (4, 8))
        >>> [(row.group, row.values) for row in line_rows([once, twice])][0]
        ('FLOPs per line', (128.0, 1024.0))
    """
    all_codes = [codes_of(tree) for tree in trees] if codes is None else codes
    sides = [_lines(tree) for tree in trees]
    keys = [_keys(side, code, sides[0], all_codes[0]) for side, code in zip(sides, all_codes, strict=True)]
    columns: list[dict[tuple[str, int, str], list[CallFiguresRecord]]] = []
    names: dict[tuple[str, int, str], str] = {}
    for side, key_of, code in zip(sides, keys, all_codes, strict=True):
        column: dict[tuple[str, int, str], list[CallFiguresRecord]] = {}
        for place, figures in side.items():
            column.setdefault(key_of[place], []).extend(figures)
            names[key_of[place]] = _name(place, code)
        columns.append(column)
    return [row for figure in _FIGURES for row in _table(*figure, columns, names)]


def codes_of(tree: CallTreeRecord) -> Codes:
    """The code of every line in a tree, if it can be read."""
    lines = {(node.file, node.line) for node in tree.nodes if node.file and node.line and _is_place(node)}
    return {(file, line): read_source_line(file, line).strip() for file, line in lines}


Place = tuple[str, str, int]  # function, file, line


def _lines(tree: CallTreeRecord) -> dict[Place, list[CallFiguresRecord]]:
    """The cost of each line, without the lines that it calls: the sum over all lines is the program's cost."""
    parts: dict[Place, list[CallFiguresRecord]] = {}
    places: list[Place | None] = []  # by node
    for node in tree.nodes:
        place = None if node.parent is None else places[node.parent]
        inside_itself = place is not None and place[1:] == (node.file, node.line)  # such as a lambda on the line
        if node.file and node.line and _is_place(node) and not inside_itself:
            place = (_function(tree, node), node.file, node.line)
        places.append(place)
        if place is not None:
            parts.setdefault(place, []).append(node.own)
    return {place: [sum_figures(figures)] for place, figures in parts.items()}


def _is_place(node: CallNodeRecord) -> bool:
    """Returns whether a node has the line of its work: modules and single passes have no node of kind "line"."""
    return node.kind in ("line", "call", "scope", "loop") and not node.hidden


def _function(tree: CallTreeRecord, node: CallNodeRecord) -> str:
    """The function that contains a line; "" for the program's own function, because its name may differ."""
    functions = [above.name.rpartition(".")[2] for above in tree.path(node) if above.kind == "function"]
    return functions[-1] if len(functions) > 1 else ""


def _keys(side: Mapping[Place, object], code: Codes, first: Mapping[Place, object], first_code: Codes) -> dict:
    """Keys for all lines; a line that matches a line of the first program has the same key."""
    keys: dict[Place, tuple[str, int, str]] = {}
    numbers = {
        place: number
        for function in {place[0] for place in first}
        for number, place in enumerate(sorted(place for place in first if place[0] == function))
    }
    # One program may call the other. The called program's own function then has another name in the caller's tree.
    located = {place[1:]: place for place in first if code.get(place[1:]) == first_code.get(place[1:])}
    moved = {
        place: there
        for place in side
        if (there := located.get(place[1:])) and there[0] != place[0] and place not in first
    }
    successors = set(moved.values())
    moved |= {place: place for place in side if place in successors}  # a line may be in both functions
    keys.update((place, (there[0], numbers[there], "")) for place, there in moved.items())
    for function in dict.fromkeys(place[0] for place in side):
        places = sorted(place for place in side if place[0] == function and place not in moved)
        first_places = sorted(place for place in first if place[0] == function and place not in successors)
        texts, first_texts = ([codes.get(place[1:]) or f"{place[2]}" for place in places]
                        for places, codes in ((places, code), (first_places, first_code)))  # fmt: skip
        for kind, a, b, c, d in difflib.SequenceMatcher(None, first_texts, texts, autojunk=False).get_opcodes():
            alike = kind == "equal" or (kind == "replace" and b - a == d - c)
            for offset in range(d - c):
                place = places[c + offset]
                match = (function, numbers[first_places[a + offset]], "") if alike else None
                keys[place] = match or (function, -1, f"{place[1]}:{place[2]}")
    return keys


def _name(place: Place, code: Codes) -> str:
    _, file, line = place
    text = code.get((file, line), "")
    text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return f"{PurePath(file).name}:{line}" + (f" `{text}`" if text else "")


def _table(
    group: Group,
    unit: Unit,
    value: Callable[[CallFiguresRecord], float | None],
    columns: Sequence[Mapping[tuple[str, int, str], list[CallFiguresRecord]]],
    names: Mapping[tuple[str, int, str], str],
) -> list[ComparedRecord]:
    rows = []
    for key, name in names.items():
        values = tuple(_sum(value, column.get(key)) for column in columns)
        if any(values):
            status = _status(values, [key in column for column in columns], unit)
            rows.append(ComparedRecord(group=group, name=name, values=values, unit=unit, status=status))
    rows.sort(key=lambda row: -max(figure or 0.0 for figure in row.values))
    return rows[:_MOST_LINES]


def _sum(value: Callable[[CallFiguresRecord], float | None], figures: list[CallFiguresRecord] | None) -> float | None:
    amounts = [value(figure) for figure in figures or ()]
    numbers = [amount for amount in amounts if amount is not None]
    return sum(numbers) if numbers and len(numbers) == len(amounts) else None


def _status(values: Sequence[float | None], is_there: Sequence[bool], unit: Unit) -> Status:
    if is_there[0] != is_there[-1]:
        return "removed" if is_there[0] else "added"
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return "unknown"
    tolerance = _TIME_TOLERANCE if unit == "seconds" else 1e-9
    return "same" if all(abs(value - numbers[0]) <= tolerance * abs(numbers[0]) for value in numbers) else "changed"
