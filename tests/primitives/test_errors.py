"""Bad input: each error says what was given, what breaks it, the rule and the remedy, and names every offender."""

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import workbench as wb
from workbench import _jax_compat
from workbench.errors import MeshError, PlacementError, ProgramError


def _text(kind: type, call: Any) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def _under(clients: int, call: Any) -> Any:
    return lambda: wb.program(clients=clients)(call)()


def test_wrong_number_of_clients_names_argument_leaf_shapes_and_placement() -> None:
    batch = {"images": jnp.ones((5, 2)), "labels": jnp.ones(5), "fine": jnp.ones(3)}
    text = _text(PlacementError, _under(3, lambda: wb.map_fn(lambda row: row, batch)))
    assert text == (
        "`map_fn` was given args['images'] of shape (5, 2), args['labels'] of shape (5,), but the placement "
        '"clients" has 3 '
        "clients. A client-placed value has one row per client, so its leading axis must be 3. Either set the "
        "placement to 5 clients, pad and mask the missing clients, or `broadcast` a value that all clients "
        "share."
    )


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("reduce_sum", lambda: wb.reduce_sum(jnp.ones(5))),
        ("reduce_mean", lambda: wb.reduce_mean(jnp.ones(5))),
        ("reduce_weighted_mean", lambda: wb.reduce_weighted_mean(jnp.ones(5), jnp.ones(5))),
        ("reduce_max", lambda: wb.reduce_max(jnp.ones(5))),
        ("reduce_min", lambda: wb.reduce_min(jnp.float32(1))),
        ("reduce_sum", lambda: wb.reduce_sum(jnp.ones(3), where=jnp.ones(5, bool))),
        ("reduce_by_key", lambda: wb.reduce_by_key(jnp.ones(5), jnp.zeros(5, int), 2)),
        ("select", lambda: wb.select(jnp.ones(5), jnp.array([0]))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_wrong_number_of_clients_is_found_when_the_primitive_is_called(operation: str, call: Any, jit: bool) -> None:
    text = _text(PlacementError, _under(3, jax.jit(call) if jit else call))
    assert text.startswith(f"`{operation}` was given ")
    assert 'the placement "clients" has 3 clients' in text


def test_unknown_placement_lists_the_active_ones() -> None:
    text = _text(PlacementError, _under(3, lambda: wb.reduce_sum(jnp.ones(3), over="workers")))
    assert text == (
        '`reduce_sum` was called for the placement "workers", but the placements active here are clients=3. A '
        "primitive can "
        'only use these placements: use one of their names, or add "workers" to the `placements` of the program.'
    )


def test_ambiguous_placement_asks_which_one() -> None:
    two = wb.program(placements={"pods": 2, "clients": 3})
    text = _text(PlacementError, lambda: two(wb.broadcast)(jnp.ones(1)))
    assert text == (
        "`broadcast` was called without a placement, but this program has 2: pods=2, clients=3. With several "
        'placements, each primitive must name its own: pass to="clients", for example.'
    )
    assert 'pass over="clients"' in _text(PlacementError, lambda: two(wb.reduce_sum)(jnp.ones((2, 3))))


def test_primitive_outside_of_a_program_says_how_to_get_clients() -> None:
    text = _text(PlacementError, lambda: wb.reduce_mean(jnp.ones(3)))
    assert text == (
        "`reduce_mean` was called outside a program, so there are no clients. Primitives need a placement: "
        "decorate the calling function with `@workbench.program(clients=64)`, or open "
        "`with workbench.program(clients=64):` around the call."
    )


def test_primitive_inside_a_client_without_an_inner_placement() -> None:
    text = _text(PlacementError, _under(3, lambda: wb.map_fn(lambda row: wb.reduce_sum(row), jnp.ones(3))))
    assert 'inside the function of one client of "clients", which has no placement inside it' in text
    assert "return the value from `map_fn` and reduce it outside" in text


def test_broadcast_from_an_inner_placement_to_an_outer_one() -> None:
    two = wb.program(placements={"pods": 2, "clients": 3})
    text = _text(PlacementError, lambda: two(lambda x: wb.broadcast(x, at="clients", to="pods"))(jnp.ones(3)))
    assert text.startswith(
        '`broadcast` was given at="clients" and to="pods", but "clients" is not outside "pods" here.'
    )
    assert "omit `at`" in text


def test_mesh_that_mixes_axis_types_under_one_placement() -> None:
    mesh = wb.make_mesh(x=4, y=2, axis_types=(AxisType.Auto, AxisType.Explicit))
    spread = wb.program(clients=8, axes={"clients": ("x", "y")})
    with jax.set_mesh(mesh):
        text = _text(MeshError, lambda: spread(wb.broadcast)(jnp.ones(2)))
    assert text.startswith(
        "placement \"clients\" is spread over the mesh axes ('x', 'y'), of types ['Auto', 'Explicit']."
    )
    assert "must all be Auto or all Explicit" in text


@pytest.mark.parametrize(
    ("returned", "described"),
    [({1, 2}, "set"), (np.array(["text"]), "ndarray"), (np.array([object()]), "ndarray")],
    ids=["set", "array of strings", "array of objects"],
)
def test_client_output_that_is_not_arrays(returned: Any, described: str) -> None:
    def client(row: Any) -> Any:
        return {"fine": row, "wrong": returned}

    text = _text(ProgramError, _under(3, lambda: wb.map_fn(client, jnp.ones(3))))
    assert text.startswith("`map_fn` called `client`, which returned 1 non-array value")
    assert f"the first of type {described}" in text
    assert "they must be a pytree of arrays and numbers" in text


def test_argument_that_is_not_arrays_names_its_leaf() -> None:
    text = _text(ProgramError, _under(3, lambda: wb.broadcast({"w": jnp.ones(2), "names": {"resnet"}})))
    assert text.startswith("`broadcast` received 1 non-array value: x['names'] = {'resnet'} (set).")
    assert "pass them as static arguments" in text


def test_keys_out_of_range_are_listed() -> None:
    keys = jnp.array([[0, 7], [-1, 1], [2, 2]])
    text = _text(PlacementError, _under(3, lambda: wb.reduce_by_key(jnp.ones((3, 2)), keys, 3)))
    assert text == (
        "`reduce_by_key` was given keys[0, 1] = 7, keys[1, 0] = -1, but num_keys=3. A key is the number of a group, "
        "from 0 to "
        "2. Either raise `num_keys` to 8 or more, or mask the items that belong to no group: give them the value 0 and "
        "any key "
        "in range."
    )


@pytest.mark.parametrize(
    ("keys", "num_keys", "op", "said"),
    [
        (
            np.zeros(3, np.float32),
            2,
            "sum",
            "`keys` of dtype float32. A key is the number of a group, an integer from 0 to 1",
        ),
        (np.zeros((3, 4), int), 2, "sum", "`keys` of shape (3, 4) for `values` of shape (3, 2)"),
        (np.zeros(3, int), 0, "sum", "num_keys=0. The number of groups fixes the shape"),
        (np.zeros(3, int), 2, "max", "op='max'. A group is summed or averaged"),
    ],
    ids=["float keys", "shape of keys", "no groups", "unknown op"],
)
def test_reduce_by_key_rejects_what_it_cannot_group(keys: Any, num_keys: int, op: Any, said: str) -> None:
    text = _text(PlacementError, _under(3, lambda: wb.reduce_by_key(jnp.ones((3, 2)), keys, num_keys, op=op)))
    assert said in text


def test_weights_of_the_wrong_length() -> None:
    text = _text(PlacementError, _under(4, lambda: wb.reduce_weighted_mean(jnp.ones((4, 2)), jnp.ones(3))))
    assert text == (
        '`reduce_weighted_mean` was given `x` from 4 clients of "clients" but `weight` of shape (3,). Each client '
        "needs exactly "
        "one weight: pass a `weight` of shape (4,), or use `reduce_mean(x)` to weight all clients equally."
    )


def test_weights_that_are_no_prefix_of_the_values() -> None:
    values, weights = {"a": jnp.ones(4), "b": jnp.ones(4)}, {"a": jnp.ones(4), "c": jnp.ones(4)}
    text = _text(PlacementError, _under(4, lambda: wb.reduce_weighted_mean(values, weights)))
    assert "`weight` is one vector for all of `x`, or a pytree that is a prefix of `x`" in text


class _Unusual(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    "cause", [ValueError("bad row"), KeyError("bad row"), _Unusual(1, 2)], ids=lambda e: type(e).__name__
)
def test_failing_client_function_names_its_stage_and_keeps_its_type(cause: Exception) -> None:
    def train(row: Any) -> Any:
        raise cause

    with pytest.raises(type(cause)) as caught:
        wb.program(clients=3)(lambda x: wb.map_fn(train, x))(jnp.ones((3, 2)))
    assert isinstance(caught.value, ProgramError)
    assert caught.value.__cause__ is cause
    text = str(caught.value)
    assert text.startswith(
        '`map_fn` could not call the client function `train` of the stage over "clients" (3 clients)'
    )
    assert f"it raised {type(cause).__name__}: {cause}" in text
    assert "the values of one client (float32[2])" in text
    assert "Change the function to accept these shapes" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


@pytest.mark.parametrize(
    ("indices", "said"),
    [
        ([0, 4, -1], '`select` was given indices[1] = 4, indices[2] = -1, but the placement "clients" has 4 clients.'),
        ([0.0], "`indices` of shape (1,) and dtype float32. A cohort is a list of one or more client numbers"),
        ([], "of shape (0,)"),
    ],
    ids=["out of range", "floats", "nobody"],
)
def test_select_rejects_what_is_no_cohort(indices: Any, said: str) -> None:
    assert said in _text(
        PlacementError,
        _under(
            4,
            lambda: (
                wb.select(jnp.ones(4), np.array(indices, dtype=None))
                if indices
                else wb.select(jnp.ones(4), np.array([], int))
            ),
        ),
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 5}, '`sample` was given size=5, but the placement "clients" has 4 clients.'),
        ({"size": 0}, "pass an int from 1 to 4"),
        ({"size": 2, "form": "list"}, "form='list'. A cohort is a list of client numbers or a mask"),
        ({"size": 2, "weights": np.ones(3)}, "`weights` of shape (3,)"),
    ],
    ids=["more than there are", "nobody", "unknown form", "weights"],
)
def test_sample_rejects_what_it_cannot_draw(options: Any, said: str) -> None:
    assert said in _text(PlacementError, _under(4, lambda: wb.sample(jax.random.key(0), **options)))


def test_error_of_some_clients_names_the_first_of_them() -> None:
    def refuse(rows: Any) -> Any:
        if np.any(rows > 1):
            message = "too large"
            raise ValueError(message)
        return rows

    def check(row: Any) -> Any:
        return jax.pure_callback(refuse, jax.ShapeDtypeStruct((), row.dtype), row, vmap_method="expand_dims")

    with pytest.raises(ProgramError, match=r"`check` for client 2 of the stage (.|\n)*too large"):
        wb.program(clients=4)(lambda x: wb.map_fn(check, x))(jnp.arange(4.0))


def test_interrupted_answer_about_a_jaxpr_is_asked_again() -> None:
    asked: list[object] = []

    @_jax_compat.once_per_jaxpr
    def count(jaxpr: Any) -> int:
        asked.append(jaxpr)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return len(jaxpr.eqns)

    jaxpr = jax.make_jaxpr(lambda x: x + 1)(1.0).jaxpr
    with pytest.raises(KeyboardInterrupt):
        count(jaxpr)
    assert [count(jaxpr), count(jaxpr), len(asked)] == [1, 1, 2]


@pytest.mark.parametrize("operation", ["map_fn", "broadcast"])
def test_machine_that_is_no_mesh_is_refused(operation: str) -> None:
    calls = {
        "map_fn": lambda: wb.map_fn(lambda x: x, jnp.ones(4), on="v5e"),
        "broadcast": lambda: wb.broadcast(1.0, on="v5e"),
    }
    with wb.program(clients=4), pytest.raises(MeshError, match=f"`{operation}` was given on='v5e'.*must be a mesh"):
        calls[operation]()
