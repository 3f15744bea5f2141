"""The clients view: thousands of clients as a heat map, bars or a table."""

from typing import Any

import numpy as np

from widgets._base import WorkbenchWidget
from widgets._clients_state import Arrays, client_stage, clients_state, floats
from workbench.records import ProgramRecord, RunRecord
from workbench.views import GLOSSARY, count_text, seconds_text


class ClientsView(WorkbenchWidget):
    """Every client of a program, live: its examples, FLOPs, bytes and seconds; sort, filter, pin.

    Args:
        record: The program; its cost, where there is one, tells clients apart.
        run: A measured run of it, which adds measured seconds and steps.
    """

    module_name = "clients.js"

    def __init__(self, record: ProgramRecord, run: RunRecord | None = None, **values: Any) -> None:
        self.record, self.run = record, run
        data, arrays = clients_view_state(record, run)
        label = f"{data['placement'] or 'No clients'} of {record.name}" + (
            f"; {data['sentence']}" if data["sentence"] else ""
        )
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=label, **values)

    def text(self) -> str:
        """Least, mean and most of every column."""
        return clients_text(self.label, self.data, self.arrays)


def clients_view_state(record: ProgramRecord, run: RunRecord | None = None) -> tuple[dict[str, Any], Arrays]:
    """What the clients view draws: the program's columns, then the measured ones."""
    state, arrays = clients_state(record)
    stage = client_stage(record)
    state["jaxpr"] = stage.jaxpr[:20_000] if stage is not None else ""
    if run is None:
        return state, arrays
    measured = {
        ("seconds", "time", "seconds"): {c.client: c.seconds for c in run.clients},
        ("steps", "steps", "count"): {c.client: c.steps for c in run.clients},
        ("sent", "bytes sent", "bytes"): {c.client: c.sent_bytes for c in run.clients},
        ("measured_flops", "FLOPs computed", "flops"): {c.client: c.flops for c in run.clients},
    }
    for (key, label, unit), by_client in measured.items():
        values = [by_client.get(client) for client in range(state["count"])]
        if all(value is None for value in values):
            continue
        state["columns"].append({"key": key, "label": label, "unit": unit, "kind": "measured"})
        arrays[f"clients.{key}"] = floats([np.nan if value is None else value for value in values])
    return state, arrays


def clients_text(label: str, data: dict[str, Any], arrays: Arrays) -> str:
    """The columns in words."""
    lines = [label + "."]
    for column in data["columns"]:
        values = np.frombuffer(arrays[f"clients.{column['key']}"], "<f4")
        known = values[np.isfinite(values)]
        show = seconds_text if column["unit"] == "seconds" else count_text
        parts = [
            f"{name} {show(float(f(known)))}" for name, f in (("least", np.min), ("mean", np.mean), ("most", np.max))
        ]
        which = int(np.nanargmax(values))
        kind = f" ({column['kind']})" if column["kind"] else ""
        lines.append(f"  {column['label']}{kind}: {', '.join(parts)} (client {which})")
    return "\n".join(lines)
