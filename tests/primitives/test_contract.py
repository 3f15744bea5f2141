"""Every primitive × every transformation × every mesh equals plain `jnp` on the same numbers, to 1e-5 in float32."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from mapreduce_cases import CASES, TRANSFORMATIONS, inputs
from mapreduce_meshes import MESHES, under

import workbench as wb

CASE_OF = {case.name: case for case in CASES}
# 10 clients do not divide over 8 devices, nor over 4; 8 clients do.
SETTINGS = [(mesh, 10) for mesh in MESHES] + [("Auto", 8), ("Explicit", 8)]
STREAMED = ("value", "grad", "jacfwd", "vmap of grad", "scan over rounds")


def _transformed(fn: Any, names: Any = TRANSFORMATIONS) -> Any:
    return lambda w, x: {name: TRANSFORMATIONS[name](fn)(w, x) for name in names}


@functools.cache
def _expected(case: str, clients: int) -> Any:
    return jax.device_get(jax.jit(_transformed(CASE_OF[case].plain))(*inputs(clients)))


@functools.cache
def _computed(case: str, mesh: str, clients: int) -> Any:
    """All transformations of one primitive, compiled together."""
    fn = wb.program(clients=clients)(CASE_OF[case].ours)
    with under(mesh):
        return jax.device_get(jax.jit(_transformed(fn))(*inputs(clients)))


@functools.cache
def _streamed(clients_at_once: Any, mesh: str, clients: int) -> Any:
    """Some transformations of all primitives, compiled together."""

    def everything(w: Any, x: Any) -> Any:
        return {case.name: _transformed(wb.program(clients=clients)(case.ours), STREAMED)(w, x) for case in CASES}

    with under(mesh):
        return jax.device_get(wb.jit(everything, clients_at_once=clients_at_once)(*inputs(clients)))


def _assert_equal(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, plain in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == plain.dtype
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=str)
@pytest.mark.parametrize(("mesh", "clients"), SETTINGS, ids=[f"{mesh}-{n} clients" for mesh, n in SETTINGS])
@pytest.mark.parametrize("case", CASE_OF, ids=str)
def test_primitive_under_a_transformation_equals_jnp(case: str, mesh: str, clients: int, transformation: str) -> None:
    _assert_equal(_computed(case, mesh, clients)[transformation], _expected(case, clients)[transformation])


@pytest.mark.parametrize("case", CASE_OF, ids=str)
@pytest.mark.parametrize("mesh", ["no mesh", "Auto", "Explicit"], ids=str)
@pytest.mark.parametrize("clients_at_once", [None, 1, 3, "auto"], ids=str)
def test_streamed_primitive_equals_jnp(case: str, mesh: str, clients_at_once: Any) -> None:
    got = _streamed(clients_at_once, mesh, 10)[case]
    _assert_equal(got, {name: _expected(case, 10)[name] for name in STREAMED})


@pytest.mark.parametrize("case", CASE_OF, ids=str)
def test_streamed_primitive_equals_jnp_where_the_mesh_divides_the_clients(case: str) -> None:
    got = _streamed(3, "Explicit", 8)[case]
    _assert_equal(got, {name: _expected(case, 8)[name] for name in STREAMED})


@pytest.mark.parametrize("case", CASE_OF, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_eager_primitive_equals_jnp(case: str, mesh: str) -> None:
    with under(mesh):
        got = wb.program(clients=10)(CASE_OF[case].ours)(*inputs(10))
    _assert_equal(jax.device_get(got), _expected(case, 10)["value"])
