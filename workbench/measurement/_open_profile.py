"""Opens profiles recorded elsewhere, reads them in one pass, and matches their events to HLO instructions."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench._jax_compat.hlo import hlo_text_of_proto
from workbench._types import Argument
from workbench.cost import accuracy_text, classify_operation, predict_operation, seconds_of_collective
from workbench.errors import InspectionError, ProfileError
from workbench.inspection import Inspected, inspect_module
from workbench.measurement._device_events import COMMAND_BUFFERS
from workbench.measurement._join import find_instruction
from workbench.measurement._measure import COMMAND_BUFFER_NOTE
from workbench.measurement._operation_facts import (
    COLLECTIVES,
    category_of,
    dtype_of,
    dtype_of_text,
    fact_of,
    instructions_of,
    kind_of,
    module_name,
    natural_order,
    source_of,
)
from workbench.measurement._profile_reader import MeasuredSum, ProfileReader
from workbench.measurement._profile_tree import measured_tree, tree_of_names
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import InstructionRecord, ModuleRecord
from workbench.records.hardware import ChipRecord
from workbench.records.profile import (
    ProfiledDeviceRecord,
    ProfiledMemoryRecord,
    ProfiledOperationRecord,
    ProfiledProgramRecord,
    ProfileRecord,
    UnjoinedRecord,
)
from workbench.records.run import EventRecord
from workbench.render.units import count_text, share_text

_TRACES = ("*.trace.json.gz", "*.trace.json", "trace.json.gz", "trace.json")
_GROUPS = re.compile(r"replica_groups=(?:\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|\{\{[\d,{}]*\}\})")
_MOST_HLO_BYTES = 32 * 2**20
_MOST_LISTED = 20  # maximum number of programs listed in an error
_MOST_TEXT = 1000  # maximum number of characters of one instruction


def open_profile(path: str | Path, program: object = None, *, max_events: int = 20_000) -> ProfileRecord:
    """Opens a recorded profile, with the time of every operation, device, program and line.

    Reads profiles from `jax.profiler` and XProf, with any number of hosts, and the HLO that they contain. Files are
    streamed, so memory grows with the number of distinct operations and with `max_events`, not with the file size.

    Args:
        path: A TensorBoard or XProf log directory (its newest recording is read), a `*.xplane.pb`, or a
            `trace.json.gz`.
        program: A name that selects one program in the profile: one of `profile.programs`, or a unique module name.
            Alternatively, a `Traced`, a `ProgramRecord` or a `ModuleRecord` of the same program in this process; its
            HLO is used if the profile has no HLO of that name.
        max_events: Maximum number of events in the timeline, divided evenly among the devices; sums always count all
            events.

    Returns:
        The profile. `joined` is the share of events that match an instruction of the HLO, `unjoined` names all other
        events, and `notes` lists missing data. Only `predicted_seconds` is a prediction; all other values are measured.

    Raises:
        ProfileError: if there is no profile, or if the profile is unreadable, has no device events, or has no unique
            program with that name.

    Example:
        >>> import jax, tempfile
        >>> from workbench.measurement import open_profile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with jax.profiler.trace(directory):
        ...         _ = jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))).block_until_ready()
        ...     profile = open_profile(directory)
        >>> profile.devices[0].where, profile.joined
        ('cpu:0', 1.0)
    """
    if not isinstance(path, str | os.PathLike):
        msg = (
            f"`open_profile` received an object of type {type(path).__name__}, which is not a path. "
            "`open_profile` opens a recorded profile: pass the directory that `jax.profiler.start_trace` received, or "
            "use `wb.measure(fn)(*args)` to record a profile of a function."
        )
        raise ProfileError(msg)
    files = _files(Path(path))
    only = program if isinstance(program, str) else None
    reader = ProfileReader(max_events, [] if only else _given_modules(program), only)
    for host, file in enumerate(files):
        reader.read(file, host if len(files) > 1 else None)
    if only is not None:
        _require_one_program(reader, only, Path(path).name)
    return _Recorder(reader).record(Path(path).name, files)


def _require_one_program(reader: ProfileReader, query: str, name: str) -> None:
    seconds = Counter(reader.left_out)
    programs: set[str] = set()
    for (program, _), total in reader.sums.items():
        seconds[program] += sum(total.seconds.values())  # pyright: ignore[reportArgumentType] -- a Counter of floats
        programs.add(program)
    if len(programs) == 1 or not seconds:
        return
    listed = [program for program, _ in seconds.most_common() if program in programs or not programs]
    table = ", ".join(f"{program!r} ({seconds[program]:.3g} s)" for program in listed[:_MOST_LISTED])
    more = f", and {len(listed) - _MOST_LISTED} more" if len(listed) > _MOST_LISTED else ""
    fact = (
        f"{len(programs)} programs of this profile have this name" if programs else "none of its programs has this name"
    )
    msg = (
        f"`open_profile` was given program={query!r} for `{name}`; {fact}: {table}{more}. A program is selected by its "
        "full name, or by a unique module name: pass one of these names, or omit `program` to read all programs."
    )
    raise ProfileError(msg)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        msg = (
            f"`open_profile` was given `{path}`, which does not exist. `open_profile` opens a log directory, a "
            "`*.xplane.pb` or a `*.trace.json.gz`: pass the same path as to `jax.profiler.start_trace`."
        )
        raise ProfileError(msg)
    files = sorted(path.rglob("*.xplane.pb")) or sorted({file for name in _TRACES for file in path.rglob(name)})
    if not files:
        msg = (
            f"`open_profile` was given the directory `{path}`, which contains no `*.xplane.pb` and no "
            "`*.trace.json.gz`. JAX writes them below `plugins/profile/<date>/` when `jax.profiler.stop_trace()` is "
            "called: stop the trace, then pass the same directory as to `start_trace`."
        )
        raise ProfileError(msg)
    newest = max(files, key=lambda file: (file.stat().st_mtime, file.parent.name)).parent
    return [file for file in files if file.parent == newest]


def _given_modules(program: Argument) -> list[ModuleRecord]:
    if program is None:
        return []
    if isinstance(program, Inspected):
        program = program.inspect()
    module = program if isinstance(program, ModuleRecord) else getattr(program, "module", None)
    if not isinstance(module, ModuleRecord):
        msg = (
            f"`open_profile` was given program={type(program).__name__}, which has no compiled module. Seconds are "
            "matched to HLO instructions: pass `wb.trace(fn)(*args)` or the result of its `inspect()`, or omit "
            "`program`."
        )
        raise ProfileError(msg)
    return [module]


class _Recorder:
    """Makes the record of the profile."""

    def __init__(self, reader: ProfileReader) -> None:
        self._read = reader

    def record(self, name: str, files: Sequence[Path]) -> ProfileRecord:
        """The profile data, matched to HLO."""
        if not self._read.sums and not self._read.unjoined:
            msg = (
                f"`open_profile` was given `{name}`, which has no device events (only planes of hosts). "
                f"{' '.join(self._read.notes)} Seconds are read from planes of devices: record with the device tracer "
                "on (the default of `jax.profiler.trace`), and block until the results are ready before the trace ends."
            )
            raise ProfileError(msg)
        chip = next((device.chip for device in self._read.devices.values() if device.chip), None)
        modules, programs = self._modules()
        self._take_from_containers(modules)
        operations = tuple(
            sorted(
                (self._operation(key, total, modules.get(key[0]), chip) for key, total in self._read.sums.items()),
                key=lambda operation: -operation.seconds,
            )
        )
        trees = {program.name: self._tree(program.name, modules, operations) for program in programs}
        return ProfileRecord(
            name=name,
            files=tuple(str(file) for file in files),
            hosts=tuple(dict.fromkeys(self._read.hosts)),
            devices=tuple(self._device_records(operations)),
            programs=programs,
            operations=operations,
            events=self._time_line(operations),
            unjoined=self._unjoined_records(operations),
            **self._shares(operations),
            chip=chip,
            error_bar=accuracy_text(chip) if chip else "",
            memory=self._memory_records(),
            trees=trees,
            notes=tuple(dict.fromkeys([*self._read.notes, *self._final_notes(operations)])),
        )

    def _take_from_containers(self, modules: Mapping[str, ModuleRecord]) -> None:
        """Subtracts inner operations from the loops, calls and branches whose CPU events enclose them."""
        for program, module in modules.items():
            inside: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
            for instruction in module.instructions:
                total = self._read.sums.get((program, instruction.name))
                for where, seconds in total.seconds.items() if total else ():
                    inside[instruction.computation][where] += seconds
            shares = {}
            for instruction in module.instructions:
                total = self._read.sums.get((program, instruction.name))
                if total is not None and not total.nested and instruction.opcode in ("while", "conditional", "call"):
                    shares[instruction.name] = {
                        where: max(0.0, seconds - sum(inside[callee][where] for callee in instruction.calls))
                        for where, seconds in total.seconds.items()
                    }
            for name, seconds in shares.items():
                self._read.sums[program, name].seconds.update(seconds)

    def _modules(self) -> tuple[dict[str, ModuleRecord], tuple[ProfiledProgramRecord, ...]]:
        seconds: Counter[str] = Counter()
        for (program, _), total in self._read.sums.items():
            seconds[program] += sum(total.seconds.values())  # pyright: ignore[reportArgumentType]
        modules: dict[str, ModuleRecord] = {}
        records = []
        for program, spent in seconds.most_common():
            module, hlo, notes = self._module(program)
            if module is not None:
                modules[program] = module
            self._read.name_graphs(program, module)
            records.append(
                ProfiledProgramRecord(
                    name=program,
                    module=module_name(program),
                    seconds=float(spent),
                    operations=sum(owner == program for owner, _ in self._read.sums),
                    runs=self._read.runs.get(program),
                    hlo=hlo,  # pyright: ignore[reportArgumentType] -- one of the literals
                    flops=None if module is None else module.flops,
                    elementwise_flops=None if module is None else module.elementwise_flops,
                    peak_bytes=None if module is None else max((b for _, b in module.memory.timeline), default=None),
                    notes=notes,
                )
            )
        return modules, tuple(records)

    def _module(self, program: str) -> tuple[ModuleRecord | None, str, tuple[str, ...]]:
        module = self._read.given.get(module_name(program))
        proto = self._read.protos.get(program) or next(
            (data for name, data in self._read.protos.items() if module_name(name) == program), None
        )
        if proto is None:
            return module, "given" if module else "missing", ()
        if len(proto) > _MOST_HLO_BYTES:
            return module, "given" if module else "unreadable", (f"its HLO of {len(proto)} bytes is too large to read",)
        text = hlo_text_of_proto(proto)
        if text is None:
            return module, "given" if module else "unreadable", ("this jaxlib cannot print its HLO",)
        try:
            return inspect_module(self._with_groups(program, text)), "carried", ()
        except InspectionError as error:
            return module, "given" if module else "unreadable", (str(error)[:300],)

    def _with_groups(self, program: str, text: str) -> str:
        """Adds the collective groups, which a profile stores only in event names, to the HLO."""
        for (owner, name), total in self._read.sums.items():
            if owner != program or not COLLECTIVES.match(name):
                continue
            groups = _GROUPS.search(str(total.facts.get("long_name", "")))
            if groups:
                line = re.compile(rf"(%?{re.escape(name)} = [^\n]*?)replica_groups=\{{\}}")
                text = line.sub(lambda match, group=groups[0]: match[1] + group, text, count=1)
        return text

    def _operation(
        self, key: tuple[str, str], total: MeasuredSum, module: ModuleRecord | None, chip: ChipRecord | None
    ) -> ProfiledOperationRecord:
        program, name = key
        instruction = find_instruction(instructions_of(module), name) if module else None
        facts = total.facts
        category = total.category or (category_of(instruction, module) if instruction and module else "")
        flops = fact_of(facts, "flops", "model_flops")
        accessed = fact_of(facts, "bytes_accessed", "raw_bytes_accessed")
        if instruction is not None:
            flops, accessed = instruction.flops, float(instruction.accessed_bytes)
            if instruction.opcode == "custom-call" and not flops:  # a kernel whose work is not in the HLO
                flops = None
        kind = kind_of(name, category, instruction)
        if kind == "copy":  # it overlaps with other operations, so its seconds do not measure its rate
            accessed = None
        shapes = f"{facts.get('long_name', '')} {facts.get('shape_with_layout', '')}"
        dtype = dtype_of(instruction, module) if instruction and module else dtype_of_text(shapes)
        seconds, bound = None, ""
        if chip is not None and kind == "compute" and flops is not None and accessed is not None:
            class_of = classify_operation(
                "convolution" if "conv" in name and flops else category,
                instruction.opcode if instruction else "",
                flops,
            )
            seconds, bound = predict_operation(flops, accessed, dtype, chip, kind=class_of)
        elif chip is not None and kind == "collective" and module is not None:
            collective = next((c for c in module.collectives if c.name == name), None)
            if collective is not None and collective.group_size > 1:
                seconds = seconds_of_collective(collective, chip)
        return ProfiledOperationRecord(
            name=name,
            program=program,
            category=category,
            executions=total.executions,
            seconds=sum(total.seconds.values()),
            seconds_by_device=dict(total.seconds),
            kind=kind,  # pyright: ignore[reportArgumentType] -- one of the literals
            opcode=instruction.opcode if instruction else "",
            events=total.events,
            flops=flops,
            accessed_bytes=accessed,
            dtype=dtype,
            op_name=(instruction.op_name if instruction else "") or str(facts.get("tf_op", "")).rstrip(":"),
            source=(instruction.source if instruction else None) or source_of(str(facts.get("source", ""))),
            stage=instruction.stage if instruction else None,
            predicted_seconds=seconds,
            bound=bound,  # pyright: ignore[reportArgumentType] -- one of the literals
            joined=instruction is not None,
            elementwise_flops=None if instruction is None else instruction.elementwise_flops,
            hlo=str(facts.get("long_name") or "")[:_MOST_TEXT] or _text_of(instruction, module),
        )

    def _tree(
        self, program: str, modules: Mapping[str, ModuleRecord], operations: Sequence[ProfiledOperationRecord]
    ) -> CallTreeRecord:
        members = [operation for operation in operations if operation.program == program]
        module = modules.get(program)
        tree = module.call_tree if module is not None else None
        return tree_of_names(program, members) if tree is None else measured_tree(tree, members, module)

    def _device_records(self, operations: Sequence[ProfiledOperationRecord]) -> Iterator[ProfiledDeviceRecord]:
        sums: defaultdict[tuple[str, str], float] = defaultdict(float)
        for operation in operations:
            for where, seconds in operation.seconds_by_device.items():
                sums[where, operation.kind] += seconds
        for where, device in sorted(self._read.devices.items(), key=lambda item: natural_order(item[0])):
            if device.events or device.other or device.overlapped:
                yield ProfiledDeviceRecord(
                    where=where,
                    platform=device.platform,
                    kind=device.kind,
                    events=device.events,
                    span_seconds=max(0.0, device.last - device.first) if device.last else 0.0,
                    compute_seconds=sums[where, "compute"],
                    collective_seconds=sums[where, "collective"],
                    copy_seconds=sums[where, "copy"],
                    other_seconds=device.other,
                    wait_seconds=device.wait,
                    overlapped_seconds=device.overlapped,
                    peak_flops_per_second=device.peak_flops,
                    peak_bytes_per_second=device.peak_bytes,
                )

    @property
    def _events_per_device(self) -> int:
        return max(1, self._read.max_events // max(1, len(self._read.devices)))

    def _time_line(self, operations: Sequence[ProfiledOperationRecord]) -> tuple[EventRecord, ...]:
        by_name = {(operation.program, operation.name): operation for operation in operations}
        events: list[EventRecord] = []
        for device in self._read.devices.values():
            events += sorted(device.kept, key=lambda event: event.start_seconds)[: self._events_per_device]
        events.sort(key=lambda event: event.start_seconds)
        start = events[0].start_seconds if events else 0.0
        described = []
        for event in events:
            name = self._read.graph_names.get((event.program or "", event.name), event.name)
            if not name:  # a kernel of a command buffer without an instruction
                described.append(
                    event.replace(start_seconds=event.start_seconds - start, name=COMMAND_BUFFERS, kind="other")
                )
                continue
            event = event.replace(name=name)
            operation = by_name.get((event.program or "", event.name))
            changes: dict[str, Any] = {"start_seconds": event.start_seconds - start}
            if operation is not None and event.kind in ("compute", "collective"):
                changes |= {"stage": operation.stage, "source": operation.source, "kind": operation.kind}
            described.append(event.replace(**changes))
        return tuple(described)

    def _unjoined_records(self, operations: Sequence[ProfiledOperationRecord]) -> tuple[UnjoinedRecord, ...]:
        records = [
            UnjoinedRecord(
                kind=kind,
                events=count,
                seconds=seconds,
                overlaps=overlaps,
                names={name: float(spent) for name, spent in names.most_common(5)},
            )
            for (kind, overlaps), (count, seconds, names) in self._read.unjoined.items()
        ]
        lost: defaultdict[str, list[ProfiledOperationRecord]] = defaultdict(list)
        for operation in operations:
            if not operation.joined:
                lost[operation.program].append(operation)
        for program, members in lost.items():
            records.append(
                UnjoinedRecord(
                    kind=f"operations of {program or 'no program'} without an instruction in HLO",
                    events=sum(operation.events for operation in members),
                    seconds=sum(operation.seconds for operation in members),
                    names={operation.name: operation.seconds for operation in members[:5]},
                )
            )
        return tuple(sorted(records, key=lambda record: -record.seconds))

    def _shares(self, operations: Sequence[ProfiledOperationRecord]) -> dict[str, float]:
        apart = [(count, seconds) for (_, overlaps), (count, seconds, _) in self._read.unjoined.items() if not overlaps]
        events = sum(operation.events for operation in operations) + sum(count for count, _ in apart)
        spent = sum(operation.seconds for operation in operations) + sum(seconds for _, seconds in apart)
        joined = [operation for operation in operations if operation.joined]
        return {
            "joined": sum(operation.events for operation in joined) / events if events else 0.0,
            "joined_seconds": sum(operation.seconds for operation in joined) / spent if spent else 0.0,
        }

    def _memory_records(self) -> tuple[ProfiledMemoryRecord, ...]:
        records = []
        for (host, allocator), line in self._read.memory.items():
            step = max(1, len(line.points) // 1000)
            records.append(
                ProfiledMemoryRecord(
                    where=host or "this host",
                    allocator=allocator,
                    peak_bytes=self._read.peaks[host, allocator],
                    events=line.count,
                    timeline=tuple(line.points[::step]),
                )
            )
        return tuple(sorted(records, key=lambda record: -record.peak_bytes))

    def _note_of_choice(self, operations: Sequence[ProfiledOperationRecord]) -> str:
        inside, outside = sum(operation.seconds for operation in operations), sum(self._read.left_out.values())
        share = inside / (inside + outside) if inside + outside else 0.0
        return (
            f"Only {self._read.only} is read: {share_text(share)} of the seconds of all programs. The following are "
            f"ignored: {len(self._read.left_out)} other programs (their seconds between runs of this program count as "
            "the devices' other time), asynchronous operations, waiting, and events without a program."
        )

    def _final_notes(self, operations: Sequence[ProfiledOperationRecord]) -> Iterator[str]:
        if self._read.only is not None:
            yield self._note_of_choice(operations)
        devices = self._read.devices.values()
        if any(device.events > self._events_per_device for device in devices):
            total = sum(device.events for device in devices)
            shown = sum(min(len(device.kept), self._events_per_device) for device in devices)
            yield (
                f"The timeline contains {count_text(shown)} of {count_text(total)} events: the first "
                f"{count_text(self._events_per_device)} of each device. Sums count every event."
            )
        if ordered := sum(bool(name) for name in self._read.graph_names.values()):
            yield (
                f"The instructions of {count_text(ordered)} kernels in command buffers (CUDA graphs) are inferred from "
                "their order."
            )
        if any(kind == COMMAND_BUFFERS for kind, _ in self._read.unjoined):
            yield COMMAND_BUFFER_NOTE
        elif not operations and any(device.platform == "gpu" for device in self._read.devices.values()):
            yield COMMAND_BUFFER_NOTE
        if any(device.platform == "cpu" for device in self._read.devices.values()):
            yield "Devices simulated on one CPU share its cores, so their times do not predict an accelerator's times."
        for program in {operation.program for operation in operations if not operation.joined}:
            if not any(operation.joined for operation in operations if operation.program == program):
                yield (
                    f"The profile has no HLO for {program or 'unnamed programs'}, so the FLOPs and source lines of its "
                    "operations come from the profile. Pass `program=` to match the profile to a program in this "
                    "process."
                )


def _text_of(instruction: InstructionRecord | None, module: ModuleRecord | None) -> str:
    """Formats an instruction as a line of HLO: result, opcode, and operands with shapes."""
    if instruction is None or module is None:
        return ""
    shapes = {i.name: i.shape for i in module.instructions} if instruction.operands else {}
    operands = ", ".join(f"{shapes.get(name, '')} %{name}".strip() for name in instruction.operands)
    return f"%{instruction.name} = {instruction.shape} {instruction.opcode}({operands})"[:_MOST_TEXT]
