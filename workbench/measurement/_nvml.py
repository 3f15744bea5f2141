"""Utilisation, power and temperature of NVIDIA GPUs, through NVML."""

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from workbench.errors import MissingDependencyError


class GpuFigures(NamedTuple):
    """What NVML tells about one GPU; None where this GPU does not support the question."""

    utilisation_percent: float | None
    power_watts: float | None
    temperature_celsius: float | None


class NvmlReader:
    """Asks NVML about the GPUs that JAX sees, counted as `CUDA_VISIBLE_DEVICES` orders them.

    Raises:
        MissingDependencyError: the Python binding `nvidia-ml-py` is not installed.
        RuntimeError: NVML cannot be started, such as without a driver.
    """

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

    def read(self, index: int) -> GpuFigures:
        """The figures of the GPU that is number `index` among the visible ones."""
        nvml = self._nvml
        handle = self._handles.get(index)
        if handle is None:
            handle = self._handles[index] = self._find(index)
        return GpuFigures(
            self._ask(lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),  # milliwatts
            self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
        )

    def close(self) -> None:
        """Lets NVML go."""
        self._ask(self._nvml.nvmlShutdown)

    def _find(self, index: int) -> Any:
        name = self._visible[index] if index < len(self._visible) else str(index)
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def _import_nvml() -> ModuleType:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise MissingDependencyError(
            "nvidia-ml-py", extra="gpu", needed_for="`watch_devices` for utilisation, power and temperature"
        ) from error
