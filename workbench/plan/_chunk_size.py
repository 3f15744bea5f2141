"""How many clients a device computes together."""

from typing import Any

import jax

from workbench import _jax_compat
from workbench.plan._count import count_jaxpr_work
from workbench.plan._phases import Phase

# Less work is not worth a turn of a loop of its own on a CPU (about 100 µs of arithmetic).
_CPU_FLOPS_PER_TURN = 4e6
# An accelerator is filled by as many clients as fit in this share of its memory.
_MEMORY_SHARE = 0.25
_DEFAULT_MEMORY_BYTES = 8 << 30


def choose_chunk_size(
    phase: Phase, per_share: int, *, platform: str | None = None, memory_bytes: int | None = None
) -> int:
    """The number of clients that "auto" computes together.

    On a CPU one client at once is fastest unless a turn of the client's innermost loop is tiny: matrices of one client
    fill the cores and stay in their caches, and only the cost of starting an operation is shared by computing several
    clients in one. An accelerator wants as many as fit in a quarter of its memory.
    """
    if (platform or jax.default_backend()) == "cpu":
        jaxprs = [step.jaxpr for step in phase.steps if step.jaxpr is not None]
        work = sum(_flops(jaxpr) for jaxpr in jaxprs) / max(1, sum(_turns(jaxpr.jaxpr) for jaxpr in jaxprs))
        return max(1, min(per_share, int(_CPU_FLOPS_PER_TURN // max(work, 1.0))))
    room = _MEMORY_SHARE * (memory_bytes or _memory_bytes())
    return max(1, min(per_share, int(room // max(phase.row_bytes, 1))))


def _flops(jaxpr: object) -> float:
    counted = count_jaxpr_work(jaxpr)
    return (counted.flops or 0.0) + (counted.elementwise_flops or 0.0)


def _turns(jaxpr: Any) -> int:
    """How often the bodies of the innermost loops run; a loop of unknown length counts once."""
    total = 0
    for equation in jaxpr.eqns:
        inside = sum(_turns(getattr(inner, "jaxpr", inner)) for inner in _jax_compat.inner_jaxprs(equation))
        total += equation.params["length"] * max(1, inside) if equation.primitive.name == "scan" else inside
    return total


def _memory_bytes() -> int:
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", _DEFAULT_MEMORY_BYTES))
