"""Grades: right answers pass, wrong ones are refused with a hint, and communication counts."""

import re
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from course_answers import PLAIN, RIGHT, WRONG, evidence_of
from course_cheats import CHEATS

import workbench as wb
from workbench import course
from workbench.course._grading import EXERCISES as EXERCISES_BY_ID
from workbench.errors import CourseError, WrongAnswerError


def test_right_answer_gives_a_true_grade():
    grade = course.check("12.3", (13, 2))
    assert grade
    assert (grade.exercise, grade.right) == ("12.3", True)
    assert repr(grade).startswith("✓ 12.3: Right")


def test_open_answer_gives_a_false_grade():
    grade = course.check("12.3", ...)
    assert not grade
    assert "bits per number" in grade.message


def test_wrong_answer_is_an_assertion_error_with_a_hint():
    with pytest.raises(AssertionError, match=r"12\.3 is not right yet: the count per word is 3\. How many numbers"):
        course.check("12.3", (13, 3))


def test_unknown_exercise_is_refused_with_ids_that_exist():
    with pytest.raises(CourseError, match=r"received the exercise '12\.33'.*12\.3"):
        course.check("12.33", 1)


def test_error_of_a_students_function_is_the_cause():
    with pytest.raises(WrongAnswerError, match="failed: division by zero") as caught:
        course.check("00.1", lambda tree: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


EXERCISES = sorted(course.exercises())


def test_the_table_has_answers_to_all_exercises():
    assert sorted(RIGHT) == sorted(WRONG) == EXERCISES


@pytest.fixture
def compiled_as_graded(request, exercise):
    """Compiles with few options of XLA, except for graders that may read the compiled program."""
    if "compiled" not in EXERCISES_BY_ID[exercise].grader.__globals__:
        request.getfixturevalue("little_optimized")


@pytest.mark.usefixtures("compiled_as_graded")
@pytest.mark.parametrize("exercise", EXERCISES)
def test_right_alternatives_are_right(exercise):
    with jax.numpy_rank_promotion("allow"):
        for answer in RIGHT[exercise]:
            assert course.check(exercise, answer, *evidence_of(exercise))


@pytest.mark.usefixtures("compiled_as_graded")
@pytest.mark.parametrize("exercise", EXERCISES)
def test_answers_that_look_right_are_refused_with_a_fact(exercise):
    for answer, fact in WRONG[exercise]:
        with jax.numpy_rank_promotion("allow"), pytest.raises(WrongAnswerError, match=fact):
            course.check(exercise, answer, *evidence_of(exercise))


@pytest.mark.usefixtures("little_optimized")
@pytest.mark.parametrize("exercise", PLAIN)
def test_no_program_no_credit(exercise):
    with jax.numpy_rank_promotion("allow"), pytest.raises(WrongAnswerError, match="no program over"):
        course.check(exercise, PLAIN[exercise])


def test_exercises_lists_ids_in_order():
    names = list(course.exercises())
    assert names == sorted(names)
    assert np.all([len(task) < 120 for task in course.exercises().values()])


NO_ANSWERS = {
    "None": None,
    "a function without a return": lambda *args: None,
    "a word": "nonsense",
    "a number": 3.7,
    "two Nones": (None, None),
    "a function that fails": lambda *args: {}["no such key"],
    "a function that returns its first argument": lambda first=None, *rest: first,
}


@pytest.mark.usefixtures("little_optimized")
@pytest.mark.parametrize("exercise", EXERCISES)
def test_what_is_no_answer_is_refused_with_a_sentence(exercise):
    for name, answer in NO_ANSWERS.items():
        with pytest.raises(WrongAnswerError, match=rf"^{exercise} is not right yet: ") as caught:
            course.check(exercise, answer, *evidence_of(exercise))
        assert "Traceback" not in str(caught.value), name


@pytest.mark.usefixtures("little_optimized")
@pytest.mark.parametrize("exercise", ["02.1", "02.2", "12.5", "03.1"])
def test_a_program_whose_server_reads_the_raw_data_gets_no_credit(exercise):
    clients = 8 if exercise == "12.5" else 4

    def wrapped(*args):
        with wb.program(clients=clients):
            return PLAIN[exercise](*args) + 0 * wb.reduce_sum(jnp.ones(clients))

    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(WrongAnswerError, match="reads the clients' own data"),
    ):
        course.check(exercise, wrapped)


CLIENTS = dict.fromkeys(PLAIN, 4) | {"01.3": 64, "10.3": 8, "12.5": 8, "26.1": 8, "26.3": 8}


@pytest.mark.usefixtures("little_optimized")
@pytest.mark.parametrize("number", range(len(CHEATS)))
@pytest.mark.parametrize("exercise", PLAIN)
def test_a_program_that_reads_the_rows_of_all_clients_gets_no_credit(exercise, number):
    cheat, fact = list(CHEATS.items())[number]
    with jax.numpy_rank_promotion("allow"), pytest.raises(WrongAnswerError) as caught:
        course.check(exercise, cheat(PLAIN[exercise], CLIENTS[exercise]))
    assert exercise != "02.1" or re.search(fact, str(caught.value)), str(caught.value)


def test_a_solution_never_replaces_the_readers_answer(monkeypatch):
    monkeypatch.setattr("workbench.course._check._ANSWERS", {})
    monkeypatch.setattr("workbench.course._check._SOLUTIONS", {})
    with pytest.raises(CourseError, match=r"'12\.1', which has not been answered correctly yet.*Answer 12\.1"):
        course.right_answer("12.1")
    first, second = RIGHT["12.1"][0], lambda update, limit: RIGHT["12.1"][0](update, limit)
    course.check_solution("12.1", second)
    assert course.right_answer("12.1") is second
    course.check("12.1", first)
    course.check_solution("12.1", second)
    assert course.right_answer("12.1") is first
    with pytest.raises(WrongAnswerError):
        course.check("12.1", lambda update, limit: update)
    assert course.right_answer("12.1") is first


def test_check_keeps_the_users_memory_trace() -> None:
    answer = RIGHT["31.3"][1]  # in NumPy, so the check measures its memory
    tracemalloc.start()
    try:
        course.check("31.3", answer)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
