"""Samples of all devices and the host."""

import os
import re
import time
from collections.abc import Sequence
from typing import Any

import jax

from workbench._types import Device
from workbench.errors import MissingDependencyError, needs_library
from workbench.measurement._amdsmi import AmdSmiReader
from workbench.measurement._memory import device_label, largest_arrays, live_bytes, read_memory
from workbench.measurement._nvml import GpuFigures, NvmlReader
from workbench.measurement._tpu_metrics import TpuMetrics
from workbench.records.live import DeviceSampleRecord, HostSampleRecord, SampleRecord

_AMD = re.compile(r"\brocm\b|\bAMD\b|\bMI\d{2,3}|\bgfx\d", re.IGNORECASE)
_TWO_CORES = re.compile(r"TPU v[23]")
PEAK_NOTE = "the peak includes arrays and the program memory reserved at the time of the sample"
_NOTHING = GpuFigures(None, None, None)


class Sampler:
    """Samples devices through their monitoring libraries."""

    def __init__(
        self,
        devices: Sequence[Any],
        *,
        arrays: int,
        nvml: NvmlReader | None = None,
        tpu: TpuMetrics | None = None,
        amd: AmdSmiReader | None = None,
    ) -> None:
        self._devices = list(devices)
        self._nvml: NvmlReader | None = None
        self._arrays = arrays
        self._notes: list[str] = []
        platforms = {device.platform for device in devices}
        self._amd = amd
        if nvml is None and amd is None and platforms & {"gpu", "cuda", "rocm"}:
            self._start_gpus()
        else:
            self._nvml = nvml
        self._tpu = tpu or (TpuMetrics() if "tpu" in platforms else None)
        with needs_library("psutil", needed_for="`watch_devices`"):
            import psutil
        self._psutil, self._process = psutil, psutil.Process(os.getpid())
        psutil.cpu_percent(interval=None)  # meaningless at first; later calls report the load since the last call

    def sample(self, started: float) -> SampleRecord:
        """Takes one sample; its time is measured from `started`, a value of `time.monotonic()`.

        Problems with a device never raise an exception.
        """
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
        """Releases NVML and the worker process."""
        if self._nvml is not None:
            self._nvml.close()
        if self._amd is not None:
            self._amd.close()
        if self._tpu is not None:
            self._tpu.close()

    def _start_gpus(self) -> None:
        is_amd = any(_AMD.search(f"{device.platform} {device.device_kind}") for device in self._devices)
        try:
            if is_amd:
                self._amd = AmdSmiReader()
            else:
                self._nvml = NvmlReader()
        except (MissingDependencyError, RuntimeError) as error:
            self._notes.append(str(error))

    def _device(self, device: Device, live: dict[int, int], duty: Sequence[float]) -> DeviceSampleRecord:
        label, identity = device_label(device), {"device_id": int(device.id), "platform": str(device.platform)}
        try:
            memory = read_memory(device, live)
            figures = self._figures(device, duty)
            notes = self._notes_on(device)
            kind = str(device.device_kind)
        except Exception as error:  # a lost device may raise any error; the monitor continues
            note = f"{label} could not be read: {type(error).__name__}: {error}"
            return DeviceSampleRecord(where=label, present=False, notes=(note,), **identity)
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
            notes=notes,
            **identity,
        )

    def _figures(self, device: Device, duty: Sequence[float]) -> GpuFigures:
        index = _index(device)
        if device.platform in ("gpu", "rocm") and self._amd is not None:
            return self._amd.read(index)
        if device.platform in ("gpu", "cuda") and self._nvml is not None:
            return self._nvml.read(index)
        if device.platform == "tpu" and duty:
            chip = index // self._devices_per_chip(device, len(duty))
            return GpuFigures(duty[chip], None, None) if chip < len(duty) else _NOTHING
        return _NOTHING

    def _devices_per_chip(self, device: Device, chips: int) -> int:
        """Returns the number of devices that share a chip and its duty cycle: two on v2, v3 and v7x."""
        if _TWO_CORES.fullmatch(str(device.device_kind)):
            return 2
        count = sum(peer.platform == "tpu" for peer in self._devices)
        return 2 if count == 2 * chips else 1

    def _notes_on(self, device: Device) -> tuple[str, ...]:
        if device.platform == "tpu":
            return (PEAK_NOTE,)
        note = self._nvml.notes.get(_index(device)) if self._nvml is not None else None
        return (note,) if note else ()

    def _host(self) -> HostSampleRecord:
        memory = self._psutil.virtual_memory()
        return HostSampleRecord(
            cpu_percent=self._psutil.cpu_percent(interval=None),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_bytes=self._process.memory_info().rss,
        )


def _index(device: Device) -> int:
    index = getattr(device, "local_hardware_id", None)
    return int(device.id) if index is None else int(index)
