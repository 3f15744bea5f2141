"""Requests from the sharding view to the kernel: try other PartitionSpecs, or stop a trial."""

import contextvars
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from workbench import render
from workbench.records.compiled import TrafficRecord, WhatIfRecord
from workbench.render import change_sign, what_if_amounts
from workbench.render.units import bytes_text, count_text, shape_text, source_text, spec_text
from workbench_widgets._base import WorkbenchWidget, problem
from workbench_widgets._propagation import propagation_state

Specs = Mapping[str, Sequence[Sequence[str]]]


class TriesSpecs(Protocol):
    """Interface for trying other shardings."""

    def plan(self, specs: Mapping[str, Any]) -> WhatIfRecord:
        """Plans the program with different specs."""
        ...

    def compile(
        self, tried: WhatIfRecord, *, progress: Callable[[str, float], None], cancel: threading.Event
    ) -> WhatIfRecord:
        """Adds compiled results."""
        ...


class TrialController(WorkbenchWidget):
    """A view that tries other shardings for a program without blocking the kernel.

    One trial at a time runs in a thread; starting a new trial or closing the view stops it.

    Attributes:
        tried: Result of the most recently finished trial.
    """

    requests: ClassVar[dict[str, str]] = {"what_if": "start_trial", "stop_trial": "stop_trial"}
    _trial_place = ""  # prefix of the sharding view in a widget of several views: "sharding/"

    def __init__(self, *, what_if: TriesSpecs | None = None, **values: object) -> None:
        self.tried: WhatIfRecord | None = None
        self._what_if = what_if
        self._trial: _Trial | None = None
        self._trials = 0
        super().__init__(**values)

    def start_trial(self, specs: Specs, compiled: bool = True) -> None:
        """Starts a trial of different specs in the background; stops the trial in progress.

        Args:
            specs: Mesh axes per dimension, for each leaf.
            compiled: Whether to compile; if not, the program is only planned.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        if self._what_if is None:
            message = (
                f"`start_trial` was given specs of {', '.join(specs) or 'no leaf'}, but this view shows a record "
                "without its program, so nothing can be lowered again. Open a view with the program: `show(fn, "
                "*args, view='sharding')` or `explore(fn, *args)`."
            )
            raise RuntimeError(message)
        self.stop_trial()
        self._trial = _Trial(self, self._what_if, specs, compiled)
        self._trial.start()

    def stop_trial(self) -> None:
        """Stops the trial in progress, if any."""
        if self._trial is not None:
            self._trial.cancel.set()

    def wait_for_trial(self, timeout_seconds: float | None = None) -> bool:
        """Waits for the trial to finish; returns False on timeout."""
        return self._trial is None or self._trial.wait(timeout_seconds)

    def close(self) -> None:
        """Closes the view and stops its trial."""
        if getattr(self, "_trial", None) is not None:  # ipywidgets also closes widgets that failed to start
            self.stop_trial()
        super().close()


class _Trial:
    """One trial in a thread; holds only a weak reference to the view, so that an unused view stops the work."""

    def __init__(self, view: TrialController, what_if: TriesSpecs, specs: Specs, compiled: bool) -> None:
        self.cancel = threading.Event()
        self._what_if, self._specs, self._compiled = what_if, specs, compiled
        self._state: dict[str, Any] = {}
        self._view = weakref.ref(view, lambda _: self.cancel.set())
        run = contextvars.copy_context().run  # placements and meshes of the view's cell
        self._thread = threading.Thread(target=run, args=(self._work,), name="workbench-trial", daemon=True)

    def start(self) -> None:
        self._report(status="planning", phase="tracing and planning", seconds=0.0)
        self._thread.start()

    def wait(self, timeout_seconds: float | None) -> bool:
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            tried = self._what_if.plan(self._specs)
            if self._compiled and not self.cancel.is_set():
                self._report(status="compiling", phase="waiting for the compiler", seconds=0.0, **trial_state(tried))
                tried = self._what_if.compile(tried, progress=self._progress, cancel=self.cancel)
        except BaseException as error:  # show every exception of the thread; it would be lost otherwise
            self._report(status="stopped" if self.cancel.is_set() else "failed", error=problem(error))
            return
        if self.cancel.is_set():
            self._report(status="stopped")
            return
        if (view := self._view()) is not None:
            view.tried, view._trials = tried, view._trials + 1
            self._state["number"] = view._trials
        self._report(status="done", **trial_state(tried))

    def _progress(self, phase: str, seconds: float) -> None:
        self._report(status="compiling", phase=phase, seconds=seconds)

    def _report(self, **news: object) -> None:
        view = self._view()
        if view is None or view._trial is not self:  # a newer trial is already shown
            return
        state = {name: value for name, value in self._state.items() if name != "error"}
        self._state = {**state, **news}
        view.update_live(**{f"{view._trial_place}trial": self._state})


def tried_propagation(tried: WhatIfRecord | None) -> dict[str, Any] | None:
    """Reasons for the shardings in the tried program; empty if it has no propagation."""
    record = None if tried is None else tried.after.propagation
    if record is None or not any(any(value.spec) for value in record.values):
        return None
    state = propagation_state(record)
    return {**state, "sentence": f"As tried. {state['sentence']}"}


def trial_state(tried: WhatIfRecord) -> dict[str, Any]:
    """State of a trial in the view."""
    after = () if tried.after.inputs is None else tried.after.inputs.leaves
    return {
        "sentence": render.describe(tried),
        "specs": {leaf: spec_text(spec) for leaf, spec in tried.specs.items()},
        "how": "planned" if tried.compiled is None else "compiled",
        "amounts": [list(row) for row in what_if_amounts(tried)],
        "rows": [_row(row) for row in tried.traffic],
        "leaves": [
            [
                leaf.path,
                spec_text(leaf.spec),
                shape_text(leaf.dtype, leaf.shard_shape),
                bytes_text(leaf.bytes_per_device),
            ]
            for leaf in after
        ],
        "notes": list(tried.notes),
    }


def _row(row: TrafficRecord) -> dict[str, Any]:
    return {
        "change": row.change,
        "sign": change_sign(row),
        "kind": row.kind,
        "axes": list(row.axes),
        "stage": row.stage,
        "stage_name": row.stage_name,
        "runs": [_count(row.runs_before), _count(row.runs_after)],
        "bytes": [bytes_text(row.before_bytes), bytes_text(row.after_bytes)],
        "line": None if row.source is None else f"{row.source.file}:{row.source.line}",
        "source": "" if row.source is None else source_text(row.source.file, row.source.line),
    }


def _count(runs: float | None) -> str:
    return "unknown" if runs is None else count_text(runs)
