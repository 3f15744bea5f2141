"""Memory reports from the compiler: its out-of-memory error, and the buffers alive at the peak."""

import re
from pathlib import Path
from typing import Any

from workbench.records.compiled import BufferRecord, MemoryRecord
from workbench.records.program import SourceLine

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_AMOUNT = r"([\d.]+)([KMGTP]?)i?B?"
_NEEDS = (
    re.compile(rf"total memory required for HLO temporaries \({_AMOUNT}\) exceeds available HBM \({_AMOUNT}\)"),
    re.compile(rf"Used {_AMOUNT} of {_AMOUNT} hbm"),
)
_TOTAL = re.compile(r"Total bytes: (\d+)")
_LIVE = re.compile(r"^\s+(?P<name>[^\s{]+)\{(?P<index>[\d,]*)\}: (?P<size>\d+) bytes", re.MULTILINE)
_ALLOCATION = re.compile(
    r"\d+\. Size: (?P<size>[\d.]+)(?P<unit>[KMGTP]?)\s+(?:Operator: op_name=\"(?P<op_name>[^\"]*)\"[^\n]*\s+)?"
    r"Shape: (?P<shape>\S+)(?:[\s\S]*?XLA label: %?(?P<name>[^\s=]+))?"
)
_INSTRUCTION = re.compile(
    r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>.*?)(?<=[\s})])(?P<opcode>[a-z][a-z\d-]*)\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) (?:\(.*->.*)?\{$")
_LARGEST = 16
_SHARED = (
    "temporaries exceed the peak: the compiler's figure for temporaries also counts values that share memory at "
    "different times, and values outside main memory. The peak counts only values that are in main memory at the same "
    "time; it decides whether the program fits"
)
_PACKAGE = str(Path(__file__).parent.parent)


def out_of_memory_bytes(message: str, usage: str = "") -> tuple[int | None, int | None]:
    """Bytes needed and available per device, from an out-of-memory error; None for figures that are missing.

    The error message rounds to 0.01 units; `usage`, the head of the compiler's memory report, states the exact number
    of needed bytes.

    Example:
        >>> out_of_memory_bytes("Ran out of memory in memory space hbm. Used 24.00G of 15.75G hbm. Exceeded")
        (25769803776, 16911433728)
    """
    for form in _NEEDS:
        if match := form.search(message):
            needed, available = _bytes(match[1], match[2]), _bytes(match[3], match[4])
            exact = _TOTAL.search(usage)
            if exact and abs(int(exact[1]) - needed) <= 0.01 * needed:
                needed = int(exact[1])
            return needed, available
    return None, None


def memory_record(reply: dict[str, Any], available_bytes: int) -> MemoryRecord:
    """The memory of one device from a worker's reply.

    On TPU, `fits` comes from the compiler, which raises an error if the program does not fit. On GPU, it results from
    comparing the compiler's peak with `available_bytes`, because the compiler only warns (see the compilation's notes).
    """
    largest = largest_buffers(reply["peak"], reply["hlo"]) or _allocations(reply["error"])
    if reply["error"]:
        needed, available = out_of_memory_bytes(reply["error"], reply["usage"])
        return MemoryRecord(
            peak_bytes=needed, available_bytes=available or available_bytes, fits=False, largest=largest
        )
    figures = dict(reply["memory"])
    peak = figures.get("peak_bytes")
    if not peak:
        parts = ("argument_bytes", "output_bytes", "temporary_bytes")
        peak = figures["peak_bytes"] = sum(figures.get(name, 0) for name in parts) - figures.get("alias_bytes", 0)
    notes = (_SHARED,) if figures.get("temporary_bytes", 0) > peak else ()
    return MemoryRecord(
        **figures, available_bytes=available_bytes, fits=peak <= available_bytes, largest=largest, notes=notes
    )


def largest_buffers(peak: str, hlo: str) -> tuple[BufferRecord, ...]:
    """The largest buffers alive at the peak, largest first, each with its operation and user line.

    The compiler lists values rather than buffers. Values that a loop carries in the memory of its initial values form
    one buffer, which is listed once.
    """
    live = [(int(match["size"]), match["name"], match["index"]) for match in _LIVE.finditer(peak)]
    live = _once_each(sorted(live, key=lambda item: -item[0]), hlo)[:_LARGEST]
    lines = _definitions(hlo, {name for _, name, _ in live})
    sources = _Sources(hlo)
    return tuple(
        BufferRecord(
            name=name + (f"{{{index}}}" if index else ""),
            size_bytes=size,
            shape=_shape(lines.get(name, ""), index),
            op_name=_first(r'op_name="([^"]*)"', lines.get(name, "")),
            source=sources.of(_first(r"stack_frame_id=(\d+)", lines.get(name, ""))),
        )
        for size, name, index in live
    )


def _once_each(live: list[tuple[int, str, str]], hlo: str) -> list[tuple[int, str, str]]:
    """The first value stored in each buffer."""
    aliases = _SameBuffer(hlo)
    seen: set[tuple[int, tuple[str, str]]] = set()
    values = []
    for size, name, index in live:
        buffer = size, aliases.find((name, index))
        if buffer not in seen:
            seen.add(buffer)
            values.append((size, name, index))
    return values


class _SameBuffer:
    """Values that a loop keeps in one buffer (inputs, carries, results), each as (name, index)."""

    def __init__(self, hlo: str) -> None:
        self._above: dict[tuple[str, str], tuple[str, str]] = {}
        parameters: dict[str, str] = {}
        roots: dict[str, str] = {}
        loops: list[tuple[str, int, str, str, str]] = []
        computation = ""
        for line in hlo.splitlines():
            if header := _COMPUTATION.match(line):
                computation = header[1]
            elif match := _INSTRUCTION.match(line):
                name, opcode, rest = match["name"], match["opcode"], match["rest"]
                operands = re.findall(r"%([\w.\-]+)", rest.partition(")")[0])
                if match["root"]:
                    roots[computation] = name
                if opcode == "parameter":
                    parameters.setdefault(computation, name)
                elif opcode != "while":
                    self._name_parts(name, opcode, operands, rest)
                elif operands:
                    width = len(_elements(match["shape"]))
                    condition, body = (_first(rf"\b{part}=%?([\w.\-]+)", rest) for part in ("condition", "body"))
                    loops.append((name, width, operands[0], condition, body))
        for name, width, start, condition, body in loops:
            carried = [name, parameters.get(condition, ""), parameters.get(body, "")]
            carried.append(roots.get(body, ""))
            for place in map(str, range(width)):
                for value in carried:
                    if value:
                        self._join((value, place), (start, place))

    def find(self, value: tuple[str, str]) -> tuple[str, str]:
        """The representative of all values stored in the same place."""
        while (above := self._above.get(value)) is not None:
            self._above[value] = self._above.get(above, above)  # path halving
            value = above
        return value

    def _name_parts(self, name: str, opcode: str, operands: list[str], rest: str) -> None:
        if opcode == "tuple":
            for place, operand in enumerate(operands):
                self._join((name, str(place)), (operand, ""))
        elif opcode == "get-tuple-element" and operands:
            self._join((name, ""), (operands[0], _first(r"\bindex=(\d+)", rest)))
        elif opcode == "bitcast" and operands:
            self._join((name, ""), (operands[0], ""))

    def _join(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        one, other = self.find(one), self.find(other)
        if one != other:
            self._above[one] = other


def _allocations(error: str) -> tuple[BufferRecord, ...]:
    """The list of buffers that some out-of-memory errors contain."""
    return tuple(
        BufferRecord(
            name=match["name"] or "",
            size_bytes=_bytes(match["size"], match["unit"]),
            shape=match["shape"],
            op_name=match["op_name"] or "",
        )
        for match in _ALLOCATION.finditer(error)
    )


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _definitions(hlo: str, names: set[str]) -> dict[str, str]:
    """The right-hand sides of the instructions with these names."""
    definitions: dict[str, str] = {}
    for line in hlo.splitlines():
        left, equals, right = line.partition(" = ")
        name = left.strip().removeprefix("ROOT ").lstrip("%")
        if equals and name in names:
            definitions[name] = right
    return definitions


def _shape(definition: str, index: str) -> str:
    """The shape in a definition; for a tuple, the shape of one element."""
    if not definition.startswith("("):
        return definition.partition(" ")[0]
    parts = _elements(definition)
    first = index.partition(",")[0]
    return parts[int(first)] if first and int(first) < len(parts) else f"({', '.join(parts)})"


def _elements(definition: str) -> list[str]:
    """The shapes of a tuple's elements."""
    if not definition.startswith("("):
        return []
    depth, start, parts = 0, 1, []
    for place, letter in enumerate(definition):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(re.sub(r"/\*.*?\*/", "", definition[start:place]).strip())
            start = place + 1
        if depth == 0:
            break
    return parts


class _Sources:
    """The tables of files, locations and frames in the header of an HLO module."""

    def __init__(self, hlo: str) -> None:
        head = hlo[: hlo.find("\n%") if "\n%" in hlo else None]
        self._files = dict(re.findall(r'^(\d+) "([^"]*)"$', _table(head, "FileNames"), re.MULTILINE))
        self._functions = dict(re.findall(r'^(\d+) "([^"]*)"$', _table(head, "FunctionNames"), re.MULTILINE))
        self._places = _numbers(_table(head, "FileLocations"))
        self._frames = _numbers(_table(head, "StackFrames"))

    def of(self, frame: str) -> SourceLine | None:
        """The innermost frame outside this package."""
        seen: set[str] = set()
        while frame in self._frames and frame not in seen:
            seen.add(frame)
            numbers = self._frames[frame]
            place = self._places.get(numbers.get("file_location_id", ""), {})
            file = self._files.get(place.get("file_name_id", ""), "")
            if file and not file.startswith(_PACKAGE):
                function = self._functions.get(place.get("function_name_id", ""), "")
                return SourceLine(file=file, line=int(place.get("line", 0)), function=function)
            frame = str(int(numbers.get("parent_frame_id", "1")) - 1)  # printed with an offset of 1, so 1 means none
        return None


def _table(head: str, title: str) -> str:
    return head.partition(f"\n{title}\n")[2].partition("\n\n")[0]


def _numbers(table: str) -> dict[str, dict[str, str]]:
    rows = re.findall(r"^(\d+) \{([^}]*)\}$", table, re.MULTILINE)
    return {number: dict(re.findall(r"(\w+)=(\d+)", fields)) for number, fields in rows}
