"""Compiles programs for any number of CPU devices, which need not exist, in a process that can be stopped."""

import threading
from collections.abc import Callable
from typing import Any

from workbench.aot._locations import hide_cells, show_cells
from workbench.aot._process import shared_worker
from workbench.records.compiled import MemoryRecord


def compile_for_cpu(
    stablehlo: str,
    devices: int,
    *,
    task: str = "Compiling for CPU devices",
    progress: Callable[[str, float], None] | None = None,
    cancel: threading.Event | None = None,
    timeout_seconds: float | None = None,
) -> tuple[str, MemoryRecord]:
    """The optimized HLO and the memory of one device, as reported by jaxlib's CPU compiler.

    All backends share the partitioner, which inserts the collectives, even for an abstract mesh. Later changes to
    collectives, fusion and the size of temporaries are specific to CPUs. Runs in a worker process, because a
    compilation can be stopped only by terminating its process.

    Args:
        stablehlo: One module for all devices, lowered for `cpu`.
        devices: Number of devices that the program is partitioned for; they need not exist.
        task: Name of the request, used in errors.
        progress: Called about ten times a second with the current activity and the time since the call in seconds.
        cancel: An event, set from any thread, that stops the compilation.
        timeout_seconds: Stops the compilation after this time; None means no limit.

    Returns:
        The text of the module, and the compiler's memory figures.

    Raises:
        EngineError: if the compiler crashes or rejects the program, the time runs out, or `cancel` is set.

    Example:
        >>> text = jax.jit(lambda x: x * 2).lower(jnp.ones(8)).as_text()
        >>> hlo, memory = compile_for_cpu(text, devices=1)
        >>> "multiply" in hlo, memory.argument_bytes
        (True, 32)
    """
    plain, cell = hide_cells(stablehlo)
    request: dict[str, Any] = {
        "stablehlo": plain,
        "platform": "cpu",
        "topology_name": "",
        "arguments": {"devices": devices},
        "slices": 1,
        "axes": [["devices", devices]],
        "order": "naive",
        "options": {},
    }
    reply = shared_worker("cpu").ask(
        request, task=task, progress=progress, cancel=cancel, timeout_seconds=timeout_seconds
    )
    reported = reply["memory"]
    parts = [reported.get(f"{name}_bytes") for name in ("argument", "output", "temporary")]
    peak = max(reported.get("peak_bytes") or 0, sum(part or 0 for part in parts) - (reported.get("alias_bytes") or 0))
    memory = MemoryRecord(**{**reported, "peak_bytes": peak})
    return show_cells(reply["hlo"], cell), memory
