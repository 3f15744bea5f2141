"""Client functions of every kind, in several ways of running them, against plain `vmap`.

Every function runs in one way, and the ways alternate down the table; some run in all. Optimizers whose primitives
another one has are left out. All functions in all ways, two thousand compilations, are run by
`python benchmarks/client_functions.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from client_functions import CLIENTS, FUNCTIONS, WAYS, difference

import workbench as wb

# One for each kind of thing that a lowering meets.
IN_ALL_WAYS = ("tanh_grad", "embedding_gradient", "scan_of_cond", "while_on_row", "custom_vjp", "complex", "local_sgd")
# Together these use every primitive that any optimizer of the table uses.
OPTIMIZERS = """
    adafactor adam apply_if_finite clipped contrib_cocob contrib_momo contrib_muon contrib_prodigy contrib_sophia
    inject_hyperparams masked momentum multi_steps noisy_sgd radam rprop sign_sgd sm3
    """.split()
NEEDS = {"equinox_training": "equinox", "nnx_training": "flax.nnx"}
CASES = [
    (function, way)
    for number, function in enumerate(FUNCTIONS)
    if not function.startswith("optax_") or function.removeprefix("optax_") in OPTIMIZERS
    for way in (WAYS if function in IN_ALL_WAYS else [list(WAYS)[number % len(WAYS)]])
]


def test_table_is_as_wide_as_promised() -> None:
    assert len(FUNCTIONS) >= 120
    assert len(WAYS) >= 12


@pytest.mark.usefixtures("little_optimized")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("function", "way"), CASES)
def test_client_function_equals_vmap(function: str, way: str) -> None:
    if library := NEEDS.get(function):
        pytest.importorskip(library)
    wrong = difference(function, way)
    if wrong is None:
        pytest.skip("plain vmap cannot")
    assert wrong == ""


@pytest.mark.parametrize("function", ["pallas", "pallas_grid"])
def test_kernel_that_is_differentiated_forwards_only_has_its_derivative(function: str) -> None:
    assert difference(function, "forward derivative, chunks of 3") == ""


@pytest.mark.parametrize("chunk_size", [None, 3], ids=["all at once", "chunks of 3"])
@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
def test_wide_dtypes_keep_their_width(dtype: str, chunk_size: int | None) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(np.arange(CLIENTS * 4).reshape(CLIENTS, 4), dtype)
        program = wb.program(clients=CLIENTS)(lambda x: wb.reduce_sum(wb.map_fn(lambda r: r * r + r, x)))
        got = wb.jit(program, chunk_size=chunk_size)(x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, (np.asarray(x) ** 2 + np.asarray(x)).sum(0))
