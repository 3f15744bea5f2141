"""Requests from the cost view: compile for a target, stop a compilation, remove its result."""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from workbench.cost import CHIPS, estimate_scaled
from workbench.records.compiled import ProgramRecord
from workbench_widgets._base import WorkbenchWidget, problem
from workbench_widgets._cost_state import stage_rows, target_state
from workbench_widgets._scaling_state import scaled_state


class CompileFor(Protocol):
    """Compiles the displayed program for another machine; stops once `cancel` is set."""

    def __call__(
        self, target: str, *, order: object, progress: Callable[[str, float], None], cancel: threading.Event
    ) -> ProgramRecord:
        """The program compiled for `target`."""
        ...


class CostController(WorkbenchWidget):
    """A view that compiles for other targets without blocking the kernel.

    One compilation at a time runs in a thread, which stops when the view is closed. The result is shown next to the
    program's own cost, and is stored in `compiled`.

    Attributes:
        compiled: The compiled programs, keyed by the name of the target.
    """

    requests: ClassVar[dict[str, str]] = {
        "compile": "start_compiling",
        "stop": "stop_compiling",
        "forget": "forget_target",
        "scale": "scale",
    }
    _place = ""  # prefix of the cost view in a widget of several views: "cost/"

    def __init__(
        self, *, programs: Sequence[ProgramRecord] = (), compile_for: CompileFor | None = None, **values: object
    ) -> None:
        self._programs = {record.target: record for record in programs}
        self.compiled: dict[str, ProgramRecord] = {}
        self._compile_for = compile_for
        self._job: _Job | None = None
        super().__init__(**values)

    def start_compiling(self, target: str, order: str = "topology") -> None:
        """Starts compiling for `target` in the background.

        Raises:
            RuntimeError: if a compilation is running, or the view shows a record without its program.
        """
        if self._compile_for is None:
            message = (
                f"`start_compiling` was given target={target!r}, but this view shows a record without its program, "
                "so there is nothing to compile. Open a view with the program: `explore(fn, *args)`."
            )
            raise RuntimeError(message)
        if self._job is not None and self._job.is_running:
            message = (
                f"`start_compiling` was given target={target!r} while {self._job.target} is being compiled. A view "
                "compiles for one target at a time: wait, or `stop_compiling()` first."
            )
            raise RuntimeError(message)
        self._job = _Job(self, self._compile_for, target, order)
        self._job.start()

    def stop_compiling(self) -> None:
        """Stops the compilation in progress, if any; its process exits shortly afterwards."""
        if self._job is not None:
            self._job.cancel.set()

    def scale(
        self,
        target: str,
        *,
        clients: int | None = None,
        model: float = 1.0,
        chunk_size: int | None = None,
        devices: int | None = None,
        chip: str | None = None,
    ) -> dict[str, Any]:
        """State of the program on `target`, scaled to another size; see `estimate_scaled`."""
        record = {**self._programs, **self.compiled}[target]
        priced_on = CHIPS.get(chip or "")
        scaled = estimate_scaled(
            record,
            clients=clients,
            model=model,
            chunk_size=chunk_size,
            devices=devices,
            chip=priced_on,
        )
        as_is = estimate_scaled(record, chip=priced_on)
        return {**scaled_state(record, scaled, as_is), "stages": stage_rows(scaled.cost)}

    def wait_for_compiling(self, timeout_seconds: float | None = None) -> bool:
        """Waits for the compilation to finish; returns False on timeout."""
        over = self._job is None or self._job.wait(timeout_seconds)
        if over and self._outbox is not None:
            self._outbox.flush()
        return over

    def forget_target(self, target: str) -> None:
        """Removes a compiled target from the view."""
        self.compiled.pop(target, None)
        self._show_compiled()

    def close(self) -> None:
        """Closes the view and stops its compilation."""
        if getattr(self, "_job", None) is not None:  # ipywidgets also closes widgets that failed to start
            self.stop_compiling()
        super().close()

    def _took(self, record: ProgramRecord) -> None:
        self.compiled = {**self.compiled, record.target: record}
        self._show_compiled()

    def _show_compiled(self) -> None:
        targets = [target_state(record, record.cost) for record in self.compiled.values() if record.cost is not None]
        self.update_live(**{f"{self._place}compiled": targets})

    def _report(self, **job: object) -> None:
        self.update_live(**{f"{self._place}job": job})


class _Job:
    """One compilation in a thread; holds only a weak reference to the view, so that an unused view stops the work."""

    def __init__(self, view: CostController, compile_for: CompileFor, target: str, order: str) -> None:
        self.target, self.cancel = target, threading.Event()
        self._order, self._compile_for = order, compile_for
        self._view = weakref.ref(view, lambda _: self.cancel.set())
        self._thread = threading.Thread(target=self._work, name=f"workbench-compile-{target}", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._report("running", phase="reading the program", seconds=0.0)
        self._thread.start()

    def wait(self, timeout_seconds: float | None) -> bool:
        self._thread.join(timeout_seconds)
        return not self.is_running

    def _work(self) -> None:
        def progress(phase: str, seconds: float) -> None:
            self._report("running", phase=phase, seconds=seconds)

        try:
            record = self._compile_for(self.target, order=self._order, progress=progress, cancel=self.cancel)
        except BaseException as error:  # show every exception of the thread; it would be lost otherwise
            self._report("stopped" if self.cancel.is_set() else "failed", error=problem(error))
            return
        if (view := self._view()) is not None:
            view._took(record)
        self._report("done")

    def _report(self, status: str, **more: object) -> None:
        if (view := self._view()) is not None:
            view._report(target=self.target, status=status, **more)
