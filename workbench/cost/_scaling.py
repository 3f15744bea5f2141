"""Estimates a program's cost at another size by scaling its records according to stated laws."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.aot import is_target, known_chip, parse_target
from workbench.cost._accuracy import UNKNOWN
from workbench.cost._collectives import sent_bytes
from workbench.cost._estimate import (
    Sent,
    bytes_by_axis,
    compiled_stages,
    largest_dtype,
    peak_of,
    planned_stages,
    priced,
)
from workbench.cost._timeline import time_module
from workbench.errors import InspectionError, MeshError
from workbench.records.compiled import (
    CollectiveRecord,
    CostRecord,
    MemoryRecord,
    ProgramRecord,
    ScaledCostRecord,
    StageCostRecord,
)
from workbench.records.hardware import ChipRecord, MeshRecord
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord


@dataclass(frozen=True, slots=True)
class _Size:
    """Size of a program; its clients are divided into `shares`, and each share is on `others` devices."""

    clients: int
    shares: int
    others: int
    chunk_size: int
    per_device: int  # slots, including padding

    @property
    def iterations(self) -> int:
        return -(-self.per_device // self.chunk_size)


def _sized(clients: int, shares: int, other_devices: int, chunk_size: int | None) -> _Size:
    from workbench.mesh import chunk_shard  # imported late: views import this module without JAX

    per_device = -(-clients // shares)
    chunk, slots = chunk_shard(per_device, per_device if chunk_size is None else chunk_size)
    return _Size(clients, shares, other_devices, chunk, slots)


def estimate_scaled(
    record: ProgramRecord,
    *,
    clients: int | None = None,
    model: float = 1.0,
    chunk_size: int | None = None,
    devices: int | None = None,
    on: str | ChipRecord | None = None,
) -> ScaledCostRecord:
    """Estimates a program's cost with different numbers of clients, parameters and devices.

    Scales the costs of the compiled program (or of its plan, if it was not compiled); for exact values, compile the
    program at the new size.

    Args:
        record: The program, from `inspect`.
        clients: Number of clients; None leaves it unchanged.
        model: Factor by which the number of parameters grows; the examples stay the same.
        chunk_size: Number of clients that a device processes together. None leaves a given number unchanged; if the
            record's chunk size was chosen by "auto", None uses the choice of "auto" for the new number of devices.
        devices: Number of devices; the clients' mesh axes grow or shrink, and all other axes stay the same.
        on: The chip for which times are estimated, such as "v5p", or a target such as "v5p:4x4x4", which also
            determines `devices`; None means the record's chip.

    Returns:
        The estimate. Without changes, the estimate is the record's own cost.

    Raises:
        InspectionError: if the program has no clients, or a number is invalid.

    Example:
        >>> import jax, workbench as wb
        >>> from workbench.cost import estimate_scaled
        >>> mean = wb.program(clients=8)(lambda x: wb.reduce_mean(wb.map_fn(lambda rows: rows @ rows.T, x)))
        >>> record = wb.inspect(mean)(jax.numpy.ones((8, 16, 32)))
        >>> estimate_scaled(record, clients=64).cost.stages[0].flops / record.cost.stages[0].flops
        8.0
    """
    (placement, before), origin = _size(record), f"devices={devices!r}"
    if isinstance(on, str):
        name, stated, network = on.partition("@")  # the network between hosts, as in "h100:4x8@8x400G"
        target = parse_target(name) if is_target(name) else None
        if devices is None and target is not None:
            devices, origin = target.devices, f"on={on!r} ({target.devices} devices)"
        on = known_chip(on if target is None else f"{target.chip}{stated}{network}") or on
    if not isinstance(on, ChipRecord | None):
        message = (
            f"`estimate_scaled` was given on={on!r:.80}. Times are estimated from the published or calibrated rates of "
            'a chip: pass a chip such as "v5p", a target such as "v5p:4x4x4", "here", or a `ChipRecord`.'
        )
        raise MeshError(message)
    after = _changed(record, placement, before, (clients, model, chunk_size, devices), origin)
    chip = on or (record.cost.chip if record.cost is not None else None)
    law = _Law(record.plan, placement, before, after, model)
    peak = peak_of(chip, largest_dtype(record.plan, chip))
    stages = [law.scaled(stage, traffic) for stage, traffic in _stages(record, placement, after, chip)]
    costs = tuple(priced(stage, traffic, chip, peak) for stage, traffic in stages)
    seconds = [stage.seconds for stage in costs]
    values = [value for value in seconds if value is not None]
    return ScaledCostRecord(
        cost=CostRecord(
            stages=costs,
            chip=chip,
            error_bar=f"{UNKNOWN}: estimated for another number of {placement.name} or devices",
            seconds=sum(values) if chip is not None and len(values) == len(seconds) else None,
            assumptions=tuple(_assumptions(record, placement, before, after, model)),
        ),
        memory=_memory(record, law, chip),
        placement=placement.name,
        clients=after.clients,
        clients_per_device=after.per_device,
        chunk_size=after.chunk_size,
        devices=after.shares * after.others,
        chunks=_chunks_sentence(record, placement, before, after, model, is_requested=chunk_size is not None),
        error=_ERROR_OF_MODEL if model != 1.0 else _ERROR,
        idle_devices=max(0, after.shares - -(-after.clients // after.per_device)) * after.others,
        model=model,
    )


# Both errors are described in docs/absent-hardware.md.
_ERROR = (
    "Measured error: recompiling nine programs at 44 sizes gave FLOPs of mapped stages within 1 %, equal bytes sent, "
    "and a peak within a third in 43 cases. In one case where the chunk size changes, the estimated peak is 51 % too "
    "high. The predicted seconds of two of these programs were within 5 %."
)
_ERROR_OF_MODEL = (
    "Measured error: recompiling two programs at half or twice the parameters gave FLOPs within 10 %, bytes sent "
    "within 3 %, a peak within 25 %, and predicted seconds within 36 %."
)


def _chunks_sentence(
    record: ProgramRecord, placement: PlacementRecord, before: _Size, after: _Size, model: float, *, is_requested: bool
) -> str:
    """States the chunk size of an estimate and who chose it; empty for a program that does not stream its clients."""
    if record.plan.chunk_limit is None and not is_requested:
        return ""
    size = f"Chunk size {after.chunk_size} ({placement.name} that a device processes together)"
    if is_requested:
        return f"{size}, as requested; the compiled program has {before.chunk_size}."
    if not record.plan.auto_limits:
        return f"{size}: the estimate keeps the chunk size of the compiled program."
    if after.shares != before.shares:
        devices = after.shares * after.others
        return f'{size}: the choice of "auto" for {devices} device{"s" if devices > 1 else ""}.'
    if model != 1.0:
        return f'{size}: the choice of "auto" for the compiled program. For another model, "auto" may choose another.'
    return f'{size}: the choice of "auto", as in the compiled program.'


def scaled_placement(record: ProgramRecord) -> PlacementRecord:
    """Returns the placement whose size and devices an estimate changes.

    Chooses the outermost placement if it has a mesh axis, otherwise the first inner placement with a mesh axis. An
    example is the placement of the clients in pods, if every device computes all pods.

    Args:
        record: A program with a placement.
    """
    outermost = record.plan.placements[0]
    if outermost.mesh_axes or record.mesh is None:
        return outermost
    axes = {axis.name for axis in record.mesh.axes}
    for stage in record.plan.walk():
        if stage.kind == "clients" and stage.placement is not None and stage.placement in axes:
            return PlacementRecord(name=stage.placement, size=stage.clients, mesh_axes=(stage.placement,))
    return outermost


def _size(record: ProgramRecord) -> tuple[PlacementRecord, _Size]:
    if not record.plan.placements:
        message = (
            f"`estimate_scaled` was given {record.name!r}, which has no clients. `estimate_scaled` changes the "
            "number of clients and their devices: pass the record of a program with a placement."
        )
        raise InspectionError(message)
    placement = scaled_placement(record)
    axes = record.mesh.axes if record.mesh is not None else ()
    shares = math.prod(axis.size for axis in axes if axis.name in placement.mesh_axes)
    other_devices = math.prod(axis.size for axis in axes) // shares
    return placement, _sized(placement.size, shares, other_devices, record.plan.chunk_size)


def _changed(
    record: ProgramRecord,
    placement: PlacementRecord,
    before: _Size,
    changes: tuple[int | None, float, int | None, int | None],
    origin: str,
) -> _Size:
    """The size after the changes; `origin` is the caller's argument that states the number of devices."""
    clients, model, chunk_size, devices = changes
    clients = before.clients if clients is None else clients
    devices = before.shares * before.others if devices is None else devices
    values = {"clients": clients, "model": model, "chunk_size": 1 if chunk_size is None else chunk_size}
    wrong = [f"{name}={value!r} is not above 0" for name, value in values.items() if not value > 0]
    if devices < 1 or devices % before.others:
        wrong.append(f"{origin} is not a multiple of {before.others}, the devices of the other mesh axes")
    if devices != before.shares * before.others and not placement.mesh_axes:
        wrong.append(f"{origin}, but the clients are not sharded over a mesh axis, so more devices change nothing")
    if wrong:
        message = (
            f"`estimate_scaled` was given impossible sizes for {record.name!r}: {'; '.join(wrong)}. Use positive "
            "numbers of clients, parameters and devices, and a number of devices that fills the mesh."
        )
        raise InspectionError(message)
    shares = devices // before.others
    if chunk_size is None:
        chunk_size = record.plan.chunk_limit or record.plan.chunk_size
        automatic = [limit for first, limit in record.plan.auto_limits if first <= devices]
        if automatic and shares != before.shares:
            chunk_size = automatic[-1]
    return _sized(clients, shares, before.others, chunk_size)


class _Law:
    """Scaling laws: how every quantity of a program depends on its size."""

    def __init__(self, plan: PlanRecord, placement: PlacementRecord, before: _Size, after: _Size, model: float) -> None:
        self.before, self.after, self.model = before, after, model
        self.clients = after.per_device / before.per_device
        self.plan, self.placement = plan, placement
        self.inside = set(_inside(plan.stages, placement.name))

    def scaled(self, stage: StageCostRecord, traffic: Sent) -> tuple[StageCostRecord, Sent]:
        """Scales the work and the collectives of one stage to the new size."""
        at_clients = stage.stage in self.inside
        factor = self.model * (self.clients if at_clients else 1.0)
        pairs = [(self._collective(record, at_clients), share) for record, share in traffic]
        scaled_traffic = [(record, share) for record, share in pairs if record is not None]
        scaled = stage.replace(
            flops=None if stage.flops is None else stage.flops * factor,
            elementwise_flops=None if stage.elementwise_flops is None else stage.elementwise_flops * factor,
            accessed_bytes=None if stage.accessed_bytes is None else stage.accessed_bytes * factor,
            collective_bytes=bytes_by_axis(scaled_traffic),
            compute_seconds=None if stage.compute_seconds is None else stage.compute_seconds * factor,
            memory_seconds=None if stage.memory_seconds is None else stage.memory_seconds * factor,
            operation_seconds=None if stage.operation_seconds is None else stage.operation_seconds * factor,
            hidden_seconds=stage.hidden_seconds * factor,
        )
        return scaled, scaled_traffic

    def _collective(self, record: CollectiveRecord, at_clients: bool) -> CollectiveRecord | None:
        """Scales one collective; None if fewer than two devices take part."""
        crosses = any(axis in self.placement.mesh_axes for axis in record.axes)
        group = round(record.group_size * self.after.shares / self.before.shares) if crosses else record.group_size
        if group < 2:
            return None
        looped = at_clients and not crosses  # sent again for every chunk of clients
        payload = (
            record.payload_bytes * self.model * (self.after.chunk_size / self.before.chunk_size if looped else 1.0)
        )
        executions = record.executions
        if executions is not None and looped:
            executions *= self.after.iterations / self.before.iterations
        was = sent_bytes(record.kind, record.payload_bytes, record.group_size)
        now = sent_bytes(record.kind, payload, group)
        wire = None if record.wire_bytes is None else record.wire_bytes * now / was if was else now
        return record.replace(
            torus=record.torus if group == record.group_size else (),
            group_size=group,
            payload_bytes=round(payload),
            wire_bytes=wire,
            executions=executions,
        )


def _stages(
    record: ProgramRecord, placement: PlacementRecord, after: _Size, chip: ChipRecord | None
) -> Iterator[tuple[StageCostRecord, Sent]]:
    """The program's current stages. Reductions that send nothing on a single device are included."""
    if record.module is None:
        yield from planned_stages(record.plan.stages, record.plan, record.mesh)
        return
    new = _planned_reductions(record, placement, after)
    times = time_module(record.module, chip, largest_dtype(record.plan, chip)) if chip is not None else None
    for stage, traffic in compiled_stages(record.module, record.plan, times):
        yield stage, [*traffic, *new.get(stage.stage, [])]


def _planned_reductions(record: ProgramRecord, placement: PlacementRecord, after: _Size) -> dict[str, Sent]:
    _, before = _size(record)
    if before.shares > 1 or after.shares == 1 or record.mesh is None:
        return {}
    # Planned for axes of two devices, the smallest that communicate; the law then scales the group to the new size.
    axes = tuple(axis.replace(size=2 if axis.name in placement.mesh_axes else axis.size) for axis in record.mesh.axes)
    mesh = MeshRecord(axes=axes, devices=(), abstract=True)
    planned = planned_stages(record.plan.stages, record.plan, mesh)
    return {
        stage.stage: [(_as_held(c, stage.stage, record, before.others), share) for c, share in traffic]
        for stage, traffic in planned
        if traffic and stage.stage in set(_inside(record.plan.stages, placement.name))
    }


def _as_held(collective: CollectiveRecord, stage: str, record: ProgramRecord, other_devices: int) -> CollectiveRecord:
    """A planned reduction with the actual payload per device, because other mesh axes may shard the value."""
    leaves = record.outputs.leaves if record.outputs is not None else ()
    results = {leaf.size_bytes: leaf.bytes_per_device for leaf in leaves}
    instructions = record.module.instructions if record.module else ()
    sizes = {
        i.size_bytes for i in instructions if i.stage == stage and i.opcode not in ("parameter", "get-tuple-element")
    }
    parts = [collective.payload_bytes / part for part in range(1, other_devices + 1) if other_devices % part == 0]
    returned = results.get(collective.payload_bytes)  # on one device, XLA removes the reduction
    payload = (
        returned if returned in parts else next((part for part in parts if part in sizes), collective.payload_bytes)
    )
    return collective.replace(group_size=1, payload_bytes=round(payload))


def _inside(stages: Sequence[StageRecord], placement: str, *, within: bool = False) -> Iterator[str]:
    """Paths of the stages that run once per client."""
    for stage in stages:
        here = within or stage.placement == placement
        if here:
            yield stage.path
        yield from _inside(stage.body, placement, within=here)


def _memory(record: ProgramRecord, law: _Law, chip: ChipRecord | None) -> MemoryRecord | None:
    reported = record.module.memory if record.module is not None else MemoryRecord()
    parts = (reported.argument_bytes, reported.output_bytes, reported.temporary_bytes, reported.peak_bytes)
    sizes = [part for part in parts if part is not None]
    if len(sizes) < len(parts):
        return None
    arguments, outputs, temporaries, peak = sizes
    data = min(arguments, sum(_client_bytes(record.plan, law)))
    new_arguments = round((arguments - data) * law.model + data * law.clients)
    rows = min(outputs, sum(_returned_rows(record.plan, law)))
    new_outputs = round(((outputs - rows) + rows * law.clients) * law.model)
    new_temporaries = round(temporaries * law.model * law.after.chunk_size / law.before.chunk_size)
    grown = new_arguments + new_outputs + new_temporaries - arguments - outputs - temporaries
    new_peak = max(peak + grown, new_arguments)
    same_chip = record.cost is None or chip is None or chip == record.cost.chip
    available = reported.available_bytes if same_chip and reported.available_bytes else None
    if available is None and chip is not None:
        available = chip.hbm_bytes // chip.devices_per_chip
    return MemoryRecord(
        argument_bytes=new_arguments,
        output_bytes=new_outputs,
        temporary_bytes=new_temporaries,
        peak_bytes=new_peak,
        available_bytes=available,
        fits=None if available is None else new_peak <= available,
        notes=("estimated from the compiler's values at the original size: the peak may be off by a third",),
    )


def _client_bytes(plan: PlanRecord, law: _Law) -> Iterator[float]:
    """Bytes per device of every argument that has one row per client."""
    clients = law.before.clients
    client_inputs = {
        value.name
        for stage in plan.stages
        if stage.placement == law.placement.name and -1 in stage.consumes
        for value in stage.inputs
        if value.shape[:1] == (clients,)
    }
    # A weight may have as many rows as there are clients, but values that the server broadcasts are not client data.
    shared = {value.name for stage in plan.walk() if stage.kind == "broadcast" for value in stage.inputs}
    local_names = {value.name for value in plan.kept_local}  # clients inside loops also read these
    for value in plan.inputs:
        if value.name in (client_inputs - shared) | local_names:
            yield value.size_bytes / clients * law.before.per_device


def _returned_rows(plan: PlanRecord, law: _Law) -> Iterator[float]:
    """Bytes per device of every result that has one row per client."""
    clients = law.before.clients
    rows = {
        (value.shape, value.dtype)
        for stage in plan.stages
        if stage.kind == "clients" and stage.placement == law.placement.name
        for value in stage.outputs
        if value.shape[:1] == (clients,)
    }
    for value in plan.outputs:
        if (value.shape, value.dtype) in rows:
            yield value.size_bytes / clients * law.before.per_device


def _assumptions(
    record: ProgramRecord, placement: PlacementRecord, before: _Size, after: _Size, model: float
) -> Iterator[str]:
    came = "the compiled module of" if record.module is not None else "the plan of"
    yield f"estimated, not compiled: scaled from {came} {record.name} with {before.clients} {placement.name}"
    if after.clients != before.clients or after.shares != before.shares:
        yield (
            f"the fullest device has {after.per_device} {placement.name} instead of {before.per_device}, and work on "
            f"the {placement.name} scales with this number; work on the server is unchanged"
        )
    if after.clients % after.shares:
        yield (
            f"{after.clients} {placement.name} do not divide evenly among {after.shares} devices, so the program also "
            "sends rows to the devices that compute them; these bytes and their copies in the peak are not counted"
        )
    if after.shares != before.shares:
        axes = ", ".join(placement.mesh_axes)
        yield f"collectives over {axes} use rings of {after.shares} instead of {before.shares}"
    if model != 1.0:
        yield (
            f"{model:g} times the parameters with the same examples: FLOPs, memory traffic and sent bytes grow "
            f"{model:g} times (as with more layers; wider layers need fewer activations)"
        )
    if after.chunk_size != before.chunk_size:
        yield (
            f"{after.chunk_size} {placement.name} at once instead of {before.chunk_size}: temporaries scale with this "
            "number, FLOPs and memory traffic do not"
        )
    if record.cost is not None:
        yield from (assumption for assumption in record.cost.assumptions if assumption != "predicted, not measured")
