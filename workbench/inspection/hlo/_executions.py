"""Executions of every computation per call of a module, from loop trip counts, branches and calls."""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from workbench.inspection.hlo._text import Computation, Hlo, Instruction

_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)"?\}')
# Opcodes whose callees run once per element: regions of reductions, comparators of sorts. They add no separate call.
_REGIONS = frozenset(
    "reduce reduce-window scatter sort map select-and-scatter all-reduce all-reduce-start reduce-scatter "
    "reduce-scatter-start".split()
)


class Runs(NamedTuple):
    """Executions of the computations; `executions` is NaN inside a loop of unknown length."""

    executions: dict[str, float]
    fused: frozenset[str]  # computations inside fusions, whose values never reach memory
    regions: frozenset[str]  # applied per element
    callers: dict[str, Instruction]  # one of the callers of each computation
    notes: tuple[str, ...]


def count_runs(hlo: Hlo, weigh: Callable[[str], float]) -> Runs:
    """Counts how often each computation is executed in one call of the module."""
    times = dict.fromkeys(hlo.computations, 0.0)
    times[hlo.entry.name] = 1.0
    fused, regions, notes = set(), set(), []
    callers: dict[str, Instruction] = {}
    for instruction in hlo.instructions():
        callers.update(dict.fromkeys(instruction.calls(), instruction))
    for computation in reversed(hlo.computations.values()):  # callers come after their callees
        inside_fusion = computation.name in fused
        for instruction in computation.instructions:
            if not instruction.called:
                continue
            for callee, factor in _callees(hlo, instruction, callers, weigh, notes).items():
                if instruction.opcode in _REGIONS or computation.name in regions:
                    regions.add(callee)
                    continue
                if instruction.opcode == "fusion" or inside_fusion:
                    fused.add(callee)
                if times[computation.name] != 0 and factor != 0:
                    times[callee] += times[computation.name] * factor
    reached = {name for name, count in times.items() if count != 0}
    notes = [note for where, note in notes if where in reached]
    return Runs(times, frozenset(fused), frozenset(regions - fused), callers, tuple(dict.fromkeys(notes)))


def _callees(
    hlo: Hlo,
    instruction: Instruction,
    callers: Mapping[str, Instruction],
    weigh: Callable[[str], float],
    notes: list[tuple[str, str]],
) -> dict[str, float]:
    if instruction.opcode == "while":
        trips = trip_count(hlo, instruction, callers)
        if trips is None:
            note = (
                f"the length of loop `{instruction.name}` is unknown before the run, so the figures of its body are "
                "unknown too"
            )
            notes.append((instruction.computation, note))
            return dict.fromkeys(instruction.calls(), math.nan)
        return {**dict.fromkeys(instruction.calls("condition"), trips + 1.0), instruction.calls("body")[0]: trips}
    if instruction.opcode == "conditional":
        branches = instruction.calls()
        chosen = max(branches, key=weigh)
        note = f"of {len(branches)} branches of `{instruction.name}`, only the most expensive, `{chosen}`, is counted"
        notes.append((instruction.computation, note))
        return {branch: float(branch == chosen) for branch in branches}
    counts: dict[str, float] = {}
    for callee in instruction.calls():
        counts[callee] = counts.get(callee, 0.0) + 1.0
    return counts


def trip_count(hlo: Hlo, loop: Instruction, callers: Mapping[str, Instruction]) -> float | None:
    """Number of iterations of a `while`, or None if unknown.

    On CPU and GPU the compiler states the number. On TPU it is derived from the condition (a comparison of the
    induction variable with a bound), the initial value and the body's step.
    """
    match = _TRIPS.search(loop.attributes)
    if match:
        return float(match[1])
    values = _LoopValues(hlo, loop, callers, _Patience())
    comparison, scope = _unwrap(hlo, values.condition.root, {})
    if comparison is None or comparison.opcode != "compare":
        return None
    direction, where = comparison.attribute("direction"), hlo.computations[comparison.computation]
    sides = [values.linear(where, operand, scope) for operand in comparison.operands]
    return values.solve(sides[0], sides[1], direction) if direction and len(sides) == 2 else None


class _Linear(NamedTuple):
    """`slope` × (element number `element` of the loop's tuple) + `offset`."""

    slope: float
    element: int
    offset: float


Scope = Mapping[int, tuple[Computation, str, "Scope"]]  # operands of the fusion that contains a computation


class _Patience:
    """Limit on the values to visit, and so on the depth; in a text of 3 kB, one value can be reached on 2^40 paths."""

    def __init__(self) -> None:
        self._visits = 300

    def ends(self) -> bool:
        """Counts one visit."""
        self._visits -= 1
        return self._visits < 0


class _LoopValues:
    """Values in a loop's condition or body, as linear functions of one element of the loop's tuple."""

    def __init__(self, hlo: Hlo, loop: Instruction, callers: Mapping[str, Instruction], patience: _Patience) -> None:
        self._hlo, self._callers, self._patience = hlo, callers, patience
        self.condition, self._body = (hlo.computations[loop.calls(part)[0]] for part in ("condition", "body"))
        self._outside = hlo.computations[loop.computation]
        self._start = self._outside.by_name[loop.operands[0]]

    def solve(self, left: _Linear | None, right: _Linear | None, direction: str) -> float | None:
        """The number of iterations until `left direction right` fails."""
        if left is None or right is None:
            return None
        if left.slope == 0:
            left, right = right, left
            direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
        if left.slope == 0 or right.slope != 0:
            return None
        first, step = self._initial(left.element), self._step(left.element)
        if first is None or step is None:
            return None
        value, step, bound = left.slope * first + left.offset, left.slope * step, right.offset
        if direction in ("GT", "GE"):
            value, step, bound, direction = -value, -step, -bound, {"GT": "LT", "GE": "LE"}[direction]
        if direction == "NE":
            iterations = 0.0 if value == bound else (bound - value) / step if step else -1
            return iterations if iterations >= 0 and iterations == int(iterations) else None
        if direction not in ("LT", "LE"):
            return None
        if value > bound or (value == bound and direction == "LT"):
            return 0.0
        if step <= 0:
            return None
        return float(math.ceil((bound - value) / step) if direction == "LT" else (bound - value) // step + 1)

    def linear(self, computation: Computation, name: str, scope: Scope) -> _Linear | None:
        """A value as a linear function of one element of the loop's tuple, or None if it is no such function."""
        node = computation.by_name[name]
        if self._patience.ends():
            return None
        if node.opcode == "constant":
            return _constant(node)
        if node.opcode in ("copy", "bitcast", "convert", "reshape", "broadcast", "bitcast-convert"):
            return self.linear(computation, node.operands[0], scope)
        if node.opcode == "parameter" and scope:
            outer, operand, outer_scope = scope[int(node.arguments)]
            return self.linear(outer, operand, outer_scope)
        if node.opcode == "fusion":
            inner = self._hlo.computations[node.calls("calls")[0]]
            inner_scope = {i: (computation, operand, scope) for i, operand in enumerate(node.operands)}
            return self.linear(inner, inner.root.name, inner_scope) if inner.root else None
        if node.opcode == "get-tuple-element" and not scope:
            return self._element(computation, node)
        if node.opcode in ("add", "subtract", "multiply"):
            left, right = (self.linear(computation, o, scope) for o in node.operands)
            return _combine(node.opcode, left, right)
        return None

    def _element(self, computation: Computation, node: Instruction) -> _Linear | None:
        if computation.by_name[node.operands[0]].opcode != "parameter":
            return None
        index = int(node.attribute("index") or 0)
        if computation not in (self._body, self.condition):
            caller = self._callers.get(computation.name)
            if caller is None or caller.opcode != "while":
                return None
            value = _LoopValues(self._hlo, caller, self._callers, self._patience)._unchanging(index)
            return None if value is None else _Linear(0, 0, value)
        value = self._unchanging(index)
        return _Linear(1, index, 0) if value is None else _Linear(0, 0, value)

    def _unchanging(self, index: int) -> float | None:
        return self._initial(index) if self._is_carried_unchanged(index) else None

    def _is_carried_unchanged(self, index: int) -> bool:
        root = self._body.root
        if root is None or root.opcode != "tuple":
            return False
        result = self._body.by_name[root.operands[index]]
        while result.opcode in ("copy", "bitcast"):
            result = self._body.by_name[result.operands[0]]
        if result.opcode != "get-tuple-element" or result.attribute("index") != str(index):
            return False
        return self._body.by_name[result.operands[0]].opcode == "parameter"

    def _initial(self, index: int) -> float | None:
        if self._start.opcode != "tuple":
            return None
        value = self.linear(self._outside, self._start.operands[index], {})
        return value.offset if value is not None and value.slope == 0 else None

    def _step(self, index: int) -> float | None:
        root = self._body.root
        if root is None or root.opcode != "tuple":
            return None
        value = self.linear(self._body, root.operands[index], {})
        if value is None or value.slope != 1 or value.element != index:
            return None
        return value.offset


def _constant(node: Instruction) -> _Linear | None:
    text = node.arguments.strip().strip("{} ")
    try:
        return _Linear(0, 0, float(json.loads(text)))
    except ValueError:
        return None


def _combine(opcode: str, left: _Linear | None, right: _Linear | None) -> _Linear | None:
    if left is None or right is None or (left.slope and right.slope):
        return None
    if opcode == "multiply":
        moving, factor = (left, right.offset) if left.slope else (right, left.offset)
        return _Linear(moving.slope * factor, moving.element, moving.offset * factor)
    sign = 1 if opcode == "add" else -1
    slope = left.slope + sign * right.slope
    return _Linear(slope, left.element if left.slope else right.element, left.offset + sign * right.offset)


def _unwrap(hlo: Hlo, node: Instruction | None, scope: Scope) -> tuple[Instruction | None, Scope]:
    """The comparison at the root of a condition, possibly inside a fusion or copy that a backend added."""
    while node is not None and node.opcode in ("fusion", "copy", "bitcast"):
        computation = hlo.computations[node.computation]
        if node.opcode == "fusion":
            scope = {i: (computation, operand, scope) for i, operand in enumerate(node.operands)}
            node = hlo.computations[node.calls("calls")[0]].root
        else:
            node = computation.by_name[node.operands[0]]
    return node, scope
