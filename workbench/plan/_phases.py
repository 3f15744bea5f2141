"""Client phases: client and reduction steps on one level, executed in one pass over the clients."""

import dataclasses
import math
from typing import Any

import jax
from jax.extend.core import Literal, Var

from workbench import _jax_compat
from workbench._types import Atom, type_of
from workbench.plan._alike import AlikeRow, AlikeRows
from workbench.plan._loop_form import KEPT_BYTES
from workbench.plan._plan import Plan, Step
from workbench.primitives import HOLDS, Layout, Placement, find_layout


@dataclasses.dataclass(frozen=True)
class Phase:
    """One pass over the clients in `placement`.

    `rows` are read client by client. `shared` maps client-invariant rows to their common value, which is a server value
    or an `AlikeRow`. `kept` are the rows that later steps read. Reductions result in server values.
    """

    placement: Placement
    layout: Layout | None
    steps: tuple[Step, ...]
    rows: tuple[Var, ...]
    shared: dict[Var, Any]
    kept: tuple[Var, ...]

    @property
    def reductions(self) -> list[Step]:
        """The steps that produce server values."""
        return [step for step in self.steps if step.kind == "reduce"]

    @property
    def divisible(self) -> bool:
        """True if the clients can be computed separately."""
        return not any(
            step.jaxpr is not None
            and (_jax_compat.uses_named_axes(step.jaxpr) or _jax_compat.has_ordered_effects(step.jaxpr))
            for step in self.steps
        )

    @property
    def one_per_device(self) -> bool:
        """True if each client has its own mesh position, on an axis with the placement's name.

        Collectives over the placement's named axis are then collectives over that mesh axis, and compile as written.
        """
        return (
            self.layout is not None
            and self.layout.axes == (self.placement.name,)
            and self.layout.size == self.placement.size
            and not any(step.jaxpr is not None and _jax_compat.has_ordered_effects(step.jaxpr) for step in self.steps)
        )

    @property
    def row_bytes(self) -> int:
        """Rough peak memory of one client's function in bytes: inputs, outputs and intermediates."""
        inputs = sum(size_bytes(v) for v in self.rows) // max(self.placement.size, 1)
        inner = sum(size_bytes(v) for step in self.steps if step.jaxpr for e in step.jaxpr.eqns for v in e.outvars)
        return inputs + inner


def find_phases(plan: Plan, *, kept_bytes: float = KEPT_BYTES, alike: bool = True) -> dict[int, list[Phase]]:
    """The phases of a plan, keyed by level.

    Rows that a later level reads are recomputed there (rematerialisation) if keeping them for all clients would take
    more than `kept_bytes`. Memory then does not grow with the number of clients; `math.inf` keeps all rows. With
    `alike`, client-invariant rows are computed once and shared.
    """
    if not any(step.kind in ("clients", "reduce") for step in plan.steps):
        return {}
    flow = _Flow(plan, kept_bytes, alike)
    phases: dict[int, list[Phase]] = {}
    for level in range(plan.levels):
        members: dict[Placement, list[Step]] = {}
        for step in plan.steps:
            if step.level == level and step.kind in ("clients", "reduce"):
                assert step.placement is not None
                members.setdefault(step.placement, []).append(step)
        for placement, steps in members.items():
            phases.setdefault(level, []).append(_phase(flow, placement, steps, level))
    return phases


def waiting_bytes(plan: Plan) -> int:
    """Size in bytes of all recomputable client rows that are kept for a later pass."""
    return _Flow(plan, math.inf, alike=True).waiting_bytes


class _Flow:
    """Producers and readers of the clients' rows."""

    def __init__(self, plan: Plan, kept_bytes: float, alike: bool) -> None:
        self.producer = {v: step for step in plan.steps for v in step.outputs}
        readers = [step for step in plan.steps if step.kind in ("clients", "reduce")]
        kept_vars = {v for v in plan.closed.jaxpr.outvars if isinstance(v, Var)}
        crossing: set[Var] = set()
        # Recomputed rows could differ in the last bit from the extreme value that was computed from them.
        compared: set[Var] = set()
        for step in plan.steps:
            if step.equation.params.get("name") == HOLDS:
                compared.update(step.inputs)
            for v in step.inputs:
                made_by = self.producer.get(v)
                if made_by is None or made_by.kind != "clients":
                    continue
                if step not in readers or made_by.placement != step.placement:
                    kept_vars.add(v)
                elif made_by.level < step.level:
                    crossing.add(v)
        crossing -= kept_vars
        rows = AlikeRows(plan) if alike and crossing else None
        self.alike: dict[Var, AlikeRow] = {}
        if rows is not None:
            self.alike = {v: row for v in crossing if (row := rows.find(v)) is not None}
        crossing -= set(self.alike)
        waiting = {v for v in crossing if not self._alone(self.producer[v])}
        self.waiting_bytes = sum(size_bytes(v) for v in waiting - compared)
        if sum(size_bytes(v) for v in waiting) > kept_bytes:
            crossing -= waiting - compared
        self.kept = kept_vars | crossing

    def _alone(self, step: Step) -> bool:
        """Returns whether each device has at most one client, so that keeping its rows needs no additional memory."""
        assert step.placement is not None
        layout = _layout_here(step.placement, (step,))
        return layout is not None and layout.size >= step.placement.size


def _phase(flow: _Flow, placement: Placement, steps: list[Step], level: int) -> Phase:
    chosen: dict[int, Step] = {}

    def add(step: Step) -> None:
        if id(step) in chosen:
            return
        for v in step.inputs:
            made_by = flow.producer.get(v)
            if v in flow.alike and made_by is not None and made_by.level < level:
                continue
            if made_by is not None and made_by.kind == "clients" and made_by.level < level and v not in flow.kept:
                add(made_by)
        chosen[id(step)] = step

    for step in steps:
        add(step)
    all_steps = tuple(chosen.values())
    outputs = {v for step in all_steps if step.kind == "clients" for v in step.outputs}
    shared: dict[Var, Any] = {}
    rows: dict[Var, None] = {}
    for v in (v for step in all_steps for v in step.inputs if v not in outputs or _kept_before(flow, v, level)):
        made_by = flow.producer.get(v)
        if made_by is not None and made_by.kind == "broadcast":
            shared[v] = made_by.equation.invars[0]
        elif v in flow.alike:
            shared[v] = flow.alike[v]
        else:
            rows[v] = None
    row_outputs = [v for step in steps if step.kind == "clients" for v in step.outputs if v in flow.kept]
    return Phase(placement, _layout_here(placement, all_steps), all_steps, tuple(rows), shared, tuple(row_outputs))


def _kept_before(flow: _Flow, v: Var, level: int) -> bool:
    """Returns whether an earlier pass kept the rows of `v`; kept rows are read even if another output is recomputed."""
    made_by = flow.producer.get(v)
    return v in flow.kept and made_by is not None and made_by.kind == "clients" and made_by.level < level


def _layout_here(placement: Placement, steps: tuple[Step, ...]) -> Layout | None:
    """The layout on the current mesh or, without one, on the mesh that was passed to the primitives."""
    if not jax.sharding.get_abstract_mesh().empty:
        return find_layout(placement, uneven=True)
    layouts = [step.equation.params["layout"] for step in steps if not step.glue]
    return next((layout for layout in layouts if layout is not None), None)


def size_bytes(v: Atom) -> int:
    """Size of a jaxpr variable in bytes."""
    aval = type_of(v)
    itemsize = getattr(aval.dtype, "itemsize", 4)
    return math.prod(aval.shape) * itemsize if not isinstance(v, Literal) else 0
