"""Launchpad's examples as complete programs: a parameter server, MapReduce, and evolution strategies.

Each function returns a program and the handles of the nodes that have its results. To run a program, call
`launched = launch(program, "threads")` (or use "processes" or a cluster), then `launched.wait()`. Then
`launched.client(handle).result()` returns the result of a node.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from workbench.launch import Handle, Program, PyNode, ServiceNode


class ParameterServer:
    """Stores parameters, to which each worker adds its gradients as soon as they are computed."""

    def __init__(self, params: np.ndarray, rate: float) -> None:
        self.params, self.rate, self.updates = params, rate, 0

    def add(self, gradient: np.ndarray) -> np.ndarray:
        """Takes one step, and returns the newest parameters."""
        self.params, self.updates = self.params - self.rate * gradient, self.updates + 1
        return self.params

    def result(self) -> tuple[np.ndarray, int]:
        """Returns the parameters and the number of updates."""
        return self.params, self.updates


def _work(server: Any, gradient: Callable[[np.ndarray, Any], np.ndarray], data: Any, steps: int) -> None:
    params, _ = server.result()
    for _ in range(steps):
        params = server.add(gradient(params, data))


def parameter_server(
    params: np.ndarray, gradient: Callable[[np.ndarray, Any], np.ndarray], parts: Iterable[Any], steps: int, rate: float
) -> tuple[Program, Handle]:
    """Asynchronous gradient descent: a server, and a worker for each part of the data."""
    program = Program("parameter server")
    with program.group("server"):
        server = program.add_node(ServiceNode(ParameterServer, params, rate))
    with program.group("workers"):
        for part in parts:
            program.add_node(PyNode(_work, server, gradient, part, steps))
    return program, server


class Reducer:
    """Reduces the values of its keys when the result is requested."""

    def __init__(self, reduce: Callable[[list[Any]], Any]) -> None:
        self.reduce, self.values = reduce, {}

    def add(self, pairs: list[tuple[str, Any]]) -> None:
        """Accepts key-value pairs from a mapper."""
        for key, value in pairs:
            self.values.setdefault(key, []).append(value)

    def result(self) -> dict[str, Any]:
        """Returns the reduced value of each key."""
        return {key: self.reduce(values) for key, values in self.values.items()}


def _map(fn: Callable[[Any], Iterable[tuple[str, Any]]], part: Any, reducers: Sequence[Any]) -> None:
    pairs = [[] for _ in reducers]
    for key, value in fn(part):
        pairs[zlib.crc32(key.encode()) % len(reducers)].append((key, value))
    for reducer, own in zip(reducers, pairs, strict=True):
        reducer.add(own)


def map_reduce(
    fn: Callable[[Any], Iterable[tuple[str, Any]]],
    reduce: Callable[[list[Any]], Any],
    parts: Iterable[Any],
    reducers: int,
) -> tuple[Program, list[Handle]]:
    """MapReduce: a mapper for each part, which sends every key to the reducer that owns the key."""
    program = Program("MapReduce")
    with program.group("reducers"):
        owners = [program.add_node(ServiceNode(Reducer, reduce)) for _ in range(reducers)]
    with program.group("mappers"):
        for part in parts:
            program.add_node(PyNode(_map, fn, part, owners))
    return program, owners


class Evaluator:
    """Evaluates parameters at a random step, which the learner repeats from the seed."""

    def __init__(self, reward: Callable[[np.ndarray], float]) -> None:
        self.reward = reward

    def compare(self, params: np.ndarray, seed: int, scale: float) -> float:
        """Returns the reward of the step minus the reward of the opposite step."""
        step = scale * noise(params, seed)
        return self.reward(params + step) - self.reward(params - step)


def noise(params: np.ndarray, seed: int) -> np.ndarray:
    """Returns the step that a seed determines."""
    return np.random.default_rng(seed).normal(size=params.shape)


class Evolution:
    """Moves parameters along random steps, weighted by their rewards; only seeds and rewards are sent."""

    def __init__(self, evaluators: Sequence[Any], params: np.ndarray, steps: int, scale: float, rate: float) -> None:
        self.evaluators, self.params, self.steps = evaluators, params, steps
        self.scale, self.rate = scale, rate

    def run(self) -> None:
        """Takes all steps."""
        count = len(self.evaluators)
        for step in range(self.steps):
            seeds = range(step * count, (step + 1) * count)
            pairs = list(zip(self.evaluators, seeds, strict=True))
            waiting = [each.futures.compare(self.params, seed, self.scale) for each, seed in pairs]
            gains = [future.result() * noise(self.params, seed) for future, seed in zip(waiting, seeds, strict=True)]
            self.params = self.params + self.rate / (2 * self.scale) * np.mean(gains, axis=0)

    def result(self) -> np.ndarray:
        """Returns the newest parameters."""
        return self.params


def evolution(
    reward: Callable[[np.ndarray], float],
    params: np.ndarray,
    *,
    evaluators: int,
    steps: int,
    scale: float = 0.1,
    rate: float = 0.1,
) -> tuple[Program, Handle]:
    """Evolution strategies with mirrored steps (Salimans et al., arXiv 1703.03864)."""
    program = Program("evolution strategies")
    with program.group("evaluators"):
        nodes = [program.add_node(ServiceNode(Evaluator, reward)) for _ in range(evaluators)]
    with program.group("learner"):
        learner = program.add_node(ServiceNode(Evolution, nodes, params, steps, scale, rate))
    return program, learner
