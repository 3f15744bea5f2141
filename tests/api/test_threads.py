"""Public calls from two threads at once: each answer is the one that the call gives alone."""

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms

CLIENTS = 4
W, X = jnp.ones(3), jnp.arange(12.0).reshape(CLIENTS, 3)
A, B = jnp.ones((8, 4)), jnp.ones((4, 4)) / 4
MESH = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
ALGORITHM = algorithms.fedavg(lambda w, x: jnp.mean((w - x) ** 2), clients=CLIENTS, client_optimizer=optax.sgd(0.1))


# Each call defines its functions anew: two threads share no cache of traces or compilations that a first call filled.


def average():
    @wb.program(clients=CLIENTS)
    def average(w, x):
        return wb.reduce_mean(wb.map_fn(lambda w, x: (w * x).sum(), (wb.broadcast(w), x)))

    return average


def step():
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))

    def loss(w, x):
        return jnp.sum(layer(w, layer(w, x)) ** 2)

    return lambda w, x: w - 0.1 * jax.grad(loss)(w, x)


def watched():
    scaled = jax.jit(lambda x: x * 3)
    with wb.watch_compilations(quiet=True) as seen:
        for n in (1, 2, 3):
            scaled(np.ones(n, np.float32))
    return [(each.count, each.reasons) for each in seen.record.retraces]


def rounds():
    run = wb.run_rounds(ALGORITHM.round, ALGORITHM.init(W), 3, data=X[:, None], progress=False)
    return run.state.params.tolist(), run.history.summary()["loss"].tolist()


def facts(record):
    """A record without what depends on the clock."""
    return without(json.loads(record.to_json()))


def without(node):
    if isinstance(node, dict):
        return {key: without(value) for key, value in node.items() if not is_of_one_call(key)}
    return [without(each) for each in node] if isinstance(node, list) else node


def is_of_one_call(key):
    return key.endswith("seconds") or key.startswith("seconds")


CALLS = {
    "run": lambda: wb.jit(average())(W, X).tolist(),
    "gradient": lambda: jax.grad(average())(W, X).tolist(),
    "plan": lambda: facts(wb.trace(average())(W, X).plan),
    "inspect": lambda: facts(wb.inspect(step())(B, A)),
    "inspect a program": lambda: facts(wb.inspect(average())(W, X)),
    "why": lambda: facts(wb.why(step())(B, A)),
    "advise": lambda: facts(wb.advise(step())(B, A)),
    "shardings": lambda: facts(wb.search(step(), on=MESH)(B, A)),
    "tap": lambda: repr(wb.trace(average())(W, X).tap()),
    "rounds": rounds,
    "explain": watched,
    "mesh": lambda: str(wb.make_mesh(clients=CLIENTS)),
    "page": lambda: len(wb.explore(wb.inspect(average())(W, X)).to_html()) > 1000,
}


def at_once(names):
    """The answers of calls that begin together, each in its own thread."""
    together = threading.Barrier(len(names))

    def call(name):
        together.wait(60)
        return CALLS[name]()

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(call, names))


@pytest.fixture(scope="module")
def alone():
    return {name: at_once([name])[0] for name in CALLS}


PAIRS = list(itertools.combinations_with_replacement(CALLS, 2))


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_answers_of_two_threads_are_those_of_one(alone, one, other):
    assert at_once([one, other]) == [alone[one], alone[other]]


def test_answers_of_tasks_are_those_of_one_thread(alone):
    names = ["run", "gradient", "explain", "rounds"]

    async def all_at_once():
        return await asyncio.gather(*(asyncio.to_thread(CALLS[name]) for name in names))

    assert asyncio.run(all_at_once()) == [alone[name] for name in names]
