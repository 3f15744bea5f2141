"""Records of profiles from real devices; all times are measured."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from workbench.records._base import Record
from workbench.records.call_tree import CallTreeRecord
from workbench.records.hardware import ChipRecord
from workbench.records.program import SourceLine
from workbench.records.run import EventRecord, RunRecord, StageRunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledOperationRecord(Record):
    """One HLO instruction of a program, with its measured time, summed over all devices.

    `flops` (of dot products and convolutions), `elementwise_flops` and `accessed_bytes` are per device and execution;
    None if neither the profile nor its HLO contains them. A profile without HLO has only one FLOP count: `flops` is
    then the sum of both kinds.
    """

    name: str
    program: str  # "jit_step(17)"
    category: str  # XProf's category: "loop fusion", "convolution", "copy-done"
    executions: float
    seconds: float  # self time, excluding the instructions that run inside it
    seconds_by_device: dict[str, float]  # "tpu:0", or "host/tpu:0" with several hosts
    kind: Literal["compute", "collective", "copy"] = "compute"
    opcode: str = ""
    events: int = 0  # more than `executions` if a GPU runs several kernels per execution
    flops: float | None = None
    accessed_bytes: float | None = None
    dtype: str = ""  # dtype of its largest operand or result, by JAX's name
    op_name: str = ""
    source: SourceLine | None = None
    stage: str | None = None
    predicted_seconds: float | None = None  # per execution, from the chip's published peaks
    bound: Literal["compute", "memory", "overhead", ""] = ""  # of the prediction
    joined: bool = False  # whether its instruction was found in the HLO
    elementwise_flops: float | None = None
    hlo: str = ""  # the instruction with its operands and their shapes, as HLO text

    @property
    def seconds_per_execution(self) -> float:
        """Mean measured time of one execution on one device, in seconds."""
        return self.seconds / self.executions if self.executions else 0.0

    @property
    def flops_per_second(self) -> float | None:
        """The rate that one device achieved; None if the FLOPs are unknown."""
        return None if self.flops is None or not self.seconds else self.flops * self.executions / self.seconds

    @property
    def bytes_per_second(self) -> float | None:
        """The rate at which one device read and wrote its main memory; None if the bytes are unknown."""
        has_rate = self.accessed_bytes is not None and self.seconds
        return (self.accessed_bytes or 0.0) * self.executions / self.seconds if has_rate else None

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte of main memory: the horizontal axis of the roofline. None if unknown."""
        return self.flops / self.accessed_bytes if self.flops is not None and self.accessed_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledDeviceRecord(Record):
    """One device in a profile; of its measured times, only `overlapped_seconds` overlaps with the others."""

    where: str
    platform: str
    kind: str = ""  # "TPU v6 Lite", "AMD MI300X"
    events: int = 0
    span_seconds: float = 0.0  # from its first to its last event
    compute_seconds: float = 0.0
    collective_seconds: float = 0.0
    copy_seconds: float = 0.0
    other_seconds: float = 0.0  # events without an instruction
    wait_seconds: float = 0.0  # waiting for other chips, if the profile has it (TPU)
    overlapped_seconds: float = 0.0  # asynchronous operations and SparseCores, in parallel with other work
    peak_flops_per_second: float | None = None  # as stated in the profile
    peak_bytes_per_second: float | None = None

    @property
    def busy_seconds(self) -> float:
        """Time of all work in seconds, excluding `overlapped_seconds`."""
        return self.compute_seconds + self.collective_seconds + self.copy_seconds + self.other_seconds

    @property
    def idle_share(self) -> float:
        """Idle share of the device's span, 0..1; the busy times of concurrent streams are added up."""
        return max(0.0, 1.0 - self.busy_seconds / self.span_seconds) if self.span_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledProgramRecord(Record):
    """One program in a profile; `hlo` states whether its HLO is available."""

    name: str  # "jit_step(17)"
    module: str  # "jit_step"
    seconds: float  # seconds of its operations on all devices
    operations: int
    runs: int | None = None  # total over all devices; None if the profile does not count them
    hlo: Literal["carried", "given", "missing", "unreadable"] = "missing"
    flops: float | None = None  # of dot products and convolutions, per device and call
    peak_bytes: int | None = None  # bytes of simultaneously live values, reconstructed from the schedule
    notes: tuple[str, ...] = ()
    elementwise_flops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjoinedRecord(Record):
    """Device events of one kind without a known instruction."""

    kind: str
    events: int
    seconds: float
    overlaps: bool = False  # concurrent with other work, so their seconds must not be added
    names: dict[str, float] = field(default_factory=dict)  # the names that take the most seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledMemoryRecord(Record):
    """The report of one allocator in a profile; `peak_bytes` includes memory that programs reserve."""

    where: str
    allocator: str
    peak_bytes: int
    events: int
    timeline: tuple[tuple[float, int], ...] = ()  # (seconds, bytes in use), thinned


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord(Record):
    """A profile recorded on devices, with facts from its HLO about every operation."""

    name: str
    files: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    devices: tuple[ProfiledDeviceRecord, ...] = ()
    programs: tuple[ProfiledProgramRecord, ...] = ()
    operations: tuple[ProfiledOperationRecord, ...] = ()  # most seconds first
    events: tuple[EventRecord, ...] = ()  # the timeline: the first events of every device
    unjoined: tuple[UnjoinedRecord, ...] = ()
    joined: float = 0.0  # share of the non-overlapping events that are instructions of the HLO, 0..1
    joined_seconds: float = 0.0  # the same share, weighted by seconds
    chip: ChipRecord | None = None
    error_bar: str = ""  # prediction error for this chip family
    memory: tuple[ProfiledMemoryRecord, ...] = ()
    trees: dict[str, CallTreeRecord] = field(default_factory=dict)  # program -> its call tree, with measured seconds
    notes: tuple[str, ...] = ()

    @property
    def tree(self) -> CallTreeRecord | None:
        """The call tree of the program that takes the most time; None if this program has no tree."""
        return self.trees.get(self.programs[0].name) if self.programs else None

    @property
    def seconds(self) -> float:
        """Self time of all operations on all devices, in seconds."""
        return sum(operation.seconds for operation in self.operations)

    def seconds_by_category(self) -> dict[str, float]:
        """Self time on all devices in seconds, by XProf category, largest first."""
        totals: dict[str, float] = {}
        for operation in self.operations:
            totals[operation.category] = totals.get(operation.category, 0.0) + operation.seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def seconds_by_path(self) -> dict[str, float]:
        """Time per device by call path (the `op_name`, or otherwise the category) in seconds, largest first."""
        devices = max(1, len(self.devices))
        totals: dict[str, float] = {}
        for operation in self.operations:
            path = operation.op_name or f"({operation.category or 'unknown'})"
            totals[path] = totals.get(path, 0.0) + operation.seconds / devices
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def as_run(self) -> RunRecord:
        """Converts the profile to a measured run for the explorer, with stages and a timeline."""
        sums: dict[tuple[str, str, str], float] = {}
        for operation in self.operations:
            for where, seconds in operation.seconds_by_device.items():
                key = (operation.stage or "", where, operation.kind)
                sums[key] = sums.get(key, 0.0) + seconds
        places = sorted({(stage, where) for stage, where, _ in sums})
        return RunRecord(
            name=self.name,
            engine=f"recorded: {self.devices[0].kind or self.devices[0].platform if self.devices else 'nothing'} x "
            f"{len(self.devices)}",
            seconds=max((device.span_seconds for device in self.devices), default=0.0),
            stages=tuple(
                StageRunRecord(
                    stage=stage,
                    where=where,
                    compute_seconds=sums.get((stage, where, "compute"), 0.0),
                    copy_seconds=sums.get((stage, where, "copy"), 0.0),
                    collective_seconds=sums.get((stage, where, "collective"), 0.0),
                )
                for stage, where in places
            ),
            events=self.events,
            joined_events=self.joined,
            notes=self.notes,
        )

    def to_perfetto(self, path: str | Path) -> Path:
        """Writes the timeline as a trace for ui.perfetto.dev and chrome://tracing.

        Args:
            path: The file; it is compressed if the name ends in `.gz`.

        Returns:
            The path.
        """
        path = Path(path)
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": list(self._trace_events())})
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text, encoding="utf-8")
        return path

    def _trace_events(self) -> Iterator[dict[str, Any]]:
        places = {device.where: number for number, device in enumerate(self.devices, start=1)}
        for where, number in places.items():
            yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": where}}
        for event in self.events:
            number = places.setdefault(event.where, len(places) + 1)
            args = {"stage": event.stage, "source": str(event.source)} if event.stage or event.source else {}
            args |= {"program": event.program} if event.program else {}
            yield {
                "ph": "X",
                "pid": number,
                "tid": 1,
                "name": event.name,
                "cat": event.kind,
                "ts": event.start_seconds * 1e6,
                "dur": event.seconds * 1e6,
                "args": {key: value for key, value in args.items() if value not in (None, "None")},
            }
