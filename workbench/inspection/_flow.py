"""Data flow around the collectives of a compiled module, and how well a planned operation matches that flow."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from workbench.inspection._compiled_shardings import Place, place_of
from workbench.records.compiled import InstructionRecord
from workbench.records.sharding import PlannedValueRecord

_REARRANGING = frozenset(
    "copy convert bitcast bitcast-convert reshape transpose get-tuple-element copy-start copy-done opt-barrier "
    "parameter constant".split()
)
_EXCHANGES = frozenset("all-gather all-to-all collective-permute".split())
_PRODUCTS = frozenset(("dot_general", "dot", "convolution"))
_PARAMETER = re.compile(r"param(?:eter)?[_.](\d+)")
_DIMENSIONS = re.compile(r"\[([^\]]*)\]")
_MOST_CONSUMERS = 8

Origins = tuple[frozenset[str], int]  # the arguments that a value depends on, and the number of matrix products


class CompiledFlow:
    """Data flow in a compiled module: where its values come from and which instructions read them."""

    def __init__(self, instructions: Sequence[InstructionRecord]) -> None:
        self.instructions = {instruction.name: instruction for instruction in instructions}
        self._inside: dict[str, list[InstructionRecord]] = {}
        self._users: dict[str, list[InstructionRecord]] = {}
        for instruction in instructions:
            if instruction.fused:
                self._inside.setdefault(instruction.computation, []).append(instruction)
            for operand in instruction.operands:
                self._users.setdefault(operand, []).append(instruction)
        self._called = {name for instruction in instructions for name in instruction.calls}
        self._elements: set[int] | None = None
        self._arguments: dict[str, frozenset[str]] = {}
        self._products: dict[str, int] = {}
        self._fill(instructions)

    def has_array(self, elements: int) -> bool:
        """Returns whether a value with this number of elements is written to memory; True if nothing was compiled."""
        if self._elements is None:
            shapes = [instruction.shape for instruction in self.instructions.values() if not instruction.fused]
            dimensions = [text.split(",") for shape in shapes for text in _DIMENSIONS.findall(shape)]
            self._elements = {math.prod(int(size.strip("<= ") or 1) for size in sizes) for sizes in dimensions}
        return not self._elements or elements in self._elements

    def maker(self, name: str, passing: frozenset[str] = _REARRANGING | _EXCHANGES) -> InstructionRecord | None:
        """The instruction or parameter that a value comes from, ignoring copies, casts and collectives."""
        return next(iter(reversed([*self._path(name, passing)])), None)

    def exchanges_before(self, name: str) -> list[str]:
        """The exchanges that a value passes, in their order, before it reaches an exchange."""
        operands = self.instructions[name].operands if name in self.instructions else ()
        path = self._path(operands[0], _REARRANGING | _EXCHANGES) if operands else ()
        return [at.name for at in reversed([*path]) if at.opcode in _EXCHANGES]

    def _path(self, name: str, passing: frozenset[str]) -> Iterator[InstructionRecord]:
        """A value, and the values of which it is a copy, a cast or an exchanged part."""
        instruction = self.instructions.get(name)
        while instruction is not None:
            yield instruction
            if instruction.opcode == "all-to-all":
                passing |= {"slice"}  # its operands are slices of one value
            source = self._source_of(instruction, passing)
            instruction = None if source is None else self.instructions.get(source)

    def makers(self, name: str, slicing: frozenset[str] = frozenset()) -> list[InstructionRecord]:
        """Instructions that computed the operands of an instruction, ignoring also the opcodes in `slicing`."""
        instruction, passing = self.instructions.get(name), _REARRANGING | _EXCHANGES | slicing
        if instruction is None:
            return []
        if instruction.opcode.startswith("all-to-all"):  # its operands are slices of one value
            passing |= {"slice"}
            sliced = [self.maker(operand, passing) for operand in instruction.operands]
            return [self._last_computed(maker, passing) for maker in sliced if maker is not None]
        makers = [self.maker(operand, passing) for operand in instruction.operands]
        return [maker for maker in makers if maker is not None]

    def _last_computed(self, instruction: InstructionRecord, passing: frozenset[str]) -> InstructionRecord:
        """The last instruction in a fusion that computes, ignoring copies, casts and slices of its result."""
        inside = self._inside.get(instruction.calls[0], []) if instruction.opcode == "fusion" else []
        names = {inner.name: inner for inner in inside}
        at = inside[-1] if inside else instruction
        while at.opcode in passing and at.operands and at.operands[0] in names:
            at = names[at.operands[0]]
        return at if at.opcode != "parameter" else instruction

    def shapes_of(self, instruction: InstructionRecord) -> list[str]:
        """The shapes of an instruction's result, and of its copies and sums under the same name."""
        shapes, pending, seen = [], [instruction], set[str]()
        while pending:
            at = pending.pop()
            if at.name in seen or at.op_name != instruction.op_name:
                continue
            seen.add(at.name)
            shapes.append(at.shape)
            users = self._users.get(at.name, ())
            pending.extend(user for user in users if self._source_of(user, _REARRANGING | {"all-reduce"}) is not None)
        return shapes

    def consumers(self, name: str) -> list[InstructionRecord]:
        """The instructions that compute with a value, found behind copies and casts."""
        consumers, pending, seen = [], list(self._users.get(name, ())), {name}
        while pending and len(consumers) < _MOST_CONSUMERS:
            instruction = pending.pop(0)
            if instruction.name in seen:
                continue
            seen.add(instruction.name)
            if self._source_of(instruction) is not None:
                pending.extend(self._users.get(instruction.name, ()))
            elif instruction.opcode != "tuple":
                consumers.append(instruction)
        return consumers

    def places_around(self, name: str) -> set[Place]:
        """The names and lines of an exchange, of the makers of its operands, and of its consumers."""
        around = [self.instructions[name], *self.makers(name), *self.consumers(name)]
        inside = [inner for at in around if at.opcode == "fusion" for inner in self._inside.get(at.calls[0], ())]
        return {place_of(operation) for operation in (*around, *inside) if operation.op_name}

    def is_cut(self, instruction: InstructionRecord) -> bool:
        """Returns whether an instruction takes one device's part of a value."""
        at = instruction
        if instruction.opcode == "fusion":
            at = self._last_computed(instruction, _REARRANGING)
        return at.opcode == "dynamic-slice"

    def is_result(self, name: str) -> bool:
        """Returns whether a value's only use is as a result, ignoring copies, casts and slices."""
        users, instruction = self._users.get(name, ()), self.instructions.get(name)
        if instruction is None or instruction.computation in self._called:
            return False
        return all(
            user.opcode == "tuple"
            or (self._source_of(user, _REARRANGING | {"slice"}) is not None and self.is_result(user.name))
            for user in users
        )

    def is_called(self, name: str) -> bool:
        """Returns whether an instruction belongs to a called computation, such as the body of a loop."""
        instruction = self.instructions.get(name)
        return instruction is not None and instruction.computation in self._called

    def origins(self, names: Iterable[str]) -> Origins:
        """The program arguments that values depend on, and the number of matrix products before the values."""
        values = [name for name in names if name in self._arguments]
        arguments = frozenset().union(*(self._arguments[name] for name in values))
        return arguments, max((self._products[name] for name in values), default=0)

    def _source_of(self, instruction: InstructionRecord, passing: frozenset[str] = _REARRANGING) -> str | None:
        """The operand that an instruction only rearranges; None if the instruction computes."""
        source = self.instructions.get(instruction.operands[0]) if instruction.operands else None
        if not instruction.operands or (instruction.op_name and source is not None and _is_sum(source)):
            return None  # the result of a combined sum has the name of its own sum
        if instruction.opcode in passing or ("all-to-all" in passing and self._is_joined(instruction)):
            return instruction.operands[0]
        if instruction.opcode != "fusion" or not instruction.calls:
            return None
        inside = self._inside.get(instruction.calls[0], [])
        names = {inner.name: inner for inner in inside}
        at = inside[-1] if inside else instruction
        while at.opcode in passing and at.operands and at.operands[0] in names:
            at = names[at.operands[0]]
        match = _PARAMETER.match(at.name) if at.opcode == "parameter" else None
        return instruction.operands[int(match[1])] if match and int(match[1]) < len(instruction.operands) else None

    def _is_joined(self, instruction: InstructionRecord) -> bool:
        """Returns whether an instruction joins the results of an exchange."""
        parts = [self.instructions[name] for name in instruction.operands if name in self.instructions]
        return (
            instruction.opcode == "concatenate"
            and len(parts) == len(instruction.operands)
            and {part.opcode for part in parts} == {"get-tuple-element"}
            and len({part.operands for part in parts}) == 1
        )

    def _fill(self, instructions: Sequence[InstructionRecord]) -> None:
        masks: dict[str, int] = {}
        count = 0
        for instruction in instructions:
            if instruction.fused:
                continue
            arguments = frozenset[str]().union(
                *(self._arguments.get(name, frozenset()) for name in instruction.operands)
            )
            if instruction.opcode == "parameter" and instruction.op_name:
                arguments = frozenset((instruction.op_name,))
            mask = 0
            for name in instruction.operands:
                mask |= masks.get(name, 0)
            if instruction.flops > 0:
                mask |= 1 << count
                count += 1
            self._arguments[instruction.name], masks[instruction.name] = arguments, mask
        self._products = {name: mask.bit_count() for name, mask in masks.items()}


def _is_sum(instruction: InstructionRecord) -> bool:
    return instruction.opcode.removesuffix("-start") in ("all-reduce", "reduce-scatter") and "(" in instruction.shape


def planned_origins(values: Sequence[PlannedValueRecord]) -> dict[str, Origins]:
    """The arguments that each planned value depends on, and the number of matrix products before the value."""
    arguments: dict[str, frozenset[str]] = {}
    masks: dict[str, int] = {}
    for number, value in enumerate(values):
        sources = [arguments.get(name, frozenset()) for name in value.operands]
        arguments[value.name] = frozenset[str]().union(*sources)
        if value.operation == "input":
            arguments[value.name] = frozenset((value.op_name,))
        mask = 1 << number if value.operation in _PRODUCTS else 0
        for name in value.operands:
            mask |= masks.get(name, 0)
        masks[value.name] = mask
    return {name: (arguments[name], masks[name].bit_count()) for name in arguments}


def likeness(one: Origins, other: Origins) -> float:
    """Similarity between the origins of two values: 1 if both have the same arguments and number of products."""
    together = one[0] | other[0]
    shared = len(one[0] & other[0]) / len(together) if together else 1.0
    return round(shared / (1 + 0.1 * abs(one[1] - other[1])), 6)
