"""Progress line under a notebook cell: current activity and elapsed time."""

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

FIRST_SECONDS = 0.2  # faster work does not show a line
EVERY_SECONDS = 1.0

# The command of JupyterLab and Notebook, which reaches a busy kernel; other hosts do not show the button.
STOP = """<style>.wb-waiting .widget-label, .wb-waiting .widget-html { width: auto }
.wb-stop { display: none } .jp-NotebookPanel .wb-stop { display: inline-block }</style>
<button type="button" class="wb-stop jp-mod-styled jp-mod-warn" data-commandlinker-command="notebook:interrupt-kernel"
 data-commandlinker-args="{}" data-lm-suppress-shortcuts="true" title="Interrupts the kernel">Stop</button>"""

_current: contextvars.ContextVar["_Line | None"] = contextvars.ContextVar("workbench_waiting", default=None)


class _Line:
    """A line of output updated by a thread, because the cell's own thread is busy."""

    def __init__(self, name: str, phase: str) -> None:
        self.name, self.phase = name, phase
        self.began = time.monotonic()
        self._handle: DisplayHandle | None = None
        self._shown: Any = None  # an ipywidget, because displays inside `Output` and `interact` cannot be updated
        self._over = threading.Event()
        self._lock = threading.Lock()
        run = contextvars.copy_context().run  # the cell of the output
        self._thread = threading.Thread(target=run, args=(self._tick,), name="workbench-waiting", daemon=True)
        self._thread.start()

    def text(self) -> str:
        seconds = time.monotonic() - self.began
        return f"{self.name}: {self.phase}, {seconds:.0f} s; interrupt the kernel to stop"

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        if self._handle is not None:
            with contextlib.suppress(Exception):  # a display that fails must not stop the cell
                for part in (*self._shown.children, self._shown):
                    part.close()
                self._handle.update({"text/plain": "", "text/html": ""}, raw=True)  # needed for the notebook's file

    def _tick(self) -> None:
        wait = FIRST_SECONDS
        while not self._over.wait(wait):
            wait = EVERY_SECONDS
            with contextlib.suppress(Exception):  # a deleted output must not raise
                self.show()

    def show(self) -> None:
        from IPython.display import display

        with self._lock:
            if self._handle is None:
                import ipywidgets

                parts = ipywidgets.Label(self.text()), ipywidgets.HTML(STOP)
                self._shown = ipywidgets.VBox(parts).add_class("wb-waiting")
                self._handle = display(self._shown, display_id=True)
            else:
                self._shown.children[0].value = self.text()


@contextlib.contextmanager
def waiting(name: str, phase: str, *, shown: bool) -> Iterator[None]:
    """Shows `name: phase, 3 s` under the cell until the block exits; a nested call only sets the phase."""
    line = _current.get()
    if line is not None or not shown:
        if line is not None:
            line.phase = phase
        yield
        return
    status = _Line(name, phase)
    token = _current.set(status)
    try:
        yield
    finally:
        _current.reset(token)
        status.end()


def say_phase(phase: str) -> None:
    """Sets the phase of the current progress line, if one is shown."""
    line = _current.get()
    if line is not None:
        line.phase = phase


def in_notebook() -> bool:
    """Returns whether this kernel has a front end that can show widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    # ipyparallel engines are also kernels, but their front end belongs to another kernel, so they print.
    return kernel is not None and not type(kernel).__module__.startswith("ipyparallel")


def is_watched() -> bool:
    """Returns whether a person is waiting at a notebook; programs that execute notebooks need no progress line."""
    if not in_notebook():
        return False
    from workbench_widgets import runs_unseen

    return not runs_unseen()
