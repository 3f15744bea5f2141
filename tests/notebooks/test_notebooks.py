"""Every notebook runs from top to bottom in a fresh kernel, without errors and without warnings."""

import itertools
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from workbench import course

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_keeps_its_promises(path: Path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}})
    client.execute()  # raises with the failing cell; the last cell of every notebook asserts what its text claims
    if folder := os.environ.get("WORKBENCH_EXECUTED"):  # for `python -m benchmarks.notebook_pictures`
        nbformat.write(notebook, Path(folder) / path.name)
    said = [
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
        and ((output.name == "stderr" and "Warning" in output.text) or "view could not be made" in output.text)
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
        draws = cell.cell_type == "code" and re.match(r"figure;?$|fig;$|wb\.show\(", last)
        if draws and after.cell_type != "markdown":
            silent.append(cell.source)
    assert silent == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_lines_of_code_fit_into_a_page_and_a_slide(path: Path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [line for cell in cells for line in cell.source.splitlines() if len(line) > 88] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_exercise_has_a_check_and_a_solution_that_is_executed(path: Path):
    cells = nbformat.read(path, as_version=4).cells
    calls = {
        tag: [re.findall(r'course\.check\("([\d.]+)"', c.source) for c in cells if tag in c.metadata.get("tags", ())]
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
