"""Keeps JAX from looking for a TPU where libtpu is installed only to compile with."""

import importlib.util
import os
import sys
from pathlib import Path

_ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd")  # TPU (two drivers), NVIDIA, AMD


def choose_platform(devices: Path = Path("/dev")) -> str | None:
    """Sets `JAX_PLATFORMS=cpu`, for this process and what it starts, where JAX would look for a TPU in vain.

    JAX tries libtpu wherever it is installed. Without a TPU it falls back to the CPU, after five lines of warnings in
    every notebook. Whoever has set `JAX_PLATFORMS`, or has an accelerator, keeps what they have.

    Args:
        devices: The directory of device files.

    Returns:
        What was set; None where nothing was.
    """
    if "JAX_PLATFORMS" in os.environ or importlib.util.find_spec("libtpu") is None:
        return None
    if any(found for pattern in _ACCELERATORS for found in devices.glob(pattern)):
        return None
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # it has read the variable already
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    return "cpu"
