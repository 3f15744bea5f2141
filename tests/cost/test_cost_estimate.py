"""Cost predictions of modules and plans written by hand."""

import pytest
from records_parts import TOY_CHIP, toy_module

from workbench.cost import estimate_cost
from workbench.errors import InspectionError
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.hardware import AxisRecord, ClientRange, MeshRecord
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord, ValueRecord

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


def plan(*stages, at_once=None):
    placements = (PlacementRecord(name="clients", size=4, mesh_axes=("clients",)),)
    return PlanRecord(name="toy", placements=placements, stages=stages, chunk_size=at_once)


def test_costs_of_a_module_add_up_by_stage_times_included():
    cost = estimate_cost(
        module([
            instruction("a", "1", flops=10.0, accessed=3, executions=4.0),
            instruction("b", "1", accessed=5),
            instruction("c", "2", accessed=7, kind="reduce"),
        ])
    )  # fmt: skip
    assert {s.stage: (s.kind, s.flops, s.accessed_bytes) for s in cost.stages} == {
        "1": ("clients", 40.0, 17.0),
        "2": ("reduce", 0.0, 7.0),
    }


def test_stages_are_in_the_order_and_by_the_names_of_the_plan():
    cost = estimate_cost(
        module([instruction("a", "1", accessed=1), instruction("b", None, accessed=1)]),
        plan(stage(0, "broadcast", "broadcast"), client_stage()),
    )
    assert [(s.stage, s.name) for s in cost.stages] == [("0", "broadcast"), ("1", "train"), ("outside", "outside")]


def test_collective_bytes_are_by_axis_and_iteration():
    (only,) = estimate_cost(module([], [collective(("2",), executions=3.0)])).stages
    assert only.collective_bytes == {"clients": 4500.0}


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


def test_unknown_loop_leaves_costs_unknown():
    cost = estimate_cost(module([instruction("a", "1", flops=1.0, accessed=1, executions=None)]), chip=CHIP)
    assert (cost.stages[0].flops, cost.stages[0].accessed_bytes, cost.seconds) == (None, None, None)
    assert cost.stages[0].bound == "unknown"


def test_seconds_are_left_out_without_a_chip():
    cost = estimate_cost(module([instruction("a", "1", flops=1.0)]))
    assert cost.seconds is None


def test_assumptions_name_the_chip_its_source_and_the_modules_notes():
    text = "\n".join(estimate_cost(module([]), chip=CHIP).assumptions)
    for part in ("predicted, not measured", "made up (as of 2026-01-01)", "1 TFLOP/s", "a note of the module"):
        assert part in text


@pytest.mark.parametrize(
    ("topology", "links"), [("switch", "use their port,"), ("torus2d", "use all links of the sub-torus")]
)
def test_assumptions_name_the_links_of_the_topology(topology, links):
    assert links in "\n".join(estimate_cost(module([]), chip=CHIP.replace(topology=topology)).assumptions)


@pytest.mark.parametrize(("domain", "is_named"), [(None, False), (1, False), (2, True)])
def test_assumptions_name_the_network_beyond_chips_that_links_join(domain, is_named):
    said = "\n".join(estimate_cost(module([]), chip=CHIP.replace(domain=domain)).assumptions)
    assert ("use the data-centre network" in said) is is_named


# ---- from a plan alone


@pytest.mark.parametrize(("mesh", "devices"), [(None, 1), (MESH, 4)])
def test_assumptions_of_a_plan_name_the_number_of_devices(mesh, devices):
    said = "\n".join(estimate_cost(None, plan(client_stage()), mesh=mesh).assumptions)
    assert f"the fullest of the {devices} devices" in said


def test_plan_shares_clients_evenly_and_prices_the_reduction():
    value = ValueRecord(name="mean", shape=(250,), dtype="float32", size_bytes=1000)
    reduce = stage(2, "reduce", "reduce_mean", placement="clients", clients=4, outputs=(value,)).replace(
        flops_per_client=0.0, bytes_per_client=0
    )
    cost = estimate_cost(None, plan(client_stage(clients=8), reduce), mesh=MESH)
    assert [(s.flops, s.accessed_bytes) for s in cost.stages] == [(200.0, 100.0), (0.0, 0.0)]
    assert cost.stages[1].collective_bytes == {"clients": 1500.0}  # 2 · 1000 · 3/4


def test_plan_counts_a_loop_once_per_iteration():
    loop = stage(0, "loop", "scan", trip_count=5, body=(client_stage(path="0.1", elementwise_flops_per_client=20.0),))
    cost = estimate_cost(None, plan(loop), mesh=MESH)
    assert {s.stage: (s.flops, s.elementwise_flops) for s in cost.stages} == {"0": (0.0, 0.0), "0.1": (500.0, 100.0)}


def test_plan_with_a_loop_of_unknown_length_has_no_flops():
    loop = stage(0, "loop", "while", body=(client_stage(path="0.1"),))
    assert {s.stage: s.flops for s in estimate_cost(None, plan(loop), mesh=MESH).stages}["0.1"] is None


# ---- clients


def test_clients_without_examples_all_cost_the_same():
    cost = estimate_cost(None, plan(client_stage()))
    assert [(c.client, c.flops, c.accessed_bytes) for c in cost.clients] == [(i, 100.0, 50.0) for i in range(4)]
    assert (cost.padding_waste, cost.lockstep_waste) == (0.0, None)


def test_ragged_clients_cost_their_true_share():
    stages = plan(client_stage(elementwise_flops_per_client=20.0))
    cost = estimate_cost(None, stages, examples_per_client=((10, 5, 5, 0), 10))
    assert [c.elementwise_flops for c in cost.clients] == [20.0, 10.0, 10.0, 0.0]
    assert [c.flops for c in cost.clients] == [100.0, 50.0, 50.0, 0.0]
    assert {c.padded_examples for c in cost.clients} == {10}
    assert cost.padding_waste == 0.5  # 20 of 40 examples are real
    assert cost.lockstep_waste == 1.0  # all wait for 10, the mean is 5


def test_lockstep_waits_for_the_largest_of_each_chunk():
    cost = estimate_cost(None, plan(client_stage(), at_once=2), examples_per_client=((10, 10, 5, 5), 10))
    assert cost.lockstep_waste == 0.0


def test_devices_wait_for_the_slowest_one():
    mesh = MESH.replace(
        clients=tuple(ClientRange(placement="clients", device_id=d, start=2 * d, stop=2 * d + 2) for d in range(2))
    )
    cost = estimate_cost(None, plan(client_stage()), mesh=mesh, examples_per_client=((6, 6, 2, 2), 6))
    assert [c.device_id for c in cost.clients] == [0, 0, 1, 1]
    assert cost.imbalance_waste == 0.5  # both devices take 12; 16 of 24 examples are work


def test_clients_that_several_devices_compute_are_counted_on_the_first_one():
    copies = [ClientRange(placement="clients", device_id=d, start=d // 2 * 2, stop=d // 2 * 2 + 2) for d in range(4)]
    cost = estimate_cost(None, plan(client_stage()), mesh=MESH.replace(clients=tuple(copies)))
    assert [c.device_id for c in cost.clients] == [0, 0, 2, 2]


def test_clients_of_another_placement_are_on_other_devices():
    ranges = [ClientRange(placement=name, device_id=d, start=0, stop=d) for d, name in ((4, "clients"), (2, "pods"))]
    cost = estimate_cost(None, plan(client_stage()), mesh=MESH.replace(clients=tuple(ranges)))
    assert {c.device_id for c in cost.clients} == {4}


def test_empty_slots_are_padding_counted_once_per_copy():
    slots = [ClientRange(placement="clients", device_id=d, start=3 * (d // 2), stop=3 + d // 2, padding=2 * (d // 2))
             for d in range(4)]  # fmt: skip
    cost = estimate_cost(None, plan(client_stage()), mesh=MESH.replace(clients=tuple(slots)))
    assert cost.padding_waste == pytest.approx(2 / 6)


def test_clients_in_a_loop_work_in_every_iteration_and_in_the_dearest_branch():
    branches = (client_stage(path="0.0[0].1"), client_stage(path="0.0[1].1", flops=300.0))
    loop = stage(0, "loop", "scan", trip_count=5, body=(stage(0, "branch", "cond", path="0.0", body=branches),))
    assert {c.flops for c in estimate_cost(None, plan(loop)).clients} == {1500.0}


@pytest.mark.parametrize(
    ("examples", "fact"),
    [
        pytest.param((1, 2), r"for 2 clients, but placement 'clients' has 4", id="too few"),
        pytest.param((1, 2, -1, 0), r"between -1 and 2", id="negative"),
        pytest.param((0, 0, 0, 0), r"between 0 and 0", id="all empty"),
    ],
)
def test_examples_that_do_not_fit_are_refused(examples, fact):
    with pytest.raises(InspectionError, match=fact + r".*pass 4 numbers"):
        estimate_cost(None, plan(client_stage()), examples_per_client=examples)


@pytest.mark.parametrize(
    ("examples", "fact"),
    [
        pytest.param((9, 9, 9, 9), r"is not declared.*examples_per_client=\(counts, 9\)", id="undeclared"),
        pytest.param(((1, 2, 9, 3), 8), r"has 9 examples for client 2, but the arrays have 8", id="more than fit"),
    ],
)
def test_examples_without_a_declared_number_that_fits_are_refused(examples, fact):
    with pytest.raises(InspectionError, match=fact):
        estimate_cost(None, plan(client_stage()), examples_per_client=examples)


def test_a_mask_declares_the_examples_that_batched_arrays_hold():
    inputs = [
        ValueRecord(name=name, shape=shape, dtype=dtype, size_bytes=0)
        for name, shape, dtype in (("d['mask']", (4, 16, 4), "bool"), ("d['x']", (4, 16, 4, 16), "float32"))
    ]
    masked = plan(client_stage()).replace(inputs=tuple(inputs))
    cost = estimate_cost(None, masked, examples_per_client=(3, 5, 9, 12))
    assert {c.padded_examples for c in cost.clients} == {64}
    assert cost.padding_waste == pytest.approx(1 - 29 / 256)


def test_examples_for_a_program_without_clients_are_refused():
    with pytest.raises(InspectionError, match=r"no stage of the program has clients.*positive: omit `examples"):
        estimate_cost(None, plan(stage(0, "server", "server")), examples_per_client=(1, 2))


def test_nothing_to_price_is_refused():
    with pytest.raises(InspectionError, match="neither a module nor a plan"):
        estimate_cost(None)


def test_dtype_without_a_peak_is_refused_with_those_that_have_one():
    with pytest.raises(InspectionError, match=r'dtype=\'int4\' for chip toy.*use one of "bfloat16", "float32"'):
        estimate_cost(module([]), chip=CHIP, dtype="int4")
