"""From events of a profile to the instructions, stages and source lines of a compiled module."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.measurement._profile import DeviceEvent, Profile
from workbench.records import CollectiveRecord, EventRecord, InstructionRecord, MeshRecord, ModuleRecord

Kind = Literal["compute", "collective"]

_CONTAINERS = frozenset({"while", "conditional", "call"})
_COLLECTIVES = frozenset(
    "all-reduce all-gather reduce-scatter all-to-all ragged-all-to-all collective-permute collective-broadcast send "
    "recv".split()
)


class JoinedEvent(NamedTuple):
    """An event with the instruction that it executed (None: unknown); `wait_seconds` of it were waiting for others."""

    event: DeviceEvent
    instruction: InstructionRecord | None
    kind: Kind
    wait_seconds: float

    @property
    def stage(self) -> str | None:
        """Path of the stage."""
        return self.instruction.stage if self.instruction else None

    @property
    def work_seconds(self) -> float:
        """Seconds without the waiting."""
        return self.event.seconds - self.wait_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedProfile:
    """A profile read against one module.

    `leaves` do work; `containers` (while, call, conditional) enclose leaves, so adding them up would count twice.
    """

    leaves: tuple[JoinedEvent, ...]
    containers: tuple[JoinedEvent, ...]
    joined: float  # share of events that are instructions of the module, 0..1
    attributed: float  # share of the leaves' seconds that have a stage, 0..1
    notes: tuple[str, ...]


def join_profile(profile: Profile, module: ModuleRecord, *, mesh: MeshRecord | None = None) -> JoinedProfile:
    """Finds the instruction of every event, and the part of every collective that was waiting.

    The devices that take part in one collective start it at different times and leave it together. What the quickest of
    them needed is counted as work, all beyond as waiting for the others.

    Args:
        profile: What was captured while the module ran.
        module: The compiled module, as an inspector reads it.
        mesh: Says which devices take part in a collective over some axes only. Without it all devices do, which can
            only make the work smaller and the waiting longer.

    Returns:
        The events in order of time, and the shares that found an instruction and a stage.
    """
    mine = [event for event in profile.events if event.module == module.name]
    notes = []
    if not mine:
        mine = list(profile.events)
    elif len(mine) < len(profile.events):
        others = sorted(set(profile.modules()) - {module.name})
        notes.append(f"{len(profile.events) - len(mine)} events of other programs left out: {', '.join(others)}.")
    if profile.other_events:
        notes.append(f"{profile.other_events} events on devices name no instruction and are left out.")
    by_name = {instruction.name: instruction for instruction in module.instructions}
    enclosing = _enclosing(module, {event.name for event in mine})
    collectives = {collective.name: collective for collective in module.collectives}
    waits = _waits([event for event in mine if _is_collective(by_name.get(event.name), collectives)], collectives, mesh)
    leaves, containers = [], []
    for event in mine:
        instruction = by_name.get(event.name)
        kind: Kind = "collective" if _is_collective(instruction, collectives) else "compute"
        joined = JoinedEvent(event, instruction, kind, waits.get(event, 0.0))
        (containers if event.name in enclosing else leaves).append(joined)
    total = sum(leaf.event.seconds for leaf in leaves)
    return JoinedProfile(
        leaves=tuple(leaves),
        containers=tuple(containers),
        joined=sum(event.name in by_name for event in mine) / len(mine) if mine else 0.0,
        attributed=sum(leaf.event.seconds for leaf in leaves if leaf.stage is not None) / total if total else 0.0,
        notes=tuple(notes),
    )


def event_records(joined: Iterable[JoinedEvent], labels: Mapping[int, str]) -> Iterator[EventRecord]:
    """One span per event, two where a device waited: first the waiting, then the work.

    Args:
        joined: The events to draw.
        labels: The name of each device, such as "cpu:3".
    """
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


def _enclosing(module: ModuleRecord, ran: set[str]) -> set[str]:
    computations = {instruction.computation for instruction in module.instructions if instruction.name in ran}
    return {
        instruction.name
        for instruction in module.instructions
        if instruction.opcode in _CONTAINERS and not computations.isdisjoint(instruction.calls)
    }


def _is_collective(instruction: InstructionRecord | None, collectives: Mapping[str, CollectiveRecord]) -> bool:
    if instruction is None:
        return False
    opcode = instruction.opcode.removesuffix("-start").removesuffix("-done")
    return opcode in _COLLECTIVES or instruction.name in collectives


def _waits(
    events: Sequence[DeviceEvent], collectives: Mapping[str, CollectiveRecord], mesh: MeshRecord | None
) -> dict[DeviceEvent, float]:
    turn: Counter[tuple[str, int]] = Counter()
    together: dict[tuple[str, int, tuple[int, ...]], list[DeviceEvent]] = defaultdict(list)
    for event in events:  # in order of time, so the n-th event of a device belongs to the n-th execution everywhere
        execution = turn[event.name, event.device]
        turn[event.name, event.device] += 1
        together[event.name, execution, _group(collectives.get(event.name), event.device, mesh)].append(event)
    waits = {}
    for participants in together.values():
        work = min(event.seconds for event in participants)
        waits.update({event: event.seconds - work for event in participants})
    return waits


def _group(collective: CollectiveRecord | None, device: int, mesh: MeshRecord | None) -> tuple[int, ...]:
    """Where a device stands on the mesh axes that a collective does not reduce over: equal for its participants."""
    if collective is None or mesh is None:
        return ()
    names = [axis.name for axis in mesh.axes]
    if not collective.axes or any(axis not in names for axis in collective.axes):
        return ()
    position = next((record.position for record in mesh.devices if record.id == device), None)
    if position is None:
        return ()
    return tuple(place for name, place in zip(names, position, strict=True) if name not in collective.axes)
