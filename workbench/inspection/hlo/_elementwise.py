"""FLOPs of elementwise operations and reductions: one per element, as in a jaxpr."""

from workbench.inspection.hlo._shapes import Shape
from workbench.inspection.hlo._text import Hlo, Instruction

# HLO names of the operations that `workbench.plan` counts in a jaxpr; moves and comparisons count as 0.
_ARITHMETIC = frozenset(
    "abs acos acosh add asin asinh atan2 atanh cbrt ceil cosh cosine divide erf exponential exponential-minus-one "
    "floor is-finite log log-plus-one logistic maximum minimum multiply negate power remainder round-nearest-afz "
    "round-nearest-even rsqrt sign sine sinh sqrt subtract tan tanh".split()
)
_REDUCTIONS = frozenset(("reduce", "reduce-window", "select-and-scatter"))


class ElementwiseCounter:
    """Counts the elementwise FLOPs of one run of an instruction."""

    def __init__(self, hlo: Hlo) -> None:
        self._hlo = hlo
        self._computations: dict[str, float] = {}

    def instruction(self, instruction: Instruction) -> float:
        """FLOPs of one run, including everything inside a fusion; loops and calls themselves count as 0."""
        opcode = instruction.opcode
        if opcode in _ARITHMETIC:
            return float(instruction.shape.elements)
        if opcode in _REDUCTIONS:
            return float(sum(shape.elements for shape in self._operands(instruction)))
        if opcode == "scatter":  # one addition per element of the updates
            shapes = self._operands(instruction)
            return float(sum(shape.elements for shape in shapes[len(shapes) // 2 + 1 :]))
        if opcode == "fusion":
            return sum(self._computation(name) for name in instruction.calls("calls"))
        return 0.0

    def _computation(self, name: str) -> float:
        if name not in self._computations:
            self._computations[name] = sum(self.instruction(i) for i in self._hlo.computations[name].instructions)
        return self._computations[name]

    def _operands(self, instruction: Instruction) -> list[Shape]:
        by_name = self._hlo.computations[instruction.computation].by_name
        shapes = [by_name[operand].shape for operand in instruction.operands]
        # The second half of a reduction's operands contains the initial values.
        return shapes[: max(1, len(shapes) // 2)] if instruction.opcode in _REDUCTIONS else shapes
