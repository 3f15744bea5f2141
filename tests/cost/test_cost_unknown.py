"""What has no published figure is unknown, and never 0 seconds."""

import jax.numpy as jnp
import pytest
from records_parts import toy_module

import workbench as wb
from workbench import render
from workbench.cost import estimate_cost, known_chip
from workbench.cost._operations import nearest_dtype
from workbench.records.compiled import CollectiveRecord


def module(**changes):
    sent = {
        "name": "all-reduce", "kind": "all-reduce", "axes": ("clients",), "group_size": 8, "groups": 1,
        "payload_bytes": 1 << 22, "wire_bytes": 7.0 * (1 << 20), "executions": 1.0, "stages": ("2",),
    }  # fmt: skip
    return toy_module(name="jit_round", platform="tpu", devices=8, collectives=(CollectiveRecord(**sent | changes),))


def seconds(chip, **changes):
    return estimate_cost(module(**changes), chip=known_chip(chip)).seconds


def reasons(chip, **changes):
    """Why seconds are not predicted, of every stage."""
    cost = estimate_cost(module(**changes), chip=known_chip(chip))
    assert all(why in render.text(cost) for stage in cost.stages for why in stage.unknown_because)
    return " ".join(why for stage in cost.stages for why in stage.unknown_because)


def test_collective_without_a_published_link_makes_the_total_unknown():
    assert seconds("v5e") is not None
    assert seconds("v3") is None
    assert seconds("H100 PCIe") is None
    assert reasons("v5e") == ""
    assert "no bandwidth of v3's links is published" in reasons("v3")


def test_collective_beyond_the_fast_links_is_unknown_without_a_network():
    assert seconds("H100", group_size=1024) is None  # NVLink joins 8; what is beyond is not the chip's
    assert "groups of 1,024 devices exceed the 8 that H100's links join" in reasons("H100", group_size=1024)
    assert seconds("v5e", group_size=1024) is not None


def test_transfer_between_slices_of_unknown_partners_makes_the_total_unknown():
    assert seconds("v5e", kind="send", group_size=0, groups=0, wire_bytes=None) is None
    assert "an unknown syntax" in reasons("v5e", kind="send", group_size=0, groups=0, wire_bytes=None)


def test_error_of_the_family_is_among_the_assumptions():
    said = " ".join(estimate_cost(module(), chip=known_chip("MI300X")).assumptions)
    assert "Errors of predicted seconds on AMD chips" in said
    said = " ".join(estimate_cost(module(), chip=known_chip("MI300X").replace(name="unlisted")).assumptions)
    assert "The error in predicted seconds on unlisted is unknown" in said


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chip", ["v5e", "H100", "tpu7x"])
def test_measurement_states_its_share_of_the_peak(chip, dtype):
    x = jnp.ones((64, 64), dtype)
    run = wb.measure(lambda x: x @ x, on=chip, rounds=1)(x)
    shares = [stage.peak_flops_share for stage in run.stages if stage.flops_per_second]
    assert shares
    assert all(share is not None and 0 < share < 1 for share in shares)


def test_float8_is_priced_as_float8():
    for chip in ("v6e", "v5p", "tpu7x", "H100"):
        assert nearest_dtype("float8_e4m3fn", known_chip(chip)) == "float8_e4m3fn"
    assert nearest_dtype("float8_e4m3fn", known_chip("MI300X")).startswith("float8")
    assert nearest_dtype("float32", known_chip("v6e")) == "bfloat16"
