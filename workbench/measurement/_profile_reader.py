"""Sums the events in profile files in one pass; memory grows only with the number of distinct operations."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench._open_types import Foreign
from workbench.cost import chip_of_gpu, known_chip
from workbench.errors import MeshError, ProfileError
from workbench.measurement._device_events import (
    COMMAND_BUFFERS,
    WAITING,
    DeviceEvent,
    ModuleRun,
    OtherEvent,
    device_of,
    execution_shares,
    first_moment,
    read_plane,
)
from workbench.measurement._graph_kernels import GRAPH, is_fill, name_kernels
from workbench.measurement._operation_facts import COLLECTIVES, program_name
from workbench.measurement._trace_json import read_trace
from workbench.measurement._xplane import Plane, WireError, read_space
from workbench.records.compiled import ModuleRecord
from workbench.records.hardware import ChipRecord
from workbench.records.run import EventRecord

_MOST_NAMES = 200


@dataclass(slots=True)
class MeasuredSum:
    """Measurements of one instruction."""

    category: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    events: int = 0
    nested: bool = False  # the seconds of operations inside are already subtracted
    executions: float = 0.0
    kernel: str = ""  # name of the first kernel, on a GPU
    first: float = 0.0  # its beginning
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(slots=True)
class MeasuredDevice:
    """Measurements of one device, and the facts that its plane in the profile states."""

    platform: str
    kind: str = ""
    chip: ChipRecord | None = None
    peak_flops: float | None = None
    peak_bytes: float | None = None
    first: float = float("inf")
    last: float = 0.0
    events: int = 0
    wait: float = 0.0
    overlapped: float = 0.0
    other: float = 0.0
    kept: list[EventRecord] = field(default_factory=list)


class ThinnedLine:
    """A series of points over time; whenever there are too many points, every second one is dropped."""

    def __init__(self, most: int = 4096) -> None:
        self.points: list[tuple[float, int]] = []
        self.count: int = 0
        self._most, self._step = most, 1

    def add(self, seconds: float, value: int) -> None:
        if self.count % self._step == 0:
            self.points.append((seconds, value))
            if len(self.points) >= self._most:
                del self.points[1::2]
                self._step *= 2
        self.count += 1


class ProfileReader:
    """Sums the events in profile files."""

    def __init__(self, max_events: int, modules: Sequence[ModuleRecord], only: str | None = None) -> None:
        self.max_events = max_events
        self.only = only
        self.left_out: Counter[str] = Counter()  # program -> seconds, for programs that were not selected
        self.given = {module.name: module for module in modules}
        self.sums: dict[tuple[str, str], MeasuredSum] = {}  # (program, instruction)
        self._sums_by_event: dict[
            tuple[str, int | None, str], tuple[str, MeasuredSum]
        ] = {}  # the same, by the names in events
        # Device -> seconds of other programs since the last event of the selected program.
        self._between: dict[str, float] = {}
        self.devices: dict[str, MeasuredDevice] = {}
        self.unjoined: dict[tuple[str, bool], tuple[int, float, Counter[str]]] = {}
        self.runs: Counter[str] = Counter()
        self.protos: dict[str, bytes] = {}
        self.memory: dict[tuple[str, str], ThinnedLine] = {}
        self.peaks: dict[tuple[str, str], int] = {}
        self.hosts: list[str] = []
        self.notes: list[str] = []
        self.graph_names: dict[tuple[str, str], str] = {}  # (program, kernel in a command buffer) -> instruction or ""

    def read(self, file: Path, number: int | None) -> None:
        """Adds one host's file."""
        host = ""
        try:
            if file.name.endswith(".pb"):
                space = read_space(file)
                planes: list[Any] = list(space.planes)
                self.notes += [f"{file.name}: {warning}" for warning in space.warnings[:3]]
                damage, host = space.damage, next(iter(space.hosts), "")
            else:
                planes, damage = read_trace(file)
        except OSError as error:
            msg = f"`open_profile` cannot read `{file}` ({error.strerror}). Pass a file that you can read."
            raise ProfileError(msg) from error
        if damage:
            self.notes.append(f"{file.name} is damaged ({damage}); the part before the damage was read")
        host = host or (file.name.split(".")[0] if number is not None else "")
        if host:
            self.hosts.append(host)
        place = f"{host}/" if number is not None else ""
        origin = first_moment(planes)
        for plane in planes:
            try:
                self._plane(plane, place, origin)
            except (WireError, TypeError, AttributeError, ValueError) as error:
                self.notes.append(f"{file.name}: plane `{plane.name}` is damaged ({error}); its first events were read")
            if isinstance(plane, Plane):
                plane.forget()

    def _plane(self, plane: Foreign, place: str, origin: int) -> None:
        if isinstance(plane, Plane) and plane.name == "/host:metadata":
            self._take_hlo(plane)
            return
        named = device_of(plane.name)
        if named:
            where = f"{place}{named[0]}:{named[1]}"
            self._describe(self.devices.setdefault(where, MeasuredDevice(named[0])), plane.stats)
        platform = named[0] if named else "cpu"
        events = read_plane(plane, origin_ps=origin)
        labels: dict[int, str] = {}
        for event, share in self._shared(events, f"{place}{platform}"):
            where = labels.get(event.device)
            if where is None:
                where = labels[event.device] = f"{place}{platform}:{event.device}"
            self._event(event, share, where, platform)
        if plane.name == "/host:CPU" and isinstance(plane, Plane):
            self._allocations(plane, place, origin)

    def _shared(self, events: Iterable[Any], prefix: str) -> Iterator[tuple[DeviceEvent, float]]:
        def only_executions() -> Iterator[DeviceEvent]:
            for event in events:
                if isinstance(event, DeviceEvent):
                    if self.only is None or self._is_of_chosen(event, f"{prefix}:{event.device}"):
                        yield event
                elif isinstance(event, ModuleRun):
                    self.runs[program_name(event.module, event.program)] += 1
                elif self.only is None:
                    self._other(event, f"{prefix}:{event.device}")

        yield from execution_shares(only_executions())

    def _event(self, event: DeviceEvent, share: float, where: str, platform: str) -> None:
        device = self.devices.get(where)
        if device is None:
            device = self.devices[where] = MeasuredDevice(platform)
        place = event.module, event.program, event.name
        entry = self._sums_by_event.get(place)
        if entry is None:
            entry = self._sums_by_event[place] = self._sum_of(event)
        program, total = entry
        start, seconds, inner = event.start_seconds, event.seconds, event.inner_seconds
        total.events += 1
        total.executions += share
        if inner > 0:
            total.nested = True
            total.seconds[where] += max(0.0, seconds - inner)
        else:
            total.seconds[where] += seconds
        device.events += 1
        if start < device.first:
            device.first = start
        if start + seconds > device.last:
            device.last = start + seconds
        if len(device.kept) < self.max_events:
            kind = "collective" if COLLECTIVES.match(event.name) else "compute"
            device.kept.append(
                EventRecord(
                    where=where, name=event.name, start_seconds=start, seconds=seconds, kind=kind, program=program
                )
            )

    def _is_of_chosen(self, event: DeviceEvent, where: str) -> bool:
        """Returns whether an event belongs to the selected program; if not, adds its time to a sum."""
        program = program_name(event.module, event.program)
        if self.only in (program, event.module):
            device = self.devices.setdefault(where, MeasuredDevice(where.rsplit("/", 1)[-1].split(":")[0]))
            device.other += self._between.get(where, 0.0)
            self._between[where] = 0.0
            return True
        self.left_out[program] += event.self_seconds  # pyright: ignore[reportArgumentType] -- a Counter of floats
        if where in self._between:
            self._between[where] += event.self_seconds
        return False

    def _sum_of(self, event: DeviceEvent) -> tuple[str, MeasuredSum]:
        program = program_name(event.module, event.program)
        total = MeasuredSum(event.category, event.facts, kernel=event.kernel, first=event.start_seconds)
        return program, self.sums.setdefault((program, event.name), total)

    def name_graphs(self, program: str, module: ModuleRecord | None) -> None:
        """Renames command-buffer kernels to their instructions; unknown kernels stay unjoined."""
        of_program = {name: total for (owner, name), total in self.sums.items() if owner == program}
        graphs = {name: total for name, total in of_program.items() if name.startswith(GRAPH)}
        names: dict[str, str] = {}
        for device in {name.partition(".")[0] for name in graphs} if module is not None else ():
            members = [
                (name, total)
                for name, total in of_program.items()
                if name not in graphs or name.startswith(device + ".")
            ]
            members.sort(key=lambda item: item[1].first)
            kernels = [(name, total.kernel) for name, total in members]
            names |= {} if module is None else name_kernels(kernels, module)
        for name, total in graphs.items():
            del self.sums[program, name]
            if name not in names:
                for where, seconds in total.seconds.items():
                    self._add_other(COMMAND_BUFFERS, total.kernel, where, seconds, total.events // len(total.seconds))
                continue
            instruction_sum = self.sums.setdefault((program, names[name]), MeasuredSum())
            instruction_sum.events += total.events
            instruction_sum.executions += 0.0 if is_fill(total.kernel) else total.executions
            for where, seconds in total.seconds.items():
                instruction_sum.seconds[where] += seconds
        self.graph_names |= {(program, name): names.get(name, "") for name in graphs}

    def _add_other(self, kind: str, name: str, where: str, spent: float, events: int) -> None:
        count, seconds, names = self.unjoined.get((kind, False), (0, 0.0, Counter()))
        names[name] += spent  # pyright: ignore[reportArgumentType] -- a Counter of floats
        self.unjoined[kind, False] = (count + events, seconds + spent, names)
        device = self.devices[where]
        device.other += spent
        device.events -= events

    def _other(self, event: OtherEvent, where: str) -> None:
        device = self.devices.setdefault(where, MeasuredDevice(where.rsplit("/", 1)[-1].split(":")[0]))
        count, seconds, names = self.unjoined.get((event.kind, event.overlaps), (0, 0.0, Counter()))
        if event.name in names or len(names) < _MOST_NAMES:
            names[event.name] += event.seconds  # pyright: ignore[reportArgumentType] -- a Counter of floats
        self.unjoined[event.kind, event.overlaps] = (count + 1, seconds + event.seconds, names)
        if event.kind == WAITING:
            device.wait += event.seconds
        elif event.overlaps:
            device.overlapped += event.seconds
        else:
            device.other += event.seconds
            device.first = min(device.first, event.start_seconds)
            device.last = max(device.last, event.start_seconds + event.seconds)
        if not event.overlaps or event.kind == WAITING:
            if len(device.kept) < self.max_events:
                kind = "wait" if event.kind == WAITING else "other"
                device.kept.append(
                    EventRecord(
                        where=where,
                        name=event.name,
                        start_seconds=event.start_seconds,
                        seconds=event.seconds,
                        kind=kind,
                    )
                )

    def _describe(self, device: MeasuredDevice, stats: Mapping[str, Any]) -> None:
        device.kind = str(stats.get("device_type_string", ""))
        flops, bandwidth = stats.get("peak_teraflops_per_second"), stats.get("peak_hbm_bw_gigabytes_per_second")
        device.peak_flops = flops * 1e12 if flops else None
        device.peak_bytes = bandwidth * 1e9 if bandwidth else None
        if device.kind:
            try:
                device.chip = known_chip(device.kind)
            except MeshError:
                self.notes.append(f"no peaks are published for {device.kind!r}: nothing is predicted for it")
        elif "core_count" in stats:
            vendor = str(stats.get("device_vendor", ""))
            device.chip = chip_of_gpu(vendor, int(stats["core_count"]), int(stats.get("memory_size", 0)))
            device.kind = (
                f"{vendor} {device.chip.name}" if device.chip else f"{vendor} GPU of {stats['core_count']} cores"
            )

    def _take_hlo(self, plane: Plane) -> None:
        for kind in plane.kinds():
            proto = next((value for value in kind.stats.values() if isinstance(value, bytes)), None)
            if proto:
                self.protos[kind.name] = proto

    def _allocations(self, plane: Plane, place: str, origin: int) -> None:
        """Reads allocator reports; adds reservations of programs, which array bytes on TPUs do not include."""
        for line in plane.lines():
            for event in plane.events(line, kinds=("MemoryAllocation", "MemoryDeallocation")):
                stats = event.stats
                used = int(stats.get("bytes_allocated", 0) or 0) + int(stats.get("bytes_reserved", 0) or 0)
                key = place.rstrip("/"), str(stats.get("allocator_name", ""))
                self.peaks[key] = max(self.peaks.get(key, 0), used, int(stats.get("peak_bytes_in_use", 0) or 0))
                self.memory.setdefault(key, ThinnedLine()).add((event.start_ps - origin) * 1e-12, used)
