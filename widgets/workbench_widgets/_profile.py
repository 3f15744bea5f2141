"""A recorded profile as tabs: measured call tree, operations under the roofline, devices, timeline, memory."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.profile import ProfiledDeviceRecord, ProfileRecord
from workbench.render import GLOSSARY
from workbench.render.units import bytes_text, count_text, seconds_text, source_text, work_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._headline import figure
from workbench_widgets._operations import operations_state
from workbench_widgets._roofline_state import chip_roofs
from workbench_widgets._timeline import timeline_state
from workbench_widgets.states import (
    AllocatorsState,
    HeadlineFigure,
    Look,
    MeasuredState,
    Place,
    SplitState,
    TabState,
)

TITLES: dict[str, tuple[str, str, Place]] = {
    "operations": ("Call tree", "Measured seconds by function, module and line", "where"),
    "measured": (
        "Operations",
        "Every operation: measured and predicted seconds, and the roofline of the chip",
        "where",
    ),
    "allocators": ("Memory", "Bytes in use over time, as the allocators reported them", "where"),
    "split": ("Devices", "Time of each device: compute, collectives, copies, waiting, idle", "when"),
    "timeline": ("Timeline", "All recorded spans of all devices", "when"),
}
PARTS = ("compute", "collective", "copy", "other", "wait", "idle")
MOST_OPERATIONS = 20_000


class ProfileView(WorkbenchWidget):
    """Live view of a profile recorded on other devices: call tree, roofline, devices, timeline, memory.

    Args:
        profile: From `workbench.open_profile`.
        view: The tab to open first, one of `operations`, `measured`, `split`, `timeline` and `allocators`.
    """

    view_name = "explorer"

    def __init__(self, profile: ProfileRecord, *, view: str | None = None, **values: object) -> None:
        self.profile = self._subject = profile
        parts, arrays = profile_state(profile)
        if view is not None and view not in parts:
            message = (
                f"`ProfileView` received view={view!r}, but the profile {profile.name} has the views "
                f"{', '.join(parts)}. Pass one of these views, or omit `view=` to start with the first view."
            )
            raise ValueError(message)
        views: list[TabState] = [
            {"key": key, "title": title, "help": help_, "place": place}
            for key, (title, help_, place) in TITLES.items()
            if key in parts
        ]
        data = parts | {"views": views, "title": profile.name, "headline": _headline(profile), "glossary": GLOSSARY}
        settings = {} if view is None else {"view": view}
        super().__init__(data=data, arrays=arrays, label=_label(profile), settings=settings, **values)


def profile_state(profile: ProfileRecord) -> tuple[dict[str, Any], Arrays]:
    """State of the tabs; tabs without data in the profile are omitted."""
    parts: dict[str, Any] = {}
    arrays: Arrays = {}

    def add(key: str, part: tuple[Mapping[str, Any], Arrays]) -> None:
        parts[key] = part[0]
        arrays.update({f"{key}/{name}": value for name, value in part[1].items()})

    tree = join_trees(profile)
    if tree is not None:
        files = {operation.source.file for operation in profile.operations if operation.source is not None}
        add("operations", operations_state(tree, files, measured=True))
    if profile.operations:
        add("measured", _operations(profile))
    parts["split"] = _split(profile)
    if profile.events:
        state, columns = timeline_state(profile.as_run(), tree=tree)
        add("timeline", ({**state, "sentence": _label(profile)}, columns))
    if profile.memory:
        add("allocators", _memory(profile))
    return parts, arrays


def join_trees(profile: ProfileRecord) -> CallTreeRecord | None:
    """The call trees of all programs under one root; None if the profile has none."""
    trees = [
        (program.name, profile.trees[program.name]) for program in profile.programs if program.name in profile.trees
    ]
    if len(trees) < 2:
        return trees[0][1] if trees else None
    nodes: list[CallNodeRecord] = [CallNodeRecord(id=0, parent=None, kind="root", name=profile.name)]
    seconds: Counter[str] = Counter()
    for name, tree in trees:
        offset = len(nodes)
        for node in tree.nodes:
            changes: dict[str, Any] = {
                "id": node.id + offset,
                "parent": 0 if node.parent is None else node.parent + offset,
            }
            if node.parent is None:
                changes |= {"kind": "function", "name": name}
                seconds.update(node.total.measured_seconds)
            nodes.append(node.replace(**changes))
    nodes[0] = nodes[0].replace(total=CallFiguresRecord(measured_seconds=dict(seconds)))
    notes = dict.fromkeys(note for _, tree in trees for note in tree.notes)
    return CallTreeRecord(made_from="compiled", nodes=tuple(nodes), notes=tuple(notes))


def _label(profile: ProfileRecord) -> str:
    kinds = sorted({device.kind or device.platform for device in profile.devices})
    return (
        f"Profile {profile.name}: {count_text(len(profile.devices))} {' and '.join(kinds)} devices, "
        f"{count_text(len(profile.programs))} programs, {seconds_text(profile.seconds)} of operations"
    )


def _headline(profile: ProfileRecord) -> list[HeadlineFigure]:
    """The slowest operation, the devices, and the share of the profile that is matched to source lines."""
    figures = []
    if profile.operations and profile.seconds:
        top = profile.operations[0]
        where = "" if top.source is None else f", {source_text(top.source.file, top.source.line)}"
        text = f"{top.name}: {100 * top.seconds / profile.seconds:.0f} % of the busy time{where}"
        category, seconds = next(iter(profile.seconds_by_category().items()))
        members = [operation for operation in profile.operations if operation.category == category]
        if category and len(members) > 1 and seconds > 1.2 * top.seconds:  # several similar operations: show the kind
            share = 100 * seconds / profile.seconds
            top = members[0]
            text = (
                f"{category}: {share:.0f} % of the busy time in {count_text(len(members))} operations, "
                f"{top.name} {100 * top.seconds / profile.seconds:.0f} %"
            )
        figures.append(
            figure(
                text,
                "The kind of operation that takes the most time over all devices, and its slowest operation.",
                "measured",
                "strong",
                {"instruction": top.name},
            )
        )
    idle = [device.idle_share for device in profile.devices if device.span_seconds]
    if idle:
        figures.append(
            figure(f"{100 * np.mean(idle):.0f} % idle", "Fraction of the recorded time in which nothing ran.", "split")
        )
    good: Look = "good" if profile.joined_seconds > 0.9 else "plain"
    figures.append(
        figure(
            f"{100 * profile.joined_seconds:.0f} % matched to HLO",
            "Fraction of the measured time for which the HLO instruction is known.",
            "split",
            good,
        )
    )
    return figures


def _operations(profile: ProfileRecord) -> tuple[MeasuredState, Arrays]:
    """Operations as columns; unknown figures are NaN."""
    operations = profile.operations[:MOST_OPERATIONS]

    arrays = {
        "seconds": floats([operation.seconds for operation in operations]),
        "each": floats([operation.seconds_per_execution for operation in operations]),
        "executions": floats([operation.executions for operation in operations]),
        "predicted": floats([operation.predicted_seconds for operation in operations]),
        "rate": floats([operation.flops_per_second or None for operation in operations]),
        "bandwidth": floats([operation.bytes_per_second or None for operation in operations]),
        "intensity": floats([operation.intensity or None for operation in operations]),
    }
    state: MeasuredState = {
        "names": [operation.name for operation in operations],
        "categories": [operation.category or "unknown" for operation in operations],
        "programs": [operation.program for operation in operations],
        "op_names": [operation.op_name for operation in operations],
        "hlo": [operation.hlo for operation in operations],
        "dtypes": [operation.dtype for operation in operations],
        "bounds": [operation.bound for operation in operations],
        "lines": [None if o.source is None else f"{o.source.file}:{o.source.line}" for o in operations],
        "places": ["" if o.source is None else source_text(o.source.file, o.source.line) for o in operations],
        "left_out": len(profile.operations) - len(operations),
        "chip": None if profile.chip is None else chip_roofs(profile.chip),
        "error_bar": profile.error_bar,
    }
    return state, arrays


def _split(profile: ProfileRecord) -> SplitState:
    longest = max((device.span_seconds for device in profile.devices), default=0.0)
    return {
        "parts": list(PARTS),
        "longest": longest,
        "devices": [
            {
                "where": device.where,
                "kind": device.kind or device.platform,
                "seconds": _parts_of(device),
                "overlapped": device.overlapped_seconds,
                "span": device.span_seconds,
                "events": device.events,
            }
            for device in profile.devices
        ],
        "programs": [
            [
                p.name,
                seconds_text(p.seconds),
                count_text(p.operations),
                "unknown" if p.runs is None else count_text(p.runs),
                p.hlo,
                work_text(p.flops, p.elementwise_flops) if p.flops or p.elementwise_flops else "",
                bytes_text(p.peak_bytes) if p.peak_bytes else "",
            ]
            for p in profile.programs
        ],
        "unjoined": [
            [
                group.kind,
                count_text(group.events),
                seconds_text(group.seconds),
                "no" if group.overlaps else "yes",
                ", ".join(list(group.names)[:3]),
            ]
            for group in profile.unjoined
        ],
        "notes": [note for program in profile.programs for note in program.notes] + list(profile.notes),
    }


def _parts_of(device: ProfiledDeviceRecord) -> list[float]:
    """Time in seconds for each entry of `PARTS`; the waiting time that collectives include is subtracted from them."""
    collective = max(0.0, device.collective_seconds - device.wait_seconds)
    idle = max(
        0.0, device.span_seconds - device.busy_seconds - max(0.0, device.wait_seconds - device.collective_seconds)
    )
    return [device.compute_seconds, collective, device.copy_seconds, device.other_seconds, device.wait_seconds, idle]


def _memory(profile: ProfileRecord) -> tuple[AllocatorsState, Arrays]:
    state: AllocatorsState = {
        "allocators": [
            {"where": a.where, "name": a.allocator, "peak": a.peak_bytes, "events": a.events} for a in profile.memory
        ]
    }
    arrays = {}
    for at, allocator in enumerate(profile.memory):
        arrays[f"{at}.seconds"] = floats([moment for moment, _ in allocator.timeline])
        arrays[f"{at}.bytes"] = floats([amount for _, amount in allocator.timeline])
    return state, arrays
