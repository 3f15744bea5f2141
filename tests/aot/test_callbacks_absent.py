"""Callbacks run in this process, so JAX compiles them only for attached devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import ProgramError


def prints(x):
    jax.debug.print("x {}", x[0])
    return x @ x


def leaves(x):
    return x @ jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("fn", [prints, jax.jit(leaves), jax.grad(lambda x: prints(x).sum())])
def test_callback_on_an_absent_slice_is_refused_with_the_way_out(fn):
    with pytest.raises(ProgramError, match=r"Python callbacks.*remove `jax.debug.print`.*`on=\"v5e\"`"):
        wb.inspect(fn, on="v5e:1x1")(jnp.ones((8, 8)))


def test_callback_with_a_chip_alone_is_compiled_here():
    assert wb.inspect(prints, on="v5e")(jnp.ones((8, 8))).cost.seconds is not None
