"""Chooses the live view that shows a record."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.records import Record
from workbench.records.advice import ComparisonRecord
from workbench.records.compiled import ProgramRecord, WhatIfRecord
from workbench.records.hardware import MeshRecord
from workbench.records.launch import LaunchedRecord, LiveProgram, ProgramGraphRecord
from workbench.records.live import TimelineRecord
from workbench.records.profile import ProfileRecord
from workbench.records.program import PlanRecord
from workbench.records.run import PlayRecord, RunOverlayRecord, RunRecord
from workbench.records.sharding import LeafShardingRecord, PropagationRecord, ShardingRecord, WhyRecord
from workbench_widgets._answers import Advises, CompileFor, Searches, Tap, TriesSpecs
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients import ClientsView
from workbench_widgets._compare import CompareView
from workbench_widgets._cost import CostView
from workbench_widgets._explorer import Explorer
from workbench_widgets._hlo import HloView
from workbench_widgets._launch import LaunchView
from workbench_widgets._memory import MemoryView
from workbench_widgets._mesh import MeshView
from workbench_widgets._overlay import RunsView
from workbench_widgets._picture import PictureView
from workbench_widgets._profile import ProfileView
from workbench_widgets._program import ProgramView
from workbench_widgets._propagation import PropagationView
from workbench_widgets._sharding import ShardingView
from workbench_widgets._timeline import TimelineView
from workbench_widgets._trial_state import trial_state

_TABS = ("operations", "advice")  # shown in the explorer with this tab open

_PROGRAM: dict[str, Callable[..., WorkbenchWidget]] = {
    "explorer": Explorer,
    "program": ProgramView,
    "clients": ClientsView,
    "hlo": HloView,
    "cost": CostView,
    "memory": MemoryView,
    "mesh": lambda record: MeshView(
        _part(record, "mesh"), record.cost, sharding=record.inputs, names=[value.name for value in record.plan.inputs]
    ),
    "sharding": lambda record, **options: _sharding_of(record, **options),
    **{tab: functools.partial(Explorer, view=tab) for tab in _TABS},
}

PROGRAM_VIEWS: tuple[str, ...] = tuple(_PROGRAM)


def views_of(record: Record) -> tuple[str, ...]:
    """The names of the live views for a record, default first; empty if it has none."""
    try:
        views, default = _views_of(record)
    except TypeError:
        return ()
    return (default, *(name for name in views if name != default))


# Kernel functions that a view of a program can call.
_ASKING = {
    **dict.fromkeys(
        ("explorer", *_TABS), ("compile_for", "what_if", "tap", "play", "advise", "rules", "search", "explain")
    ),
    "clients": ("tap",),
    "cost": ("compile_for",),
    "sharding": ("what_if",),
}


def show_record(
    record: Record | LiveProgram,
    view: str | None = None,
    *,
    compile_for: CompileFor | None = None,
    what_if: TriesSpecs | None = None,
    tap: Tap | None = None,
    play: Callable[[], PlayRecord] | None = None,
    advise: Advises | None = None,
    rules: Sequence[str] = (),
    search: Searches | None = None,
    explain: Callable[[], WhyRecord] | None = None,
) -> WorkbenchWidget:
    """Creates the live view of a record.

    Args:
        record: A program, a plan, a mesh, a sharding, a measured run, a simulated round or a launched
            program.
        view: One of `views_of(record)`. Default: the first view, which is the explorer for a program.
        compile_for: Compiles the program for a target selected in the view.
        what_if: An object that tries other shardings of the program's arguments, as selected in the view.
        tap: Evaluates the program and returns the values of a client opened in the view.
        play: Evaluates the program and returns the values of every stage, for the player.
        advise: Finds advice about the program when the view requests it.
        rules: What `advise` looks for, one sentence per rule.
        search: Searches shardings of the program's arguments when the view requests it.
        explain: Explains why each collective is there when the view requests it.

    Returns:
        A widget; a notebook displays it if it is the last value of a cell.

    Raises:
        TypeError: if records of this type have no live view.
        ValueError: if this record has no such view, or lacks the data for the view.

    Example:
        >>> from workbench.records.hardware import AxisRecord, DeviceRecord, MeshRecord
        >>> device = DeviceRecord(id=0, position=(0,), platform="cpu")
        >>> show_record(MeshRecord(axes=(AxisRecord(name="clients", size=1),), devices=(device,))).close()
    """
    if isinstance(record, LiveProgram):
        return LaunchView(record)
    if isinstance(record, PlanRecord):
        record = ProgramRecord(name=record.name, target="not compiled", plan=record)
    views, default = _views_of(record)
    view_name = default if view is None else view
    if view_name not in views:
        message = (
            f"`show_record` was given view={view!r}, but the views of a record of type "
            f"{type(record).__name__} are {', '.join(views)}. Pass one of these views, or omit `view`."
        )
        raise ValueError(message)
    if isinstance(record, ProgramRecord):
        options = {
            "compile_for": compile_for, "what_if": what_if, "tap": tap, "play": play, "advise": advise,
            "rules": rules, "search": search, "explain": explain,
        }  # fmt: skip
        return _PROGRAM[view_name](record, **{name: options[name] for name in _ASKING.get(view_name, ())})
    return views[view_name](record)


def _views_of(record: Record) -> tuple[Mapping[str, Callable[..., WorkbenchWidget]], str]:
    if isinstance(record, ProgramRecord | PlanRecord):
        return _PROGRAM, "explorer"
    if isinstance(record, ComparisonRecord):
        return {"compare": CompareView}, "compare"
    if isinstance(record, RunOverlayRecord):
        return {"runs": RunsView}, "runs"
    if isinstance(record, MeshRecord):
        return {"mesh": MeshView}, "mesh"
    if isinstance(record, ShardingRecord | LeafShardingRecord):
        return {"sharding": lambda shardings: ShardingView(_tree(shardings))}, "sharding"
    if isinstance(record, WhatIfRecord):
        return {"sharding": _trial_of}, "sharding"
    if isinstance(record, PropagationRecord):
        return {"propagation": PropagationView}, "propagation"
    if isinstance(record, ProgramGraphRecord | LaunchedRecord):
        return {"launch": LaunchView}, "launch"
    if isinstance(record, ProfileRecord):
        return {"profile": ProfileView}, "profile"
    if isinstance(record, RunRecord):
        return {"run": TimelineView}, "run"
    if isinstance(record, TimelineRecord):
        return {"run": PictureView}, "run"
    message = (
        f"`show_record` was given an object of type {type(record).__name__}, which has no live view. `show_record` "
        "shows a ProgramRecord, ComparisonRecord, PlanRecord, MeshRecord, ShardingRecord, LeafShardingRecord, "
        "PropagationRecord, WhatIfRecord, RunRecord, RunOverlayRecord, ProfileRecord, TimelineRecord, "
        "ProgramGraphRecord or LaunchedRecord; `workbench.render` draws the others."
    )
    raise TypeError(message)


def _sharding_of(record: ProgramRecord, *, what_if: TriesSpecs | None = None) -> WorkbenchWidget:
    names = [value.name for value in record.plan.inputs]
    sharding = _part(record, "inputs")
    inputs = sharding if sharding.mesh is not None else sharding.replace(mesh=record.mesh)
    return ShardingView(inputs, propagation=record.propagation, what_if=what_if, names=names)


def _trial_of(record: WhatIfRecord) -> WorkbenchWidget:
    """The original arguments, with the specs that were tried and their results."""
    before = record.before
    return ShardingView(
        _part(before, "inputs"),
        propagation=record.after.propagation,
        names=[value.name for value in before.plan.inputs],
        live={"trial": {"status": "done", **trial_state(record)}},
        settings={"specs": {leaf: [list(axes) for axes in spec] for leaf, spec in record.specs.items()}},
    )


def _part(record: ProgramRecord, name: str) -> Any:
    part = getattr(record, name)
    if part is None:
        message = (
            f"the record of {record.name} contains no `{name}`, so this view has nothing to show. Inspect the program "
            "under a mesh, with `jax.set_mesh(mesh)`."
        )
        raise ValueError(message)
    return part


def _tree(record: ShardingRecord | LeafShardingRecord) -> ShardingRecord:
    if isinstance(record, ShardingRecord):
        return record
    return ShardingRecord(leaves=(record,), total_bytes=record.size_bytes, bytes_per_device=record.bytes_per_device)
