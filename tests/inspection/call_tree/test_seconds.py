"""Seconds on the nodes of a tree: predicted from a chip's peaks, measured from a profile."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.cost import collective_seconds, known_chip, time_module
from workbench.inspection import inspect_module
from workbench.inspection._call_tree._seconds import predict_seconds
from workbench.records.hardware import AxisRecord, MeshRecord

RECORDED = Path(__file__).parents[1] / "hlo_samples" / "round_v5e_2x4.hlo.txt"
MESH = MeshRecord(
    axes=(AxisRecord(name="clients", size=4), AxisRecord(name="model", size=2)), devices=(), abstract=True
)


def train(x, w):
    return jnp.tanh(x @ w).sum()


@functools.cache
def traced():
    return wb.trace(train)(jnp.ones((64, 128)), jnp.ones((128, 32)))


def test_a_product_takes_what_its_flops_or_its_bytes_take():
    tree = traced().inspect(on="v5e").call_tree
    (product,) = (node for node in tree.nodes if node.own.flops_matmul)
    # 93 % of the peak, 87 % of 819 GB/s; operations of a CPU's compiler are priced without a fixed cost
    longest = max(product.own.flops_matmul / 197e12 / 0.93, product.own.traffic_bytes / 819e9 / 0.87)
    assert product.own.predicted_seconds == pytest.approx(longest, rel=0.01)


def test_without_a_chip_no_second_is_predicted():
    assert traced().inspect().call_tree.root.total.predicted_seconds is None


def test_predicted_seconds_add_up():
    tree = traced().inspect(on="v5e").call_tree
    parts = sum(node.own.predicted_seconds or 0.0 for node in tree.nodes)
    assert tree.root.total.predicted_seconds == pytest.approx(parts)


def test_seconds_of_a_recorded_module_add_up():
    module, chip = inspect_module(RECORDED.read_text(), mesh=MESH), known_chip("v5e")
    executions = {each.name: each.executions for each in (*module.instructions, *module.collectives)}
    seconds = [time.seconds * executions[name] for name, time in time_module(module, chip, "float32").items()]
    tree = predict_seconds(module.call_tree, module, chip, "float32")
    assert tree.root.total.predicted_seconds == pytest.approx(sum(seconds))


def test_a_collective_takes_its_seconds_once():
    @wb.program(clients=8)
    def mean(rows):
        return wb.reduce_mean(wb.map_fn(jnp.sin, rows))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        record = wb.inspect(mean, on="v5e")(jnp.ones((8, 4096)))
    (collective,) = record.module.collectives
    nodes = [node for node in record.call_tree.nodes if collective.name in node.instructions]
    assert [node.name for node in nodes] == ["all-reduce"]
    assert nodes[0].own.peak_bytes  # what it holds is where its work is
    once = collective_seconds("all-reduce", collective.payload_bytes, 8, known_chip("v5e"))
    assert nodes[0].own.predicted_seconds == pytest.approx(once, rel=0.01)


@pytest.mark.parametrize("chip", ["v2", "v3", "L40S", "H100 PCIe"])
def test_a_collective_without_a_known_bandwidth_leaves_the_nodes_above_it_unknown(chip):
    @wb.program(clients=8)
    def mean(rows):
        return wb.reduce_mean(wb.map_fn(jnp.sin, rows))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        record = wb.inspect(mean, on=chip)(jnp.ones((8, 4096)))
    root = record.call_tree.root.total
    assert (record.cost.seconds, root.predicted_seconds, root.unknown_seconds) == (None, None, True)
    assert record.call_tree.fold(operations=True).root.total.predicted_seconds is None
    assert any(node.own.predicted_seconds for node in record.call_tree.nodes)  # the sine's
    assert any("no bandwidth of" in note or "exceed" in note for note in record.call_tree.notes)


def test_tree_and_cost_agree():
    record = traced().inspect(on="v5e")
    assert record.call_tree.root.total.predicted_seconds == pytest.approx(record.cost.seconds)


def test_a_run_lays_its_seconds_on_the_tree():
    run = traced().measure(rounds=2)
    (device,) = run.call_tree.root.total.measured_seconds
    spans = sum(event.seconds for event in run.events if event.where == device)
    assert run.call_tree.root.total.measured_seconds[device] == pytest.approx(spans / 2)
