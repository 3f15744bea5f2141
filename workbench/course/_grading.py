"""Shared parts of graders: the list of exercises, comparisons with helpful messages, and communication counts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr
from jax.sharding import PartitionSpec

from workbench import _jax_compat
from workbench._types import Argument
from workbench.api import inspect, trace
from workbench.engines import Sequential
from workbench.errors import WorkbenchError, WrongAnswerError
from workbench.primitives import calls_back
from workbench.records.compiled import CollectiveRecord, ProgramRecord
from workbench.records.program import PlanRecord, StageRecord

Grader = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Exercise:
    """A short task description, and the function that grades an answer."""

    task: str
    grader: Grader


EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, task: str) -> Callable[[Grader], Grader]:
    """Registers a grader, which returns a comment for a right answer or raises `WrongAnswerError`."""

    def register(grader: Grader) -> Grader:
        EXERCISES[name] = Exercise(task, grader)
        return grader

    return register


def wrong(message: str) -> NoReturn:
    """Ends the grading with a hint for the student."""
    raise WrongAnswerError(message)


def number(answer: Argument, what: str) -> float:
    try:
        return float(answer.item() if np.shape(answer) == (1,) else answer)
    except (TypeError, ValueError, AttributeError):
        wrong(f"{what} should be one number; you gave a value of type `{type(answer).__name__}`.")


def expect_number(answer: object, expected: float, hint: str, *, what: str = "your answer", rtol: float = 1e-3) -> None:
    """Compares one number with the expected number, within a relative tolerance."""
    value = number(answer, what)
    if not math.isclose(value, expected, rel_tol=rtol, abs_tol=1e-9):
        wrong(f"{what} is {value:g}. {hint}")


def yes_or_no(answer: object, what: str) -> bool:
    """Converts the answer to a truth value; accepts True, False, "yes" and "no"."""
    words = {"yes": True, "true": True, "no": False, "false": False}
    if isinstance(answer, str) and answer.strip().lower() in words:
        return words[answer.strip().lower()]
    if not isinstance(answer, bool | np.bool_):
        wrong(f"{what} should be True or False; you gave {answer!r}.")
    return bool(answer)


def expect_values(result: object, expected: object, hint: str, *, atol: float = 1e-4) -> None:
    """Compares an array with the expected array's shape and values."""
    expected = np.asarray(expected)
    if isinstance(result, tuple | list | dict) and len({np.shape(part) for part in jax.tree.leaves(result)}) > 1:
        shapes = ", ".join(str(np.shape(part)) for part in jax.tree.leaves(result))
        wrong(
            f"the result is a {type(result).__name__} of values with the shapes {shapes}; expected one array of shape "
            f"{expected.shape}. {hint}"
        )
    result = np.asarray(result)
    if result.shape != expected.shape:
        wrong(f"the result has shape {result.shape}; expected {expected.shape}. {hint}")
    if not np.isfinite(result).all():
        wrong(f"the result contains NaN or infinity. {hint}")
    if not np.allclose(result, expected, rtol=1e-3, atol=atol):
        worst = float(np.max(np.abs(result - expected)))
        wrong(f"the values differ from the expected ones by up to {worst:.3g}. {hint}")


def several(answer: object, count: int, what: str) -> Sequence[Any]:
    """Converts the answer to a pair, a triple, and so on."""
    if isinstance(answer, str) or not isinstance(answer, Iterable) or len(answer := tuple(answer)) != count:
        wrong(f"the answer should be {count} values: {what}.")
    return answer


def specs(answer: object, *names: str) -> dict[str, PartitionSpec]:
    """Returns the answer if it is a dictionary of PartitionSpecs with these names."""
    if not isinstance(answer, dict) or set(answer) != set(names):
        wrong(f"the answer should be a dictionary of PartitionSpecs for {', '.join(f'`{name}`' for name in names)}.")
    if others := [name for name in names if not isinstance(answer[name], PartitionSpec)]:
        wrong(
            f'the spec of `{others[0]}` is {answer[others[0]]!r}; write a `PartitionSpec`, such as `P(None, "model")`.'
        )
    return answer


def called(function: object, *args: Argument) -> Argument:
    """Calls the student's function; errors that it raises become a hint."""
    if not callable(function):
        wrong(f"the answer should be a function; you gave a value of type `{type(function).__name__}`.")
    try:
        result = function(*args)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError, WrongAnswerError):
        raise  # `check` has a sentence for these
    except Exception as error:
        shapes = [list(map(np.shape, jax.tree.leaves(a))) if isinstance(a, list | dict) else np.shape(a) for a in args]
        message = f"calling it with arguments of shapes {shapes} failed: {error}"
        raise WrongAnswerError(message) from error
    if result is None:
        wrong("the function returned None. Is its `return` missing?")
    return result


def plan_of(function: Argument, *args: object, clients: int) -> PlanRecord:
    """Checks and returns the plan of the student's program.

    The program must have a placement with this number of clients and reduce over it. The server must not read a
    client's row, and no broadcast may send the rows of all clients to each client. Computing the clients one at a time,
    each from its own row, must give the same values as an ordinary call.
    """
    try:
        plan = trace(function)(*args).plan
    except WorkbenchError as error:
        raise WrongAnswerError(str(error)) from error
    if not isinstance(plan, PlanRecord) or clients not in [placement.size for placement in plan.placements]:
        wrong(
            f"the values are right, but no program over {clients} clients computes them: the server would need all "
            f"data. Put `@wb.program(clients={clients})` above the function, and use `wb.map_fn` and a reduction in it."
        )
    if not stages(plan, "reduce"):
        wrong("the values are right, but nothing is reduced: combine the clients' values with `wb.reduce_…`.")
    if rows := raw_rows(plan, clients, "server"):
        wrong(
            f"the values are right, but the server reads the clients' own data: {rows}. Use these rows inside the "
            "client function."
        )
    if rows := raw_rows(plan, clients, "broadcast"):
        wrong(
            f"the values are right, but every client receives the data of all clients: {rows}. `wb.map_fn` gives each "
            "client its own row of its arguments; a variable that its function captures is sent to all."
        )
    if rows := [value for value in plan.disclosed if value.kind == "row"]:
        names = ", ".join(f"{value.name} ({value.size_bytes:,} bytes)" for value in rows)
        wrong(
            f"the values are right, but the server reads a row of each client: {names}. Combine the clients' values "
            "with a reduction."
        )
    if alone := [value for value in plan.disclosed if value.single_client]:
        wrong(
            f"the values are right, but {alone[0].name} adds up the values of {alone[0].single_client} alone, so the "
            "server receives a row. Reduce over all clients."
        )
    expect_clients_apart(function, args, clients)
    return plan


def expect_clients_apart(function: Argument, args: Sequence[object], clients: int) -> None:
    """Computes the clients one at a time, on different data, and compares the results with an ordinary call."""

    def moved(leaf: jax.Array) -> jax.Array:
        if np.shape(leaf)[:1] != (clients,):
            return leaf
        return leaf // 2 if jnp.issubdtype(leaf.dtype, jnp.integer) else leaf * 0.25 + 2

    other_args = jax.tree.map(moved, args)
    traced = jax.make_jaxpr(function)(*other_args)
    if reads_other_clients(traced.jaxpr):
        wrong(
            "the values are right, but a client uses a collective of `jax.lax` over all clients. Let clients compute "
            "from their own rows, and combine the results with `wb.reduce_…`."
        )
    if calls_back(traced):
        wrong("the program calls Python from a client or the server; such a call could carry any data. Use only JAX.")
    try:
        apart = Sequential().run(function, *other_args).results
    except WorkbenchError as error:
        message = f"the values are right, but they cannot be computed at each client from its own row: {error}"
        raise WrongAnswerError(message) from error
    together = jax.tree.leaves(called(function, *other_args))
    for one, other in zip(jax.tree.leaves(apart), together, strict=True):
        if not np.allclose(one, other, rtol=0.02, atol=0.02 * float(np.max(np.abs(other), initial=0)), equal_nan=True):
            wrong(
                "the values are right, but the program does not compute them: on other data, its result differs from "
                "that of each client computed separately. The function should run the same program in every call."
            )


def primitives_of(jaxpr: Jaxpr) -> set[str]:
    """The names of the operations in a traced function, including its inner functions."""
    inner = [inner_jaxpr for equation in jaxpr.eqns for inner_jaxpr in _jax_compat.inner_jaxprs(equation)]
    return {equation.primitive.name for equation in jaxpr.eqns}.union(*map(primitives_of, inner))


def reads_other_clients(jaxpr: Jaxpr) -> bool:
    """Finds collectives over all clients in inner functions, such as `jax.lax.all_gather`."""
    inner = [inner_jaxpr for equation in jaxpr.eqns for inner_jaxpr in _jax_compat.inner_jaxprs(equation)]
    return any(_jax_compat.uses_named_axes(inner_jaxpr) or reads_other_clients(inner_jaxpr) for inner_jaxpr in inner)


def raw_rows(plan: PlanRecord, clients: int, kind: str) -> str:
    """Names the per-client arguments that a server stage or a broadcast reads."""
    names = {value.name for value in plan.inputs if value.shape[:1] == (clients,)}
    values = [value for stage in stages(plan, kind) for value in stage.inputs if value.name in names]
    sizes = {value.name: f"{value.size_bytes // clients:,} bytes from each client" for value in values}
    return ", ".join(f"{name} ({size})" for name, size in sizes.items())


def stages(plan: PlanRecord, kind: str) -> list[StageRecord]:
    """The stages of one kind (`broadcast`, `clients`, `reduce`), including those in loops."""
    return [stage for stage in plan.walk() if stage.kind == kind]


def expect_disclosed(plan: PlanRecord, at_most: int) -> int:
    """Checks the bytes that the server receives from one client in a call, over all loop iterations."""
    inside = tuple(f"{stage.path}." for stage in plan.walk() if stage.kind == "clients")  # sent to a group only
    values = [value for value in plan.disclosed if not value.stage.startswith(inside)]
    sizes = [value.size_bytes * repeats(plan, value.stage) for value in values]
    if (total := sum(sizes)) > at_most:
        names = ", ".join(f"{value.name} ({size:,} bytes)" for value, size in zip(values, sizes, strict=True))
        wrong(f"a client discloses {total:,} bytes to the server: {names}. A client may disclose at most {at_most:,}.")
    return total


def repeats(plan: PlanRecord, path: str) -> int:
    """Number of executions of a stage per call: the product of the lengths of its loops."""
    loops = [stage for stage in plan.walk() if stage.kind == "loop" and path.startswith(f"{stage.path}.")]
    if any(loop.trip_count is None for loop in loops):
        wrong(
            "the values are right, but a loop of unknown length contains a reduction. Use a fixed number of reductions."
        )
    return math.prod(loop.trip_count or 1 for loop in loops)


def compiled(function: object, *args: object, mesh: jax.sharding.Mesh | None = None) -> ProgramRecord:
    """Compiles the student's program for a mesh; returns the program's record."""
    return (inspect(function) if mesh is None else inspect(function, on=mesh))(*args)


def collectives(record: ProgramRecord, kind: str | None = None) -> list[CollectiveRecord]:
    """All collectives of a compiled program, or those of one kind."""
    records = () if record.module is None else record.module.collectives
    return [r for r in records if kind is None or r.kind == kind]


def sent_bytes(records: Iterable[CollectiveRecord]) -> float:
    """Bytes that one device sends in a call, counting every execution of each collective."""
    return sum((record.wire_bytes or 0) * (record.executions or 1) for record in records)


def payload_bytes(records: Iterable[CollectiveRecord]) -> float:
    """Bytes that one device contributes in a call, counting every execution of each collective."""
    return sum(record.payload_bytes * (record.executions or 1) for record in records)
