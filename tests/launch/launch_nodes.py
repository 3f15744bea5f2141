"""Nodes for the tests: importable, so that a spawned process finds them without pytest."""

import dataclasses
import os
import signal
import threading
import time

from workbench.launch import batched, current_node


class Counter:
    def __init__(self, start=0):
        self.total = start

    def add(self, n=1):
        self.total += n
        return self.total

    def pid(self):
        return os.getpid()

    def attempt(self):
        return current_node().attempt

    def fail(self, text):
        raise ValueError(text)

    def slow(self, seconds):
        time.sleep(seconds)
        return seconds

    def while_there(self, path):
        """Answers when the file is removed."""
        while os.path.exists(path):  # noqa: PTH110
            time.sleep(0.01)
        return path

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def echo(self, value):
        return value


class Doubler:
    def __init__(self):
        self.sizes = []

    @batched(max_size=4, wait_seconds=60.0)  # four come, so that nobody waits so long
    def double(self, xs):
        self.sizes.append(len(xs))
        return [2 * x for x in xs]

    @batched(max_size=2, wait_seconds=0.01)
    def short(self, xs):
        return []

    def batch_sizes(self):
        return self.sizes


class Adder:
    """Adds to a counter a number of times, then ends."""

    def __init__(self, counter, times):
        self.counter, self.times = counter, times

    def run(self):
        for _ in range(self.times):
            self.counter.add(1)


class Ticker:
    """A service with work of its own."""

    def __init__(self):
        self.ticks = 0
        self.lock = threading.Lock()

    def run(self):
        while not current_node().wait_for_stop(0.01):
            with self.lock:
                self.ticks += 1

    def seen(self):
        with self.lock:
            return self.ticks


def add_once(counter, n):
    counter.add(n)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a node, as people write them: a client among numbers."""

    n: int
    counter: object


def add_by_settings(settings, again=None):
    settings.counter.add(settings.n)
    if again is not None:
        again()


def idle():
    while not current_node().wait_for_stop(0.05):
        pass


def raise_error(text="broken on purpose"):
    raise RuntimeError(text)


def raise_first_times(counter, times):
    if counter.add() <= times:
        raise_error("not yet")


def hang():
    threading.Event().wait()


def hang_first_time(counter):
    if counter.add() == 1:
        hang()


def log_peers_then_end():
    context = current_node()
    while not context.failed_peers:
        context.wait_for_stop(0.02)
        time.sleep(0.02)
    for label, reason in context.failed_peers.items():
        context.log(f"{label} failed: {reason}")


def print_and_log(text):
    print(f"printed {text}")
    current_node().log(f"logged {text}")


def leave(code):
    raise SystemExit(code)


def imported_modules(counter):
    import sys

    counter.echo(None)
    found = [name for name in ("jax", "numpy", "pandas", "matplotlib") if name in sys.modules]
    current_node().log(f"imported {found}")


def stop_everything():
    current_node().stop_program()


def read_environment(counter, name):
    counter.add(int(os.environ[name]))


class Fragile:
    def run(self):
        raise RuntimeError("fragile")

    def touch(self):
        return "fine"


def _cannot_load():
    raise ImportError("this cannot be loaded here")


class Unloadable:
    def __call__(self):
        return None

    def __reduce__(self):
        return _cannot_load, ()


def log_pid_then_idle():
    current_node().log(os.getpid())
    idle()


def eventually(holds, seconds=60.0):
    """Whether `holds()` became true in time; so long only if something is broken."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


class Mirror:
    def call(self, client, value):
        return client.echo(value)

    def echo(self, value):
        return value


class Relay:
    """Passes calls on to a counter, whose client it keeps."""

    def __init__(self, counter):
        self.counter = counter

    def add(self, n):
        return self.counter.add(n)


class Meter:
    """Says how many calls were here at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inside = self.peak = 0

    def stay(self):
        with self.lock:
            self.inside += 1
            self.peak = max(self.peak, self.inside)
        time.sleep(0.3)
        with self.lock:
            self.inside -= 1
            return self.peak


def use_the_workbench(counter):
    counter.add(1)
    import sys

    import workbench

    before = "jax" in sys.modules
    current_node().log(f"jax before {before}, broadcast {callable(workbench.broadcast)}, after {'jax' in sys.modules}")
