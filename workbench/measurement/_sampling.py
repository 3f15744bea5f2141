"""Takes one sample of all devices and of the host."""

import os
import time
from collections.abc import Sequence
from typing import Any

import jax

from workbench.errors import MissingDependencyError, needs_library
from workbench.measurement._memory import device_label, largest_arrays, live_bytes, read_memory
from workbench.measurement._nvml import GpuFigures, NvmlReader
from workbench.measurement._tpu_metrics import TpuMetrics
from workbench.records import DeviceSampleRecord, HostSampleRecord, SampleRecord

_NOTHING = GpuFigures(None, None, None)


class Sampler:
    """Knows the devices and whom to ask about them.

    Args:
        devices: The devices to watch.
        arrays: How many of the largest live arrays a sample names.
        nvml: Reads NVIDIA GPUs; None: made here when there is such a device.
        tpu: Reads TPUs; None: made here when there is such a device.
    """

    def __init__(
        self, devices: Sequence[Any], *, arrays: int, nvml: NvmlReader | None = None, tpu: TpuMetrics | None = None
    ) -> None:
        self._devices = list(devices)
        self._arrays = arrays
        self._notes: list[str] = []
        platforms = {device.platform for device in devices}
        self._nvml = nvml or (self._start_nvml() if platforms & {"gpu", "cuda"} else None)
        self._tpu = tpu or (TpuMetrics() if "tpu" in platforms else None)
        with needs_library("psutil", needed_for="`watch_devices`"):
            import psutil
        self._psutil, self._process = psutil, psutil.Process(os.getpid())
        psutil.cpu_percent(interval=None)  # the first answer is meaningless, later ones count from the last question

    def sample(self, started: float) -> SampleRecord:
        """One sample; `started` is the `time.monotonic()` from which its time counts. Never raises for a device."""
        begin = time.monotonic()
        arrays = jax.live_arrays()
        live = live_bytes(arrays)
        duty = self._tpu.poll().get("duty_cycle_pct", []) if self._tpu else []
        devices = tuple(self._device(device, live, duty) for device in self._devices)
        largest = largest_arrays(self._arrays, arrays) if self._arrays else ()
        notes = list(self._notes)
        if self._tpu and self._tpu.problem:
            notes.append(self._tpu.problem)
        end = time.monotonic()
        return SampleRecord(
            time_seconds=begin - started,
            unix_seconds=time.time(),
            devices=devices,
            host=self._host(),
            arrays=largest,
            live_arrays=len(arrays),
            sampling_seconds=end - begin,
            notes=tuple(notes),
        )

    def close(self) -> None:
        """Lets go of NVML and of a worker process."""
        if self._nvml is not None:
            self._nvml.close()
        if self._tpu is not None:
            self._tpu.close()

    def _start_nvml(self) -> NvmlReader | None:
        try:
            return NvmlReader()
        except (MissingDependencyError, RuntimeError) as error:
            self._notes.append(str(error))
            return None

    def _device(self, device: Any, live: dict[int, int], duty: Sequence[float]) -> DeviceSampleRecord:
        label, identity = device_label(device), {"device_id": int(device.id), "platform": str(device.platform)}
        try:
            memory = read_memory(device, live)
            figures = self._figures(device, duty)
            kind = str(device.device_kind)
        except Exception as error:  # whatever a device that is gone answers, the monitor lives on
            gone = f"{label} could not be read: {type(error).__name__}: {error}"
            return DeviceSampleRecord(where=label, present=False, notes=(gone,), **identity)
        return DeviceSampleRecord(
            where=label,
            kind=kind,
            bytes_in_use=memory.in_use,
            peak_bytes=memory.peak,
            limit_bytes=memory.limit,
            memory_source="memory_stats" if memory.source == "memory_stats" else "live_arrays",
            utilisation_percent=figures.utilisation_percent,
            power_watts=figures.power_watts,
            temperature_celsius=figures.temperature_celsius,
            **identity,
        )

    def _figures(self, device: Any, duty: Sequence[float]) -> GpuFigures:
        index = getattr(device, "local_hardware_id", None)
        index = int(device.id) if index is None else int(index)
        if device.platform in ("gpu", "cuda") and self._nvml is not None:
            return self._nvml.read(index)
        if device.platform == "tpu" and index < len(duty):
            return GpuFigures(duty[index], None, None)
        return _NOTHING

    def _host(self) -> HostSampleRecord:
        memory = self._psutil.virtual_memory()
        return HostSampleRecord(
            cpu_percent=self._psutil.cpu_percent(interval=None),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_bytes=self._process.memory_info().rss,
        )
