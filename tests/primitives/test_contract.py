"""Every primitive × every transformation × every mesh equals plain `jnp` on the same numbers, to 1e-5 in float32."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.jet import jet
from mapreduce_cases import CASES, TRANSFORMATIONS, inputs
from mapreduce_meshes import MESHES, under

import workbench as wb

pytestmark = pytest.mark.usefixtures("little_optimized")

CASE_OF = {case.name: case for case in CASES}
CLIENTS = 10  # do not divide over 8 devices, nor over 4
STREAMED = ("value", "grad", "vmap of grad")
STREAMED_SETTINGS = [
    (None, "Auto", 10),
    (1, "Auto", 10),
    (3, "Auto", 10),
    ("auto", "Auto", 10),
    (3, "no mesh", 10),
    (3, "Explicit", 10),
    (3, "Explicit", 8),
    (1, "Auto", 8),
]


def _transformed(fn: Any, names: Any = TRANSFORMATIONS) -> Any:
    return lambda w, x: {name: TRANSFORMATIONS[name](fn)(w, x) for name in names}


@functools.cache
def _expected(case: str, clients: int) -> Any:
    return jax.device_get(jax.jit(_transformed(CASE_OF[case].plain))(*inputs(clients)))


@functools.cache
def _computed(case: str, mesh: str) -> Any:
    """All transformations of one primitive, compiled together."""
    fn = wb.program(clients=CLIENTS)(CASE_OF[case].ours)
    with under(mesh):
        return jax.device_get(jax.jit(_transformed(fn))(*inputs(CLIENTS)))


@functools.cache
def _streamed(chunk_size: Any, mesh: str, clients: int) -> Any:
    """Some transformations of all primitives, compiled together."""

    def everything(w: Any, x: Any) -> Any:
        return {case.name: _transformed(wb.program(clients=clients)(case.ours), STREAMED)(w, x) for case in CASES}

    with under(mesh):
        run = wb.jit(everything, chunk_size=chunk_size)
        return jax.device_get(run(*inputs(clients)))


def _assert_equal(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for ours, plain in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert ours.dtype == plain.dtype
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transformation", TRANSFORMATIONS, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("case", CASE_OF, ids=str)
def test_primitive_under_a_transformation_equals_jnp(case: str, mesh: str, transformation: str) -> None:
    _assert_equal(_computed(case, mesh)[transformation], _expected(case, CLIENTS)[transformation])


@pytest.mark.parametrize("case", CASE_OF, ids=str)
@pytest.mark.parametrize(
    ("chunk_size", "mesh", "clients"),
    STREAMED_SETTINGS,
    ids=[f"{at_once} at once-{mesh}-{clients} clients" for at_once, mesh, clients in STREAMED_SETTINGS],
)
def test_streamed_primitive_equals_jnp(case: str, chunk_size: Any, mesh: str, clients: int) -> None:
    got = _streamed(chunk_size, mesh, clients)[case]
    _assert_equal(got, {name: _expected(case, clients)[name] for name in STREAMED})


@pytest.mark.parametrize("case", CASE_OF, ids=str)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_eager_primitive_equals_jnp(case: str, mesh: str) -> None:
    with under(mesh):
        got = wb.program(clients=CLIENTS)(CASE_OF[case].ours)(*inputs(CLIENTS))
    _assert_equal(jax.device_get(got), _expected(case, CLIENTS)["value"])


def test_taylor_series_equal_those_of_jnp() -> None:
    def series(form: str) -> Any:
        def of_all(w: Any, x: Any) -> Any:
            terms = [[jnp.cos(v + k) for k in range(3)] for v in (w, x)]
            fns = {case.name: getattr(case, form) for case in CASES}
            ours = (lambda fn: wb.program(clients=CLIENTS)(fn)) if form == "ours" else (lambda fn: fn)
            return {name: jet(ours(fn), (w, x), terms) for name, fn in fns.items()}

        return jax.device_get(jax.jit(of_all)(*inputs(CLIENTS)))

    got, expected = series("ours"), series("plain")
    for name in expected:
        for ours, plain in zip(jax.tree.leaves(got[name]), jax.tree.leaves(expected[name]), strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4, err_msg=name)
