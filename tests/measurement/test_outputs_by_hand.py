"""The outputs that a watch finds in a call, their names, and descriptions of arguments, derived by hand."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import MeasureError
from workbench.measurement._watch_outputs import (
    Reader,
    WatchedCall,
    _returned_names,
    arguments_of,
    arrays_of,
    changes_between,
    outputs_by_name,
    shapes_of,
)


def called(fn: Any, *args: Any, outputs: Any = None, before: Any = (), **kwargs: Any) -> tuple[Reader, WatchedCall]:
    call = WatchedCall(fn(*args, **kwargs), args, kwargs)
    return Reader(fn, outputs, call, {id(array): array for array in before}), call


def names(fn: Any, *args: Any, outputs: Any = None) -> list[str]:
    reader, call = called(fn, *args, outputs=outputs)
    return [*reader.read(call)[1]]


def pair():
    loss, accuracy = jnp.float32(2), jnp.float32(3)
    return loss, accuracy


def state_and_metrics():
    state, metrics = {"w": jnp.zeros(3)}, {"loss": jnp.float32(2), "accuracy": jnp.float32(3)}
    return state, metrics


def single():
    loss = jnp.float32(2)
    return loss


def unnamed():
    return jnp.float32(2)


def nested():
    result = {"a": [jnp.float32(2)]}
    return result


def different(flag=True):
    loss, norm = jnp.float32(2), jnp.float32(3)
    if flag:
        return loss, norm
    return norm, loss


def averaged():
    loss, norm = jnp.float32(2), jnp.float32(3)
    return jnp.negative(loss), norm.T


def with_inner_functions():
    def inner():
        return jnp.float32(1)

    class Inner:
        def method(self):
            return 1

    loss = jnp.float32(2)
    for _ in range(2):
        if inner:
            return loss, (lambda: 2)
    return loss, 3 * Inner().method()


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (pair, ["loss", "accuracy"]), (single, ["loss"]), (unnamed, ["value"]), (nested, ["result.a.0"]),
        (state_and_metrics, ["loss", "accuracy"]), (different, ["0", "1"]), (averaged, ["loss", "T"]),
        (functools.partial(different, flag=False), ["0", "1"]), (jax.jit(pair), ["loss", "accuracy"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_names_of_outputs(fn, expected):
    assert names(fn) == expected


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(with_inner_functions, ["loss", "1"]), (different, None), (single, ["loss"]), (averaged, ["loss", "T"]),
     (len, None), (None, None), (jax.grad(lambda x: x), None), (functools.partial(pair), ["loss", "accuracy"])],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_names_in_return_statements(fn, expected):
    assert _returned_names(fn) == expected


def test_equal_last_names_are_written_with_their_paths():
    def fn():
        a, b = {"loss": jnp.float32(2), "x": jnp.float32(3)}, {"loss": jnp.float32(4)}
        return a, b

    assert names(fn) == ["a.loss", "b.loss", "x"]  # a loss first, at the same depth

    def values():
        a, b = {"value": jnp.float32(2)}, {"value": jnp.float32(3)}
        return a, b

    assert names(values) == ["a", "b"]  # as the variables of NNX


def test_eight_scalars_that_are_floats_are_recorded_shallowest_first():
    def fn():
        many = [jnp.float32(1 + number) for number in range(9)]
        others = {
            "count": jnp.int32(3),
            "vector": jnp.ones(2),
            "deep": {"a": {"x": jnp.float32(2), "loss": jnp.float32(3)}},
            "y": jnp.float32(4),
        }
        return many, others

    assert names(fn) == [f"many.{number}" for number in range(8)]

    def few():
        loss, others = (
            jnp.float32(2),
            {"deep": {"a": {"x": jnp.float32(2), "norm": jnp.float32(3)}}, "y": jnp.float32(4), "z": jnp.float32(5)},
        )
        return others, loss

    reader, call = called(few)
    probe, values = reader.read(call)
    assert [*values] == ["loss", "y", "z", "norm"]  # `x` is too deep
    assert reader.of_state == {"norm"}
    assert probe is call.result[1]  # the smallest array, at the shallowest place
    assert (reader.is_empty, reader.is_traced, reader.problems) == (False, False, [])


def test_the_smallest_array_of_the_results_is_waited_for():
    def fn(x):
        return {"key": jax.random.key(0), "large": jnp.ones(5), "small": jnp.ones((1, 2))}

    x = jnp.float32(1)
    reader, call = called(fn, x, before=[x])
    probe, values = reader.read(call)
    assert (probe is call.result["small"], values) == (True, {})
    assert reader.is_empty
    # without results, an argument that was not there before the call
    old, new = jnp.ones(1), jnp.ones(3)
    reader, call = called(lambda *args: None, old, new, before=[old])
    assert reader.read(call)[0] is new
    reader, call = called(lambda *args: None, old, before=[old])
    assert reader.read(call)[0] is None


def test_an_argument_that_is_updated_in_place_has_its_name():
    def fn(model, metrics):
        return None

    reader, call = called(fn, {"w": jnp.ones(2)}, {"loss": jnp.float32(2)})
    assert [*reader.read(call)[1]] == ["loss"]
    reader, call = called(fn, jnp.float32(1.5), jnp.float32(2.5))
    assert {name: float(value) for name, value in reader.read(call)[1].items()} == {"model": 1.5, "metrics": 2.5}


@pytest.mark.parametrize(
    ("outputs", "values"),
    [
        ("loss", {"loss": 2.0}), (["accuracy", "loss"], {"accuracy": 3.0, "loss": 2.0}),
        ({"mine": "loss"}, {"mine": 2.0}), (lambda result: result[1]["loss"] + 1, {"value": 3.0}),
        ({"n": lambda result: {"a": [1.0, 2.0]}}, {"n['a'][0]": 1.0, "n['a'][1]": 2.0}),
    ],
)  # fmt: skip
def test_chosen_outputs(outputs, values):
    def fn():
        metrics = {"loss": jnp.float32(2), "accuracy": jnp.float32(3)}
        return jnp.zeros(3), metrics

    reader, call = called(fn, outputs=outputs)
    assert {name: float(value) for name, value in reader.read(call)[1].items()} == values


def test_the_shortest_of_several_paths_is_chosen():
    def fn():
        a, b = {"x": {"loss": jnp.float32(2)}}, {"loss": jnp.float32(3)}
        return a, b

    reader, call = called(fn, outputs="loss")
    assert float(reader.read(call)[1]["loss"]) == 3.0  # `b.loss`, and not `a.x.loss`
    assert [*called(fn, outputs="x.loss")[0].read(call)[1]] == ["x.loss"]
    assert called(fn, outputs="y.loss")[0].problems == ["there is no output 'y.loss'; the arrays are: a.x.loss, b.loss"]


def test_outputs_that_are_absent_or_large_are_problems():
    def fn():
        many, full, large = [jnp.zeros(2)] * 12, jnp.zeros((2, 512)), jnp.zeros(1025)
        return many, full, large

    reader, call = called(fn, outputs=["large", "lost", "full"])
    assert [*reader.read(call)[1]] == ["full"]
    large, lost = reader.problems
    assert large.startswith("the output 'large' has 1,025 values, but `watch` keeps at most 1,024")
    assert lost == "there is no output 'lost'; the arrays are: " + ", ".join(f"many.{number}" for number in range(12))
    reader, _ = called(lambda: 3, outputs="lost")
    assert reader.problems == ["there is no output 'lost'; the arrays are: none"]


def test_a_function_that_fails_is_removed_alone():
    def fail(result):
        raise KeyError("x")

    reader, call = called(pair, outputs={"bad": fail, "good": lambda result: result[0]})
    assert [*reader.read(call)[1]] == ["good"]
    assert [*reader.read(call)[1]] == ["good"]
    assert reader.problems == [
        "the output 'bad' failed and was removed (KeyError: 'x'): its function receives the result of the watched "
        "function"
    ]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"]), ({"x": "a"}, ["x"]), (len, ["len"]), (lambda x: x, ["value"]),
     (functools.partial(len), ["partial"]), ([len, "a"], ["len", "a"])],
)  # fmt: skip
def test_names_of_chosen_outputs(selection, expected):
    assert [*outputs_by_name(selection)] == expected


def test_outputs_of_another_kind_are_refused():
    with pytest.raises(MeasureError, match=r"outputs with 3, 4\.5"):
        outputs_by_name([3, "a", 4.5])  # type: ignore[list-item]


# ---- arguments


def test_key_of_a_program_is_shapes_dtypes_and_static_arguments():
    args = (jnp.ones((2, 3)), np.zeros(4, np.int8), np.float32(1), True, "mode", 3, 2.5, None)
    assert shapes_of(args, {"k": jnp.int32(1)}) == (
        ((2, 3), jnp.float32), ((4,), np.int8), ((), np.float32), True, "mode", int, float, ((), jnp.int32),
    )  # fmt: skip
    assert shapes_of(({1: 0, "a": 0},), {}) == ()  # keys that cannot be sorted
    assert arrays_of(({1: 0, "a": 0},), {}) == {}
    one, other = jnp.ones(1), jnp.ones(1)
    assert arrays_of((one, 3), {"k": other}) == {id(one): one, id(other): other}


def test_descriptions_of_arguments():
    def fn(x, flag, *rest, **others):
        return None

    mesh = wb.make_mesh(clients=8)
    spread = jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("clients")))
    copied = jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P()))
    args = ({"w": spread, "b": copied}, True, np.zeros((2, 1), np.int8), "m" * 90, object())
    weak = jnp.asarray(1.0)
    assert arguments_of(fn, WatchedCall(None, args, {"scale": jnp.float32(1), "weak": weak})) == {
        "x['b']": "f32[8] on 8 devices, replicated", "x['w']": f"f32[8] on 8 devices, {jax.P('clients')}",
        "flag": "True", "rest": "int8[2, 1] of NumPy", "others": "'" + "m" * 79, "4": "object",
        "scale": "f32[] on one device", "weak": "f32[], weakly typed on one device",
    }  # fmt: skip
    assert arguments_of(None, WatchedCall(None, (1,), {})) == {"0": "int"}
    assert arguments_of(fn, WatchedCall(None, ({1: 0, "a": 0},), {})) == {}


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({}, {"x": "a"}, ""),
        ({"x": "a"}, {"x": "a"}, ""),
        ({"x": "a", "y": "b"}, {"x": "a"}, ""),
        ({"x": "a"}, {"x": "a", "y": "b"}, "argument `y`: now b, before absent"),
        (dict.fromkeys("xyz", "a"), dict.fromkeys("xyz", "b"),
         "argument `x`: now b, before a; argument `y`: now b, before a; argument `z`: now b, before a"),
        (dict.fromkeys("wxyzv", "a"), dict.fromkeys("wxyzv", "b"),
         "argument `w`: now b, before a; argument `x`: now b, before a; argument `y`: now b, before a; and 2 more "
         "arguments"),
    ],
)  # fmt: skip
def test_arguments_that_differ(before, now, text):
    assert changes_between(before, now) == text
