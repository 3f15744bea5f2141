"""Files of the reader's own beside a notebook do not get in the way of the workbench, whatever they are called."""

from pathlib import Path

import pytest

import workbench

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

CELL = """
import widgets, mesh, records, my_workbench, workbench as wb
import jax.numpy as jnp
assert widgets.mine and mesh.mine and records.mine and my_workbench.mine

@wb.program(clients=2)
def total(x):
    return wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x))

wb.show(total)(jnp.arange(2.0))
"""
# The folder of a notebook comes first on its kernel's path. These are the names of our own packages.
NAMES = sorted({path.stem for path in Path(workbench.__file__).parent.iterdir() if path.stem.isidentifier()})


@pytest.mark.notebook
@pytest.mark.slow
def test_modules_next_to_a_notebook_are_not_mistaken_for_ours(tmp_path: Path):
    ours = {"__init__", "__main__", "__pycache__"}
    for name in {"widgets", "my_workbench", *NAMES} - ours:
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    (shown,) = [each for each in notebook.cells[0].outputs if each.output_type != "stream"]
    assert shown.data["text/plain"].startswith("Program total")
