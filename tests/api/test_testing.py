"""`workbench.testing`: assertions that name what differs, and snapshots that are read back."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import InspectionError
from workbench.records.compiled import ProgramRecord
from workbench.testing import (
    RecordSnapshot,
    assert_bytes_sent,
    assert_collectives,
    assert_flops,
    assert_no_compilation,
    assert_peak_memory,
    assert_snapshot,
)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture
def summed(mesh):
    x = jax.ShapeDtypeStruct((8, 3), "float32", sharding=NamedSharding(mesh, P("data")))
    return wb.trace(lambda x: x.sum(0))(x)


def test_expected_collectives_pass(summed):
    assert_collectives(summed, {"all-reduce": {"data": 1}})
    assert_collectives(summed.inspect(), {"all-reduce": {"data": 1}})
    assert_collectives(wb.trace(lambda x: x * 2)(jnp.ones(3)), {})


def test_collectives_in_loops_count_each_iteration(mesh):
    def steps(x):
        return jax.lax.scan(lambda c, _: (c + x.sum(0) * c, None), jnp.ones(3), None, length=5)[0]

    x = jax.ShapeDtypeStruct((8, 3), "float32", sharding=NamedSharding(mesh, P("data")))
    record = wb.inspect(steps)(x)
    (collective,) = record.module.collectives
    assert_collectives(record, {collective.kind: {"data": collective.executions}})


def test_difference_names_kind_axes_counts_and_line(summed):
    with pytest.raises(AssertionError) as failed:
        assert_collectives(summed, {"all-gather": {"data": 2}})
    said = str(failed.value)
    assert "all-gather over data: expected 2, found 0" in said
    assert "all-reduce over data: expected 0, found 1" in said
    assert "test_testing.py" in said


def test_peak_memory_is_compared_in_the_unit_that_is_written(summed):
    peak = summed.inspect().module.memory.peak_bytes
    assert_peak_memory(summed, peak)
    assert_peak_memory(summed, "1 KiB")
    with pytest.raises(AssertionError, match=f"The peak is {peak} B per device, more than {peak - 1} B"):
        assert_peak_memory(summed, peak - 1)
    with pytest.raises(InspectionError, match="'3 miles', which is not a number of bytes"):
        assert_peak_memory(summed, "3 miles")


def test_unknown_peak_is_reported_as_unknown():
    text = jax.jit(lambda x: x * 2).lower(jnp.ones(3)).compile().as_text()
    with pytest.raises(InspectionError, match="peak memory is not known"):
        assert_peak_memory(text, "1 GiB")


def test_flops_are_those_of_the_products():
    traced = wb.trace(lambda x: x @ x)(jnp.ones((4, 4)))
    assert_flops(traced, 2 * 4**3)
    assert_flops(traced, 2.1 * 4**3, rtol=0.1)
    with pytest.raises(AssertionError, match=r"Expected 64 matrix FLOPs per device, found 128, 2 × as many"):
        assert_flops(traced, 64)


def test_other_things_are_refused():
    with pytest.raises(InspectionError, match="`assert_flops` received an object of type list, which is not a program"):
        assert_flops([1], 0)


def test_planned_program_is_refused_with_the_reason():
    record = wb.inspect(lambda x: x * 2, on=jax.sharding.AbstractMesh((8,), ("data",)))(jnp.ones(3))
    with pytest.raises(InspectionError, match="nothing was compiled"):
        assert_flops(record, 0)


def test_snapshot_is_written_then_compared(summed, tmp_path):
    file = tmp_path / "snapshots" / "summed.json"
    assert_snapshot(summed.inspect(), file)
    assert_snapshot(summed.inspect(), file)
    kept = ProgramRecord.from_json(file.read_text())
    assert kept.module.collectives[0].axes == ("data",)
    assert str(tmp_path.parent) not in file.read_text()


def test_snapshot_that_differs_shows_figures_and_lines(summed, mesh, tmp_path):
    file = tmp_path / "summed.json"
    assert_snapshot(summed.inspect(), file)
    x = jax.ShapeDtypeStruct((8, 6), "float32", sharding=NamedSharding(mesh, P("data")))
    with pytest.raises(AssertionError) as failed:
        assert_snapshot(wb.inspect(lambda x: x.sum(0))(x), file)
    said = str(failed.value)
    assert "bytes sent per collective: all-reduce over data: 18 B → 36 B" in said
    assert "\n-" in said
    assert "\n+" in said


def test_snapshot_is_updated_when_asked(summed, tmp_path, monkeypatch):
    file = tmp_path / "any.json"
    file.write_text(json.dumps({"old": 1}))
    monkeypatch.setenv("WORKBENCH_UPDATE_SNAPSHOTS", "1")
    assert_snapshot(summed.inspect(), file)
    monkeypatch.delenv("WORKBENCH_UPDATE_SNAPSHOTS")
    assert_snapshot(summed.inspect(), file)


def test_fixture_names_files_by_test_and_count(summed, tmp_path):
    snapshot = RecordSnapshot(tmp_path, "test_x", None)
    snapshot(summed.inspect())
    snapshot(summed.inspect())
    snapshot(summed.plan, "plan")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["test_x-2.json", "test_x-plan.json", "test_x.json"]


def test_bytes_of_collectives_are_those_that_a_device_sends(summed):
    assert_collectives(summed, {"all-reduce": {"data": (1, 18)}})  # 2 · 3/4 of 3 float32
    assert_collectives(summed, {"all-reduce": {"data": (1, "18 B")}})
    with pytest.raises(AssertionError, match="all-reduce over data: expected 20 sent by a device, found 18 B"):
        assert_collectives(summed, {"all-reduce": {"data": (1, 20)}})


def test_bytes_sent_have_a_limit_in_all_and_by_axis(summed):
    assert_bytes_sent(summed, 18)
    assert_bytes_sent(summed, 0, axis="model")
    with pytest.raises(
        AssertionError, match=r"A device sends 18 B over data in a call, more than 17 B(.|\n)*test_testing.py"
    ):
        assert_bytes_sent(summed, 17, axis="data")


def test_numbers_that_differ_are_printed_with_all_digits(mesh):
    x = jax.ShapeDtypeStruct((512, 1001), "float32", sharding=NamedSharding(mesh, P("data")))
    record = wb.inspect(lambda x: (x.sum(0), x.T @ x))(x)
    flops = record.module.flops
    with pytest.raises(AssertionError, match=f"Expected {flops + 1:.0f} matrix FLOPs per device, found {flops:.0f},"):
        assert_flops(record, flops + 1)
    sent = sum(each.wire_bytes for each in record.module.collectives)
    assert sent > 1e6
    with pytest.raises(
        AssertionError, match=rf"sends {sent:.0f} B \(\S+ MiB\) in a call, more than {sent - 1:.0f} B \("
    ):
        assert_bytes_sent(record, int(sent) - 1)


def test_flops_have_a_budget():
    product = wb.trace(lambda x: x @ x)(jnp.ones((4, 4)))
    assert_flops(product, at_most=128)
    with pytest.raises(AssertionError, match="Found 128 matrix FLOPs per device, more than 127"):
        assert_flops(product, at_most=127)
    with pytest.raises(InspectionError, match="`expected` or `at_most`"):
        assert_flops(product)


def test_flops_over_a_budget_are_listed_by_line_with_all_iterations_of_loops():
    def loss(w, x):
        x = jax.lax.scan(lambda c, _: (c @ w["a"], None), x, None, length=7)[0]  # 7 × 2 × 8 × 16 × 16
        return (x @ w["b"]).sum()  # 2 × 8 × 16 × 64

    w = {"a": jnp.ones((16, 16)), "b": jnp.ones((16, 64))}
    with pytest.raises(AssertionError) as caught:
        assert_flops(wb.trace(loss)(w, jnp.ones((8, 16))), at_most=1000)
    lines, first = str(caught.value).splitlines(), loss.__code__.co_firstlineno
    assert lines[0] == "Found 45056 matrix FLOPs (45.1 kFLOP) per device, more than 1000 matrix FLOPs (1 kFLOP)."
    assert [line.split(" matrix FLOPs")[0].strip() for line in lines[1:]] == ["28672", "16384"]
    assert [line.rpartition(":")[2].split()[0] for line in lines[1:]] == [str(first + 1), str(first + 2)]


def test_a_compilation_in_the_block_is_named_with_its_reason():
    doubled = jax.jit(lambda x: 2 * x)
    x = doubled(jnp.ones(3))
    with assert_no_compilation():
        doubled(x)
    with pytest.raises(AssertionError, match=r"traced again 1 times.*its shape changed \(now \[2\], before \[3\]\)"):
        with assert_no_compilation():
            doubled(x[:2])


def test_an_exception_of_the_block_is_passed_on():
    with pytest.raises(ZeroDivisionError), assert_no_compilation():
        jax.jit(lambda x: x + 1)(1 // 0)


def test_the_option_of_pytest_writes_snapshots_again(pytester_like, tmp_path):
    folder = pytester_like
    assert folder("test_it") == 0
    kept = tmp_path / "snapshots" / "test_it.json"
    changed = kept.read_text().replace('"cpu x 1"', '"cpu x 2"')
    assert changed != kept.read_text()
    kept.write_text(changed)
    assert folder("test_it") == 1
    assert folder("test_it", "--workbench-update") == 0
    assert '"cpu x 1"' in kept.read_text()


@pytest.fixture
def pytester_like(tmp_path):
    """Runs pytest in a folder with the plugin and one test, in another process; gives its exit status."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["workbench.testing"]\n')
    (tmp_path / "test_it.py").write_text(
        "import jax.numpy as jnp\nimport workbench as wb\n\n\n"
        "def test_it(record_snapshot):\n    record_snapshot(wb.inspect(lambda x: x @ x)(jnp.ones((2, 2))))\n"
    )

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", options[0], *options[1:]]
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=300, env=environment)
        return done.returncode

    return run
