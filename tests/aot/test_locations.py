import re
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from workbench.aot import compile_for_target, lower_for_target, target_mesh
from workbench.aot._cache import CompilationCache
from workbench.aot._locations import drop_callers, hide_cells, show_cells
from workbench.aot._process import Worker

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))
MESH = target_mesh("v5e:2x2", (4,), ("clients",))


def sine(x):
    return jnp.sin(x)


def program(x):
    return sine(x).sum()


def lower():
    return lower_for_target(program, (jnp.zeros((8, 4)),), MESH)


def lower_from_elsewhere():
    return lower()


def test_the_same_program_lowers_to_the_same_text_whoever_asks():
    assert lower() == lower_from_elsewhere() == (lambda: lower())()


def test_call_stack_inside_the_program_is_kept():
    text = lower()
    (alias,) = re.findall(r'= loc\("jit\(program\)/sin"\((#loc\d+)\)\)', text)
    (sin, outer) = re.findall(rf"^{alias} = loc\(callsite\((#loc\d+) at (#loc\d+)\)\)", text, re.MULTILINE)[0]
    names = [re.findall(rf'^{frame} = loc\("(\w+)"\(', text, re.MULTILINE) for frame in (sin, outer)]
    assert names == [["sine"], ["program"]]
    assert "lower_for_target" not in text
    assert "pytest" not in text


def test_every_location_that_is_used_is_defined_once():
    text = lower()
    used, defined = set(re.findall(r"#loc\d+", text)), re.findall(r"^(#loc\d+) = ", text, re.MULTILINE)
    assert used == set(defined)
    assert len(defined) == len(set(defined))


def test_every_location_is_below_those_that_it_is_made_of():
    for alias, body in re.findall(r"^(#loc\d+) = (.*)$", lower(), re.MULTILINE):
        assert all(int(part) < int(alias[4:]) for part in re.findall(r"#loc(\d+)", body))


def test_locations_are_defined_before_the_module():
    assert re.search(r"^#loc\d+ = ", lower().partition("module @jit")[2], re.MULTILINE) is None


def test_location_that_is_nowhere_defined_is_left_alone():
    text = "module {\n} loc(#loc2)\n#loc2 = loc(callsite(#loc7 at #loc8))\n"
    assert drop_callers(text) == "#loc0 = loc(callsite(#loc7 at #loc8))\nmodule {\n} loc(#loc0)\n"


def test_text_without_locations_stays_as_it_is():
    assert drop_callers("module {\n}\n") == "module {\n}\n"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ('loc("/tmp/ipykernel_123/4.py":1:1) loc("/tmp/ipykernel_123/5.py":1:1)', "ipykernel_0/4.py"),
        ('loc("/tmp/ipykernel_1/4.py":1:1) loc("/tmp/ipykernel_2/5.py":1:1)', "ipykernel_1/4.py"),
        ('loc("train.py":1:1)', "train.py"),
    ],
    ids=["one-kernel", "two-kernels", "no-kernel"],
)
def test_names_of_cells_are_hidden_and_come_back(text, hidden):
    plain, name = hide_cells(text)
    assert hidden in plain
    assert show_cells(plain, name) == text


def test_restarted_notebook_finds_its_compilation_and_reads_its_own_cells(tmp_path):
    worker = Worker(FAKE, compiler="fake 1")
    arguments = {"mesh_axes": {"clients": 4}, "worker": worker, "cache": CompilationCache(tmp_path)}
    first = compile_for_target("cell@/tmp/ipykernel_11/9.py x", "v5e:2x2", **arguments)
    worker.close()
    second = compile_for_target("cell@/tmp/ipykernel_22/9.py x", "v5e:2x2", **arguments)
    assert (first.cached, second.cached) == (False, True)
    assert "ipykernel_11/9.py" in first.hlo
    assert "ipykernel_22/9.py" in second.hlo
