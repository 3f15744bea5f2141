"""Calls that cannot be traced are refused with the argument and the reason, by everything that takes a call."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.engines import MeshEngine, Sequential
from workbench.errors import ProgramError
from workbench.plan import nesting_problem


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


@pytest.mark.parametrize(("levels", "is_refused"), [(500, False), (501, True)])
def test_containers_are_nested_at_most_500_levels_deep(levels: int, is_refused: bool):
    x: Any = 0
    for _ in range(levels):
        x = [x]
    assert bool(nesting_problem(x)) is is_refused


def test_one_list_twice_is_no_cycle():
    x = [jnp.ones(4)]
    assert wb.trace(lambda a, b: a[0] + b[0])(x, x).plan is not None


ON_ONE_DEVICE = """
import jax, jax.numpy as jnp, numpy as np
import workbench as wb
from workbench.errors import ProgramError

traced = []

def total(x, y, by=None):
    traced.append(by)
    if by == "wrong":
        raise TypeError("of the user")
    return jnp.sum(x) + jnp.sum(y) + (by or 0)

step = wb.jit(total, donate_argnums=0, static_argnames="by")
other = jnp.ones(3)
assert jax.local_device_count() == 1
assert [float(step(jnp.ones(3), other)) for _ in range(3)] == [6.0] * 3
assert traced == [None]
donated, kept = jnp.ones(3), jnp.ones(3)
donated.delete()
for arguments in ((donated, other), (kept, donated)):
    try:
        step(*arguments)
    except ProgramError as error:
        assert "memory has been freed" in str(error), error
    else:
        raise AssertionError("not refused")
assert not kept.is_deleted()
try:
    step(np.ones(3), other, by="wrong")
except TypeError as error:
    assert str(error) == "of the user", error
assert traced == [None, "wrong"], traced
assert float(step(np.ones(3), 2.0, by=1)) == 6.0
by_kind = wb.jit(lambda x, kind: jnp.sum(x) if kind == "sum" else x)
assert [float(by_kind(other, "sum")) for _ in range(3)] == [3.0] * 3
assert by_kind(other, "none").shape == (3,)

def described(x, what):
    traced.append(what)
    return jnp.sum(x)

by_name = wb.jit(described, static_argnames="what")
assert [float(by_name(other, what="mean")) for _ in range(3)] == [3.0] * 3
assert traced == [None, "wrong", 1, "mean"], traced
deletes = wb.jit(lambda x: jnp.sum(x) if x.size == 3 else no_such(x))
def no_such(x):
    traced.append("no such")
    raise ValueError("the column was deleted")
assert float(deletes(other)) == 3.0
try:
    deletes(jnp.ones(4))
except ValueError as error:
    assert str(error) == "the column was deleted", error
assert traced[-2:] == ["mean", "no such"], traced
with jax.disable_jit():
    assert float(step(jnp.ones(3), other)) == 6.0
assert float(jax.grad(lambda x: step(x, other))(jnp.ones(3))[0]) == 1.0
print("passed")
"""


def test_direct_call_on_one_device_checks_its_arguments():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run([sys.executable, "-c", ON_ONE_DEVICE], env=environment, capture_output=True, text=True)
    assert done.stdout == "passed\n", done.stderr
