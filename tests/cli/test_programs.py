"""`workbench inspect` and `workbench compare` on files."""

import json

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.cli import main


@pytest.fixture
def files(tmp_path):
    programs = {"once": lambda x: x @ x, "twice": lambda x: x @ x @ x}
    for name, fn in programs.items():
        (tmp_path / f"{name}.hlo").write_text(jax.jit(fn).lower(jnp.ones((8, 8))).compile().as_text())
    return tmp_path / "once.hlo", tmp_path / "twice.hlo"


def test_inspect_prints_totals_and_what_is_missing(files, capsys):
    assert main(["inspect", str(files[0])]) == 0
    said = capsys.readouterr().out
    assert "1.02 kFLOP" in said
    assert "read from the text of a compiled module" in said


def test_inspect_prints_json_that_is_a_record(files, capsys):
    assert main(["inspect", str(files[0]), "--json"]) == 0
    assert wb.records.compiled.ProgramRecord.from_json(capsys.readouterr().out).module.flops == 2 * 8**3


def test_inspect_of_a_missing_file_fails_and_names_it(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing.hlo")]) == 1
    assert "nothing.hlo" in capsys.readouterr().err


def test_compare_prints_what_differs(files, capsys):
    assert main(["compare", *map(str, files)]) == 0
    assert "1.02 kFLOP → 2.05 kFLOP" in capsys.readouterr().out


def test_compare_checks_and_prints_json(files, capsys):
    assert main(["compare", *map(str, files), "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["record"] == "ComparisonRecord"
    assert main(["compare", str(files[0]), str(files[0]), "--check"]) == 0
