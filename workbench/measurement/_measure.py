"""Measures the seconds of every stage of a compiled program."""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from workbench._open_types import Foreign
from workbench._types import Argument, Device
from workbench.cost import seconds_at_peak
from workbench.errors import EngineError, MeasureError
from workbench.inspection import measured_tree
from workbench.measurement._clients import client_runs
from workbench.measurement._join import JoinedEvent, JoinedProfile, event_records, join_profile
from workbench.measurement._memory import device_label, live_bytes, read_memory
from workbench.measurement._profile import capture_profile
from workbench.mesh import is_here
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import ModuleRecord
from workbench.records.hardware import ChipRecord, MeshRecord
from workbench.records.run import ClientRunRecord, EventRecord, RunRecord, StageRunRecord
from workbench.render.units import count_text

_JOINED_WELL = 0.99
COMMAND_BUFFER_NOTE = (
    "Kernels inside a command buffer (a CUDA graph) do not name their instructions, and their order does not identify "
    "these instructions here. To name every kernel, set XLA_FLAGS=--xla_gpu_enable_command_buffer= before JAX starts, "
    "and measure again."
)
UNATTRIBUTED = ""  # the stage for work without a known stage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options of `measure_compiled`.

    Attributes:
        mesh: The mesh of the program; it determines which devices take part in a collective and which clients run on a
            device.
        client_stages: Paths of client stages whose clients run one after another on each device.
        placement: Name of the placement of these clients; optional if the mesh has only one placement.
        clients: Number of clients, if the program has no mesh and therefore runs on one device.
        chip: Chip with published peaks, for utilization.
        dtype: dtype whose peak is used; if the chip has no peak for this dtype, the nearest dtype is used.
        max_events: Maximum number of spans in the timeline; each device's longest spans are kept. Sums always include
            all spans.
    """

    mesh: MeshRecord | None = None
    client_stages: Sequence[str] = ()
    placement: str | None = None
    clients: int | None = None
    chip: ChipRecord | None = None
    dtype: str = "float32"
    max_events: int = 1_000_000


@dataclass(slots=True)
class _Rounds:
    """Wall times of the calls, without and with the profiler."""

    plain: list[float] = field(default_factory=list)
    profiled: list[float] = field(default_factory=list)


def measure_compiled(
    compiled: object,
    args: Sequence[Any],
    module: ModuleRecord,
    *,
    rounds: int = 3,
    warmup: int = 1,
    options: ReadingOptions | None = None,
) -> RunRecord:
    """Calls a compiled program and returns the seconds of every stage on every device.

    Costs `warmup + 2 * rounds` calls: each profiled call is paired with an unprofiled call, from which the overhead is
    computed. Donated arguments are copied before each call.

    Args:
        compiled: The result of `jax.jit(fn).lower(...).compile()`.
        args: Arguments of the program.
        module: The record of this program, from `inspect_module`.
        rounds: Number of calls to measure.
        warmup: Number of calls before the measurement.
        options: The mesh, the probed stages, the chip.

    Returns:
        The measured seconds, per call and device; `seconds` is the wall time of the profiled calls. On a CPU,
        `wait_seconds` includes the time spent waiting for other devices; `collective_seconds` never includes it.

    Raises:
        MeasureError: if `rounds` or `warmup` is out of range.
        EngineError: if the profiler is busy, or memory ran out.

    References:
        See `join_profile` for the classification of events, and `client_runs` for clients.
    """
    options = options or ReadingOptions()
    if rounds < 1 or warmup < 0:
        msg = (
            f"`measure_compiled` was given rounds={rounds} and warmup={warmup}, but a measurement needs at least one "
            "call. Pass rounds >= 1 and warmup >= 0."
        )
        raise MeasureError(msg)
    devices = _devices_of(compiled)
    call = caller_of(compiled, args, module)
    started = time.perf_counter()
    for _ in range(warmup):
        call([])
    warmup_seconds = time.perf_counter() - started
    before = _fullest(devices)
    walls = _Rounds()
    results = None
    for _ in range(rounds):
        results = call(walls.plain)
    del results  # so that profiled and unprofiled calls start with the same memory
    profile = capture_profile(lambda: [call(walls.profiled) for _ in range(rounds)][-1])
    joined = join_profile(profile, module, mesh=options.mesh)
    labels = {device.id: device_label(device) for device in devices}
    spans = list(event_records(joined.leaves, labels))
    clients, client_notes = _clients(joined, module, labels, rounds, options)
    return RunRecord(
        name=module.name,
        engine=f"{devices[0].platform} x {len(devices)}",
        seconds=sum(walls.profiled),
        rounds=rounds,
        warmup_seconds=warmup_seconds,
        round_seconds=tuple(walls.profiled),
        overhead=statistics.median(walls.profiled) / statistics.median(walls.plain),
        stages=_stage_runs(joined.leaves, module, labels, rounds, options),
        clients=clients,
        events=_kept(spans, options.max_events),
        call_tree=_measured_tree(module, joined, labels, rounds),
        joined_events=joined.joined,
        attributed_seconds=joined.attributed,
        memory_before_bytes=before,
        memory_peak_bytes=_peak(devices, before, module),
        memory_after_bytes=_fullest(devices),
        notes=(*joined.notes, *client_notes, *_notes(walls, len(spans), module, devices, options, joined)),
        results=profile.result,
    )


def _kept(spans: Sequence[EventRecord], most: int) -> tuple[EventRecord, ...]:
    """Keeps about `most` spans, in time order: an equal number of each device's longest spans."""
    if len(spans) > most:
        by_device: defaultdict[str, list[EventRecord]] = defaultdict(list)
        for span in spans:
            by_device[span.where].append(span)
        share = most / len(spans)
        spans = [
            span
            for device_spans in by_device.values()
            for span in sorted(device_spans, key=lambda span: -span.seconds)[: max(1, int(share * len(device_spans)))]
        ]
    return tuple(sorted(spans, key=lambda span: span.start_seconds))


def _measured_tree(
    module: ModuleRecord, joined: JoinedProfile, labels: Mapping[int, str], rounds: int
) -> CallTreeRecord | None:
    """Adds each device's seconds in one call, including waiting, to the call tree."""
    if module.call_tree is None:
        return None
    seconds: dict[str, dict[str, float]] = {}
    for leaf in joined.leaves:
        device = labels.get(leaf.event.device, str(leaf.event.device))
        of_device = seconds.setdefault(leaf.event.name, {})
        of_device[device] = of_device.get(device, 0.0) + leaf.event.seconds / rounds
    return measured_tree(module.call_tree, seconds)


def caller_of(
    compiled: Foreign, args: Sequence[Any], module: ModuleRecord, kwargs: Mapping[str, Any] | None = None
) -> Callable[[list[float]], Any]:
    """Makes a function that calls a compiled program, waits, and appends wall seconds to a list.

    Arguments are moved once to the program's input shardings; donated arguments are copied before each call.
    """
    has_kwargs = bool(kwargs)
    leaves, tree = jax.tree.flatten((tuple(args), dict(kwargs or {})))
    infos, target = (pair if has_kwargs else pair[0] for pair in (compiled.args_info, compiled.input_shardings))
    donated = [info.donated for info in jax.tree.leaves(infos)]
    shardings = jax.tree.leaves(target, is_leaf=lambda leaf: leaf is None)
    if len(shardings) == len(leaves):
        leaves = [_placed(leaf, sharding) for leaf, sharding in zip(leaves, shardings, strict=True)]

    def call(walls: list[float]) -> object:
        try:
            return timed(walls)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise _out_of_memory(module, error) from error

    def timed(walls: list[float]) -> object:
        fresh = [jnp.copy(leaf) if is_donated else leaf for leaf, is_donated in zip(leaves, donated, strict=True)]
        inputs = jax.block_until_ready(tree.unflatten(fresh))
        started = time.perf_counter()
        result = jax.block_until_ready(compiled(*inputs[0], **inputs[1]))
        walls.append(time.perf_counter() - started)
        return result

    return call


def _out_of_memory(module: ModuleRecord, error: Exception) -> EngineError:
    name, planned = module.name.removeprefix("jit_"), module.memory.peak_bytes
    peak = "a peak that it did not report" if planned is None else f"a peak of {planned / 2**20:,.0f} MiB per device"
    message = (
        f"`{name}` ran out of memory while it was measured: {str(error)[:300]} The compiler planned {peak}; arrays "
        "of other variables and copies of donated arguments need additional memory. Use a smaller batch or "
        "`chunk_size`, or delete unused arrays: `with wb.watch_compilations():` lists live arrays, `inspect` shows the "
        "largest buffers, and `search` finds the chips with enough memory."
    )
    return EngineError(message, stage=name)


def _placed(leaf: Argument, sharding: Sharding | None) -> Argument:
    """Moves the argument to the program's input sharding beforehand, so that this copy is not measured."""
    if sharding is None or not isinstance(leaf, np.ndarray | jax.Array):
        return leaf
    if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    return jax.device_put(leaf, sharding)


def _devices_of(compiled: Foreign) -> list[Device]:
    try:
        shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    except ValueError:  # JAX cannot list the results of a program that takes refs
        shardings = []
    devices = {device.id: device for sharding in shardings for device in sharding.device_set}
    return [devices[key] for key in sorted(devices) if is_here(devices[key])] or jax.local_devices()[:1]


def _fullest(devices: Iterable[Any], *, peak: bool = False) -> int | None:
    live = live_bytes()
    figures = [memory.peak if peak else memory.in_use for memory in (read_memory(device, live) for device in devices)]
    readings = [figure for figure in figures if figure is not None]
    return max(readings) if readings else None


def _peak(devices: Sequence[Any], before: int | None, module: ModuleRecord) -> int | None:
    """The peak that the backend reports; on TPUs, whose peak omits program memory, at least the planned peak."""
    reported = _fullest(devices, peak=True)
    planned = module.memory.temporary_bytes
    if devices[0].platform != "tpu" or before is None or planned is None:
        return reported
    return max(reported or 0, before + planned + (module.memory.output_bytes or 0) - (module.memory.alias_bytes or 0))


def _stage_runs(
    leaves: Iterable[JoinedEvent], module: ModuleRecord, labels: Mapping[int, str], rounds: int, options: ReadingOptions
) -> tuple[StageRunRecord, ...]:
    """Sums seconds and work by stage; fused instructions are divided among their stages."""
    collectives = {collective.name: collective.by_stage() for collective in module.collectives if collective.stages}
    sums: defaultdict[tuple[str, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    at_peak: dict[str, float | None] = {}  # seconds of one execution of an instruction
    chip = options.chip
    for leaf in leaves:
        instruction, device = leaf.instruction, leaf.event.device
        if instruction is not None and instruction.name in collectives:
            shares = collectives[instruction.name]
        else:
            shares = (
                {None: 1.0}
                if instruction is None
                else {part.stage: share for part, share in instruction.time_by_stage()}
            )
        for stage, share in shares.items():
            if not share:
                continue
            total = sums[stage or UNATTRIBUTED, device]
            total[leaf.kind] += share * leaf.work_seconds / rounds
            total["wait"] += share * leaf.wait_seconds / rounds
        executions = leaf.execution_share / rounds
        if instruction is not None and instruction.name not in at_peak:
            once = [instruction.replace(executions=1.0)]
            at_peak[instruction.name] = None if chip is None else seconds_at_peak(once, chip, options.dtype)
        for part in instruction.by_stage() if instruction is not None else ():
            total = sums[part.stage or UNATTRIBUTED, device]
            if part.flops and instruction is not None and instruction.flops:
                seconds = at_peak[instruction.name]
                total["at peak"] += (
                    math.nan if seconds is None else seconds * part.flops / instruction.flops * executions
                )
            total["flops"] += part.flops * executions
            total["elementwise"] += part.elementwise_flops * executions
            if leaf.kind == "compute":
                total["bytes"] += part.accessed_bytes * executions
    records = []
    for (stage, device), total in sorted(sums.items()):
        busy = total["compute"]
        flop_rate, byte_rate = (total["flops"] / busy, total["bytes"] / busy) if busy else (None, None)
        records.append(
            StageRunRecord(
                stage=stage,
                where=labels.get(device, str(device)),
                compute_seconds=busy,
                collective_seconds=total["collective"],
                wait_seconds=total["wait"],
                calls=rounds,
                flops_per_second=flop_rate,
                elementwise_flops_per_second=total["elementwise"] / busy if busy else None,
                bytes_per_second=byte_rate,
                peak_flops_share=total["at peak"] / busy if chip and busy and total["at peak"] >= 0 else None,
                peak_bandwidth_share=byte_rate / (chip.hbm_bytes_per_second / chip.devices_per_chip)
                if byte_rate is not None and chip
                else None,
            )
        )
    return tuple(records)


def _clients(
    joined: JoinedProfile, module: ModuleRecord, labels: Mapping[int, str], rounds: int, options: ReadingOptions
) -> tuple[tuple[ClientRunRecord, ...], list[str]]:
    if not options.client_stages:
        return (), []
    ranges = [] if options.mesh is None else list(options.mesh.clients)
    if options.placement is not None:
        ranges = [range_ for range_ in ranges if range_.placement == options.placement]
    slots = {range_.device_id: [*range(range_.start, range_.stop), *[None] * range_.padding] for range_ in ranges}
    if not slots and options.clients is not None:
        slots = {device: list(range(options.clients)) for device in labels}
    all_runs: list[ClientRunRecord] = []
    notes = []
    for stage in options.client_stages:
        runs = client_runs(joined, module, slots, stage=stage, labels=labels, rounds=rounds)
        all_runs += runs
        if not runs:
            notes.append(
                f"Stage {stage}: the devices report no loop with one iteration per client. If a client has "
                "few operations, the compiler puts the whole loop into one kernel."
            )
    return tuple(all_runs), notes


def _notes(
    walls: _Rounds,
    spans: int,
    module: ModuleRecord,
    devices: Sequence[Any],
    options: ReadingOptions,
    joined: JoinedProfile,
) -> list[str]:
    plain, profiled = statistics.median(walls.plain), statistics.median(walls.profiled)
    notes = [
        f"Profiling: a call takes {1e3 * profiled:.3g} ms with the profiler and {1e3 * plain:.3g} ms without it "
        f"(medians of {len(walls.plain)})."
    ]
    if spans > options.max_events:
        limit, total = count_text(options.max_events), count_text(spans)
        notes.append(
            f"The timeline contains the longest {limit} of {total} spans, with an equal number for each device."
        )
    if devices[0].platform == "cpu":
        notes.append(
            "Devices simulated on one CPU share its cores, so their times do not predict an accelerator's times."
        )
    else:
        if devices[0].platform == "gpu" and joined.joined < _JOINED_WELL:
            notes.append(COMMAND_BUFFER_NOTE)
    if devices[0].memory_stats() is None:
        planned = module.memory.peak_bytes
        peak = "" if planned is None else f"; the compiler planned {planned / 2**20:.3g} MiB at the peak"
        notes.append(
            "This backend does not measure memory while a program runs: the values before and after are live arrays on "
            f"the fullest device{peak}."
        )
    return notes
