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

Params = TypeVar("Params")  # what actors act with: any data that can be pickled
Acted = TypeVar("Acted", contravariant=True)
State = TypeVar("State")  # the learner's
Item = Any  # of experience, as the agent's own actors make it
_WAIT_SECONDS = 0.2  # between two looks of an actor at whether the learner has finished


class Acting(Protocol[Acted]):
    """One actor with its environment."""

    def act(self, params: Acted) -> Sequence[tuple[Item, float]]:
        """Takes some steps; returns items of experience with their priorities."""
        ...


@dataclasses.dataclass(frozen=True)
class Agent(Generic[State, Params]):
    """Definition of an agent, independent of the place where it runs.

    Attributes:
        name: Of the agent.
        actor: `actor(seed)` makes one actor with an environment of its own.
        learn: `learn(state, items, probabilities)` returns the learner's next state, and new priorities or None.
        state: The learner's first state: parameters, the optimizer's state, target parameters.
        params_of: `params_of(state)` is what actors act with.
        evaluate: `evaluate(params)` is a number that learning raises, such as the mean return of some episodes.

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
    """A finished run: what was learned, and how.

    Attributes:
        params: Of the last step.
        curve: Steps of the learner, and what `evaluate` said then.
        counts: Items inserted and sampled, and the size of the table.
        seconds: From the start to the last step.
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
    """Runs an agent where `on` says; the agent and the meaning of all other arguments stay as they are.

    "here" alternates in one thread: the actors act one after the other until the table allows a batch, then the learner
    takes a step. Everywhere else both work at the same time, held together from both sides: the learner waits until the
    table allows a batch, and an actor until fewer than `ahead` further batches are ready, before it fetches parameters
    and acts. So a step of the learner has seen as many items, by parameters about as old, wherever the agent runs.

    Args:
        agent: What to run.
        on: "here", "threads", "processes", or an engine such as `DaskEngine(client)` or `RayEngine()`.
        steps: Of the learner.
        actors: How many, each with an environment and a seed of its own.
        batch: Items in a step.
        table_size: Items that the table keeps.
        min_size: Items before the first step.
        samples_per_insert: How often an item is used on average.
        ahead: Steps of the learner for which actors may have acted before it is there; none "here".
        sampling: Of the table.
        evaluate_every: Steps between two points of the curve.
        seed: Of the actors and of the table.
        timeout_seconds: When a run that is not "here" is given up.

    Returns:
        What was learned.

    Raises:
        ProgramError: if a number is out of range.
        NodeTimeoutError: if the run takes longer than `timeout_seconds`.
    """
    numbers = (steps, actors, batch, min_size, evaluate_every, samples_per_insert, timeout_seconds)
    if min(numbers) <= 0 or ahead < 0 or table_size < max(min_size, batch):
        message = (
            f"`run_agent` received steps={steps}, actors={actors}, batch={batch}, table_size={table_size}, "
            f"min_size={min_size}, samples_per_insert={samples_per_insert}, ahead={ahead}, "
            f"evaluate_every={evaluate_every} and timeout_seconds={timeout_seconds}. The learner learns from what "
            "actors insert: pass positive numbers, an `ahead` of at least 0, and a table that holds `min_size` and "
            "`batch` items."
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
                f"`run_agent` gave up {agent.name!r} after {timeout_seconds:g} s, before its learner had taken {steps} "
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
    """Learns from the table, and hands out the newest parameters meanwhile."""

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
        """One step, and a point of the curve where one is due."""
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
        """The newest parameters, and whether they are the last."""
        return {"params": self.params, "finished": self.finished}

    def result(self) -> dict[str, Any]:
        """The newest parameters, and the curve."""
        return {"params": self.params, "curve": list(self.curve)}


class _Actor(Generic[Params]):
    """Acts with the learner's newest parameters, as often as the table wants items, until it has finished."""

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
        """Acts, and inserts what came of it."""
        context = current_node()
        while not context.stop_requested:
            wanted = self._replay.wanted(self._count, timeout_seconds=_WAIT_SECONDS)
            newest = self._learner.current()
            if newest["finished"]:
                return
            if wanted:
                found = self._acting.act(newest["params"])
                self._replay.insert_all([item for item, _ in found], [priority for _, priority in found])
