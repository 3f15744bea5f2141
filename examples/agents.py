"""One agent at any scale: synchronously in this process, or as a program of actors, a table and a learner."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from workbench.errors import NodeTimeoutError, ProgramError
from workbench.launch import (
    DaskEngine,
    Program,
    PyClassNode,
    RayEngine,
    Replay,
    ReplayNode,
    ServiceNode,
    current_node,
    launch,
)

Params = TypeVar("Params")  # the parameters that actors use: any picklable data
Acted = TypeVar("Acted", contravariant=True)
State = TypeVar("State")  # the learner's
Item = Any  # an item of experience, in the form that the agent's actors create
_WAIT_SECONDS = 0.2  # interval at which an actor checks whether the learner has finished


class Acting(Protocol[Acted]):
    """One actor with its environment."""

    def act(self, params: Acted) -> Sequence[tuple[Item, float]]:
        """Takes some steps; returns items of experience with their priorities."""
        ...


@dataclasses.dataclass(frozen=True)
class Agent(Generic[State, Params]):
    """Definition of an agent, independent of the place where it runs.

    Attributes:
        name: Name of the agent.
        actor: `actor(seed)` creates one actor with its own environment.
        learn: `learn(state, items, probabilities)` returns the learner's next state, and new priorities or None.
        state: The learner's first state: parameters, the optimizer's state, target parameters.
        params_of: `params_of(state)` returns the parameters that actors use.
        evaluate: `evaluate(params)` returns a score that learning increases, such as the mean return of some episodes.

    References:
        Hoffman et al., "Acme: A Research Framework for Distributed Reinforcement Learning", arXiv 2006.00979.
    """

    name: str
    actor: Callable[[int], Acting[Params]]
    learn: Callable[[State, list[Item], list[float]], tuple[State, Iterable[float] | None]]
    state: State
    params_of: Callable[[State], Params]
    evaluate: Callable[[Params], float]


@dataclasses.dataclass(frozen=True)
class AgentRun(Generic[Params]):
    """A finished run: the learned parameters, and the learning curve.

    Attributes:
        params: Parameters after the last step.
        curve: Pairs of a step of the learner and the score that `evaluate` returned at this step.
        counts: Numbers of items inserted and sampled, and the size of the table.
        seconds: Time from the start to the last step.
    """

    params: Params = dataclasses.field(repr=False)
    curve: tuple[tuple[int, float], ...]
    counts: dict[str, int]
    seconds: float


def run_agent(
    agent: Agent[Any, Params],
    on: Literal["here", "threads", "processes"] | DaskEngine | RayEngine = "here",
    *,
    steps: int,
    actors: int = 1,
    batch: int = 32,
    table_size: int = 10_000,
    min_size: int = 100,
    samples_per_insert: float = 8.0,
    ahead: int = 2,
    sampling: Literal["uniform", "prioritized"] = "uniform",
    evaluate_every: int = 100,
    seed: int = 0,
    timeout_seconds: float = 600.0,
) -> AgentRun[Params]:
    """Runs an unchanged agent in this thread, on threads, on processes or on a cluster.

    With "here", actors and learner alternate in one thread: the actors act one after another until the table allows a
    batch, then the learner takes a step. On other engines, they run concurrently, with two limits. The learner waits
    until the table allows a batch. An actor waits until fewer than `ahead` batches are ready, before it fetches
    parameters and acts. On every engine, a step therefore follows about the same number of items, from parameters of
    about the same age.

    Args:
        agent: The agent to run.
        on: "here", "threads", "processes", or an engine such as `DaskEngine(client)` or `RayEngine()`.
        steps: Number of steps of the learner.
        actors: Number of actors, each with its own environment and seed.
        batch: Number of items in a step.
        table_size: Maximum number of items in the table.
        min_size: Number of items in the table before the first step.
        samples_per_insert: Average number of times that an item is sampled.
        ahead: Number of batches that may be ready before actors wait; not used with "here".
        sampling: How the table samples items.
        evaluate_every: Number of steps between two points of the curve.
        seed: Seed of the actors and the table.
        timeout_seconds: Time limit of the run; not used with "here".

    Returns:
        The learned parameters, the curve, the counts and the time.

    Raises:
        ProgramError: if a number is out of range.
        NodeTimeoutError: if the run takes longer than `timeout_seconds`.
    """
    positive = {
        "steps": steps,
        "actors": actors,
        "batch": batch,
        "min_size": min_size,
        "evaluate_every": evaluate_every,
        "samples_per_insert": samples_per_insert,
        "timeout_seconds": timeout_seconds,
    }
    wrong = [f"{name}={number}" for name, number in positive.items() if number <= 0]
    wrong += [f"ahead={ahead}"] * (ahead < 0) + [f"table_size={table_size}"] * (table_size < max(min_size, batch))
    if wrong:
        message = (
            f"`run_agent` received {', '.join(wrong)}. Pass positive numbers, `ahead` of at least 0, and a "
            f"`table_size` of at least {max(min_size, batch)} (the larger of `min_size` and `batch`)."
        )
        raise ProgramError(message)
    table = {"sampling": sampling, "min_size": min_size, "samples_per_insert": samples_per_insert, "seed": seed}
    learner: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "every": evaluate_every,
        "prioritized": sampling == "prioritized",
    }
    if on == "here":
        return _alternate(agent, Replay(table_size, **table), actors, learner, seed)
    program = Program(agent.name)
    with program.group("replay"):
        replay = program.add_node(ReplayNode(table_size, **table))
    with program.group("learner"):
        node = program.add_node(ServiceNode(_Learner, replay, agent, **learner), concurrency=actors + 2)
    with program.group("actors"):
        for number in range(actors):
            program.add_node(PyClassNode(_Actor, replay, node, agent.actor, seed + number, batch * (1 + ahead)))
    start = time.monotonic()
    with launch(program, on) as launched:
        try:
            launched.wait(timeout_seconds)
        except TimeoutError as late:
            message = (
                f"`run_agent` stopped {agent.name!r} after {timeout_seconds:g} s, before its learner had taken {steps} "
                "steps. Pass a longer `timeout_seconds`, fewer steps, or more actors."
            )
            raise NodeTimeoutError(message) from late
        found, counts = launched.client(node).result(), launched.client(replay).counts()
    return AgentRun(found["params"], tuple(found["curve"]), counts, time.monotonic() - start)


def _alternate(
    agent: Agent[Any, Params], table: Replay, actors: int, options: dict[str, Any], seed: int
) -> AgentRun[Params]:
    start = time.monotonic()
    learner = _Learner(table, agent, **options)
    acting = [agent.actor(seed + number) for number in range(actors)]
    calls = 0
    while not learner.finished:
        while not table.ready(options["batch"]):
            found = acting[calls % actors].act(learner.params)
            table.insert_all([item for item, _ in found], [priority for _, priority in found])
            calls += 1
        learner.step()
    return AgentRun(learner.params, tuple(learner.curve), table.counts(), time.monotonic() - start)


class _Learner(Generic[State, Params]):
    """Learns from the table, and provides the newest parameters to the actors."""

    def __init__(
        self, replay: Replay, agent: Agent[State, Params], *, steps: int, batch: int, every: int, prioritized: bool
    ) -> None:
        self._replay, self._agent, self._steps, self._batch, self._every = replay, agent, steps, batch, every
        self._prioritized = prioritized
        self._state = agent.state
        self.params, self.taken = agent.params_of(agent.state), 0
        self.curve: list[tuple[int, float]] = [(0, float(agent.evaluate(self.params)))]

    @property
    def finished(self) -> bool:
        return self.taken == self._steps

    def step(self) -> None:
        """Takes one step, and evaluates the agent if this step is a point of the curve."""
        drawn = self._replay.sample(self._batch)
        self._state, priorities = self._agent.learn(self._state, drawn["items"], drawn["probabilities"])
        if self._prioritized and priorities is not None:
            self._replay.update_priorities(drawn["keys"], [float(each) for each in priorities])
        params = self._agent.params_of(self._state)
        if (self.taken + 1) % self._every == 0 or self.taken + 1 == self._steps:
            self.curve.append((self.taken + 1, float(self._agent.evaluate(params))))
        self.params, self.taken = params, self.taken + 1

    def run(self) -> None:
        """Takes all steps."""
        context = current_node()
        while not self.finished and not context.stop_requested:
            self.step()

    def current(self) -> dict[str, Any]:
        """Returns the newest parameters, and whether training has finished."""
        return {"params": self.params, "finished": self.finished}

    def result(self) -> dict[str, Any]:
        """Returns the newest parameters and the curve."""
        return {"params": self.params, "curve": list(self.curve)}


class _Actor(Generic[Params]):
    """Acts with the learner's newest parameters while the table wants items, until training has finished."""

    def __init__(
        self,
        replay: Replay,
        learner: "_Learner[Any, Params]",
        make: Callable[[int], Acting[Params]],
        seed: int,
        count: int,
    ) -> None:
        self._replay, self._learner, self._acting, self._count = replay, learner, make(seed), count

    def run(self) -> None:
        """Acts, and inserts the items of experience."""
        context = current_node()
        while not context.stop_requested:
            wanted = self._replay.wanted(self._count, timeout_seconds=_WAIT_SECONDS)
            newest = self._learner.current()
            if newest["finished"]:
                return
            if wanted:
                found = self._acting.act(newest["params"])
                self._replay.insert_all([item for item, _ in found], [priority for _, priority in found])
