"""Says under a notebook's cell what is under way and for how long: tracing, compiling and measuring take their time."""

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

FIRST_SECONDS = 0.2  # what is faster says nothing
EVERY_SECONDS = 1.0

# JupyterLab's and Notebook's own command, which reaches a busy kernel; other hosts do not show it.
STOP = """<style>.wb-waiting .widget-label, .wb-waiting .widget-html { width: auto }
.wb-stop { display: none } .jp-NotebookPanel .wb-stop { display: inline-block }</style>
<button type="button" class="wb-stop jp-mod-styled jp-mod-warn" data-commandlinker-command="notebook:interrupt-kernel"
 data-commandlinker-args="{}" data-lm-suppress-shortcuts="true" title="Interrupts the kernel">Stop</button>"""

_current: contextvars.ContextVar["_Line | None"] = contextvars.ContextVar("workbench_waiting", default=None)


class _Line:
    """One line of output that a thread renews, since the cell's own thread is busy."""

    def __init__(self, name: str, phase: str) -> None:
        self.name, self.phase = name, phase
        self.began = time.monotonic()
        self._handle: DisplayHandle | None = None
        self._shown: Any = None  # an ipywidget: inside `Output` and `interact`, no display can be changed any more
        self._over = threading.Event()
        self._lock = threading.Lock()
        run = contextvars.copy_context().run  # the cell that the output belongs to
        self._thread = threading.Thread(target=run, args=(self._tick,), name="workbench-waiting", daemon=True)
        self._thread.start()

    def text(self) -> str:
        seconds = time.monotonic() - self.began
        return f"{self.name}: {self.phase}, {seconds:.0f} s; interrupt the kernel to stop"

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        if self._handle is not None:
            with contextlib.suppress(Exception):  # a display that fails must not end the cell
                for part in (*self._shown.children, self._shown):
                    part.close()
                self._handle.update({"text/plain": "", "text/html": ""}, raw=True)  # for the notebook's file

    def _tick(self) -> None:
        wait = FIRST_SECONDS
        while not self._over.wait(wait):
            wait = EVERY_SECONDS
            with contextlib.suppress(Exception):  # an output that is gone must not end anything
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
    """Shows `name: phase, 3 s` under the cell until the block ends; inside another one it only names the phase.

    Args:
        name: What is waited for: the program's name.
        phase: What is done with it now: "tracing".
        shown: Whether there is a notebook to show it in.
    """
    line = _current.get()
    if line is not None or not shown:
        if line is not None:
            line.phase = phase
        yield
        return
    made = _Line(name, phase)
    token = _current.set(made)
    try:
        yield
    finally:
        _current.reset(token)
        made.end()


def say_phase(phase: str) -> None:
    """Names what is done now, where something is shown."""
    line = _current.get()
    if line is not None:
        line.phase = phase


def in_notebook() -> bool:
    """Returns whether this is a kernel with a front end that shows widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    # The hosts of ipyparallel are kernels too, but their front end is another one's: they print.
    return kernel is not None and not type(kernel).__module__.startswith("ipyparallel")


def is_watched() -> bool:
    """Returns whether somebody waits in front of a notebook; a program that executes notebooks reads no progress."""
    if not in_notebook():
        return False
    from workbench_widgets import runs_unseen

    return not runs_unseen()
