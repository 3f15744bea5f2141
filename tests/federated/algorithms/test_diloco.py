"""DiLoCo and streaming DiLoCo against loops over replicas written out in numpy and optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms

pytestmark = pytest.mark.usefixtures("little_optimized")
REPLICAS, STEPS, ROUNDS = 3, 4, 3


def loss_of(params: Any, batch: Any) -> Any:
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def batches_of() -> dict[str, Any]:
    random = np.random.default_rng(0)
    x = random.normal(size=(REPLICAS, STEPS, 5, 2))
    y = x @ np.array([1.0, -2.0]) + random.normal(size=(REPLICAS, 1, 1))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def start() -> dict[str, Any]:
    return {"w": jnp.zeros(2), "b": jnp.float32(0)}


@jax.jit
def _adamw(params: Any, state: Any, batch: Any) -> Any:
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optax.adamw(0.1).update(jax.grad(loss_of)(params, batch), state, params)
        return optax.apply_updates(params, updates), state


class Replica:
    """One data centre of the paper's listing: parameters, and AdamW that is never reset."""

    def __init__(self, number: int) -> None:
        self.params, self.state = start(), optax.adamw(0.1).init(start())
        self.batches = jax.tree.map(lambda x: x[number], batches_of())

    def take(self, first: int, last: int) -> None:
        for step in range(first, last):
            batch = jax.tree.map(lambda x, step=step: x[step], self.batches)
            self.params, self.state = _adamw(self.params, self.state, batch)


class Nesterov:
    """v ← 0.9 v + g, x ← x − 0.7 (g + 0.9 v), of one array at the server."""

    def __init__(self, x: Any) -> None:
        self.x, self.v = np.asarray(x, np.float64), np.zeros(np.shape(x))

    def step(self, gradient: Any) -> np.ndarray:
        self.v = 0.9 * self.v + gradient
        self.x = self.x - 0.7 * (gradient + 0.9 * self.v)
        return self.x


def rounds_of(algorithm: algorithms.Algorithm, rounds: int = ROUNDS) -> Any:
    step, state = jax.jit(algorithm.round), algorithm.init(start())
    for _ in range(rounds):
        state, _ = step(state, batches_of())
    return state


def test_diloco_is_the_listing_of_its_paper() -> None:
    replicas = [Replica(number) for number in range(REPLICAS)]
    outer = {name: Nesterov(x) for name, x in start().items()}
    for _ in range(ROUNDS):
        for replica in replicas:
            replica.params = {name: jnp.asarray(server.x, jnp.float32) for name, server in outer.items()}
            replica.take(0, STEPS)
        for name, server in outer.items():
            server.step(np.mean([server.x - np.asarray(replica.params[name]) for replica in replicas], axis=0))
    found = rounds_of(algorithms.diloco(loss_of, clients=REPLICAS, inner_optimizer=optax.adamw(0.1))).params
    for name, server in outer.items():
        np.testing.assert_allclose(found[name], server.x, rtol=1e-4, atol=1e-5)


def test_absent_replicas_keep_their_optimizer_and_do_not_move_the_server() -> None:
    algorithm = algorithms.diloco(loss_of, clients=REPLICAS, inner_optimizer=optax.adamw(0.1))
    state = algorithm.init(start())
    alone, _ = algorithm.round(state, {**batches_of(), "weight": jnp.array([1.0, 0.0, 0.0])})
    counts = jax.tree.leaves(alone.inner)[0]
    assert counts.tolist() == [STEPS, 0, 0]
    twice = jax.tree.map(lambda x: jnp.repeat(x[:1], REPLICAS, axis=0), batches_of())
    same, _ = algorithm.round(state, twice)
    np.testing.assert_allclose(alone.params["w"], same.params["w"], rtol=1e-5)


@pytest.mark.parametrize(("delay", "keep"), [(0, 0.0), (1, 0.5)], ids=["at once", "overlapped"])
def test_streaming_diloco_is_the_listing_of_its_paper(delay: int, keep: float) -> None:
    replicas = [Replica(number) for number in range(REPLICAS)]
    outer = {name: Nesterov(x) for name, x in start().items()}
    fragments = [["b"], ["w"]]  # leaves in the order of their names, dealt in turn
    each = STEPS // len(fragments)
    for _ in range(ROUNDS):
        for number, names in enumerate(fragments):
            for replica in replicas:
                replica.take(number * each, (number + 1) * each - delay)
            sent = {name: [np.asarray(replica.params[name]) for replica in replicas] for name in names}
            for replica in replicas:
                replica.take((number + 1) * each - delay, (number + 1) * each)
            for name in names:
                new = outer[name].step(np.mean([outer[name].x - own for own in sent[name]], axis=0))
                for replica in replicas:
                    replica.params[name] = jnp.asarray(
                        keep * np.asarray(replica.params[name]) + (1 - keep) * new, jnp.float32
                    )
    algorithm = algorithms.streaming_diloco(
        loss_of, clients=REPLICAS, inner_optimizer=optax.adamw(0.1), fragments=2, delay=delay, keep=keep
    )
    found = rounds_of(algorithm)
    for name, server in outer.items():
        np.testing.assert_allclose(found.params[name], server.x, rtol=1e-4, atol=1e-5)
        for number, replica in enumerate(replicas):
            np.testing.assert_allclose(found.local[name][number], replica.params[name], rtol=1e-4, atol=1e-5)


def test_one_fragment_at_once_is_diloco() -> None:
    adamw = optax.adamw(0.1)
    whole = rounds_of(algorithms.diloco(loss_of, clients=REPLICAS, inner_optimizer=adamw))
    streamed = rounds_of(algorithms.streaming_diloco(loss_of, clients=REPLICAS, inner_optimizer=adamw, fragments=1))
    for name in start():
        np.testing.assert_allclose(streamed.params[name], whole.params[name], rtol=1e-5)


def test_a_fragment_at_a_time_lowers_the_peak_and_keeps_the_sum_of_bytes() -> None:
    params = {name: jnp.zeros((50, 2)) for name in "abcd"}

    def loss(params: Any, x: Any) -> Any:
        return sum(jnp.sum((p - x) ** 2) for p in params.values())

    def reduced(algorithm: algorithms.Algorithm) -> list[int]:
        plan = wb.trace(algorithm.round)(algorithm.init(params), jnp.ones((REPLICAS, 4))).plan
        return [s.moved_bytes for s in plan.stages if s.kind == "reduce" and s.moved_bytes > 100 * REPLICAS]

    sgd, whole = optax.sgd(0.1), 4 * 100 * 4 * REPLICAS
    at_once = reduced(algorithms.diloco(loss, clients=REPLICAS, inner_optimizer=sgd))
    streamed = reduced(algorithms.streaming_diloco(loss, clients=REPLICAS, inner_optimizer=sgd, fragments=4))
    assert max(at_once) == sum(at_once) == pytest.approx(whole, abs=100)
    assert max(streamed) == pytest.approx(whole / 4, abs=100)
    assert sum(streamed) == pytest.approx(whole, abs=400)


@pytest.mark.parametrize(
    ("fragments", "delay", "says"),
    [(3, 0, "2 array.*pass 1 to 2 fragments"), (2, 2, "4 steps.*delay=2"), (0, 0, "fragments=0")],
    ids=["more than arrays", "a delay longer than a segment", "none"],
)
def test_impossible_fragments_are_refused(fragments: int, delay: int, says: str) -> None:
    algorithm = algorithms.streaming_diloco(
        loss_of, clients=REPLICAS, inner_optimizer=optax.sgd(0.1), fragments=fragments, delay=delay
    )
    with pytest.raises(ProgramError, match=says):
        algorithm.round(algorithm.init(start()), batches_of())
