"""The explorer's tabs in order: the title, the place and the state of each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.records.run import RunOverlayRecord, RunRecord
from workbench_widgets._clients import clients_view_state
from workbench_widgets._clients_state import Arrays, clients_state
from workbench_widgets._cost_state import cost_state
from workbench_widgets._devices import Monitor
from workbench_widgets._hlo import hlo_state
from workbench_widgets._memory import memory_state
from workbench_widgets._mesh import mesh_state
from workbench_widgets._operations import operations_state, with_measured
from workbench_widgets._overlay import overlay_state
from workbench_widgets._player import player_state
from workbench_widgets._program import program_state
from workbench_widgets._run import run_state
from workbench_widgets._run_controller import RunLike
from workbench_widgets._sharding import sharding_state
from workbench_widgets._timeline import timeline_state
from workbench_widgets.states import AdviceState, ClientsState, Place, TabState

State = tuple[Mapping[str, Any], Arrays]

_NOT_COMPILED = (
    "Advice needs a compiled program. This program was only planned, not compiled, because the devices of its mesh "
    'are not attached. Compile the program for a target: wb.show(fn, on="v5e:16x16")(*args).'
)
_NO_PROGRAM = (
    "This explorer shows a record without its program, so it cannot offer advice. Open the program itself "
    "with wb.show(fn)(*args), or its record with wb.show(record)."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """Everything that an explorer shows.

    Attributes:
        can: The names of the functions that the explorer was given, such as "advise".
        rules: What advice looks for, one sentence per rule.
    """

    record: ProgramRecord
    gradient: ProgramRecord | None
    others: Sequence[ProgramRecord]
    run: RunRecord | None
    monitor: Monitor | None
    rounds: RunLike | None
    timeline: TimelineRecord | None
    runs: RunOverlayRecord | None
    can: frozenset[str]
    rules: Sequence[str] = ()

    @functools.cached_property
    def clients(self) -> tuple[ClientsState, Arrays]:
        return clients_state(self.record)

    @property
    def names(self) -> list[str]:
        """The names of the program's arguments."""
        return [value.name for value in self.record.plan.inputs]

    @property
    def has_several_devices(self) -> bool:
        """True if the mesh of the program has several devices."""
        return self.record.mesh is not None and len(self.record.mesh.devices) > 1


class Tab(NamedTuple):
    """A tab of the explorer.

    Attributes:
        state: Returns the state of the tab's view, or None if the sources contain nothing for the tab.
    """

    key: str
    title: str
    help: str
    place: Place
    state: Callable[[Sources], State | None]
    help_without_clients: str | None = None


def _program(sources: Sources) -> State | None:
    record = sources.record
    if not record.plan.placements and sources.gradient is None and record.call_tree is not None:
        return None  # the operations show such a program
    return program_state(record, sources.gradient, sources.clients)


def _operations(sources: Sources) -> State | None:
    record, run = sources.record, sources.run
    if record.call_tree is None:
        return None
    instructions = record.module.instructions if record.module is not None else ()
    files = {instruction.source.file for instruction in instructions if instruction.source is not None}
    return operations_state(with_measured(record.call_tree, None if run is None else run.call_tree), files)


def _hlo(sources: Sources) -> State | None:
    record = sources.record
    if record.module is None and not record.stablehlo:
        return None
    return hlo_state(record, can_explain="explain" in sources.can)


def _memory(sources: Sources) -> State | None:
    module = sources.record.module
    if module is None or not (module.memory.timeline or module.memory.peak_bytes is not None):
        return None
    return memory_state(sources.record)


def _mesh(sources: Sources) -> State | None:
    record = sources.record
    if record.mesh is None or not sources.has_several_devices:
        return None
    collectives = record.module.collectives if record.module is not None else ()
    return mesh_state(
        record.mesh, record.cost, record.inputs, names=sources.names, collectives=collectives, tree=record.call_tree
    )


def _clients(sources: Sources) -> State | None:
    state, arrays = clients_view_state(
        sources.record, sources.run, sources.timeline, sources.clients, opens="tap" in sources.can
    )
    return None if not state["columns"] and sources.rounds is None else (state, arrays)


def _timeline(sources: Sources) -> State | None:
    run = sources.run
    return timeline_state(run, sources.record) if run is not None and run.events else None


def _run(sources: Sources) -> State | None:
    if sources.rounds is None and sources.timeline is None:
        return None
    return run_state(sources.timeline), {}


def _devices(sources: Sources) -> State | None:
    return None if sources.monitor is None else ({}, {})


def _overlay(sources: Sources) -> State | None:
    return None if sources.runs is None else (overlay_state(sources.runs), {})


def _sharding(sources: Sources) -> State | None:
    record = sources.record
    inputs = record.inputs
    # A single device needs no sharding view.
    if inputs is None or not (sources.has_several_devices or any(len(leaf.shards) > 1 for leaf in inputs.leaves)):
        return None
    # Arrays that are not yet placed have no mesh, but the program has one.
    inputs = inputs if inputs.mesh is not None else inputs.replace(mesh=record.mesh)
    return sharding_state(inputs, record.propagation, can_try="what_if" in sources.can, names=sources.names)


def _advice(sources: Sources) -> State | None:
    record, can_advise = sources.record, "advise" in sources.can
    if record.module is None and record.mesh is None:  # only a plan
        return None
    missing = None if can_advise else _NOT_COMPILED if record.module is None else _NO_PROGRAM
    state: AdviceState = {
        "can_advise": can_advise,
        "can_search": "search" in sources.can,
        "missing": missing,
        "rules": list(sources.rules) if can_advise else [],
    }
    return state, {}


def _cost(sources: Sources) -> State | None:
    record = sources.record
    if record.cost is None and record.module is None:
        return None
    return cost_state(record, sources.others, can_compile="compile_for" in sources.can), {}


def _player(sources: Sources) -> State | None:
    can_play = "play" in sources.can and bool(sources.record.plan.placements)
    state = player_state(None, sources.record, can_play=can_play)
    return (state, {}) if state["collectives"] or can_play else None


TABS: tuple[Tab, ...] = (
    Tab(
        "program",
        "Program",
        "Stages of the program, and the data that flow between the server and its clients",
        "where",
        _program,
    ),
    Tab("operations", "Operations", "All figures as a tree, by function, module and line", "where", _operations),
    Tab(
        "hlo",
        "Source and HLO",
        "Collectives by line; your source, StableHLO and the compiled module, linked by line",
        "where",
        _hlo,
    ),
    Tab(
        "memory",
        "Memory",
        "Live bytes over the schedule, buffers alive at the peak, and whether the program fits",
        "where",
        _memory,
    ),
    Tab(
        "mesh",
        "Mesh",
        "Devices, mesh axes, and the devices of every client",
        "where",
        _mesh,
        "Devices, mesh axes, and the collectives between the devices",
    ),
    Tab("clients", "Clients", "Every client: examples, FLOPs, bytes, seconds", "when", _clients),
    Tab(
        "timeline",
        "Timeline",
        "Every measured span of every device, and which device waits for which",
        "when",
        _timeline,
    ),
    Tab("run", "Run", "Progress, client curves and stragglers; buttons to pause and stop", "when", _run),
    Tab("devices", "Devices", "Current activity of the devices", "when", _devices),
    Tab("overlay", "Runs", "Several runs in one chart, with bands across seeds and paired tests", "when", _overlay),
    Tab(
        "sharding",
        "Sharding",
        "How every input is sharded over the devices, and what another spec would change",
        "what-if",
        _sharding,
    ),
    Tab("advice", "Advice", "Suggested changes, with reasons and gains", "what-if", _advice),
    Tab("cost", "Cost", "Roofline, seconds per stage, bytes per mesh axis; other sizes and targets", "what-if", _cost),
    Tab(
        "player",
        "Play",
        "The round and its collectives step by step, with real values",
        "learn",
        _player,
        "The collectives of the program step by step",
    ),
)


def tab_states(sources: Sources) -> tuple[list[TabState], dict[str, Mapping[str, Any]], Arrays]:
    """The tabs for which the sources contain data, in order; the states of their views; and the views' arrays."""
    tabs: list[TabState] = []
    parts: dict[str, Mapping[str, Any]] = {}
    arrays: Arrays = {}
    for tab in TABS:
        state = tab.state(sources)
        if state is None:
            continue
        help_text = tab.help if sources.record.plan.placements else tab.help_without_clients or tab.help
        tabs.append({"key": tab.key, "title": tab.title, "help": help_text, "place": tab.place})
        parts[tab.key] = state[0]
        arrays.update({f"{tab.key}/{name}": values for name, values in state[1].items()})
    return tabs, parts, arrays
