"""Computation and communication of one client in a round, derived from the program."""

import operator
from collections.abc import Sequence

from workbench.errors import ProgramError
from workbench.records.program import PlanRecord, StageRecord
from workbench.records.run import WorkRecord


def work_of(program: object, *, spread: float = 0.0) -> WorkRecord:
    """Computes FLOPs, bytes and memory of one client in a round, without running it.

    Args:
        program: Result of `wb.trace(round)(...)` or `wb.inspect(round)(...)`, or a plan.
        spread: Standard deviation of the logarithm of a client's work, for clients with unequal numbers of examples.

    Returns:
        The work. Downloads are the plan's broadcasts, and uploads are its reductions. FLOPs are counted in the clients'
        stages, with separate counts for matrix products and elementwise operations. All iterations of a loop are
        counted, but only the most expensive branch of a conditional. Memory is a lower bound that covers the values
        that one client receives, keeps and sends, but not activations.

    Raises:
        ProgramError: if the program has no clients, or has a loop of unknown length.

    Example:
        >>> import jax, jax.numpy as jnp, workbench as wb
        >>> @wb.program(clients=4)
        ... def one_round(w, x):
        ...     return wb.reduce_mean(wb.map_fn(lambda w, x: w * (w @ x), (wb.broadcast(w), x)))
        >>> work = work_of(wb.trace(one_round)(jnp.ones(1000), jnp.ones((4, 1000))))
        >>> work.flops, work.elementwise_flops, work.download_bytes, work.upload_bytes
        (2000.0, 1000.0, 4000.0, 4000.0)
    """
    plan = program if isinstance(program, PlanRecord) else getattr(program, "plan", None)
    if not isinstance(plan, PlanRecord) or not any(stage.kind == "clients" for stage in plan.walk()):
        message = (
            "`work_of` received "
            f"{type(program).__name__}{f' of {plan.name!r}' if isinstance(plan, PlanRecord) else ''}, in which clients "
            "compute nothing. `work_of` reads a client's work from a program that uses `map_fn`, broadcasts and "
            "reductions: pass `wb.trace(algorithm.round)(state, batches)`."
        )
        raise ProgramError(message)
    flops, elementwise, down, up = _totals(plan.stages, plan.name)
    memory = sum(value.size_bytes for value in plan.kept_local) + _largest_rows(plan)
    return WorkRecord(
        flops=flops,
        elementwise_flops=elementwise,
        download_bytes=down,
        upload_bytes=up,
        memory_bytes=int(memory),
        spread=spread,
        source=plan.name,
    )


_Amounts = tuple[float, ...]  # four: matrix and elementwise FLOPs of one client, bytes to it, bytes from it
_NOTHING: _Amounts = (0.0, 0.0, 0.0, 0.0)


def _totals(stages: Sequence[StageRecord], name: str) -> _Amounts:
    totals = _NOTHING
    for stage in stages:
        totals = tuple(map(operator.add, totals, _of_stage(stage, name)))
    return totals


def _of_stage(stage: StageRecord, name: str) -> _Amounts:
    if stage.kind == "clients":
        flops, elementwise = stage.flops_per_client or 0.0, stage.elementwise_flops_per_client or 0.0
        return flops * stage.computations, elementwise * stage.computations, 0.0, 0.0
    if stage.kind == "broadcast":
        return 0.0, 0.0, stage.moved_bytes / stage.clients, 0.0
    if stage.kind == "reduce":
        return 0.0, 0.0, 0.0, stage.moved_bytes / stage.clients
    if stage.kind == "branch":
        return max((_totals(body, name) for body in stage.branches), default=_NOTHING)
    if stage.kind == "loop":
        once = _totals(stage.body, name)
        if any(once) and stage.trip_count is None:
            message = (
                f"`work_of` received {name!r}, whose loop {stage.path} has a length that is known only at run time. "
                "The work of a client is counted before the run: pass one round without the loop, or use `lax.scan`."
            )
            raise ProgramError(message)
        return tuple(amount * (stage.trip_count or 0) for amount in once)
    return _NOTHING


def _largest_rows(plan: PlanRecord) -> float:
    """Computes one client's peak memory in bytes over the stages, from received and computed values."""
    stages = [stage for stage in plan.walk(("loop", "branch")) if stage.kind == "clients"]
    return max(sum(value.size_bytes / max(stage.clients, 1) for value in stage.outputs) for stage in stages) + sum(
        stage.moved_bytes / stage.clients for stage in plan.walk(("loop", "branch")) if stage.kind == "broadcast"
    )
