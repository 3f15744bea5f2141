"""The entry of the course: looks an exercise up, lets its grader look at the answer, and says what was found."""

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType

import jax

from workbench.course._grading import EXERCISES
from workbench.errors import CourseError, WrongAnswerError

_GROUPS = ("_basics", "_systems", "_learning", "_guarantees", "_parallelism")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What `check` found; true if the answer is right.

    Attributes:
        exercise: The exercise's id, such as `"09.2"`.
        right: Whether the answer is right. False only for an exercise without an answer (`...`).
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

    A function is called, traced and, where the exercise limits communication, compiled: the grade covers its values,
    its stages and the bytes it sends.

    Args:
        exercise: The exercise's id: the number of the notebook, a point, the number of the exercise.
        answer: The student's answer; `...` means not answered yet.
        evidence: What the exercise asks for next to the answer, such as the record it was read from.

    Returns:
        A true `Grade`, or a false one where the answer is `...`.

    Raises:
        WrongAnswerError: with what differs and a hint. It is an `AssertionError`.
        CourseError: for an id that no exercise has.

    Example:
        >>> check("12.3", (13, 2))
        ✓ 12.3: Right: 13 bits for a sum over 32 clients, two numbers in a word of 32 bits.
        >>> bool(check("12.3", ...))
        False
    """
    for group in _GROUPS:
        importlib.import_module(f"workbench.course.{group}")
    if exercise not in EXERCISES:
        near = difflib.get_close_matches(exercise, EXERCISES, n=3) or sorted(EXERCISES)[:3]
        message = (
            f"`check` received the exercise {exercise!r}. No exercise has this id. An id is the notebook's number, "
            f"a point and the number of the exercise: {', '.join(near)}. `workbench.course.exercises()` lists all."
        )
        raise CourseError(message)
    grader: Callable[..., str] = EXERCISES[exercise].grader
    if isinstance(answer, EllipsisType):
        return Grade(exercise=exercise, right=False, message=f"waits for your answer ({EXERCISES[exercise].task}).")
    try:
        message = grader(answer, *evidence)
    except WrongAnswerError as wrong:
        text = f"{exercise} is not right yet: {wrong}"
        raise WrongAnswerError(text) from wrong.__cause__
    except Exception as error:  # whatever an answer does, the student reads a sentence
        text = f"{exercise} is not right yet: {_advice(error)}"
        raise WrongAnswerError(text) from error
    return Grade(exercise=exercise, right=True, message=f"Right: {message}")


def _advice(error: Exception) -> str:
    if isinstance(error, jax.errors.TracerArrayConversionError | jax.errors.ConcretizationTypeError):
        return (
            "JAX traces the function, and a value without a number was used as one. Use `jax.numpy` instead of "
            "`numpy`, and `jnp.where` instead of `if`."
        )
    fact = " ".join(str(error).split())[:200]
    return (
        f"the answer could not be graded: {type(error).__name__}: {fact}. Look whether every function returns what the "
        "exercise asks for, and whether shapes and types are those of the task."
    )


def exercises() -> dict[str, str]:
    """The ids of all exercises, each with its task in a few words.

    Example:
        >>> exercises()["02.1"]
        'the variance over clients with two reductions'
    """
    for group in _GROUPS:
        importlib.import_module(f"workbench.course.{group}")
    return {name: EXERCISES[name].task for name in sorted(EXERCISES)}
