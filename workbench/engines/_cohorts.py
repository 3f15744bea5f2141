"""Quorums for rounds, and the clients that answered in each round."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Var

from workbench._types import Atom, Aval, PyTree
from workbench.errors import ProgramError
from workbench.plan import Plan, Scan, control_flow, find_phases, loop_bodies, plan_jaxpr
from workbench.primitives import Placement, only_present


@dataclasses.dataclass(frozen=True)
class Quorum:
    """The clients that a round needs (as a number, or as a share up to 1.0), and the deadline for the others."""

    clients: int | float
    deadline_seconds: float | None

    def of(self, clients: int) -> int:
        return min(clients, math.ceil(self.clients * clients) if isinstance(self.clients, float) else self.clients)


@dataclasses.dataclass(frozen=True)
class PresentRows:
    """Placeholder for the mask that marks the clients that answered in the current round."""

    placement: Placement


class Cohorts:
    """The clients that answered in each round of one run.

    The first pass of a round determines these clients, and later passes use the same clients.

    A round is an iteration of the outermost loop. Iterations with the same number share a cohort, so that the backward
    pass of a loop uses the same clients as its forward pass. A program without a loop counts as one round.
    """

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.round: int | None = None
        self._present: dict[tuple[int | None, Placement], np.ndarray] = {}
        self._sizes: dict[Placement, int] = {}

    def present(self, placement: Placement) -> np.ndarray | None:
        """Clients that answered, bool `[clients]`; None before the first pass of the round."""
        return self._present.get((self.round, placement))

    @contextlib.contextmanager
    def in_round(self, number: int) -> Iterator[None]:
        self.round = number
        try:
            yield
        finally:
            self.round = None

    def decide(self, placement: Placement, present: np.ndarray) -> None:
        self._present[self.round, placement] = present

    def size(self, placement: Placement, count: int) -> int:
        """Batch size, fixed for a run, so that a batch is either complete or missing."""
        return self._sizes.setdefault(placement, count)


def check_quorum(engine: str, quorum: float | None, deadline_seconds: float | None) -> Quorum | None:
    timed = deadline_seconds is None or (isinstance(deadline_seconds, int | float) and deadline_seconds > 0)
    if quorum is None and deadline_seconds is None:
        return None
    is_share = isinstance(quorum, float) and 0 < quorum <= 1
    is_count = isinstance(quorum, int) and not isinstance(quorum, bool) and quorum >= 1
    if quorum is None or not timed or not (is_share or is_count):
        message = (
            f"`{engine}` was given quorum={quorum!r} and deadline_seconds={deadline_seconds!r}. A round waits for all "
            "clients until the deadline. Then it continues as soon as the number of answers reaches the quorum. Pass "
            "`quorum` as a number of clients (an int of at least 1) or a fraction (a float up to "
            "1.0), and `deadline_seconds` above 0."
        )
        raise ProgramError(message)
    return Quorum(quorum, deadline_seconds)


def absent_rows(aval: Aval, count: int) -> np.ndarray:
    """Rows of `count` clients that did not answer: NaN for floats, 0 for integers."""
    fill = np.nan if jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact) else 0
    return np.full((count, *aval.shape[1:]), fill, aval.dtype)


def placements_of(plan: Plan) -> list[Placement]:
    """The placements (including those in loops) whose clients a plan computes separately."""
    placements = {phase.placement: None for phases in find_phases(plan, alike=False).values() for phase in phases}
    for body in _bodies(plan):
        placements.update(dict.fromkeys(placements_of(plan_jaxpr(body, plan.name))))
    return list(placements)


def of_present(fn: Callable, placements: Sequence[Placement]) -> Callable:
    """Adds masks of the present clients as the first argument of `fn`; reductions use only these clients."""

    def present(masks: Sequence[jax.Array], *args: PyTree[jax.Array]) -> PyTree[jax.Array]:
        with only_present(dict(zip(placements, masks, strict=True))):
            return fn(*args)

    present.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return present


def check_rows(plan: Plan) -> None:
    if find_phases(plan, alike=False) and any(placements_of(plan_jaxpr(body, plan.name)) for body in _bodies(plan)):
        _refuse(plan, "it runs clients both inside and outside the loop over its rounds")
    _check_rows(plan, set())


def _check_rows(plan: Plan, arguments: set[Var]) -> set[Var]:
    """Finds the variables that contain client rows, starting from the arguments."""
    rows = {v for phases in find_phases(plan, alike=False).values() for phase in phases for v in phase.kept} | arguments
    for step in plan.steps:
        row_inputs = [v for v in step.inputs if v in rows]
        if step.kind == "server" and row_inputs:
            _refuse(plan, "its server reads the rows of all clients")
        if step.kind not in ("loop", "branch"):
            continue
        flow = control_flow(step.equation)
        is_scan, name = isinstance(flow, Scan), step.equation.primitive.name
        if row_inputs and not is_scan:
            _refuse(plan, f"its `{name}` reads rows of clients")
        for body in loop_bodies(step.equation):
            inner = plan_jaxpr(body, plan.name)
            pairs = zip(step.equation.invars, body.jaxpr.invars, strict=True) if is_scan else ()
            inner_rows = _check_rows(inner, {b for a, b in pairs if isinstance(a, Var) and a in rows})
            carries = flow.carries if isinstance(flow, Scan) else None
            for i, atom in enumerate(body.jaxpr.outvars):
                if _is_row(atom, inner_rows) and (carries is None or i < carries):
                    _refuse(plan, f"its `{name}` carries rows of clients, such as their state, from round to round")
                if _is_row(atom, inner_rows):
                    rows.add(step.equation.outvars[i])
    return rows


def _is_row(atom: Atom, rows: set[Var]) -> bool:
    return isinstance(atom, Var) and atom in rows


def _bodies(plan: Plan) -> list[ClosedJaxpr]:
    return [body for step in plan.steps if step.kind in ("loop", "branch") for body in loop_bodies(step.equation)]


def _refuse(plan: Plan, fact: str) -> None:
    message = (
        f"`{plan.name}` cannot run with a `quorum`: {fact}. A client that does not answer has no row. Let the program "
        "reduce the rows, or use an engine without `quorum`."
    )
    raise ProgramError(message)
