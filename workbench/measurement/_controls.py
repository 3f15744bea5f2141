"""Controls of a run from other threads."""

import threading

_PATIENCE_AT_EXIT_SECONDS = 60.0


class Controls:
    """Three flags: `stop` after the current round, `go` (cleared: pause before the next round), `over`."""

    def __init__(self) -> None:
        self.stop, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.go.set()


def stop_and_wait(controls: Controls) -> None:
    """Ends a run at Python's exit: a thread that is killed inside JAX aborts the process."""
    controls.stop.set()
    controls.go.set()
    controls.over.wait(_PATIENCE_AT_EXIT_SECONDS)
