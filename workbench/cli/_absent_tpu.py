"""Keeps JAX from looking for a TPU if libtpu is installed only for compilation."""

import importlib.util
import os
import sys
from pathlib import Path

_ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd")  # TPU (two drivers), NVIDIA, AMD


def choose_platform(devices: Path = Path("/dev")) -> str | None:
    """Sets `JAX_PLATFORMS=cpu` if JAX would look for a TPU that is not attached.

    Applies to this process and its child processes. JAX tries libtpu whenever it is installed. Without a TPU it falls
    back to the CPU, after five lines of warnings in every notebook. If `JAX_PLATFORMS` is set or an accelerator is
    present, nothing changes.
    """
    if "JAX_PLATFORMS" in os.environ or importlib.util.find_spec("libtpu") is None:
        return None
    if any(file for pattern in _ACCELERATORS for file in devices.glob(pattern)):
        return None
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # JAX has already read the variable
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    return "cpu"
