"""No view shows a file that only an untrusted module names."""

import json
from pathlib import Path

import pytest
from workbench_widgets._hlo import hlo_state
from workbench_widgets._source import read_source

import workbench as wb
from workbench.inspection import inspect_module
from workbench.records.compiled import ProgramRecord
from workbench.records.program import SourceLine

HLO = """HloModule evil, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

FileNames
1 "PATH"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=2 end_line=2 column=0 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY main (x: f32[4]) -> f32[4] {
  x = f32[4]{0} parameter(0)
  ROOT y = f32[4]{0} add(x, x), metadata={op_name="y" source_file="PATH" source_line=2 stack_frame_id=1}
}
"""


SECRET = " ".join(("correct", "horse"))  # not written out: this file's own text is in the view


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private Python file beside the working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "private.py"
    path.write_text(f"# notes\npassword = '{SECRET}'\n")
    return path


def _record(path: str) -> ProgramRecord:
    module = inspect_module(HLO.replace("PATH", path))
    assert any(each.source is not None and each.source.file == path for each in module.instructions)
    return wb.inspect(lambda x: x)(1.0).replace(module=module)


def test_hlo_view_does_not_show_a_file_that_the_module_names(secret: Path):
    state, _ = hlo_state(_record(str(secret)))
    assert SECRET not in json.dumps(state)


def test_source_panel_does_not_show_a_file_that_the_module_names(secret: Path):
    assert read_source(SourceLine(file=str(secret), line=2, function="f")) == []


def test_hlo_view_of_a_device_as_source_ends(secret: Path):
    assert "/dev/zero" not in [file for file, *_ in hlo_state(_record("/dev/zero"))[0]["code"]]
