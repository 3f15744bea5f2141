"""Joins profile events to instructions, stages and source lines of a compiled module."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.measurement._device_events import COMMAND_BUFFERS, DeviceEvent, OtherEvent, execution_shares
from workbench.measurement._graph_kernels import GRAPH, name_kernels
from workbench.measurement._profile import Profile, describe_others
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord
from workbench.records.hardware import MeshRecord
from workbench.records.run import EventRecord

Kind = Literal["compute", "collective"]

_CONTAINERS = frozenset({"while", "conditional", "call"})
_COLLECTIVES = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all collective-permute collective-broadcast send "
    "recv".split()
)


class JoinedEvent(NamedTuple):
    """An event with its instruction (None if unknown) and the seconds spent waiting for other devices.

    `execution_share` is below 1 if a GPU ran several kernels for one execution, so that the instruction's costs are
    counted once.
    """

    event: DeviceEvent
    instruction: InstructionRecord | None
    kind: Kind
    wait_seconds: float
    execution_share: float = 1.0

    @property
    def stage(self) -> str | None:
        """Path of the stage."""
        return self.instruction.stage if self.instruction else None

    @property
    def work_seconds(self) -> float:
        """Seconds, excluding waiting."""
        return self.event.self_seconds - self.wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedProfile:
    """A profile joined to one module.

    `leaves` do the work; `containers` (while, call, conditional) enclose leaves, so adding both would count time twice.
    """

    leaves: tuple[JoinedEvent, ...]
    containers: tuple[JoinedEvent, ...]
    joined: float  # share of device events (excluding other programs) that are instructions of the module
    attributed: float  # share of the leaves' seconds with a stage, 0..1
    notes: tuple[str, ...]


def join_profile(profile: Profile, module: ModuleRecord, *, mesh: MeshRecord | None = None) -> JoinedProfile:
    """Finds the instruction of every event, and the waiting time of every collective.

    The devices in a collective start it at different times and finish it together. The time of the fastest device
    counts as work, and all additional time as waiting for other devices.

    Args:
        profile: Profile captured while the module ran.
        module: The compiled module, from `inspect_module`.
        mesh: Mesh that determines which devices take part in a collective over some of its axes. Without a mesh, all
            devices are assumed to take part; this can only underestimate the work and overestimate the waiting time.

    Returns:
        The events in time order, and the shares of events with an instruction and with a stage.
    """
    by_name = {instruction.name: instruction for instruction in module.instructions}
    events, notes = _of_module(profile, module.name, by_name)
    events, unnamed = _with_graphs(events, module)
    notes += describe_others([*profile.others, *unnamed])
    enclosing = _enclosing(module, {event.name for event in events})
    collectives = {collective.name: collective for collective in module.collectives}
    waits = _waits(
        [event for event in events if _is_collective(by_name.get(event.name), collectives)], collectives, mesh
    )
    leaves, containers = [], []
    for event, share in execution_shares(events):
        instruction = find_instruction(by_name, event.name)
        kind: Kind = "collective" if _is_collective(instruction, collectives) else "compute"
        joined = JoinedEvent(event, instruction, kind, waits.get(id(event), 0.0), share)
        (containers if event.name in enclosing else leaves).append(joined)
    if any(event.kernel for event in events):  # kernels are buffered until their execution ends
        leaves.sort(key=_moment)
        containers.sort(key=_moment)
    total = sum(leaf.event.seconds for leaf in leaves)
    counted = len(events) + len(unnamed) + profile.other_events
    unknown = Counter(event.name for event in events if find_instruction(by_name, event.name) is None)
    if unknown:
        seconds = sum(event.seconds for event in events if event.name in unknown)
        named = ", ".join(f"`{name}`" for name, _ in unknown.most_common(3))
        notes.append(
            f"{sum(unknown.values())} events ({seconds:.4g} s) do not name an instruction of the module: {named}."
        )
    return JoinedProfile(
        leaves=tuple(leaves),
        containers=tuple(containers),
        joined=sum(find_instruction(by_name, event.name) is not None for event in events) / counted if counted else 0.0,
        attributed=sum(leaf.event.seconds for leaf in leaves if leaf.stage is not None) / total if total else 0.0,
        notes=tuple(notes),
    )


def event_records(joined: Iterable[JoinedEvent], labels: Mapping[int, str]) -> Iterator[EventRecord]:
    """Yields one span per event, or two if a device waited: first waiting, then work."""
    for item in joined:
        event, source = item.event, item.instruction.source if item.instruction else None
        where = labels.get(event.device, str(event.device))
        start = event.start_seconds
        if item.wait_seconds > 0:
            yield EventRecord(
                where=where,
                name=event.name,
                start_seconds=start,
                seconds=item.wait_seconds,
                kind="wait",
                stage=item.stage,
                source=source,
            )
        yield EventRecord(
            where=where,
            name=event.name,
            start_seconds=start + item.wait_seconds,
            seconds=item.work_seconds,
            kind=item.kind,
            stage=item.stage,
            source=source,
        )


def _with_graphs(events: list[DeviceEvent], module: ModuleRecord) -> tuple[list[DeviceEvent], list[OtherEvent]]:
    """Adds instructions to kernels in command buffers; also returns the kernels without an instruction."""
    if not any(event.name.startswith(GRAPH) for event in events):
        return events, []
    order: defaultdict[int, dict[str, str]] = defaultdict(dict)  # each of a device's kernels once
    for event in sorted(events, key=lambda event: event.start_seconds):
        order[event.device].setdefault(event.name, event.kernel)
    names: dict[str, str] = {}
    for kernels in order.values():
        names |= name_kernels(list(kernels.items()), module)
    matches, unnamed = [], []
    for event in events:
        if not event.name.startswith(GRAPH):
            matches.append(event)
        elif event.name in names:
            matches.append(event._replace(name=names[event.name]))
        else:
            where = event.device, COMMAND_BUFFERS, event.kernel
            unnamed.append(OtherEvent(*where, event.start_seconds, event.seconds))
    return matches, unnamed


def _enclosing(module: ModuleRecord, ran: set[str]) -> set[str]:
    computations = {instruction.computation for instruction in module.instructions if instruction.name in ran}
    return {
        instruction.name
        for instruction in module.instructions
        if instruction.opcode in _CONTAINERS and not computations.isdisjoint(instruction.calls)
    }


def find_instruction(instructions: Mapping[str, InstructionRecord], name: str) -> InstructionRecord | None:
    """Finds the instruction that an event names.

    Older GPU profiles add numbers to the names of library calls, as in `cudnn-conv.1.0`.
    """
    instruction = instructions.get(name)
    if instruction is None:
        call = instructions.get(name.rpartition(".")[0])
        instruction = call if call is not None and call.opcode == "custom-call" else None
    return instruction


def _is_collective(instruction: InstructionRecord | None, collectives: Mapping[str, CollectiveRecord]) -> bool:
    if instruction is None:
        return False
    opcode = instruction.opcode.removesuffix("-start").removesuffix("-done")
    return opcode in _COLLECTIVES or instruction.name in collectives


def _moment(item: JoinedEvent) -> tuple[float, int]:
    return item.event.start_seconds, item.event.device


def _of_module(
    profile: Profile, name: str, instructions: Mapping[str, InstructionRecord]
) -> tuple[list[DeviceEvent], list[str]]:
    """Selects a program's events; if several programs have its name, chooses the one with matching instructions."""
    named = [event for event in profile.events if event.module in (name, "")]
    programs = {event.program for event in named}
    notes = []
    if len(programs) > 1:
        fitting = Counter(event.program for event in named if event.name in instructions)
        sizes = Counter(event.program for event in named)
        best = max(programs, key=lambda program: (fitting[program] / sizes[program], sizes[program]))
        events = [event for event in named if event.program == best]
        notes.append(
            f"{len(programs)} programs are called {name}; {len(named) - len(events)} of their events are ignored, "
            f"because they do not belong to program {best}, the closest match."
        )
    else:
        events = named
    counts = Counter(event.module for event in profile.events if event.module not in (name, ""))
    if counts:
        notes.append(f"{sum(counts.values())} events of other programs were ignored: {', '.join(sorted(counts))}.")
    return events, notes


def _waits(
    events: Sequence[DeviceEvent], collectives: Mapping[str, CollectiveRecord], mesh: MeshRecord | None
) -> dict[int, float]:
    """Waiting time of each event in seconds, keyed by event id."""
    together: dict[tuple[str, int | None, tuple[int, ...]], list[DeviceEvent]] = defaultdict(list)
    for event in events:
        together[event.name, event.run, _group(collectives.get(event.name), event.device, mesh)].append(event)
    waits = {}
    for group in together.values():
        for participants in _meetings(group):
            work = min(event.seconds for event in participants)
            waits.update({id(event): event.seconds - work for event in participants})
    return waits


def _meetings(events: Sequence[DeviceEvent]) -> Iterator[list[DeviceEvent]]:
    """Groups the events of one execution of a collective, by count within a run or by time.

    No device leaves a collective before the last device has entered, so events of one execution overlap. A lost event,
    or an event that the profiler split, therefore affects only its own execution and not all later executions.
    """
    per_device: dict[int, list[DeviceEvent]] = defaultdict(list)
    for event in events:
        per_device[event.device].append(event)
    counts = {len(members) for members in per_device.values()}
    if events[0].run is not None and len(counts) == 1:
        yield from map(list, zip(*per_device.values(), strict=True))
        return
    meeting: list[DeviceEvent] = []
    for event in sorted(events, key=lambda event: event.start_seconds):
        ends = min((member.end_seconds for member in meeting), default=0.0)
        if meeting and (event.start_seconds >= ends or any(member.device == event.device for member in meeting)):
            yield meeting
            meeting = []
        meeting.append(event)
    if meeting:
        yield meeting


def _group(collective: CollectiveRecord | None, device: int, mesh: MeshRecord | None) -> tuple[int, ...]:
    """A device's coordinates on the axes outside a collective, identical for all participants."""
    if collective is None or mesh is None:
        return ()
    names = [axis.name for axis in mesh.axes]
    if not collective.axes or any(axis not in names for axis in collective.axes):
        return ()
    position = next((record.position for record in mesh.devices if record.id == device), None)
    if position is None:
        return ()
    return tuple(place for name, place in zip(names, position, strict=True) if name not in collective.axes)
