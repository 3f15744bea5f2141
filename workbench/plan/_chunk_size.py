"""How many clients a device computes together."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from workbench import _jax_compat
from workbench._types import Atom
from workbench.plan._count import count_jaxpr_work
from workbench.plan._differs import Differs
from workbench.plan._phases import Phase

# Less work is not worth an iteration of a loop of its own on a CPU (about 100 µs of arithmetic).
_CPU_FLOPS_PER_TURN = 4e6
# Clients whose matrix products share a factor are one larger product, which fills the cores better: up to so many.
_CPU_FLOPS_PER_TURN_SHARED = 8e7
_CPU_CLIENTS_SHARING = 8
# An accelerator is filled by as many clients as fit in this share of its memory.
_MEMORY_SHARE = 0.25
_DEFAULT_MEMORY_BYTES = 8 << 30


def choose_chunk_size(
    phase: Phase, per_share: int, *, platform: str | None = None, memory_bytes: int | None = None
) -> int:
    """The number of clients that "auto" computes together.

    On a CPU one client at once is fastest unless an iteration of the client's innermost loop is tiny: matrices of one
    client fill the cores and stay in their caches, and only the cost of starting an operation is shared by computing
    several clients in one. Where most of the work multiplies by weights that all clients share (frozen layers,
    evaluation), several clients are one larger matrix. An accelerator wants as many as fit in a quarter of its memory.
    """
    if (platform or jax.default_backend()) == "cpu":
        jaxprs = [step.jaxpr for step in phase.steps if step.jaxpr is not None]
        work = sum(_flops(jaxpr) for jaxpr in jaxprs) / max(1, sum(_turns(jaxpr.jaxpr) for jaxpr in jaxprs))
        together = int(_CPU_FLOPS_PER_TURN // max(work, 1.0))
        if together < _CPU_CLIENTS_SHARING and _share_of_shared_products(phase) > 0.5:
            together = min(_CPU_CLIENTS_SHARING, int(_CPU_FLOPS_PER_TURN_SHARED // max(work, 1.0)))
        return max(1, min(per_share, together))
    room = _MEMORY_SHARE * (memory_bytes or _memory_bytes())
    return max(1, min(per_share, int(room // max(phase.row_bytes, 1))))


def _flops(jaxpr: ClosedJaxpr) -> float:
    counted = count_jaxpr_work(jaxpr)
    return (counted.flops or 0.0) + (counted.elementwise_flops or 0.0)


@_jax_compat.once_per_jaxpr
def _turns(jaxpr: Jaxpr) -> int:
    """How often the bodies of the innermost loops run; a loop of unknown length counts once."""
    total = 0
    for equation in jaxpr.eqns:
        inside = sum(_turns(getattr(inner, "jaxpr", inner)) for inner in _jax_compat.inner_jaxprs(equation))
        total += equation.params["length"] * max(1, inside) if equation.primitive.name == "scan" else inside
    return total


def _share_of_shared_products(phase: Phase) -> float:
    """Which share of the matrix products' FLOPs has one factor that is the same for all clients."""
    walk = _SharedProducts()
    differs: dict[Atom, bool] = {**dict.fromkeys(phase.rows, True), **dict.fromkeys(phase.shared, False)}
    for step in phase.steps:
        if step.kind == "clients" and step.jaxpr is not None:
            inputs = [differs.get(v, False) for v in step.equation.invars][-len(step.jaxpr.in_avals) :]
            differs.update(zip(step.outputs, walk.run(step.jaxpr, inputs), strict=True))
    return walk.tally["shared"] / walk.tally["all"] if walk.tally["all"] else 0.0


class _SharedProducts(Differs):
    """FLOPs of matrix products, and of those with one factor that no client has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tally: dict[str, float] = {"all": 0.0, "shared": 0.0}

    def bind(self, equation: Any, operands: Sequence[bool]) -> list[bool]:
        if equation.primitive.name == "dot_general" and any(operands):
            (contracting, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            flops = 2.0 * equation.outvars[0].aval.size * math.prod(left[d] for d in contracting) * self.executions
            self.tally["all"] += flops
            self.tally["shared"] += 0.0 if all(operands) else flops
        return super().bind(equation, operands)


def _memory_bytes() -> int:
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", _DEFAULT_MEMORY_BYTES))
