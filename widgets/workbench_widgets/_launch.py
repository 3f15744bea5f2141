"""The launch view: a program of nodes before launch, and the live states of the nodes afterwards."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from workbench import render
from workbench.records.launch import LaunchedRecord, LiveProgram, NodeStateRecord, ProgramGraphRecord
from workbench.render import GLOSSARY, Markup, node_glyph
from workbench.render.launch import NODE_KINDS, STATE_HUES, STATE_SIGNS, count_states, groups_of, load_text, worst_hue
from workbench.render.units import count_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import floats
from workbench_widgets._job import poll
from workbench_widgets.states import ChosenNode, GroupState, LaunchLive, LaunchState, NodeState, ProgramNode

LOOK_SECONDS = 0.5
MOST_SAMPLES = 240  # number of samples in a node's history: two minutes
MOST_LINES = 200  # of a log


class LaunchView(WorkbenchWidget):
    """A program of nodes, shown as a graph before launch, and afterwards live with logs and a stop button.

    While a page shows it, the view polls twice a second in a separate thread, even while a cell waits for the program.
    Select a node to see its history and its log.

    Args:
        source: A launched program, its record, or the graph of a program before launch.
    """

    view_name = "launch"
    requests: ClassVar[dict[str, str]] = {"stop": "stop", "log": "log"}

    def __init__(self, source: LiveProgram | LaunchedRecord | ProgramGraphRecord, **values: object) -> None:
        self.launched: LiveProgram | None = None if isinstance(source, LaunchedRecord | ProgramGraphRecord) else source
        record = source if isinstance(source, LaunchedRecord | ProgramGraphRecord) else source.record
        self.graph: ProgramGraphRecord = record if isinstance(record, ProgramGraphRecord) else record.graph
        self._record = record
        self._history = _History()
        live = {} if isinstance(record, ProgramGraphRecord) else self._state(record)
        label = render.describe(record)
        data = {**graph_state(self.graph, self._states()), "glossary": GLOSSARY}
        super().__init__(data=data, label=label, live=live, **values)
        if self.launched is not None:
            self.observe(self._chosen, "selection")
            poll(self, _look, LOOK_SECONDS)

    def refresh(self) -> None:
        """Sends the states of the nodes, if a page shows the view."""
        if self.launched is not None and self.is_open:
            self._record = self.launched.record
            self.update_live(**self._state(self._record))

    def stop(self) -> str:
        """Stops the program without waiting for it to exit."""
        if self.launched is None:
            message = f"program {self.graph.name!r} is shown as a record, so it cannot be stopped here"
            raise ValueError(message)
        threading.Thread(target=self.guarded(self.launched.stop), name=f"stop {self.graph.name}", daemon=True).start()
        return "stopping"

    def log(self, node: str) -> list[str]:
        """All stored lines of a node's log."""
        if self.launched is None:
            return [line for state in self._states() if state.label == node for line in state.log_tail]
        return list(self.launched.logs(node))

    def static_picture(self) -> Markup:
        """The graph, with the last known states."""
        return render.svg(self.graph, states=self._states())

    def text(self) -> str:
        """Describes the program, group by group."""
        return render.text(self._record)

    def _states(self) -> tuple[NodeStateRecord, ...]:
        return () if isinstance(self._record, ProgramGraphRecord) else self._record.states

    def _chosen(self, _change: object) -> None:
        if isinstance(self._record, LaunchedRecord):
            self.update_live(chosen=self._of_chosen(self._record))

    def _state(self, record: LaunchedRecord) -> LaunchLive:
        self._history.add(record)
        by_label = {state.label: state for state in record.states}
        answering = {node.label for node in record.graph.nodes if node.methods}
        groups: dict[str, GroupState] = {}
        for label, nodes in groups_of(record.graph).items():
            group_states = [by_label[node.label] for node in nodes if node.label in by_label]
            groups[label] = {
                "said": count_states(group_states),
                "hue": worst_hue(group_states),
                "load": load_text(group_states),
            }
        return {
            "status": record.status,
            "engine": record.engine,
            "elapsed": record.elapsed_seconds,
            "load": load_text(record.states),
            "said": count_states(record.states),
            "groups": groups,
            "nodes": [_node_state(state, answering) for state in record.states],
            "chosen": self._of_chosen(record),
        }

    def _of_chosen(self, record: LaunchedRecord) -> ChosenNode | None:
        label = self.selection.get("node")
        state = next((state for state in record.states if state.label == label), None)
        if label is None or state is None:
            return None
        lines = list(state.log_tail if self.launched is None else tuple(self.launched.logs(label))[-MOST_LINES:])
        error = (state.error or "").rstrip().splitlines()
        if error and lines[-len(error) :] == error:  # already shown above the log
            lines = lines[: -len(error)]
        return {"label": label, "log": lines, "error": state.error, "history": self._history.of(label)}


class _History:
    """Each node's states in the last updates."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[float | None, ...]]] = {}

    def add(self, record: LaunchedRecord) -> None:
        for state in record.states:
            figures = (state.calls_per_second, state.queue_length, state.cpu_cores, state.memory_bytes)
            sample = (record.elapsed_seconds, *figures)
            self._samples.setdefault(state.label, deque(maxlen=MOST_SAMPLES)).append(sample)

    def of(self, label: str) -> dict[str, bytes]:
        columns = zip(*tuple(self._samples.get(label, ())), strict=True)
        names = ("seconds", "calls", "queue", "cpu", "memory")
        return {name: floats(list(column)) for name, column in zip(names, columns, strict=False)}


def graph_state(graph: ProgramGraphRecord, states: Sequence[NodeStateRecord] = ()) -> LaunchState:
    svg = render.svg(graph, states=states, live=True)
    calls: dict[str, list[str]] = {}
    callers: dict[str, list[str]] = {}
    for edge in graph.edges:
        calls.setdefault(edge.source, []).append(edge.target)
        callers.setdefault(edge.target, []).append(edge.source)
    shared: dict[int, list[str]] = {}
    for node in graph.nodes:
        shared.setdefault(node.host, []).append(node.label)
    nodes: dict[str, ProgramNode] = {
        node.label: {
            "group": node.group,
            "kind": NODE_KINDS[node.kind],
            "hue": "server" if node.kind == "service" else "clients",
            "target": node.target,
            "methods": list(node.methods),
            "calls": calls.get(node.label, []),
            "callers": callers.get(node.label, []),
            "concurrency": node.concurrency,
            "restarts": node.restart_limit,
            "resources": [f"{name} {count_text(need)}" for name, need in node.resources.items()],
            "shares": [label for label in shared[node.host] if label != node.label],
        }
        for node in graph.nodes
    }
    return {
        "name": graph.name,
        "svg": str(svg),
        "nodes": nodes,
        "groups": list(groups_of(graph)),
        "glyphs": {state: node_glyph(state) for state in STATE_SIGNS},
        "signs": STATE_SIGNS,
        "hues": STATE_HUES,
    }


def _node_state(state: NodeStateRecord, answering: set[str]) -> NodeState:
    answers = state.label in answering
    return {
        "label": state.label,
        "state": state.state,
        "where": state.where,
        "beat": state.heartbeat_age_seconds,
        "uptime": state.uptime_seconds,
        "calls": state.calls,
        "rate": state.calls_per_second if answers else None,
        "errors": state.call_errors,
        "active": state.active_calls,
        "queue": state.queue_length if answers else None,
        "cpu": state.cpu_cores,
        "memory": state.memory_bytes,
        "restarts": state.restarts,
        "code": state.exit_code,
        "failed": state.error is not None,
        "last": (state.error or "").strip().splitlines()[-1:] or list(state.log_tail[-1:]),
    }


def _look(view: LaunchView) -> bool:
    over = view.launched is None or not view.launched.alive
    view.guarded(view.refresh)()
    return not (over and view.is_open)
