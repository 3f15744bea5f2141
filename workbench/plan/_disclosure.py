"""Values that clients disclose, traced back from the values that the server and the caller read."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from workbench import _jax_compat
from workbench._types import Aval, type_of
from workbench.plan._inline import holds_clients
from workbench.plan._interpreter import Cond, InnerCall, Interpreter, Scan, While, control_flow
from workbench.plan._plan import Plan, Step, plan_jaxpr
from workbench.plan._reductions import accumulator_of
from workbench.plan._single_client import single_client
from workbench.primitives import calls_back, emit_p, map_p
from workbench.records.program import DisclosedRecord, ValueRecord

Records = dict[tuple[str, int, int], DisclosedRecord]


def find_disclosed(
    plan: Plan, inputs: Sequence[ValueRecord]
) -> tuple[tuple[DisclosedRecord, ...], tuple[ValueRecord, ...]]:
    """Lists the values that the server receives from a client, and the inputs that the server never receives.

    Returns:
        First, one record per disclosed value, in program order: a client's partial result of a reduction, or a row that
        the server reads or the client emits. `count` is 0, because nothing has run. Second, one client's part of the
        inputs that only clients read. This second list omits inputs whose elements the server receives unchanged, such
        as the weights of a weighted mean, and inputs that clients may exchange over a named axis or pass to a callback.
    """
    records: Records = {}
    server_inputs = _follow(plan, "", set(range(len(plan.closed.jaxpr.outvars))), records)
    for (path, step, i), record in records.items():
        if step < 0:
            records[path, step, i] = record.replace(name=inputs[i].name)
    leaving = tuple(records[key] for key in sorted(records, key=_place))
    server_inputs |= _unchanged(plan) | _outgoing(plan)
    staying = [_of_one(inputs[i], axis) for i, axis in _inputs_of_clients(plan).items() if i not in server_inputs]
    return leaving, tuple(staying)


def exchanges(plan: Plan) -> Iterator[Step]:
    """The steps in which clients communicate over a named axis, such as `jax.lax.all_gather(x, "clients")`."""
    return _steps_with(plan, _jax_compat.uses_named_axes)


def callbacks(plan: Plan) -> Iterator[Step]:
    """The steps in which clients call Python, such as `jax.pure_callback` and `jax.debug.print`."""
    return _steps_with(plan, calls_back)


def _steps_with(plan: Plan, holds: Callable[[ClosedJaxpr], bool]) -> Iterator[Step]:
    for step in plan.steps:
        if step.kind in ("loop", "branch"):
            flow = control_flow(step.equation)
            assert flow is not None
            bodies = [*flow.bodies, flow.condition] if isinstance(flow, While) else flow.bodies
            if any(True for body in bodies for _ in _steps_with(plan_jaxpr(body, plan.name), holds)):
                yield step
        elif step.kind == "clients" and step.jaxpr is not None and holds(step.jaxpr):
            yield step


def _outgoing(plan: Plan) -> set[int]:
    """The inputs that reach a named axis or a callback through steps that clients compute."""
    sending = {id(step) for steps in (exchanges(plan), callbacks(plan)) for step in steps}
    reaching: set[Any] = set()
    for step in reversed(plan.steps):
        if id(step) in sending or not reaching.isdisjoint(step.outputs):
            reaching.update(v for v in step.equation.invars if not isinstance(v, Literal))
            reaching.update(step.inputs)
    return {i for i, v in enumerate(plan.closed.jaxpr.invars) if v in reaching}


def _unchanged(plan: Plan) -> set[int]:
    """The inputs whose elements reach a reduction, the server, the caller or a listener, up to dtype and order."""
    server = _AtServer(plan.name)
    outputs = server.steps(plan, [frozenset((i,)) for i in range(len(plan.closed.jaxpr.invars))])
    return server.disclosed.union(*outputs)


_Inputs = frozenset[int]  # positions of a program's inputs
_NONE: _Inputs = frozenset()
# Operations whose results consist of elements of their operands, each with its operands that are only indices.
_REARRANGING = {name: slice(0) for name in (
    "convert_element_type bitcast_convert_type reduce_precision reshape transpose squeeze expand_dims broadcast_in_dim "
    "slice rev copy copy_p concatenate pad split stop_gradient real imag complex sharding_constraint reshard pvary "
    "tile top_k"
).split()} | {
    "dynamic_slice": slice(1, None), "gather": slice(1, None), "dynamic_update_slice": slice(2, None),
    "scatter": slice(1, 2), "select_n": slice(0, 1),
}  # fmt: skip
_PAIRWISE = ("optimization_barrier", "sort")


class _Contents(Interpreter[_Inputs]):
    """Finds the inputs whose elements a value in a client function contains, up to dtype and order."""

    def __init__(self, disclosed: set[int]) -> None:
        self.disclosed = disclosed

    def constant(self, value: object) -> _Inputs:
        return _NONE

    def disclose(self, inputs: _Inputs) -> None:
        """Marks inputs that decide what the server computes; clients may read any input."""

    def bind(self, equation: JaxprEqn, operands: Sequence[_Inputs]) -> list[_Inputs]:
        if equation.primitive is map_p:
            return self.run(equation.params["jaxpr"], operands)
        if equation.primitive is emit_p:
            self.disclosed.update(*operands)
        name = equation.primitive.name
        if name in _PAIRWISE:
            return list(operands)
        indices = _REARRANGING.get(name)
        skipped = range(len(operands))[slice(None) if indices is None else indices]
        inputs = _NONE.union(*(operand for i, operand in enumerate(operands) if i not in skipped))
        return [inputs] * len(equation.outvars)

    def scan(self, flow: Scan[Any], operands: Sequence[_Inputs]) -> list[_Inputs]:
        consts, carry, xs = flow.split(operands)
        return self._repeated(flow.body, consts, carry, xs)

    def while_loop(self, flow: While[Any], operands: Sequence[_Inputs]) -> list[_Inputs]:
        for_condition, consts, start = flow.split(operands)
        carry = self._repeated(flow.body, consts, start, [])
        self.disclose(self.run(flow.condition, [*for_condition, *carry])[0])
        return carry

    def cond(self, flow: Cond[Any], operands: Sequence[_Inputs]) -> list[_Inputs]:
        index, inputs = flow.split(operands)
        self.disclose(index)
        branches = [self.run(branch, inputs) for branch in flow.bodies]
        return [_NONE.union(*outputs) for outputs in zip(*branches, strict=True)]

    def call(self, flow: InnerCall[Any], operands: Sequence[_Inputs]) -> list[_Inputs]:
        return self.run(flow.body, operands)

    def _repeated(
        self, body: ClosedJaxpr, consts: list[_Inputs], carry: list[_Inputs], xs: list[_Inputs]
    ) -> list[_Inputs]:
        while True:
            results = self.run(body, [*consts, *carry, *xs])
            joined = [before | after for before, after in zip(carry, results, strict=False)]
            if joined == carry:
                return [*carry, *results[len(carry) :]]
            carry = joined


class _AtServer(_Contents):
    """Finds the inputs that a program discloses unchanged: the server reads all operands of its own operations."""

    def __init__(self, name: str) -> None:
        super().__init__(set())
        self._name, self._clients = name, _Contents(self.disclosed)

    def disclose(self, inputs: _Inputs) -> None:
        self.disclosed.update(inputs)

    def run(self, closed: ClosedJaxpr, inputs: Sequence[_Inputs]) -> list[_Inputs]:
        return self.steps(plan_jaxpr(closed, self._name), inputs)

    def steps(self, plan: Plan, inputs: Sequence[_Inputs]) -> list[_Inputs]:
        """The outputs of a plan."""
        values: dict[Any, _Inputs] = dict(zip(plan.closed.jaxpr.invars, inputs, strict=True))

        def read(atom: object) -> _Inputs:
            return _NONE if isinstance(atom, Literal) else values.get(atom, _NONE)

        for step in plan.steps:
            if step.kind == "clients" and step.jaxpr is not None:
                operands = step.inputs if step.glue else step.equation.invars  # a row operation contains its literals
                results = self._clients.run(step.jaxpr, [read(v) for v in operands])
                if (group := _group(plan, step)) is not None:
                    self._in_group(group, [read(v) for v in operands])
            elif step.kind in ("loop", "branch"):
                flow = control_flow(step.equation)
                assert flow is not None
                results = self.follow(flow, [read(v) for v in step.equation.invars])
            else:
                self.disclosed.update(*map(read, step.inputs))
                results = [_NONE] * len(step.outputs)
            values.update(zip(step.outputs, results, strict=True))
        return [read(v) for v in plan.closed.jaxpr.outvars]

    def _in_group(self, group: Plan, inputs: Sequence[_Inputs]) -> None:
        """Adds what the clients of a group disclose to the group, which may read its own inputs."""
        server = _AtServer(self._name)
        server.steps(group, inputs)
        of_clients = _NONE.union(*(inputs[i] for i in _inputs_of_clients(group)))
        self.disclosed.update(server.disclosed & of_clients)


def _of_one(value: ValueRecord, axes: tuple[int, ...]) -> ValueRecord:
    shape = tuple(size for axis, size in enumerate(value.shape) if axis not in axes)
    rows = math.prod(value.shape[axis] for axis in axes)
    return value.replace(shape=shape, size_bytes=value.size_bytes // max(rows, 1), sharding=None)


def _inputs_of_clients(plan: Plan) -> dict[int, tuple[int, ...]]:
    """The inputs that clients read, including inside loops and groups, each with the positions of its client axes."""
    axes: dict[Any, tuple[int, ...]] = {}
    for step in plan.steps:
        if step.kind in ("loop", "branch"):
            for i, positions in _operands_of_clients(plan, step).items():
                axes.setdefault(step.equation.invars[i], positions)
        elif step.kind not in ("server", "broadcast"):
            axes |= _axes_of_rows(plan, step) | axes
    return {i: axes[v] for i, v in enumerate(plan.closed.jaxpr.invars) if v in axes}


def _axes_of_rows(plan: Plan, step: Step) -> dict[Any, tuple[int, ...]]:
    """The values that clients read, with the position of each client axis; inner clients have a further axis."""
    axes: dict[Any, tuple[int, ...]] = dict.fromkeys(step.inputs, (0,))
    if (group := _group(plan, step)) is not None:
        inner = _inputs_of_clients(group)
        axes |= {step.equation.invars[i]: (0, *(axis + 1 for axis in inner[i])) for i in inner}
    return axes


def _group(plan: Plan, step: Step) -> Plan | None:
    """The plan of a client function that contains clients itself, such as a pod's."""
    jaxpr = step.jaxpr if step.kind == "clients" else None
    return plan_jaxpr(jaxpr, plan.name) if jaxpr is not None and holds_clients(jaxpr) else None


def _operands_of_clients(plan: Plan, step: Step) -> dict[int, tuple[int, ...]]:
    flow = control_flow(step.equation)
    assert flow is not None
    first = flow.offset
    sliced = flow.consts + flow.carries if isinstance(flow, Scan) else math.inf  # first sliced operand
    axes: dict[int, tuple[int, ...]] = {}
    for closed in flow.bodies:
        for i, positions in _inputs_of_clients(plan_jaxpr(closed, plan.name)).items():
            axes[first + i] = tuple(axis + (i >= sliced) for axis in positions)
    if isinstance(flow, While):
        for i, positions in _inputs_of_clients(plan_jaxpr(flow.condition, plan.name)).items():
            axes[i if i < first else i + flow.consts] = positions
    return {i: positions for i, positions in axes.items() if not isinstance(step.equation.invars[i], Literal)}


def _place(key: tuple[str, int, int]) -> tuple[list[int], int, int]:
    path, step, output = key
    return [int("".join(c for c in part if c.isdigit()) or 0) for part in path.split(".")], step, output


def _follow(plan: Plan, path: str, results: set[int], records: Records) -> set[int]:
    """Adds a plan's records, assuming that the server reads these results; returns the inputs that the server reads."""
    outputs, inputs = plan.closed.jaxpr.outvars, plan.closed.jaxpr.invars
    server_reads: set[Any] = {outputs[i] for i in results if not isinstance(outputs[i], Literal)}
    leaving = set(server_reads)  # also the rows that reductions read
    of_clients: dict[Any, tuple[int, ...]] = {}  # with the positions of the client axes
    for position in reversed(range(len(plan.steps))):
        step = plan.steps[position]
        if step.kind in ("server", "broadcast"):
            server_reads.update(step.inputs)
        elif step.kind in ("loop", "branch"):
            operands = _through_loop(
                plan, step, path, {i for i, v in enumerate(step.outputs) if v in server_reads}, records
            )
            server_reads.update(v for i in operands if not isinstance(v := step.equation.invars[i], Literal))
            inside = _operands_of_clients(plan, step)
            of_clients |= {step.equation.invars[i]: axes for i, axes in inside.items()}
        elif step.kind == "reduce":
            of_clients |= _axes_of_rows(plan, step) | of_clients
            leaving.update(step.inputs)
            _reduced(plan, position, path, records)
        else:
            of_clients |= _axes_of_rows(plan, step) | of_clients
            leaving |= server_reads
            _of_clients(plan, position, path, server_reads, records)
            if (group := _group(plan, step)) is not None:
                passed = {i for i, v in enumerate(step.outputs) if v in leaving}
                read = _follow(group, f"{path}{step.stage}.", passed, records)
                leaving.update(v for i in read if not isinstance(v := step.equation.invars[i], Literal))
    for i, v in enumerate(inputs):
        if not path and v in server_reads and v in of_clients:  # inputs of a loop are values of the plan around it
            records["0", -1, i] = _record("0", f"input {i}", v.aval, of_clients[v])
    return {i for i, v in enumerate(inputs) if v in server_reads}


def _reduced(plan: Plan, position: int, path: str, records: Records) -> None:
    step = plan.steps[position]
    where, accumulator = f"{path}{step.stage}", accumulator_of(step.equation)
    records[where, position, 0] = _record(where, _name(plan, step), accumulator, ()).replace(
        single_client=single_client(plan, step)
    )


def _of_clients(plan: Plan, position: int, path: str, server_reads: set[Any], records: Records) -> None:
    step = plan.steps[position]
    name, where = _name(plan, step), f"{path}{step.stage}"
    for i, v in enumerate(step.outputs):
        if v in server_reads:
            records[where, position, i] = _record(
                where, f"{name}[{i}]" if len(step.outputs) > 1 else name, v.aval, (0,)
            )
    for i, (name, aval) in enumerate(_emitted(step.jaxpr.jaxpr) if step.jaxpr is not None else ()):
        records[where, position, len(step.outputs) + i] = _record(where, f"emit({name!r})", aval, ()).replace(
            kind="row"
        )


def _name(plan: Plan, step: Step) -> str:
    return plan.stages[step.stage].name


def _emitted(jaxpr: Jaxpr, axes: tuple[int, ...] = ()) -> Iterator[tuple[str, jax.ShapeDtypeStruct]]:
    """Yields the values that a client emits; `axes` are the sizes of the enclosing loops.

    JAX drops values that are emitted in a loop of unknown length.
    """
    for equation in jaxpr.eqns:
        if equation.primitive is emit_p:
            aval = type_of(equation.invars[0])
            yield equation.params["name"], jax.ShapeDtypeStruct((*axes, *aval.shape), aval.dtype)
        elif equation.primitive.name != "while" and equation.primitive is not map_p:  # a plan of their own, or dropped
            size = equation.params.get("length") if equation.primitive.name == "scan" else None
            for inner in _jax_compat.inner_jaxprs(equation):
                yield from _emitted(getattr(inner, "jaxpr", inner), axes if size is None else (*axes, size))


def _through_loop(plan: Plan, step: Step, path: str, results: set[int], records: Records) -> set[int]:
    """The loop operands that the server reads, either inside the loop or through the given results after the loop."""
    flow = control_flow(step.equation)
    assert flow is not None
    bodies = [plan_jaxpr(closed, plan.name) for closed in flow.bodies]
    inner = f"{path}{step.stage}"
    if not isinstance(flow, Scan | While):
        inputs = [_follow(body, f"{inner}[{i}].", results, records) for i, body in enumerate(bodies)]
        return {0} | {i + 1 for some in inputs for i in some}
    before, (body,) = flow.offset, bodies
    consts, carries = flow.consts, flow.carries
    passed, operands = set(results), set[int]()
    if isinstance(flow, While):
        condition = _follow(plan_jaxpr(flow.condition, plan.name), f"{inner}?.", {0}, records)
        passed |= {i - before for i in condition if i >= before}
        operands |= {i if i < before else i + consts for i in condition}
    if isinstance(flow, While) or not flow.equation.params["length"]:
        # A loop without iterations returns its initial carry.
        operands |= {before + consts + i for i in results if i < carries}
    while True:  # the carry read by an iteration is the result of the previous iteration
        inputs = _follow(body, f"{inner}.", passed, records)
        more = passed | {i - consts for i in inputs if consts <= i < consts + carries}
        if more == passed:
            return operands | {i + before for i in inputs}
        passed = more


def _record(stage: str, name: str, aval: Aval | jax.ShapeDtypeStruct, client_axes: tuple[int, ...]) -> DisclosedRecord:
    """A row without the client axes, or a partial result if there is no such axis."""
    shape = tuple(size for axis, size in enumerate(aval.shape) if axis not in client_axes)
    size = math.prod(shape) * getattr(aval.dtype, "itemsize", 4)
    kind = "row" if client_axes else "partial result"
    return DisclosedRecord(stage=stage, name=name, shape=shape, dtype=str(aval.dtype), size_bytes=size, kind=kind)
