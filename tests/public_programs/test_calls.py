"""Public programs through the calls beside `inspect` and `why`, each with an oracle of its own.

Every fourth program, or all of them with `--all-programs`: they take nine minutes.
"""

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import workbench_widgets
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from tests.public_programs.programs import PROGRAMS
from workbench import render, testing
from workbench.advice._search._stand_in import as_accelerator
from workbench.errors import InspectionError
from workbench.records import Record
from workbench.records.compiled import ModuleRecord, ProgramRecord

pytestmark = pytest.mark.slow

STEPS = 3
SIZE = 16  # rows of the planted product
# Programs whose shardings cannot be chosen, and the reason that is given.
REFUSED = {
    "explicit_fsdp": "explicit axes",
    "explicit_megatron": "explicit axes",
    "explicit_ulysses": "explicit axes",
    "host_callbacks": "calls back to the host",
    "mapped_over_devices": "is a `jax.pmap`",
    "pmap_mnist": "is a `jax.pmap`",
}


@dataclasses.dataclass
class Example:
    name: str
    mesh: jax.sharding.Mesh | None
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    record: ProgramRecord

    @property
    def module(self) -> ModuleRecord:
        assert self.record.module is not None
        return self.record.module

    @property
    def jitted(self) -> Any:
        return self.fn if hasattr(self.fn, "lower") else jax.jit(self.fn)

    def arrays(self) -> tuple[Any, ...]:
        """New arguments of these shapes: a step may donate its own."""
        return jax.tree.map(_array, self.args)


def _array(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return jnp.copy(x)
    random = np.random.default_rng(0)
    integers = jnp.issubdtype(x.dtype, jnp.integer)
    values = random.integers(0, 4, x.shape) if integers else random.normal(size=x.shape) / 8
    return jax.device_put(values.astype(x.dtype), x.sharding)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "example" in metafunc.fixturenames:
        names = list(PROGRAMS) if metafunc.config.getoption("--all-programs") else list(PROGRAMS)[::4]
        metafunc.parametrize("example", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def example(request) -> Iterator[Example]:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        mesh, fn, args = PROGRAMS[request.param]()
        with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
            yield Example(request.param, mesh, fn, args, wb.inspect(fn)(*args))


def test_a_program_does_not_differ_from_itself(example):
    comparison = wb.compare(example.fn, example.fn)(*example.args)
    assert comparison.rows
    assert not comparison.differences
    assert not wb.compare(example.record, wb.inspect(example.fn)(*example.args)).differences
    assert type(comparison).from_json(comparison.to_json()) == comparison


def test_a_planted_product_is_the_one_difference(example):
    def planted(*args: Any) -> Any:
        *given, x = args
        return example.fn(*given), x @ x  # the product

    x = jnp.ones((SIZE, SIZE))
    if example.mesh is not None:
        x = jax.device_put(x, NamedSharding(example.mesh, P()))
    is_nnx = any(isinstance(each, nnx.Module) for each in example.args)
    later = wb.inspect(nnx.jit(planted) if is_nnx else planted)(*example.args, x)
    comparison = wb.compare(example.record, later)
    by_group: dict[str, list[Any]] = {}
    for row in comparison.differences:
        by_group.setdefault(row.group, []).append(row)
    assert "collectives" not in by_group
    assert "bytes sent per collective" not in by_group
    lines, before, after = by_group["FLOPs per line"], example.module, later.module
    assert after is not None
    (line,) = [row for row in lines if "test_calls.py" in row.name and "x @ x" in row.name]
    assert line.values[1] >= 2 * SIZE**3  # and elementwise work that the compiler moves there
    assert not [row for row in lines if row is not line and row.status in ("added", "removed")]
    assert (after.flops is None) == (before.flops is None)
    assert before.flops is None or after.flops == before.flops + 2 * SIZE**3
    if example.mesh is not None:  # the compiler may divide elementwise work in another way
        more = sum((row.values[1] or 0.0) - (row.values[0] or 0.0) for row in lines)
        elementwise = (after.elementwise_flops or 0.0) - (before.elementwise_flops or 0.0)
        assert more == pytest.approx(2 * SIZE**3 + elementwise, abs=1)


def test_a_watched_loop_counts_its_steps_and_computes_the_same(example):
    def loop(watch: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
        if any(isinstance(each, nnx.Module) for each in example.args):  # the steps change their arguments
            _, fn, args = PROGRAMS[example.name]()
            step = watch(fn)
            return step, [jax.tree.map(np.asarray, step(*args)) for _ in range(STEPS)]
        step = watch(example.jitted)
        return step, [jax.tree.map(np.asarray, step(*example.arrays())) for _ in range(STEPS)]

    _, expected = loop(lambda fn: fn)
    watched, results = loop(lambda fn: wb.watch(fn, show=False))
    watched.close()
    for ours, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    record = watched.record
    assert record.steps == len(watched.to_pandas()) == STEPS
    assert [step.round for step in record.history] == list(range(STEPS))
    assert all(step.seconds >= 0 for step in record.history)  # an end that is seen late shortens the next step
    assert type(record).from_json(record.to_json()) == record
    assert watched.program.module.flops == example.module.flops
    assert sorted(each.kind for each in watched.program.module.collectives) == sorted(
        each.kind for each in example.module.collectives
    )


def test_measured_calls_are_as_many_as_asked_on_every_device(example):
    run = wb.measure(example.fn, rounds=2)(*example.arrays())
    assert len(run.round_seconds) == run.rounds == 2
    assert {stage.where for stage in run.stages} == {f"cpu:{number}" for number in range(example.module.devices)}
    assert len(str(run).splitlines()) < 30


def _sent(module: ModuleRecord) -> float:
    return sum((each.wire_bytes or 0.0) * (each.executions or 1.0) for each in module.collectives)


def test_pasted_code_of_a_search_has_the_bytes_that_it_promises(example):
    if example.name in REFUSED:
        with pytest.raises(InspectionError, match=REFUSED[example.name]):
            wb.search(example.fn)(*example.args)
        return
    search = wb.search(example.fn, seconds=3, compiler="cpu")(*example.args)
    assert type(search).from_json(search.to_json()) == search
    assert len(search.to_pandas()) == len(search.choices)
    assert len(str(search).splitlines()) < 40
    tried = [at for at, each in enumerate(search.choices) if each.how == "compiled"]
    for at in tried[:2]:
        choice = search.choices[at]
        names = dict(zip(search.arguments, example.arrays(), strict=True)) | {search.name: example.fn}
        exec(search.code(at), names)  # as a reader pastes it
        module = wb.inspect(names[search.name])(*(names[each] for each in search.arguments)).module
        assert module is not None
        assert module.memory.argument_bytes == choice.argument_bytes, choice.name
        assert module.memory.peak_bytes == choice.peak_bytes, choice.name
        assert _sent(as_accelerator(module)) == sum(choice.sent_bytes.values()), choice.name


def test_saved_records_are_those_that_were_made(example):
    reasons: Any = wb.why(example.record)
    advice: Any = wb.advise(example.record)
    for record in (example.record, example.module, example.record.inputs, example.record.plan, reasons, advice):
        text = record.to_json()
        assert Record.from_json(text) == record
        assert str(type(record).from_json(text)) == str(record)


def test_assertions_pass_at_the_figures_and_fail_beside_them(example, tmp_path):
    counted: dict[str, dict[str, Any]] = {}
    for each in example.module.collectives:
        axes = counted.setdefault(each.kind, {})
        count, sent = axes.get("+".join(each.axes), (0.0, 0.0))
        axes["+".join(each.axes)] = (
            count + (each.executions or math.nan),
            sent + (each.wire_bytes or 0.0) * (each.executions or math.nan),
        )
    is_known = not any(math.isnan(count) for axes in counted.values() for count, _ in axes.values())
    if is_known:
        testing.assert_collectives(example.record, counted)
        testing.assert_bytes_sent(example.record, math.ceil(_sent(example.module)))
    for kind, axes in counted.items():
        for name, (count, sent) in axes.items():
            wrong = counted | {kind: axes | {name: (count + 1, sent)}}
            with pytest.raises(AssertionError, match=f"{kind} over "):
                testing.assert_collectives(example.record, wrong)
    peak = example.module.memory.peak_bytes
    assert peak is not None
    testing.assert_peak_memory(example.record, peak)
    with pytest.raises(AssertionError, match=f"The peak is {peak} B"):
        testing.assert_peak_memory(example.record, peak - 1)
    testing.assert_snapshot(example.record, tmp_path / "kept.json")
    testing.assert_snapshot(wb.inspect(example.fn)(*example.args), tmp_path / "kept.json", update=False)


def test_tables_have_the_sums_of_their_records(example):
    module, inputs, mesh = example.module, example.record.inputs, example.record.mesh
    table: Any = render.to_pandas(module)
    assert len(table) == len(module.instructions)
    if module.flops is not None:
        assert (table["flops"] * table["executions"]).sum() == pytest.approx(module.flops)
    assert inputs is not None
    assert len(render.to_pandas(inputs)) == len(inputs.leaves) == len(jax.tree.leaves(example.args))
    if mesh is not None:
        assert len(render.to_pandas(mesh)) == len(jax.devices())
    sizes = render.to_pandas(module.memory)["size_bytes"].tolist()
    assert sizes == sorted(sizes, reverse=True)


def test_sizes_of_collectives_in_the_call_tree_are_sizes_of_the_module(example):
    tree = example.record.call_tree
    assert tree is not None
    payloads = {(each.kind, each.axes, float(each.payload_bytes)) for each in example.module.collectives}
    for node in tree.nodes:
        for each in node.own.collectives:
            if each.largest_bytes is not None:
                assert (each.kind, each.axes, each.largest_bytes) in payloads
                assert each.payload_bytes <= each.largest_bytes * each.executions * (1 + 1e-9)


def test_displays_fit_on_a_screen_and_are_well_formed(example):
    reasons: Any = wb.why(example.record)
    assert len(str(example.record).splitlines()) <= 66
    for record in (example.record, example.module, example.record.inputs, example.record.call_tree, reasons):
        shown = record._repr_mimebundle_()
        lines, whole = shown["text/plain"].splitlines(), str(record).splitlines()
        assert len(lines) <= 41
        assert lines[:30] == whole[:30]
        assert "nan" not in shown["text/plain"].replace("nanmean", "").split()
        ElementTree.fromstring(re.sub(r"(<img[^>]*)>", r"\1/>", shown["text/html"]))
    for record in (example.record, example.module, example.module.memory, example.record.mesh):
        if record is not None:
            drawn = str(render.svg(record))
            ElementTree.fromstring(drawn)
            assert '"nan"' not in drawn.lower()


def test_every_view_opens(example):
    for view in workbench_widgets.PROGRAM_VIEWS:
        if view == "mesh" and example.record.mesh is None:
            continue
        opened: Any = wb.explore(example.record, view=view)
        json.dumps(opened.get_state(), default=str, allow_nan=False)
