"""Utilisation, power and temperature of NVIDIA GPUs, through NVML."""

import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from workbench.errors import MissingDependencyError

Answer = TypeVar("Answer")

_GPU_IS_LOST = 15  # NVML_ERROR_GPU_IS_LOST


class GpuFigures(NamedTuple):
    """NVML metrics of one GPU; None if the GPU does not support a query."""

    utilisation_percent: float | None
    power_watts: float | None
    temperature_celsius: float | None


class NvmlReader:
    """Queries NVML about the GPUs that JAX sees, in the order of `CUDA_VISIBLE_DEVICES`."""

    def __init__(self, nvml: ModuleType | Any = None, visible: str | None = None) -> None:
        self._nvml = _import_nvml() if nvml is None else nvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            msg = f"NVML cannot be started: {error}"
            raise RuntimeError(msg) from error
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if visible is None else visible
        self._visible = [name.strip() for name in visible.split(",") if name.strip()]
        self._handles: dict[int, Any] = {}
        self.notes: dict[int, str] = {}  # GPU number -> the reason why a metric is missing

    def read(self, index: int) -> GpuFigures:
        """The metrics of the visible GPU with number `index`."""
        nvml = self._nvml
        handle = self._handles.get(index)
        if handle is None:
            try:
                handle = self._handles[index] = self._find(index)
            except nvml.NVMLError as error:
                self._raise_if_lost(error)
                self.notes[index] = f"NVML cannot find GPU {index}, which CUDA_VISIBLE_DEVICES lists: {error}"
                return GpuFigures(None, None, None)
        gpu = self._whole(handle)
        if gpu is not handle:
            self.notes[index] = "a MIG slice: no utilisation; power and temperature are for the whole GPU"
        return GpuFigures(
            self._ask(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000),  # milliwatts
            self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
        )

    def close(self) -> None:
        """Shuts NVML down."""
        self._ask(self._nvml.nvmlShutdown)

    def _find(self, index: int) -> object:
        name = self._visible[index] if index < len(self._visible) else str(index)
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(name)
        except self._nvml.NVMLError:
            handles = [
                handle for uuid, handle in self._identities(mig=name.startswith("MIG-")) if uuid.startswith(name)
            ]
            if len(handles) != 1:  # CUDA accepts a unique prefix of a UUID
                raise
            return handles[0]

    def _identities(self, *, mig: bool) -> Iterator[tuple[str, Any]]:
        """The UUID and handle of every GPU, or of every MIG slice."""
        nvml = self._nvml
        for number in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(number)
            if not mig:
                yield _text(nvml.nvmlDeviceGetUUID(gpu)), gpu
                continue
            for slot in range(self._ask(lambda gpu=gpu: nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)) or 0):
                part = self._ask(lambda gpu=gpu, slot=slot: nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot))
                if part is not None:
                    yield _text(nvml.nvmlDeviceGetUUID(part)), part

    def _whole(self, handle: object) -> object:
        """The GPU to which a MIG slice belongs; for any other handle, the GPU itself."""
        nvml = self._nvml
        if not hasattr(nvml, "nvmlDeviceIsMigDeviceHandle") or not self._ask(
            lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)
        ):
            return handle
        gpu = self._ask(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
        return handle if gpu is None else gpu

    def _raise_if_lost(self, error: Exception) -> None:
        if getattr(error, "value", None) == _GPU_IS_LOST:
            msg = "the GPU is lost: it fell off the bus, or was removed"
            raise RuntimeError(msg) from error

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        try:
            return question()
        except self._nvml.NVMLError as error:
            self._raise_if_lost(error)
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _import_nvml() -> ModuleType:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingDependencyError(
            "nvidia-ml-py", extra="gpu", needed_for="`watch_devices` for utilisation, power and temperature"
        ) from error
