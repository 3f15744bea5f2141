"""Figures and text of predicted cost: numbers where they belong, and a sentence where there is nothing to show."""

import pytest
from records_parts import TOY_CHIP, toy_module

from workbench import render
from workbench.records.compiled import ClientCostRecord, CollectiveRecord, CostRecord, ScaledCostRecord, StageCostRecord
from workbench.render._cost import collective_bytes

CHIP = TOY_CHIP.replace(
    peak_flops_per_second={"bfloat16": 100.0, "int8": 200.0},
    hbm_bytes=1000,
    hbm_bytes_per_second=10.0,
    link_bytes_per_second=1.0,
    links=2,
    topology="torus2d",
    devices_per_chip=2,
)
TRAIN = StageCostRecord(
    stage="1",
    kind="clients",
    name="train",
    flops=400.0,
    accessed_bytes=20.0,
    collective_bytes={"model": 3.0},
    compute_seconds=8.0,
    memory_seconds=4.0,
    collective_seconds=2.0,
    bound="compute",
)
MEAN = StageCostRecord(
    stage="2",
    kind="reduce",
    name="mean",
    flops=5.0,
    accessed_bytes=10.0,
    collective_bytes={"clients": 6.0, "model": 1.0},
    compute_seconds=0.1,
    memory_seconds=2.0,
    collective_seconds=6.0,
    bound="collective",
)
COST = CostRecord(
    stages=(TRAIN, MEAN),
    chip=CHIP,
    seconds=18.0,
    padding_waste=0.25,
    assumptions=("no overlap",),
    clients=(
        ClientCostRecord(client=0, device_id=0, flops=100.0, accessed_bytes=5.0),
        ClientCostRecord(client=1, device_id=0, flops=300.0, accessed_bytes=5.0),
    ),
)
NOWHERE = CostRecord(stages=(TRAIN.replace(compute_seconds=None, memory_seconds=None),))


def all_reduce(axes, stages, executions: float | None, wire, **more):
    return CollectiveRecord(
        name="a",
        kind="all-reduce",
        axes=axes,
        group_size=2,
        groups=1,
        payload_bytes=1,
        wire_bytes=wire,
        executions=executions,
        stages=stages,
        **more,
    )


MODULE = toy_module(
    name="m",
    devices=2,
    flops=1.0,
    accessed_bytes=1.0,
    collectives=(
        all_reduce(("model",), ("1",), 4.0, 10.0),
        all_reduce(("model",), ("1",), 1.0, 2.0),
        all_reduce(("clients", "model"), ("1", "2"), 1.0, 5.0),
        all_reduce(("model",), (), 1.0, 1.0),
        all_reduce((), ("2",), 1.0, 7.0),
        all_reduce(("model",), ("2",), None, 100.0),
    ),
)


def said(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_roof_bends_where_peak_meets_bandwidth_of_one_device():
    (axes,) = render.plot(COST).axes
    xs, ys = axes.lines[0].get_data()
    # Two devices share a chip: 50 FLOP/s and 5 bytes/s each, the ridge at 10 FLOP per byte.
    assert (xs[1], ys[1], ys[2]) == (10.0, 50.0, 50.0)
    assert "bfloat16 peak 50 FLOP/s" in said(axes.figure)


def test_roofline_has_the_peak_of_the_asked_dtype():
    (axes,) = render.plot(COST, dtype="int8").axes
    assert axes.lines[0].get_data()[1][2] == 100.0


def test_stages_lie_at_their_intensity_and_predicted_speed():
    (axes,) = render.plot(COST).axes
    places = [tuple(point) for dots in axes.collections for point in dots.get_offsets()]
    assert places == [(20.0, 40.0), (0.5, 0.625)]  # 400/20 at 400/(8+2) FLOP/s; 5/10 at 5/(2+6)


@pytest.mark.parametrize(
    ("cost", "why"),
    [(NOWHERE, "a roofline needs a chip; none was chosen"), (COST.replace(stages=()), "no stage has matrix FLOPs")],
    ids=["no-chip", "no-stages"],
)
def test_roofline_without_data_says_why(cost, why):
    assert said(render.plot(cost)) == [why]


def test_collective_bytes_add_loop_iterations_and_leave_unknown_loops_out():
    assert collective_bytes(MODULE) == {
        ("1", "model"): 42.0,
        ("1+2", "clients+model"): 5.0,
        ("unknown", "model"): 1.0,
        ("2", "not a product of axes"): 7.0,
    }


def test_combined_collective_is_shared_out_where_the_shares_are_known():
    combined = all_reduce(("m",), ("1", "2"), 2.0, 10.0, stage_shares={"1": 0.75, "2": 0.25})
    assert collective_bytes(MODULE.replace(collectives=(combined,))) == {("1", "m"): 15.0, ("2", "m"): 5.0}


@pytest.mark.parametrize("dark", [None, False, True], ids=["either", "light", "dark"])
def test_figures_are_drawn_in_every_theme(dark):
    assert render.plot(COST, dark=dark).png().startswith(b"\x89PNG")


def test_text_says_predicted_bounds_waste_and_assumptions():
    assert render.text(COST).splitlines() == [
        "Predicted cost per device on toy: 18 s per call (error unknown).",
        "  1 clients train: 400 FLOP, 20 B of HBM, sends 3 B over model, 10 s (compute-bound)",
        "  2 reduce mean: 5 FLOP, 10 B of HBM, sends 6 B over clients, 1 B over model, 8 s (collective-bound)",
        "  2 clients: 100 FLOP to 300 FLOP each, 200 FLOP on average",
        "  wasted by padding: 25.0 %",
        "Assumes: no overlap",
    ]


def test_text_of_an_estimate_counts_the_members_of_its_placement():
    scaled = ScaledCostRecord(
        cost=COST, memory=None, placement="replicas", clients=256, clients_per_device=32, chunk_size=1, devices=8,
        idle_devices=0, model=1.0,
    )  # fmt: skip
    assert render.text(scaled).startswith("Estimated, not compiled: 256 replicas on 8 devices, at most 32 per device.")


def test_text_without_a_chip_has_no_seconds():
    assert render.text(NOWHERE).startswith("Predicted cost per device (no chip chosen, so no seconds).")
