"""Programs side by side: every difference is named, and nothing unknown passes for zero."""

import json

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn, nnx

import workbench as wb
from workbench import errors
from workbench.inspection import compare
from workbench.records.compiled import CollectiveRecord, CostRecord, MemoryRecord, ModuleRecord, ProgramRecord
from workbench.records.hardware import AxisRecord, MeshRecord
from workbench.records.program import PlanRecord, StageRecord, ValueRecord
from workbench.records.sharding import PlannedCollectiveRecord, PropagationRecord


def stage(index, kind, name, **fields):
    return StageRecord(index=index, path=str(index), kind=kind, name=name, **fields)


VALUE = ValueRecord(name="w", shape=(4, 2), dtype="float32", size_bytes=32)
BROADCAST = stage(0, "broadcast", "broadcast", clients=8, moved_bytes=256, inputs=(VALUE,), outputs=(VALUE,))
TRAIN = stage(1, "clients", "train", clients=8, flops_per_client=100.0)
MEAN = stage(2, "reduce", "reduce_mean", clients=8, moved_bytes=256)


def all_reduce(axes, executions: float | None = 1.0, payload=64):
    return CollectiveRecord(
        name="ar",
        kind="all-reduce",
        axes=axes,
        group_size=2,
        groups=4,
        payload_bytes=payload,
        wire_bytes=payload,
        executions=executions,
    )


def module(*collectives, flops=1000.0, peak=None, platform="cpu"):
    return ModuleRecord(
        name="m",
        platform=platform,
        devices=8,
        instructions=(),
        collectives=collectives,
        flops=flops,
        accessed_bytes=10.0,
        memory=MemoryRecord(peak_bytes=peak),
        attributed_instructions=1.0,
        attributed_flops=1.0,
        attributed_bytes=1.0,
    )


def program(*stages, name="f", **fields):
    return ProgramRecord(name=name, target="here", plan=PlanRecord(name=name, placements=(), stages=stages), **fields)


def rows(comparison, group):
    return {row.name: (row.values, row.status) for row in comparison.rows if row.group == group}


def test_a_program_does_not_differ_from_itself():
    same = program(BROADCAST, TRAIN, MEAN, module=module(all_reduce(("clients",)), peak=5))
    assert compare(same, same).differences == ()


def test_stages_are_added_removed_and_changed():
    comparison = compare(program(BROADCAST, TRAIN), program(TRAIN.replace(flops_per_client=200.0), MEAN))
    assert {name: status for name, (_, status) in rows(comparison, "stages").items()} == {
        "broadcast": "removed",
        "clients train": "changed",
        "reduce reduce_mean": "added",
    }
    assert rows(comparison, "stages")["clients train"][0][1] == "8 clients, 200 FLOP per client"


def test_stages_are_matched_by_structure_where_only_their_names_differ():
    renamed = TRAIN.replace(name="train_with_remat", flops_per_client=200.0)
    comparison = compare(program(BROADCAST, TRAIN, MEAN), program(BROADCAST, renamed, MEAN))
    assert {name: status for name, (_, status) in rows(comparison, "stages").items()} == {
        "broadcast": "same",
        "clients train": "changed",
        "reduce reduce_mean": "same",
    }
    two = compare(program(TRAIN), program(renamed, renamed.replace(name="evaluate")))  # which of two is not known
    assert [status for _, status in rows(two, "stages").values()] == ["removed", "added", "added"]


def test_stages_of_one_name_are_matched_in_order():
    comparison = compare(program(MEAN), program(MEAN, MEAN.replace(moved_bytes=8)))
    assert [(name, status) for name, (_, status) in rows(comparison, "stages").items()] == [
        ("reduce reduce_mean", "same"),
        ("reduce reduce_mean (2)", "added"),
    ]


def test_moved_bytes_count_every_iteration_of_a_loop():
    loop = stage(0, "loop", "scan", trip_count=3, body=(BROADCAST, MEAN))
    comparison = compare(program(BROADCAST), program(loop))
    # 256 once, against 3 * (256 + 256).
    assert rows(comparison, "program")["bytes between server and clients"] == ((256, 1536), "changed")


def test_collectives_are_counted_by_kind_and_axes_with_loop_iterations():
    before = program(module=module(all_reduce(("model",), executions=4.0), all_reduce(("clients",))))
    after = program(module=module(all_reduce(("model",), executions=2.0), all_reduce(("clients", "model"))))
    comparison = compare(before, after)
    assert rows(comparison, "collectives") == {
        "all-reduce over clients": ((1.0, 0.0), "removed"),
        "all-reduce over clients × model": ((0.0, 1.0), "added"),
        "all-reduce over model": ((4.0, 2.0), "changed"),
    }
    assert rows(comparison, "bytes sent per collective")["all-reduce over model"] == ((256.0, 128.0), "changed")
    assert rows(comparison, "per device")["bytes sent in collectives"][0] == (320.0, 192.0)


def test_unknown_loop_iterations_are_unknown_and_noted():
    comparison = compare(
        program(module=module(all_reduce(("m",), executions=None))), program(module=module(all_reduce(("m",))))
    )
    assert rows(comparison, "collectives")["all-reduce over m"] == ((None, 1.0), "unknown")
    assert "iterations of the loops around ar is unknown" in comparison.notes[0]


def test_a_program_that_is_not_compiled_has_unknown_costs_not_zero():
    comparison = compare(program(), program(module=module(all_reduce(("m",)), flops=7.0, peak=3)))
    assert rows(comparison, "per device")["FLOPs"] == ((None, 7.0), "unknown")
    assert rows(comparison, "per device")["peak memory"] == ((None, 3), "unknown")
    assert rows(comparison, "collectives")["all-reduce over m"] == ((None, 1.0), "unknown")
    assert "not compiled" in comparison.notes[0]


def test_planned_collectives_stay_apart_from_compiled_ones():
    planned = PlannedCollectiveRecord(kind="all-reduce", axes=("m",), shape=(2,), dtype="f32", size_bytes=8)
    with_plan = program(propagation=PropagationRecord(collectives=(planned,)))
    comparison = compare(program(propagation=PropagationRecord()), with_plan)
    assert rows(comparison, "planned collectives") == {"all-reduce over m": ((0.0, 1.0), "added")}
    assert rows(comparison, "collectives") == {}


def test_meshes_platforms_and_predictions_are_compared():
    mesh = MeshRecord(axes=(AxisRecord(name="clients", size=4),), devices=())
    here = program(module=module(), cost=CostRecord(stages=(), seconds=2.0))
    there = program(mesh=mesh, module=module(platform="tpu"), cost=CostRecord(stages=(), seconds=1.0))
    comparison = compare(here, there)
    assert rows(comparison, "program")["mesh"] == (("none", "clients=4 auto"), "changed")
    assert "different platforms (cpu, tpu)" in comparison.notes[0]
    (seconds,) = (row for row in comparison.rows if row.name == "predicted seconds")
    assert seconds.ratio == 0.5


def test_memory_and_strategies_of_targets_are_next_to_each_other():
    ring = all_reduce(("clients",)).replace(algorithm="UniDirection1DRingStrategy")
    gib = 2**30
    here = program(module=module(all_reduce(("clients",))))
    small = module(ring).replace(
        memory=MemoryRecord(peak_bytes=24 * gib, available_bytes=16 * gib, fits=False, padding_bytes=512)
    )
    large = module(ring).replace(memory=MemoryRecord(peak_bytes=24 * gib, available_bytes=32 * gib, fits=True))
    comparison = compare(here, program(module=small), program(module=large))
    assert rows(comparison, "collective strategy") == {
        "all-reduce over clients": ((None, *["UniDirection1DRingStrategy"] * 2), "unknown")
    }
    device = rows(comparison, "per device")
    assert device["fits"][0] == (None, "no: 8.00 GiB too much", "yes")
    assert device["memory available"][0] == (None, 16 * gib, 32 * gib)
    assert device["layout padding at the peak"][0] == (None, 512, None)


def test_several_programs_make_one_table():
    comparison = compare(
        *[program(name=name, module=module(flops=flops)) for name, flops in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    )
    assert comparison.names == ("a", "b", "c")
    assert rows(comparison, "per device")["FLOPs"] == ((1.0, 2.0, 3.0), "changed")
    assert json.loads(comparison.to_json())["rows"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "given 0 arguments. `compare` needs at least two"),
        ((program(),), "given 1 argument. `compare` needs at least two"),
        ((program(), "text", 3), "these are not program records: argument 1: `str`, argument 2: `int`.*pass `inspect"),
    ],
    ids=["none", "one", "strange"],
)
def test_what_cannot_be_compared_is_named(given, said):
    with pytest.raises(errors.InspectionError, match=said):
        compare(*given)


def _before(x):
    h = x @ x
    return jnp.tanh(h).sum()


def _after(x):
    # A comment moves the lines.
    h = x @ x
    h = h @ x
    return jnp.tanh(h).sum()


def _wider(x):
    h = x @ jnp.concatenate([x, x], axis=1)
    return jnp.tanh(h).sum()


def _flops_of_lines(record):
    return {
        row.name.partition("`")[2].strip("`"): (row.values, row.status)
        for row in record.rows
        if row.group == "FLOPs per line"
    }


def test_functions_are_compared_with_their_arguments_line_by_line():
    found = _flops_of_lines(wb.compare(_before, jax.jit(_after))(jnp.ones((8, 8))))
    assert found["h = x @ x"] == ((1024, 1024), "same")
    assert found["h = h @ x"] == ((None, 1024), "added")


def test_a_line_is_compared_with_the_line_that_replaced_it():
    found = _flops_of_lines(wb.compare(_before, _wider)(jnp.ones((8, 8))))
    assert found["h = x @ jnp.concatenate([x, x], axis=1)"] == ((1024, 2048), "changed")


def _with_a_lambda(x):
    return jax.grad(lambda x: jnp.tanh(x @ x).sum())(x)


def _with_remat(x):
    model = nn.remat(nn.Dense)(8)
    variables = {"params": {"kernel": x, "bias": x[0]}}
    return jax.grad(lambda x: model.apply(variables, jnp.tanh(x @ x)).sum())(x)  # type: ignore[union-attr]


def _with_a_module(x):
    return nn.Dense(8).apply({"params": {"kernel": x, "bias": x[0]}}, x)


@pytest.mark.parametrize("other", [_after, _with_a_lambda, _with_a_module, _with_remat])
def test_lines_add_up_to_the_program(other):
    record = wb.compare(_before, other)(jnp.ones((8, 8)))
    per_line = [row.values for row in record.rows if row.group == "memory traffic per line"]
    (whole,) = [row.values for row in record.rows if row.name == "bytes accessed"]
    assert tuple(sum(values[side] or 0 for values in per_line) for side in (0, 1)) == pytest.approx(whole)


def test_modules_are_called_and_options_are_those_of_inspect():
    small, large = (nnx.Linear(4, n, rngs=nnx.Rngs(0)) for n in (4, 8))
    record = wb.compare(small, large, on="v5e")(jnp.ones((2, 4)))
    rows = {row.name: row.values for row in record.rows if row.group == "per device"}
    assert rows["FLOPs"] == (64, 128)
    assert None not in rows["predicted seconds"]


def test_functions_are_not_mixed_with_records():
    with pytest.raises(errors.InspectionError, match=r"together with other objects.*compare\(f, g\)\(\*args\)"):
        wb.compare(_before, wb.inspect(_after)(jnp.ones((8, 8))))


def test_a_program_that_another_program_calls_keeps_its_lines():
    def step(x):
        y = x @ x
        return y @ x

    def more(x):
        return step(x), x @ x.T

    comparison = wb.compare(step, more)(jnp.ones((8, 8)))
    found = [row for row in comparison.rows if row.group == "FLOPs per line"]
    by_status = {
        status: [row.name.partition(" ")[2] for row in found if row.status == status] for status in ("same", "added")
    }
    assert by_status == {"same": ["`y = x @ x`", "`return y @ x`"], "added": ["`return step(x), x @ x.T`"]}
    assert len(found) == 3
