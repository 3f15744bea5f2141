"""Monitors the devices from a background thread."""

import dataclasses
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax

from workbench.errors import MeasureError, check_settings, needs_library
from workbench.measurement._sampling import Sampler
from workbench.records.live import DeviceSampleRecord, HostSampleRecord, SampleRecord
from workbench.render import display_object

if TYPE_CHECKING:
    import pandas as pd

_LARGEST_SHARE = 0.05  # maximum share of time for sampling; slow samples are taken less often


def watch_devices(
    interval_seconds: float = 1.0, *, history: int = 600, arrays: int = 5, devices: Sequence[Any] | None = None
) -> "DeviceMonitor":
    """Starts sampling memory, utilisation, power and temperature in the background.

    Samples the devices and the host. A sample takes about a millisecond, or more with thousands of live arrays. If
    taking a sample is slow, samples are taken less often, so that sampling never takes more than 1/20 of the time. The
    monitor stops with `stop()`, at the end of a `with` block, or when nothing refers to it any more.

    Args:
        interval_seconds: Time between samples.
        history: Number of samples to keep; the oldest are dropped.
        arrays: Number of the largest live arrays to list in each sample, with the lines that created them.
        devices: Devices to sample; None means all devices of this process.

    Returns:
        The running monitor.

    Raises:
        MeasureError: if `interval_seconds`, `history` or `arrays` is out of range.

    Example:
        >>> with watch_devices(0.1) as monitor:
        ...     sample = monitor.latest()
        >>> sample.devices[0].present
        True
    """
    check_settings(
        "watch_devices",
        (interval_seconds > 0, f"interval_seconds={interval_seconds}", "Pass interval_seconds > 0."),
        (history >= 1, f"history={history}", "Pass history >= 1."),
        (arrays >= 0, f"arrays={arrays}", "Pass arrays >= 0."),
        error=MeasureError,
    )
    sampler = Sampler(jax.local_devices() if devices is None else devices, arrays=arrays)
    return DeviceMonitor(sampler, interval_seconds=interval_seconds, history=history)


class DeviceMonitor:
    """A growing history of samples, returned by `watch_devices`; thread-safe."""

    def __init__(self, sampler: Sampler, *, interval_seconds: float, history: int) -> None:
        self.interval_seconds = interval_seconds
        self.problems: deque[str] = deque(maxlen=100)  # errors in the background
        self._sampler = sampler
        self._history: deque[SampleRecord] = deque(maxlen=history)
        self._subscribers: dict[int, Callable[[SampleRecord], Any]] = {}
        self._next_subscriber = 0
        self._first = threading.Event()
        self._stopped = threading.Event()
        self._started = time.monotonic()
        # The thread has only a weak reference, so it ends when the monitor is garbage-collected.
        self._thread = threading.Thread(
            target=_keep_sampling, args=(weakref.ref(self), self._stopped), name="workbench-devices", daemon=True
        )
        self._finalizer = weakref.finalize(self, _end, self._stopped, self._thread, sampler)
        self._thread.start()

    @property
    def running(self) -> bool:
        """True while samples are being taken."""
        return self._thread.is_alive() and not self._stopped.is_set()

    def latest(self, timeout_seconds: float = 10.0) -> SampleRecord:
        """The latest sample; waits if there is no sample yet.

        Raises:
            MeasureError: if no sample was taken in time.
        """
        self._first.wait(timeout_seconds)
        if not self._history:
            problems = "; ".join(self.problems) or "none reported"
            msg = (
                f"`latest` waited {timeout_seconds:g} s, but no sample of the devices has been taken (problems: "
                f"{problems}). Wait longer, or start another monitor with `watch_devices()`."
            )
            raise MeasureError(msg)
        return self._history[-1]

    def history(self) -> tuple[SampleRecord, ...]:
        """All stored samples, oldest first."""
        return tuple(self._history)

    def subscribe(self, callback: Callable[[SampleRecord], Any]) -> Callable[[], None]:
        """Calls `callback` with every new sample, in the monitor's thread.

        A callback that raises is not called again; `problems` states the reason.

        Returns: A function that unsubscribes.
        """
        number = self._next_subscriber
        self._next_subscriber += 1
        self._subscribers[number] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(number, None)

        return unsubscribe

    def to_pandas(self) -> "pd.DataFrame":
        """Returns one row per sample and device, with additional columns for the host.

        Values that a device does not report are missing (`Int64`, `Float64`).
        """
        rows = []
        for sample in self.history():
            host = sample.host.to_dict()
            del host["record"]
            for device in sample.devices:
                row = {"time_seconds": sample.time_seconds, **device.to_dict()}
                del row["record"]
                row["notes"] = "; ".join(device.notes)
                rows.append(row | {f"host_{name}": value for name, value in host.items()})
        with needs_library("pandas", needed_for="`to_pandas`"):
            import pandas as pd

        kinds: dict[Any, str] = {int | None: "Int64", float | None: "Float64"}
        parts = (("", DeviceSampleRecord), ("host_", HostSampleRecord))
        dtypes = {prefix + f.name: kinds.get(f.type) for prefix, part in parts for f in dataclasses.fields(part)}
        return pd.DataFrame(rows).astype({name: dtypes[name] for name in (rows or [()])[0] if dtypes.get(name)})

    def stop(self) -> None:
        """Stops the sampling; keeps the history."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"every {self.interval_seconds:g} s" if self.running else "stopped"
        return f"<DeviceMonitor {state}, {len(self._history)} samples>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        devices = self._history[-1].devices if self._history else ()
        rows = [{k: v for k, v in device.to_dict().items() if k not in ("version", "record")} for device in devices]
        return display_object("DeviceMonitor", repr(self)[1:-1], rows)

    def _take(self) -> float:
        """Takes a sample and notifies every listener; returns the time until the next sample in seconds."""
        try:
            sample = self._sampler.sample(self._started)
        except Exception as error:  # a silent crash of the thread would look like idle devices
            self.problems.append(f"A sample failed: {type(error).__name__}: {error}")
            return self.interval_seconds
        self._history.append(sample)
        self._first.set()
        for number, callback in list(self._subscribers.items()):
            try:
                callback(sample)
            except Exception as error:  # a broken display must not stop the monitoring
                self._subscribers.pop(number, None)
                self.problems.append(f"A subscriber failed and was removed: {type(error).__name__}: {error}")
        return max(self.interval_seconds, sample.sampling_seconds / _LARGEST_SHARE)


def _keep_sampling(reference: "weakref.ref[DeviceMonitor]", stopped: threading.Event) -> None:
    pause = 0.0
    while not stopped.wait(pause):
        monitor = reference()
        if monitor is None:
            return
        pause = monitor._take()
        del monitor  # not held while waiting


def _end(stopped: threading.Event, thread: threading.Thread, sampler: Sampler) -> None:
    stopped.set()
    if thread is not threading.current_thread():
        thread.join(2.0)
    sampler.close()
