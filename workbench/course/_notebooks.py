"""Handles notebook files: titles, editions without solutions, and cached execution."""

import hashlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from workbench._cache import DiskCache, cache_directory
from workbench.errors import CourseError, MissingDependencyError, needs_library

FOLDED = re.compile(r" ?The solution is in the folded cell below it\.")
CHECK = re.compile(r"^(wb\.course\.check\(\"([\d.]+)\".*\))$", re.MULTILINE)
Grader = Literal["nbgrader", "otter"]
KEPT = "yours, or the solution's"
SETUP = re.compile(r'"try:\\n",\s*"    import ([\w, ]+)\\n"')  # a notebook's first cell imports the libraries it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """Number, question and minutes (0: not stated) of a notebook."""

    number: str
    question: str
    minutes: int


def title_of(path: Path) -> Title:
    """Reads the question from a notebook's first cell, and the minutes from its first four cells."""
    opening = "\n".join(cell.source for cell in read(path).cells[:4])
    minutes = re.search(r"\*\*Time\.\*\* (?:About )?(\d+) minutes", opening)
    return Title(
        number=path.stem.partition("-")[0],
        question=opening.partition("\n")[0].removeprefix("# "),
        minutes=int(minutes[1]) if minutes else 0,
    )


def read(path: Path) -> Any:
    """Reads a notebook with nbformat.

    Raises:
        CourseError: if the file is not a notebook.
    """
    with needs_library("nbformat", needed_for="`workbench course`", extra="course-pages"):
        import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, AttributeError, nbformat.ValidationError) as error:
        message = f"`workbench course` received {str(path)!r}, which is not a notebook: {type(error).__name__}."
        raise CourseError(message) from error


def execute(notebook: Any, folder: Path, *, go_on: bool = False, seconds: int = 900) -> None:
    """Runs all cells of a notebook in a new kernel, and writes the outputs into the notebook."""
    with needs_library("nbclient", needed_for="`workbench course`", extra="course-pages"):
        from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=seconds,
        allow_errors=go_on,
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
        extra_arguments=["--log-level=ERROR"],  # not a warning about TCP for each notebook
    )
    client.execute()


def _execute_all(notebook: Any, path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    try:
        execute(notebook, path.parent)
    except CellExecutionError as error:
        arrows = re.findall(r"^-+> *\d+ +(.*)$", re.sub(r"\x1b\[[\d;]*m", "", error.traceback), re.MULTILINE)
        place = f" at `{arrows[-1].strip()}`" if arrows else ""
        message = (
            f"`workbench course` executed {path.name}, and a cell raised {error.ename}{place}: {error.evalue}\n"
            "A page needs the outputs of all cells. Fix the cause and run the same command again, which continues with "
            "this notebook; or pass `--no-outputs`."
        )
        raise CourseError(message) from error


def _key(path: Path) -> str:
    """A hash of what determines a notebook's outputs: its cells, Python, this package and all installed versions."""
    packages = (Path(str(resources.files(name))) for name in ("workbench", "workbench_widgets"))
    endings = "*.py", "*.npz", "*.js", "*.css"
    files = sorted(file for package in packages for ending in endings for file in package.rglob(ending))
    libraries = sorted(f"{library.name} {library.version}" for library in importlib.metadata.distributions())
    versions = f"{path.resolve()} {sys.version} {libraries}".encode()
    return hashlib.sha256(b"".join([versions, *(file.read_bytes() for file in (path, *files))])).hexdigest()


def executed(path: Path, report: Callable[[str], None] = lambda line: None) -> Any:
    """Returns a notebook with outputs, which are cached on disk; pages and slides share this cache."""
    import nbformat

    cache, key = DiskCache(cache_directory("notebooks")), _key(path)
    if (stored := cache.load(key)) is not None:
        return nbformat.from_dict(stored)
    report(f"executing {path.name}")
    notebook = read(path)
    _execute_all(notebook, path)
    if note := cache.store(key, notebook):
        report(note)
    return notebook


def require_libraries(notebooks: Iterable[Path], *pages: str) -> None:
    """Checks the libraries of the pages and of all notebooks, before the notebooks run for several minutes.

    Args:
        notebooks: The `.ipynb` files that will run.
        pages: The modules that the pages need.
    """
    setups = [SETUP.search(path.read_text(encoding="utf-8", errors="replace")) for path in notebooks if path.is_file()]
    modules = [*pages, *(name for setup in setups if setup for name in setup[1].split(", "))]
    for module in dict.fromkeys(modules):
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(module, extra="course,course-pages", needed_for="`workbench course`")


def write_students(notebooks: Iterable[Path], folder: Path, *, grader: Grader | None = None) -> list[Path]:
    """Writes notebooks without solutions; the cells for answers and for their checks remain.

    Args:
        notebooks: The `.ipynb` files.
        folder: The folder to write to; files of the same name are replaced.
        grader: Grader for which to write source notebooks; each check becomes a one-point test. None writes
            plain notebooks.

    Returns: The files that were written.

    Raises:
        CourseError: if a file is not a notebook.

    Example:
        >>> write_students([], Path("students"))
        []
    """
    written = []
    for path in notebooks:
        notebook = read(path)
        notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", ())]
        for cell in notebook.cells:
            cell.source = FOLDED.sub("", cell.source).replace(KEPT, "your right answer")
        if grader:
            notebook.cells = [part for cell in notebook.cells for part in _graded(cell, grader)]
        if grader == "otter":  # there is no solution to test
            notebook.cells.insert(0, _raw(f"# ASSIGNMENT CONFIG\nname: {path.stem}\nrun_tests: false\nfiles: []"))
        folder.mkdir(parents=True, exist_ok=True)
        import nbformat

        nbformat.write(notebook, folder / path.name)
        written.append(folder / path.name)
    return written


def _graded(cell: Any, grader: Grader) -> list[Any]:
    """Converts an answer cell to grader cells: one for the student, one with the test."""
    if "exercise" not in cell.metadata.get("tags", ()):
        return [cell]
    import nbformat

    written, check = CHECK.split(cell.source)[0], CHECK.search(cell.source)
    if check is None:
        return [cell]
    name = check[2].replace(".", "-")
    cell.source = written.rstrip()
    test = nbformat.v4.new_code_cell(f"assert {check[1]}", id=f"check-{name}")
    test.metadata.tags = ["check"]
    if grader == "otter":
        place = name.replace("-", "_")
        # Otter runs all tests after the last cell, so each answer needs a unique name. From a solution, Otter keeps the
        # unmarked lines and replaces each marked line with `answer = ...`.
        marked = re.sub(r"^answer = \.\.\.( *#.*)?$", r"\1\nanswer = ...  # SOLUTION", cell.source, flags=re.M)
        cell.source = re.sub(r"\banswer\b", f"answer_{place}", marked).strip()
        test.source = re.sub(r"\banswer\b", f"answer_{place}", test.source)
        question = f"# BEGIN QUESTION\nname: q{place}\npoints: 1"
        begun = [_raw(question), _raw("# BEGIN SOLUTION"), cell, _raw("# END SOLUTION")]
        return [*begun, _raw("# BEGIN TESTS"), test, _raw("# END TESTS"), _raw("# END QUESTION")]
    cell.metadata.nbgrader = _role(f"answer-{name}", solution=True)
    test.metadata.nbgrader = _role(f"check-{name}", grade=True, points=1)
    return [cell, test]


def _raw(text: str) -> Any:
    import nbformat

    return nbformat.v4.new_raw_cell(text)


def _role(name: str, *, grade: bool = False, solution: bool = False, **more: int) -> dict[str, Any]:
    """The nbgrader metadata for a cell."""
    roles = {"grade": grade, "solution": solution, "locked": not solution, "task": False}
    return {"grade_id": name, "schema_version": 3, **roles, **more}
