"""Shared parts of graders: the list of exercises, comparisons with kind messages, and communication counts."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from workbench._types import Argument
from workbench.api import inspect, trace
from workbench.errors import WorkbenchError, WrongAnswerError
from workbench.records.compiled import CollectiveRecord, ProgramRecord
from workbench.records.program import PlanRecord, StageRecord, ValueRecord

Grader = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task in a few words, and the function that grades an answer to it."""

    task: str
    grader: Grader


EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, task: str) -> Callable[[Grader], Grader]:
    """Registers a grader: it returns what is right about the answer, or raises `WrongAnswerError`."""

    def register(grader: Grader) -> Grader:
        EXERCISES[name] = Exercise(task, grader)
        return grader

    return register


def wrong(message: str) -> NoReturn:
    """Ends the grading with what the student should look at."""
    raise WrongAnswerError(message)


def number(answer: Argument, what: str) -> float:
    """The answer as one number."""
    try:
        return float(answer)
    except (TypeError, ValueError):
        wrong(f"{what} should be one number; you gave a {type(answer).__name__}.")


def expect_number(answer: object, expected: float, hint: str, *, what: str = "your answer", rtol: float = 1e-3) -> None:
    """One number, within a relative tolerance."""
    found = number(answer, what)
    if not math.isclose(found, expected, rel_tol=rtol, abs_tol=1e-9):
        wrong(f"{what} is {found:g}. {hint}")


def yes_or_no(answer: object, what: str) -> bool:
    """A truth value: True, False, "yes" or "no"."""
    words = {"yes": True, "true": True, "no": False, "false": False}
    if isinstance(answer, str) and answer.strip().lower() in words:
        return words[answer.strip().lower()]
    if not isinstance(answer, bool | np.bool_):
        wrong(f"{what} should be True or False; you gave {answer!r}.")
    return bool(answer)


def expect_values(found: object, expected: object, hint: str, *, atol: float = 1e-4) -> None:
    """An array of the same shape with the same values."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        wrong(f"the result has the shape {found.shape}; expected {expected.shape}. {hint}")
    if not np.allclose(found, expected, rtol=1e-3, atol=atol):
        worst = float(np.max(np.abs(found - expected)))
        wrong(f"the values differ from the expected ones by up to {worst:.3g}. {hint}")


def several(answer: object, count: int, what: str) -> Sequence[Any]:
    """The answer as a pair, a triple, and so on."""
    if isinstance(answer, str) or not isinstance(answer, Iterable) or len(answer := tuple(answer)) != count:
        wrong(f"the answer should be {count} values: {what}.")
    return answer


def called(function: object, *args: Argument) -> Argument:
    """The student's function, called; its own errors become a hint."""
    if not callable(function):
        wrong(f"the answer should be a function; you gave a {type(function).__name__}.")
    try:
        result = function(*args)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        raise  # `check` has a sentence for these
    except Exception as error:
        message = f"calling it with arguments of shapes {[np.shape(a) for a in args]} failed: {error}"
        raise WrongAnswerError(message) from error
    if result is None:
        wrong("the function returned None. Is its `return` missing?")
    return result


def plan_of(function: Argument, *args: object, clients: int) -> PlanRecord:
    """The plan of the student's program, which has a placement of that many clients and reduces over it."""
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
        wrong("the values are right, but nothing is reduced: combine the clients' values by `wb.reduce_…`.")
    if rows := raw_rows(plan, clients):
        names = ", ".join(f"{value.name} ({value.size_bytes // clients:,} bytes of each client)" for value in rows)
        wrong(f"the values are right, but the server reads the clients' own data: {names}. Use it at the clients.")
    if rows := [value for value in plan.disclosed if value.kind == "row"]:
        names = ", ".join(f"{value.name} ({value.size_bytes:,} bytes)" for value in rows)
        wrong(
            f"the values are right, but the server reads a row of each client: {names}. Combine the clients' values "
            "by a reduction."
        )
    return plan


def raw_rows(plan: PlanRecord, clients: int) -> list[ValueRecord]:
    """The arguments with a row for each client that a stage at the server reads."""
    given = {value.name for value in plan.inputs if value.shape[:1] == (clients,)}
    read = [value for stage in stages(plan, "server") for value in stage.inputs if value.name in given]
    return list({value.name: value for value in read}.values())


def stages(plan: PlanRecord, kind: str) -> list[StageRecord]:
    """The stages of one kind (`broadcast`, `clients`, `reduce`), in loops too."""
    return [stage for stage in plan.walk() if stage.kind == kind]


def expect_disclosed(plan: PlanRecord, at_most: int) -> int:
    """Checks the bytes that the server receives of one client in a call."""
    found = sum(value.size_bytes for value in plan.disclosed)
    if found > at_most:
        names = ", ".join(f"{value.name} ({value.size_bytes:,} bytes)" for value in plan.disclosed)
        wrong(f"a client discloses {found:,} bytes to the server: {names}. It may disclose at most {at_most:,}.")
    return found


def compiled(function: object, *args: object, mesh: jax.sharding.Mesh | None = None) -> ProgramRecord:
    """The record of the student's program, compiled for a mesh."""
    return (inspect(function) if mesh is None else inspect(function, on=mesh))(*args)


def collectives(record: ProgramRecord, kind: str | None = None) -> list[CollectiveRecord]:
    """The collectives of a compiled program, all or of one kind."""
    found = () if record.module is None else record.module.collectives
    return [each for each in found if kind is None or each.kind == kind]


def sent_bytes(found: Iterable[CollectiveRecord]) -> float:
    """Bytes that one device sends in a call, with repeated collectives."""
    return sum((each.wire_bytes or 0) * (each.executions or 1) for each in found)


def payload_bytes(found: Iterable[CollectiveRecord]) -> float:
    """Bytes that one device contributes in a call, with repeated collectives."""
    return sum(each.payload_bytes * (each.executions or 1) for each in found)
