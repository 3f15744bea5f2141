"""The jaxpr counter against counts worked out by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from workbench.plan import main_product, valid_positions, walk_jaxpr_work
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


PROGRAMS = pytest.mark.parametrize(
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


@PROGRAMS
def test_count_of_dot_products_is_exact(fn, flops):
    assert count_jaxpr_work(jax.make_jaxpr(fn)(X, W)).flops == flops


@PROGRAMS
def test_work_of_the_equations_adds_up_to_the_count(fn, flops):
    jaxpr = jax.make_jaxpr(fn)(X, W)
    count, works = count_jaxpr_work(jaxpr), list(walk_jaxpr_work(jaxpr))
    assert sum(work.flops for work in works) == flops
    assert sum(work.elementwise_flops for work in works) == count.elementwise_flops
    assert sum(work.accessed_bytes for work in works) == count.accessed_bytes
    assert not any(work.at_least for work in works)


@pytest.mark.parametrize(
    ("fn", "executions", "copies"),
    [(jnp.dot, 1, 1), (_scan_in_scan, 3 * 5, 1), (_sharded, 8, 8)],
    ids=["", "scan", "mesh"],
)
def test_executions_of_a_product_are_counted(fn, executions, copies):
    (product,) = (work for work in walk_jaxpr_work(jax.make_jaxpr(fn)(X, W)) if work.flops)
    assert product.chain[-1].primitive.name == "dot_general"
    assert (product.executions, product.copies) == (executions, copies)


def test_a_loop_of_unknown_length_is_walked_once():
    def fn(x):
        return (
            jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: jax.lax.fori_loop(0, 3, lambda _, z: z @ W, y), x) @ W
        )

    once, after = (work for work in walk_jaxpr_work(jax.make_jaxpr(fn)(X)) if work.flops)
    assert (once.flops, once.at_least) == (3 * STEP, True)
    assert (after.flops, after.at_least) == (STEP, False)


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (lambda x, w: x + 1, None),
        (lambda x, w: x @ w, "float32"),
        (lambda x, w: jnp.dot(x, w, precision="highest"), "float32:highest"),
        (lambda x, w: jnp.dot(x, w, precision="high"), "float32:high"),
        (lambda x, w: x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16), "bfloat16"),
        (lambda x, w: jax.lax.dot(x.astype(jnp.bfloat16), w, preferred_element_type=jnp.float32), "float32"),
        # two products in bfloat16 have more FLOPs than one in float32
        (lambda x, w: (x @ w, x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)), "bfloat16"),
        (lambda x, w: (x @ w @ w, x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)), "float32"),
    ],
    ids=["none", "float32", "highest", "high", "bfloat16", "the wider operand", "most in bfloat16", "most in float32"],
)
def test_the_kind_of_product_with_most_flops_is_named(fn, kind):
    assert main_product(jax.make_jaxpr(fn)(X, W)) == kind


def test_a_complex_multiplication_is_four_real_ones():
    x, w = X.astype(jnp.complex64), W.astype(jnp.complex64)
    assert count_jaxpr_work(jax.make_jaxpr(jnp.dot)(x, w)).flops == 4 * STEP


def test_rows_of_a_ragged_product_are_counted_once():
    x, groups, sizes = jnp.ones((12, 5)), jnp.ones((3, 5, 7)), jnp.array([2, 6, 4])
    once = 2 * 12 * 5 * 7

    def product(x, groups):
        return jax.lax.ragged_dot(x, groups, sizes)

    def both_gradients(x, groups):
        return jax.vjp(product, x, groups)[1](jnp.ones((12, 7)))

    assert count_jaxpr_work(jax.make_jaxpr(product)(x, groups)).flops == once
    assert count_jaxpr_work(jax.make_jaxpr(both_gradients)(x, groups)).flops == 2 * once


def test_a_convolution_in_groups_of_the_batch_uses_each_image_once():
    # 2 groups of 2 images; 6 features out of 4, at 7×7 positions of 9 taps
    convolve = lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", batch_group_count=2)  # noqa: E731
    jaxpr = jax.make_jaxpr(convolve)(jnp.ones((4, 4, 9, 9)), jnp.ones((6, 4, 3, 3)))
    assert count_jaxpr_work(jaxpr).flops == 2 * 2 * 6 * 4 * 7 * 7 * 9


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


def test_count_of_bytes_of_an_update_reads_its_indices_once():
    def update(x, i):
        return jax.lax.dynamic_update_slice(x, TWO, (i, i), allow_negative_indices=False)

    assert count_jaxpr_work(jax.make_jaxpr(update)(X, jnp.int32(0))).accessed_bytes == 2 * TWO.nbytes + 2 * 4


ROWS = jnp.zeros((2, 1), jnp.int32)
TWO = jnp.ones((2, 16))
ROW = 16 * 4


def _gathered(x):
    numbers = jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    return jax.lax.gather(x, ROWS, numbers, (1, 16), mode="clip")


def _smaller(a, b):
    return jnp.where(a * a < b * b, a, b)


def _scattered(x):
    numbers = jax.lax.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    return jax.lax.scatter_add(x, ROWS, TWO, numbers, mode="clip")


@pytest.mark.parametrize(
    ("fn", "size"),
    [
        pytest.param(lambda x: jax.lax.dynamic_update_slice(x, TWO, (0, 0)), 2 * 2 * ROW, id="update of two rows"),
        pytest.param(_gathered, 2 * 2 * ROW + ROWS.nbytes, id="gather of two rows"),
        pytest.param(_scattered, 3 * 2 * ROW + ROWS.nbytes, id="scatter into two rows"),
        pytest.param(lambda x: jax.lax.reduce_sum(x, (0,)), 8 * ROW + ROW, id="sum of the rows"),
        pytest.param(lambda x: jax.lax.sort(x), 2 * 8 * ROW, id="sort"),
    ],
)
def test_count_of_bytes_of_single_operations(fn, size):
    assert count_jaxpr_work(jax.make_jaxpr(fn)(X)).accessed_bytes == size


@pytest.mark.parametrize(
    ("fn", "flops"),
    [
        pytest.param(_scattered, TWO.size, id="an addition for each scattered element"),
        pytest.param(lambda x: jax.lax.reduce(x, jnp.inf, _smaller, (0, 1)), X.size, id="a reduction by a function"),
    ],
)
def test_a_function_of_two_elements_is_counted_for_each_element(fn, flops):
    assert count_jaxpr_work(jax.make_jaxpr(fn)(X)).elementwise_flops == flops
    assert sum(work.elementwise_flops for work in walk_jaxpr_work(jax.make_jaxpr(fn)(X))) == flops


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


@pytest.mark.parametrize(("size", "window", "out"), [(0, 4, 7), (6, 0, 7), (6, 4, 0)])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_convolution_without_elements_taps_or_results_multiplies_nothing(size, window, out, padding):
    assert valid_positions(size, window, out, padding_low=padding) == 0


def test_count_of_mapped_clients_is_that_of_one_client_times_their_number():
    @program(clients=6)
    def mapped(x):
        return map_fn(lambda row: row @ W, x)

    jaxpr = jax.make_jaxpr(mapped)(jnp.ones((6, 8, 16)))
    assert count_jaxpr_work(jaxpr).flops == 6 * STEP
    # and W is broadcast: read once, written six times
    assert count_jaxpr_work(jaxpr).accessed_bytes == 6 * (2 * X.nbytes + W.nbytes) + 7 * W.nbytes


def test_tokens_take_no_memory():
    def ordered(x):
        return x @ x, jax.lax.after_all(jax.lax.create_token())

    plain, with_tokens = (count_jaxpr_work(jax.make_jaxpr(fn)(jnp.ones((8, 8)))) for fn in (lambda x: x @ x, ordered))
    assert with_tokens.accessed_bytes == plain.accessed_bytes == 3 * 8 * 8 * 4
