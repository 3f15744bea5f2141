"""Simulated devices: several CPU devices, with enough threads for XLA's rendezvous."""

import os
import warnings
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from workbench import _jax_compat
from workbench._types import Device
from workbench.errors import MeshError

_THREADS_PER_DEVICE = 4  # fewer threads starved XLA's rendezvous, which aborts the process after 40 s


def simulate_devices(count: int) -> None:
    """Makes JAX show `count` CPU devices; must be called before any device is used.

    The devices need threads, but no additional memory. Calling it again with the same count does nothing.

    Args:
        count: Number of CPU devices, at least 1.

    Raises:
        MeshError: if `count` is not a positive int, or if JAX has already started with a different number of CPU
            devices.

    Example:
        >>> simulate_devices(8)
        >>> len(jax.devices())
        8
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        message = (
            f"`simulate_devices` was given {count!r}. The number of simulated devices is a positive int: for example "
            "`simulate_devices(8)`."
        )
        raise MeshError(message)
    if _jax_compat.backend_started():
        have = len(jax.devices("cpu"))
        if have == count:
            return
        message = (
            f"`simulate_devices({count})` came too late: JAX has already started with {have} CPU device(s). JAX fixes "
            "its devices the first time any of them is used (by an array, `jax.devices()`, `jax.random.key` …). "
            "Restart the kernel and call `simulate_devices` first, right after the imports."
        )
        raise MeshError(message)
    threads = str(max(_THREADS_PER_DEVICE * count, os.cpu_count() or 1))
    for variable in ("PJRT_NPROC", "NPROC"):
        os.environ[variable] = threads
    jax.config.update("jax_num_cpu_devices", count)
    platforms: str | None = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    if "cpu" not in (platforms or "cpu"):
        warnings.warn(
            f"`simulate_devices({count})` adds CPU devices, but JAX is set to the platform {platforms!r}; "
            'set `jax.config.update("jax_platforms", "cpu")` first to use them.',
            stacklevel=2,
        )


def make_mesh(
    shape: dict[str, int] | None = None,
    *,
    devices: Sequence[Device] | np.ndarray | None = None,
    axis_types: jax.sharding.AxisType | tuple[jax.sharding.AxisType, ...] | None = None,
    **axes: int,
) -> Mesh:
    """Creates a mesh from axis names and sizes, in the device order that suits the hardware.

    Args:
        shape: Axis sizes by name, in order; alternatively, pass them as keywords.
        devices: Devices to use. Default: as many of `jax.devices()` as the axes need.
        axis_types: One `jax.sharding.AxisType` for all axes, or one per axis. Default: Auto.
        **axes: Axis sizes, as keyword arguments.

    Returns:
        A `jax.sharding.Mesh`, for use as `with jax.set_mesh(mesh):`.

    Raises:
        MeshError: if an axis size is not a positive int, if XLA cannot parse an axis name, or if there are fewer
            devices than the mesh needs.

    Example:
        >>> make_mesh(clients=4, model=2).shape["clients"]
        4
    """
    sizes = {**(shape or {}), **axes}
    wrong = {name: size for name, size in sizes.items() if not isinstance(size, int | np.integer) or size < 1}
    if wrong or not sizes:
        message = (
            f"`make_mesh` was given axes {sizes}. Every mesh axis must have a name and a positive size: for example "
            "`make_mesh(clients=4, model=2)`."
        )
        raise MeshError(message)
    check_axis_names("make_mesh", sizes)
    needed = int(np.prod(list(sizes.values())))
    have = list(devices) if devices is not None else jax.devices()
    if len(have) < needed:
        shape_text = " × ".join(f"{name}={size}" for name, size in sizes.items())
        message = (
            f"`make_mesh` was asked for {shape_text} = {needed} devices, but there are {len(have)} "
            f"({have[0].platform}). A mesh needs one device per position: use a smaller mesh, or, to try without "
            f"hardware, restart the kernel and call `simulate_devices({needed})` first, or inspect with `on=`."
        )
        raise MeshError(message)
    if axis_types is None or isinstance(axis_types, AxisType):
        axis_types = (axis_types or AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=tuple(axis_types), devices=have[:needed])


def check_axis_names(operation: str, names: Iterable[str]) -> None:
    """Checks that XLA can read the names of mesh axes and placements."""
    wrong = [name for name in names if not (name.isascii() and name.isprintable() and "\\" not in name and name)]
    if wrong:
        message = (
            f"`{operation}` received the axis name(s) {', '.join(map(ascii, wrong))}. XLA aborts the process when it "
            "compiles for an axis whose name has a non-ASCII character, a backslash or a control character. Use "
            'ASCII letters, digits, spaces and "_".'
        )
        raise MeshError(message)
