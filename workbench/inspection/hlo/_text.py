"""HLO text as computations and instructions, parsed statement by statement and checked for completeness."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.errors import InspectionError
from workbench.inspection.hlo._shapes import Shape, parse_shape
from workbench.inspection.hlo._statements import Statement, statements

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([^\s({]+)\s*")
_INSTRUCTION = re.compile(r"(ROOT\s+)?%?([^\s=]+)\s*=\s*")
_SIMPLE = re.compile(r"(ROOT )?%([^\s=]+) = ([^\s(]\S*) ([a-z][\w\-]*)\(([^()]*)\)")
_PLAIN_SHAPE = re.compile(r"(\S+)\s+([a-z][\w\-]*)\(")
_TUPLE_OPCODE = re.compile(r"\)\s+([a-z][\w\-]*)\(")
_NAMES = re.compile(r"%([^\s,()]+)")
_SEPARATORS = re.compile(r"[,()\[\]{}]")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
# The metadata fields that compilers write for JAX; other fields are never read.
_METADATA = re.compile(r', metadata=\{op_name="([^"\\]*(?:\\.[^"\\]*)*)"(?: stack_frame_id=(\d+))?\}')
_CALLING = re.compile(r"(?:calls|to_apply|condition|body|_computations?)=")
_CALLED = re.compile(
    r"\b(calls|to_apply|condition|body|true_computation|false_computation|branch_computations|called_computations"
    r"|select|scatter)="
    r"(?:\{([^}]*)\}|%?([^\s,}]+))"
)


@dataclass(slots=True, eq=False)
class Instruction:
    """One line of HLO. `attributes` is the text after the operands, parsed on demand.

    Text shared by many instructions is a single object. Parsed text (operands, JAX's metadata) is not stored twice,
    because modules of 100 MB must fit into memory several times.
    """

    name: str
    opcode: str
    computation: str
    shape_text: str
    operands: tuple[str, ...]
    arguments: str  # the number of a parameter or the value of a constant; "" if there are operands
    attributes: str
    root: bool
    op_name: str
    frame: int  # 0: none
    called: tuple[tuple[str, str], ...]  # (attribute, computation)

    @property
    def shape(self) -> Shape:
        return parse_shape(self.shape_text)

    def attribute(self, name: str) -> str | None:
        """The text of an attribute's value: the part inside its braces, or up to the next comma."""
        match = re.search(rf"[\s,]{name}=(?:\{{([^}}]*)\}}|([^\s,}}]+))", self.attributes)
        return None if match is None else match[1] if match[1] is not None else match[2]

    def calls(self, *attributes: str) -> tuple[str, ...]:
        """The computations called through the named attributes (through all attributes if none is named)."""
        if not self.called:
            return ()
        return tuple(callee for attribute, callee in self.called if not attributes or attribute in attributes)


@dataclass(slots=True, eq=False)
class Computation:
    """A named list of instructions in schedule order."""

    name: str
    entry: bool
    instructions: list[Instruction] = field(default_factory=list)
    by_name: dict[str, Instruction] = field(default_factory=dict)
    root: Instruction | None = None
    _users: dict[str, list[tuple[Instruction, int]]] | None = None

    @property
    def users(self) -> dict[str, list[tuple[Instruction, int]]]:
        """The readers of each value, each with the position of the value among its operands."""
        if self._users is None:
            self._users = {name: [] for name in self.by_name}
            for instruction in self.instructions:
                for index, operand in enumerate(instruction.operands):
                    self._users[operand].append((instruction, index))
        return self._users

    @property
    def parameters(self) -> dict[int, Instruction]:
        return {int(i.arguments): i for i in self.instructions if i.opcode == "parameter"}


@dataclass(slots=True, eq=False)
class Hlo:
    """A parsed module: computations in text order (callees first)."""

    name: str
    header: str
    computations: dict[str, Computation]
    entry: Computation
    tables: dict[str, list[str]]

    def instructions(self) -> Iterator[Instruction]:
        for computation in self.computations.values():
            yield from computation.instructions


def parse_hlo(text: str) -> Hlo:
    header, tables, computations = "", {}, {}
    current: Computation | None = None
    table: list[str] = []
    shared: dict[str, str] = {}
    for statement in statements(text):
        if statement.kind == "instruction" and current is not None:
            _add(current, statement, shared)
        elif statement.kind == "end":
            current = None
        elif statement.kind == "computation":
            current = _computation(statement)
            if current.name in computations:
                raise InspectionError(_cut_off(f"computation `{current.name}` is defined twice", len(computations)))
            computations[current.name] = current
        elif statement.kind == "module":
            header = statement.text
        elif statement.kind == "table":
            table = tables.setdefault(statement.text, [])
        elif statement.kind == "row":
            table.append(statement.text)
        else:
            raise InspectionError(_not_hlo(statement))
    if current is not None:
        raise InspectionError(_cut_off(f"computation `{current.name}` has no end", len(computations)))
    entry = _complete(computations, text)
    name = header[len("HloModule ") :].split(",")[0].strip() or "unnamed"
    return Hlo(name, header, computations, entry, tables)


def _computation(statement: Statement) -> Computation:
    """Parses the start of a computation: `ENTRY %main (x: f32[4]) -> f32[4] {`, or just `main {`."""
    start = _COMPUTATION.match(statement.text)
    signature = statement.text[start.end() : -1].strip() if start else ""
    if start is None or (signature and not (signature.startswith("(") and "->" in signature)):
        raise InspectionError(_not_hlo(statement))
    return Computation(start[2], start[1] is not None)


def _add(computation: Computation, statement: Statement, shared: dict[str, str]) -> None:
    line = statement.text
    simple = _SIMPLE.match(line)
    if simple is not None:  # applies to nearly every statement printed by a compiler
        root, name, shape, kind, arguments = simple.groups()
        attributes = line[simple.end() :]
    else:
        root, name, shape, kind, arguments, attributes = _taken_apart(statement)
    begin = attributes.find(", metadata={")
    named = _METADATA.match(attributes, begin) if begin >= 0 else None
    if named is not None:
        op_name, frame = named.groups()
        attributes = attributes[:begin] + attributes[named.end() :]
    else:
        op_name, frame = (match and match[1] for match in (_OP_NAME.search(attributes), _FRAME.search(attributes)))
    if op_name and "\\" in op_name:
        op_name = op_name.replace("\\'", "'")
    op_name = op_name or ""
    share = shared.setdefault
    name, attributes = share(name, name), share(attributes, attributes)
    operands: tuple[str, ...] = ()
    if kind not in ("constant", "parameter"):
        operands, arguments = tuple([shared.get(operand, operand) for operand in _operands(arguments)]), ""
    instruction = Instruction(
        name,
        share(kind, kind),
        computation.name,
        share(shape, shape),
        operands,
        arguments,
        attributes,
        root is not None,
        share(op_name, op_name),
        int(frame) if frame else 0,
        _called(attributes, regions=kind == "select-and-scatter"),
    )
    computation.instructions.append(instruction)
    computation.by_name[name] = instruction
    if root is not None:
        computation.root = instruction


def _taken_apart(statement: Statement) -> tuple[str | None, str, str, str, str, str]:
    """ROOT, name, shape, opcode, arguments and attributes of a statement in any form."""
    line = statement.text
    start = _INSTRUCTION.match(line)
    if start is None:
        raise InspectionError(_not_hlo(statement))
    shape_start = start.end()
    if line.startswith("(", shape_start):
        opcode = _TUPLE_OPCODE.search(line, shape_start)
        shape_end = opcode.start() + 1 if opcode else 0
    else:
        opcode = _PLAIN_SHAPE.match(line, shape_start)
        shape_end = opcode.end(1) if opcode else 0
    close = -1 if opcode is None else _closing(line, opcode.end())
    if opcode is None or close < 0:
        raise InspectionError(_not_hlo(statement))
    shape, kind = line[shape_start:shape_end], opcode[opcode.lastindex or 1]
    return start[1], start[2], shape, kind, line[opcode.end() : close], line[close + 1 :]


def _closing(line: str, start: int) -> int:
    """Index of the parenthesis that closes the parenthesis before `start`, or -1."""
    close = line.find(")", start)
    opened = line.count("(", start, close)
    while opened and close >= 0:
        following = line.find(")", close + 1)
        opened += line.count("(", close + 1, following) - 1 if following >= 0 else 0
        close = following
    return close


def _operands(arguments: str) -> list[str]:
    if "%" in arguments:
        return _NAMES.findall(arguments)
    return [part.split()[-1] for part in _split(arguments) if part.strip()]  # for HLO printed without "%"


def _split(arguments: str) -> Iterator[str]:
    """Splits text at commas outside brackets, because operands may be written with their shapes."""
    depth, start = 0, 0
    for match in _SEPARATORS.finditer(arguments):
        depth += {",": 0}.get(match[0], 1 if match[0] in "([{" else -1)
        if match[0] == "," and depth == 0:
            yield arguments[start : match.start()]
            start = match.end()
    yield arguments[start:]


def _called(attributes: str, *, regions: bool) -> tuple[tuple[str, str], ...]:
    if not regions and "=%" not in attributes and "={%" not in attributes and not _CALLING.search(attributes):
        return ()
    calls = []
    for attribute, several, callee in _CALLED.findall(attributes):
        if regions or attribute not in ("select", "scatter"):
            for name in several.split(",") if several else [callee]:
                calls.append((attribute, name.strip().lstrip("%")))
    return tuple(calls)


def _complete(computations: dict[str, Computation], text: str) -> Computation:
    entries = [c for c in computations.values() if c.entry]
    if not entries:
        missing = "no ENTRY computation" if text.strip() else "no text"
        if len(computations) > 1 and text.strip():
            missing += f" (its last computation is `{list(computations)[-1]}`)"
        raise InspectionError(_cut_off(f"there is {missing}", len(computations)))
    for computation in computations.values():
        fault = _fault(computation, computations)
        if fault:
            raise InspectionError(_cut_off(fault, len(computations)))
    return entries[-1]


def _fault(computation: Computation, computations: dict[str, Computation]) -> str | None:
    """Describes missing or repeated parts of a computation."""
    roots = sum(instruction.root for instruction in computation.instructions)
    if roots != 1:
        return f"computation `{computation.name}` has {roots or 'no'} ROOT instructions"
    if len(computation.by_name) != len(computation.instructions):
        return f"computation `{computation.name}` defines an instruction twice"
    defined: set[str] = set()
    for instruction in computation.instructions:
        if not defined.issuperset(instruction.operands) or instruction.called:
            lost = [f"%{operand}" for operand in instruction.operands if operand not in defined]
            lost += [f"computation %{callee}" for _, callee in instruction.called if callee not in computations]
            if lost:
                return f"`{instruction.name}` reads {', '.join(lost)}, which is not defined before it"
        defined.add(instruction.name)
        for callee in instruction.calls("calls") if instruction.opcode == "fusion" else ():
            count = sum(inner.opcode == "parameter" for inner in computations[callee].instructions)
            if count != len(instruction.operands):
                return (
                    f"`{instruction.name}` passes {len(instruction.operands)} values to `{callee}`, which expects "
                    f"{count}"
                )
    return None


def _cut_off(fact: str, computations: int) -> str:
    return (
        f"`inspect_module` was given HLO text of {computations} computation(s) in which {fact}. A module is read only "
        "as a whole, because every cost in it depends on the call graph: pass the full output of "
        "`compiled.as_text()`, from `HloModule` to the closing brace of ENTRY."
    )


def unreadable(fact: str) -> str:
    """The message for text that looks like HLO but is inconsistent."""
    return (
        f"`inspect_module` was given HLO text that it cannot read: {fact}. Costs need complete shapes, dimension "
        "numbers and operands: pass `compiled.as_text()` unchanged."
    )


def _not_hlo(statement: Statement) -> str:
    shown = statement.text[:80]
    return (
        f"`inspect_module` was given text whose line {statement.number}, {shown!r}, is not a line of HLO. "
        "`inspect_module` reads the text of one optimized HLO module: pass a `jax.stages.Compiled` or the full "
        "output of its `as_text()` (StableHLO from `lowered.as_text()` has to be compiled first)."
    )
