"""Functions of the user that JAX has compiled stay compiled, whatever the library is asked after that."""

import subprocess
import sys

import pytest

COMPILED = """
import jax, jax.extend.core, jax.numpy as jnp  # with JAX 0.12 `jax.extend` alone makes JAX compile again
traces = []
def mine(x):
    traces.append(1)
    return x * 2
mine = jax.jit(mine)
"""
ASKED = """
other = jax.jit(lambda x: (x + 1, x.sum()))
wb.inspect(other)(jnp.ones(3))
wb.why(other)(jnp.ones(3))
wb.advise(other)(jnp.ones(3))
print(wb.show(jnp.ones(3)))
with wb.watch_compilations(quiet=True):
    other(jnp.ones(3))
step = wb.watch(other, show=False)
step(jnp.ones(3))
step.close()
mine(jnp.ones(3))
assert len(traces) == 1, traces
"""
A_PROGRAM = """
with wb.program(clients=4):
    wb.reduce_mean(jnp.ones(4))
mine(jnp.ones(3))
assert len(traces) == {traces}, traces
"""


@pytest.mark.parametrize(
    ("first", "traces"),
    [
        pytest.param(
            "import jax\nimport workbench as wb\n" + COMPILED + "mine(jnp.ones(3))\n", 1, id="imported before"
        ),
        pytest.param(COMPILED + "mine(jnp.ones(3))\nimport workbench as wb\n", 2, id="imported after"),
    ],
)
def test_compiled_functions_are_not_traced_again(first, traces):
    script = first + ASKED + A_PROGRAM.format(traces=traces)
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=300)
