"""Asynchronous learning programs: bounded-staleness FedAvg and actor-learner training.

Training is done by functions that you pass; they may use NumPy or JAX arrays. Parameters are an array, or dictionaries,
lists and tuples of arrays.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workbench.errors import NodeError, check_settings
from workbench.launch._context import current_node
from workbench.launch._nodes import Handle, PyClassNode, ServiceNode
from workbench.launch._program import Program
from workbench.launch._replay import Replay, ReplayNode
from workbench.launch._values import Value

_WAIT_SECONDS = 0.2  # interval at which to check whether the program is stopping or a client has failed


class AsynchronousServer:
    """Stores the parameters and mixes in clients' results as they arrive.

    A result that started at version v and arrives at version t has weight `mixing * (1 + t - v) ** -exponent`. A
    client waits before a round while it is more than `staleness` rounds ahead of the slowest client. Permanently failed
    clients are ignored.

    Args (of the constructor):
        params: Initial parameters.
        clients: Labels of the client nodes.
        rounds: Number of rounds of each client.
        staleness: Maximum number of rounds that a client may be ahead. With 0, all clients finish a round before any
            client begins the next.
        mixing: Weight of a result without staleness, in (0, 1].
        exponent: Exponent of the discount for stale results.

    References:
        Xie et al., "Asynchronous Federated Optimization", arXiv 1903.03934; Ho et al., "More Effective Distributed ML
        via a Stale Synchronous Parallel Parameter Server", NeurIPS 2013.
    """

    def __init__(
        self, params: object, *, clients: Sequence[str], rounds: int, staleness: int, mixing: float, exponent: float
    ) -> None:
        self._params = params
        self._rounds, self._staleness, self._mixing, self._exponent = rounds, staleness, mixing, exponent
        self._finished = dict.fromkeys(clients, 0)  # number of finished rounds of each client
        self._version = 0
        self._history: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def pull(self, client: str) -> dict[str, Any] | None:
        """Waits until `client` may begin a round; returns parameters, version and round (None after its last)."""
        context = current_node()
        with self._changed:
            while not self._changed.wait_for(lambda: self._ahead(client) <= self._staleness, _WAIT_SECONDS):
                if context.stop_requested:
                    message = (
                        f"`pull` of {client!r} gave up waiting for slower clients: the program is stopping. A client "
                        "stops when its program stops, so its `run` should return now."
                    )
                    raise NodeError(message, stage=context.label)
                self._forget(context.failed_peers)
            if self._finished[client] >= self._rounds:
                return None
            return {"params": self._params, "version": self._version, "round": self._finished[client]}

    def push(self, client: str, params: object, version: int) -> int:
        """Mixes in a client's result that started from `version`; returns the new version."""
        with self._changed:
            late = self._version - version
            weight = self._mixing * (1 + late) ** -self._exponent
            entry = {"client": client, "late": late, "ahead": self._ahead(client), "weight": weight}
            self._history.append(entry)
            self._params = mixed(self._params, params, weight)
            self._version += 1
            self._finished[client] += 1
            self._changed.notify_all()
            return self._version

    def current(self) -> dict[str, Any]:
        """Returns the newest parameters and their version."""
        with self._changed:
            return {"params": self._params, "version": self._version}

    def history(self) -> list[dict[str, Any]]:
        """Returns the client, staleness, rounds ahead and weight for each result."""
        with self._changed:
            return list(self._history)

    def _ahead(self, client: str) -> int:
        return self._finished[client] - min(self._finished.values())

    def _forget(self, failed: Iterable[str]) -> None:
        for label in [label for label in failed if label in self._finished]:
            del self._finished[label]


class AsynchronousClient:
    """Trains on the client's data for all rounds, at the client's own speed."""

    def __init__(self, server: AsynchronousServer, train: Callable[[Any, Any], Any], data: object) -> None:
        self._server, self._train, self._data = server, train, data

    def run(self) -> None:
        """Trains until the server has no more rounds for this client."""
        context = current_node()
        while not context.stop_requested and (work := self._server.pull(context.label)) is not None:
            self._server.push(context.label, self._train(work["params"], self._data), work["version"])


def asynchronous_fedavg_program(
    train: Callable[[Any, Any], Any],
    params: object,
    data: Sequence[Any],
    *,
    rounds: int,
    staleness: int = 2,
    mixing: float = 0.5,
    exponent: float = 0.5,
) -> tuple[Program, Handle]:
    """Creates a program for asynchronous federated averaging with bounded staleness.

    Args:
        train: `train(params, client_data)` returns a client's new parameters.
        params: Initial parameters.
        data: One entry per client.
        rounds: Number of rounds of each client.
        staleness: Maximum number of rounds that a client may be ahead of the slowest client.
        mixing: Weight of a result without staleness, in (0, 1].
        exponent: A result with a staleness of `t` versions has weight `mixing * (1 + t) ** -exponent`.

    Returns:
        The program, and the handle of its `AsynchronousServer` (`current()`, `history()`).

    Raises:
        ProgramError: if there are no clients, or a number is out of range.

    Example:
        >>> from workbench.launch import launch
        >>> program, server = asynchronous_fedavg_program(lambda w, x: x, 0.0, [4.0, 4.0], rounds=20)
        >>> with launch(program) as launched:
        ...     _ = launched.wait()
        ...     round(launched.client(server).current()["params"], 2)
        4.0
    """
    check_settings(
        "asynchronous_fedavg_program",
        (bool(data), "the data of no client", "At least one client must train: pass the data of each client."),
        (rounds >= 1, f"rounds={rounds}", "`rounds` must be at least 1."),
        (staleness >= 0, f"staleness={staleness}", "`staleness` must be at least 0."),
        (
            0 < mixing <= 1,
            f"mixing={mixing}",
            "The server moves towards each result by the fraction `mixing`: pass a number above 0 and up to 1.",
        ),
        (exponent >= 0, f"exponent={exponent}", "`exponent` must be at least 0."),
    )
    program = Program("asynchronous FedAvg")
    labels = [f"clients/{index}" for index in range(len(data))]
    with program.group("server"):
        node = ServiceNode(
            AsynchronousServer,
            params,
            clients=labels,
            rounds=rounds,
            staleness=staleness,
            mixing=mixing,
            exponent=exponent,
        )
        server = program.add_node(node, concurrency=len(data) + 2)  # all clients may wait in `pull` at the same time
    with program.group("clients"):
        for examples in data:
            program.add_node(PyClassNode(AsynchronousClient, server, train, examples))
    return program, server


class Learner:
    """Learns from a replay table and serves the newest parameters."""

    def __init__(
        self,
        replay: Replay,
        learn: Callable[[Any, list[Any], list[float]], Any],
        params: object,
        *,
        steps: int,
        batch: int,
    ) -> None:
        self._replay, self._learn, self._steps, self._batch = replay, learn, steps, batch
        self._newest = (params, 0)

    def run(self) -> None:
        """Takes all steps."""
        context = current_node()
        for step in range(self._steps):
            if context.stop_requested:
                return
            drawn = self._replay.sample(self._batch)
            params, priorities = self._learn(self._newest[0], drawn["items"], drawn["probabilities"])
            if priorities is not None:
                self._replay.update_priorities(drawn["keys"], priorities)
            self._newest = (params, step + 1)

    def current(self) -> dict[str, Any]:
        """Returns the newest parameters, the number of steps, and whether training has finished."""
        params, steps = self._newest
        return {"params": params, "steps": steps, "finished": steps == self._steps}


class Actor:
    """Gathers experience with the newest parameters until the learner has finished."""

    def __init__(
        self, replay: Replay, learner: Learner, act: Callable[[Any, Any], tuple[Any, float]], seed: int
    ) -> None:
        self._replay, self._learner, self._act, self._seed = replay, learner, act, seed

    def run(self) -> None:
        """Acts and inserts experience until the learner has finished."""
        import numpy as np

        context, random = current_node(), np.random.default_rng(self._seed)
        while not context.stop_requested:
            newest = self._learner.current()
            if newest["finished"]:
                return
            item, priority = self._act(newest["params"], random)
            self._replay.insert(item, priority)


def actor_learner_program(
    act: Callable[[Any, Any], tuple[Any, float]],
    learn: Callable[[Any, list[Any], list[float]], Any],
    params: object,
    *,
    actors: int,
    steps: int,
    batch: int,
    replay: ReplayNode | None = None,
) -> tuple[Program, Handle, Handle]:
    """Creates a program of actors that fill a replay table and a learner that samples it.

    Args:
        act: `act(params, random)` returns one item of experience and its priority; `random` is a NumPy generator.
        learn: `learn(params, items, probabilities)` returns new parameters, and either new priorities for the items or
            None.
        params: Initial parameters.
        actors: Number of actors.
        steps: Number of learner steps.
        batch: Number of items per step.
        replay: The table. Default: 10,000 items, sampled uniformly after the first batch is complete.

    Returns:
        The program, and the handles of its `Learner` (`current()`) and of its `Replay`.

    Raises:
        ProgramError: if `actors`, `steps` or `batch` is below 1.

    References:
        Horgan et al., "Distributed Prioritized Experience Replay", ICLR 2018.
    """
    check_settings(
        "actor_learner_program",
        (actors >= 1, f"actors={actors}", "Pass at least 1 actor."),
        (steps >= 1, f"steps={steps}", "The learner takes `steps` steps: pass at least 1."),
        (batch >= 1, f"batch={batch}", "Each step uses `batch` items: pass at least 1."),
    )
    program = Program("actors and learner")
    with program.group("replay"):
        table = program.add_node(replay or ReplayNode(10_000, min_size=batch))
    with program.group("learner"):
        learner = program.add_node(ServiceNode(Learner, table, learn, params, steps=steps, batch=batch), concurrency=8)
    with program.group("actors"):
        for seed in range(actors):
            program.add_node(PyClassNode(Actor, table, learner, act, seed))
    return program, learner, table


def mixed(old: Value, new: Value, share: float) -> Value:
    """Interpolates parameters between `old` and `new`, where `share` is the weight of `new`.

    Example:
        >>> mixed({"w": 0.0, "b": [2.0]}, {"w": 4.0, "b": [4.0]}, 0.25)
        {'w': 1.0, 'b': [2.5]}
    """
    if isinstance(old, dict):
        return {name: mixed(old[name], new[name], share) for name in old}
    if isinstance(old, list | tuple):
        parts = [mixed(a, b, share) for a, b in zip(old, new, strict=True)]
        return type(old)(*parts) if hasattr(old, "_fields") else type(old)(parts)
    return old + share * (new - old)
