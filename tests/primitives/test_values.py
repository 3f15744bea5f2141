"""What each primitive computes: edge values, dtypes, masks and pytrees, worked out by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb

pytestmark = pytest.mark.usefixtures("little_optimized")
THREE = wb.program(clients=3)
BOTH = pytest.mark.parametrize("how", [lambda fn: fn, jax.jit, wb.jit], ids=["eager", "jax.jit", "wb.jit"])


@BOTH
@pytest.mark.parametrize("dtype", ["int32", "int8", "bool"], ids=str)
def test_mean_of_integers_is_a_float(how: Any, dtype: str) -> None:
    mean = how(THREE(wb.reduce_mean))(jnp.array([1, 0, 1]).astype(dtype))
    assert mean.dtype == jnp.float32
    assert float(mean) == pytest.approx(2 / 3)


@BOTH
def test_small_integers_widen_in_a_sum(how: Any) -> None:
    total = how(THREE(wb.reduce_sum))(jnp.array([100, 100, 100], jnp.int8))
    assert (total.dtype, int(total)) == (jnp.int32, 300)


@BOTH
def test_bfloat16_is_added_up_in_float32(how: Any) -> None:
    # 256 + 1 is 256 in bfloat16, which has 8 bits of precision; 256 + 1 + 1 = 258 has a bfloat16.
    total = how(THREE(wb.reduce_sum))(jnp.array([256, 1, 1], jnp.bfloat16))
    assert (total.dtype, float(total)) == (jnp.bfloat16, 258.0)


def test_accumulator_is_the_callers_choice() -> None:
    x = jnp.array([2.0**24, 1, 1], jnp.float32)
    with jax.enable_x64(True):
        exact = THREE(lambda x: wb.reduce_sum(x, accumulator=jnp.float64))(x)
    assert float(exact) == 2.0**24 + 2
    assert "accumulator=bfloat16" in str(
        jax.make_jaxpr(THREE(lambda x: wb.reduce_mean(x, accumulator=jnp.bfloat16)))(x)
    )


@BOTH
def test_mean_of_nobody_is_zero_and_so_is_its_gradient(how: Any) -> None:
    nobody = jnp.zeros(3, bool)
    value, slope = how(jax.value_and_grad(THREE(lambda x: wb.reduce_mean(x, where=nobody))))(
        jnp.array([1.0, jnp.nan, 2.0])
    )
    assert float(value) == 0
    assert slope.tolist() == [0, 0, 0]


@BOTH
def test_absent_client_counts_nowhere_even_with_a_nan(how: Any) -> None:
    x, here = jnp.array([1.0, jnp.nan, 4.0]), jnp.array([True, False, True])

    def all_of(x: Any) -> Any:
        return (
            wb.reduce_sum(x, where=here),
            wb.reduce_mean(x, where=here),
            wb.reduce_max(x, where=here),
            wb.reduce_min(x, where=here),
            wb.reduce_weighted_mean(x, jnp.array([3.0, 0.0, 1.0])),  # (3·1 + 1·4) / 4
        )

    assert [float(y) for y in how(THREE(all_of))(x)] == [5, 2.5, 4, 1, 1.75]


def test_extremes_of_nobody() -> None:
    nobody = jnp.zeros(3, bool)
    with THREE:
        assert float(wb.reduce_max(jnp.ones(3), where=nobody)) == -np.inf
        assert float(wb.reduce_min(jnp.ones(3), where=nobody)) == np.inf
        assert int(wb.reduce_max(jnp.ones(3, jnp.int8), where=nobody)) == -128


def test_gradient_of_a_maximum_is_shared_by_those_who_hold_it() -> None:
    assert jax.grad(THREE(wb.reduce_max))(jnp.array([2.0, 1.0, 2.0])).tolist() == [0.5, 0, 0.5]


def test_weighted_mean_gradient_is_each_clients_share_of_the_weight() -> None:
    share = jax.grad(wb.program(clients=2)(wb.reduce_weighted_mean))(jnp.array([1.0, 5.0]), jnp.array([3.0, 1.0]))
    assert share.tolist() == [0.75, 0.25]


def test_one_weight_vector_serves_a_pytree_and_a_prefix_of_it() -> None:
    x = {"a": jnp.array([0.0, 4.0]), "b": (jnp.array([2.0, 2.0]), jnp.array([[0.0], [8.0]]))}
    with wb.program(clients=2):
        one = wb.reduce_weighted_mean(x, jnp.array([3, 1]))
        per_branch = wb.reduce_weighted_mean(x, {"a": jnp.array([1, 1]), "b": jnp.array([0, 1])})
    assert jax.tree.map(lambda y: y.tolist(), one) == {"a": 1.0, "b": (2.0, [2.0])}
    assert jax.tree.map(lambda y: y.tolist(), per_branch) == {"a": 2.0, "b": (2.0, [8.0])}


@BOTH
def test_weighted_mean_keeps_a_narrow_float_and_turns_integers_into_floats(how: Any) -> None:
    x = {"int": jnp.array([1, 4, 9]), "narrow": jnp.array([1, 4, 9], jnp.bfloat16)}
    mean = how(THREE(wb.reduce_weighted_mean))(x, jnp.array([3, 1, 0]))  # (3·1 + 1·4) / 4
    assert {k: (y.dtype, float(y)) for k, y in mean.items()} == {
        "int": (jnp.float32, 1.75),
        "narrow": (jnp.bfloat16, 1.75),
    }


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_narrow_floats_are_exact(how: Any, dtype: str) -> None:
    """A product with 70,000 examples exceeds float16, and bfloat16 has no 257."""
    mean = how(THREE(wb.reduce_weighted_mean))(jnp.array([0, 2, 4], dtype), jnp.array([255, 257, 70_000]))
    assert (mean.dtype, float(mean)) == (dtype, float(jnp.asarray((2 * 257 + 4 * 70_000) / 70_512, dtype)))
    among = THREE(lambda x: wb.reduce_mean(x, where=jnp.array([True, True, False])))
    assert float(how(among)(jnp.array([60_000, 40_000, 1], dtype))) == float(jnp.asarray(50_000, dtype))


@BOTH
def test_reduce_by_key_groups_items_of_all_clients(how: Any) -> None:
    values = jnp.array([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]])
    keys = jnp.array([[0, 1], [1, 1], [3, 0]])
    sums, means = how(THREE(lambda v, k: (wb.reduce_by_key(v, k, 4), wb.reduce_by_key(v, k, 4, op="mean"))))(
        values, keys
    )
    assert sums.tolist() == [33, 14, 0, 16]  # 1 + 32, 2 + 4 + 8, nobody, 16
    assert means.tolist() == [16.5, pytest.approx(14 / 3), 0, 16]


@pytest.mark.parametrize("how", [jax.jit, wb.jit], ids=["jax.jit", "wb.jit"])
def test_keys_out_of_range_under_a_trace_belong_to_no_group(how: Any) -> None:
    fn = THREE(lambda v, k: wb.reduce_by_key(v, k, 2))
    keys = jnp.array([-1, 1, 2])
    assert how(fn)(jnp.ones(3), keys).tolist() == [0, 1]
    assert how(jax.grad(lambda v, k: fn(v, k).sum()))(jnp.ones(3), keys).tolist() == [0, 1, 0]


def test_reduce_by_key_with_narrow_keys_and_integer_means() -> None:
    keys, values = jnp.array([199, 100, 199], jnp.uint8), jnp.array([1, 2, 4], jnp.int8)
    with THREE:
        sums, means = wb.reduce_by_key(values, keys, 200), wb.reduce_by_key(values, keys, 200, op="mean")
    assert (sums.dtype, sums[199].item(), sums[100].item()) == (jnp.int32, 5, 2)
    assert (means.dtype, means[199].item()) == (jnp.float32, 2.5)


@pytest.mark.parametrize(
    ("values_batched", "keys_batched"), [(True, False), (False, True), (True, True)], ids=["values", "keys", "both"]
)
def test_reduce_by_key_under_vmap_equals_one_after_the_other(values_batched: bool, keys_batched: bool) -> None:
    random = np.random.default_rng(0)
    values, keys = random.normal(size=(5, 3, 2, 4)).astype(np.float32), random.integers(0, 6, size=(3, 2, 5))
    axes = (0 if values_batched else None, -1 if keys_batched else None)
    values = values if values_batched else values[0]
    keys = keys if keys_batched else keys[..., 0]
    fn = THREE(lambda v, k: wb.reduce_by_key(v, k, 6))
    got = jax.vmap(fn, in_axes=axes, out_axes=1)(values, keys)
    one = [fn(values[i] if values_batched else values, keys[..., i] if keys_batched else keys) for i in range(5)]
    np.testing.assert_allclose(got, np.stack(one, 1), rtol=1e-6)


@BOTH
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_gradients_by_narrow_keys_reach_all_groups(how: Any, dtype: str) -> None:
    # 300 groups: in 8 bits, 300 wraps to 44, and keys from 44 would belong to no group.
    keys = jnp.array([43, 44, 120], dtype)
    total = THREE(lambda x: (wb.reduce_by_key(x, keys, 300) ** 2).sum())
    assert how(jax.grad(total))(jnp.array([1.0, 2.0, 3.0])).tolist() == [2, 4, 6]


@BOTH
def test_eight_bit_floats_are_added_up_in_float32_and_have_extremes(how: Any) -> None:
    # 16 + 0.5 + 0.5 is 16 in float8_e4m3fn, which has 4 bits of precision and no infinity.
    x = jnp.array([16.0, 0.5, 1.5], jnp.float8_e4m3fn)
    both = how(THREE(lambda x: (wb.reduce_sum(x), wb.reduce_max(x), wb.reduce_min(x))))(x)
    assert [y.dtype for y in both] == [jnp.float8_e4m3fn] * 3
    assert [float(y) for y in both] == [18, 16, 0.5]


def test_select_takes_rows_and_gives_gradients_back() -> None:
    x, cohort = jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 0, 2])
    assert THREE(wb.select)(x, cohort).tolist() == [3, 1, 3]
    gradient = jax.grad(lambda x: jnp.vdot(THREE(wb.select)(x, cohort), jnp.array([1.0, 10.0, 100.0])))(x)
    assert gradient.tolist() == [10, 0, 101]  # client 2 came first and third


def test_traced_indices_out_of_range_select_the_first_or_last_client() -> None:
    weighed = jax.jit(lambda x, cohort: jnp.vdot(THREE(wb.select)(x, cohort), jnp.array([1.0, 10.0])))
    value, gradient = jax.value_and_grad(weighed)(jnp.array([1.0, 2.0, 3.0]), jnp.array([-2, 7]))
    assert (float(value), gradient.tolist()) == (31, [1, 0, 10])


def test_select_under_vmap_of_both() -> None:
    x, cohorts = jnp.arange(6.0).reshape(2, 3), jnp.array([[2, 0], [1, 1]])
    assert jax.vmap(THREE(wb.select))(x, cohorts).tolist() == [[2, 0], [4, 4]]
    assert jax.vmap(THREE(wb.select), in_axes=(None, 1))(x[0], cohorts).tolist() == [[2, 1], [0, 1]]


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey], ids=["typed key", "raw key"])
@BOTH
def test_sample_draws_different_clients(how: Any, make_key: Any) -> None:
    hundred = wb.program(clients=100)
    cohort = how(hundred(lambda key: wb.sample(key, 30)))(make_key(0))
    mask = how(hundred(lambda key: wb.sample(key, 30, form="mask")))(make_key(0))
    assert len(set(cohort.tolist())) == 30
    assert sorted(cohort.tolist()) == np.flatnonzero(mask).tolist()


def test_sample_draws_likely_clients_more_often() -> None:
    # One of two clients with weights 3 and 1: client 0 in 3 of 4 draws; 2000 draws have a deviation of 0.0097.
    draw = wb.program(clients=2)(lambda key: wb.sample(key, 1, weights=jnp.array([3.0, 1.0]))[0])
    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 2000))
    assert float(jnp.mean(drawn == 0)) == pytest.approx(0.75, abs=0.04)


def test_sample_for_an_inner_placement_draws_in_each_outer_one() -> None:
    with wb.program(placements={"pods": 5, "clients": 50}):
        cohorts = wb.sample(jax.random.key(0), 10, over="clients")
    assert cohorts.shape == (5, 10)
    assert len({tuple(row) for row in cohorts.tolist()}) == 5


@BOTH
@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey], ids=["typed key", "raw key"])
def test_keys_pass_through_every_primitive_that_moves_values(how: Any, make_key: Any) -> None:
    key = make_key(3)

    def moved(key: Any) -> Any:
        everywhere = wb.broadcast(key)
        split = wb.map_fn(lambda k, i: jax.random.fold_in(k, i), (everywhere, jnp.arange(3)))
        some = wb.select(split, np.array([2, 1]))
        noise = wb.map_fn(lambda k: jax.random.normal(k, (2,)), split)
        return some, wb.reduce_sum(noise)

    some, noise = how(THREE(moved))(key)
    expected = jnp.stack([jax.random.normal(jax.random.fold_in(key, i), (2,)) for i in range(3)]).sum(0)
    assert some.dtype == key.dtype
    np.testing.assert_allclose(noise, expected, rtol=1e-6)


@BOTH
def test_empty_pytrees_pass_through(how: Any) -> None:
    def nothing(x: Any) -> Any:
        mapped = wb.map_fn(lambda row, _: {}, (x, {}))
        return wb.broadcast(()), wb.reduce_sum(mapped), wb.reduce_weighted_mean({"a": ()}, jnp.ones(3))

    assert how(THREE(nothing))(jnp.ones(3)) == ((), {}, {"a": ()})


@pytest.mark.parametrize("name", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "broadcast"], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "float16", "bfloat16", "float32"], ids=str)
def test_eager_and_traced_types_agree(name: str, dtype: str) -> None:
    fn, x = THREE(getattr(wb, name)), jnp.ones((3, 2), dtype)
    eager, traced = fn(x), jax.jit(fn)(x)
    assert (eager.dtype, eager.shape, eager.weak_type) == (traced.dtype, traced.shape, traced.weak_type)


def test_integer_inputs_have_no_gradient_and_stop_none() -> None:
    data = {"index": np.array([0, 1, 0]), "here": np.array([True, True, False])}
    fn = THREE(lambda w, d: wb.reduce_sum(wb.map_fn(lambda i, h: jnp.where(h, w[i], 0.0), (d["index"], d["here"]))))
    slope, none = jax.grad(fn, argnums=(0, 1), allow_int=True)(jnp.array([5.0, 7.0]), data)
    assert slope.tolist() == [1, 1]
    assert {leaf.dtype for leaf in jax.tree.leaves(none)} == {np.dtype(jax.dtypes.float0)}


@BOTH
@pytest.mark.parametrize("kind", [jax.custom_vjp, jax.custom_jvp], ids=["custom_vjp", "custom_jvp"])
def test_custom_derivative_of_a_client_is_used(how: Any, kind: Any) -> None:
    @kind
    def client(row: Any) -> Any:
        return jnp.sin(row)

    if kind is jax.custom_vjp:
        client.defvjp(lambda row: (jnp.sin(row), ()), lambda _, cotangent: (7 * cotangent,))
    else:
        client.defjvp(lambda rows, tangents: (jnp.sin(rows[0]), 7 * tangents[0]))
    fn = THREE(lambda x: wb.reduce_sum(wb.map_fn(client, x)))
    assert how(jax.grad(fn))(jnp.ones(3)).tolist() == [7, 7, 7]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("compiled", [wb.jit, jax.jit])
def test_extremes_of_a_mesh_are_nan_where_a_client_is_and_exact_elsewhere(compiled: Any, dtype: str) -> None:
    """XLA's own all-reduce drops the NaN, and the values of the other clients of its device."""
    x = np.random.default_rng(5).standard_normal((8, 6)).astype(np.float32)
    x[3, :2], x[5, 2], x[6, 3], x[:, 4] = [np.nan, -np.nan], np.inf, -np.inf, np.float32(-0.0)
    x = np.asarray(jnp.asarray(x, dtype))
    both = wb.program(clients=8)(lambda x: (wb.reduce_max(x), wb.reduce_min(x)))
    with jax.set_mesh(jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))):
        largest, smallest = compiled(both)(x)
    np.testing.assert_array_equal(largest.astype(np.float32), x.astype(np.float32).max(0))
    np.testing.assert_array_equal(smallest.astype(np.float32), x.astype(np.float32).min(0))


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)], ids=str)
def test_scatters_of_uneven_shards_ignore_their_padding(shape: tuple[int, int]) -> None:
    """XLA adds the padding of 13 rows, or of a cohort of 5, to the first group or row of a mesh with two axes."""
    mesh = jax.make_mesh(shape, ("clients", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x, numbers, cohort = jnp.ones((13, 2)), jnp.arange(13.0), jnp.array([1, 1, 7, 3, 12])

    @wb.program(clients=13)
    def sums(x: Any) -> Any:
        rows = wb.map_fn(lambda row, number: row + number, (x, numbers))
        keys = wb.map_fn(lambda number: 1 + (number % 2).astype(jnp.int32), (numbers,))
        return wb.reduce_by_key(rows, keys, 3)[:, 0], (wb.select(rows, cohort) * jnp.arange(5.0)[:, None]).sum()

    with jax.set_mesh(mesh):
        totals = jax.jit(lambda x: sums(x)[0])(x)
        slope = jax.jit(jax.grad(lambda x: sums(x)[1]))(x)[:, 0]
    assert totals.tolist() == [0, 49, 42]  # 1 + 3 + … + 13 and 2 + 4 + … + 12
    assert slope.tolist() == [0, 1, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 4]


def test_rows_without_elements_are_computed_by_the_compilers_partitions() -> None:
    program = wb.program(clients=8)(lambda x: wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x)))
    with jax.set_mesh(jax.make_mesh((4,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert wb.jit(program, spread="vmap")(jnp.zeros((8, 3, 0))).shape == (3, 0)
