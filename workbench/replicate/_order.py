"""Checks that replicas call the same collectives in the same order and return identical states.

The checks read the step's jaxpr. Every value is either identical on all replicas or may vary. Batches, `replica_id` and
values computed from them vary, until an all-reduce or an all-gather makes them identical. A collective in a branch or
loop with a varying condition would run only on some replicas. In compiled code this hangs or mixes up values. Under
`vmap`, which computes both branches, the result is silently wrong.
"""

import dataclasses
from collections.abc import Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from workbench import _jax_compat
from workbench.plan import Cond, Interpreter, Scan, While, source_line
from workbench.render.units import source_text

_EQUALIZING = ("psum", "pmax", "pmin", "all_gather")
_COLLECTIVES = (*_EQUALIZING, "reduce_scatter", "all_to_all", "ppermute", "pbroadcast", "pgather", "ragged_all_to_all")


@dataclasses.dataclass(frozen=True, slots=True)
class Uneven:
    """A branch or loop with collectives and a varying condition."""

    kind: str  # cond or while
    collectives: tuple[str, ...]  # one text per branch
    place: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """Result of the analysis: outputs that vary, and every uneven branch or loop."""

    varies: tuple[bool, ...]
    uneven: tuple[Uneven, ...]


def read_order(closed: ClosedJaxpr, varies: Sequence[bool], axis: str) -> Reading:
    """Analyses a step's jaxpr; `varies` flags inputs that may differ between replicas."""
    walk = _Walk(axis)
    outputs = walk.run(closed, varies)
    return Reading(tuple(outputs), tuple(walk.uneven.values()))


class _Walk(Interpreter[bool]):
    """Propagates flags through a step; a flag states whether a value may differ between the replicas."""

    def __init__(self, axis: str) -> None:
        self.axis = axis
        self.uneven: dict[int, Uneven] = {}

    def constant(self, value: object) -> bool:
        return False

    def enters(self, equation: JaxprEqn) -> bool:
        return equation.primitive.name in ("cond", "scan", "while")

    def bind(self, equation: JaxprEqn, operands: Sequence[bool]) -> list[bool]:
        name, inputs = equation.primitive.name, list(operands)
        if self._is_here(equation):
            varies = not name.startswith(_EQUALIZING) or equation.params.get("axis_index_groups") is not None
            return [varies] * len(equation.outvars)
        bodies = _jax_compat.inner_jaxprs(equation)
        if len(bodies) == 1 and len(bodies[0].invars) == len(inputs) and name != "map_fn":
            return self.run(ClosedJaxpr(bodies[0], ()), inputs)
        return [any(inputs) or any(self._collectives(body) for body in bodies)] * len(equation.outvars)

    def _is_here(self, equation: JaxprEqn) -> bool:
        names = equation.params.get("axis_name", equation.params.get("axes", ()))
        return self.axis in (names if isinstance(names, tuple) else (names,))

    def cond(self, flow: Cond, operands: Sequence[bool]) -> list[bool]:
        index, inputs = flow.split(operands)
        if index:
            self._report(flow.equation, [branch.jaxpr for branch in flow.bodies])
        outputs = [self.run(branch, inputs) for branch in flow.bodies]
        return [index or any(flags) for flags in zip(*outputs, strict=True)]

    def scan(self, flow: Scan, operands: Sequence[bool]) -> list[bool]:
        consts, carry, xs = flow.split(operands)
        while True:
            outputs = self.run(flow.body, [*consts, *carry, *xs])
            wider = [a or b for a, b in zip(carry, outputs[: len(carry)], strict=True)]
            if wider == carry:
                return [*carry, *outputs[len(carry) :]]
            carry = wider

    def while_loop(self, flow: While, operands: Sequence[bool]) -> list[bool]:
        for_condition, for_body, carry = flow.split(operands)
        while True:
            again = self.run(flow.condition, [*for_condition, *carry])[0]
            outputs = self.run(flow.body, [*for_body, *carry])
            wider = [a or b or again for a, b in zip(carry, outputs, strict=True)]
            if wider == carry:
                break
            carry = wider
        if again:
            self._report(flow.equation, [flow.condition.jaxpr, flow.body.jaxpr])
        return carry

    def _report(self, equation: JaxprEqn, bodies: Sequence[Jaxpr]) -> None:
        sequences = [self._collectives(body) for body in bodies]
        if not any(sequences):
            return
        line = source_line(equation)
        place = "" if line is None else f" at {source_text(line.file, line.line)}"
        texts = tuple(" → ".join(names) or "none" for names in sequences)
        self.uneven[id(equation)] = Uneven(equation.primitive.name, texts, place)

    def _collectives(self, jaxpr: Jaxpr) -> list[str]:
        """Lists the collectives over the replicas in a jaxpr, in order."""
        names: list[str] = []
        for equation in jaxpr.eqns:
            if equation.primitive.name.startswith(_COLLECTIVES) and self._is_here(equation):
                names.append(equation.primitive.name)
            for body in _jax_compat.inner_jaxprs(equation):
                names += self._collectives(body)
        return names
