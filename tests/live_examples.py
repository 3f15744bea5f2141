"""A monitor and a run that do what a test tells them, without devices or time."""

from collections.abc import Callable
from typing import Any

from workbench.records.live import DeviceSampleRecord, HostSampleRecord, ProblemRecord, RoundRecord, SampleRecord


def sample(second: float, *held: int) -> SampleRecord:
    devices = tuple(
        DeviceSampleRecord(where=f"cpu:{i}", device_id=i, platform="cpu", bytes_in_use=size)
        for i, size in enumerate(held)
    )
    host = HostSampleRecord(cpu_percent=12.0, memory_used_bytes=2**30, memory_total_bytes=2**32, process_bytes=2**28)
    return SampleRecord(time_seconds=second, unix_seconds=1e9 + second, devices=devices, host=host)


class FakeMonitor:
    """A monitor whose samples are given."""

    def __init__(self, *samples: SampleRecord) -> None:
        self.samples = list(samples)
        self.callbacks: list[Callable[[SampleRecord], Any]] = []

    def history(self) -> tuple[SampleRecord, ...]:
        return tuple(self.samples)

    def subscribe(self, callback: Callable[[SampleRecord], Any]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def take(self, made: SampleRecord) -> None:
        self.samples.append(made)
        for callback in list(self.callbacks):
            callback(made)


class FakeRun:
    """A run whose rounds are given; it records what it was told."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.status = "running"
        self.history: list[RoundRecord] = []
        self.problems: list[ProblemRecord] = []
        self.reported: list[str] = []
        self.callbacks: list[Callable[[Any, RoundRecord], Any]] = []

    def pause(self) -> None:
        self.reported.append("pause")
        self.status = "paused"

    def resume(self) -> None:
        self.reported.append("resume")
        self.status = "running"

    def stop(self) -> None:
        self.reported.append("stop")
        self.status = "stopped"

    def subscribe(self, callback: Callable[[Any, RoundRecord], Any]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def finish(self, **metrics: Any) -> None:
        record = RoundRecord(round=len(self.history), seconds=0.5, metrics=metrics)
        self.history.append(record)
        for callback in list(self.callbacks):
            callback(self, record)
