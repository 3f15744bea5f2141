"""Predicts costs from a plan, a compiled module and a chip, and lists all assumptions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from workbench._open_types import Examples
from workbench.cost._accuracy import UNKNOWN, accuracy_text, error_bar_of_module
from workbench.cost._clients import client_costs
from workbench.cost._collectives import seconds_of_collective, why_unpriced
from workbench.cost._operations import nearest_dtype, product_peak
from workbench.cost._rates import family_of, rates_of
from workbench.cost._timeline import InstructionTime, is_compiled_elsewhere, time_module
from workbench.errors import InspectionError
from workbench.records.compiled import CollectiveRecord, CostRecord, ModuleRecord, StageCostRecord
from workbench.records.hardware import ChipRecord, MeshRecord
from workbench.records.program import PlanRecord, StageKind, StageRecord
from workbench.render.units import share_text

OUTSIDE = "outside"
UNNAMED = "unnamed"
_OPEN_LOOP = "the number of iterations of a loop is known only while it runs (the call tree counts one)"


def estimate_cost(
    module: ModuleRecord | None,
    plan: PlanRecord | None = None,
    *,
    chip: ChipRecord | None = None,
    mesh: MeshRecord | None = None,
    dtype: str = "bfloat16",
    examples_per_client: Examples | None = None,
) -> CostRecord:
    """Predicts the cost of a call per stage, mesh axis and client, and its time on a chip.

    FLOPs, bytes and collectives come from the compiled module and are per device. Without a module, they come from the
    plan, before any fusion, and are divided evenly among the mesh's devices. Each reduction is then priced as one
    all-reduce over the placement's mesh axes.

    Args:
        module: From `inspect_module`, or None.
        plan: The stages, or None for a program without stages.
        chip: The chip for which times are predicted; None omits the prediction.
        mesh: The mesh; needed to find each client's device and, without a module, to divide the work.
        dtype: The dtype whose peak FLOP/s is used for products of unknown dtype (in a plan, or in kernels from other
            compilers).
        examples_per_client: A pair `(counts, held)`: the true number of examples of every client, and the padded number
            in the arrays. A `mask` among the arguments also declares the padded number. The remaining examples are
            padding, and clients that run together wait for the largest.

    Returns:
        The prediction. Work outside all stages is assigned to a stage called "outside".

    Raises:
        InspectionError: if there is neither module nor plan, if the chip has no peak for `dtype`, or if
            `examples_per_client` does not match the plan.
    """
    if module is None and plan is None:
        raise InspectionError(
            "`estimate_cost` was given neither a module nor a plan, so there is nothing to price. A cost needs "
            "the stages of a program: pass the record of `inspect_module`, or a `PlanRecord`."
        )
    peak = peak_of(chip, dtype)
    devices = math.prod(mesh.shape) if mesh is not None else 1
    times = time_module(module, chip, dtype) if module is not None and chip is not None else {}
    if module is not None:
        stages = compiled_stages(module, plan, times)
    else:
        stages = list(planned_stages(plan.stages, plan, mesh)) if plan is not None else []
    costs = tuple(priced(stage, traffic, chip, peak) for stage, traffic in stages)
    clients, padding, lockstep, imbalance = client_costs(plan, mesh, examples_per_client)
    error_bar = f"{UNKNOWN}: not compiled"
    if module is not None:
        error_bar = UNKNOWN if chip is None else error_bar_of_module(module, chip, times)
    return CostRecord(
        error_bar=error_bar,
        stages=costs,
        clients=clients,
        chip=chip,
        seconds=_sum_or_none([stage.seconds for stage in costs]) if chip is not None else None,
        padding_waste=padding,
        lockstep_waste=lockstep,
        imbalance_waste=imbalance,
        assumptions=tuple(_assumptions(module, chip, dtype, devices)),
    )


def largest_dtype(plan: PlanRecord | None, chip: ChipRecord | None = None) -> str:
    """The dtype whose peak is used: the dtype of the largest float input, or the nearest dtype with a peak."""
    floats = [value for value in (plan.inputs if plan is not None else ()) if "float" in value.dtype]
    dtype = max(floats, key=lambda value: value.size_bytes).dtype if floats else "bfloat16"
    return dtype if chip is None else nearest_dtype(dtype, chip)


def peak_of(chip: ChipRecord | None, dtype: str) -> float | None:
    """Published peak FLOP/s of one device for products of `dtype`; None without a chip."""
    if chip is None:
        return None
    peak = product_peak(dtype, chip)
    if peak is None:
        names = ", ".join(f'"{name}"' for name in chip.peak_flops_per_second)
        message = (
            f"`estimate_cost` was given dtype={dtype!r} for chip {chip.name}, which has no published peak for this "
            f"dtype. Predicted seconds need this peak: use one of {names}, or pass a `ChipRecord` that has this peak."
        )
        raise InspectionError(message)
    return peak


Sent = list[tuple[CollectiveRecord, float]]  # a collective and the share that belongs to a stage


def compiled_stages(
    module: ModuleRecord, plan: PlanRecord | None, times: Mapping[str, InstructionTime] | None = None
) -> list[tuple[StageCostRecord, Sent]]:
    """Sums costs by the stage of every instruction, in plan order; unknown stages come last."""
    flops: dict[str, float | None] = {}
    accessed: dict[str, float | None] = {}
    elementwise: dict[str, float | None] = {}
    kinds: dict[str, StageKind | Literal[""]] = {}
    for part, executions in ((part, i.executions) for i in module.instructions for part in i.by_stage()):
        stage = part.stage or OUTSIDE
        if part.elementwise_flops:
            elementwise[stage] = _added(elementwise.get(stage, 0.0), part.elementwise_flops, executions)
        if part.flops or part.accessed_bytes:
            kinds.setdefault(stage, part.kind)
            flops[stage] = _added(flops.get(stage, 0.0), part.flops, executions)
            accessed[stage] = _added(accessed.get(stage, 0.0), part.accessed_bytes, executions)
    traffic: dict[str, Sent] = {}
    for collective in module.collectives:
        for stage, share in collective.by_stage().items():
            traffic.setdefault(stage or OUTSIDE, []).append((collective, share))
    records = {stage.path: stage for stage in (plan.walk() if plan else ())}
    seconds = _seconds_by_stage(module, times) if times else {}
    order = [
        *records,
        *sorted((flops.keys() | traffic.keys()) - records.keys(), key=lambda path: (path == OUTSIDE, path)),
    ]
    costs = [
        StageCostRecord(
            stage=path,
            kind=records[path].kind if path in records else kinds.get(path, ""),
            name=records[path].name if path in records else path,
            flops=flops.get(path, 0.0),
            elementwise_flops=elementwise.get(path, 0.0),
            accessed_bytes=accessed.get(path, 0.0),
            collective_bytes=bytes_by_axis(traffic.get(path, [])),
        )
        for path in order
    ]
    if times:
        costs = [seconds.get(cost.stage, _StageSeconds()).into(cost) for cost in costs]
    return [(cost, traffic.get(cost.stage, [])) for cost in costs]


@dataclass(slots=True)
class _StageSeconds:
    """Running sums of a stage's times; None if a part is unknown."""

    compute: float | None = 0.0
    memory: float | None = 0.0
    operations: float | None = 0.0
    hidden: float = 0.0
    unknown: dict[str, None] = field(default_factory=dict)

    def into(self, stage: StageCostRecord) -> StageCostRecord:
        """Returns a copy of the stage with these times."""
        return stage.replace(
            compute_seconds=self.compute,
            memory_seconds=self.memory,
            operation_seconds=self.operations,
            hidden_seconds=self.hidden,
            unknown_because=tuple(self.unknown),
        )


def _seconds_by_stage(module: ModuleRecord, times: Mapping[str, InstructionTime]) -> dict[str, _StageSeconds]:
    by_stage: dict[str, _StageSeconds] = {}
    for instruction in module.instructions:
        time = times.get(instruction.name)
        if time is None or time.is_collective:
            continue
        for part, share in instruction.time_by_stage():
            stage = by_stage.setdefault(part.stage or OUTSIDE, _StageSeconds())
            stage.compute = _added(stage.compute, time.compute and time.compute * share, instruction.executions)
            stage.memory = _added(stage.memory, time.memory * share, instruction.executions)
            stage.operations = _added(stage.operations, time.seconds and time.seconds * share, instruction.executions)
            if time.unknown:
                stage.unknown[time.unknown] = None
            if instruction.executions is None and time.seconds:
                stage.unknown[_OPEN_LOOP] = None
    for collective in module.collectives:
        time = times.get(collective.name)
        if time is None or time.seconds is None or time.alone is None:
            continue
        for path, share in collective.by_stage().items():
            stage = by_stage.setdefault(path or OUTSIDE, _StageSeconds())
            stage.hidden += (time.alone - time.seconds) * share * (collective.executions or 0.0)
    return by_stage


def bytes_by_axis(traffic: Sent) -> dict[str, float]:
    by_axis: dict[str, float] = {}
    for collective, share in traffic:
        axis = "+".join(collective.axes) or UNNAMED
        if collective.wire_bytes is None:
            continue
        by_axis[axis] = by_axis.get(axis, 0.0) + collective.wire_bytes * share * (collective.executions or 0.0)
    return by_axis


def planned_stages(
    stages: Sequence[StageRecord], plan: PlanRecord, mesh: MeshRecord | None, iterations: float = 1.0
) -> Iterator[tuple[StageCostRecord, Sent]]:
    """Costs of an uncompiled plan's stages, divided evenly among devices; loop bodies are priced once per iteration.

    A client stage or a branch is priced as a whole, including its inner stages.
    """
    devices = math.prod(mesh.shape) if mesh is not None else 1
    for stage in stages:
        is_loop = stage.kind == "loop"
        per_device = _fullest_share(stage, plan, mesh, devices) * iterations * stage.computations
        traffic = list(_planned_reduction(stage, mesh, plan, iterations))
        record = StageCostRecord(
            stage=stage.path,
            kind=stage.kind,
            name=stage.name,
            flops=0.0 if is_loop else _times(stage.flops_per_client, per_device),
            elementwise_flops=0.0 if is_loop else _times(stage.elementwise_flops_per_client, per_device),
            accessed_bytes=0.0 if is_loop else _times(stage.bytes_per_client, per_device),
            collective_bytes=bytes_by_axis(traffic),
        )
        yield record, traffic
        if is_loop:
            yield from planned_stages(stage.body, plan, mesh, iterations * (stage.trip_count or math.nan))


def _fullest_share(stage: StageRecord, plan: PlanRecord, mesh: MeshRecord | None, devices: int) -> float:
    """Number of calls of a stage on the device with the most clients; the other mesh axes divide each call evenly."""
    placement = next((candidate for candidate in plan.placements if candidate.name == stage.placement), None)
    if placement is None or mesh is None:
        return stage.clients / (devices if stage.clients >= devices else max(1, stage.clients))
    shards = math.prod(axis.size for axis in mesh.axes if axis.name in placement.mesh_axes)
    return (placement.slots_per_device or -(-stage.clients // shards)) / (devices // shards)


def _times(amount: float | None, factor: float) -> float | None:
    if not amount:
        return None if amount is None else 0.0
    return None if math.isnan(factor) else amount * factor


def _planned_reduction(
    stage: StageRecord, mesh: MeshRecord | None, plan: PlanRecord, iterations: float
) -> Iterator[tuple[CollectiveRecord, float]]:
    if stage.kind != "reduce" or mesh is None:
        return
    axes = next((p.mesh_axes for p in plan.placements if p.name == stage.placement), ())
    size = math.prod(axis.size for axis in mesh.axes if axis.name in axes)
    payload = sum(value.size_bytes for value in stage.outputs)
    if size > 1 and payload:
        record = CollectiveRecord(
            name=stage.name,
            kind="all-reduce",
            axes=axes,
            group_size=size,
            groups=math.prod(mesh.shape) // size,
            payload_bytes=payload,
            wire_bytes=2 * payload * (size - 1) / size,
            executions=None if math.isnan(iterations) else iterations,
        )
        yield record, 1.0


def priced(stage: StageCostRecord, sent: Sent, chip: ChipRecord | None, peak: float | None) -> StageCostRecord:
    """Adds a stage's time on a chip; compiled stages already have the times of their operations."""
    unknown = tuple(dict.fromkeys((*stage.unknown_because, *_reasons(stage, sent, chip))))
    if chip is None:
        return stage.replace(unknown_because=unknown)
    compute, memory = stage.compute_seconds, stage.memory_seconds
    if stage.operation_seconds is None and not stage.unknown_because:  # of a plan
        rates = rates_of(chip)
        bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip * rates.memory["other"]
        compute = None if stage.flops is None or peak is None else stage.flops / peak / rates.matrix["matrix product"]
        memory = None if stage.accessed_bytes is None else stage.accessed_bytes / bandwidth
    collective = _sum_or_none([_seconds(record, share, chip) for record, share in sent])
    by_axis: dict[str, float] = {}
    for record, share in sent:
        if seconds := _seconds(record, share, chip):
            axis = "+".join(record.axes) or UNNAMED
            by_axis[axis] = by_axis.get(axis, 0.0) + seconds
    visible = None if collective is None else max(0.0, collective - stage.hidden_seconds)
    parts = {"compute": compute, "memory": memory, "collective": visible}
    values = {name: seconds for name, seconds in parts.items() if seconds is not None}
    slowest = (
        max(values, key=lambda name: values[name]) if len(values) == len(parts) and any(values.values()) else "unknown"
    )
    return stage.replace(
        compute_seconds=compute,
        memory_seconds=memory,
        collective_seconds=collective,
        collective_seconds_by_axis=by_axis,
        bound=slowest,
        unknown_because=unknown,
    )


def _reasons(stage: StageCostRecord, traffic: Sent, chip: ChipRecord | None) -> Iterator[str]:
    """Reasons why a stage has missing values."""
    if stage.flops is None or stage.accessed_bytes is None:
        yield _OPEN_LOOP
    for record, share in traffic if chip is not None else ():
        assert chip is not None
        if _seconds(record, share, chip) is not None:
            continue
        if record.wire_bytes is None:
            why = "the participants are written in an unknown syntax"
        elif record.executions is None:
            why = "it is in a loop with an unknown number of iterations"
        else:
            why = why_unpriced(record.group_size, chip, across_slices=record.across_slices, hosts=record.hosts)
        yield f"{record.kind} over {' × '.join(record.axes) or 'a group that is not a mesh axis'}: {why}"


def _seconds(collective: CollectiveRecord, share: float, chip: ChipRecord) -> float | None:
    once = seconds_of_collective(collective, chip)
    if collective.executions is None or once is None:
        return None
    return once * share * collective.executions


def _added(total: float | None, amount: float | None, executions: float | None) -> float | None:
    if total is None or amount is None or (amount and executions is None):
        return None
    return total + amount * (executions or 0.0)


def _sum_or_none(amounts: Sequence[float | None]) -> float | None:
    numbers = [amount for amount in amounts if amount is not None]
    return sum(numbers) if len(numbers) == len(amounts) else None


def _assumptions(module: ModuleRecord | None, chip: ChipRecord | None, dtype: str, devices: int) -> Iterator[str]:
    yield "predicted, not measured"
    yield (
        "FLOPs are counted for dot products and convolutions, where a multiply and an add are two FLOPs; elementwise "
        "FLOPs are counted separately, one per element, and add no seconds"
    )
    if module is None:
        yield "from the plan, before compilation: nothing is fused between stages"
        yield (
            f"figures are for the fullest of the {devices:,} devices; a reduction is one all-reduce of values that are "
            "replicated over the other mesh axes"
        )
    else:
        yield "bytes are main-memory traffic at the boundaries of fusions; caches are not modelled"
        if any(len(collective.stages) > 1 and not collective.stage_shares for collective in module.collectives):
            yield "the cost of a collective that combines several stages is divided evenly among them"
        unread = [collective.name for collective in module.collectives if collective.wire_bytes is None]
        if unread:
            yield f"not counted, because their groups have an unknown syntax: {', '.join(unread)}"
        yield from module.notes
    if chip is not None:
        yield from _assumptions_of_seconds(module, chip, dtype)


def _assumptions_of_seconds(module: ModuleRecord | None, chip: ChipRecord, dtype: str) -> Iterator[str]:
    kind = "measured rates" if chip.rates else "data sheet"
    products = dict.fromkeys(key or dtype for i in module.instructions for key in i.products) if module else {}
    bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip
    peaks = [
        f"{peak / 1e12:,.4g} TFLOP/s in {product.replace(':', ' at precision ')}"
        for product in sorted(products or [dtype])
        if (peak := product_peak(product, chip))
    ]
    yield f"{chip.name}: {', '.join([*peaks, f'{bandwidth / 1e9:,.4g} GB/s of main memory'])} per device"
    yield f"{chip.name}, {kind}: {chip.source} (as of {chip.as_of})"
    rates = rates_of(chip)
    elsewhere = module is not None and is_compiled_elsewhere(module, chip)
    if not chip.rates:
        fixed = "" if elsewhere else f", and each operation adds {rates.operation_seconds * 1e6:.3g} µs"
        yield (
            f"operations reach {share_text(rates.matrix['matrix product'], 0)} of the matrix unit's peak and "
            f"{share_text(rates.memory['elementwise'], 0)} of the bandwidth ({family_of(chip)} chips){fixed}"
        )
    if elsewhere:
        yield (
            f"compiled for CPU devices: the CPU compiler emits more operations than the compiler for {chip.name}, so "
            "the fixed cost of an operation is not counted"
        )
        if module is not None and any("bf16[" in instruction.shape for instruction in module.instructions):
            yield (
                "the CPU compiler computes, stores and sends many bfloat16 values in float32, so their bytes are up to "
                f"twice those on {chip.name}"
            )
    if module is None:
        yield "a stage takes max(compute, memory) + collectives; nothing overlaps"
    else:
        yield (
            "operations run one after another, each for max(compute, memory); an asynchronous collective overlaps "
            "with the operations scheduled between its start and its done"
        )
    if not chip.rates:
        links = "their port" if chip.topology == "switch" else "all links of the sub-torus that their group fills"
        yield (
            f"collectives use {links}, at {share_text(rates.links[''], 0)} of the bandwidth, with "
            f"{rates.collective_seconds * 1e6:.3g} µs to start and {rates.hop_seconds * 1e6:.3g} µs per step; "
            "contention is not modelled"
        )
    yield accuracy_text(chip).rstrip(".")
    if chip.domain is not None and chip.domain > 1:
        speed = chip.dcn_bytes_per_second
        network = f"at {speed / 1e9:,.4g} GB/s per chip" if speed else "whose bandwidth is not published"
        yield (
            f"groups of more than {chip.domain:,} chips, and groups on several GPU hosts, use the data-centre network, "
            f"{network}; sums and gathers first combine data over the links, so each chip sends only its own part "
            "over the network"
        )
