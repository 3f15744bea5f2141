"""State of the cost view for another size of the program."""

import math

from workbench.cost import CHIPS, scaled_placement
from workbench.records.compiled import CostRecord, ModuleRecord, ProgramRecord, ScaledCostRecord
from workbench_widgets.states import ScaledAmounts, ScaledState, Scaling, StageCost

MODEL = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
MOST_DEVICES = 16384


def scaling_choices(record: ProgramRecord) -> Scaling | None:
    """The sizes and positions of the sliders; None for a program without clients."""
    if not record.plan.placements:
        return None
    placement = scaled_placement(record)
    axes = record.mesh.axes if record.mesh is not None else ()
    devices = math.prod(axis.size for axis in axes)
    shares = math.prod(axis.size for axis in axes if axis.name in placement.mesh_axes)
    other_devices = devices // shares
    at_once = record.plan.chunk_size
    return {
        "placement": placement.name,
        "axes": " × ".join(placement.mesh_axes),
        "clients": _doublings(placement.size, 1, placement.size * 256),
        "clients_now": placement.size,
        "model": list(MODEL),
        "devices": _doublings(devices, other_devices, MOST_DEVICES) if placement.mesh_axes else [devices],
        "devices_now": devices,
        "at_once": ["auto" if record.plan.auto_limits else "unchanged", *_doublings(1, 1, placement.size)],
        "at_once_now": "every client" if at_once is None else at_once,
        "chips": list(CHIPS),
        "chip_now": record.cost.chip.name if record.cost is not None and record.cost.chip is not None else "",
    }


def scaled_state(record: ProgramRecord, scaled: ScaledCostRecord, as_is: ScaledCostRecord) -> ScaledState:
    """The estimate in the form the view draws, with the original program's amounts."""
    return {
        **_amounts(scaled),
        "as_is": _amounts(as_is),
        "target": f"{record.name}, estimated",
        "chip": scaled.cost.chip.name if scaled.cost.chip is not None else "no chip",
        "assumptions": list(scaled.cost.assumptions),
        "chunks": scaled.chunks,
        "error": scaled.error,
        "available": None if scaled.memory is None else scaled.memory.available_bytes,
        "fits": None if scaled.memory is None else scaled.memory.fits,
        "clients": scaled.clients,
        "per_device": scaled.clients_per_device,
        "devices": scaled.devices,
        "idle": scaled.idle_devices,
        "stages": stage_rows(scaled.cost),
    }


def stage_rows(cost: CostRecord, module: ModuleRecord | None = None) -> list[StageCost]:
    """Cost of each stage, in order."""
    least: dict[str, set[str]] = {}  # axes over which an unknown number of bytes is not counted
    for collective in module.collectives if module is not None else ():
        if collective.executions is None or collective.wire_bytes is None:
            for stage in collective.by_stage():
                least.setdefault(stage or "outside", set()).add("+".join(collective.axes) or "unnamed")
    return [
        {
            "stage": stage.stage,
            "kind": stage.kind,
            "name": stage.name,
            "flops": stage.flops,
            "elementwise": stage.elementwise_flops,
            "accessed": stage.accessed_bytes,
            "wire": dict(stage.collective_bytes),
            "wire_least": sorted(least.get(stage.stage, ())),
            "wire_seconds": dict(stage.collective_seconds_by_axis),
            "compute": stage.compute_seconds,
            "memory": stage.memory_seconds,
            "collective": stage.collective_seconds,
            "seconds": stage.seconds,
            "bound": stage.bound,
            "unknown": list(stage.unknown_because),
        }
        for stage in cost.stages
    ]


def _amounts(scaled: ScaledCostRecord) -> ScaledAmounts:
    """Amounts for one device and one call, summed over all stages."""
    flops = [stage.flops for stage in scaled.cost.stages]
    elementwise = [stage.elementwise_flops for stage in scaled.cost.stages]
    return {
        "seconds": scaled.cost.seconds,
        "flops": None if None in flops else sum(value or 0.0 for value in flops),
        "elementwise": None if None in elementwise else sum(value or 0.0 for value in elementwise),
        "peak": None if scaled.memory is None else scaled.memory.peak_bytes,
        "sent": sum(sum(stage.collective_bytes.values()) for stage in scaled.cost.stages),
    }


def _doublings(middle: int, least: int, most: int) -> list[int]:
    """`middle` times powers of two, from `least` to `most`; sizes below `middle` are multiples of `least`."""
    sizes = [middle]
    while sizes[0] % 2 == 0 and sizes[0] // 2 >= least and sizes[0] // 2 % least == 0:
        sizes.insert(0, sizes[0] // 2)
    while sizes[-1] * 2 <= most:
        sizes.append(sizes[-1] * 2)
    return sizes
