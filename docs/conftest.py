"""Executes the Python code blocks of every page, in order, with a small program at hand that the pages speak of.

A block of text below `<!-- output -->` is compared with what the block above it printed; `…` stands for any lines.
"""

import contextlib
import io
import re
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

import workbench as wb
from workbench.plan import listeners

collect_ignore = ["conf.py", "field_glossary.py", "other_sites.py"]  # Sphinx's: nothing to execute


def setup(namespace: dict) -> None:
    """Gives a page the imports of the quickstart, and `fedavg` with its arguments `w` and `data`."""

    def loss(w: jax.Array, batch: dict) -> jax.Array:
        return jnp.mean((batch["x"] @ w["up"] @ w["down"] - batch["y"]) ** 2)

    def train(w: dict, client: dict) -> dict:
        def step(now: dict, batch: dict) -> tuple[dict, None]:
            value, gradient = jax.value_and_grad(loss)(now, batch)
            wb.emit("loss", value)
            return jax.tree.map(lambda a, g: a - 0.1 * g, now, gradient), None

        return jax.lax.scan(step, w, client)[0]

    @wb.program(clients=8)
    def fedavg(w: dict, data: dict) -> dict:
        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), data)))

    random = np.random.default_rng(0)
    w = {"up": jnp.asarray(random.normal(size=(6, 8)), "float32"), "down": jnp.ones((8, 2))}
    data = {"x": jnp.asarray(random.normal(size=(8, 3, 4, 6)), "float32"), "y": jnp.ones((8, 3, 4, 2))}
    namespace.update(jax=jax, jnp=jnp, np=np, optax=optax, wb=wb, P=PartitionSpec)
    namespace.update(fedavg=fedavg, fn=fedavg, compiled=wb.jit(fedavg), w=w, data=data, loss=loss)


def run(example: Example) -> None:
    """Executes a block and keeps what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        PythonEvaluator()(example)
    example.namespace["printed"] = printed.getvalue()


def compare_output(example: Example) -> None:
    """Compares a block of text with what was printed; other blocks of text are none of ours."""
    if not example.document.text[: example.region.start].rstrip().endswith("<!-- output -->"):
        return
    rest = example.namespace["printed"]
    for part in re.split(r"…\n?", example.parsed):
        assert part in rest, f"The page says\n{part}\nand the code printed\n{rest}"
        rest = rest[rest.index(part) + len(part) :]


@pytest.fixture(scope="module")
def page_mesh() -> Iterator[jax.sharding.Mesh]:
    """A mesh of four positions for clients and two for a model, set while the page runs."""
    mesh = wb.make_mesh(clients=4, model=2)
    with jax.set_mesh(mesh):
        yield mesh
    ends = time.monotonic() + 120
    while listeners() and time.monotonic() < ends:  # a run in the background: the next page has the devices to itself
        time.sleep(0.1)


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser("python", run), CodeBlockParser("text", compare_output), SkipParser()],
    patterns=["*.md"],
    setup=setup,
    fixtures=["page_mesh"],
).pytest()
