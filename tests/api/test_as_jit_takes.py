"""Arguments that are no pytrees of arrays: `wb.jit` and `inspect` take and refuse what `jax.jit` does."""

import collections
import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import ProgramError


@dataclasses.dataclass
class Plain:
    w: Any


@dataclasses.dataclass(eq=False)
class ByIdentity:
    w: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    w: Any


Named = collections.namedtuple("Named", "w")
X = np.arange(4, dtype="float32")


def of_attribute(p, x):
    return x * p.w


def of_items(p, x):
    return x * sum(p)


def of_key(p, x):
    return x * p["w"]


CASES = {
    "unregistered dataclass": (of_attribute, lambda: Plain(jnp.ones(4))),
    "unregistered dataclass of numbers": (of_attribute, lambda: Plain(2.0)),
    "dataclass by identity": (of_attribute, lambda: ByIdentity(jnp.ones(4))),
    "frozen dataclass": (of_attribute, lambda: Frozen(2.0)),
    "frozen dataclass of arrays": (of_attribute, lambda: Frozen(jnp.ones(4))),
    "dataclass in a list": (lambda p, x: x * p[0].w, lambda: [ByIdentity(2.0)]),
    "registered dataclass": (of_attribute, lambda: Registered(jnp.ones(4))),
    "generator": (of_items, lambda: (jnp.ones(4) for _ in range(2))),
    "iterator": (of_items, lambda: iter([1.0, 2.0])),
    "map": (of_items, lambda: map(float, [1, 2])),
    "list": (of_items, lambda: [jnp.ones(4), 2.0]),
    "named tuple": (of_attribute, lambda: Named(jnp.ones(4))),
    "ordered dictionary": (of_key, lambda: collections.OrderedDict(w=jnp.ones(4))),
    "dictionary with keys of two types": (lambda p, x: x * p[1], lambda: {1: jnp.ones(4), "a": jnp.ones(4)}),
    "None": (lambda p, x: x * (p is None), lambda: None),
    "jax.tree_util.Partial": (lambda p, x: p(x), lambda: jax.tree_util.Partial(jnp.multiply, jnp.ones(4))),
    "array of text": (lambda p, x: x * len(p), lambda: np.array(["a", "b"])),
    "array of objects": (lambda p, x: x * len(p), lambda: np.array([object()])),
    "NumPy scalar": (lambda p, x: x * p, lambda: np.float32(2)),
    "complex number": (lambda p, x: x * p, lambda: 2j),
    "number of too many bits": (lambda p, x: x * p, lambda: 2**40),
    "reference": (lambda p, x: x * p[...], lambda: jax.new_ref(jnp.ones(4))),
    "random key": (lambda p, x: x + jax.random.normal(p, (4,)), lambda: jax.random.key(0)),
    "namespace": (of_attribute, lambda: types.SimpleNamespace(w=jnp.ones(4))),
}


def outcome(call):
    """The result of a call, or the kind of its error."""
    try:
        return np.asarray(call())
    except (TypeError, ValueError, OverflowError) as error:
        return next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_jit_takes_and_refuses_what_jax_does(name):
    fn, make = CASES[name]
    expected, got = outcome(lambda: jax.jit(fn)(make(), X)), outcome(lambda: wb.jit(fn)(make(), X))
    if isinstance(expected, type):
        assert got is expected
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", [name for name in CASES if "dataclass" in name or name in ("generator", "map")])
def test_questions_refuse_dataclasses_and_iterators_as_jax_does(name):
    fn, make = CASES[name]
    if name == "registered dataclass":
        assert wb.inspect(fn)(make(), X).module is not None
        return
    with pytest.raises(ProgramError, match=r"argument 0.*`jax\.jit` rejects such arguments too.*register_dataclass"):
        wb.inspect(fn)(make(), X)


def test_dataclass_that_a_jit_has_as_static_argument_is_taken():
    fn = jax.jit(of_attribute, static_argnames="p")
    assert wb.inspect(fn)(Frozen(2.0), X).module is not None
    np.testing.assert_array_equal(wb.jit(of_attribute, static_argnames="p")(Frozen(2.0), X), X * 2)


def test_text_and_functions_are_static_parts_which_jax_refuses():
    for static, expected in ((jnp.negative, -X), ("negative", -X)):
        got = wb.jit(lambda p, x: (getattr(jnp, p) if isinstance(p, str) else p)(x))(static, X)
        np.testing.assert_array_equal(got, expected)
