"""Client-invariant rows that a client function computes; they are computed only once.

A gradient keeps values for its backward pass. In a network that all clients share (frozen layers next to adapters),
every client would store the same values.
"""

import dataclasses
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal, Var

from workbench import _jax_compat
from workbench.plan._differs import Differs
from workbench.plan._inline import uses_primitives
from workbench.plan._plan import Plan, Step


@dataclasses.dataclass(frozen=True)
class AlikeRow:
    """A row that is the same for all clients: `jaxpr` computes it from `inputs` (server values or other such rows)."""

    step: Step
    jaxpr: ClosedJaxpr
    inputs: "tuple[AlikeRow | Any, ...]"


class AlikeRows:
    """The client-invariant rows of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._rows: dict[Var, AlikeRow | Any] = {}  # keyed by the rows' variable; for a broadcast, the server value
        self._places: dict[Var, tuple[Step, int]] = {}
        for step in plan.steps:
            if step.kind == "broadcast":
                self._rows[step.outputs[0]] = step.equation.invars[0]
            elif step.kind == "clients" and step.jaxpr is not None and not step.jaxpr.effects:
                self._look_at(step, step.jaxpr)

    def find(self, v: Var) -> AlikeRow | None:
        """The common row for `v`; None if its rows differ between clients, or if the value is on the server."""
        if v not in self._rows and v in self._places:
            self._rows[v] = self._make(*self._places[v])
        row = self._rows.get(v)
        return row if isinstance(row, AlikeRow) else None

    def _look_at(self, step: Step, jaxpr: ClosedJaxpr) -> None:
        if any(uses_primitives(equation) for equation in jaxpr.eqns) or _jax_compat.uses_named_axes(jaxpr):
            return
        differs = [self._differs(atom) for atom in _operands(step)]
        flags = Differs().run(jaxpr, differs)
        self._places.update((v, (step, i)) for i, v in enumerate(step.outputs) if not flags[i])

    def _differs(self, atom: object) -> bool:
        return not isinstance(atom, Literal) and atom not in self._rows and atom not in self._places

    def _make(self, step: Step, position: int) -> AlikeRow | None:
        assert step.jaxpr is not None
        mask = [i == position for i in range(len(step.outputs))]
        jaxpr, used = _jax_compat.drop_dead_code(step.jaxpr, mask)
        operands = [atom for atom, needed in zip(_operands(step), used, strict=True) if needed]
        if any(self._differs(atom) for atom in operands):
            return None
        inputs = []
        for atom in operands:
            value = atom if isinstance(atom, Literal) else self.find(atom) or self._rows.get(atom)
            if value is None:
                return None
            inputs.append(value)
        return AlikeRow(step, jaxpr, tuple(inputs))


def _operands(step: Step) -> list[Any]:
    return [atom for atom in step.equation.invars if not (step.glue and isinstance(atom, Literal))]
