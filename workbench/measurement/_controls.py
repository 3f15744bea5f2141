"""Controls for a run, used from other threads."""

import threading

_PATIENCE_AT_EXIT_SECONDS = 60.0


class Controls:
    """Flags that stop a run after its current round (`stop`), pause it (`go` is cleared) or mark its end (`over`)."""

    def __init__(self) -> None:
        self.stop, self.go, self.over = threading.Event(), threading.Event(), threading.Event()
        self.go.set()


def stop_and_wait(controls: Controls) -> None:
    """Stops a run when Python exits, because a thread that is killed inside JAX aborts the process."""
    controls.stop.set()
    controls.go.set()
    controls.over.wait(_PATIENCE_AT_EXIT_SECONDS)
