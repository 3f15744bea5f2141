"""Records as pandas tables: one row per thing, numbers as numbers."""

import pytest
from records_examples import fedavg_record
from records_parts import TOY_CHIP, cost_record, mesh_record, module_record, sharding_record

from workbench.records.compiled import BufferRecord, CollectiveRecord, InstructionRecord, MemoryRecord, StageCostRecord
from workbench.records.program import SourceLine, StageRecord
from workbench.records.run import RunRecord, StageRunRecord
from workbench.records.sharding import PlannedCollectiveRecord, PlannedValueRecord, PropagationRecord, ShardRecord
from workbench.render import to_pandas


def test_plan_has_a_row_per_stage_inner_ones_too():
    record = fedavg_record()
    loop = record.plan.stages[0].replace(kind="loop", path="9", body=(record.plan.stages[1].replace(path="9.0"),))
    table = to_pandas(record.plan.replace(stages=(loop,)))
    assert table["stage"].tolist() == ["9", "9.0"]
    assert {"kind", "clients", "moved_bytes", "flops_per_client", "flops"} <= set(table.columns)


def test_program_joins_its_predicted_cost_to_its_stages():
    record = fedavg_record()
    table = to_pandas(record)
    assert len(table) == len(record.plan.stages)
    assert record.cost is not None
    costs = {stage.stage: stage.flops for stage in record.cost.stages}
    joined = table.dropna(subset=["predicted_flops"])
    assert dict(zip(joined["stage"], joined["predicted_flops"], strict=True)) == costs


def test_program_without_cost_has_no_predicted_columns():
    assert not [column for column in to_pandas(fedavg_record().replace(cost=None)).columns if "predicted" in column]


def test_module_has_a_row_per_instruction():
    module = module_record(count=24)
    table = to_pandas(module)
    assert table["name"].tolist() == [instruction.name for instruction in module.instructions]
    assert table["flops"].sum() == sum(instruction.flops for instruction in module.instructions)


@pytest.mark.parametrize(
    ("table", "record"),
    [
        (to_pandas(module_record()), InstructionRecord),
        (to_pandas(module_record().collectives), CollectiveRecord),
        (to_pandas(cost_record()), StageCostRecord),
        (to_pandas(fedavg_record().plan), StageRecord),
    ],
    ids=["instructions", "collectives", "cost", "stages"],
)
def test_every_column_is_something_that_the_record_knows(table, record):
    sent = {column for column in table.columns if column.startswith("sent_bytes_")}
    assert {column for column in set(table.columns) - sent - {"stage"} if not hasattr(record, column)} == set()


def test_executions_and_elementwise_work_are_in_the_tables():
    module = module_record(count=24)
    table = to_pandas(module)
    assert table["executions"].tolist() == [instruction.executions for instruction in module.instructions]
    assert table["elementwise_flops"].sum() == sum(each.elementwise_flops for each in module.instructions)
    plan = fedavg_record().plan
    assert to_pandas(plan)["elementwise_flops"].tolist() == [stage.elementwise_flops for stage in plan.stages]


def test_collectives_write_their_axes_as_words():
    module = module_record()
    table = to_pandas(module.collectives)
    assert table["axes"].tolist() == [", ".join(found.axes) for found in module.collectives]


def test_tree_has_a_row_per_array_and_an_array_one_per_slice():
    record = sharding_record()
    assert to_pandas(record)["path"].tolist() == [leaf.path for leaf in record.leaves]
    leaf = record.leaves[0].replace(shards=(ShardRecord(device_id=5, start=(0, 1), stop=(2, 3)),))
    assert to_pandas(leaf).to_dict("records") == [{"device_id": 5, "start": (0, 1), "stop": (2, 3), "replica": 0}]


def test_mesh_has_a_row_per_device_with_its_place_and_clients():
    mesh = mesh_record()
    table = to_pandas(mesh)
    assert table["id"].tolist() == [device.id for device in mesh.devices]
    assert table["axis_model"].tolist() == [device.position[1] for device in mesh.devices]
    assert table["clients_start"].tolist() == [held.start for held in mesh.clients]


def test_cost_has_a_column_of_sent_bytes_per_mesh_axis():
    cost = cost_record()
    table = to_pandas(cost)
    axes = {axis for stage in cost.stages for axis in stage.collective_bytes}
    assert axes == {column.removeprefix("sent_bytes_") for column in table.columns if column.startswith("sent_bytes_")}
    assert table["seconds"].tolist() == [stage.seconds for stage in cost.stages]


def test_propagation_has_values_and_planned_collectives():
    value = PlannedValueRecord(
        name="%0", operation="dot", shape=(8, 4), dtype="f32", spec=(("clients",), ()), origins={"clients": "input: 0"}
    )
    planned = PlannedCollectiveRecord(kind="all-reduce", axes=("model",), shape=(8,), dtype="f32", size_bytes=32)
    record = PropagationRecord(values=(value,), collectives=(planned,))
    assert to_pandas(record)[["type", "spec", "origins"]].values.tolist() == [
        ["f32[8,4]", "P('clients')", "clients: input: 0"]
    ]
    assert to_pandas(record.collectives)["axes"].tolist() == ["model"]


def test_memory_has_buffers_with_their_line():
    buffer = BufferRecord(name="dot", size_bytes=4, source=SourceLine(file="train.py", line=3))
    assert to_pandas(MemoryRecord(largest=(buffer,)))["source"].tolist() == ["train.py:3"]


def test_run_has_measured_stages():
    run = RunRecord(
        name="r", engine="mesh", seconds=1.0, stages=(StageRunRecord(stage="1", where="cpu:0", compute_seconds=0.25),)
    )
    assert to_pandas(run)["compute_seconds"].tolist() == [0.25]


def test_any_other_record_is_one_row_and_many_are_many():
    chip = TOY_CHIP.replace(
        peak_flops_per_second={"int8": 2.0}, hbm_bytes=1, hbm_bytes_per_second=1.0, link_bytes_per_second=1.0
    )
    assert to_pandas(chip)["peak_flops_per_second"].tolist() == ["int8: 2.0"]
    assert to_pandas([chip, chip.replace(name="toy 2")])["name"].tolist() == ["toy", "toy 2"]
    assert to_pandas([]).empty


@pytest.mark.parametrize("wrong", [3, "text", {"a": 1}, [1, 2]], ids=repr)
def test_what_is_no_record_is_named_with_the_way_out(wrong):
    with pytest.raises(
        TypeError,
        match=rf"given an object of type {type(wrong).__name__}, which is not a record.*inspect the program first",
    ):
        to_pandas(wrong)
