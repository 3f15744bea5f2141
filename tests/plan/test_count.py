"""The jaxpr counter against counts worked out by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from workbench.plan import valid_positions
from workbench.plan._count import count_jaxpr_work
from workbench.primitives import map_fn, program

X = jnp.ones((8, 16))
W = jnp.ones((16, 16))
STEP = 2 * 8 * 16 * 16  # one `X @ W`


def _layers(x, w):
    def layer(carry, _):
        return jnp.tanh(jax.nn.relu(carry @ w)), None

    return jax.lax.scan(jax.checkpoint(layer), x, None, length=7)[0].sum()


def _scan_in_scan(x, w):
    def outer(carry, _):
        return jax.lax.scan(lambda c, _: (c @ w, None), carry, None, length=3)[0], None

    return jax.lax.scan(outer, x, None, length=5)[0]


def _branches(x, w):
    return jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x @ w)


def _twice(x, w):
    product = jax.jit(jnp.dot)
    return product(x, w), product(x, 2 * w)


def _sharded(x, w):
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    return jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))(x, w)


def _dead(x, w):
    x @ w @ w
    return x @ w


@pytest.mark.parametrize(
    ("fn", "flops"),
    [
        pytest.param(jnp.dot, STEP, id="dot"),
        pytest.param(lambda x, w: jax.vmap(jnp.dot, (0, None))(x, w), STEP, id="vmapped vector-matrix"),
        pytest.param(lambda x, w: jnp.einsum("bi,bij->bj", x, jnp.ones((8, 16, 5))), 2 * 8 * 16 * 5, id="batched"),
        pytest.param(_layers, 7 * STEP, id="scan of remat"),
        # forward, rematerialised forward, and one product each for the gradients of x and w
        pytest.param(jax.grad(_layers, argnums=(0, 1)), 7 * 4 * STEP, id="gradient of scan of remat"),
        pytest.param(_scan_in_scan, 3 * 5 * STEP, id="scan in scan"),
        pytest.param(_branches, 2 * STEP, id="the larger branch"),
        pytest.param(_twice, 2 * STEP, id="one jitted function called twice"),
        pytest.param(_sharded, STEP, id="shard_map over 8 devices"),
        pytest.param(_dead, STEP, id="dead code left out"),
        pytest.param(lambda x, w: jax.lax.fori_loop(0, 6, lambda _, c: c @ w, x), 6 * STEP, id="fori_loop"),
        pytest.param(lambda x, w: x + 1, 0, id="elementwise work is not counted as dot products"),
    ],
)
def test_count_of_dot_products_is_exact(fn, flops):
    assert count_jaxpr_work(jax.make_jaxpr(fn)(X, W)).flops == flops


@pytest.mark.parametrize(
    ("stride", "padding", "groups", "flops"),
    [
        # "valid" 3×3 on 9×9 gives 7×7 positions of 9 taps; 2 images, 4 features in, 6 out
        pytest.param(1, "VALID", 1, 2 * 2 * 4 * 6 * 7 * 7 * 9, id="valid"),
        # "same": along one dimension 7 positions of 3 taps and 2 of 2 taps = 25 of 27
        pytest.param(1, "SAME", 1, 2 * 2 * 4 * 6 * 25 * 25, id="same counts no padding"),
        # stride 2 "same" on 9: 5 positions, the first and the last with 2 taps = 13
        pytest.param(2, "SAME", 1, 2 * 2 * 4 * 6 * 13 * 13, id="stride"),
        pytest.param(1, "VALID", 2, 2 * 2 * 2 * 6 * 7 * 7 * 9, id="feature groups"),
    ],
)
def test_count_of_convolutions_leaves_padding_out(stride, padding, groups, flops):
    def convolve(x, k):
        return jax.lax.conv_general_dilated(x, k, (stride, stride), padding, feature_group_count=groups)

    jaxpr = jax.make_jaxpr(convolve)(jnp.ones((2, 4, 9, 9)), jnp.ones((6, 4 // groups, 3, 3)))
    assert count_jaxpr_work(jaxpr).flops == flops


def test_count_is_unknown_for_a_while_loop_that_multiplies_matrices():
    work = count_jaxpr_work(jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: y @ W, x))(X))
    assert (work.flops, work.accessed_bytes) == (None, None)
    assert "unknown length" in work.notes[0]


def test_count_knows_flops_around_a_while_loop_without_matrix_products():
    work = count_jaxpr_work(
        jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: y + 1, x) @ W)(X)
    )
    assert work.flops == STEP
    assert work.elementwise_flops is None


def test_count_says_which_operations_have_no_formula():
    work = count_jaxpr_work(jax.make_jaxpr(jnp.linalg.cholesky)(W))
    assert work.notes == ("FLOPs of `cholesky` are not counted",)


def test_count_of_bytes_fuses_elementwise_chains():
    # reads x once (512 B), writes the result once; the two values between stay in registers
    count = count_jaxpr_work(jax.make_jaxpr(lambda x: jnp.exp(x * 2) + 1)(X))
    assert count.accessed_bytes == 2 * X.nbytes


def test_count_of_bytes_reads_scanned_weights_in_every_iteration():
    # each of 5 turns reads the carry and w, writes the carry
    count = count_jaxpr_work(
        jax.make_jaxpr(lambda x, w: jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=5)[0])(X, W)
    )
    assert count.accessed_bytes == 5 * (2 * X.nbytes + W.nbytes)


def test_count_of_bytes_of_a_slice_is_what_it_takes():
    count = count_jaxpr_work(jax.make_jaxpr(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 2))(X, 0))
    assert count.accessed_bytes == pytest.approx(2 * 2 * 16 * 4, abs=32)  # and the index


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("base_dilation", [1, 2, 3])
@pytest.mark.parametrize("padding", [-2, 0, 1, 5])
def test_valid_positions_match_enumeration(stride, dilation, base_dilation, padding):
    size, window, out = 6, 4, 7
    real = {i * base_dilation for i in range(size)}
    expected = sum(o * stride + t * dilation - padding in real for o in range(out) for t in range(window))
    found = valid_positions(
        size, window, out, stride=stride, padding_low=padding, base_dilation=base_dilation, dilation=dilation
    )
    assert found == expected


def test_count_of_mapped_clients_is_that_of_one_client_times_their_number():
    @program(clients=6)
    def mapped(x):
        return map_fn(lambda row: row @ W, x)

    jaxpr = jax.make_jaxpr(mapped)(jnp.ones((6, 8, 16)))
    assert count_jaxpr_work(jaxpr).flops == 6 * STEP
    # and W is broadcast: read once, written six times
    assert count_jaxpr_work(jaxpr).accessed_bytes == 6 * (2 * X.nbytes + W.nbytes) + 7 * W.nbytes
