"""Reads executions of HLO instructions from the planes of a profile, by platform.

TPU: the line "XLA Ops" has one event per execution, named by its whole HLO line. The program and run of an event come
from the enclosing "XLA Modules" event. "Async XLA Ops" events overlap with these events and are reported separately, as
are SparseCore events and the waiting in "XLA TraceMe". GPU: one event per kernel on the line of its stream, with the
instruction and program in its statistics. CPU: events of host threads that name a device and an instruction.
"""

import array
import bisect
import contextlib
import heapq
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from workbench.measurement._graph_kernels import graph_name
from workbench.measurement._xplane import Plane, WireError

_DEVICE = re.compile(r"/device:([A-Za-z]+):(\d+)(.*)")
_TPU_INSTRUCTION = re.compile(r"%?(\S+) = ")
_PROGRAM = re.compile(r"(.+)\((\d+)\)$")
_DERIVED = frozenset(  # lines that viewers derive from a GPU's streams, which would count the same seconds twice
    ("Steps", "XLA Modules", "XLA Ops", "XLA TraceMe", "Framework Ops", "Framework Name Scope", "Source code", "Source",
     "TensorFlow Name Scope", "TensorFlow Ops", "Launch Stats")
)  # fmt: skip
_WAITING = ("barrier-cores", "dependency-wait")
_COPIES = ("memcpy", "memset", "copybuffer", "copydevicetodevice", "copyhosttodevice", "copydevicetohost", "fillbuffer")
_OF_CPU = ("hlo_op", "device_ordinal")  # the statistics that identify an instruction's execution on a CPU
_COMMAND_BUFFER = re.compile(r"command_buffer", re.IGNORECASE)

COMMAND_BUFFERS = "command buffers"
COPIES = "memory copies and fills"
NO_INSTRUCTION = "kernels that name no instruction"
SPARSE_CORE = "SparseCore operations"
WAITING = "waiting for other chips"

_TIDY_PS = 1000  # adjacent TPU events overlap by rounding errors of up to one nanosecond


_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


class DeviceEvent(NamedTuple):
    """One execution of an HLO instruction (on GPUs, of one of its kernels) on a device.

    Start times are relative. `self_seconds` excludes instructions that run inside this instruction (the body of a
    `while` on a TPU).
    """

    device: int
    name: str  # the HLO instruction
    module: str
    run: int | None
    start_seconds: float
    seconds: float
    program: int | None = None  # distinguishes programs with the same name
    kernel: str = ""  # of a GPU
    line: str = ""  # the stream
    category: str = ""  # from the profile (TPU)
    inner_seconds: float = 0.0
    facts: Mapping[str, Any] = _NO_FACTS  # the profile's facts about the instruction (TPU)

    @property
    def end_seconds(self) -> float:
        return self.start_seconds + self.seconds

    @property
    def self_seconds(self) -> float:
        """Time in seconds, excluding the instructions inside this instruction."""
        return max(0.0, self.seconds - self.inner_seconds)


class OtherEvent(NamedTuple):
    """Device work without a known instruction; `overlaps` is true if other work ran at the same time."""

    device: int
    kind: str
    name: str
    start_seconds: float
    seconds: float
    overlaps: bool = False


class ModuleRun(NamedTuple):
    """One execution of a whole program on one device."""

    device: int
    module: str
    program: int | None
    run: int | None
    start_seconds: float
    seconds: float


class KindLike(Protocol):
    """Properties shared by all events of one kind."""

    name: str
    display_name: str
    stats: dict[str, Any]


class EventLike(Protocol):
    """An event in any file format."""

    @property
    def kind(self) -> KindLike: ...
    @property
    def start_ps(self) -> int: ...
    @property
    def duration_ps(self) -> int: ...
    @property
    def stats(self) -> dict[str, Any]: ...


Line: TypeAlias = Any
"""A line of a plane; its type depends on the reader of the file format, and only this reader reads its events."""


class PlaneLike(Protocol):
    """A plane in any file format."""

    name: str
    stats: dict[str, Any]

    def lines(self) -> Iterable[Line]: ...
    def events(self, line: Line) -> Iterable[EventLike]: ...


Found = DeviceEvent | OtherEvent | ModuleRun


def device_of(plane: str) -> tuple[str, int] | None:
    """Platform and number of a device's plane; None for other planes, such as SparseCore planes."""
    match = _DEVICE.fullmatch(plane)
    return (match[1].lower(), int(match[2])) if match and not match[3] and match[1] != "CUSTOM" else None


def read_plane(plane: PlaneLike, *, origin_ps: int = 0) -> Iterator[Found]:
    """Yields all device events in a plane, each line in time order.

    Args:
        plane: Plane of a device or of the host.
        origin_ps: Origin of the returned seconds; it is needed because a float cannot represent picoseconds since 1970.
    """
    selects = isinstance(plane, Plane)
    plane = (_ShiftedLines if selects else _Shifted)(plane, origin_ps) if origin_ps else plane
    if plane.name == "/host:CPU":
        yield from _of_cpu(plane, {"stating": _OF_CPU} if selects else {})
        return
    match = _DEVICE.fullmatch(plane.name)
    if match is None or match[1] == "CUSTOM":
        return
    device = int(match[2])
    if match[3]:
        kind = SPARSE_CORE if "SparseCore" in match[3] else f"events of {plane.name}"
        for line in plane.lines():
            if line.name not in ("XLA Modules", "Steps"):
                yield from (_other(device, kind, event, overlaps=True) for event in plane.events(line))
    elif match[1] == "TPU":
        yield from _of_tpu(plane, device)
    else:
        yield from _of_gpu(plane, device)


def first_moment(planes: Iterable[PlaneLike]) -> int:
    """Start of the first line with device events, in picoseconds; 0 if there is no such line."""
    starts: list[int] = []
    for plane in planes:
        if plane.name == "/host:CPU" or _DEVICE.fullmatch(plane.name):
            with contextlib.suppress(WireError, TypeError, AttributeError):  # damage is reported by the reader
                starts += [line.start_ps for line in plane.lines()]
    return min((start for start in starts if start > 0), default=0)


class _Moved(NamedTuple):
    """An event with a shifted start."""

    kind: KindLike
    start_ps: int
    duration_ps: int
    stats: dict[str, Any]


class _Shifted:
    """A plane whose time origin is shifted."""

    def __init__(self, plane: PlaneLike, origin_ps: int) -> None:
        self._plane, self._origin = plane, origin_ps
        self.name, self.stats = plane.name, plane.stats

    def lines(self) -> Iterable[Line]:
        return self._plane.lines()

    def events(self, line: Line, **only: object) -> Iterator[EventLike]:
        for event in self._plane.events(line, **only):
            yield _Moved(event.kind, event.start_ps - self._origin, event.duration_ps, event.stats)


class _ShiftedLines(_Shifted):
    """Shifts lines instead of events, for planes whose events are relative to their line."""

    def lines(self) -> Iterable[Line]:
        return (line._replace(start_ps=line.start_ps - self._origin) for line in self._plane.lines())

    def events(self, line: Line, **only: object) -> Iterator[EventLike]:
        return iter(self._plane.events(line, **only))


def _of_cpu(plane: PlaneLike, only: dict[str, Any]) -> Iterator[Found]:
    for line in plane.lines():
        for event in plane.events(line, **only):
            stats = event.stats
            if all(name in stats for name in _OF_CPU):
                yield DeviceEvent(
                    device=int(stats["device_ordinal"]),
                    name=str(stats["hlo_op"]),
                    module=str(stats.get("hlo_module", "")),
                    run=_integer(stats.get("run_id")),
                    start_seconds=event.start_ps * 1e-12,
                    seconds=event.duration_ps * 1e-12,
                    program=_integer(stats.get("program_id")),
                    line=line.name,
                )


def _of_tpu(plane: PlaneLike, device: int) -> Iterator[Found]:
    lines = {line.name: line for line in plane.lines()}
    runs = _RunTable()
    for run in _runs(plane, lines.get("XLA Modules"), device):
        runs.add(run)
        yield run
    if "XLA Ops" in lines:
        yield from _nested(_tpu_events(plane, lines["XLA Ops"], device, runs))
    if "Async XLA Ops" in lines:
        for event in plane.events(lines["Async XLA Ops"]):
            name = str(event.stats.get("hlo_op") or _tpu_name(event.kind))
            yield OtherEvent(
                device, "asynchronous", name, event.start_ps * 1e-12, event.duration_ps * 1e-12, overlaps=True
            )
    if "XLA TraceMe" in lines:
        for event in plane.events(lines["XLA TraceMe"]):
            if event.kind.name in _WAITING:
                yield _other(device, WAITING, event, overlaps=True)  # occurs before and between operations of its run


class _RunTable:
    """Program runs on one device, stored in four columns because a long profile has millions of runs."""

    def __init__(self) -> None:
        self._starts, self._ends = array.array("d"), array.array("d")
        self._programs, self._runs = array.array("l"), array.array("d")
        self._names: dict[tuple[str, int | None], int] = {}
        self._keys: list[tuple[str, int | None]] = []
        self._large: dict[int, int] = {}  # runs whose number does not fit in a float
        self._order: list[int] | None = None

    def add(self, run: ModuleRun) -> None:
        """Adds a run; in most files the runs are in time order."""
        key = run.module, run.program
        if key not in self._names:
            self._names[key] = len(self._keys)
            self._keys.append(key)
        if run.run is not None and abs(run.run) > 2**53:
            self._large[len(self._starts)] = run.run
        self._programs.append(self._names[key])
        self._runs.append(math.nan if run.run is None else float(run.run))
        if self._starts and run.start_seconds < self._starts[-1] and self._order is None:
            self._order = []
        self._starts.append(run.start_seconds)
        self._ends.append(run.start_seconds + run.seconds)

    def at(self, seconds: float) -> tuple[str, int | None, int | None] | None:
        """Module, program and run that are in progress at a given time; None if there is no run."""
        if self._order == []:
            self._order = sorted(range(len(self._starts)), key=self._starts.__getitem__)
        if self._order is None:
            index = bisect.bisect_right(self._starts, seconds + 1e-9) - 1
        else:
            place = bisect.bisect_right(self._order, seconds + 1e-9, key=self._starts.__getitem__) - 1
            index = self._order[place] if place >= 0 else -1
        if index < 0 or seconds >= self._ends[index]:
            return None
        number = self._runs[index]
        run = self._large.get(index, None if math.isnan(number) else int(number))
        return *self._keys[self._programs[index]], run


def _runs(plane: PlaneLike, line: Line, device: int) -> Iterator[ModuleRun]:
    for event in plane.events(line) if line is not None else ():
        match = _PROGRAM.match(event.kind.name)
        name, program = (match[1], int(match[2])) if match else (event.kind.name, None)
        run = _integer(event.stats.get("run_id"))
        yield ModuleRun(device, name, program, run, event.start_ps * 1e-12, event.duration_ps * 1e-12)


def _tpu_events(plane: PlaneLike, line: Line, device: int, runs: _RunTable) -> Iterator[tuple[int, int, DeviceEvent]]:
    for event in plane.events(line):
        # Start times are converted to the host's clock, which distorts durations; durations on the chip's clock are
        # exact.
        begin = _integer(event.stats.get("device_offset_ps"))
        length = _integer(event.stats.get("device_duration_ps"))
        if begin is None or length is None:
            begin, length = event.start_ps, event.duration_ps
        start, seconds = event.start_ps * 1e-12, length * 1e-12
        module, program, run = runs.at(start) or ("", None, None)
        stats = event.kind.stats
        stats.setdefault("long_name", event.kind.name)
        yield (
            begin,
            begin + length,
            DeviceEvent(
                device=device,
                name=_tpu_name(event.kind),
                module=module,
                run=run,
                start_seconds=start,
                seconds=seconds,
                program=_integer(stats.get("program_id")) or program,
                line=line.name,
                category=str(stats.get("hlo_category", "")),
                facts=stats,
            ),
        )


def _nested(events: Iterable[tuple[int, int, DeviceEvent]]) -> Iterator[DeviceEvent]:
    """Yields events in start order, each with the seconds spent in events directly inside it."""
    around: list[tuple[int, int, DeviceEvent, float]] = []  # start, end, event, seconds inside
    for start, end, event in events:
        while around and not (around[-1][0] <= start < around[-1][1] and end <= around[-1][1] + _TIDY_PS):
            _, _, parent, inside = around.pop()
            yield parent._replace(inner_seconds=inside) if inside else parent
        if around:
            begin, stop, outer, inside = around[-1]
            around[-1] = (begin, stop, outer, inside + event.seconds)
        around.append((start, end, event, 0.0))
    while around:
        _, _, parent, inside = around.pop()
        yield parent._replace(inner_seconds=inside) if inside else parent


def _tpu_name(kind: KindLike) -> str:
    if kind.display_name:
        return kind.display_name
    match = _TPU_INSTRUCTION.match(kind.name)
    return match[1] if match else kind.name


def _of_gpu(plane: PlaneLike, device: int) -> Iterator[Found]:
    streams = [line for line in plane.lines() if line.name not in _DERIVED]
    merged = heapq.merge(*(_gpu_events(plane, line, device) for line in streams), key=_start)
    yield from merged


def _gpu_events(plane: PlaneLike, line: Line, device: int) -> Iterator[DeviceEvent | OtherEvent]:
    graphs: dict[str, bool] = {}  # names of instructions -> whether they are command buffers
    for event in plane.events(line):
        kind, start_ps, duration_ps, stats = event.kind, event.start_ps, event.duration_ps, event.stats
        name = stats.get("hlo_op") or kind.stats.get("hlo_op")
        node = stats.get("cuda_graph_node_id")
        if node is not None and (not name or _COMMAND_BUFFER.match(str(name))):
            name = graph_name(device, stats.get("cuda_graph_id"), node)
        if name and name not in graphs:
            graphs[name] = _COMMAND_BUFFER.match(str(name)) is not None
        if name and not graphs[name]:
            yield DeviceEvent(  # positional arguments, for speed: one call per kernel of a profile
                device,
                str(name),
                str(stats.get("hlo_module") or kind.stats.get("hlo_module") or ""),
                _integer(stats.get("run_id")),
                start_ps * 1e-12,
                duration_ps * 1e-12,
                _integer(stats.get("program_id")),
                kind.name,
                line.name,
            )
        else:
            yield _other(device, _gpu_kind(event, line.name, str(name or "")), event)


def _gpu_kind(event: EventLike, line: str, name: str) -> str:
    if _COMMAND_BUFFER.match(name) or "command_buffer" in event.kind.name or "cuda_graph_id" in event.stats:
        return COMMAND_BUFFERS
    plain = event.kind.name.lower()
    copies = "memcpy_details" in event.stats or "memset_details" in event.stats or any(w in plain for w in _COPIES)
    return COPIES if copies or "Memcpy" in line or "Memset" in line else NO_INSTRUCTION


def _other(device: int, kind: str, event: EventLike, *, overlaps: bool = False) -> OtherEvent:
    name = event.kind.display_name or event.kind.name
    return OtherEvent(device, kind, name[:200], event.start_ps * 1e-12, event.duration_ps * 1e-12, overlaps)


def _start(event: DeviceEvent | OtherEvent) -> float:
    return event.start_seconds


def _integer(value: str | float | None) -> int | None:
    if isinstance(value, int):
        return value
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None


def kernels_per_execution(kernels: list[str]) -> int:
    """Determines the number of kernels per execution of an instruction from its consecutive kernels.

    Example:
        >>> kernels_per_execution(["im2col", "gemm", "im2col", "gemm"]), kernels_per_execution(["mul", "mul"])
        (2, 1)
    """
    count = len(kernels)
    for period in range(1, count):
        if count % period == 0 and kernels == kernels[:period] * (count // period):
            return period
    return count


def execution_shares(events: Iterable[DeviceEvent]) -> Iterator[tuple[DeviceEvent, float]]:
    """Yields events with their share of an execution; it is below 1 if a GPU runs several kernels.

    Consecutive kernels of one instruction form one execution if no other instruction of their program runs between
    them, unless their names repeat from the beginning.
    """
    waiting: dict[Any, list[DeviceEvent]] = {}
    for event in events:
        if not event.kernel:
            yield event, 1.0
            continue
        group = waiting.setdefault((event.device, event.module, event.program), [])
        if group and (group[-1].name != event.name or len(group) >= _LONGEST):
            yield from _shared(group)
            group.clear()
        group.append(event)
    for group in waiting.values():
        yield from _shared(group)


_LONGEST = 4096  # kernels of one instruction that are compared at once


def _shared(events: list[DeviceEvent]) -> Iterator[tuple[DeviceEvent, float]]:
    share = 1.0 / kernels_per_execution([event.kernel for event in events])
    for event in events:
        yield event, share
