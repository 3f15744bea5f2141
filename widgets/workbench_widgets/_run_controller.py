"""Requests from a view to a run, and notifications from the run."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from workbench.records.live import ProblemRecord, RoundRecord
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._job import poll

LOOK_SECONDS = 0.25
OVER = ("finished", "stopped", "interrupted", "failed")


class RunLike(Protocol):
    """Interface that a view expects of a run, such as `workbench.measurement.Run`."""

    @property
    def rounds(self) -> int | None:
        """The total number of rounds, or None if unknown."""
        ...

    @property
    def status(self) -> str:
        """The state of the run."""
        ...

    @property
    def history(self) -> Sequence[RoundRecord]:
        """The finished rounds."""
        ...

    @property
    def problems(self) -> Sequence[ProblemRecord]:
        """Nonfatal problems that occurred in the run."""
        ...

    def pause(self) -> None:
        """Pauses the run before its next round."""
        ...

    def resume(self) -> None:
        """Resumes the run."""
        ...

    def stop(self) -> None:
        """Stops the run after the round in progress."""
        ...

    def subscribe(self, callback: Callable[[Any, RoundRecord], Any]) -> Callable[[], None]:
        """Calls `callback` after every round; returns a function that unsubscribes."""
        ...


class RunController(WorkbenchWidget):
    """A view that follows a run and can pause or stop it."""

    requests: ClassVar[dict[str, str]] = {"pause_run": "pause", "resume_run": "resume", "stop_run": "stop"}
    followed: RunLike | None = None
    _leave: Callable[[], None] | None = None

    def follow(self, run: RunLike) -> None:
        """Follows a run until the view is closed; the run has only a weak reference to the view."""
        self.followed = run
        me = weakref.ref(self)

        def finished(_run: object, _record: RoundRecord) -> None:
            if (view := me()) is not None:
                view.refresh()

        self._leave = run.subscribe(finished)
        last = ""

        def look(view: RunController) -> bool:
            # A paused run finishes no round, so no notification would report the pause to the view.
            nonlocal last
            status = "" if view.followed is None else view.followed.status
            if status != last:
                view.refresh()
            last = status
            return status not in OVER

        poll(self, look, LOOK_SECONDS)

    def refresh(self) -> None:
        """Sends the run's state if a page shows it."""

    def pause(self) -> str:
        """Pauses the run before its next round."""
        return self._command_run("pause")

    def resume(self) -> str:
        """Resumes a paused run."""
        return self._command_run("resume")

    def stop(self) -> str:
        """Stops the run after the round in progress."""
        return self._command_run("stop")

    def _command_run(self, command: str) -> str:
        if self.followed is None:
            message = f"`{command}` was called on a view without a run. Pass a run: `Explorer(record, rounds=run)`."
            raise RuntimeError(message)
        getattr(self.followed, command)()
        return self.followed.status

    def close(self) -> None:
        """Closes the view; the run continues."""
        leave, self._leave = self._leave, None  # ipywidgets calls `close` again during garbage collection
        if leave is not None:
            leave()
        super().close()
