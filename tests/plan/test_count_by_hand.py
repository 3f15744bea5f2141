"""FLOPs and bytes of single operations, derived by hand. All arrays are float32 unless the shape says otherwise."""

import math

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

from workbench.plan import walk_jaxpr_work
from workbench.plan._count import JaxprCount, count_jaxpr_work


def s(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def counted(fn, *shapes):
    return count_jaxpr_work(jax.make_jaxpr(fn)(*shapes))


def window(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (2,), (1,), "VALID")


DEFAULT = lax.ScatterDimensionNumbers(
    update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
X, Y, INDEX = s(3, 4), s(4, 5), s(2, 1, dtype="int32")


@pytest.mark.parametrize(
    ("fn", "shapes", "flops", "elementwise", "accessed"),
    [
        # arithmetic counts one FLOP per result; a chain of it reads its inputs and writes its results
        (lambda x: x + x, (X,), 0, 12, 2 * 48),
        (lambda x: jnp.tanh(x) * x, (X,), 0, 24, 2 * 48),
        (lambda x: lax.neg(x), (s(3, dtype="int8"),), 0, 3, 6),
        (lambda x: (lax.exp(x), lax.exp(lax.sin(x))), (X,), 0, 36, 3 * 48),
        # moves and comparisons are free, but their results are written
        (lambda x: x.T, (X,), 0, 0, 2 * 48),
        (lambda x: x > 0, (X,), 0, 0, 48 + 12),
        (lambda x: lax.broadcast(x, (5,)), (s(3),), 0, 0, 12 + 60),
        (lambda x: x, (X,), 0, 0, 0),
        # reductions count their operands, and write their results
        (lambda x: lax.reduce_sum(x, (0,)), (X,), 0, 12, 48 + 16),
        (lambda x: lax.cumsum(x), (X,), 0, 12, 2 * 48),
        (window, (s(9),), 0, 9, 36 + 32),
        (lambda x: lax.reduce_sum(x * x, (0, 1)), (X,), 0, 24, 48 + 4),  # the product stays in registers
        # products: 2 FLOPs for each of 3 · 5 · 4 multiplications
        (lax.dot, (X, Y), 120, 0, 48 + 80 + 60),
        (lambda x, y: lax.dot(x + 1, y), (X, Y), 120, 12, 48 + 48 + 48 + 80 + 60),  # x + 1 is written and read
        (lambda x, y: lax.exp(lax.dot(x, y)), (X, Y), 120, 15, 48 + 80 + 60 + 60 + 60),
        (lambda x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), (s(2, 3, 4), s(2, 4, 5)),
         240, 0, 96 + 160 + 120),
        (lax.dot, (s(3, 4, dtype="complex64"), s(4, 5, dtype="complex64")), 480, 0, 2 * 188),
        (lambda x: lax.dot(x, x), (s(4, 4, dtype="bfloat16"),), 128, 0, 3 * 32),
        # slices read what they take, and an update reads and writes what it changes
        (lambda x, i: lax.dynamic_slice(x, (i,), (3,), allow_negative_indices=False), (s(9), s(dtype="int32")),
         0, 0, 24 + 4),
        (lambda x, u, i: lax.dynamic_update_slice(x, u, (i,), allow_negative_indices=False),
         (s(9), s(3), s(dtype="int32")), 0, 0, 24 + 4),
        (lambda x, i, u: lax.scatter_add(x, i, u, DEFAULT, mode="clip"), (s(9), INDEX, s(2)), 0, 2, 3 * 8 + 8),
        (lambda x, i, u: lax.scatter(x, i, u, DEFAULT, mode="clip"), (s(9), INDEX, s(2)), 0, 0, 3 * 8 + 8),
        (lambda x: lax.sort(x), (X,), 0, 0, 2 * 48),
        # operations without a formula
        (lambda x: jnp.fft.fft(x), (s(8, dtype="complex64"),), 0, 0, 2 * 64),
        # nothing reads these results
        (lambda x, y: (lax.dot(x, y), x + 1)[1], (X, Y), 0, 12, 2 * 48),
        (lambda x: jax.jit(lambda x: x + 1)(x) * 2, (X,), 0, 24, 2 * 48),
    ],
)  # fmt: skip
def test_single_operations(fn, shapes, flops, elementwise, accessed):
    found = counted(fn, *shapes)
    assert (found.flops, found.elementwise_flops, found.accessed_bytes) == (flops, elementwise, accessed)
    works = list(walk_jaxpr_work(jax.make_jaxpr(fn)(*shapes)))
    parts = [(work.flops, work.elementwise_flops, work.accessed_bytes) for work in works]
    assert tuple(map(sum, zip(*parts, strict=True))) in ((flops, elementwise, accessed), ())


@pytest.mark.parametrize(
    ("lhs", "rhs", "options", "flops"),
    [
        # 2 images of 3 features, 5 results of 2 taps at 4 places; "same" leaves one tap out at the end
        ((2, 3, 5), (5, 3, 2), {"padding": "VALID"}, 2 * 2 * 3 * 5 * 4 * 2),
        ((2, 3, 5), (5, 3, 2), {"padding": "SAME"}, 2 * 2 * 3 * 5 * (5 * 2 - 1)),
        ((2, 3, 5), (5, 3, 2), {"padding": ((1, 0),)}, 2 * 2 * 3 * 5 * (5 * 2 - 1)),
        ((2, 3, 6), (5, 3, 2), {"padding": "VALID", "window_strides": (2,)}, 2 * 2 * 3 * 5 * 3 * 2),
        ((2, 3, 5), (5, 3, 2), {"padding": "VALID", "rhs_dilation": (3,)}, 2 * 2 * 3 * 5 * 2 * 2),
        # elements at 0, 2, 4, 6, 8: each of 8 places sees one of them
        ((2, 3, 5), (5, 3, 2), {"padding": ((0, 0),), "lhs_dilation": (2,)}, 2 * 2 * 3 * 5 * 8),
        ((2, 6, 5), (4, 3, 2), {"padding": "VALID", "feature_group_count": 2}, 2 * 2 * 3 * 4 * 4 * 2),
        ((6, 3, 5), (4, 3, 2), {"padding": "VALID", "batch_group_count": 2}, 2 * 3 * 3 * 4 * 4 * 2),
        ((2, 3, 5, 6), (5, 3, 2, 3), {"padding": "VALID"}, 2 * 2 * 3 * 5 * (4 * 2) * (4 * 3)),
    ],
)  # fmt: skip
def test_convolutions_count_taps_on_real_elements(lhs, rhs, options, flops):
    options = {"window_strides": (1,) * (len(lhs) - 2), **options}
    assert counted(lambda x, k: lax.conv_general_dilated(x, k, **options), s(*lhs), s(*rhs)).flops == flops
    many = counted(
        lambda x, k: lax.conv_general_dilated(x, k, **options), s(*lhs, dtype="complex64"), s(*rhs, dtype="complex64")
    )
    assert many.flops == 4 * flops


@pytest.mark.parametrize(
    ("lhs", "rhs", "result"),
    [("NWC", "WIO", "NWC"), ("CNW", "IOW", "NCW")],
)
def test_layouts_of_a_convolution_do_not_change_its_flops(lhs, rhs, result):
    sizes = {"N": 2, "C": 3, "W": 7, "O": 5, "I": 3}
    shapes = s(*(sizes[name] for name in lhs)), s(*(sizes[name] if name != "W" else 2 for name in rhs))
    numbers = (lhs, rhs, result)
    found = counted(lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID", dimension_numbers=numbers), *shapes)
    assert found.flops == 2 * 2 * 3 * 5 * 6 * 2


def test_ragged_products():
    sizes = s(3, dtype="int32")
    assert counted(lax.ragged_dot, s(7, 4), s(3, 4, 5), sizes).flops == 2 * 7 * 4 * 5
    contracting = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
    )
    found = counted(lambda x, y, n: lax.ragged_dot_general(x, y, n, contracting), s(7, 4), s(7, 5), sizes)
    assert found.flops == 2 * 7 * 4 * 5  # the three groups use each of the 7 rows once


# ---- loops, branches and calls


def scanned(length, inner):
    return lambda x: lax.scan(lambda c, _: (inner(c), None), x, None, length=length)[0]


SQUARE = s(4, 4)
ONE = (128, 0, 3 * 64)  # x @ x reads both operands


def product(x):
    return x @ x


def until(x):
    return lax.while_loop(lambda c: c[0, 0] < 1, product, x)


def none(x):
    return lax.while_loop(lambda c: False, lambda c: c, x)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (scanned(3, product), (3 * 128, 0, 3 * 192)), (scanned(0, product), (0, 0, 0)),
        (scanned(3, scanned(5, product)), (15 * 128, 0, 15 * 192)),
        (until, (None, 0, None)), (scanned(0, until), (0, 0, 0)), (scanned(2, until), (None, 0, None)),
        (lambda x: lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c + 1, x), (0, None, None)),
        (none, (0, 0, 0)),
        (jax.checkpoint(product), ONE), (jax.jit(product), ONE),
        (lambda x: lax.cond(x[0, 0] > 0, product, lambda x: product(product(x)), x), None),
    ],
    ids=range(11),
)  # fmt: skip
def test_loops_multiply_what_their_bodies_do(fn, expected):
    found = counted(fn, SQUARE)
    if expected is None:  # the index of the branch is a comparison and a conversion
        assert (found.flops, found.notes) == (2 * 128, ("a `cond` is counted as its most expensive branch",))
    else:
        assert (found.flops, found.elementwise_flops, found.accessed_bytes) == expected


LOOP_NOTE = "a `while` loop of unknown length is not counted; if its body computes anything, the count is unknown"


@pytest.mark.parametrize(
    ("fn", "notes"),
    [
        (product, ()), (until, (LOOP_NOTE,)), (lambda x: until(until(x)), (LOOP_NOTE,)),
        (lambda x: lax.linalg.cholesky(lax.linalg.cholesky(x)) @ lax.linalg.lu(x)[0],
         ("FLOPs of `cholesky` are not counted", "FLOPs of `lu` are not counted")),
        (lambda x: lax.cond(True, product, product, x), ()),
        (lambda x: lax.cond(True, until, product, x), (LOOP_NOTE, "a `cond` is counted as its most expensive branch")),
    ],
    ids=range(6),
)  # fmt: skip
def test_notes_name_what_is_not_counted_once(fn, notes):
    assert counted(fn, SQUARE).notes == notes


def test_branches_are_counted_by_the_most_of_each_kind():
    """One branch has more FLOPs, another more elementwise work; an unknown branch makes the maximum unknown."""

    def branches(x, i):
        return lax.switch(i, [product, lambda x: lax.exp(lax.exp(x)), lambda x: x], x)

    found = counted(branches, SQUARE, s(dtype="int32"))
    assert found.flops == 128
    assert found.elementwise_flops == 32
    assert counted(lambda x, i: lax.switch(i, [product, until], x), SQUARE, s(dtype="int32")).flops is None


def test_a_linear_solve_counts_its_solution_alone():
    def solve(a, b):
        return lax.custom_linear_solve(lambda x: a @ x, b, lambda _, b: a @ (a @ b), symmetric=True)

    assert counted(solve, SQUARE, s(4)).flops == 2 * 2 * 4 * 4


def test_symbolic_shapes_have_unknown_costs():
    (n,) = jax.export.symbolic_shape("n")
    jaxpr = jax.make_jaxpr(lambda x: x + 1)(s(n))
    found = count_jaxpr_work(jaxpr)
    assert [work[1:4] for work in walk_jaxpr_work(jaxpr)] == [(0.0, 0.0, 0.0)]
    assert found == JaxprCount(
        flops=None, elementwise_flops=None, accessed_bytes=None,
        notes=("`add` has a symbolic shape, so its cost is unknown",),
    )  # fmt: skip


def test_a_sharded_function_runs_once_per_device_of_its_axes():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def half(x):
        return jax.shard_map(
            product, mesh=mesh, in_specs=P(None), out_specs=P(None), axis_names={"b"}, check_vma=False
        )(x)

    jaxpr = jax.make_jaxpr(half)(SQUARE)
    assert count_jaxpr_work(jaxpr).flops == 4 * 128
    (work,) = [work for work in walk_jaxpr_work(jaxpr) if work.flops]
    assert (work.flops, work.executions, work.copies, work.at_least) == (4 * 128, 4, 4, False)


def test_the_walk_names_each_equation_with_what_surrounds_it():
    def fn(x):
        return scanned(3, jax.jit(product))(x) + 1

    works = [work for work in walk_jaxpr_work(jax.make_jaxpr(fn)(SQUARE)) if work.accessed_bytes or work.flops]
    names = [[equation.primitive.name for equation in work.chain] for work in works]
    # three products read 2 · 64 B and write 64 B; the sum reads and writes 64 B
    facts = [(names[at][-1], work.flops, work.elementwise_flops, work.accessed_bytes, work.executions)
             for at, work in enumerate(works)]  # fmt: skip
    assert facts == [("dot_general", 3 * 128, 0, 3 * 192, 3), ("add", 0, 16, 128, 1)]
    assert names[0][0] == "scan"


@pytest.mark.parametrize("branch", ["first", "second"])
def test_the_walk_enters_the_branch_with_most_work(branch):
    def fn(x, i):
        branches = [lambda x: product(product(x)), product]
        return lax.switch(i, branches if branch == "first" else branches[::-1], x)

    works = list(walk_jaxpr_work(jax.make_jaxpr(fn)(SQUARE, s(dtype="int32"))))
    assert sum(work.flops for work in works) == 2 * 128


def test_the_walk_counts_a_loop_of_unknown_length_as_one_iteration():
    def fn(x):
        return scanned(2, lambda c: until(scanned(3, product)(c)))(x)

    works = [work for work in walk_jaxpr_work(jax.make_jaxpr(fn)(SQUARE)) if work.flops]
    assert [(work.executions, work.at_least) for work in works] == [(6, False), (2, True)]


def test_equal_values_are_read_once_by_all_fusions():
    # x is read by both sums, which XLA computes in one pass
    found = counted(lambda x: (lax.reduce_sum(x, (0,)), lax.reduce_max(x, (0,))), X)
    assert (found.accessed_bytes, found.elementwise_flops) == (48 + 16 + 16, 24)
    assert not math.isnan(found.flops)
