"""Bytes that collectives of a jaxpr send, by hand: the traced tree has no compiled module to compare with."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import workbench as wb

SENT = {  # of an operand of 1,024 bytes at each of 8 devices
    "psum": (lambda x: lax.psum(x, "x"), 2 * 1024 * 7 / 8),
    "all_gather": (lambda x: lax.all_gather(x, "x"), 1024 * 7),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "x", tiled=True), 1024 * 7 / 8),
    "ppermute": (lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 8) for i in range(8)]), 1024),
    "all_to_all": (lambda x: lax.all_to_all(x.reshape(8, -1), "x", 0, 0), 1024 * 7 / 8),
}


@pytest.mark.parametrize("name", SENT)
def test_traced_collective_sends_what_a_ring_sends(name):
    fn, sent = SENT[name]
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    whole = jax.shard_map(fn, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    tree = wb.trace(whole)(jnp.ones(8 * 256)).call_tree
    assert tree.root.total.sent_bytes == pytest.approx({"x": sent})
