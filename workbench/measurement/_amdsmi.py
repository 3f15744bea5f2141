"""Utilisation, power and temperature of AMD GPUs, through AMD SMI."""

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from workbench.errors import MissingDependencyError
from workbench.measurement._nvml import GpuFigures

Answer = TypeVar("Answer")

_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class AmdSmiReader:
    """Queries AMD SMI about the GPUs that JAX sees, in the order of `HIP_VISIBLE_DEVICES`."""

    def __init__(self, amdsmi: ModuleType | Any = None, visible: str | None = None) -> None:
        self._amdsmi = _import_amdsmi() if amdsmi is None else amdsmi
        try:
            self._amdsmi.amdsmi_init()
            self._handles = list(self._amdsmi.amdsmi_get_processor_handles())
        except self._amdsmi.AmdSmiException as error:
            msg = f"AMD SMI cannot be started: {error}"
            raise RuntimeError(msg) from error
        if visible is None:
            visible = next((os.environ[name] for name in _VISIBLE if os.environ.get(name)), "")
        self._visible = [int(name) for name in visible.split(",") if name.strip().isdigit()]

    def read(self, index: int) -> GpuFigures:
        """The metrics of the visible GPU with number `index`."""
        number = self._visible[index] if index < len(self._visible) else index
        if number >= len(self._handles):
            return GpuFigures(None, None, None)
        smi, handle = self._amdsmi, self._handles[number]
        power = self._ask(lambda: smi.amdsmi_get_power_info(handle)) or {}
        activity = self._ask(lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
        temperature = self._ask(
            lambda: smi.amdsmi_get_temp_metric(
                handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
            )
        )
        watts = _number(power.get("current_socket_power"))
        return GpuFigures(
            _number(activity.get("gfx_activity")),
            _number(power.get("average_socket_power")) if watts is None else watts,
            _number(temperature),
        )

    def close(self) -> None:
        """Shuts AMD SMI down."""
        self._ask(self._amdsmi.amdsmi_shut_down)

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        try:
            return question()
        except self._amdsmi.AmdSmiException:
            return None


def _number(value: object) -> float | None:
    """Converts a metric to a number; AMD SMI writes "N/A" for metrics that a GPU does not support."""
    return float(value) if isinstance(value, int | float) else None


def _import_amdsmi() -> ModuleType:
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # the package loads one of the driver's libraries
        raise MissingDependencyError(
            "amdsmi", extra="rocm", needed_for="`watch_devices` for utilisation, power and temperature of AMD GPUs"
        ) from error
