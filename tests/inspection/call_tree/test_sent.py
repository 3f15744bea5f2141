"""Bytes that collectives of a jaxpr send, by hand: the traced tree has no compiled module to compare with."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import workbench as wb

SENT = {  # of an operand of 1,024 bytes at each of n devices
    "psum": (lambda x, n: lax.psum(x, "x"), lambda n: 2 * 1024 * (n - 1) / n),
    "all_gather": (lambda x, n: lax.all_gather(x, "x"), lambda n: 1024 * (n - 1)),
    "psum_scatter": (lambda x, n: lax.psum_scatter(x, "x", tiled=True), lambda n: 1024 * (n - 1) / n),
    "ppermute": (lambda x, n: lax.ppermute(x, "x", [(i, (i + 1) % n) for i in range(n)]), lambda n: 1024),
    "all_to_all": (lambda x, n: lax.all_to_all(x.reshape(n, -1), "x", 0, 0), lambda n: 1024 * (n - 1) / n),
}


def traced(name, devices):
    operation, _ = SENT[name]
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))
    fn = lambda x: operation(x, devices)  # noqa: E731
    whole = jax.shard_map(fn, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return wb.trace(whole)(jnp.ones(devices * 256)).call_tree


@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize("name", SENT)
def test_traced_collective_sends_what_a_ring_sends(name, devices):
    assert traced(name, devices).root.total.sent_bytes == pytest.approx({"x": SENT[name][1](devices)})


@pytest.mark.parametrize("name", SENT)
def test_traced_collective_of_one_device_sends_nothing(name):
    assert traced(name, 1).root.total.sent_bytes == {}


def test_collectives_of_one_kind_are_added_up():
    def body(x):
        part = lax.fori_loop(0, 3, lambda _, part: lax.psum(part, "x"), x[:64])
        return lax.psum(x, "x"), part

    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    whole = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    (total,) = wb.trace(whole)(jnp.ones(8 * 256)).call_tree.root.total.collectives
    assert (total.kind, total.axes, total.count, total.executions) == ("all-reduce", ("x",), 2, 1 + 3)
    assert (total.payload_bytes, total.largest_bytes) == (1024 + 3 * 256, 1024)
    assert total.sent_bytes == 2 * (1024 + 3 * 256) * 7 / 8
