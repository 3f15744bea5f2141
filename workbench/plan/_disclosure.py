"""Values that clients disclose, traced back from the values that the server and the caller read."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import Literal

from workbench import _jax_compat
from workbench._types import Aval
from workbench.plan._interpreter import Scan, While, control_flow
from workbench.plan._plan import Plan, Step, plan_jaxpr
from workbench.plan._reductions import accumulator_of
from workbench.plan._single_client import single_client
from workbench.records.program import DisclosedRecord, ValueRecord

Records = dict[tuple[str, int, int], DisclosedRecord]


def find_disclosed(
    plan: Plan, inputs: Sequence[ValueRecord]
) -> tuple[tuple[DisclosedRecord, ...], tuple[ValueRecord, ...]]:
    """Lists the values that the server receives from a client, and the inputs that the server never receives.

    Returns:
        First, one record per disclosed value, in program order: a client's partial result of a reduction, or a row that
        the server reads. `count` is 0, because nothing has run. Second, one client's part of the inputs that only
        clients read. This second list omits inputs whose rows enter a reduction unchanged, such as the weights of a
        weighted mean, and inputs that clients may exchange over a named axis.
    """
    records: Records = {}
    server_inputs = _follow(plan, "", set(range(len(plan.closed.jaxpr.outvars))), records)
    for (path, step, i), record in records.items():
        if step < 0:
            records[path, step, i] = record.replace(name=inputs[i].name)
    leaving = tuple(records[key] for key in sorted(records, key=_place))
    server_inputs |= _inputs_of_clients(plan, reduced=True).keys() | _exchanged(plan)
    staying = [_of_one(inputs[i], axis) for i, axis in _inputs_of_clients(plan).items() if i not in server_inputs]
    return leaving, tuple(staying)


def exchanges(plan: Plan) -> Iterator[Step]:
    """The steps in which clients communicate over a named axis, such as `jax.lax.all_gather(x, "clients")`."""
    for step in plan.steps:
        if step.kind in ("loop", "branch"):
            flow = control_flow(step.equation)
            assert flow is not None
            bodies = [*flow.bodies, flow.condition] if isinstance(flow, While) else flow.bodies
            if any(True for body in bodies for _ in exchanges(plan_jaxpr(body, plan.name))):
                yield step
        elif step.kind == "clients" and step.jaxpr is not None and _jax_compat.uses_named_axes(step.jaxpr):
            yield step


def _exchanged(plan: Plan) -> set[int]:
    """The inputs that reach a communicating step through steps that clients compute."""
    communicating = set(map(id, exchanges(plan)))
    reaching: set[Any] = set()
    for step in reversed(plan.steps):
        if id(step) in communicating or not reaching.isdisjoint(step.outputs):
            reaching.update(v for v in step.equation.invars if not isinstance(v, Literal))
            reaching.update(step.inputs)
    return {i for i, v in enumerate(plan.closed.jaxpr.invars) if v in reaching}


def _of_one(value: ValueRecord, axis: int) -> ValueRecord:
    shape = value.shape[:axis] + value.shape[axis + 1 :]
    return value.replace(shape=shape, size_bytes=value.size_bytes // max(value.shape[axis], 1), sharding=None)


def _inputs_of_clients(plan: Plan, *, reduced: bool = False) -> dict[int, int]:
    """The inputs that clients read, including inside loops, each with the position of its client axis.

    With `reduced`, lists only the inputs that a reduction reads unchanged.
    """
    axes: dict[Any, int] = {}
    aliases: dict[Any, Any] = {}  # unchanged results of clients -> inputs
    for step in plan.steps:
        if step.kind in ("loop", "branch"):
            for i, axis in _operands_of_clients(plan, step, reduced=reduced).items():
                v = step.equation.invars[i]
                axes.setdefault(aliases.get(v, v), axis)
        elif step.kind == "reduce" and reduced:
            v = step.equation.invars[0]
            axes.setdefault(aliases.get(v, v), 0)
        elif step.kind not in ("server", "broadcast"):
            aliases |= {returned: aliases.get(v, v) for returned, v in _unchanged(step)}
            for v in () if reduced else step.inputs:
                axes.setdefault(v, 0)
    return {i: axes[v] for i, v in enumerate(plan.closed.jaxpr.invars) if v in axes}


def _unchanged(step: Step) -> Iterator[tuple[Any, Any]]:
    """Yields the results of a client function that equal an input up to dtype, each with the input variable."""
    if step.jaxpr is None:
        return
    jaxpr = step.jaxpr.jaxpr
    operands = step.inputs if step.glue else step.equation.invars  # a row operation contains its literals
    inputs = dict(zip(jaxpr.invars, operands, strict=True))
    for equation in jaxpr.eqns:
        v = equation.invars[0] if equation.primitive.name == "convert_element_type" else None
        if v is not None and not isinstance(v, Literal) and v in inputs:
            inputs[equation.outvars[0]] = inputs[v]
    for returned, v in zip(step.equation.outvars, jaxpr.outvars, strict=True):
        if not isinstance(v, Literal) and v in inputs and not isinstance(inputs[v], Literal):
            yield returned, inputs[v]


def _operands_of_clients(plan: Plan, step: Step, *, reduced: bool) -> dict[int, int]:
    flow = control_flow(step.equation)
    assert flow is not None
    first = flow.offset
    sliced = flow.consts + flow.carries if isinstance(flow, Scan) else math.inf  # first sliced operand
    axes: dict[int, int] = {}
    for closed in flow.bodies:
        for i, axis in _inputs_of_clients(plan_jaxpr(closed, plan.name), reduced=reduced).items():
            axes[first + i] = axis + (i >= sliced)
    if isinstance(flow, While):
        for i, axis in _inputs_of_clients(plan_jaxpr(flow.condition, plan.name), reduced=reduced).items():
            axes[i if i < first else i + flow.consts] = axis
    return {i: axis for i, axis in axes.items() if not isinstance(step.equation.invars[i], Literal)}


def _place(key: tuple[str, int, int]) -> tuple[list[int], int, int]:
    path, step, output = key
    return [int("".join(c for c in part if c.isdigit()) or 0) for part in path.split(".")], step, output


def _follow(plan: Plan, path: str, results: set[int], records: Records) -> set[int]:
    """Adds a plan's records, assuming that the server reads these results; returns the inputs that the server reads."""
    outputs, inputs = plan.closed.jaxpr.outvars, plan.closed.jaxpr.invars
    server_reads: set[Any] = {outputs[i] for i in results if not isinstance(outputs[i], Literal)}
    of_clients: dict[Any, int] = {}  # with the position of the client axis
    for position in reversed(range(len(plan.steps))):
        step = plan.steps[position]
        if step.kind in ("server", "broadcast"):
            server_reads.update(step.inputs)
        elif step.kind in ("loop", "branch"):
            operands = _through_loop(
                plan, step, path, {i for i, v in enumerate(step.outputs) if v in server_reads}, records
            )
            server_reads.update(v for i in operands if not isinstance(v := step.equation.invars[i], Literal))
            inside = _operands_of_clients(plan, step, reduced=False)
            of_clients |= {step.equation.invars[i]: axis for i, axis in inside.items()}
        else:
            of_clients |= dict.fromkeys(step.inputs, 0)
            _of_clients(plan, position, path, server_reads, records)
    for i, v in enumerate(inputs):
        if not path and v in server_reads and v in of_clients:  # inputs of a loop are values of the plan around it
            records["0", -1, i] = _record("0", f"input {i}", v.aval, of_clients[v])
    return {i for i, v in enumerate(inputs) if v in server_reads}


def _of_clients(plan: Plan, position: int, path: str, server_reads: set[Any], records: Records) -> None:
    step = plan.steps[position]
    stage, where = plan.stages[step.stage], f"{path}{step.stage}"
    if step.kind == "reduce":
        alone = single_client(plan, step)
        records[where, position, 0] = _record(where, stage.name, accumulator_of(step.equation), None).replace(
            single_client=alone
        )
        return
    for i, v in enumerate(step.outputs):
        if v in server_reads:
            name = f"{stage.name}[{i}]" if len(step.outputs) > 1 else stage.name
            records[where, position, i] = _record(where, name, v.aval, 0)


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


def _record(stage: str, name: str, aval: Aval, client_axis: int | None) -> DisclosedRecord:
    """A row without the client axis, or a partial result if there is no such axis."""
    shape = tuple(size for axis, size in enumerate(aval.shape) if axis != client_axis)
    size = math.prod(shape) * getattr(aval.dtype, "itemsize", 4)
    kind = "partial result" if client_axis is None else "row"
    return DisclosedRecord(stage=stage, name=name, shape=shape, dtype=str(aval.dtype), size_bytes=size, kind=kind)
