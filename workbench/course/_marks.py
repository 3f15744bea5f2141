"""Marks a class: runs submitted notebooks and collects the grades from their checks."""

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from workbench.course._notebooks import execute, read
from workbench.errors import CourseError

Mark = Literal["right", "wrong", "open", "missing"]
CHECK = re.compile(r"""course\.check\(\s*["']([\d.]+)["']""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The marks for one submitted notebook.

    Attributes:
        student: The notebook's subfolder in the class folder, or else the file's name.
        notebook: The file's name.
        marks: Maps each exercise to "right", "wrong", "open" (the answer is still `...`) or "missing" (only other
            notebooks of the class have this exercise).
        error: The first error raised by a cell without a check; empty if there was no error.
        remarks: Messages of wrong answers, keyed by exercise.
    """

    student: str
    notebook: str
    marks: dict[str, Mark]
    error: str
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> int:
        """Number of right answers."""
        return sum(mark == "right" for mark in self.marks.values())


def grade_folder(
    folder: Path, *, seconds: int = 300, report: Callable[[str], None] = lambda line: None
) -> list[Submission]:
    """Runs all notebooks in a folder and collects the grades from their checks.

    Each notebook runs in a separate kernel on this machine, with the rights of this user: use a container for code that
    you do not trust. Stored outputs are not read. Only the results of `check` count.

    Args:
        folder: `STUDENT/NAME.ipynb` for each student, or notebooks without subfolders.
        seconds: The time limit for one cell in seconds; a cell that takes longer counts as wrong.
        report: Called with one line of text before each notebook runs.

    Returns:
        One submission for each notebook, sorted by student and name.

    Raises:
        CourseError: if the folder has no notebook.

    Example:
        >>> grade_folder(Path("no such folder"))
        Traceback (most recent call last):
        ...
        workbench.errors.CourseError: ...
    """
    paths = [path for path in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in path.parts]
    if not paths:
        message = (
            f"`grade_folder` received {str(folder)!r}, which has no notebook. Pass a folder with one subfolder for "
            "each student, or with notebooks."
        )
        raise CourseError(message)
    submissions = []
    for path in paths:
        place = path.relative_to(folder)
        report(f"running {place}")
        submissions.append(_graded(path, place.parts[0].removesuffix(".ipynb"), seconds))
    return _with_missing(submissions)


def _with_missing(submissions: Sequence[Submission]) -> list[Submission]:
    """Adds the mark "missing" for exercises that only other submissions of the same notebook have."""
    exercises = sorted({name for submission in submissions for name in submission.marks})
    completed = []
    for submission in submissions:
        numbers = {name.partition(".")[0] for name in submission.marks} or {submission.notebook[:2]}
        marks: dict[str, Mark] = {name: "missing" for name in exercises if name.partition(".")[0] in numbers}
        completed.append(replace(submission, marks=marks | submission.marks))
    return completed


def _graded(path: Path, student: str, seconds: int) -> Submission:
    try:
        notebook = read(path)
    except CourseError as error:
        return Submission(student=student, notebook=path.name, marks={}, error=_line(error))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    error = ""
    try:
        execute(notebook, path.parent, go_on=True, seconds=seconds)
    except Exception as raised:  # after a dead kernel or a timeout, earlier answers still count
        error = _line(raised)
    marks: dict[str, Mark] = {}
    remarks = {}
    for cell in code:
        names = CHECK.findall(cell.source)
        for name in names:
            marks[name] = _mark(cell, name)
            if marks[name] == "wrong":
                raised = [out for out in cell.outputs if out.output_type == "error"]
                remarks[name] = (
                    _short(raised[-1].evalue.removeprefix(f"{name} is not right yet: "))
                    if raised
                    else "the check was not reached"
                )
        if not names and not error:
            error = next((f"{out.ename}: {out.evalue[:120]}" for out in cell.outputs if out.output_type == "error"), "")
    return Submission(student=student, notebook=path.name, marks=marks, error=error, remarks=remarks)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {_short(str(error))}"


def _short(text: str) -> str:
    """The text in one line of at most 160 characters."""
    return textwrap.shorten(text, 160, placeholder=" …")


def _mark(cell: Any, exercise: str) -> Mark:
    results = [out.data.get("text/plain", "") for out in cell.outputs if out.output_type == "execute_result"]
    if any(text.startswith(f"✓ {exercise}: ") for text in results):
        return "right"
    return "open" if any(text.startswith(f"… {exercise}: ") for text in results) else "wrong"


def marks_as_csv(submissions: Sequence[Submission]) -> str:
    """Writes marks as a table: a row per notebook, a column per exercise, and columns for points and remarks.

    Args:
        submissions: The result of `grade_folder`.

    Returns:
        Comma-separated values, with a header.

    Example:
        >>> one = Submission(student="ada", notebook="08.ipynb", marks={"08.1": "right"}, error="")
        >>> print(marks_as_csv([one]))
        student,notebook,08.1,points,of,error,remarks
        ada,08.ipynb,right,1,1,,
        <BLANKLINE>
    """
    import csv
    import io

    exercises = sorted({name for submission in submissions for name in submission.marks})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["student", "notebook", *exercises, "points", "of", "error", "remarks"])
    for submission in submissions:
        marks = [submission.marks.get(name, "") for name in exercises]
        remarks = " | ".join(f"{name}: {text}" for name, text in submission.remarks.items())
        table.writerow(
            [
                submission.student,
                submission.notebook,
                *marks,
                submission.points,
                len(submission.marks),
                submission.error,
                remarks,
            ]
        )
    return text.getvalue()
