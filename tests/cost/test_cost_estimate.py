"""Cost predictions of modules and plans written by hand."""

import pytest
from records_parts import TOY_CHIP, toy_module

from workbench.cost import estimate_cost
from workbench.errors import InspectionError
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.hardware import AxisRecord, MeshRecord
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord

CHIP = TOY_CHIP.replace(
    peak_flops_per_second={"bfloat16": 2e12, "float32": 1e12},
    hbm_bytes=10**9,
    hbm_bytes_per_second=2e10,
    links=2,
    devices_per_chip=2,
    source="made up",
    as_of="2026-01-01",
)
MESH = MeshRecord(axes=(AxisRecord(name="clients", size=4),), devices=(), abstract=True)


def instruction(name, stage, *, flops=0.0, accessed=0, executions=1.0, kind="clients"):
    return InstructionRecord(
        name=name,
        opcode="fusion",
        computation="main",
        shape="f32[]",
        size_bytes=4,
        executions=executions,
        flops=flops,
        accessed_bytes=accessed,
        stage=stage,
        kind=kind,
    )


def collective(stages, *, executions=1.0, shares=None):
    return CollectiveRecord(
        name="all-reduce",
        kind="all-reduce",
        axes=("clients",),
        group_size=4,
        groups=1,
        payload_bytes=1000,
        wire_bytes=1500.0,
        executions=executions,
        stages=stages,
        stage_shares=shares or {},
    )


def module(instructions, collectives=()):
    return toy_module(
        platform="tpu",
        devices=4,
        instructions=tuple(instructions),
        collectives=tuple(collectives),
        notes=("a note of the module",),
    )


def stage(index, kind, name, **more):
    return StageRecord(index=index, path=more.pop("path", str(index)), kind=kind, name=name, **more)


def client_stage(flops=100.0, clients=4, accessed=50, **more):
    return stage(
        1, "clients", "train", placement="clients", clients=clients, flops_per_client=flops,
        bytes_per_client=accessed, **more,
    )  # fmt: skip


def plan(*stages):
    placements = (PlacementRecord(name="clients", size=4, mesh_axes=("clients",)),)
    return PlanRecord(name="toy", placements=placements, stages=stages)


def test_collective_in_a_loop_of_unknown_length_has_no_counted_bytes():
    (only,) = estimate_cost(module([], [collective(("2",), executions=None)])).stages
    assert only.collective_bytes == {"clients": 0.0}


def test_combined_collective_is_shared_by_the_parts_of_its_payload():
    cost = estimate_cost(module([], [collective(("2", "3"), shares={"2": 0.9, "3": 0.1})]))
    assert {s.stage: s.collective_bytes["clients"] for s in cost.stages} == {"2": 1350.0, "3": 150.0}
    assert "evenly" not in " ".join(cost.assumptions)


def test_combined_collective_of_unknown_parts_is_shared_evenly_and_says_so():
    cost = estimate_cost(module([], [collective(("2", "3"))]))
    assert {s.stage: s.collective_bytes["clients"] for s in cost.stages} == {"2": 750.0, "3": 750.0}
    assert "the cost of a collective that combines several stages is divided evenly among them" in cost.assumptions


@pytest.mark.parametrize(
    ("flops", "accessed", "bound", "seconds"),
    [
        # a device is half a chip: 1e12 FLOP/s and 1e10 B/s
        pytest.param(1e12, 1e9, "compute", 1.0, id="compute"),
        pytest.param(1e11, 1e10, "memory", 1.0, id="memory"),
    ],
)
def test_roofline_of_a_stage(flops, accessed, bound, seconds):
    cost = estimate_cost(module([instruction("a", "1", flops=flops, accessed=int(accessed))]), chip=CHIP)
    assert (cost.stages[0].bound, cost.stages[0].seconds, cost.seconds) == (bound, seconds, seconds)


def test_collective_of_a_stage_is_added_to_its_roofline():
    # 1500 B over 1e9 B/s, and 6 steps of 1 µs
    cost = estimate_cost(module([instruction("a", "1", accessed=100)], [collective(("1",))]), chip=CHIP)
    assert cost.stages[0].collective_seconds == pytest.approx(7.5e-6)
    assert cost.seconds == pytest.approx(1e-8 + 7.5e-6)
    assert cost.stages[0].bound == "collective"


def test_bound_of_a_stage_with_an_unknown_collective_is_unknown():
    unread = collective(("1",)).replace(wire_bytes=None)
    cost = estimate_cost(module([instruction("a", "1", accessed=100)], [unread]), chip=CHIP)
    assert (cost.stages[0].memory_seconds, cost.stages[0].bound) == (pytest.approx(1e-8), "unknown")


# ---- clients


def test_ragged_clients_cost_their_true_share():
    stages = plan(client_stage(elementwise_flops_per_client=20.0))
    cost = estimate_cost(None, stages, examples_per_client=((10, 5, 5, 0), 10))
    assert [c.elementwise_flops for c in cost.clients] == [20.0, 10.0, 10.0, 0.0]
    assert [c.flops for c in cost.clients] == [100.0, 50.0, 50.0, 0.0]
    assert {c.padded_examples for c in cost.clients} == {10}
    assert cost.padding_waste == 0.5  # 20 of 40 examples are real
    assert cost.lockstep_waste == 1.0  # all wait for 10, the mean is 5


def test_nothing_to_price_is_refused():
    with pytest.raises(InspectionError, match="neither a module nor a plan"):
        estimate_cost(None)
