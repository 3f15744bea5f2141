"""Compiles StableHLO for targets that are not attached, in a worker process, with a cache."""

import contextlib
import importlib.metadata
import logging
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from workbench.aot._availability import require_compiler
from workbench.aot._cache import CompilationCache, cache_key
from workbench.aot._chips import FAMILIES, gpu_target_config
from workbench.aot._hops import mesh_axes, torus_wraps
from workbench.aot._locations import hide_cells, show_cells
from workbench.aot._memory import memory_record
from workbench.aot._parse import parse_target
from workbench.aot._process import Worker, shared_worker
from workbench.errors import MeshError
from workbench.records.compiled import TargetCompilation, TargetRecord
from workbench.records.hardware import DeviceRecord, MeshRecord

_LOG = logging.getLogger("workbench.aot")

Order = Literal["topology", "naive"]
Option = bool | int | float | str


def compile_for_target(
    stablehlo: str,
    target: str | TargetRecord,
    *,
    mesh_axes: Mapping[str, int],
    order: Order = "topology",
    options: Mapping[str, Option] | None = None,
    timeout_seconds: float | None = None,
    progress: Callable[[str, float], None] | None = None,
    cancel: threading.Event | None = None,
    cache: CompilationCache | None = None,
    worker: Worker | None = None,
) -> TargetCompilation:
    """Compiles a program for a target: returns the optimized HLO, the memory, and the position of each device.

    Runs in a worker process (0.4 to 0.7 GB of memory), because on some topologies the compiler crashes instead of
    raising an error. The result of a second call with the same arguments is read from disk.

    Args:
        stablehlo: The program from `lower_for_target`, one module for all devices, sharded over `mesh_axes`.
        target: The machine, such as `"v5e:16x16"`, or a `TargetRecord` (`parse_target(name, force=True)` for an
            untested topology).
        mesh_axes: Axes of the program's mesh, in order; the product of their sizes is the target's number of devices.
        order: `topology` keeps mesh neighbours adjacent on the torus; `naive` uses the compiler's device order.
        options: XLA options for this compilation, by name (the `XLA_FLAGS` of this process are not passed on).
        timeout_seconds: Terminates the worker after this time; None means no limit.
        progress: Called about ten times a second with the current activity and the elapsed seconds.
        cancel: An event, set from any thread, that stops the compilation; Ctrl-C has the same effect.
        cache: The cache of compilations; None means the user's cache directory.
        worker: Another worker, to compile two programs at the same time; None means this kernel's worker.

    Returns:
        The compilation. A record is also returned for a program that does not fit: `memory.fits` is False, and
        `needed_bytes` and `memory.largest` give the amount and the largest buffers.

    Raises:
        MeshError: if the mesh does not have the target's number of devices, or if the target does not exist.
        MissingDependencyError: if the target's compiler is not installed.
        EngineError: if the compiler crashes or fails, the time runs out, or `cancel` is set.
    """
    target = parse_target(target) if isinstance(target, str) else target
    axes = {name: int(size) for name, size in mesh_axes.items()}
    _check_axes(axes, target)
    compiler = (worker.compiler if worker is not None else None) or require_compiler(target)
    plain, cell = hide_cells(stablehlo)
    request = _request(plain, target, axes, order, options or {})
    cache = cache or CompilationCache()
    key = cache_key(request, compiler=f"{compiler}, jaxlib {importlib.metadata.version('jaxlib')}")
    dumps = "xla_dump_to" in (options or {})  # needed for its files, which a cached answer would not write
    stored = None if dumps else cache.load(key)
    _LOG.debug("cache %s for %s: key %.12s", "miss" if stored is None else "hit", target.name, key)
    if stored is not None:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # written in a different format
            return _compilation(stored, cell, target, axes, compiler).replace(cached=True)
    reply = (worker or shared_worker(target.platform)).ask(
        request,
        task=f"Compiling for target {target.name!r}",
        timeout_seconds=timeout_seconds,
        progress=progress,
        cancel=cancel,
    )
    note = "" if dumps else cache.store(key, reply)
    if note:
        _LOG.warning("%s", note)
    compilation = _compilation(reply, cell, target, axes, compiler)
    return compilation.replace(notes=compilation.notes + ((note,) if note else ()))


def _compilation(
    reply: dict[str, Any], cell: str, target: TargetRecord, axes: dict[str, int], compiler: str
) -> TargetCompilation:
    """Creates the record from a new or a stored reply."""
    reply = {**reply, "hlo": show_cells(reply["hlo"], cell)}
    return _record(reply, target, axes, compiler).replace(notes=_notes(reply, target))


def _check_axes(axes: dict[str, int], target: TargetRecord) -> None:
    devices = math.prod(axes.values())
    if devices == target.devices and all(size > 0 for size in axes.values()):
        return
    described = " x ".join(f"{name}={size}" for name, size in axes.items()) or "no axes"
    message = (
        f"`compile_for_target` was given a mesh of {described} = {devices} devices for target {target.name!r}, which "
        f"has {target.devices} ({target.chips} chips). Every device of a target must have one place in the mesh: use "
        f"axes whose product is {target.devices} (`fit_axes` chooses the size of the first axis), or another topology "
        f"of {target.chip}."
    )
    raise MeshError(message)


def _request(
    stablehlo: str, target: TargetRecord, axes: dict[str, int], order: Order, options: Mapping[str, Option]
) -> dict[str, Any]:
    if order not in ("topology", "naive"):
        message = (
            f"`compile_for_target` was given `order={order!r}`. Devices are placed into the mesh in one of two orders: "
            "use 'topology' (neighbours stay neighbours) or 'naive' (the compiler's list, reshaped)."
        )
        raise MeshError(message)
    family = FAMILIES[target.chip]
    arguments: dict[str, Any] = dict(family.plugin_arguments)
    if target.platform == "cuda":
        name = ""
        arguments |= {"target_config": gpu_target_config(family), "topology": f"1x{target.topology}"}
    else:
        name = f"{target.chip}:{target.topology}"
        wraps = torus_wraps(target)
        arguments |= {"wrap": [*wraps, *(False,) * (3 - len(wraps))]} if any(wraps) else {}
        arguments |= {"chips_per_host_bounds": [1, 1, 1]} if target.topology in ("1x1", "1x1x1") else {}
        arguments |= {"num_slices": target.slices} if target.slices > 1 else {}
    return {
        "stablehlo": stablehlo,
        "platform": target.platform,
        "topology_name": name,
        "arguments": arguments,
        "slices": target.slices,
        "axes": list(axes.items()),
        "order": order,
        "options": dict(sorted(options.items())),
    }


def _record(reply: dict[str, Any], target: TargetRecord, axes: dict[str, int], compiler: str) -> TargetCompilation:
    devices = _devices(reply["devices"], tuple(axes.values()))
    memory = memory_record(reply, target.available_bytes)
    return TargetCompilation(
        target=target,
        hlo=reply["hlo"],
        memory=memory,
        mesh=MeshRecord(
            axes=mesh_axes(target, axes, devices),
            devices=devices,
            wraps=None if any(device.coords is None for device in devices) else torus_wraps(target),
        ),
        order=reply["order"],
        seconds=reply["seconds"],
        cached=False,
        cost_analysis=reply["cost"],
        needed_bytes=None if memory.fits else memory.peak_bytes,
        error=reply["error"],
        versions={"compiler": compiler, **reply["versions"]},
    )


def _devices(devices: list[dict[str, Any]], sizes: tuple[int, ...]) -> tuple[DeviceRecord, ...]:
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    return tuple(
        DeviceRecord(
            id=device["id"],
            position=tuple(place // stride % size for stride, size in zip(strides, sizes, strict=True)),
            platform=device["platform"],
            kind=device["kind"],
            host=device["host"],
            coords=None if device["coords"] is None else tuple(device["coords"]),
            core_on_chip=device["core_on_chip"],
            slice_index=device["slice_index"],
        )
        for place, device in enumerate(devices)
    )


def _notes(reply: dict[str, Any], target: TargetRecord) -> tuple[str, ...]:
    notes = [*target.notes, *reply["notes"]]
    if reply["error"] and reply["hlo"]:
        notes.append("the program does not fit, so the HLO is the last state that the compiler reached")
    if reply.get("said"):
        notes.append(f"compiler message about memory: {reply['said']}")
    if target.platform == "cuda":
        notes.append("compiled without a GPU and without autotuning: kernels and tiles may differ from a real run")
        notes.append(
            "`fits` compares the compiler's peak with the GPU's memory; CUDA and NCCL also need some of this memory"
        )
    return tuple(notes)
