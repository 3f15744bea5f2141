"""Every notebook runs from top to bottom in a fresh kernel, without errors and without warnings."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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
        if output.output_type == "stream" and output.name == "stderr" and "Warning" in output.text
    ]
    assert said == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_short_asks_first_and_checks_last(path: Path):
    cells = nbformat.read(path, as_version=4).cells
    assert len(cells) <= 25
    assert cells[0].cell_type == "markdown"
    assert "?" in cells[0].source
    assert cells[-1].cell_type == "code"
    assert "assert " in cells[-1].source
    too_long = [cell.source for cell in cells if cell.cell_type == "code" and len(cell.source.splitlines()) > 12]
    assert too_long == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
