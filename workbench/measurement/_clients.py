"""Measures time and steps per client, for programs that run a device's clients one after another."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from workbench.measurement._join import JoinedEvent, JoinedProfile
from workbench.records.compiled import ModuleRecord
from workbench.records.run import ClientRunRecord


def client_runs(
    joined: JoinedProfile,
    module: ModuleRecord,
    slots: Mapping[int, Sequence[int | None]],
    *,
    stage: str,
    labels: Mapping[int, str],
    rounds: int = 1,
) -> tuple[ClientRunRecord, ...]:
    """Measures the seconds and steps of each client in a stage, using the loop over clients.

    Each client is one iteration of a loop around the stage: the outermost loop with as many iterations as the device
    has slots. XLA removes loops with one iteration, so on a device with one slot the whole stage belongs to one client.
    Steps are the iterations of the loop that contains most of the client's work. If a loop inside that loop contains
    most of its work, the inner loop's iterations are counted instead, and so on.

    Returns: One record for each client and each device that computed the client; empty if the program has no such loop.
    """
    nest = _Nest(module)
    iterations: list[tuple[int, int, list[JoinedEvent]]] = []
    over_clients: set[str] = set()
    for device, clients in slots.items():
        leaves = [leaf for leaf in joined.leaves if leaf.event.device == device]
        loops = [item for item in joined.containers if item.event.device == device]
        client_events = _iterations(leaves, loops, nest, stage=stage, count=len(clients), used=over_clients)
        iterations += [
            (client, device, events)
            for client, events in zip(clients, client_events, strict=True)
            if client is not None
        ]
    own_loops = {loop for loop in nest.bodies if _belongs(nest.instructions[loop].stage, stage)} - over_clients
    step_loop = nest.working_loop(Counter(leaf.event.name for _, _, events in iterations for leaf in events), own_loops)
    records = []
    for client, device, events in sorted(iterations, key=lambda iteration: iteration[:2]):
        ran = nest.iterations(Counter(leaf.event.name for leaf in events))
        records.append(
            ClientRunRecord(
                stage=stage,
                client=client,
                where=labels.get(device, str(device)),
                seconds=sum(leaf.work_seconds for leaf in events) / rounds,
                steps=ran.get(step_loop, 0) // rounds if step_loop else None,
                flops=sum(leaf.instruction.flops * leaf.execution_share for leaf in events if leaf.instruction)
                / rounds,
                elementwise_flops=sum(
                    leaf.instruction.elementwise_flops * leaf.execution_share for leaf in events if leaf.instruction
                )
                / rounds,
                loops={loop: ran[loop] // rounds for loop in sorted(own_loops & ran.keys())},
            )
        )
    return tuple(records) if any(events for _, _, events in iterations) else ()


def lockstep_waste(clients: Iterable[ClientRunRecord]) -> dict[str, float]:
    """Estimates the waste of running a device's clients together, each for the maximum number of steps.

    Example:
        >>> lockstep_waste([ClientRunRecord(stage="1", client=i, steps=1 + 2 * i, where="cpu:0") for i in range(2)])
        {'cpu:0': 0.5}
    """
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for client in clients:
        if client.steps is not None:
            steps[client.where].append(client.steps)
    return {
        where: max(counts) * len(counts) / sum(counts) - 1 if sum(counts) else 0.0 for where, counts in steps.items()
    }


class _Nest:
    """The callers of each computation, and the bodies of loops."""

    def __init__(self, module: ModuleRecord) -> None:
        self.instructions = {instruction.name: instruction for instruction in module.instructions}
        callers = {called: item.computation for item in module.instructions for called in item.calls}
        self.around: dict[str, tuple[str, ...]] = {}  # computation -> itself and all its callers
        for computation in {item.computation for item in module.instructions}:
            chain = [computation]
            while (above := callers.get(chain[-1])) is not None and above not in chain:
                chain.append(above)
            self.around[computation] = tuple(chain)
        # The body returns the carried tuple, the condition only a predicate.
        tuples = {
            item.computation
            for item in module.instructions
            if item.shape.startswith("(") and item.opcode != "parameter"
        }
        self.bodies = {
            item.name: body
            for item in module.instructions
            if item.opcode == "while" and (body := next((name for name in item.calls if name in tuples), None))
        }

    def trips(self, loop: str) -> float | None:
        """Iterations of one run of a loop, from the compiled program; None if the compiler does not know the number."""
        runs = self.instructions[loop].executions
        body = [item.executions for item in self.instructions.values() if item.computation == self.bodies[loop]]
        if not runs or not body or None in body:
            return None
        return max(executions for executions in body if executions is not None) / runs

    def is_inside(self, name: str, loop: str) -> bool:
        """Returns whether an instruction is in a loop's body, or in a computation that the body calls."""
        instruction = self.instructions.get(name)
        return instruction is not None and self.bodies[loop] in self.around[instruction.computation]

    def iterations(self, executed: Mapping[str, int]) -> dict[str, int]:
        """Iterations of every loop, from instructions directly in its body, because these run once per iteration."""
        ran: Counter[str] = Counter()
        for name, times in executed.items():
            if name in self.instructions:
                computation = self.instructions[name].computation
                ran[computation] = max(ran[computation], times)
        return {loop: ran[body] for loop, body in self.bodies.items() if ran[body]}

    def working_loop(self, executed: Mapping[str, int], loops: Set[str]) -> str | None:
        """Finds the innermost loop that does most of the work in every loop around it."""
        work: defaultdict[str, float] = defaultdict(float)  # per computation, including its callees
        budget = 0.0
        for name, times in executed.items():
            if (instruction := self.instructions.get(name)) is not None:
                # Plus one, so that loops that only count also have a weight.
                weight = times * (instruction.flops + instruction.accessed_bytes + 1.0)
                budget += weight
                for computation in self.around[instruction.computation]:
                    work[computation] += weight
        choice = None
        while True:
            nearest = self._nearest(loops, None if choice is None else self.bodies[choice])
            loop = max(nearest, key=lambda name: (work[self.bodies[name]], name), default=None)
            if loop is None or 2 * work[self.bodies[loop]] < budget or not work[self.bodies[loop]]:
                return choice
            choice, budget = loop, work[self.bodies[loop]]

    def _nearest(self, loops: Set[str], inside: str | None) -> list[str]:
        """The outermost loops inside a body."""
        place = {loop: self.around[self.instructions[loop].computation] for loop in loops}
        below = [loop for loop in loops if inside is None or inside in place[loop]]
        bodies = {self.bodies[loop] for loop in below}
        return [loop for loop in below if bodies.isdisjoint(place[loop])]


def _iterations(
    leaves: Sequence[JoinedEvent], loops: Sequence[JoinedEvent], nest: _Nest, *, stage: str, count: int, used: set[str]
) -> list[list[JoinedEvent]]:
    """Groups leaves by iteration of the loop over clients; adds the loop's name to `used`."""
    if count == 1:
        return [[leaf for leaf in leaves if _belongs(leaf.stage, stage)]]
    iterations: list[list[JoinedEvent]] = [[] for _ in range(count)]
    everything = sorted((*leaves, *loops), key=lambda item: item.event.start_seconds)
    times = [item.event.start_seconds for item in everything]
    runs: defaultdict[str, list[float]] = defaultdict(list)  # start of each run of a loop
    for loop in loops:
        runs[loop.event.name].append(loop.event.start_seconds)
    quiet = 0.0  # loops that start earlier are inside a loop over clients
    for loop in sorted(loops, key=lambda item: (item.event.start_seconds, -item.event.seconds)):
        name, start, end = loop.event.name, loop.event.start_seconds, loop.event.end_seconds
        around = loop.stage is None or stage.startswith(f"{loop.stage}.")  # for example a loop over rounds
        if name not in nest.bodies or start < quiet or around or any(nest.is_inside(name, outer) for outer in used):
            continue
        trip_count = nest.trips(name)
        if trip_count not in (None, count):  # for example the loop over a client's steps
            continue
        if trip_count is not None:  # CPUs report the end of a loop when its first operation has been started
            end = min((later for later in runs[name] if later > start), default=math.inf)
        inside = [item for item in everything[bisect_left(times, start) : bisect_left(times, end)] if item is not loop]
        if trip_count is not None:
            inside = [item for item in inside if nest.is_inside(item.event.name, name)]
        starts = _iteration_starts(inside, nest.bodies[name], None if trip_count is None else count)
        if len(starts) != count or not any(_belongs(item.stage, stage) for item in inside):
            continue
        quiet = loop.event.end_seconds
        used.add(name)
        for item in inside:
            iteration = bisect_right(starts, item.event.start_seconds) - 1
            if iteration >= 0 and item.event.name not in nest.bodies and _belongs(item.stage, stage):
                iterations[iteration].append(item)
    return iterations


def _belongs(path: str | None, stage: str) -> bool:
    """Returns whether a path is the stage's path or the path of an inner stage."""
    return path is not None and (path == stage or path.startswith(f"{stage}."))


def _iteration_starts(inside: Sequence[JoinedEvent], body: str, count: int | None) -> list[float]:
    """Start of each iteration, from operations directly in the body, because these run once per iteration.

    A profiler can lose events, and can split an operation over several threads. If the number of iterations is known,
    only operations with this number of events are used.
    """
    starts: dict[str, list[float]] = defaultdict(list)
    for item in inside:
        if item.instruction is not None and item.instruction.computation == body:
            starts[item.event.name].append(item.event.start_seconds)
    if count is not None and any(len(times) == count for times in starts.values()):
        starts = defaultdict(list, {name: times for name, times in starts.items() if len(times) == count})
    iterations = min((len(times) for times in starts.values()), default=0)
    return [min(times[iteration] for times in starts.values()) for iteration in range(iterations)]
