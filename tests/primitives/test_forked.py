"""A process that `os.fork` made of one that had used JAX is told that its calls would wait forever."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

SCRIPT = """
import json, os, sys, warnings

warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
import workbench as wb

W, X = {arrays}

@wb.program(clients=4)
def average(w, x):
    return wb.reduce_mean(wb.map_fn(lambda w, x: (w * x).sum(), (wb.broadcast(w), x)))

compiled = wb.jit(average)
if {is_compiled}:
    compiled(W, X), compiled(W, X)

def rounds():
    return float(wb.run_rounds(lambda s, r: (s + 1, {{}}), 0, 2, progress=False).state)

CALLS = {{
    "jit": lambda: float(compiled(W, X)),
    "broadcast": lambda: float(average(W, X)),
    "average": lambda: wb.inspect(average)(W, X).name,
    "Sequential.run": lambda: float(wb.engines.Sequential().run(average, W, X).results),
    "measure": lambda: bool(wb.measure(average, rounds=1)(W, X)),
    "run_rounds": rounds,
}}

def answer(call):
    try:
        return repr(call())
    except wb.errors.WorkbenchError as error:
        return str(error)

reading, writing = os.pipe()
if not (child := os.fork()):
    shapes = jax.ShapeDtypeStruct((3,), "float32"), jax.ShapeDtypeStruct((4, 3), "float32")
    found = {{"plan": wb.trace(average)(*shapes).plan.name, **{{name: answer(call) for name, call in CALLS.items()}}}}
    os.write(writing, json.dumps(found).encode())
    os._exit(0)
os.close(writing)
with os.fdopen(reading) as pipe:
    print(pipe.read())
os.waitpid(child, 0)
"""


def answers(arrays: str, *, is_compiled: bool = False) -> dict[str, str]:
    code = textwrap.dedent(SCRIPT.format(arrays=arrays, is_compiled=is_compiled))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_fork_after_the_first_use_of_jax_is_refused(is_compiled: bool):
    found = answers("jnp.ones(3), jnp.ones((4, 3))", is_compiled=is_compiled)
    assert found.pop("plan") == "average"
    assert {name: f"`{name}`" in text and "`os.fork`" in text for name, text in found.items()} == dict.fromkeys(
        found, True
    )


def test_a_fork_before_the_first_use_of_jax_runs():
    found = answers("__import__('numpy').ones(3, 'f4'), __import__('numpy').ones((4, 3), 'f4')")
    assert {name: text for name, text in found.items() if "os.fork" in text} == {}
    assert (found["jit"], found["broadcast"], found["run_rounds"]) == ("3.0", "3.0", "2.0")
