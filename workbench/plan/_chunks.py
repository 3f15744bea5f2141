"""How many clients a device computes together."""

import jax

from workbench.plan._count import count_jaxpr_work
from workbench.plan._phases import Phase

# Below this work a client is not worth a turn of a loop of its own on a CPU (about 50 µs of arithmetic).
_CPU_FLOPS_PER_TURN = 2e6
# An accelerator is filled by as many clients as fit in this share of its memory.
_MEMORY_SHARE = 0.25
_DEFAULT_MEMORY_BYTES = 8 << 30


def choose_clients_at_once(
    phase: Phase, per_share: int, *, platform: str | None = None, memory_bytes: int | None = None
) -> int:
    """The number of clients that "auto" computes together.

    On a CPU one client at once is fastest unless the client's work is tiny: matrices of one client fill the cores
    and stay
    in its caches. An accelerator wants as many as fit in a quarter of its memory.
    """
    if (platform or jax.default_backend()) == "cpu":
        work = sum(_flops(step.jaxpr) for step in phase.steps if step.jaxpr is not None)
        return max(1, min(per_share, int(_CPU_FLOPS_PER_TURN // max(work, 1.0))))
    room = _MEMORY_SHARE * (memory_bytes or _memory_bytes())
    return max(1, min(per_share, int(room // max(phase.row_bytes, 1))))


def _flops(jaxpr: object) -> float:
    counted = count_jaxpr_work(jaxpr)
    return (counted.flops or 0.0) + (counted.elementwise_flops or 0.0)


def _memory_bytes() -> int:
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", _DEFAULT_MEMORY_BYTES))
