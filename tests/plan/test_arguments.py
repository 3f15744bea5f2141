"""Calls that cannot be traced are refused with the argument and the reason, by everything that takes a call."""

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.engines import MeshEngine, Sequential
from workbench.errors import ProgramError


@wb.program(clients=4)
def mean(x: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(lambda row: row * 2, x))


def _deleted() -> Any:
    x = jnp.ones(4)
    x.delete()
    return x


def _cyclic() -> Any:
    x: list[Any] = [jnp.ones(4)]
    x.append(x)
    return x


def _deep() -> Any:
    x: Any = jnp.ones(4)
    for _ in range(3000):
        x = [x]
    return x


def _symbolic() -> Any:
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 2"), jnp.float32)


CASES = {
    "deleted": (
        _deleted,
        r"argument 0 of shape \(4,\), which was deleted or donated.*pass the array that the donating",
    ),
    "cyclic": (
        _cyclic,
        r"argument 0, which holds .* of type list that contains itself.*A pytree is a finite tree",
    ),
    "deep": (_deep, r"argument 0, whose containers are nested more than 500 levels deep"),
    "symbolic": (_symbolic, r"argument 0, which has the symbolic shape \(n, 2\).*numbers as dimensions.*`trace"),
}
ENTRIES = {
    "trace": lambda *args: wb.trace(mean)(*args).plan,
    "inspect": lambda *args: wb.inspect(mean)(*args),
    "show": lambda *args: wb.show(mean)(*args),
    "measure": lambda *args: wb.measure(mean, rounds=1)(*args),
    "tap": lambda *args: wb.trace(mean)(*args).tap(),
    "Sequential": lambda *args: Sequential().run(mean, *args),
    "MeshEngine": lambda *args: MeshEngine().run(mean, *args),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("case", CASES)
def test_argument_that_cannot_be_traced_is_refused(case: str, entry: str):
    make, said = CASES[case]
    call: Callable[..., Any] = ENTRIES[entry]
    with pytest.raises(ProgramError, match=said):
        call(make())


@pytest.mark.parametrize("entry", ENTRIES)
def test_wrong_number_of_arguments_is_refused(entry: str):
    with pytest.raises(ProgramError, match=r"was given 2 arguments for `mean\(x.*too many positional arguments"):
        ENTRIES[entry](jnp.ones(4), jnp.ones(4))


def test_missing_argument_is_refused():
    with pytest.raises(ProgramError, match=r"was given 0 arguments for `mean\(x.*missing a required argument: 'x'"):
        wb.show(mean)()


def test_one_list_twice_is_no_cycle():
    x = [jnp.ones(4)]
    assert wb.trace(lambda a, b: a[0] + b[0])(x, x).plan is not None
