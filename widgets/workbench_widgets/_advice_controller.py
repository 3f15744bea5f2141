"""Handles the advice view's requests to the kernel: finds advice and searches shardings in threads."""

import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from workbench.records import Record
from workbench.records.advice import AdviceRecord, SearchRecord
from workbench.records.call_tree import CallTreeRecord
from workbench_widgets._advice_state import advice_state, search_state
from workbench_widgets._base import WorkbenchWidget, problem


class Advises(Protocol):
    """Protocol of a function that finds advice about the displayed program."""

    def __call__(
        self,
        *,
        found: Callable[[AdviceRecord], None],
        progress: Callable[[str, float], None],
        cancel: threading.Event,
    ) -> AdviceRecord:
        """Returns the findings.

        Calls `found` with the record so far, and `progress` with the phase and the elapsed seconds.
        """
        ...


class Searches(Protocol):
    """Protocol of a function that searches shardings of the displayed program."""

    def __call__(
        self,
        *,
        lock: Mapping[str, Any],
        compiled: bool,
        found: Callable[[SearchRecord], None],
        progress: Callable[[str, float], None],
        cancel: threading.Event,
    ) -> SearchRecord:
        """Returns the choices; calls `found` with the record whenever it finds a better choice."""
        ...


class AdviceController(WorkbenchWidget):
    """A view that computes advice on request without blocking the kernel.

    Attributes:
        advice: Result of the last request.
        search: Result of the last search for shardings.
    """

    requests: ClassVar[dict[str, str]] = {
        "advise": "start_advice",
        "stop_advice": "stop_advice",
        "search_shardings": "start_search",
        "stop_search": "stop_search",
    }
    _advice_place = "advice/"

    def __init__(
        self,
        *,
        advise: Advises | None = None,
        search: Searches | None = None,
        tree: CallTreeRecord | None = None,
        leaf_names: Mapping[str, str] | None = None,
        **values: object,
    ) -> None:
        self.advice: AdviceRecord | None = None
        self.search: SearchRecord | None = None
        self._searches = search
        self._search_job: Job | None = None
        self._advises, self._advice_tree, self._leaf_names = advise, tree, leaf_names
        self._advice_job: Job | None = None
        super().__init__(**values)

    def start_advice(self) -> None:
        """Starts computing advice in the background, without stopping a running sharding search.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        if self._advises is None:
            message = (
                "`start_advice` was called on a view that shows a record without its program. The gain of a change "
                "is verified by compiling the program again: open the view from the program, "
                "`workbench.explore(fn)(*args)`."
            )
            raise RuntimeError(message)
        if self._advice_job is not None and self._advice_job.is_running:
            return
        advises = self._advises
        view = weakref.ref(self)  # the thread must not keep an unused view alive

        def on_record(record: AdviceRecord) -> None:
            if (shown := view()) is not None:
                shown.update_live(**shown._advised(record))

        self._advice_job = Job(
            self,
            f"{self._advice_place}job",
            lambda job: advises(found=on_record, **job.waiting),
            AdviceController._advised,
        )
        self._advice_job.start()

    def stop_advice(self) -> None:
        """Stops the verification in progress; shows the findings so far."""
        if self._advice_job is not None:
            self._advice_job.cancel.set()

    def wait_for_advice(self, timeout_seconds: float | None = None) -> bool:
        """Waits for the verification to finish; returns False on timeout."""
        over = self._advice_job is None or self._advice_job.wait(timeout_seconds)
        if over and self._outbox is not None:
            self._outbox.flush()
        return over

    def start_search(self, lock: Mapping[str, Any] | None = None, compiled: bool = True) -> None:
        """Starts a search for shardings in the background; stops the search in progress.

        Args:
            lock: Mesh axes per dimension that the search must keep, keyed by patterns that match argument names.
            compiled: Whether to compile the best choices; if not, they are only planned.

        Raises:
            RuntimeError: if the view shows a record without its program or without a mesh.
        """
        if self._searches is None:
            message = (
                "`start_search` was called on a view that shows a record without its program, or a program without a "
                "mesh of several devices. Open the view from the program on a mesh: `workbench.explore(fn, "
                "on=…)(*args)`."
            )
            raise RuntimeError(message)
        self.stop_search()
        searches = self._searches

        def work(job: "Job") -> Record:
            def on_record(record: SearchRecord) -> None:
                if self._search_job is job:
                    self._searched(record)

            return searches(lock=lock or {}, compiled=compiled, found=on_record, **job.waiting)

        self._search_job = Job(self, f"{self._advice_place}search_job", work, AdviceController._took_search)
        self._search_job.start()

    def stop_search(self) -> None:
        """Stops the search in progress; shows the choices found so far."""
        if self._search_job is not None:
            self._search_job.cancel.set()

    def wait_for_search(self, timeout_seconds: float | None = None) -> bool:
        """Waits for the search to finish; returns False on timeout."""
        over = self._search_job is None or self._search_job.wait(timeout_seconds)
        if over and self._outbox is not None:
            self._outbox.flush()
        return over

    def _took_search(self, record: SearchRecord) -> Mapping[str, Any]:
        self.search = record
        return {f"{self._advice_place}search": search_state(record)}

    def _searched(self, record: SearchRecord) -> None:
        self.update_live(**self._took_search(record))

    def close(self) -> None:
        """Closes the view and stops the work it started."""
        for job in (getattr(self, "_advice_job", None), getattr(self, "_search_job", None)):
            if job is not None:  # ipywidgets also closes widgets that failed to start
                job.cancel.set()
        super().close()

    def _advised(self, advice: AdviceRecord) -> Mapping[str, Any]:
        self.advice = advice
        return {f"{self._advice_place}report": advice_state(advice, self._advice_tree, self._leaf_names)}


class Job:
    """A background thread that works for one view and reports to its state; stops if the view is unused.

    Sets the state `place` to `{"status": "running" | "done" | "stopped" | "failed", "phase", "seconds", "error"?}`.
    """

    def __init__(
        self,
        view: AdviceController,
        place: str,
        work: Callable[["Job"], Record],
        took: Callable[[Any, Any], Mapping[str, Any]],
    ) -> None:
        self.cancel = threading.Event()
        self.place, self._work, self._took = place, work, took
        self._view = weakref.ref(view, lambda _: self.cancel.set())
        self._began = time.monotonic()
        run = contextvars.copy_context().run  # placements and meshes of the requesting cell
        self._thread = threading.Thread(target=run, args=(self._run,), name="workbench-advice", daemon=True)

    @property
    def is_running(self) -> bool:
        """True while the work is running."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> dict[str, Any]:
        """The arguments `progress` and `cancel` for the function that does the work."""
        return {"progress": self.progress, "cancel": self.cancel}

    def start(self) -> None:
        """Begins."""
        self.report("running", "reading the program")
        self._thread.start()

    def wait(self, timeout_seconds: float | None) -> bool:
        """Returns whether the work finished in time."""
        self._thread.join(timeout_seconds)
        return not self.is_running

    def progress(self, phase: str, _seconds: float) -> None:
        """Shows the current activity."""
        self.report("running", phase)

    def report(self, status: str, phase: str = "", error: BaseException | None = None, **more: object) -> None:
        """Shows the status, if the view still exists."""
        if (view := self._view()) is not None:
            state: dict[str, Any] = {"status": status, "phase": phase, "seconds": time.monotonic() - self._began}
            if error is not None:
                state["error"] = problem(error)
            view.update_live(**{self.place: state, **more})

    def _run(self) -> None:
        try:
            result = self._work(self)
        except BaseException as error:  # show every exception of the thread; it would be lost otherwise
            self.report("stopped" if self.cancel.is_set() else "failed", error=error)
            return
        if (view := self._view()) is not None:
            self.report("stopped" if self.cancel.is_set() else "done", **self._took(view, result))
