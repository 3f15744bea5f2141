"""What graders share: the list of exercises, comparisons with kind messages, and what a program communicates."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from workbench._types import Argument
from workbench.api import inspect, trace
from workbench.errors import WorkbenchError, WrongAnswerError
from workbench.records import CollectiveRecord, PlanRecord, ProgramRecord, StageRecord

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
        return function(*args)
    except Exception as error:
        message = f"calling it with arguments of shapes {[np.shape(a) for a in args]} failed: {error}"
        raise WrongAnswerError(message) from error


def plan_of(function: Argument, *args: object) -> PlanRecord:
    """The plan of the student's program."""
    try:
        plan = trace(function)(*args).plan
    except WorkbenchError as error:
        raise WrongAnswerError(str(error)) from error
    if not isinstance(plan, PlanRecord):
        wrong("this is no program of the workbench.")
    return plan


def stages(plan: PlanRecord, kind: str) -> list[StageRecord]:
    """The stages of one kind (`broadcast`, `clients`, `reduce`), in loops too."""
    return [stage for stage in plan.walk() if stage.kind == kind]


def expect_disclosed(plan: PlanRecord, at_most: int) -> int:
    """What the server sees of one client in a call, in bytes."""
    found = sum(value.size_bytes for value in plan.disclosed)
    if found > at_most:
        names = ", ".join(f"{value.name} ({value.size_bytes:,} bytes)" for value in plan.disclosed)
        wrong(f"a client discloses {found:,} bytes to the server: {names}. It may disclose at most {at_most:,}.")
    return found


def compiled(function: object, *args: object, mesh: jax.sharding.Mesh | None = None) -> ProgramRecord:
    """The record of the student's program, compiled for a mesh."""
    return inspect(function, **({} if mesh is None else {"mesh": mesh}))(*args)


def collectives(record: ProgramRecord, kind: str | None = None) -> list[CollectiveRecord]:
    """The collectives of a compiled program, all or of one kind."""
    found = () if record.module is None else record.module.collectives
    return [each for each in found if kind is None or each.kind == kind]


def sent_bytes(found: Iterable[CollectiveRecord]) -> float:
    """What one device sends in a call, in bytes, counting repeated collectives."""
    return sum((each.wire_bytes or 0) * (each.executions or 1) for each in found)


def payload_bytes(found: Iterable[CollectiveRecord]) -> float:
    """What one device contributes in a call, in bytes, counting repeated collectives."""
    return sum(each.payload_bytes * (each.executions or 1) for each in found)
