"""The course's entry points, which find the grader for an exercise and report its result."""

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import jax

from workbench.course._grading import EXERCISES, Exercise
from workbench.errors import CourseError, WrongAnswerError

_ANSWERS: dict[str, object] = {}  # the reader's right answers in this process
_SOLUTIONS: dict[str, object] = {}  # of the page
_GROUPS = (
    "_basics",
    "_systems",
    "_learning",
    "_guarantees",
    "_parallelism",
    "_mapreduce",
    "_decentralised",
    "_inference",
    "_axes",
    "_adapters",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Result of `check`; truthy for a right answer.

    Attributes:
        exercise: The exercise's id, such as `"09.2"`.
        right: Whether the answer is right. False only if the exercise has no answer yet (`...`).
        message: One sentence for the student.
    """

    exercise: str
    right: bool
    message: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return f"{'✓' if self.right else '…'} {self.exercise}: {self.message}"


def check(exercise: str, answer: object, *evidence: object) -> Grade:
    """Grades the answer to an exercise of the course.

    If the answer is a function, it is called and traced, and also compiled if the exercise limits communication. The
    grade then covers the function's values, its stages, and the bytes that it sends.

    Args:
        exercise: The exercise's id, which consists of the notebook's number, a dot, and the exercise's number.
        answer: The student's answer; `...` means not answered yet.
        evidence: Additional evidence that the exercise asks for, such as the record behind the answer.

    Returns:
        A true `Grade`, or a false `Grade` if the answer is `...`.

    Raises:
        WrongAnswerError: if the answer is wrong; the message contains the difference and a hint. It is an
            `AssertionError`.
        CourseError: if no exercise has this id.

    Example:
        >>> check("12.3", (13, 2))
        ✓ 12.3: Right: a sum over 32 clients needs 13 bits, so two numbers fit into a word of 32 bits.
        >>> bool(check("12.3", ...))
        False
    """
    grade = _graded("check", exercise, answer, evidence)
    if grade:
        _ANSWERS[exercise] = answer
    return grade


def check_solution(exercise: str, solution: object, *evidence: object) -> Grade:
    """Grades the page's solution, which never replaces the student's answer.

    Args:
        exercise: The exercise's id.
        solution: The page's solution.
        evidence: Additional evidence that the exercise asks for.

    Returns:
        A true `Grade`.

    Raises:
        WrongAnswerError: if the solution is wrong.
        CourseError: if no exercise has this id.

    Example:
        >>> check_solution("12.3", (13, 2))
        ✓ 12.3: Right: a sum over 32 clients needs 13 bits, so two numbers fit into a word of 32 bits.
    """
    grade = _graded("check_solution", exercise, solution, evidence)
    if grade:
        _SOLUTIONS[exercise] = solution
    return grade


def right_answer(exercise: str) -> Any:
    """Returns the student's last right answer, or else the page's solution.

    Later cells in a notebook continue with this answer, so that they run the student's code.

    Args:
        exercise: The exercise's id.

    Returns:
        The last right answer that `check` received in this process, or the solution that `check_solution` received.

    Raises:
        CourseError: if neither function has received a right answer, or if no exercise has this id.

    Example:
        >>> right_answer("12.3")
        (13, 2)
    """
    _registered("right_answer", exercise)
    if exercise in _ANSWERS:
        return _ANSWERS[exercise]
    if exercise in _SOLUTIONS:
        return _SOLUTIONS[exercise]
    message = (
        f"`right_answer` received the exercise {exercise!r}, which has not been answered correctly yet. The cells "
        f"below continue with your answer. Answer {exercise}, run its cell, then run this cell again."
    )
    raise CourseError(message)


def _registered(function: str, exercise: str) -> Exercise:
    for group in _GROUPS:
        importlib.import_module(f"workbench.course.{group}")
    if exercise not in EXERCISES:
        near = difflib.get_close_matches(exercise, EXERCISES, n=3) or sorted(EXERCISES)[:3]
        message = (
            f"`{function}` received the exercise {exercise!r}, but no exercise has this id. An id is the notebook's "
            f"number, a dot and the number of the exercise: {', '.join(near)}. `workbench.course.exercises()` lists "
            "all ids."
        )
        raise CourseError(message)
    return EXERCISES[exercise]


def _graded(function: str, exercise: str, answer: object, evidence: tuple[object, ...]) -> Grade:
    registered = _registered(function, exercise)
    grader: Callable[..., str] = registered.grader
    if isinstance(answer, EllipsisType):
        return Grade(exercise=exercise, right=False, message=f"is waiting for your answer ({registered.task}).")
    try:
        message = grader(answer, *evidence)
    except WrongAnswerError as wrong:
        text = f"{exercise} is not right yet: {wrong}"
        raise WrongAnswerError(text) from wrong.__cause__
    except Exception as error:  # whatever an answer raises, the student sees one sentence
        text = f"{exercise} is not right yet: {_advice(error)}"
        raise WrongAnswerError(text) from error
    return Grade(exercise=exercise, right=True, message=f"Right: {message}")


def _advice(error: Exception) -> str:
    if isinstance(error, jax.errors.TracerArrayConversionError | jax.errors.ConcretizationTypeError):
        return (
            "JAX traces the function, and a traced value was used as a concrete number. Use `jax.numpy` instead of "
            "`numpy`, and `jnp.where` instead of `if`."
        )
    fact = " ".join(str(error).split())[:200]
    return (
        f"the answer could not be graded: {type(error).__name__}: {fact}. Check that every function returns the result "
        "that the exercise asks for, with the required shapes and types."
    )


def exercises() -> dict[str, str]:
    """The ids of all exercises, each with a short description of its task.

    Example:
        >>> exercises()["02.1"]
        'the variance over clients with two reductions'
    """
    for group in _GROUPS:
        importlib.import_module(f"workbench.course.{group}")
    return {name: EXERCISES[name].task for name in sorted(EXERCISES)}
