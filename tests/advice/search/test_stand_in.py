"""What the CPU's compiler writes, priced as an accelerator's would write it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import workbench as wb
from workbench.advice._search._stand_in import as_accelerator


def collective(fn, dtype, out):
    """The all-reduce of a program on four devices, as the CPU's compiler wrote it and as it is priced."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    shard = jax.shard_map(fn, mesh=mesh, in_specs=P("data"), out_specs=out)
    module = wb.inspect(jax.jit(shard), on=mesh)(jax.ShapeDtypeStruct((64, 32), dtype)).module
    [before], [after] = module.collectives, as_accelerator(module).collectives
    return before, after


def own_rows(x):
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index("data") * 4, 4)


def test_sum_of_which_each_device_reads_a_slice_is_a_reduce_scatter():
    before, after = collective(lambda x: own_rows(jax.lax.psum(x, "data")), "float32", P("data"))
    assert (before.kind, after.kind) == ("all-reduce", "reduce-scatter")
    assert after.payload_bytes == before.payload_bytes
    assert after.wire_bytes == before.wire_bytes / 2


def test_sum_that_is_read_whole_stays():
    before, after = collective(lambda x: jnp.tanh(jax.lax.psum(x, "data")), "float32", P())
    assert after == before


def test_sum_of_16_bit_numbers_is_sent_in_16_bits():
    _, after = collective(lambda x: jax.lax.psum(x, "data"), "bfloat16", P())
    assert after.payload_bytes == 16 * 32 * 2


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sum_of_wide_numbers_keeps_its_width(dtype):
    _, after = collective(lambda x: jax.lax.psum(x, "data"), dtype, P())
    assert after.payload_bytes == 16 * 32 * 4
