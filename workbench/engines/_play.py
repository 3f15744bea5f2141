"""`play`: evaluates a program once and shows the values of every stage step by step."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import Literal, Var

from workbench._types import AnyArray, Atom, PyTree
from workbench.engines._stage import dtype_of, is_key
from workbench.errors import InspectionError
from workbench.plan import Plan, PlannedCall, describe_plan, trace
from workbench.primitives import bind_here
from workbench.records.program import StageRecord
from workbench.records.run import PlayedCourseRecord, PlayedStageRecord, PlayedValueRecord, PlayRecord

MOST_PICTURED = 64  # maximum number of clients with pictures
PICTURE = 8  # maximum number of rows and columns of a picture
MOST_VALUES = 8  # maximum number of arrays per stage; the largest are kept


def play(fn: Callable, *args: object) -> PlayRecord:
    """Evaluates a program once and keeps the values of every stage, for all clients.

    Runs the plan stage by stage in this process, computing every client. Values that a client emits are kept as a curve
    over the client's local steps. For large arrays only norms and a small picture are kept.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or the result of `workbench.jit`.
        *args: Arguments of `fn`.

    Returns: The stages in order, with per-client values.

    Raises:
        InspectionError: if `fn` has no stages.

    Example:
        >>> import workbench as wb
        >>> @wb.program(clients=4)
        ... def total(x):
        ...     return wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x))
        >>> played = play(total, np.arange(4, dtype=np.float32))
        >>> [(stage.kind, stage.values[0].norms) for stage in played.stages]
        [('clients', (0.0, 2.0, 4.0, 6.0)), ('reduce', (12.0,))]
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), _dtype(x)), args)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        traced = trace(fn, shapes, listening=True)
        if not traced.plan.stages:
            message = (
                f"`play` received {getattr(fn, '__name__', fn)!r}, which computes nothing. Pass a program that "
                "computes values."
            )
            raise InspectionError(message)
        values = _evaluate(traced.plan, [_here(x) for x in jax.tree.leaves(args)])
    return _record(traced, values)


def _dtype(x: PyTree[Array]) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else jax.dtypes.canonicalize_dtype(np.asarray(x).dtype)


def _here(x: object) -> object:
    """Copies the value to one device, because the plan is evaluated without a mesh."""
    if is_key(_dtype(x)):
        return x
    return jax.numpy.asarray(np.asarray(x))


def _evaluate(plan: Plan, inputs: Sequence[Any]) -> dict[Var, Any]:
    closed = plan.closed
    variables = [*closed.jaxpr.constvars, *closed.jaxpr.invars]
    computed = [v for step in plan.steps for v in step.outputs]

    @jax.jit
    def run(*arrays: AnyArray) -> list[AnyArray]:
        values: dict[Var, AnyArray] = dict(zip(variables, arrays, strict=True))
        for step in plan.steps:  # in program order, so that the inputs of a step are available
            operands = [_read(atom, values) for atom in step.equation.invars]
            values.update(zip(step.outputs, bind_here(step.equation, operands), strict=True))
        return [values[v] for v in computed]

    arrays = [*closed.consts, *inputs]
    # One program, because compiling each operation takes longer. It runs once, so LLVM does not optimize it.
    options: dict[str, str | bool] | None
    options = {"xla_backend_optimization_level": "1"} if jax.default_backend() == "cpu" else None
    return dict(zip([*variables, *computed], [*arrays, *run.lower(*arrays).compile(options)(*arrays)], strict=True))


def _read(atom: Atom, values: dict[Var, AnyArray]) -> AnyArray:
    return np.asarray(atom.val, dtype_of(atom)) if isinstance(atom, Literal) else values[atom]


def _record(traced: PlannedCall, values: dict[Var, Any]) -> PlayRecord:
    plan = traced.plan
    described = describe_plan(plan, names=traced.in_names)
    outputs = [_read(atom, values) for atom in plan.closed.jaxpr.outvars]
    count = traced.out_tree.num_leaves
    clients = max((stage.clients for stage in described.stages), default=1)
    pictured = np.unique(np.linspace(0, clients - 1, min(clients, MOST_PICTURED)).astype(int))
    stages = [_stage(plan, stage, values, pictured) for stage in described.stages]
    notes = []
    if clients > len(pictured):
        notes.append(f"Pictures show {len(pictured)} of {clients:,} clients; all clients were run and counted.")
    if any(stage.kind in ("loop", "branch") for stage in described.stages):
        notes.append(
            "Loops and branches show only their inputs and outputs: to see more, call `play` on the function inside."
        )
    courses = [
        course
        for emission, value in zip(traced.emissions, outputs[count:], strict=True)
        if (course := _course(emission.name, emission.axes, np.asarray(value))) is not None
    ]
    return PlayRecord(
        name=plan.name,
        stages=tuple(stages),
        courses=tuple(courses),
        pictured_clients=tuple(pictured.tolist()),
        notes=tuple(notes),
        results=jax.tree.unflatten(traced.out_tree, outputs[:count]),
    )


def _stage(plan: Plan, described: StageRecord, values: dict[Var, Any], pictured: np.ndarray) -> PlayedStageRecord:
    stage = plan.stages[described.index]
    inside = {v for step in stage.steps for v in step.outputs}
    inputs = {v for step in plan.steps if step.stage != described.index for v in step.inputs}
    inputs |= {v for v in plan.closed.jaxpr.outvars if isinstance(v, Var)}
    leaving = [v for step in stage.steps for v in step.outputs if v in inputs and v in inside]
    at_clients = described.kind in ("clients", "broadcast")
    arrays = [(np.asarray(values[v]), v) for v in leaving if not is_key(dtype_of(v))]
    arrays = [(array, v) for array, v in arrays if array.dtype.kind in "fiub"]
    if described.kind == "broadcast":  # every client receives the same row
        arrays = [(array[0], v) for array, v in arrays]
    received = _received(plan, values, described.index) if described.kind == "clients" else []
    names = [value.name for value in described.outputs]
    records = [
        _value(names[i] if i < len(names) else "", array, described.kind == "clients", received, pictured)
        for i, (array, _) in enumerate(arrays)
    ]
    return PlayedStageRecord(
        path=described.path,
        kind=described.kind,
        name=described.name,
        clients=described.clients if at_clients or described.kind == "reduce" else 1,
        moved_bytes=described.moved_bytes,
        values=tuple(sorted(records, key=lambda value: -value.size_bytes)[:MOST_VALUES]),
        source=described.source,
    )


def _received(plan: Plan, values: dict[Var, Any], stage: int) -> list[np.ndarray]:
    """Values that the clients of a stage receive from the server, one row per client."""
    broadcasts = {v for step in plan.steps if step.kind == "broadcast" for v in step.outputs}
    inputs = [v for step in plan.steps if step.stage == stage for v in step.inputs if v in broadcasts]
    return [np.asarray(values[v])[0] for v in dict.fromkeys(inputs) if not is_key(dtype_of(v))]


def _value(
    name: str, array: np.ndarray, per_client: bool, received: Sequence[np.ndarray], pictured: np.ndarray
) -> PlayedValueRecord:
    rows = array if per_client else array[None]
    flat = np.nan_to_num(rows.reshape(len(rows), -1).astype(np.float64), posinf=0.0, neginf=0.0)
    alike = [
        x
        for x in received
        if x.shape == rows.shape[1:] and x.dtype == rows.dtype and x.dtype.kind == "f" and x.size > 1
    ]
    base = alike[0] if len(alike) >= 1 else None
    distances = () if base is None else np.linalg.norm(flat - base.reshape(-1), axis=1).tolist()
    shown = flat[pictured[pictured < len(flat)]] if per_client else flat
    pictures = [_picture(row.reshape(rows.shape[1:])) for row in shown]
    return PlayedValueRecord(
        name=name,
        shape=rows.shape[1:],
        dtype=str(rows.dtype),
        size_bytes=int(rows[0].nbytes),
        norms=tuple(np.linalg.norm(flat, axis=1).tolist()),
        distances=tuple(distances),
        picture=tuple(np.concatenate([picture.ravel() for picture in pictures]).tolist()),
        picture_shape=pictures[0].shape,
    )


def _picture(array: np.ndarray) -> np.ndarray:
    """Downsamples an array to at most `PICTURE` rows and columns, by averaging cells."""
    matrix = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    for axis in (0, 1):
        parts = min(PICTURE, matrix.shape[axis])
        cuts = np.linspace(0, matrix.shape[axis], parts, endpoint=False).astype(int)
        sizes = np.diff([*cuts, matrix.shape[axis]])
        matrix = np.add.reduceat(matrix, cuts, axis=axis) / np.expand_dims(sizes, 1 - axis)
    return matrix


def _course(name: str, axes: Sequence[str], array: np.ndarray) -> PlayedCourseRecord | None:
    """Returns an emitted value (the mean of an array) as `[clients, steps]`; None without clients or numbers."""
    place = next((i for i, axis in enumerate(axes) if not axis.startswith(("step", "round"))), None)
    if place is None or array.dtype.kind not in "fiu":
        return None
    rows = np.moveaxis(array, place, 0)
    steps = sum(axis.startswith("step") for axis in axes)
    if rows.ndim > len(axes):  # an emitted array: use its mean
        rows = rows.mean(axis=tuple(range(len(axes), rows.ndim)))
    rows = rows.reshape(len(rows), -1) if steps else rows.reshape(len(rows), -1)[:, -1:]
    finite = [tuple(float(x) if np.isfinite(x) else None for x in row) for row in rows]
    return PlayedCourseRecord(name=name, values=tuple(finite))
