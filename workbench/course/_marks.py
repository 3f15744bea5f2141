"""Marks a class: runs submitted notebooks and collects the grades from their checks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workbench.course._notebooks import execute, read
from workbench.errors import CourseError

Mark = Literal["right", "wrong", "open"]
CHECK = re.compile(r"""course\.check\(\s*["']([\d.]+)["']""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The marks for one submitted notebook.

    Attributes:
        student: The notebook's subfolder in the class folder, or else the file's name.
        notebook: The file's name.
        marks: Keyed by exercise: "right", "wrong", or "open" if the answer is still `...`.
        error: The first error raised by a cell without a check; empty if there was no error.
    """

    student: str
    notebook: str
    marks: dict[str, Mark]
    error: str

    @property
    def points(self) -> int:
        """Number of right answers."""
        return sum(mark == "right" for mark in self.marks.values())


def grade_folder(
    folder: Path, *, seconds: int = 300, report: Callable[[str], None] = lambda line: None
) -> list[Submission]:
    """Runs all notebooks in a folder and collects the grades from their checks.

    Each notebook runs in a separate kernel on this machine, with the rights of this user: use a container for code that
    you do not trust. Stored outputs are not read. Only results of `check` count, not printed text.

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
    return submissions


def _graded(path: Path, student: str, seconds: int) -> Submission:
    notebook = read(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.outputs, cell.execution_count = [], None
    error = ""
    try:
        execute(notebook, path.parent, go_on=True, seconds=seconds)
    except Exception as raised:  # after a dead kernel or a timeout, earlier answers still count
        error = f"{type(raised).__name__}: {' '.join(str(raised).split())[:120]}"
    marks: dict[str, Mark] = {}
    for cell in code:
        names = CHECK.findall(cell.source)
        for name in names:
            marks[name] = _mark(cell, name)
        if not names and not error:
            error = next((f"{out.ename}: {out.evalue[:120]}" for out in cell.outputs if out.output_type == "error"), "")
    return Submission(student=student, notebook=path.name, marks=marks, error=error)


def _mark(cell: Any, exercise: str) -> Mark:
    results = [out.data.get("text/plain", "") for out in cell.outputs if out.output_type == "execute_result"]
    if any(text.startswith(f"✓ {exercise}: ") for text in results):
        return "right"
    return "open" if any(text.startswith(f"… {exercise}: ") for text in results) else "wrong"


def marks_as_csv(submissions: Sequence[Submission]) -> str:
    """Writes marks as a table with a line for each notebook, a column for each exercise, and the points.

    Args:
        submissions: The result of `grade_folder`.

    Returns:
        Comma-separated values, with a header.

    Example:
        >>> one = Submission(student="ada", notebook="08.ipynb", marks={"08.1": "right"}, error="")
        >>> print(marks_as_csv([one]))
        student,notebook,08.1,points,error
        ada,08.ipynb,right,1,
        <BLANKLINE>
    """
    import csv
    import io

    exercises = sorted({name for submission in submissions for name in submission.marks})
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["student", "notebook", *exercises, "points", "error"])
    for submission in submissions:
        table.writerow(
            [
                submission.student,
                submission.notebook,
                *(submission.marks.get(name, "") for name in exercises),
                submission.points,
                submission.error,
            ]
        )
    return text.getvalue()
