"""The propagation as a score: every arrival at its frame, every arrow from the value that it came from."""

import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from workbench import render
from workbench.inspection.sharding import propagate_shardings
from workbench.render import explain_axis, play_back, trace_axes

SVG = "{http://www.w3.org/2000/svg}"
MESH = AbstractMesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)


def struct(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def layers(w, x):
    def step(carry, _):
        return jnp.tanh(carry @ w["up"]) @ w["down"], None

    return jax.lax.scan(step, x, None, length=3)[0].mean(0)


@pytest.fixture(scope="module")
def record():
    w = {"up": struct((16, 32), None, "model"), "down": struct((32, 16), "model", None)}
    lowered = jax.jit(layers).trace(w, struct((8, 16), "clients")).lower(lowering_platforms=("cpu",))
    return propagate_shardings(lowered)


@pytest.fixture(scope="module")
def playback(record):
    return play_back(record, trace_axes(record))


def test_every_axis_of_every_value_arrives_once(record):
    said = {(value.name, axis) for value in record.values for axes in value.spec for axis in axes}
    arrived = [(arrival.value, arrival.axis) for arrival in trace_axes(record)]
    assert len(arrived) == len(set(arrived))
    assert set(arrived) == said


def test_following_arrivals_leads_back_in_time_to_what_the_program_says(record):
    known = {(arrival.value, arrival.axis): arrival for arrival in trace_axes(record)}
    for arrival in known.values():
        steps = []
        while arrival.from_value is not None:
            steps.append(arrival.step)
            arrival = known[arrival.from_value, arrival.axis]
        assert steps == sorted(steps, reverse=True)
        assert arrival.step is None
        assert "Given in the program" in arrival.sentence


def test_arrivals_report_the_same_chain_as_explain_axis(record):
    known = {(arrival.value, arrival.axis): arrival for arrival in trace_axes(record)}
    (inside,) = [value for value in record.values if value.operation == "tanh"]
    arrival, chain = known[inside.name, "model"], []
    while True:
        chain.append(arrival.sentence)
        if arrival.from_value is None:
            break
        arrival = known[arrival.from_value, "model"]
    assert tuple(chain) == explain_axis(record, inside.name, "model")[1:]


def test_every_sharded_value_is_a_row_and_every_arrival_a_tag(playback):
    root = ET.fromstring(render.svg(playback))
    rows = [node.attrib["data-value"] for node in root.iter(f"{SVG}g") if "data-value" in node.attrib]
    assert rows == [value.name for value in playback.values]
    tags = [node for node in root.iter(f"{SVG}g") if node.attrib.get("class") == "wb-tag-axis"]
    assert len(tags) == sum(len(arrival.dimensions) for arrival in playback.arrivals)


def test_arrows_appear_at_the_frame_of_their_arrival(playback):
    root = ET.fromstring(render.svg(playback))
    arcs = [node.attrib for node in root.iter(f"{SVG}g") if node.attrib.get("class") == "wb-arc"]
    expected = {
        (arrival.from_value, arrival.value, arrival.axis): playback.frame_of(arrival)
        for arrival in playback.arrivals
        if arrival.from_value is not None
    }
    assert {(a["data-from"], a["data-to"], a["data-axis"]): int(a["data-frame"]) for a in arcs} == expected
    assert max(expected.values()) == len(playback.steps)


def test_long_programs_are_turned_page_by_page(playback):
    count = len(playback.values)
    pages = [render.svg(playback, first=first, rows_at_most=5) for first in range(0, count, 5)]
    shown = [
        node.attrib["data-value"]
        for page in pages
        for node in ET.fromstring(page).iter()
        if "data-value" in node.attrib
    ]
    assert shown == [value.name for value in playback.values]


def test_text_reports_the_steps_in_order(playback):
    lines = render.text(playback, arrivals_at_most=1000).splitlines()
    assert lines[0].startswith("Propagation: from 3 values to ")
    steps = [int(line.split("Step ")[1].split(":")[0]) for line in lines if "Step " in line]
    assert steps == sorted(steps)
    assert len(lines) == 1 + len(playback.arrivals)


def test_what_a_shard_map_asks_for_is_reported():
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "clients"), mesh=MESH, in_specs=P("clients"), out_specs=P())
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    with jax.sharding.use_abstract_mesh(MESH):
        record = propagate_shardings(jax.jit(lambda x: mapped(x * 2)).trace(x).lower(lowering_platforms=("cpu",)))
    said = [arrival.sentence for arrival in trace_axes(record)]
    assert any("shard_map" in sentence for sentence in said)
