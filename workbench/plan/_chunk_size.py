"""Number of clients that a device processes together."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Literal as OneOf, TypeAlias

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from workbench import _jax_compat
from workbench._types import Atom, type_of
from workbench.errors import ProgramError
from workbench.plan._count import count_jaxpr_work
from workbench.plan._differs import Differs
from workbench.plan._phases import Phase

# Minimum amount of work that justifies a separate loop iteration on a CPU (about 100 µs of arithmetic).
_CPU_FLOPS_PER_ITERATION = 4e6
# Work per iteration that saturates two cores. Below it, computing 8 clients together is faster if their matrix products
# share a factor (which gives one larger product) or if a device has a second core. If both are true, computing 32
# together is faster.
_CPU_FLOPS_PER_FULL_ITERATION = 8e7
_CPU_CLIENTS_TOGETHER = 8
_CPU_CLIENTS_TOGETHER_SHARING = 32
# Scattered table elements per FLOP above which scatters dominate. A second core then speeds up chunks of 16 clients, as
# long as their tables fit in the caches.
_SCATTERED_PER_FLOP = 0.1
_CPU_CLIENTS_TOGETHER_SCATTERING = 16
_CPU_TABLE_BYTES = 4e6
# On an accelerator, as many clients run together as fit in this share of its memory.
_MEMORY_SHARE = 0.25
_DEFAULT_MEMORY_BYTES = 8 << 30


ChunkSize: TypeAlias = int | OneOf["auto"] | Callable[[Phase, int], int] | None


def check_chunk_size(question: str, chunk_size: object) -> None:
    """Raises an error for an impossible chunk size; `question` is the function that the user called."""
    is_count = isinstance(chunk_size, int) and not isinstance(chunk_size, bool) and chunk_size >= 1
    tunes = chunk_size == "tune" and question == "jit"
    if not (is_count or callable(chunk_size) or tunes or chunk_size in ("auto", None)):
        message = (
            f"`{question}` was given chunk_size={chunk_size!r}. `chunk_size` is the number of clients that one device "
            'processes together: pass a positive int, "auto" to let the workbench choose, or None for all clients; '
            '`jit` also accepts "tune", which measures.'
        )
        raise ProgramError(message)


def resolve_chunk_size(chunk_size: ChunkSize, phase: Phase, per_shard: int) -> int:
    """The number of clients computed together on a device that has `per_shard` clients."""
    if chunk_size is None:
        return per_shard
    if isinstance(chunk_size, int):
        return min(chunk_size, per_shard)
    choose = choose_chunk_size if chunk_size == "auto" else chunk_size
    assert callable(choose)
    return choose(phase, per_shard)


def choose_chunk_size(
    phase: Phase,
    per_share: int,
    *,
    platform: str | None = None,
    memory_bytes: int | None = None,
    cores: float | None = None,
) -> int:
    """The number of clients that "auto" processes together.

    On a CPU, a chunk size of 1 is usually fastest, because a client's matrices stay in the caches. Clients whose
    innermost loop has tiny iterations need larger chunks. Larger chunks also use the cores better in two cases. In the
    first case, most FLOPs are products with weights that all clients share (frozen layers, evaluation). In the second
    case, a device has several cores, and one client's products are too small for them. Larger chunks are slow for
    convolutions that have per-client kernels. Larger chunks are also slow for scatters into per-client tables (trained
    embeddings), unless the device has several cores and the tables fit in the caches. On an accelerator, the chunk is
    as large as fits in a quarter of the device's memory.
    """
    if (platform or jax.default_backend()) == "cpu":
        return min(per_share, _together_on_cpu(phase, _cores_per_device(phase) if cores is None else cores))
    room = _MEMORY_SHARE * (memory_bytes or _memory_bytes())
    return max(1, min(per_share, int(room // max(phase.row_bytes, 1))))


def rules_by_devices(chunk_size: ChunkSize) -> list[tuple[int, Callable[[Phase, int], int]]]:
    """The rules of "auto", each with the smallest number of devices it applies to; empty for other chunk sizes."""
    rule = functools.partial(choose_chunk_size) if chunk_size == "auto" else chunk_size
    if not isinstance(rule, functools.partial) or rule.func is not choose_chunk_size:
        return []
    if (rule.keywords.get("platform") or jax.default_backend()) != "cpu":
        return [(1, rule)]
    cores = usable_cores() * jax.process_count()
    two_cores_each = cores // 2  # the largest number of devices that have two cores each
    return [
        (n, functools.partial(rule, cores=cores / n)) for n in ([1] if two_cores_each else []) + [two_cores_each + 1]
    ]


def _together_on_cpu(phase: Phase, cores: float) -> int:
    jaxprs = [step.jaxpr for step in phase.steps if step.jaxpr is not None]
    flops = sum(_flops(jaxpr) for jaxpr in jaxprs)
    work = max(1.0, flops / max(1, sum(_iterations(jaxpr.jaxpr) for jaxpr in jaxprs)))
    counted = _count_products(phase)
    shares, spare = counted["shared"] > 0.5 * counted["all"], cores >= 2
    if counted["own kernels"]:
        return 1
    if counted["own tables"] > _SCATTERED_PER_FLOP * flops:
        cached = int(_CPU_TABLE_BYTES // counted["largest table"])
        return max(1, min(_CPU_CLIENTS_TOGETHER_SCATTERING, cached)) if spare else 1
    most = 1
    if shares or spare:
        most = _CPU_CLIENTS_TOGETHER_SHARING if shares and spare else _CPU_CLIENTS_TOGETHER
    to_fill = _CPU_FLOPS_PER_FULL_ITERATION * most / _CPU_CLIENTS_TOGETHER
    return max(1, int(_CPU_FLOPS_PER_ITERATION // work), min(most, int(to_fill // work)))


def _cores_per_device(phase: Phase) -> float:
    devices = 1 if phase.layout is None else phase.layout.mesh.size // jax.process_count()
    return usable_cores() / max(1, devices)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _flops(jaxpr: ClosedJaxpr) -> float:
    counted = count_jaxpr_work(jaxpr)
    return (counted.flops or 0.0) + (counted.elementwise_flops or 0.0)


@_jax_compat.once_per_jaxpr
def _iterations(jaxpr: Jaxpr) -> int:
    """Counts the iterations of the innermost loops; a loop of unknown length counts as one iteration."""
    total = 0
    for equation in jaxpr.eqns:
        inside = sum(_iterations(getattr(inner, "jaxpr", inner)) for inner in _jax_compat.inner_jaxprs(equation))
        total += equation.params["length"] * max(1, inside) if equation.primitive.name == "scan" else inside
    return total


def _count_products(phase: Phase) -> dict[str, float]:
    """FLOPs of "all" matrix products, and of "shared" products, in which all clients share one factor.

    Also returns the FLOPs of convolutions with per-client kernels ("own kernels"), the number of elements scattered
    into per-client tables ("own tables"), and the bytes of the "largest table".
    """
    walk = _Products()
    differs: dict[Atom, bool] = {**dict.fromkeys(phase.rows, True), **dict.fromkeys(phase.shared, False)}
    for step in phase.steps:
        if step.kind == "clients" and step.jaxpr is not None:
            inputs = [not isinstance(v, Literal) and differs.get(v, False) for v in step.equation.invars]
            inputs = inputs[-len(step.jaxpr.in_avals) :] if step.jaxpr.in_avals else []
            differs.update(zip(step.outputs, walk.run(step.jaxpr, inputs), strict=True))
    return walk.tally


class _Products(Differs):
    """Counts products, and tracks which values differ between clients."""

    def __init__(self) -> None:
        super().__init__()
        kinds = ("all", "shared", "own kernels", "own tables", "largest table")
        self.tally: dict[str, float] = dict.fromkeys(kinds, 0.0)

    def bind(self, equation: JaxprEqn, operands: Sequence[bool]) -> list[bool]:
        name = equation.primitive.name
        if name == "dot_general" and any(operands):
            (contracting, _), _ = equation.params["dimension_numbers"]
            shape = type_of(equation.invars[0]).shape
            flops = 2.0 * type_of(equation.outvars[0]).size * math.prod(shape[d] for d in contracting) * self.executions
            self.tally["all"] += flops
            self.tally["shared"] += 0.0 if all(operands) else flops
        elif name == "conv_general_dilated" and all(operands):
            kernel = math.prod(type_of(equation.invars[1]).shape)
            self.tally["own kernels"] += 2.0 * type_of(equation.outvars[0]).size * kernel * self.executions
        elif name.startswith("scatter") and any(operands):
            table = type_of(equation.outvars[0])
            self.tally["own tables"] += table.size * self.executions
            self.tally["largest table"] = max(self.tally["largest table"], table.size * table.dtype.itemsize)
        return super().bind(equation, operands)


def _memory_bytes() -> int:
    stats = jax.local_devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", _DEFAULT_MEMORY_BYTES))
