import base64
import gzip
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import nbformat
import pytest
import workbench_widgets
from nbclient import NotebookClient
from records_examples import fedavg_record, gradient_record
from workbench_widgets._bundle import LABEXTENSION, labextension_files
from workbench_widgets._saved import SAVED

import workbench as wb
from workbench.render import css_variables

BASE64 = re.compile(r'"wb-base64": "([^"]*)"')
NOTEBOOK = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
import records_examples as examples, workbench_widgets
workbench_widgets.Explorer(examples.fedavg_record())"""


def outputs_of(view: workbench_widgets.WorkbenchWidget) -> dict:
    made = view._repr_mimebundle_()
    assert made is not None
    return made[0]


def test_output_holds_the_state_of_the_view_for_readers_without_a_kernel() -> None:
    view = workbench_widgets.Explorer(fedavg_record())
    saved = outputs_of(view)[SAVED]
    assert saved["model"] == view.model_id
    state = json.loads(gzip.decompress(base64.b64decode(saved["state"])))
    assert state["view"] == "explorer"
    assert state["state"]["data"]["title"] == view.record.name


def test_what_leaves_the_machine_with_a_view_names_no_folder_of_it() -> None:
    """The page, and the state in a notebook, decoded; both hold the user's code and every line of the HLO."""
    program = wb.program(clients=4)(lambda x: wb.reduce_mean(wb.map_fn(lambda row: row @ row, x)))
    view = wb.explore(program)(jnp.ones((4, 8)))
    packed = json.loads(gzip.decompress(base64.b64decode(outputs_of(view)[SAVED]["state"])))
    texts = [view.to_html(), json.dumps(packed)]
    texts += [base64.b64decode(found).decode(errors="replace") for found in BASE64.findall(texts[1])]
    assert Path(__file__).name in texts[0]
    for folder in (Path(__file__).parents[2], Path(jax.__file__).parents[1], Path.home()):
        assert not [text for text in texts if f"{folder}/" in text]


def test_page_of_compiled_module_has_the_code_of_its_files() -> None:
    program = wb.program(clients=4)(lambda x: wb.reduce_mean(wb.map_fn(lambda row: row @ row, x)))
    page = workbench_widgets.HloView(wb.inspect(program)(jnp.ones((4, 8)))).to_html()
    code = page.partition("<summary>The code</summary>")[2]
    assert "def test_page_of_compiled_module_has_the_code_of_its_files() -&gt; None:" in code


def test_state_that_is_too_large_for_a_notebook_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench_widgets._saved.MOST_BYTES", 100)
    assert SAVED not in outputs_of(workbench_widgets.Explorer(gradient_record()))


def test_dock_is_part_of_the_output_and_other_places_are_refused() -> None:
    assert outputs_of(workbench_widgets.Explorer(fedavg_record(), dock="right"))[SAVED]["dock"] == "right"
    with pytest.raises(ValueError, match="dock='left'"):
        workbench_widgets.Explorer(fedavg_record(), dock="left")  # pyright: ignore[reportArgumentType]


def test_labextension_has_the_colours_of_the_views_and_every_part_of_the_front_end() -> None:
    wanted = (LABEXTENSION / "static" / "theme.css").read_text()
    assert wanted == f"{css_variables()}\n", (
        'write it anew: python -c "from workbench_widgets._bundle import write_theme; write_theme()"'
    )
    names = {file.name for file in labextension_files()}
    assert {"lab.js", "theme.css", "styles.css", "workbench.js", "editor.js"} <= names
    assert all(file.is_file() for file in labextension_files())


@pytest.mark.notebook
def test_program_that_runs_a_notebook_gets_a_page_instead_of_a_widget(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    data = notebook.cells[0].outputs[0].data
    assert "application/vnd.jupyter.widget-view+json" not in data
    assert 'class="wb-savedview"' in data["text/html"]
    assert "<img" in data["text/html"]  # what stays where scripts are taken out
