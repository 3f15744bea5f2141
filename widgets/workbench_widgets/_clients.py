"""The clients view: thousands of clients as a heat map, bars or a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.records.run import RunRecord
from workbench.render import GLOSSARY, Markup, render_clients_svg
from workbench.render.units import count_text, seconds_text
from workbench_widgets._answers import Answers, Tap
from workbench_widgets._client_courses import ClientCourses
from workbench_widgets._clients_state import Arrays, client_stage, clients_state, floats, group_means
from workbench_widgets._run_controller import RunController, RunLike
from workbench_widgets.states import ClientColumn, ClientsState, ClientsViewState


class ClientsView(RunController):
    """Live view of a program's clients and their figures; clients can be sorted, filtered, pinned and opened.

    Args:
        record: The program, whose predicted cost, if available, supplies the per-client figures.
        run: A measured run of the program; it adds measured times and steps.
        rounds: A run of many rounds, whose per-client metrics are shown live.
        timeline: A simulated round, which adds the simulated time of each client.
        tap: Evaluates the program and returns the values of a client; without it, clients cannot be opened.

    Attributes:
        answers: The kernel's answers, such as the values of a client.
        courses: The clients' metrics over the latest rounds.
    """

    view_name = "clients"

    def __init__(
        self,
        record: ProgramRecord,
        run: RunRecord | None = None,
        *,
        rounds: RunLike | None = None,
        timeline: TimelineRecord | None = None,
        tap: Tap | None = None,
        **values: object,
    ) -> None:
        self.record: ProgramRecord = record
        self.run: RunRecord | None = run
        data, arrays = clients_view_state(record, run, timeline, opens=tap is not None)
        label = f"{data['placement'] or 'No clients'} of {record.name}" + (
            f"; {data['sentence']}" if data["sentence"] else ""
        )
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=label, **values)
        self.courses = ClientCourses(data["count"])
        self.answers = Answers(self, record, tap=tap)
        self._answering = (self.answers, self.courses)
        if rounds is not None:
            self.courses.read(rounds.history)
            self.live = {**self.courses.state()}
            self.follow(rounds)

    def refresh(self) -> None:
        """Sends the last round, if a page shows the view."""
        if self.followed is not None:
            self.courses.read(self.followed.history)
            if self.is_open:
                self.update_live(**self.courses.state())

    def static_picture(self) -> Markup | None:
        """The clients as bars, for the first column whose values differ between clients."""
        shown = _telling_column(self.data, self.arrays)
        if shown is None:
            return None
        column, values = shown
        return render_clients_svg(f"{column['label']}{_kind(column)}", values.tolist(), unit=column["unit"])

    def text(self) -> str:
        """Minimum, mean and maximum of every column."""
        return clients_text(self.label, self.data, self.arrays)


def clients_view_state(
    record: ProgramRecord,
    run: RunRecord | None = None,
    timeline: TimelineRecord | None = None,
    clients: tuple[ClientsState, Arrays] | None = None,
    *,
    opens: bool = False,
) -> tuple[ClientsViewState, Arrays]:
    """State of the clients view: first the program's columns, then the measured and the simulated columns."""
    base, columns = clients_state(record) if clients is None else clients
    stage = client_stage(record)
    state: ClientsViewState = {
        **base,
        "columns": list(base["columns"]),
        "jaxpr": stage.jaxpr[:20_000] if stage is not None else "",
        "opens": opens and base["group_size"] == 1,
    }
    arrays = dict(columns)
    if timeline is not None:
        needed = {outcome.client: outcome.needed_seconds for outcome in timeline.outcomes}
        _add(state, arrays, ("needed", "round", "seconds", "simulated"), needed)
        for phase, label in (("download", "downloading"), ("compute", "computing"), ("upload", "uploading")):
            spent = {s.client: s.seconds for s in timeline.spans if s.kind == phase and s.complete}
            _add(state, arrays, (phase, label, "seconds", "simulated"), spent)
    if run is None:
        return state, arrays
    measured = {
        ("seconds", "time", "seconds"): {c.client: c.seconds for c in run.clients},
        ("steps", "iterations of its inner loop", "count"): {c.client: c.steps for c in run.clients},
        ("sent", "bytes sent", "bytes"): {c.client: c.sent_bytes for c in run.clients},
        ("measured_flops", "matrix FLOPs executed", "flops"): {c.client: c.flops for c in run.clients},
        ("measured_elementwise", "elementwise FLOPs executed", "flops"): {
            c.client: c.elementwise_flops for c in run.clients
        },
    }
    for (key, label, unit), by_client in measured.items():
        _add(state, arrays, (key, label, unit, "measured"), by_client)
    seconds = [client.seconds for client in run.clients if client.seconds]
    if seconds:
        middle = float(np.median(seconds))
        slowness = {c.client: None if c.seconds is None else c.seconds / middle for c in run.clients}
        _add(state, arrays, ("slowness", "multiple of the median time", "times", "measured"), slowness)
    return state, arrays


def _add(
    state: ClientsViewState, arrays: Arrays, column: tuple[str, str, str, str], by_client: Mapping[Any, float | None]
) -> None:
    """Adds a column, unless all its values are unknown."""
    key, label, unit, kind = column
    values = group_means(by_client, state["count"], state["group_size"])
    if np.isnan(values).all():
        return
    state["columns"].append({"key": key, "label": label, "unit": unit, "kind": kind})
    arrays[f"clients.{key}"] = floats(values)


def _telling_column(data: Mapping[str, Any], arrays: Arrays) -> tuple[ClientColumn, np.ndarray] | None:
    pairs = [(column, np.frombuffer(arrays[f"clients.{column['key']}"], "<f4")) for column in data["columns"]]
    return next(((c, v) for c, v in pairs if np.nanmax(v) > np.nanmin(v)), pairs[0] if pairs else None)


def _kind(column: ClientColumn) -> str:
    return f" ({column['kind']})" if column["kind"] else ""


def clients_text(label: str, data: Mapping[str, Any], arrays: Arrays) -> str:
    """The columns in words."""
    lines = [label + "."]
    for column in data["columns"]:
        values = np.frombuffer(arrays[f"clients.{column['key']}"], "<f4")
        numbers = values[np.isfinite(values)]
        show = seconds_text if column["unit"] == "seconds" else count_text
        parts = [
            f"{name} {show(float(f(numbers)))}" for name, f in (("least", np.min), ("mean", np.mean), ("most", np.max))
        ]
        position = int(np.nanargmax(values))
        size = data["group_size"]
        client_label = (
            f"client {position}" if size == 1 else f"clients {position * size:,} to {(position + 1) * size - 1:,}"
        )
        lines.append(f"  {column['label']}{_kind(column)}: {', '.join(parts)} ({client_label})")
    return "\n".join(lines)
