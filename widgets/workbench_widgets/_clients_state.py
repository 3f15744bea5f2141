"""Client state shared by all views: columns of numbers, devices, and each client's share of the data."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.records.compiled import ClientCostRecord, ProgramRecord
from workbench.records.program import StageRecord
from workbench.render import device_groups
from workbench.render.units import bytes_text, shape_text
from workbench_widgets.states import ClientColumn, ClientsState

Arrays = dict[str, bytes]
_Range = tuple[int, int, list[int], list[str]]
Numbers = Sequence[float | None] | np.ndarray
MOST_DRAWN = 100_000  # more clients are drawn as groups of consecutive clients


def clients_state(record: ProgramRecord) -> tuple[ClientsState, Arrays]:
    """The clients of the outermost placement; their figures are sent as binary columns.

    With more than `MOST_DRAWN` clients, each row is the mean of `group_size` consecutive clients.
    """
    stage = client_stage(record)
    placement = stage.placement or "" if stage is not None else ""
    outer = [] if stage is None else _around(record.plan.stages, stage)
    copies = math.prod(outer_stage.clients for outer_stage in outer)
    count = stage.clients * copies if stage is not None else 0
    size = max(1, math.ceil(count / MOST_DRAWN))
    columns, arrays = _columns(record, stage, count, size, nested=bool(outer))
    around = " × ".join(f"{outer_stage.clients:,} {outer_stage.placement}" for outer_stage in outer)
    state: ClientsState = {
        "count": math.ceil(count / size),
        "group_size": size,
        "placement": f"{around} × {stage.clients:,} {placement}"
        if stage and outer
        else f"{count:,} {placement}".strip() + (f", drawn as groups of {size:,}" if size > 1 else ""),
        "groups": {
            "outer": " × ".join(outer_stage.placement or "" for outer_stage in outer),
            "inner": placement,
            "size": stage.clients,
        }
        if stage and outer and size == 1
        else None,
        "columns": columns,
        "ranges": _nested_ranges(record, outer, placement, stage.clients)
        if stage and outer and size == 1
        else _grouped(_ranges(record, placement, count), size),
        "neighbours": record.mesh is not None,
        "shares": _shares(stage),
        "stage": stage.path if stage is not None else None,
        "sentence": _waste(record),
        "measuring": "" if outer else _measuring(record),
    }
    return state, arrays


def _measuring(record: ProgramRecord) -> str:
    """Code for a cell that measures every client and explores the program again, or "" if this is impossible."""
    arguments = dict.fromkeys(re.split(r"\W", value.name)[0] for value in record.plan.inputs)
    if record.mesh is None or record.mesh.abstract or not all(map(str.isidentifier, (record.name, *arguments))):
        return ""
    call_arguments = ", ".join(arguments)
    return (
        "with jax.set_mesh(mesh):\n"
        f'    measured = wb.measure({record.name}, clients="probe")({call_arguments})\n'
        f"    explorer = wb.explore({record.name}, run=measured)({call_arguments})\n"
        "explorer"
    )


def client_stage(record: ProgramRecord) -> StageRecord | None:
    """The stage with the most client work."""
    # A stage of pods contains the stages of their clients; only innermost stages count.
    stages = [
        stage
        for stage in record.plan.walk()
        if stage.kind == "clients" and not any(inner.kind == "clients" for inner in stage.walk() if inner is not stage)
    ]
    return max(stages, key=lambda stage: (stage.clients, stage.flops_per_client or 0), default=None)


def _around(stages: Sequence[StageRecord], target: StageRecord) -> list[StageRecord]:
    """The client stages that enclose `target`, outermost first."""
    for stage in stages:
        if stage is target:
            return []
        if any(inner is target for inner in stage.walk()):
            outer = [stage] if stage.kind == "clients" else []
            return [*outer, *_around(stage.body, target)]
    return []


def _nested_ranges(record: ProgramRecord, outer: Sequence[StageRecord], placement: str, size: int) -> list[_Range]:
    """Ranges of nested clients and their devices, group by group."""
    inner = _ranges(record, placement, size)
    groups = math.prod(stage.clients for stage in outer)
    around = _ranges(record, outer[-1].placement or "", outer[-1].clients) if len(outer) == 1 else []
    ranges: list[_Range] = []
    for group in range(groups):
        device_set = next((set(devices) for start, stop, devices, _ in around if start <= group < stop), None)
        for start, stop, devices, names in inner:
            both = [(d, n) for d, n in zip(devices, names, strict=True) if device_set is None or d in device_set]
            if both:
                place = group * size
                ranges.append((place + start, place + stop, [d for d, _ in both], [n for _, n in both]))
    return ranges


def _columns(
    record: ProgramRecord, stage: StageRecord | None, count: int, size: int, *, nested: bool = False
) -> tuple[list[ClientColumn], Arrays]:
    figures: list[tuple[str, str, str, str, Numbers]] = []
    rows = math.ceil(count / size)
    costs = record.cost.clients if record.cost is not None else ()
    if costs and (len(costs) == count if nested else len(costs) <= count):  # nested: costs may be per group
        by_client = {cost.client: cost for cost in costs}
        clients = [by_client.get(client) for client in range(count)] if size == 1 else []
        figures = [
            ("examples", "examples", "count", "", [client.examples if client else None for client in clients]),
            ("flops", "matrix FLOPs", "flops", "predicted", [client.flops if client else None for client in clients]),
            *_elementwise([client.elementwise_flops if client else None for client in clients]),
            ("bytes", "memory traffic", "bytes", "predicted", [c.accessed_bytes if c else None for c in clients]),
        ]
        padded = [client.padded_examples if client else None for client in clients]
        figures.insert(1, ("padded", "examples with padding", "count", "", padded))
        figures.append(("estimate", "time", "seconds", "estimated", _estimated(record, stage, clients)))
    elif stage is not None and stage.flops_per_client is not None:
        figures = [
            ("flops", "matrix FLOPs", "flops", "predicted", np.full(rows, stage.flops_per_client)),
            *_elementwise([stage.elementwise_flops_per_client] * rows),
        ]
        if stage.bytes_per_client is not None:
            figures.append(("bytes", "memory traffic", "bytes", "predicted", np.full(rows, stage.bytes_per_client)))
    columns: list[ClientColumn] = []
    arrays: Arrays = {}
    for key, label, unit, kind, values in figures:
        if not isinstance(values, np.ndarray) and all(value is None for value in values):
            continue
        columns.append({"key": key, "label": label, "unit": unit, "kind": kind})
        arrays[f"clients.{key}"] = floats(values)
    return columns, arrays


def _elementwise(values: list[float | None]) -> list[tuple[str, str, str, str, Numbers]]:
    """The column for elementwise work, if there is any."""
    return [("elementwise", "elementwise FLOPs", "flops", "predicted", values)] if any(values) else []


def group_means(by_client: Mapping[Any, float | None], rows: int, size: int) -> np.ndarray:
    """The mean of the known values in each group of `size` consecutive clients; NaN if all are unknown."""
    pairs = [(key, value) for key, value in by_client.items() if value is not None and 0 <= key < rows * size]
    group = np.array([key // size for key, _ in pairs], np.int64)
    total = np.bincount(group, [value for _, value in pairs], minlength=rows)
    count = np.bincount(group, minlength=rows)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _grouped(ranges: list[_Range], size: int) -> list[_Range]:
    """Converts ranges of clients to ranges of groups; a group on two devices belongs to the first device."""
    if size == 1:
        return ranges
    return [(math.ceil(start / size), math.ceil(stop / size), devices, names) for start, stop, devices, names in ranges]


def _estimated(
    record: ProgramRecord, stage: StageRecord | None, clients: Sequence[ClientCostRecord | None]
) -> list[float | None]:
    """Predicted time of each client in seconds, at its stage's rates: the larger of compute and memory time."""
    priced = None
    if record.cost is not None and stage is not None:
        priced = next((cost for cost in record.cost.stages if cost.stage == stage.path), None)
    if priced is None or priced.compute_seconds is None or priced.memory_seconds is None:
        return [None] * len(clients)
    per_flop = priced.compute_seconds / priced.flops if priced.flops else 0.0
    per_byte = priced.memory_seconds / priced.accessed_bytes if priced.accessed_bytes else 0.0
    return [max(client.flops * per_flop, client.accessed_bytes * per_byte) if client else None for client in clients]


def floats(values: Numbers) -> bytes:
    """Numbers in the browser's format: 32-bit, little-endian, with NaN for unknown values."""
    return np.asarray(values, dtype="<f4").tobytes()


def _ranges(record: ProgramRecord, placement: str, count: int) -> list[_Range]:
    names = (
        {device.id: f"{device.platform or 'device'}:{device.id}" for device in record.mesh.devices}
        if record.mesh
        else {}
    )
    groups = device_groups(record.mesh, placement, count)
    return [
        (start, stop, list(devices), [names.get(device, f"device {device}") for device in devices])
        for start, stop, devices in groups
        if devices
    ]


def _shares(stage: StageRecord | None) -> list[list[str]]:
    if stage is None:
        return []
    return [
        [
            value.argument or value.name,
            shape_text(value.dtype, value.shape[1:]),
            bytes_text(value.size_bytes // max(stage.clients, 1)),
        ]
        for value in stage.inputs
        if value.shape and value.shape[0] == stage.clients
    ]


def _waste(record: ProgramRecord) -> str:
    parts = []
    if record.cost is not None and record.cost.padding_waste:
        parts.append(f"{_share(record.cost.padding_waste)} of the clients' work is padding")
    if record.cost is not None and record.cost.lockstep_waste:
        parts.append(
            "clients that run together wait for the slowest client, which takes "
            f"{_times(record.cost.lockstep_waste)} their mean time"
        )
    if record.cost is not None and record.cost.imbalance_waste:
        parts.append(f"the slowest device takes {_times(record.cost.imbalance_waste)} the mean time of all devices")
    return "; ".join(parts)


def _share(value: float) -> str:
    """Formats a share as a percentage; shows 100 % only if the share is 1."""
    return f"{100 * min(value, 0.999):.1f} %" if 0.99 < value < 1 else f"{100 * value:.0f} %"


def _times(more: float) -> str:
    """Formats an excess of 0.3 as "1.3 times"."""
    return f"{1 + more:.3g} times"
