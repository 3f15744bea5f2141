"""Hosts whose nodes run elsewhere: they send orders to the nodes, and keep the nodes' latest reports."""

import time
from typing import Any

from workbench.launch._nodes import NodeSpec


class ReportingHost:
    """Nodes that run together elsewhere."""

    def __init__(self, specs: tuple[NodeSpec, ...], *, place: str, patience_seconds: float) -> None:
        self.specs = specs
        self._place, self._patience_seconds = place, patience_seconds
        self._hear({})

    def request_stop(self) -> None:
        """Sets `stop_requested` of the nodes."""
        self._send("stop")

    def close(self, reason: str) -> None:
        """Closes the nodes' services."""
        self._send("close", reason)

    def report_failed(self, label: str, reason: str) -> None:
        """Notifies the nodes that another node has failed."""
        self._send("failed", label, reason)

    def hung(self) -> list[tuple[str, float, str]]:
        """Returns the label, the seconds without a heartbeat, and the stack of each hung node."""
        unheard = time.monotonic() - self._heard_at
        hung = []
        for spec in self.specs:
            report = self._reports.get(spec.label)
            if spec.hang_seconds is None or report is None:
                continue
            if report["silent_seconds"] > spec.hang_seconds:
                hung.append((spec.label, report["silent_seconds"], report["stack"] or ""))
            elif unheard > spec.hang_seconds + self._patience_seconds:
                silence = f"no report from the {self._place}, which may be holding the GIL"
                hung.append((spec.label, unheard, silence))
        return hung

    def _send(self, *order: str) -> None:
        """Sends an order to the nodes; see `NodeRunner.obey`."""
        raise NotImplementedError

    def _hear(self, reports: dict[str, dict[str, Any]]) -> None:
        """Keeps the latest report of each node; see `NodeRunner.report`."""
        self._reports, self._heard_at = reports, time.monotonic()

    def _reported(self, label: str) -> dict[str, Any]:
        """Returns the latest numbers of a node for a `NodeStateRecord`."""
        report = self._reports.get(label, {})
        state = {name: value for name, value in report.items() if name not in ("silent_seconds", "stack")}
        if state.get("heartbeat_age_seconds") is not None:
            state["heartbeat_age_seconds"] += time.monotonic() - self._heard_at
        return state
