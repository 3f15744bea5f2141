"""Every notebook runs in a fresh kernel, with right answers of a reader, without errors and without warnings."""

import copy
import itertools
import os
import re
import symtable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from workbench import course

TESTS = Path(__file__).parents[1]
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def with_answers(notebook) -> None:
    """Writes right answers into the cells for them, which are not the page's solutions."""
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", ()):
            (name,) = re.findall(r'course\.check\("([\d.]+)"', cell.source)
            given = f"import sys\nsys.path.append({str(TESTS)!r})\nfrom course_answers import RIGHT\n"
            answered = f"{given}answer = RIGHT[{name!r}][0]".replace("\\", r"\\")
            cell.source = re.sub(r"answer = \.\.\..*", answered, cell.source)


def without_answers(notebook, asked):
    """A copy of an executed notebook that asks its exercises again: the tests' answers and their grades are removed."""
    notebook = copy.deepcopy(notebook)
    for cell, original in zip(notebook.cells, asked.cells, strict=True):
        if "exercise" in cell.metadata.get("tags", ()):
            cell.source, cell.outputs = original.source, []
    return notebook


def test_pages_of_executed_notebooks_ask_their_exercises():
    asked = nbformat.read(NOTEBOOKS[0], as_version=4)
    answered = copy.deepcopy(asked)
    with_answers(answered)
    assert any("course_answers" in cell.source for cell in answered.cells)
    assert [cell.source for cell in without_answers(answered, asked).cells] == [cell.source for cell in asked.cells]


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_keeps_its_promises(path: Path):
    notebook = nbformat.read(path, as_version=4)
    with_answers(notebook)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    client.execute()  # raises with the failing cell; the last cell of every notebook asserts what its text claims
    if folder := os.environ.get("WORKBENCH_EXECUTED"):  # for the site and `python -m benchmarks.notebook_pictures`
        nbformat.write(without_answers(notebook, nbformat.read(path, as_version=4)), Path(folder) / path.name)
    said = [
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
        and ((output.name == "stderr" and "Warning" in output.text) or "view could not be created" in output.text)
    ]
    assert said == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_asks_first_and_asserts_last(path: Path):
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert "?" in cells[0].source
    assert cells[-1].cell_type == "code"
    assert "assert " in cells[-1].source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_states_objectives_prerequisites_and_time(path: Path):
    opening = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells[:4])
    assert [word for word in ("**Objectives.**", "**Prerequisites.**", "**Time.**") if word not in opening] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_figure_is_followed_by_what_to_see(path: Path):
    cells = nbformat.read(path, as_version=4).cells
    silent = []
    for cell, after in itertools.pairwise(cells):
        last = cell.source.splitlines()[-1] if cell.source else ""
        draws = re.search(r"^(figure|fig|explorer|played);?$|\b(PlayerView|SVG|plot|show)\(|\.(figure|play)\(", last)
        shares_slide = after.metadata.get("slideshow", {}).get("slide_type", "-") == "-"
        if cell.cell_type == "code" and draws and not (after.cell_type == "markdown" and shares_slide):
            silent.append(cell.source)
    assert silent == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_one_figure_is_the_notebooks_picture(path: Path):
    cards = [cell.metadata.card for cell in nbformat.read(path, as_version=4).cells if "card" in cell.metadata]
    assert [set(card) - {"shows", "panel"} for card in cards] == [set()]
    assert cards[0].get("panel", "left") in {"left", "right"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lines_of_code_fit_into_a_page_and_a_slide(path: Path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [line for cell in cells for line in cell.source.splitlines() if len(line) > 88] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_exercise_has_a_check_and_a_solution_that_is_executed(path: Path):
    cells = nbformat.read(path, as_version=4).cells
    calls = {
        tag: [
            re.findall(r'course\.check(?:_solution)?\("([\d.]+)"', c.source)
            for c in cells
            if tag in c.metadata.get("tags", ())
        ]
        for tag in ("exercise", "solution")
    }
    asked, solved = ([name for names in calls[tag] for name in names] for tag in ("exercise", "solution"))
    assert asked == solved == sorted(asked)  # numbered in the order of the page
    assert set(asked) <= course.exercises().keys()


def test_every_check_belongs_to_an_exercise_of_a_notebook():
    text = "".join(path.read_text() for path in NOTEBOOKS)
    assert [name for name in course.exercises() if f'course.check(\\"{name}\\"' not in text] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


def global_names(source: str) -> tuple[set[str], set[str]]:
    """The global names that a cell assigns, and those that it reads, inside its functions too."""
    table = symtable.symtable(source, "cell", "exec")
    assigned = {name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported()}
    read, scopes = {name.get_name() for name in table.get_symbols() if name.is_referenced()}, [*table.get_children()]
    while scopes:
        scope = scopes.pop()
        read |= {name.get_name() for name in scope.get_symbols() if name.is_global() and name.is_referenced()}
        scopes += scope.get_children()
    return assigned, read


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_cell_needs_a_solution(path: Path):
    of_solutions: set[str] = set()
    of_others: set[str] = set()
    needed = []
    for cell in nbformat.read(path, as_version=4).cells:
        tags = cell.metadata.get("tags", ())
        if cell.cell_type != "code" or re.search(r"^\s*%%?[a-z]", cell.source, flags=re.MULTILINE):
            continue
        assigned, read = global_names(cell.source)
        if "solution" in tags:
            of_solutions |= assigned - of_others
        else:
            of_others |= assigned
            needed += sorted(read & (of_solutions - of_others))
    assert needed == []


@pytest.mark.notebook
@pytest.mark.slow
def test_students_get_notebooks_without_solutions_that_run(tmp_path: Path):
    (path,) = [path for path in NOTEBOOKS if path.stem.startswith("04-")]
    (written,) = course.write_students([path], tmp_path)
    notebook = nbformat.read(written, as_version=4)
    assert "olution" not in "".join(cell.source for cell in notebook.cells)
    with_answers(notebook)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nbgrader_finds_a_point_for_each_exercise(path: Path, tmp_path: Path):
    cells = nbformat.read(path, as_version=4).cells
    asked = [cell.source for cell in cells if "exercise" in cell.metadata.get("tags", ())]
    (written,) = course.write_students([path], tmp_path, grader="nbgrader")
    notebook = nbformat.read(written, as_version=4)
    nbformat.validate(notebook)
    roles = [(cell, cell.metadata.nbgrader) for cell in notebook.cells if "nbgrader" in cell.metadata]
    answers = [cell.source for cell, role in roles if role.solution and not role.locked and not role.grade]
    tests = [cell.source for cell, role in roles if role.grade and role.locked and role.points == 1]
    assert len(answers) == len(tests) == len(asked) == len(roles) / 2
    assert len({role.grade_id for _, role in roles}) == len(roles)
    for whole, answer, test in zip(asked, answers, tests, strict=True):
        assert whole.split() == [*answer.split(), *test.removeprefix("assert ").split()]  # nothing lost, nothing twice


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_otter_finds_a_question_with_its_own_answer_for_each_exercise(path: Path, tmp_path: Path):
    cells = nbformat.read(path, as_version=4).cells
    asked = [cell.source for cell in cells if "exercise" in cell.metadata.get("tags", ())]
    (written,) = course.write_students([path], tmp_path, grader="otter")
    notebook = nbformat.read(written, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].source.startswith("# ASSIGNMENT CONFIG")
    begun = [at for at, cell in enumerate(notebook.cells) if cell.source.startswith("# BEGIN QUESTION")]
    assert len(begun) == len(asked)
    names = set()
    for at, whole in zip(begun, asked, strict=True):
        inside = [cell.source for cell in notebook.cells[at + 1 : at + 8]]
        assert [inside[0], *inside[2:4], *inside[5:7]] == [
            "# BEGIN SOLUTION", "# END SOLUTION", "# BEGIN TESTS", "# END TESTS", "# END QUESTION",
        ]  # fmt: skip
        answer, test = inside[1], inside[4]
        (name,) = re.findall(r"^(answer_\w+) = \.\.\.  # SOLUTION$", answer, re.MULTILINE)
        assert name in test.removeprefix("assert ")
        assert sorted(whole.split()) == sorted(
            f"{answer} {test.removeprefix('assert ')}".replace(name, "answer").replace("# SOLUTION", "").split()
        )
        names.add(name)
    assert len(names) == len(asked)
