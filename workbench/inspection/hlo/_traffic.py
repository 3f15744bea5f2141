"""Bytes of main memory that HLO instructions read and write."""

from workbench.inspection.hlo._shapes import ArrayShape, Shape
from workbench.inspection.hlo._text import Computation, Hlo, Instruction

_NONE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call call-start async-start after-all "
    "partition-id replica-id opt-barrier domain add-dependency".split()
)
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_SAME = frozenset(("bitcast", "convert", "copy"))  # as many elements
_IN_PLACE = frozenset(("dynamic-update-slice", "scatter"))
_WITH_WORKSPACE = ('"__cublas', '"__cudnn')


class Traffic:
    """Counts the main-memory bytes of one module's instructions.

    Counts operands and results at the boundary of a fusion, including the padding of their layout. A slice counts only
    the elements it reads, and an in-place update counts only the elements it updates. Values in other memory spaces
    (VMEM, CMEM, the host) count as 0.
    """

    def __init__(self, hlo: Hlo) -> None:
        self._hlo = hlo
        self._parts: dict[Instruction, list[tuple[Instruction, int]]] = {}
        self._read: dict[tuple[str, str], int] = {}  # (computation, value) -> bytes: fusions may share computations

    def instruction(self, instruction: Instruction) -> int:
        """Bytes of one run; loops, calls and branches themselves count as 0."""
        opcode = instruction.opcode
        if opcode in _NONE or opcode.endswith(("-done", "-update")):
            return 0
        if opcode == "fusion":
            return self._fusion(instruction)
        computation = self._hlo.computations[instruction.computation]
        operands = [computation.by_name[operand].shape for operand in instruction.operands]
        result = instruction.shape
        if opcode in _SLICES:
            return _taken(operands[0], result) + result.main_bytes + sum(o.main_bytes for o in operands[1:])
        if opcode == "dynamic-update-slice":
            return operands[1].main_bytes + (operands[1].size_bytes if result.space == 0 else 0)
        if opcode == "scatter":  # inputs, indices, updates: the inputs are updated in place
            half = len(operands) // 2
            return operands[half].main_bytes + 3 * sum(o.main_bytes for o in operands[half + 1 :])
        if opcode in ("copy-start", "slice-start", "dynamic-slice-start"):
            return _asynchronous_copy(opcode, operands[0], result)
        if opcode.endswith("-start") and result.is_tuple:
            return result.main_bytes  # the tuple contains both operands and results
        size = sum(operand.main_bytes for operand in operands) + result.main_bytes
        if opcode == "custom-call" and result.is_tuple and result.leaves:  # `()` is the result of a call that prints
            target = instruction.attribute("custom_call_target") or ""
            last = result.leaves[-1]
            if target.startswith(_WITH_WORKSPACE) and last.dtype in ("s8", "u8") and len(last.dimensions) == 1:
                return size - last.padded_bytes  # reserved workspace, of which most calls use little
        return size

    def _fusion(self, instruction: Instruction) -> int:
        return sum(size for _, size in self.parts(instruction))

    def parts(self, fusion: Instruction) -> list[tuple[Instruction, int]]:
        """The bytes of a fusion, by the instructions inside it that read and write those bytes."""
        if fusion not in self._parts:
            self._parts[fusion] = self._find_parts(fusion)
        return self._parts[fusion]

    def _find_parts(self, fusion: Instruction) -> list[tuple[Instruction, int]]:
        computation = self._hlo.computations[fusion.computation]
        body = self._hlo.computations[fusion.calls("calls")[0]]
        parts: list[tuple[Instruction, int]] = []
        for index, operand in enumerate(fusion.operands):
            shape = computation.by_name[operand].shape
            if shape.main_bytes:
                parts += _shared(self._readers(body, index), min(shape.main_bytes, self._reads(body, index)))
        results, leaves = self._results(body), fusion.shape.leaves
        if len(results) != len(leaves):
            return [*parts, (body.root or fusion, fusion.shape.main_bytes)]
        written = zip(results, leaves, strict=True)
        return parts + [(body.by_name[name], self._written(body, name, leaf)) for name, leaf in written]

    def _readers(self, body: Computation, index: int) -> list[Instruction]:
        parameter = body.parameters.get(index)
        users = [] if parameter is None else [user for user, _ in body.users[parameter.name]]
        return users or [parameter or body.instructions[-1]]

    def _reads(self, body: Computation, index: int) -> int:
        """Bytes of a parameter that a fused computation reads."""
        parameter = body.parameters.get(index)
        return 0 if parameter is None else self._reads_of(body, parameter.name)

    def _reads_of(self, body: Computation, name: str) -> int:
        if (body.name, name) not in self._read:
            self._read[body.name, name] = self._count_reads_of(body, name)
        return self._read[body.name, name]

    def _count_reads_of(self, body: Computation, name: str) -> int:
        """Bytes read from one value; of a sliced, gathered or converted value, only the elements read are counted."""
        shape = body.by_name[name].shape
        full = sum(leaf.padded_bytes for leaf in shape.leaves)
        total = full if body.root is not None and body.root.name == name else 0
        for user, position in body.users[name]:
            if position == 0 and (user.opcode in _SLICES or user.opcode in _SAME):
                total += self._reads_of(body, user.name) * _width(shape) // (_width(user.shape) or 1)
            elif user.opcode == "fusion":
                total += self._reads(self._hlo.computations[user.calls("calls")[0]], position)
            elif not (user.opcode in _IN_PLACE and position == 0):
                return full
        return min(full, total)

    def _results(self, body: Computation) -> list[str]:
        if body.root is None:
            return []
        return list(body.root.operands) if body.root.opcode == "tuple" else [body.root.name]

    def _written(self, body: Computation, name: str, leaf: ArrayShape) -> int:
        if leaf.space != 0:
            return 0
        node = body.by_name[name]
        while node.opcode in ("bitcast", "copy") and node.operands:
            node = body.by_name[node.operands[0]]
        if node.opcode == "dynamic-update-slice":
            return min(leaf.padded_bytes, body.by_name[node.operands[1]].shape.size_bytes)
        if node.opcode == "scatter" and len(node.operands) == 3 and self._is_given(body, node.operands[0]):
            # In place: the operation reads and writes only the elements that it changes.
            return min(leaf.padded_bytes, 2 * body.by_name[node.operands[2]].shape.size_bytes)
        return leaf.padded_bytes

    def _is_given(self, body: Computation, name: str) -> bool:
        """Returns whether a value is a parameter of the fusion rather than computed inside it."""
        node = body.by_name[name]
        while node.opcode == "bitcast":
            node = body.by_name[node.operands[0]]
        return node.opcode == "parameter"


def _width(shape: Shape) -> int:
    """Number of bits per element."""
    return 8 * shape.leaves[0].size_bytes // max(1, shape.elements) if shape.leaves else 0


def _taken(source: Shape, result: Shape) -> int:
    return sum(leaf.padded_bytes for leaf in result.leaves) if source.space == 0 else 0


def _asynchronous_copy(opcode: str, source: Shape, result: Shape) -> int:
    """Bytes of an asynchronous start; a copy returns `(target, source, …)`, and a slice `((source), target, …)`."""
    if len(result.leaves) < 2:
        return source.main_bytes + result.main_bytes
    target = result.leaves[0] if opcode == "copy-start" else result.leaves[1]
    size = target.padded_bytes if source.space == 0 else 0
    return size + (target.padded_bytes if target.space == 0 else 0)


def _shared(readers: list[Instruction], size: int) -> list[tuple[Instruction, int]]:
    """Divides bytes among the instructions that read them; all parts are whole numbers."""
    if len(readers) == 1:
        return [(readers[0], size)]
    share, rest = divmod(size, len(readers))
    return [(reader, share + (index < rest)) for index, reader in enumerate(readers)]
