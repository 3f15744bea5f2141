"""Errors in full, layouts, masks, callbacks and derivatives of the primitives, derived by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.experimental.jet import jet
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import EngineError, PlacementError, ProgramError
from workbench.primitives import (
    CallbackErrors,
    Layout,
    Placement,
    Rewriting,
    absent_value,
    find_layout,
    hide_static,
    is_array,
    is_opaque,
    max_p,
    min_p,
    only_present,
    rebase,
    refuse_deleted,
    show_static,
    sum_by_key,
)
from workbench.primitives._by_key import group_rows
from workbench.primitives._callback_errors import _batch, _filler
from workbench.primitives._linear import accumulator_of, sum_dtype, sum_rows
from workbench.primitives._reduce import _is_eager
from workbench.primitives._static import Static, is_static

pytestmark = pytest.mark.usefixtures("little_optimized")
EIGHT = Placement("clients", 8, ("clients",))
FOUR = wb.program(clients=4)


def refused(call: Any, kind: Any = PlacementError) -> str:
    with pytest.raises(kind) as caught:
        FOUR(call)()
    return str(caught.value)


# ---- errors, in full


@pytest.mark.parametrize(
    ("values", "listed", "remedy"),
    [
        (jnp.ones(5), "x of shape (5,)", "set the placement to 5 clients, "),
        (jnp.float32(1), "x of shape ()", ""),
        ([jnp.ones((3, 2)), jnp.ones((5, 2))], "x[0] of shape (3, 2), x[1] of shape (5, 2)", ""),
        ([jnp.ones(3), jnp.float32(1)], "x[0] of shape (3,), x[1] of shape ()", "set the placement to 3 clients, "),
        ([jnp.ones(3)] * 8, ", ".join(f"x[{i}] of shape (3,)" for i in range(8)), "set the placement to 3 clients, "),
        ([jnp.ones(3)] * 10, ", ".join(f"x[{i}] of shape (3,)" for i in range(8)) + " and 2 more",
         "set the placement to 3 clients, "),
    ],
    ids=range(6),
)  # fmt: skip
def test_values_without_a_row_per_client(values: Any, listed: str, remedy: str) -> None:
    assert refused(lambda: wb.reduce_sum(values)) == (
        f'`reduce_sum` was given {listed}, but the placement "clients" has 4 clients. A client-placed value has one '
        f"row per client, so its leading axis must be 4. Either {remedy}pad and mask the missing clients, or "
        "`broadcast` a value that all clients share."
    )


@pytest.mark.parametrize(
    ("tree", "count", "listed"),
    [
        ({"a": {1}}, "1 non-array value", "x['a'] = {1} (set)"),
        ([{1}, 2.0, {3}], "2 non-array values", "x[0] = {1} (set); x[2] = {3} (set)"),
        ([{1}] * 7, "7 non-array values", "; ".join(f"x[{i}] = {{1}} (set)" for i in range(5))),
        ({"a": {"x" * 36}}, "1 non-array value", f"x['a'] = {{'{'x' * 36}'}} (set)"),
        ({"a": {"x" * 37}}, "1 non-array value", f"x['a'] = {{'{'x' * 37}'… (set)"),
        ("relu", "1 non-array value", "x = 'relu' (str)"),
    ],
    ids=range(6),
)  # fmt: skip
def test_values_that_are_no_arrays(tree: Any, count: str, listed: str) -> None:
    assert refused(lambda: wb.broadcast(tree), ProgramError) == (
        f"`broadcast` received {count}: {listed}. Only arrays and numbers can be placed at clients; a pytree may also "
        "have hashable static leaves, such as functions and names. Remove other values from the pytree, and close over "
        "them or pass them as static arguments of the program."
    )


@pytest.mark.parametrize(
    ("keys", "groups", "listed", "least"),
    [
        ([0, 1, 2, 3], 3, "keys[3] = 3", 4), ([0, 1, -1, 2], 3, "keys[2] = -1", 3),
        ([[0] * 5, [9] * 5, [0] * 5, [8, 0, 0, 0, 0]], 3,
         "keys[1, 0] = 9, keys[1, 1] = 9, keys[1, 2] = 9, keys[1, 3] = 9, keys[1, 4] = 9 and 1 more", 10),
        ([[0] * 5, [9] * 5, [0] * 5, [0] * 5], 3,
         "keys[1, 0] = 9, keys[1, 1] = 9, keys[1, 2] = 9, keys[1, 3] = 9, keys[1, 4] = 9", 10),
    ],
    ids=range(4),
)  # fmt: skip
def test_keys_out_of_range(keys: Any, groups: int, listed: str, least: int) -> None:
    assert refused(lambda: wb.reduce_by_key(jnp.ones((4, 5)), jnp.array(keys), groups)) == (
        f"`reduce_by_key` was given {listed}, but num_keys={groups}. A key is the number of a group, from 0 to "
        f"{groups - 1}. Either raise `num_keys` to {least} or more, or mask the items that belong to no group: give "
        "them the value 0 and any key in range."
    )


@pytest.mark.parametrize("groups", [0, -1, True, 2.0, "2"])
def test_numbers_of_groups_that_are_no_positive_int(groups: Any) -> None:
    assert refused(lambda: wb.reduce_by_key(jnp.ones(4), jnp.zeros(4, int), groups)) == (
        f"`reduce_by_key` was given num_keys={groups!r}. The number of groups fixes the shape of the result, so it is "
        "a positive int that is known before tracing: count the groups first, and pass that number."
    )
    assert FOUR(lambda: wb.reduce_by_key(jnp.ones(4), jnp.zeros(4, int), np.int64(1)))().tolist() == [4.0]


@pytest.mark.parametrize(
    ("indices", "listed"),
    [
        ([4], "indices[0] = 4"), ([0, -1, 3], "indices[1] = -1"),
        ([9] * 5, ", ".join(f"indices[{i}] = 9" for i in range(5))),
        ([9] * 6, ", ".join(f"indices[{i}] = 9" for i in range(5)) + " and 1 more"),
        ([9] * 7, ", ".join(f"indices[{i}] = 9" for i in range(5)) + " and 2 more"),
    ],
    ids=range(5),
)  # fmt: skip
def test_indices_out_of_range(indices: Any, listed: str) -> None:
    assert refused(lambda: wb.select(jnp.ones(4), jnp.array(indices))) == (
        f'`select` was given {listed}, but the placement "clients" has 4 clients. Clients are numbered from 0 to 3: '
        "correct these indices, or draw them with `sample(key, size)`."
    )


@pytest.mark.parametrize("shape", [(), (2, 2), (0,)])
def test_indices_that_are_no_list(shape: tuple[int, ...]) -> None:
    assert refused(lambda: wb.select(jnp.ones(4), jnp.zeros(shape, int))).startswith(
        f"`select` was given `indices` of shape {shape} and dtype int32. A cohort is a list of one or more client"
    )


def test_cohorts_of_the_innermost_of_three_placements_have_a_row_per_outer_client() -> None:
    drawn = wb.program(placements={"a": 2, "b": 3, "c": 4})(lambda: wb.sample(jax.random.key(0), 2, over="c"))()
    assert drawn.shape == (2, 3, 2)
    assert {len(set(row)) for row in drawn.reshape(6, 2).tolist()} == {2}


@pytest.mark.parametrize("size", [0, 5, True, 1.0])
def test_cohorts_of_an_impossible_size(size: Any) -> None:
    assert refused(lambda: wb.sample(jax.random.key(0), size)) == (
        f'`sample` was given size={size!r}, but the placement "clients" has 4 clients. A cohort is drawn without '
        "replacement, and its size must be known before tracing: pass an int from 1 to 4."
    )
    for possible in (1, 4, np.int32(4)):
        assert FOUR(lambda: wb.sample(jax.random.key(0), possible))().shape == (int(possible),)  # noqa: B023


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`program` was given no placement. A program needs at least one group of clients: write "
             '`program(clients=64)` or `program(placements={"pods": 4, "clients": 16})`.'),
        ({"clients": 2, "placements": {"a": 3}},
         "`program` was given both `clients=2` and `placements={'a': 3}`. `clients=n` is short for "
         '`placements={"clients": n}`: pass only one of these arguments.'),
        ({"placements": {"a": 0, "b": True, "c": 2, "d": 1.0}},
         "`program` was given placements {'a': 0, 'b': True, 'd': 1.0}. The size of a placement is its number of "
         'clients, a positive int known before tracing, and its name is a string: for example '
         '`program(placements={"clients": 64})`.'),
        ({"clients": 2, "axes": {"x": "a", "b": "c"}},
         "`program` was given mesh axes for ['b', 'x'], but its placements are ['clients']. `axes` maps a placement to "
         "its mesh axes: use one of these names, or omit `axes`."),
    ],
    ids=range(4),
)  # fmt: skip
def test_placements_that_are_impossible(options: Any, message: str) -> None:
    with pytest.raises(PlacementError) as caught:
        wb.program(**options)
    assert str(caught.value) == message


def test_placements_that_are_possible() -> None:
    made = wb.program(placements={"pods": 1, "clients": np.int64(2)}, axes={"pods": ("x", "y")}).placements
    assert made == (Placement("pods", 1, ("x", "y")), Placement("clients", 2, ("clients",)))
    assert (repr(made[1]), type(made[1].size)) == ("clients=2", int)


def test_calls_without_a_placement_inside() -> None:
    assert refused(lambda: wb.map_fn(lambda x: wb.reduce_sum(x), jnp.ones(4))).startswith(
        '`reduce_sum` was called inside the function of one client of "clients", which has no placement inside it.'
    )
    two = wb.program(placements={"pods": 2, "clients": 2})
    with pytest.raises(PlacementError) as caught:
        two(lambda x: wb.map_fn(lambda x: wb.reduce_sum(x, over="pods"), x, over="pods"))(jnp.ones((2, 2)))
    assert 'for the placement "pods", but the placements active here are clients=2.' in str(caught.value)


def failing(*_: Any) -> Any:
    message = "no"
    raise KeyError(message)


@pytest.mark.parametrize(("count", "shapes"), [(1, "float32[]"), (6, ", ".join(["float32[]"] * 6)),
                                               (7, ", ".join(["float32[]"] * 6) + ", …")])  # fmt: skip
def test_a_failing_client_function_says_its_shapes(count: int, shapes: str) -> None:
    assert refused(lambda: wb.map_fn(failing, (jnp.ones(4),) * count), ProgramError) == (
        '`map_fn` could not call the client function `failing` of the stage over "clients" (4 clients): it raised '
        f"KeyError: 'no'. The function is called once with the values of one client ({shapes}), without the leading "
        "axis of clients. Change the function to accept these shapes; the exception above points to the line."
    )
    with jax.disable_jit():
        assert refused(lambda: wb.map_fn(failing, (jnp.ones(4),) * count), ProgramError) == (
            '`map_fn` could not call the client function `failing` for client 0 of the stage over "clients" (4 clients)'
            ": "
            f"it raised KeyError: 'no'. The client's values are ({shapes}); the exception above points to the line."
        )


@pytest.mark.parametrize(("fails", "first"), [((2, 5), 2), ((0, 7), 0), (tuple(range(1, 100)), 1)])
def test_the_first_client_that_fails_is_named_if_another_does_not(fails: Any, first: int) -> None:
    def check(row: Any) -> Any:
        if not isinstance(row, jax.core.Tracer) and int(row) in fails:
            raise ValueError(row)
        if isinstance(row, jax.core.Tracer):
            raise ValueError("traced")
        return row

    with pytest.raises(ProgramError) as caught:
        wb.program(clients=100)(lambda x: wb.map_fn(check, x))(jnp.arange(100))
    assert f"for client {first} of" in str(caught.value)


def test_results_that_are_no_arrays_are_counted() -> None:
    text = refused(lambda: wb.map_fn(lambda x: ({1}, x, {"y" * 90}), jnp.ones(4)), ProgramError)
    assert text.startswith(
        "`map_fn` called `<lambda>`, which returned 2 non-array values, the first of type set: '{1}'."
    )
    text = refused(lambda: wb.map_fn(lambda x: {"y" * 90}, jnp.ones(4)), ProgramError)
    assert "which returned 1 non-array value, the first of type set: \"{'" + "y" * 58 + '"' in text


# ---- arguments of the client function


def variadic(a: Any, *rest: Any, k: Any = 1) -> Any:
    return a * rest[0] * rest[1][0]


@pytest.mark.parametrize(
    ("fn", "args", "names"),
    [
        (lambda a, b: a["w"] * b, ({"w": 1}, 2), ["a['w']", "b"]),
        (lambda a: a["x"] * a["y"], {"x": 1, "y": 2}, ["a['x']", "a['y']"]),
        (variadic, (1, 2, [3]), ["a", "rest[0]", "rest[1][0]"]),
        (lambda *rows: rows[0] * rows[1], (1, 2), ["rows[0]", "rows[1]"]),
        (jnp.add, (1, 2), ["args[0]", "args[1]"]),
    ],
    ids=range(5),
)  # fmt: skip
def test_rows_are_named_after_parameters(fn: Any, args: Any, names: list[str]) -> None:
    args = jax.tree.map(lambda x: jnp.full(4, x), args)
    jaxpr = jax.make_jaxpr(FOUR(lambda args: wb.map_fn(fn, args)))(args)
    plan = wb.trace(FOUR(lambda args: wb.map_fn(fn, args)))(args).plan
    (stage,) = [stage for stage in plan.stages if stage.kind == "clients"]
    assert sorted(value.argument for value in stage.inputs) == sorted(names)
    assert jaxpr.eqns[-1].primitive.name == "map_fn"


# ---- static leaves


@dataclasses.dataclass(frozen=True)
class Unregistered:
    size: int


@pytest.mark.parametrize(
    ("leaf", "array", "opaque", "static"),
    [
        (1, True, False, True), (1.5, True, False, True), (True, True, False, True), (1j, True, False, True),
        (np.ones(2), True, False, False), (np.float32(1), True, False, False), (jnp.ones(2), True, False, False),
        (np.array(["a"]), False, False, False), (np.array([b"a"]), False, False, False),
        (np.array([None]), False, False, False), ("relu", False, False, True), (jnp.sin, False, False, True),
        ({1}, False, False, False), (Unregistered(1), False, True, False), (Unregistered, False, False, True),
    ],
    ids=range(15),
)  # fmt: skip
def test_leaves_are_arrays_opaque_or_static(leaf: Any, array: bool, opaque: bool, static: bool) -> None:
    assert (is_array(leaf), is_opaque(leaf), is_static(leaf)) == (array, opaque, static)
    hidden = hide_static([leaf, 2])
    assert (isinstance(hidden[0], Static), hidden[1]) == (static and not array, 2)
    assert show_static(hidden)[0] is leaf
    assert is_opaque(iter([1]))


# ---- layouts


def mesh(kind: AxisType = AxisType.Auto, **axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


@pytest.mark.parametrize(
    ("placement", "on", "axes", "size"),
    [
        (EIGHT, mesh(clients=4, model=2), ("clients",), 4), (EIGHT, mesh(model=2), None, 1),
        (EIGHT, mesh(AxisType.Manual, clients=4), None, 1),
        (Placement("clients", 7, ("clients",)), mesh(clients=4), ("clients",), 4),
        (Placement("clients", 8, ("x", "y")), mesh(x=2, y=3, z=5), ("x", "y"), 6),
        (Placement("clients", 8, ("y", "w")), mesh(x=2, y=3), ("y",), 3),
        (EIGHT, mesh(AxisType.Explicit, clients=4), ("clients",), 4),
        (Placement("clients", 7, ("clients",)), mesh(AxisType.Explicit, clients=4), None, 4),
    ],
    ids=range(8),
)  # fmt: skip
def test_layouts_of_a_placement(placement: Placement, on: Any, axes: Any, size: int) -> None:
    layout = find_layout(placement, on)
    uneven = find_layout(placement, on, uneven=True)
    assert (None if layout is None else (layout.axes, layout.size)) == (None if axes is None else (axes, size))
    assert (uneven is None) == (axes is None and size == 1)
    if layout is not None:
        assert layout.entry == (axes if len(axes) > 1 else axes[0])
        assert layout.explicit_axes == (layout.entry if on.axis_types[0] is AxisType.Explicit else None)
    with jax.sharding.use_abstract_mesh(on):
        assert find_layout(placement) == layout
    assert find_layout(placement, AbstractMesh((), ())) is None


def test_rows_are_spread_over_the_devices_that_divide_them() -> None:
    devices = jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    rows = jax.device_put(jnp.ones((8, 6)), NamedSharding(devices, P(None, "model")))
    for clients in (8, 6):
        with wb.program(clients=clients):
            found = wb.map_fn(lambda x: x, rows[:clients], on=devices)
        assert found.shape == (clients, 6)
        assert found.tolist() == rows[:clients].tolist()
    with wb.program(clients=8):
        assert wb.broadcast(jnp.ones(3), on=devices).sharding.spec[0] == "clients"


def test_types_of_explicit_programs() -> None:
    on = jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(on):
        x = jax.device_put(jnp.ones((8, 6)), NamedSharding(on, P("clients", "model")))
        w = jax.device_put(jnp.ones(6), NamedSharding(on, P("model")))
        program = wb.program(clients=8)

        def fn(x: Any, w: Any) -> Any:
            rows = wb.map_fn(lambda row: row * 2, x)
            return rows, wb.reduce_sum(rows), wb.broadcast(w), wb.reduce_by_key(rows, jnp.arange(8) % 2, 2)

        specs = [aval.sharding.spec for aval in jax.eval_shape(program(fn), x, w)]
        cohort = jax.jit(
            program(lambda x: wb.select(wb.map_fn(lambda row, n: row + n, (x, jnp.arange(8.0))), np.array([3, 0])))
        )
        assert cohort(x).tolist() == [[4.0] * 6, [1.0] * 6]
    assert specs == [P("clients", "model"), P("model"), P("clients", "model"), P(None, "model")]


# ---- sums


@pytest.mark.parametrize(
    ("dtype", "total", "accumulator"),
    [("bool", "int32", "int32"), ("int8", "int32", "int32"), ("uint16", "uint32", "uint32"),
     ("int32", "int32", "int32"),
     ("float8_e5m2", "float8_e5m2", "float32"), ("bfloat16", "bfloat16", "float32"),
     ("float16", "float16", "float32"), ("float32", "float32", "float32"),
     ("complex64", "complex64", "complex64")],
)  # fmt: skip
def test_dtypes_of_sums(dtype: str, total: str, accumulator: str) -> None:
    assert jnp.dtype(sum_dtype(jnp.dtype(dtype))) == total
    assert accumulator_of(jnp.dtype(total), None) == accumulator
    assert accumulator_of(jnp.dtype(total), "float32") == "float32"


@pytest.mark.parametrize(("columns", "product"), [(2**12 - 1, False), (2**12, True)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_sums_of_large_arrays_are_products(columns: int, product: bool, dtype: str) -> None:
    x = jax.ShapeDtypeStruct((4, columns), dtype)
    for by_product in (True, False):
        jaxpr = jax.make_jaxpr(lambda x: sum_rows(x, dtype, by_product=by_product))(x)  # noqa: B023
        names = {equation.primitive.name for equation in jaxpr.eqns}
        assert ("dot_general" in names) is (product and by_product and dtype == "float32")
    rows = np.arange(4 * columns).reshape(4, columns).astype(dtype)
    found = jax.jit(lambda x: sum_rows(x, dtype, by_product=True))(rows)
    np.testing.assert_allclose(found, rows.sum(0), rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "largest", "smallest"),
    [("float32", np.inf, -np.inf), ("bfloat16", np.inf, -np.inf), ("float8_e5m2", np.inf, -np.inf),
     ("float8_e4m3fn", 448, -448), ("int8", 127, -128), ("uint8", 255, 0),
     ("int32", 2**31 - 1, -(2**31)), ("bool", True, False)],
)  # fmt: skip
def test_absent_clients_in_extremes(dtype: str, largest: Any, smallest: Any) -> None:
    assert (absent_value(max_p, jnp.dtype(dtype)), absent_value(min_p, jnp.dtype(dtype))) == (smallest, largest)


def test_sums_by_key_drop_absent_rows_and_keys_out_of_range() -> None:
    values = jnp.array([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]])
    options: Any = {"num_keys": 2, "accumulator": "float32", "batch_dims": 0}
    assert sum_by_key(values, jnp.array([1, 0, 1]), **options).tolist() == [[4.0, 8.0], [17.0, 34.0]]
    assert sum_by_key(values, jnp.array([2, -1, 1]), **options).tolist() == [[0.0, 0.0], [16.0, 32.0]]
    mask = jnp.array([True, False, True])
    assert sum_by_key(values, jnp.array([1, 0, 0]), mask, **options).tolist() == [[16.0, 32.0], [1.0, 2.0]]
    items = sum_by_key(values, jnp.array([[0, 1], [1, 1], [0, 0]]), mask, **options)
    assert items.tolist() == [1.0 + 16 + 32, 2.0]
    batched = sum_by_key(values, jnp.array([[0, 1], [1, 1], [0, 0]]), **{**options, "batch_dims": 1})
    assert batched.tolist() == [[17.0, 4.0], [32.0, 10.0]]
    assert group_rows(jnp.array([0, 1, 1]), mask, 2).tolist() == [0, 2, 1]
    assert group_rows(jnp.array([0, 1, 1]), None, 2).tolist() == [0, 1, 1]
    narrow = group_rows(jnp.array([[0], [199], [100]], jnp.uint8), mask, 300)
    assert (narrow.tolist(), narrow.dtype) == ([[0], [300], [100]], jnp.int32)


def test_only_present_clients_take_part() -> None:
    x, here = jnp.array([1.0, 2.0, 4.0, 8.0]), jnp.array([True, False, True, True])
    keys = jnp.array([0, 0, 1, 1])

    def fn(x: Any) -> Any:
        also = jnp.array([True, True, False, True])
        return (
            wb.reduce_sum(x), wb.reduce_mean(x), wb.reduce_max(x), wb.reduce_min(-x), wb.reduce_sum(x, where=also),
            wb.reduce_weighted_mean(x, jnp.array([1.0, 1.0, 3.0, 0.0])), wb.reduce_by_key(x, keys, 2),
        )  # fmt: skip

    (placement,) = FOUR.placements
    with only_present({placement: here}):
        found = jax.jit(FOUR(fn))(x)
    assert [np.asarray(value).tolist() for value in found] == [
        13.0, pytest.approx(13 / 3), 8.0, -8.0, 9.0, (1 + 3 * 4) / 4, [1.0, 12.0],
    ]  # fmt: skip
    assert jax.jit(FOUR(wb.reduce_sum))(x) == 15.0
    with only_present({placement: here}), pytest.raises(ProgramError, match="Unsigned integers may be masked values"):
        FOUR(wb.reduce_sum)(x.astype("uint32"))


# ---- derivatives


def test_taylor_terms_of_every_primitive() -> None:
    """Terms t + 2 s of x + ε t + ε² s: linear maps pass each term on, and squares mix them."""
    x, t, s = jnp.array([1.0, 2.0, 5.0, 4.0]), jnp.array([1.0, 0.0, 2.0, 1.0]), jnp.array([3.0, 1.0, 1.0, 1.0])

    def terms(fn: Any) -> Any:
        value, (first, second) = jet(FOUR(fn), (x,), ((t, 2 * s),))
        return tuple(np.asarray(term).round(4).tolist() for term in (value, first, second))

    assert terms(wb.reduce_sum) == (12.0, 4.0, 12.0)
    assert terms(wb.reduce_mean) == (3.0, 1.0, 3.0)
    assert terms(wb.reduce_max) == (5.0, 2.0, 2.0)
    assert terms(wb.reduce_min) == (1.0, 1.0, 6.0)
    assert terms(lambda x: wb.select(x, jnp.array([2, 0]))) == ([5.0, 1.0], [2.0, 1.0], [2.0, 6.0])
    assert terms(lambda x: wb.reduce_by_key(x, jnp.array([0, 1, 0, 1]), 2)) == ([6.0, 6.0], [3.0, 1.0], [8.0, 4.0])
    # (x + ε t + ε² s)²: the first term is 2 x t, the second 2 (t² + 2 x s)
    squares = terms(lambda x: wb.map_fn(lambda row, n: row * row, (x, jnp.arange(4))))
    assert squares == ([1.0, 4.0, 25.0, 16.0], [2.0, 0.0, 20.0, 8.0], [14.0, 8.0, 28.0, 18.0])


@pytest.mark.parametrize(
    ("fn", "gradient"),
    [
        (lambda x: wb.reduce_mean(x), [0.25] * 4), (lambda x: wb.reduce_max(x), [0, 0, 1, 0]),
        (lambda x: wb.reduce_sum(wb.map_fn(lambda a: a * a, x)), [2, 4, 10, 8]),
        (lambda x: wb.reduce_sum(wb.map_fn(jnp.multiply, (x, wb.broadcast(wb.reduce_sum(x))))), [24] * 4),
        (lambda x: wb.reduce_weighted_mean(x, jnp.array([1, 2, 0, 1])), [0.25, 0.5, 0, 0.25]),
        (lambda x: wb.reduce_by_key(x, jnp.array([1, 0, 1, 5]) % 3, 3) @ jnp.array([1.0, 10, 100]), [10, 1, 10, 100]),
        (lambda x: wb.select(x, jnp.array([1, 1])).sum(), [0, 2, 0, 0]),
    ],
    ids=range(7),
)  # fmt: skip
def test_gradients_and_their_batches(fn: Any, gradient: Any) -> None:
    x = jnp.array([1.0, 2.0, 5.0, 4.0])
    slope = jax.grad(FOUR(fn))
    assert slope(x).tolist() == pytest.approx(gradient)
    both = jax.vmap(slope, in_axes=1, out_axes=1)(jnp.stack([x, x], 1))
    np.testing.assert_allclose(both, np.stack([gradient] * 2, 1), rtol=1e-6)
    forward = jax.jvp(FOUR(fn), (x,), (jnp.array([1.0, -1.0, 2.0, 0.5]),))[1]
    assert float(forward) == pytest.approx(float(np.dot(gradient, [1, -1, 2, 0.5])), abs=1e-5)


# ---- checks


@pytest.mark.parametrize(("bad", "client"), [((3, 5), 3), ((0,), 0), ((7,), 7), ((), None)])
def test_checks_name_the_first_client_that_fails(bad: Any, client: Any) -> None:
    x = jnp.ones(8).at[jnp.array(bad, int)].set(-2.0)

    def fn(x: Any) -> Any:
        def check(row: Any) -> Any:
            checkify.check(row > 0, "row {r} is not positive", r=row)
            return row

        return wb.reduce_sum(wb.map_fn(check, x))

    error, total = checkify.checkify(wb.program(clients=8)(fn))(x)
    assert float(total) == 8 - 3 * len(bad)
    if client is None:
        assert error.get() is None
    else:
        assert "row -2.0 is not positive" in error.get()
        assert str(client) in error.get().replace("-2.0", "")


# ---- callbacks


@pytest.mark.parametrize(
    ("shapes", "types", "batch"),
    [([(2,)], [(2,)], ()), ([(5, 2)], [(2,)], (5,)), ([(5, 2), (3,)], [(2,), (3,)], (5,)), ([(), (5,)], [(), ()], (5,)),
     ([(4, 5, 2)], [(2,)], (4, 5)), ([], [], ())],
)  # fmt: skip
def test_leading_axes_of_a_batched_callback(shapes: Any, types: Any, batch: Any) -> None:
    avals = [jax.core.ShapedArray(shape, np.float32) for shape in types]
    assert _batch([np.zeros(shape) for shape in shapes], avals) == batch


def test_fillers_of_a_failed_callback() -> None:
    assert np.isnan(_filler(np.dtype("float32")))
    assert np.isnan(_filler(jnp.dtype("bfloat16")))
    assert [_filler(np.dtype(dtype)) for dtype in ("int32", "bool")] == [0, 0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: np.float32(x) + 1, None),
        (lambda x: np.asarray(x, "float64"), "it returned float64[2] instead of float32[2]"),
        (lambda x: x[:1], "it returned float32[1] instead of float32[2]"),
        (lambda x: 1 // 0, "its host callback `<lambda>` raised ZeroDivisionError"),
    ],
    ids=range(4),
)  # fmt: skip
def test_answers_of_callbacks_are_checked(answer: Any, said: Any) -> None:
    def fn(x: Any) -> Any:
        return jax.pure_callback(answer, jax.ShapeDtypeStruct((2,), "float32"), x)

    errors = CallbackErrors("program", "stage")
    run = jax.jit(errors.guarding(fn))
    if said is None:
        assert errors.call(run, (jnp.ones(2),), {}).tolist() == [2.0, 2.0]
        return
    with pytest.raises(EngineError) as caught:
        errors.call(run, (jnp.ones(2),), {})
    assert str(caught.value).startswith("`program` failed: its host callback `<lambda>` raised ")
    assert said in str(caught.value)
    assert errors.found is True


def test_programs_without_callbacks_are_unchanged() -> None:
    errors = CallbackErrors("program")
    closed = jax.make_jaxpr(lambda x: x + 1)(1.0)
    assert errors.guarded(closed) is closed
    assert (errors.name, errors.stage, errors.found) == ("program", "program", False)
    assert errors.call(jaxpr_as_fun(closed), (jnp.float32(1),), {}) == [2.0]
    assert errors.found is False


def test_answers_without_arrays_and_with_keys_are_not_checked() -> None:
    number, key = jax.core.ShapedArray((), jnp.dtype("float32")), jax.typeof(jax.random.key(0))
    callback = CallbackErrors("program")._callback
    assert callback(lambda _: None, [], [number])(np.float32(1)) is None
    assert callback(lambda _: ["unchecked"], [key, number], [number])(np.float32(1)) == ["unchecked"]
    assert callback(lambda x: [x], [number], [number])(np.float32(1)) == (1.0,)
    with pytest.raises(ValueError, match=r"returned float64\[\] instead of float32\[\]"):
        callback(lambda _: [np.float64(1)], [number], [number])(np.float32(1))


def test_an_unguarded_callback_raises_its_own_error() -> None:
    number = jax.core.ShapedArray((), np.float32)
    with pytest.raises(ZeroDivisionError):
        CallbackErrors("program")._callback(lambda _: 1 // 0, [number], [number])(np.float32(1))


# ---- rewriting


class Doubled(Rewriting):
    """Replaces sums by products."""

    def equation(self, equation: Any) -> Any:
        if equation.primitive.name != "add":
            return equation
        product = jax.make_jaxpr(lambda x: x * x)(1.0).eqns[0]
        return equation.replace(primitive=product.primitive)


def test_a_rewriting_reaches_loops_branches_and_solvers() -> None:
    def fn(x: Any) -> Any:
        y = jax.lax.scan(lambda c, _: (c + c, None), x, None, length=2)[0]
        y = jax.lax.cond(x > 0, lambda y: jax.jit(lambda y: y + y)(y), lambda y: y, y)
        return jax.lax.custom_linear_solve(lambda v: v, y, lambda _, b: b + b, symmetric=True)

    closed = jax.make_jaxpr(fn)(3.0)
    assert jaxpr_as_fun(closed)(jnp.float32(3)) == [48.0]
    assert jaxpr_as_fun(Doubled().closed(closed))(jnp.float32(3)) == [3.0**16]


def test_rebased_programs_forget_manual_and_hidden_axes() -> None:
    before = mesh(AxisType.Explicit, a=2, b=2)
    with jax.sharding.use_abstract_mesh(before):
        x = jax.ShapeDtypeStruct((4, 4), "float32", sharding=NamedSharding(before, P("a", "b")))
        closed = jax.make_jaxpr(lambda x: x * 2)(x)
    after = AbstractMesh((2, 2), ("a", "b"), axis_types=(AxisType.Manual, AxisType.Explicit))
    with jax.sharding.use_abstract_mesh(after):
        assert rebase(closed).in_avals[0].sharding.spec == P(None, "b")
    with jax.sharding.use_abstract_mesh(before):
        assert rebase(closed).in_avals[0].sharding.spec == P("a", "b")
        assert rebase(closed, ("b",)).in_avals[0].sharding.spec == P("a", None)
        assert rebase(closed).out_avals[0].sharding.mesh.axis_names == ("a", "b")
    assert isinstance(find_layout(EIGHT, mesh(clients=2)), Layout)


# ---- every primitive at once, on rows of 3 × 2 numbers, against plain JAX

KEYS, COHORT = np.array([[1, 0, 1], [3, 1, 0], [0, 0, 5], [1, 1, 1]]), np.array([3, 0, 3])


def all_primitives(x: Any) -> Any:
    rows = wb.map_fn(lambda row, n: jnp.sin(row) * (n + 1), (x, wb.broadcast(x.sum() / 100)))
    return (rows, wb.reduce_sum(x), wb.reduce_mean(x), wb.reduce_max(x), wb.reduce_min(x), wb.broadcast(x[0]),
            wb.reduce_by_key(x, jnp.asarray(KEYS), 4), wb.reduce_by_key(x, jnp.asarray(KEYS[:, 0]), 4, op="mean"),
            wb.select(x, jnp.asarray(COHORT)), wb.reduce_weighted_mean(x, jnp.array([1.0, 0.0, 2.0, 5.0])))  # fmt: skip


def plain(x: Any) -> Any:
    items = sum(jnp.where((KEYS == key)[:, :, None, None], x[:, :, None], 0.0).sum((0, 1)) * np.eye(4)[key][:, None]
                for key in range(4))  # fmt: skip
    counts = np.maximum(1, np.bincount(KEYS[:, 0], minlength=4))[:, None, None]
    hot = np.eye(4, dtype=np.float32)[KEYS[:, 0]]
    rows = jnp.sin(x) * (x.sum() / 100 + 1)
    return (rows, x.sum(0), x.mean(0), x.max(0), x.min(0), jnp.stack([x[0]] * 4), items,
            jnp.einsum("ck,cij->kij", hot, x) / counts, x[COHORT],
            jnp.tensordot(np.float32([1, 0, 2, 5]) / 8, x, 1))  # fmt: skip


@pytest.fixture(scope="module")
def cube() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 4, 3, 2)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 3])
def test_batches_of_every_primitive(axis: int, cube: np.ndarray) -> None:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = jax.jit(jax.vmap(FOUR(all_primitives), in_axes=axis, out_axes=0))(np.moveaxis(cube, 0, axis))
        expected = jax.jit(jax.vmap(plain))(cube)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_of_every_primitive(cube: np.ndarray) -> None:
    weights = [np.random.default_rng(at).normal(size=shape).astype(np.float32) for at, shape in enumerate(
        ((4, 3, 2), (3, 2), (3, 2), (3, 2), (3, 2), (4, 3, 2), (4, 2), (4, 3, 2), (3, 3, 2), (3, 2)))]  # fmt: skip

    def loss(fn: Any) -> Any:
        return lambda x: sum(jnp.vdot(w, y) for w, y in zip(weights, fn(x), strict=True))

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = jax.jit(jax.vmap(jax.grad(loss(FOUR(all_primitives)))))(cube)
        expected = jax.jit(jax.vmap(jax.grad(loss(plain))))(cube)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_maps_whose_results_nobody_reads_need_no_inputs() -> None:
    def fn(x: Any) -> Any:
        rows = wb.map_fn(jnp.sin, jnp.exp(x))
        used, _ = wb.map_fn(lambda a, b: (a * 2, b * 3), (x, rows))
        return wb.reduce_sum(used)

    plan = wb.trace(FOUR(fn))(jnp.ones(4)).plan
    assert [stage.operation for stage in plan.stages] == ["map_fn", "reduce_sum"]
    assert [len(stage.inputs) for stage in plan.stages] == [1, 1]


@pytest.mark.parametrize(
    ("axis", "shape", "spec"),
    [(0, (5, 4, 2), P(None, "clients", "model")), (1, (4, 5, 2), P("clients", None, "model"))],
)
def test_batches_of_explicitly_sharded_rows(axis: int, shape: Any, spec: P) -> None:
    """5 selections and 5 keyed sums of rows whose numbers are sharded over another axis."""
    on = mesh(AxisType.Explicit, clients=2, model=2)

    def sharded(shape: Any, spec: P, dtype: str) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(on, spec))

    with jax.sharding.use_abstract_mesh(on):
        x = sharded(shape, spec, "float32")
        at, keys = sharded((5, 3), P(None, None), "int32"), sharded((5, 4), P(None, "clients"), "int32")
        chosen = jax.eval_shape(jax.vmap(FOUR(wb.select), in_axes=(axis, 0)), x, at)
        sums = jax.eval_shape(jax.vmap(FOUR(lambda x, k: wb.reduce_by_key(x, k, 7)), in_axes=(axis, 0)), x, keys)
    assert (chosen.shape, chosen.sharding.spec[2]) == ((5, 3, 2), "model")
    assert (sums.shape, sums.sharding.spec[2]) == ((5, 7, 2), "model")


def test_gradients_of_replicated_rows_have_their_explicit_type() -> None:
    on = mesh(AxisType.Explicit, clients=2, model=2)
    with jax.sharding.use_abstract_mesh(on):
        x = jax.ShapeDtypeStruct((4, 2), "float32", sharding=NamedSharding(on, P(None, "model")))
        jaxpr = jax.make_jaxpr(FOUR(lambda x: wb.reduce_sum(wb.map_fn(jnp.sin, x))))(x)
        chosen = jax.make_jaxpr(FOUR(lambda x: wb.select(x, jnp.zeros(3, int))))(x)
        slope = jax.eval_shape(jax.grad(FOUR(lambda x: wb.reduce_sum(wb.map_fn(jnp.sin, x)).sum())), x)
    assert slope.sharding.spec == P(None, "model")
    for traced, primitive in ((jaxpr, "map_fn"), (chosen, "select")):
        (equation,) = [equation for equation in traced.eqns if equation.primitive.name == primitive]
        assert equation.invars[0].aval.sharding.spec == P("clients", "model")


def test_weighted_means_inside_a_trace_add_no_compiled_call() -> None:
    jaxpr = jax.make_jaxpr(FOUR(lambda x: wb.reduce_weighted_mean(x, jnp.ones(4))))(jnp.ones((4, 3)))
    assert [equation.primitive.name for equation in jaxpr.eqns].count("reduce_sum") == 2  # of values and of weights


def test_deleted_arrays_are_listed_by_their_places() -> None:
    first, second = jnp.ones(4), jnp.ones((4, 2))
    for array in (first, second):
        array.delete()
    listed = r"received 2 array\(s\).*: \['a'\] of shape \(4,\), \['b'\] of shape \(4, 2\)"
    with pytest.raises(ProgramError, match=listed):
        refuse_deleted("run", {"a": first, "b": second, "c": jnp.ones(4)})
    with pytest.raises(ProgramError, match=r"received 1 array\(s\).*: the argument of shape \(4,\)"):
        refuse_deleted("run", first)


@pytest.mark.parametrize(
    ("value", "eager"),
    [(jnp.ones(4), True), ({"a": jnp.ones((4, 2)), "b": jnp.ones(4)}, True), (jnp.ones(5), False),
     ([jnp.ones(4), jnp.ones(3)], False), ([], False), (jnp.float32(1.0), False)],
)  # fmt: skip
def test_reductions_of_arrays_with_a_row_per_client_run_in_one_compiled_call(value: Any, eager: bool) -> None:
    placement = Placement("clients", 4, ())
    assert _is_eager(value, placement) is eager
    with jax.disable_jit():
        assert not _is_eager(value, placement)
