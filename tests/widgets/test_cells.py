"""The code of a program in pages: cells of this kernel, and no file that only a record names."""

import ast
from pathlib import Path

import jax.numpy as jnp
from workbench_widgets._cells import cells_of, code_of
from workbench_widgets._cost_state import cost_state

import workbench as wb


def test_name_of_a_cell_reads_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "ipykernel_1"
    folder.mkdir()
    (tmp_path / "secret").write_text("token = 1\n")
    (folder / "settings.py").write_text("token = 1\n")
    for name in (folder / "../secret", folder / "settings.py"):
        assert cells_of([str(name)]) == {}
        assert code_of([str(name)]) == []


def test_names_of_a_record_from_elsewhere_stay_texts_in_code() -> None:
    program = wb.trace(wb.program(clients=2)(lambda x: wb.reduce_mean(x)))(jnp.ones(2)).inspect()
    foreign = program.replace(target='v5e:"); exit("', name="exit()")
    code = cost_state(foreign)["other_size"]
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
    assert calls == {"wb.inspect", "wb.inspect(fn, on='v5e:\"); exit(\"')", "arguments", "wb.show", "wb.compare"}
