"""A program as steps: where each equation runs (server or clients), and the dependencies."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from workbench import _jax_compat
from workbench._types import Aval, type_of
from workbench.plan._inline import ROWWISE, holds_clients, inline_calls, uses_primitives
from workbench.plan._interpreter import control_flow
from workbench.primitives import REDUCTIONS, Placement, broadcast_p, map_p
from workbench.records import package_of
from workbench.records.program import SourceLine

_LOOPS = {"scan": "loop", "while": "loop", "cond": "branch"}


@dataclasses.dataclass(eq=False)
class Step:
    """One equation with its role. `level` counts the reductions and loops that must finish before the step starts.

    `inputs` are the variables that the step reads, and `outputs` the variables that it defines; `stage` is set after
    planning.
    """

    kind: str  # server, broadcast, clients, reduce, loop, branch
    equation: JaxprEqn
    level: int
    stage: int = -1
    placement: Placement | None = None
    jaxpr: ClosedJaxpr | None = None  # jaxpr of one client; for elementwise operations on rows, created here
    glue: bool = False
    inputs: list[Var] = dataclasses.field(init=False)
    outputs: list[Var] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.inputs = [v for v in self.equation.invars if not isinstance(v, Literal)]
        self.outputs = list(self.equation.outvars)


@dataclasses.dataclass(frozen=True)
class Stage:
    """Steps shown as one stage: a broadcast of a pytree, or the server's work between reductions."""

    index: int
    kind: str
    name: str
    steps: tuple[Step, ...]
    source: SourceLine | None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A traced program divided into stages; `workbench.plan.evaluate` runs it."""

    name: str
    closed: ClosedJaxpr
    steps: tuple[Step, ...]
    stages: tuple[Stage, ...]
    placements: tuple[Placement, ...]

    def shown_kind(self, stage: Stage, path: str = "") -> str:
        """The displayed kind of a stage in the plan at `path`; "program" if the program has no clients.

        A nonempty path belongs to the plan of a loop or branch. Without clients, its stages keep their own kind.
        """
        return stage.kind if path or self.placements else "program"

    def shown_name(self, stage: Stage, path: str = "") -> str:
        """The displayed name of a stage; a program without clients is one stage, named after its function."""
        return self.name if self.shown_kind(stage, path) == "program" else stage.name

    def scope_of(self, step: Step, path: str = "") -> str:
        """The name scope of a step: `wb:2.0:clients`."""
        stage = self.stages[step.stage]
        return f"wb:{path}{stage.index}:{self.shown_kind(stage, path)}"

    @property
    def levels(self) -> int:
        """Number of levels of the plan's steps; see `Step`."""
        return 1 + max((step.level for step in self.steps), default=0)


def plan_jaxpr(closed: ClosedJaxpr, name: str) -> Plan:
    if holds_clients(closed):
        closed = inline_calls(closed, name)
    pruned = _jax_compat.drop_dead_equations(closed)
    steps = _Levels(pruned).steps() if holds_clients(pruned) else [Step("server", e, 0) for e in pruned.eqns]
    stages = _stages(steps)
    placements: dict[str, Placement] = {}
    for step in steps:
        if step.placement is not None and not step.glue:
            placements.setdefault(step.placement.name, step.placement)
        for placement in _inner_placements(step):
            placements.setdefault(placement.name, placement)
    return Plan(name, pruned, tuple(steps), tuple(stages), tuple(placements.values()))


def _inner_placements(step: Step) -> list[Placement]:
    """Placements of the clients inside a loop or a branch."""
    if step.kind not in ("loop", "branch"):
        return []
    placements: list[Placement] = []

    def search(jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive is map_p or equation.primitive is broadcast_p or equation.primitive in REDUCTIONS:
                placements.append(equation.params["placement"])
            else:
                for inner in _jax_compat.inner_jaxprs(equation):
                    search(inner)

    for inner in _jax_compat.inner_jaxprs(step.equation):
        search(inner)
    return placements


class _Levels:
    """Visits each equation once and assigns its kind and level."""

    def __init__(self, closed: ClosedJaxpr) -> None:
        self.closed = closed
        self.level: dict[Var, int] = {}
        self.rows_of: dict[Var, Placement] = {}  # rows computed by clients
        self.shared: set[Var] = set()  # client-invariant rows: broadcasts
        self.given = _rows_given(closed)  # rows of arguments

    def steps(self) -> list[Step]:
        steps = [self._step(equation) for equation in self.closed.eqns]
        _make_constants_late(steps)
        return steps

    def _step(self, equation: JaxprEqn) -> Step:
        primitive = equation.primitive
        if primitive is broadcast_p:
            step = Step("broadcast", equation, self._after(equation), placement=equation.params["placement"])
            self._record(step, step.level, shared=True)
        elif primitive is map_p:
            placement = equation.params["placement"]
            step = Step(
                "clients",
                equation,
                self._after(equation, placement),
                placement=placement,
                jaxpr=equation.params["jaxpr"],
            )
            self._record(step, step.level)
        elif primitive in REDUCTIONS:
            placement = equation.params["placement"]
            step = Step("reduce", equation, self._after(equation, placement), placement=placement)
            self._record(step, step.level + 1, rows=False)
        elif primitive.name in _LOOPS and uses_primitives(equation):
            step = Step(_LOOPS[primitive.name], equation, self._after(equation))
            self._record(step, step.level + 1, rows=False)
        elif (placement := self._rowwise_placement(equation)) is not None:
            jaxpr = _row_jaxpr(equation)
            step = Step(
                "clients", equation, self._after(equation, placement), placement=placement, jaxpr=jaxpr, glue=True
            )
            self._record(step, step.level)
        else:
            step = Step("server", equation, self._after(equation))
            self._record(step, step.level, rows=False)
        return step

    def _after(self, equation: JaxprEqn, placement: Placement | None = None) -> int:
        """The first level at which all inputs are available; clients can read their own rows at the same level."""
        levels = [0]
        for v in equation.invars:
            if isinstance(v, Literal):
                continue
            at_hand = v in self.shared or v not in self.rows_of or self.rows_of[v] == placement
            levels.append(self.level.get(v, 0) + (0 if at_hand else 1))
        return max(levels)

    def _record(self, step: Step, level: int, *, rows: bool = True, shared: bool = False) -> None:
        for v in step.outputs:
            self.level[v] = level
            if rows:
                assert step.placement is not None
                self.rows_of[v] = step.placement
            if shared:
                self.shared.add(v)

    def _rowwise_placement(self, equation: JaxprEqn) -> Placement | None:
        if equation.primitive.name not in ROWWISE:
            return None
        variables: list[Any] = [v for v in equation.invars if not isinstance(v, Literal)]
        placements = {self.rows_of[v] for v in variables if v in self.rows_of}
        if not placements and all(v in self.given for v in variables):
            placements = {self.given[v] for v in variables}
        if len(placements) != 1:
            return None
        return placements.pop() if _is_rowwise(equation) and not _has_explicit_type(equation) else None


def _is_rowwise(equation: JaxprEqn) -> bool:
    """Returns whether each row of the result depends only on the same row of each operand."""
    if equation.primitive.name not in ROWWISE:
        return False
    shape = type_of(equation.outvars[0]).shape
    variables: list[Any] = [v for v in equation.invars if not isinstance(v, Literal)]
    literals: list[Any] = [v for v in equation.invars if isinstance(v, Literal)]
    return all(v.aval.shape == shape for v in variables) and all(v.aval.shape in ((), shape) for v in literals)


def _rows_given(closed: ClosedJaxpr) -> dict[Var, Placement]:
    """The arguments that clients read as rows, and values computed elementwise from these arguments."""
    placements: dict[Var, Placement] = {}  # by clients, directly or through elementwise operations
    for equation in reversed(closed.jaxpr.eqns):
        if equation.primitive is map_p or equation.primitive in REDUCTIONS:
            placement = equation.params["placement"]
        elif _is_rowwise(equation) and equation.outvars[0] in placements:
            placement = placements[equation.outvars[0]]
        else:
            continue
        placements.update((v, placement) for v in equation.invars if isinstance(v, Var))
    arguments = {v: placements[v] for v in closed.jaxpr.invars if v in placements}
    for equation in closed.jaxpr.eqns:
        variables = [v for v in equation.invars if not isinstance(v, Literal)]
        if (
            variables
            and all(v in arguments for v in variables)
            and _is_rowwise(equation)
            and equation.outvars[0] in placements
        ):
            arguments[equation.outvars[0]] = placements[equation.outvars[0]]
    return arguments


def _make_constants_late(steps: list[Step]) -> None:
    """Moves constants from the start of the program to their first reader."""
    readers: dict[Var, list[int]] = {}
    for step in reversed(steps):
        if step.kind == "server" and not step.inputs:
            levels = [level for v in step.outputs for level in readers.get(v, ())]
            step.level = min(levels, default=step.level)
        for v in step.inputs:
            readers.setdefault(v, []).append(step.level)


def _has_explicit_type(equation: JaxprEqn) -> bool:
    shardings = [type_of(v).sharding for v in equation.outvars]
    return any(not s.mesh.empty and any(entry is not None for entry in s.spec[1:]) for s in shardings)


def _row_jaxpr(equation: JaxprEqn) -> ClosedJaxpr:
    params = {key: (None if key == "sharding" else value) for key, value in equation.params.items()}

    def row(*rows: jax.Array) -> list[Any]:
        supply = iter(rows)
        operands = [v.val if isinstance(v, Literal) else next(supply) for v in equation.invars]
        with _jax_compat.source_of(equation):
            return [equation.primitive.bind(*operands, **params)]

    avals = [_jax_compat.drop_leading_axis(v.aval) for v in equation.invars if not isinstance(v, Literal)]
    return _jax_compat.trace_to_jaxpr(row, avals, name=equation.primitive.name)[0]


_ORDER = {"server": 0, "loop": 1, "branch": 1, "broadcast": 2, "clients": 3, "reduce": 4}


def _stages(steps: Sequence[Step]) -> list[Stage]:
    """Groups steps into stages, ordered by level and data flow; sets each step's stage number."""
    groups: dict[tuple, list[Step]] = {}
    first: dict[tuple, int] = {}
    for position, step in enumerate(steps):
        key = _stage_key(position, step)
        groups.setdefault(key, []).append(step)
        first.setdefault(key, position)
    ordered = sorted(groups, key=lambda key: (key[0], _ORDER[key[1]], first[key]))
    stages = []
    for index, key in enumerate(ordered):
        members = tuple(groups[key])
        for step in members:
            step.stage = index
        stages.append(Stage(index, key[1], _stage_name(members), members, _stage_source(members)))
    return stages


def _stage_key(position: int, step: Step) -> tuple:
    if step.kind in ("loop", "branch") or (step.kind == "clients" and not step.glue):
        return (step.level, step.kind, position)
    placement = step.placement.name if step.placement else None
    if step.kind == "server" or step.glue:
        return (step.level, step.kind, placement, "together")
    return (step.level, step.kind, placement, operation_name(step), str(source_line(step.equation)))


def operation_name(step: Step) -> str:
    """The name that the user wrote, such as `reduce_weighted_mean`, instead of the sums that it consists of."""
    if step.kind == "reduce":
        for scope in str(step.equation.source_info.name_stack).split("/"):
            if scope == "reduce_weighted_mean":
                return scope
    return str(step.equation.primitive.name)


def _stage_name(steps: Sequence[Step]) -> str:
    step = steps[0]
    if step.glue:
        return "elementwise"
    if step.kind == "clients":
        return step.equation.params["name"]
    if step.kind == "server":
        return "server"
    return operation_name(step)


def _stage_source(steps: Sequence[Step]) -> SourceLine | None:
    return next((line for step in steps if (line := source_line(step.equation)) is not None), None)


def source_stack(equation: JaxprEqn) -> tuple[SourceLine, ...]:
    """The calls that lead to an equation, outermost first, without frames from JAX, Python and this package."""
    return tuple(
        SourceLine(file=file, line=line, column=column, end_line=end_line, end_column=end_column, function=function)
        for file, line, column, end_line, end_column, function in reversed(
            _jax_compat.user_frames(equation.source_info)
        )
        if package_of(file) not in ("workbench", "python", "jax")
    )


def source_line(equation: JaxprEqn) -> SourceLine | None:
    """The innermost line of user code that created an equation, or a library's line if there is none."""
    of_library: SourceLine | None = None
    for file, line, column, end_line, end_column, function in _jax_compat.user_frames(equation.source_info):
        package = package_of(file)
        if package in ("workbench", "python") or (package is not None and of_library is not None):
            continue
        source = SourceLine(
            file=file, line=line, column=column, end_line=end_line, end_column=end_column, function=function
        )
        if package is None:
            return source
        of_library = source
    return of_library


def is_user_file(file: str) -> bool:
    """Returns whether a file counts as the user's code."""
    return package_of(file) is None


def loop_bodies(equation: JaxprEqn) -> list[ClosedJaxpr]:
    """The jaxprs that do the work of a scan, while or cond, in order."""
    flow = control_flow(equation)
    return [] if flow is None else list(flow.bodies)


def as_struct(aval: Aval) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an abstract value."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
