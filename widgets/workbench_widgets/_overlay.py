"""Comparison of several runs: curves with bands over seeds, final values with intervals, and paired tests."""

from collections.abc import Callable
from typing import Any

from workbench import render
from workbench.records import Record
from workbench.records.run import RunOverlayRecord
from workbench.render import GLOSSARY
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._job import poll
from workbench_widgets.states import OverlayState

LOOK_SECONDS = 1.0


class RunsView(WorkbenchWidget):
    """Compares several runs, or all trials of a sweep; live while runs continue.

    Args:
        record: The runs.
        again: Reads the runs again; called once a second while runs continue and a page shows the view.
        code: Titles and texts for exported pages, with the runs' code and provenance.
    """

    view_name = "overlay"

    def __init__(
        self,
        record: RunOverlayRecord,
        again: Callable[[], RunOverlayRecord] | None = None,
        *,
        code: list[tuple[str, str]] | None = None,
        **values: object,
    ) -> None:
        self.record: RunOverlayRecord = record
        self._subject = record
        self._again = again
        data = {**overlay_state(record), "glossary": GLOSSARY, "code": [list(pair) for pair in code or ()]}
        super().__init__(data=data, label=render.describe(record), live={"running": record.running}, **values)
        if again is not None and record.running:
            poll(self, _look, LOOK_SECONDS)

    def refresh(self) -> None:
        """Reads the runs again and sends their state."""
        if self._again is None:
            return
        self.record = self._subject = self._again()
        state = overlay_state(self.record)
        self.update_live(results=state["results"], pairs=state["pairs"], running=self.record.running)


def overlay_state(record: RunOverlayRecord) -> OverlayState:
    """State of the view of several runs."""
    return {
        "metric": record.metric,
        "minimize": record.minimize,
        "confidence": record.confidence,
        "sentence": render.describe(record),
        "results": [_plain(result) for result in record.results],
        "pairs": [_plain(pair) for pair in record.pairs],
    }


def _plain(record: Record) -> Any:
    return _bare(record.to_dict())


def _bare(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _bare(item) for name, item in value.items() if name not in ("record", "version")}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def _look(view: RunsView) -> bool:
    if view.is_open:
        view.guarded(view.refresh)()
    return view.record.running
