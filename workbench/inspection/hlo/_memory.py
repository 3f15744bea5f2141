"""Memory of a compiled module: the compiler's totals, and the live values over the schedule."""

from collections.abc import Callable
from typing import NamedTuple

from workbench.inspection.hlo._shapes import ArrayShape, parse_shape, tuple_widths
from workbench.inspection.hlo._text import Computation, Hlo, Instruction
from workbench.records.compiled import BufferRecord, MemoryRecord
from workbench.records.program import SourceLine

_LISTED = 4096  # number of buffers: more than any actual program has at its peak
_SAME_PEAK = 0.1
_ALIASES = frozenset("bitcast opt-barrier add-dependency domain".split())
_SILENT = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast"))
_ELEMENTWISE = frozenset(
    "add subtract multiply divide maximum minimum select compare tanh exponential log negate convert power rsqrt sqrt "
    "and or not xor sine cosine logistic clamp abs".split()
)
_ON_DEVICE = (0, 1, 3)  # HBM, and on TPU also VMEM and CMEM: the spaces that count in the compilers' own peak
_UPDATES = frozenset(("dynamic-update-slice", "scatter"))

RECONSTRUCTED = (
    "the timeline and the largest buffers are reconstructed from the instruction schedule; the compiler's own buffer "
    "assignment may differ"
)


# A compiler's program is visited about once; hand-made text could take unbounded time.
_STEPS_MIN, _STEPS_PER_INSTRUCTION = 100_000, 40


class _TooManyStepsError(Exception):
    """Raised when computations call each other too often."""


class Buffer(NamedTuple):
    """A value in device memory: one array of an instruction's result."""

    instruction: Instruction
    leaf: ArrayShape
    number: int


def read_memory(
    hlo: Hlo, stats: object | None, source: Callable[[Instruction], SourceLine | None], *, available: int | None = None
) -> tuple[MemoryRecord, tuple[Buffer, ...]]:
    """The memory of a module, and the buffers alive at the peak of its schedule."""
    liveness = _Liveness(hlo)
    note = "the module is not scheduled: no memory timeline"
    if "is_scheduled=true" in hlo.header:
        note = RECONSTRUCTED if liveness.run() else "its computations call each other too often for a memory timeline"
    peak_bytes = _peak(stats)
    notes = [note]
    highest = max((size for _, size in liveness.timeline), default=0)
    if peak_bytes and highest and abs(highest / peak_bytes - 1) > _SAME_PEAK:
        notes.append(
            f"the timeline reaches {highest / 2**20:.3g} MiB, but the compiler's peak is {peak_bytes / 2**20:.3g} MiB: "
            "use the timeline for the order in which memory fills up, and the compiler's figure for the memory that a "
            "device needs"
        )
    record = MemoryRecord(
        argument_bytes=_stat(stats, "argument_size_in_bytes"),
        output_bytes=_stat(stats, "output_size_in_bytes"),
        temporary_bytes=_stat(stats, "temp_size_in_bytes"),
        alias_bytes=_stat(stats, "alias_size_in_bytes"),
        code_bytes=_stat(stats, "generated_code_size_in_bytes"),
        peak_bytes=peak_bytes,
        available_bytes=available,
        fits=None if peak_bytes is None or available is None else peak_bytes <= available,
        largest=(largest := _largest(liveness.at_peak, source)),
        padding_bytes=sum(buffer.padding_bytes for buffer in largest) if largest else None,
        timeline=tuple(liveness.timeline),
        notes=tuple(notes),
    )
    return record, liveness.at_peak


def with_padding(memory: MemoryRecord) -> MemoryRecord:
    """Adds the padding of every listed buffer, computed from the buffer's layout."""
    largest = tuple(
        buffer.replace(padding_bytes=min(parse_shape(buffer.shape).padding_bytes, buffer.size_bytes))
        for buffer in memory.largest
    )
    padding = sum(buffer.padding_bytes for buffer in largest) if largest else None
    return memory.replace(largest=largest, padding_bytes=padding)


def with_places(
    memory: MemoryRecord, at_peak: tuple[Buffer, ...], op_name: Callable[[Instruction], str]
) -> MemoryRecord:
    """Names the buffers of instructions without metadata, such as conversions that the compiler inserted."""
    unnamed = {buffer.instruction.name: buffer.instruction for buffer in at_peak if not buffer.instruction.op_name}
    unnamed = {name: instruction for name, instruction in unnamed.items() if instruction.opcode != "parameter"}
    largest = tuple(
        buffer.replace(op_name=op_name(unnamed[buffer.name]))
        if buffer.name in unnamed and buffer.source is None
        else buffer
        for buffer in memory.largest
    )
    return memory.replace(largest=largest)


def _stat(stats: object | None, name: str) -> int | None:
    value = getattr(stats, name, None)
    return None if value is None else int(value)


def _peak(stats: object | None) -> int | None:
    """The compiler's peak, or the sum of all parts if that is larger, because XLA's CPU peak omits temporaries."""
    peak = _stat(stats, "peak_memory_in_bytes")
    parts = [_stat(stats, f"{part}_size_in_bytes") for part in ("argument", "output", "temp")]
    sizes = [part for part in parts if part is not None]
    if len(sizes) < len(parts):
        return peak
    return max(peak or 0, sum(sizes) - (_stat(stats, "alias_size_in_bytes") or 0))


def _largest(
    buffers: tuple[Buffer, ...], source: Callable[[Instruction], SourceLine | None]
) -> tuple[BufferRecord, ...]:
    sized = (buffer for buffer in buffers if buffer.leaf.padded_bytes)
    ordered = sorted(sized, key=lambda buffer: -buffer.leaf.padded_bytes)[:_LISTED]
    return tuple(
        BufferRecord(
            name=buffer.instruction.name,
            size_bytes=buffer.leaf.padded_bytes,
            shape=f"{buffer.leaf.dtype}[{','.join(map(str, buffer.leaf.dimensions))}]",
            op_name=buffer.instruction.op_name,
            source=source(buffer.instruction),
            padding_bytes=buffer.leaf.padded_bytes - buffer.leaf.size_bytes,
        )
        for buffer in ordered
    )


class _Liveness:
    """Visits a module in schedule order and tracks the live values.

    Loops update their carried values in place. An elementwise result reuses the buffer of an operand of the same size
    that is not read afterwards. Every other value, unless it is an alias, occupies memory from its own instruction to
    its last reader.
    """

    def __init__(self, hlo: Hlo) -> None:
        self._hlo = hlo
        self._buffers = 0
        self._steps = _STEPS_MIN + _STEPS_PER_INSTRUCTION * sum(len(c.instructions) for c in hlo.computations.values())
        self._peak = -1
        self.at_peak: tuple[Buffer, ...] = ()
        self.timeline: list[tuple[str, int]] = []

    def run(self) -> bool:
        """Fills the timeline of one call, with one iteration per loop; returns False if that takes too many steps."""
        try:
            self._walk(self._hlo.entry, {}, frozenset(), is_loop=False)
        except _TooManyStepsError:
            self.timeline, self.at_peak = [], ()
            return False
        self.at_peak = tuple(sorted(self.at_peak, key=lambda buffer: buffer.number))  # sets have no order
        return True

    def _walk(
        self,
        computation: Computation,
        parameters: dict[int, list[Buffer]],
        outside: frozenset[Buffer],
        *,
        is_loop: bool,
    ) -> None:
        """Runs one computation with its parameters' buffers in `parameters`; `outside` stays alive throughout."""
        values: dict[str, list[Buffer]] = {}
        self._steps -= len(outside)
        for instruction in computation.instructions:
            self._steps -= 1 + len(instruction.operands)
            if self._steps < 0:
                raise _TooManyStepsError
            values[instruction.name] = self._value(instruction, computation, values, parameters)
        result = values[computation.root.name] if computation.root else []
        # A loop's body leaves its results in the buffers of its parameters. If that is impossible, the schedule
        # already contains copy instructions.
        free = outside.union(result) if is_loop else outside
        starting, ending = self._lives(computation, values, result)
        live: dict[Buffer, None] = {}
        total = sum(buffer.leaf.padded_bytes for buffer in outside)
        for index, instruction in enumerate(computation.instructions):
            encloses = instruction.opcode in ("while", "call", "conditional")
            if encloses:  # before its result, because the computation inside writes that result
                self._enter(instruction, values, outside.union(live))
            for buffer in starting.get(index, ()):
                if buffer not in free:
                    replaced = _taken_over(buffer, [b for b in ending.get(index, ()) if b in live])
                    if replaced is not None:
                        del live[replaced]
                        total -= replaced.leaf.padded_bytes
                    live[buffer] = None
                    total += buffer.leaf.padded_bytes
            if not encloses and instruction.opcode not in _SILENT:
                self.timeline.append((instruction.name, total))
                if total > self._peak:
                    self._peak, self.at_peak = total, (*outside, *live)
            for buffer in ending.get(index, ()):
                if buffer in live:
                    del live[buffer]
                    total -= buffer.leaf.padded_bytes

    def _lives(
        self, computation: Computation, values: dict[str, list[Buffer]], result: list[Buffer]
    ) -> tuple[dict[int, list[Buffer]], dict[int, list[Buffer]]]:
        """Buffers whose lifetime begins or ends at each instruction."""
        first: dict[Buffer, int] = {}
        last: dict[Buffer, int] = {}
        for index, instruction in enumerate(computation.instructions):
            for buffer in values[instruction.name]:
                first.setdefault(buffer, index)
            for operand in instruction.operands:
                last.update(dict.fromkeys(values[operand], index))
        forever = len(computation.instructions)
        last.update(dict.fromkeys(result, forever))
        starting: dict[int, list[Buffer]] = {}
        ending: dict[int, list[Buffer]] = {}
        for buffer, index in first.items():
            argument = self._is_argument(buffer)
            starting.setdefault(0 if argument else index, []).append(buffer)
            ending.setdefault(forever if argument else last.get(buffer, index), []).append(buffer)
        return starting, ending

    def _is_argument(self, buffer: Buffer) -> bool:
        node = buffer.instruction
        return node.opcode == "parameter" and node.computation == self._hlo.entry.name

    def _enter(self, instruction: Instruction, values: dict[str, list[Buffer]], outside: frozenset[Buffer]) -> None:
        parameters = {index: values[operand] for index, operand in enumerate(instruction.operands)}
        if instruction.opcode == "conditional":  # operands: the branch index, then one argument per branch
            branches = instruction.calls()
            for branch, operand in zip(branches, instruction.operands[1:], strict=False):
                self._walk(self._hlo.computations[branch], {0: values[operand]}, outside, is_loop=False)
            return
        for name in instruction.calls("body", "to_apply", "calls"):
            self._walk(self._hlo.computations[name], parameters, outside, is_loop=instruction.opcode == "while")

    def _value(
        self,
        instruction: Instruction,
        computation: Computation,
        values: dict[str, list[Buffer]],
        parameters: dict[int, list[Buffer]],
    ) -> list[Buffer]:
        opcode = instruction.opcode
        if opcode == "tuple":
            return [b for operand in instruction.operands for b in values[operand]][: len(instruction.shape.leaves)]
        if opcode == "get-tuple-element":
            source = computation.by_name[instruction.operands[0]]
            index = int(instruction.attribute("index") or 0)
            widths = tuple_widths(source.shape_text)
            start = sum(widths[:index])
            return values[source.name][start : start + widths[index]]
        if opcode == "parameter" and parameters:
            return parameters.get(int(instruction.arguments), [])
        if opcode in _ALIASES or opcode in _UPDATES or opcode == "while":
            return values[instruction.operands[0]][: len(instruction.shape.leaves)]
        if opcode.endswith(("-done", "-update")) and instruction.operands:
            return self._finished(instruction, computation, values)
        new = self._new(instruction)
        given_back = _alias_positions(instruction, [b for o in instruction.operands for b in values[o]])
        return [given_back.get(position, buffer) for position, buffer in enumerate(new)]

    def _finished(
        self, instruction: Instruction, computation: Computation, values: dict[str, list[Buffer]]
    ) -> list[Buffer]:
        """Result of an asynchronous operation whose start holds operands, results and context."""
        start = computation.by_name[instruction.operands[0]]
        buffers, width = values[start.name], len(instruction.shape.leaves)
        if width >= len(buffers) or start.opcode == "copy-start":
            return buffers[:width]
        operands = sum(len(values[operand]) for operand in start.operands)
        return buffers[operands : operands + width]

    def _new(self, instruction: Instruction) -> list[Buffer]:
        buffers = []
        for leaf in instruction.shape.leaves:
            self._buffers += 1
            counts = leaf.space in _ON_DEVICE and instruction.opcode != "constant"
            buffers.append(Buffer(instruction, leaf if counts else _nothing(leaf), self._buffers))
        return buffers


def _taken_over(buffer: Buffer, dying: list[Buffer]) -> Buffer | None:
    node = buffer.instruction
    if node.opcode not in _ELEMENTWISE and not (node.opcode == "fusion" and "kind=kLoop" in node.attributes):
        return None
    matches = (
        b for b in dying if b.leaf.padded_bytes == buffer.leaf.padded_bytes and b.leaf.space == buffer.leaf.space
    )
    return next(matches, None)


def _alias_positions(instruction: Instruction, operands: list[Buffer]) -> dict[int, Buffer]:
    """Positions of the operands in an asynchronous start's result: first for most operations, second for a copy."""
    if not instruction.opcode.endswith("-start") or len(instruction.shape.leaves) <= len(operands):
        return {}
    first = 1 if instruction.opcode == "copy-start" else 0
    return {first + position: buffer for position, buffer in enumerate(operands)}


def _nothing(leaf: ArrayShape) -> ArrayShape:
    return ArrayShape(leaf.dtype, leaf.dimensions, leaf.elements, 0, 0, leaf.space)
