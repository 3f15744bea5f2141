"""The explorer: every view of one program in one widget, as tabs in four places that share one selection."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from workbench import render
from workbench.records import without_collections
from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.records.run import PlayRecord, RunOverlayRecord, RunRecord
from workbench.render import GLOSSARY, Markup, display_record
from workbench_widgets._advice_controller import AdviceController, Advises, Searches
from workbench_widgets._base import require_dock
from workbench_widgets._cells import cells_of, code_of, files_of
from workbench_widgets._clients import clients_view_state
from workbench_widgets._clients_controller import ClientCourses, ClientsController, Tap
from workbench_widgets._clients_state import Arrays, clients_state
from workbench_widgets._cost_controller import CompileFor, CostController
from workbench_widgets._cost_state import cost_state
from workbench_widgets._devices import Monitor, devices_state
from workbench_widgets._headline import headline
from workbench_widgets._hlo import hlo_state
from workbench_widgets._memory import memory_state
from workbench_widgets._mesh import mesh_state
from workbench_widgets._operations import operations_state, with_measured
from workbench_widgets._overlay import overlay_state
from workbench_widgets._player import player_state
from workbench_widgets._program import program_state
from workbench_widgets._run import RunDigest, run_state
from workbench_widgets._run_controller import RunController, RunLike
from workbench_widgets._sharding import ShardingController, sharding_state
from workbench_widgets._timeline import timeline_state
from workbench_widgets._trial_controller import TriesSpecs
from workbench_widgets.states import Place, TabState


class Part(NamedTuple):
    """A tab of the explorer."""

    title: str
    help: str
    place: Place
    help_without_clients: str | None = None


PARTS = {
    "program": Part("Program", "Stages as data flowing between a server and its clients", "where"),
    "operations": Part("Operations", "Every figure by function, module and line, as a tree", "where"),
    "hlo": Part(
        "Source and HLO",
        "Collectives by line; your source, StableHLO and the compiled module, linked by line",
        "where",
    ),
    "memory": Part(
        "Memory", "Live bytes over the schedule, buffers alive at the peak, and whether the program fits", "where"
    ),
    "mesh": Part(
        "Mesh",
        "Devices, mesh axes, and the devices of every client",
        "where",
        "Devices, mesh axes, and the collectives that join the devices",
    ),
    "clients": Part("Clients", "Every client: examples, FLOPs, bytes, seconds", "when"),
    "timeline": Part("Timeline", "Every measured span of every device, and which device waits for which", "when"),
    "run": Part("Run", "Progress, client curves and stragglers; buttons to pause and stop", "when"),
    "devices": Part("Devices", "Activity of the devices now", "when"),
    "overlay": Part("Runs", "Several runs in one chart, with bands across seeds and paired tests", "when"),
    "sharding": Part(
        "Sharding", "How every input is sharded over the devices, and what another spec would change", "what-if"
    ),
    "advice": Part("Advice", "Changes, their reasons, and their gains", "what-if"),
    "cost": Part("Cost", "Roofline, seconds per stage, bytes per mesh axis; other sizes and targets", "what-if"),
    "player": Part(
        "Play",
        "The round and its collectives step by step, with real values",
        "learn",
        "The collectives of the program step by step",
    ),
}


def _views(record: ProgramRecord, parts: Mapping[str, Any]) -> list[TabState]:
    """The tabs in order."""
    clients = bool(record.plan.placements)
    tabs: list[TabState] = []
    for key, part in PARTS.items():
        if key not in parts:
            continue
        text = part.help if clients or part.help_without_clients is None else part.help_without_clients
        tabs.append({"key": key, "title": part.title, "help": text, "place": part.place})
    return tabs


_NOT_COMPILED = (
    "Advice needs a compiled program. This program was only planned, not compiled, because the devices of its mesh "
    'are not attached. Compile the program for a target: wb.show(fn, on="v5e:16x16")(*args).'
)
_NO_PROGRAM = (
    "This explorer shows a record without its program, so it cannot offer advice. Open the program itself, "
    "wb.show(fn)(*args), or its record, wb.show(record)."
)


class Explorer(AdviceController, CostController, ClientsController, RunController, ShardingController):
    """Live views of a program, combined in one widget with linked selection.

    Args:
        record: The program.
        gradient: A second program to show next to the first, for example its `jax.grad`.
        others: The same program compiled for other targets; their costs are shown next to the program's own cost.
        run: A measured run, which adds the measured time of each client and a timeline per device.
        monitor: A source of device samples, such as `workbench.measurement.watch_devices()`.
        rounds: A run of many rounds, such as `workbench.measurement.Run`, whose curves and per-round clients are shown.
        timeline: A simulated round, with its stragglers.
        runs: Runs to compare, such as `wb.compare(…).record`; their curves are shown in a separate tab.
        tap: Evaluates the program and returns the values of a client; without it, clients cannot be opened.
        view: The tab to open first.
        compile_for: Compiles the program for a target selected in the cost view.
        what_if: An object that tries other shardings of the program's arguments, such as
            `workbench.inspection.what_if.WhatIf`.
        play: Evaluates the program and returns the values of every stage, so that the round can be played.
        advise: Finds advice about the program on request.
        dock: "right" shows the explorer next to the notebook, if JupyterLab has the package's extension.
        search: Searches shardings of the program's arguments on request.
    """

    view_name = "explorer"
    requests: ClassVar[dict[str, str]] = (
        AdviceController.requests
        | CostController.requests
        | ClientsController.requests
        | RunController.requests
        | ShardingController.requests
        | {"play_round": "play_round"}
    )
    background: ClassVar[frozenset[str]] = ClientsController.background | {"play_round"}
    _place = "cost/"
    _trial_place = "sharding/"

    @without_collections()
    def __init__(
        self,
        record: ProgramRecord,
        *,
        gradient: ProgramRecord | None = None,
        others: Sequence[ProgramRecord] = (),
        run: RunRecord | None = None,
        monitor: Monitor | None = None,
        rounds: RunLike | None = None,
        timeline: TimelineRecord | None = None,
        runs: RunOverlayRecord | None = None,
        tap: Tap | None = None,
        view: str | None = None,
        compile_for: CompileFor | None = None,
        what_if: TriesSpecs | None = None,
        play: Callable[[], PlayRecord] | None = None,
        advise: Advises | None = None,
        dock: Literal["right"] | None = None,
        search: Searches | None = None,
    ) -> None:
        require_dock(dock)
        self.record: ProgramRecord = record
        self.gradient: ProgramRecord | None = gradient
        self.monitor: Monitor | None = monitor
        self.dock: Literal["right"] | None = dock
        self._play = play
        files = files_of(record)
        clients = clients_state(record)
        parts, arrays = _parts(record, gradient, others, run, clients, can_compile=compile_for is not None)
        clients_part, columns = clients_view_state(record, run, timeline, clients)
        if clients_part["columns"] or rounds is not None:
            parts["clients"] = {**clients_part, "opens": tap is not None and clients_part["group_size"] == 1}
            arrays |= {f"clients/{name}": value for name, value in columns.items()}
        if rounds is not None or timeline is not None:
            parts["run"] = run_state(timeline)
        if runs is not None:
            parts["overlay"] = overlay_state(runs)
        if "sharding" in parts:
            parts["sharding"]["can_try"] = what_if is not None
        if run is not None and run.events:
            parts["timeline"], columns = timeline_state(run, record)
            arrays |= {f"timeline/{name}": value for name, value in columns.items()}
        player = player_state(None, record)
        has_round = play is not None and bool(record.plan.placements)
        if player["collectives"] or has_round:
            parts["player"] = player | {"can_play": has_round}
        can_advise, can_search = advise is not None and record.module is not None, search is not None
        if record.module is not None or record.mesh is not None:  # otherwise only a plan
            parts["advice"] = {
                "can_advise": can_advise,
                "can_search": can_search,
                "missing": None if can_advise else _NOT_COMPILED if record.module is None else _NO_PROGRAM,
            }
        live: dict[str, Any] = {}
        if monitor is not None:
            parts["devices"] = {}
            live = _prefixed(devices_state(tuple(monitor.history())))
        if view is not None and view not in parts:
            message = (
                f"`Explorer` was given view={view!r}, but its record of {record.name} has the views "
                f"{', '.join(parts)}. Pass one of these views, or omit `view=` to start with the first view."
            )
            raise ValueError(message)
        views = _views(record, parts)
        settings = {} if view is None else {"view": view}
        figures = headline(record, [tab["key"] for tab in views], run)
        data = {
            **parts,
            "cells": cells_of(files),
            "code": code_of(files),
            "views": views,
            "title": record.name,
            "target": record.target,
            "headline": figures,
            "glossary": GLOSSARY,
        }
        label = render.describe(record)
        super().__init__(
            advise=advise if record.module is not None else None,
            search=search,
            tree=record.call_tree,
            leaf_names=_leaf_names(record),
            programs=(record, *others),
            compile_for=compile_for,
            what_if=what_if,
            propagation=record.propagation,
            tap=tap,
            data=data,
            arrays=arrays,
            label=label,
            live=live,
            settings=settings,
        )
        self._unsubscribe = None if monitor is None else self._listen(monitor)
        self._digest = RunDigest()
        self.courses: ClientCourses = ClientCourses(parts["clients"]["count"] if "clients" in parts else 0)
        if rounds is not None:
            self.follow(rounds)
            self.live = live | self._rounds_state()
            self.observe(self._turned, "settings")

    def refresh(self) -> None:
        """Sends the run's state if a page shows it and one of its tabs is open."""
        if self.followed is not None and self.is_open and self.settings.get("view") in ("run", "clients"):
            self.update_live(**self._rounds_state())

    def _rounds_state(self) -> dict[str, Any]:
        assert self.followed is not None
        self.courses.read(self.followed.history)
        digest = self._digest.state(self.followed)
        state: dict[str, Any] = {f"run/{name}": value for name, value in digest.items()}
        state.update((f"clients/{name}", value) for name, value in self.courses.state().items())
        return state

    def _turned(self, change: Mapping[str, Mapping[str, object]]) -> None:
        """Updates a newly opened tab, which may have missed rounds."""
        if change["new"].get("view") != change["old"].get("view"):
            self.refresh()

    def _listen(self, monitor: Monitor) -> Callable[[], None]:
        me = weakref.ref(self)

        def arrived(_sample: object) -> None:
            if (explorer := me()) is not None and explorer.is_open and explorer.monitor is not None:
                explorer.update_live(**_prefixed(devices_state(tuple(explorer.monitor.history()))))

        return monitor.subscribe(arrived)

    def play_round(self, report: Callable[[str], None]) -> dict[str, Any]:
        """The stages of one evaluation and their values, for the player."""
        if self._play is None:
            message = (
                "`play_round` was called on an explorer without its program, for example an explorer of a saved "
                "record. Open an explorer from the program: `workbench.explore(fn)(*args)`."
            )
            raise RuntimeError(message)
        report("Evaluating the program")
        return player_state(self._play())

    def static_svg(self) -> Markup:
        """The stages as a picture."""
        return render.svg(self.record)

    def static_html(self) -> str:
        """The record's card and its largest functions and lines; if there are clients, the stages come first."""
        picture = super().static_html() if self.record.plan.placements else ""
        return picture + display_record(self.record)["text/html"]

    def text(self) -> str:
        """The stages as indented lines."""
        return render.text(self.record)


def _parts(
    record: ProgramRecord,
    gradient: ProgramRecord | None,
    others: Sequence[ProgramRecord],
    run: RunRecord | None,
    clients: tuple[dict[str, Any], Arrays],
    *,
    can_compile: bool,
) -> tuple[dict[str, Any], Arrays]:
    """The states of all views for which the record contains data."""
    parts: dict[str, Any] = {}
    arrays: Arrays = {}

    def add(key: str, part: tuple[Mapping[str, Any], Arrays]) -> None:
        parts[key] = part[0]
        arrays.update({f"{key}/{name}": value for name, value in part[1].items()})

    if record.plan.placements or gradient is not None or record.call_tree is None:  # else: operations
        add("program", program_state(record, gradient, clients))
    several = record.mesh is not None and len(record.mesh.devices) > 1
    if record.mesh is not None and several:
        names = [value.name for value in record.plan.inputs]
        collectives = record.module.collectives if record.module is not None else ()
        add("mesh", mesh_state(record.mesh, record.cost, record.inputs, names=names, collectives=collectives))
    # A single device needs no sharding view.
    if record.inputs is not None and (several or any(len(leaf.shards) > 1 for leaf in record.inputs.leaves)):
        # Arrays that are not yet placed have no mesh, but the program has one.
        inputs = record.inputs if record.inputs.mesh is not None else record.inputs.replace(mesh=record.mesh)
        add("sharding", sharding_state(inputs, record.propagation, names=[v.name for v in record.plan.inputs]))
    if record.module is not None or record.stablehlo:
        add("hlo", hlo_state(record))
    if record.call_tree is not None:
        instructions = record.module.instructions if record.module is not None else ()
        files = {instruction.source.file for instruction in instructions if instruction.source is not None}
        tree = with_measured(record.call_tree, None if run is None else run.call_tree)
        add("operations", operations_state(tree, files))
    if record.module is not None and (record.module.memory.timeline or record.module.memory.peak_bytes is not None):
        add("memory", memory_state(record))
    if record.cost is not None or record.module is not None:
        parts["cost"] = cost_state(record, others, can_compile=can_compile)
    return parts, arrays


def _leaf_names(record: ProgramRecord) -> dict[str, str]:
    """Maps the paths of the arguments' arrays to their names in the sharding view."""
    leaves = record.inputs.leaves if record.inputs is not None else ()
    names = [value.name for value in record.plan.inputs]
    return dict(zip([leaf.path for leaf in leaves], names, strict=True)) if len(names) == len(leaves) else {}


def _prefixed(live: dict[str, Any]) -> dict[str, Any]:
    return {f"devices/{name}": value for name, value in live.items()}
