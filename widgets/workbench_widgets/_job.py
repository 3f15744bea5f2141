"""The background threads of a view: jobs, which report to its live state, and polls."""

import contextvars
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

View = TypeVar("View", bound=Any)

Work = Callable[["Job"], Mapping[str, Any]]


def poll(view: View, look: Callable[[View], bool], seconds: float) -> None:
    """Calls `look(view)` in a thread until it returns False or the view is closed or unused."""
    me = weakref.ref(view)

    def run() -> None:
        while (view := me()) is not None and view.comm is not None and look(view):
            del view
            time.sleep(seconds)

    threading.Thread(target=run, name="workbench-poll", daemon=True).start()


def problem(error: BaseException) -> dict[str, str]:
    """Formats an error for display in views."""
    shown = "".join(traceback.format_exception(error))
    return {"message": f"{type(error).__name__}: {error}", "traceback": shown}


class Job:
    """Work in a daemon thread.

    Reports `{"status", "phase", "seconds", "error"?}` and the fields of `about`; later reports keep earlier fields.

    Args:
        kind: The kind of work; names the thread.
        work: Function that does the work. Returns live values to send with the last report.
        report: Receives every state of the job, and further live values. The function must not keep the view alive.
        **about: Fields of every report.

    Attributes:
        cancel: Set to stop the work.
    """

    def __init__(
        self, kind: str, work: Work, report: Callable[["Job", dict[str, Any], Mapping[str, Any]], None], **about: object
    ) -> None:
        self.cancel = threading.Event()
        self.about = about
        self._work, self._send, self._state = work, report, dict(about)
        self._began = time.monotonic()
        run = contextvars.copy_context().run  # placements and meshes of the requesting cell
        self._thread = threading.Thread(target=run, args=(self._run,), name=f"workbench-{kind}", daemon=True)

    @property
    def is_running(self) -> bool:
        """True while the work is running."""
        return self._thread.is_alive()

    def start(self, phase: str = "reading the program", status: str = "running") -> None:
        self.report(status, phase=phase, seconds=0.0)
        self._thread.start()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Returns whether the work finished in time."""
        self._thread.join(timeout_seconds)
        return not self.is_running

    def progress(self, phase: str, seconds: float) -> None:
        """Reports the phase of the work and its elapsed seconds."""
        self.report(phase=phase, seconds=seconds)

    def report(self, status: str | None = None, live: Mapping[str, Any] | None = None, **fields: object) -> None:
        """Reports a new state; `live` contains other values of the view."""
        old = {name: value for name, value in self._state.items() if name != "error"}
        self._state = {**old, **({} if status is None else {"status": status}), **fields}
        self._send(self, self._state, live or {})

    def _run(self) -> None:
        try:
            live = self._work(self)
        except BaseException as error:  # show every exception of the thread; it would be lost otherwise
            self.report("stopped" if self.cancel.is_set() else "failed", error=problem(error))
            return
        self.report("stopped" if self.cancel.is_set() else "done", live, seconds=time.monotonic() - self._began)
