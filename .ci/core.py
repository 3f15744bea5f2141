"""What must work where only JAX, NumPy, anywidget, treescope, optax, jaxtyping and lazy_loader are installed.

`.ci/run` starts it in such an environment, in which the wheel was installed with `pip install --no-deps`.
"""

import contextlib
import importlib.util
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

import workbench as wb
from workbench.errors import MissingDependencyError

ABSENT = ("jupyterlab", "matplotlib", "pandas", "cloudpickle", "tqdm", "platformdirs", "flatbuffers", "sklearn", "flax")

present = [name for name in ABSENT if importlib.util.find_spec(name)]
assert not present, f"this environment is not the core: {present}"


@wb.program(clients=8)
def train(weights, rows):
    """A step of federated gradient descent."""
    gradients = wb.map_fn(jax.grad(lambda w, x: jnp.mean((x @ w) ** 2)), (wb.broadcast(weights), rows))
    return wb.reduce_mean(gradients)


def fails_with_one_line(call, line):
    """Checks that a call reports the command that installs what it needs."""
    said = ""
    with contextlib.suppress(MissingDependencyError):
        try:
            call()
        except MissingDependencyError as error:
            said = str(error)
            raise
    assert line in said, (line, said)


arguments = jnp.ones(3), jnp.ones((8, 4, 3))
assert train(*arguments).shape == (3,)
assert jax.jit(train)(*arguments).shape == wb.jit(train)(*arguments).shape
print("plan", [stage.kind for stage in wb.trace(train)(*arguments).plan.walk()])
record = wb.inspect(train)(*arguments)
assert record.module is not None
assert type(record).from_json(record.to_json()) == record
print("inspect", len(record.module.instructions), "instructions")
run = wb.measure(train, rounds=1)(*arguments)
print("measure", len(run.stages), "stages")
with tempfile.TemporaryDirectory() as folder:
    page = Path(folder) / "explorer.html"
    wb.explore(train)(*arguments).to_html(page)
    print("explore", page.stat().st_size, "bytes")
print("tap", len(wb.trace(train)(*arguments).tap(client=3).values), "values")
wb.run_rounds(lambda state, round: (state + 1, {"loss": state}), jnp.float32(0), 3, progress=False).state  # noqa: B018
print("digits", len(wb.data.digits(clients=4).train))
fails_with_one_line(lambda: wb.data.shipped("iris"), 'pip install "mapreduce-workbench[course]"')
fails_with_one_line(
    lambda: wb.algorithms.epsilon(1.0, rounds=1, participation=0.5, delta=1e-5),
    'pip install "mapreduce-workbench[privacy]"',
)
fails_with_one_line(lambda: wb.render.to_pandas(record.plan), "pip install pandas")
cost = wb.inspect(train, on="v5e")(*arguments).cost
fails_with_one_line(lambda: wb.render.plot(cost), "pip install matplotlib")
print("core: all of it runs")
