"""Seconds on the nodes of a tree: predicted from a chip's peaks, measured from a profile."""

import functools

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.cost import collective_seconds, known_chip


def train(x, w):
    return jnp.tanh(x @ w).sum()


@functools.cache
def traced():
    return wb.trace(train)(jnp.ones((64, 128)), jnp.ones((128, 32)))


def test_a_product_takes_what_its_flops_or_its_bytes_take():
    tree = traced().inspect(chip="v5e").call_tree
    (product,) = (node for node in tree.nodes if node.own.flops_matmul)
    longest = max(product.own.flops_matmul / 197e12, product.own.traffic_bytes / 819e9)
    assert product.own.predicted_seconds == pytest.approx(longest, rel=0.01)


def test_without_a_chip_no_second_is_predicted():
    assert traced().inspect().call_tree.root.total.predicted_seconds is None


def test_predicted_seconds_add_up():
    tree = traced().inspect(chip="v5e").call_tree
    parts = sum(node.own.predicted_seconds or 0.0 for node in tree.nodes)
    assert tree.root.total.predicted_seconds == pytest.approx(parts)


def test_a_collective_takes_its_seconds_once():
    @wb.program(clients=8)
    def mean(rows):
        return wb.reduce_mean(wb.map_fn(jnp.sin, rows))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        record = wb.inspect(mean, chip="v5e")(jnp.ones((8, 4096)))
    (collective,) = record.module.collectives
    nodes = [node for node in record.call_tree.nodes if collective.name in node.instructions]
    assert [node.name for node in nodes] == ["all-reduce"]
    assert nodes[0].own.peak_bytes  # what it holds is where its work is
    once = collective_seconds("all-reduce", collective.payload_bytes, 8, known_chip("v5e"))
    assert nodes[0].own.predicted_seconds == pytest.approx(once, rel=0.01)


def test_a_run_lays_its_seconds_on_the_tree():
    run = traced().measure(rounds=2)
    (device,) = run.call_tree.root.total.measured_seconds
    spans = sum(event.seconds for event in run.events if event.where == device)
    assert run.call_tree.root.total.measured_seconds[device] == pytest.approx(spans / 2)
