"""What one client computes and exchanges in a round, read from the program itself."""

from typing import Any

from workbench.errors import ProgramError
from workbench.records import PlanRecord, StageRecord, ValueRecord, WorkRecord


def work_of(program: Any, *, spread: float = 0.0) -> WorkRecord:
    """The FLOPs, bytes and memory of one client of a program's round, from its plan. Nothing runs.

    Args:
        program: What `wb.trace(round)(...)` or `wb.inspect(round)(...)` returned, or a plan.
        spread: Standard deviation of the logarithm of a client's work, where clients hold unequal numbers of examples.

    Returns:
        The work. Downloads are the plan's broadcasts, uploads its reductions, FLOPs those of the matrix products of the
        clients' stages; loops count with all their iterations, of branches the one with most. Memory is what one client
        receives, holds and sends: activations are not in it, so it is a lower bound.

    Raises:
        ProgramError: if the program has no clients, or a loop of unknown length.

    Example:
        >>> import jax, jax.numpy as jnp, workbench as wb
        >>> @wb.program(clients=4)
        ... def one_round(w, x):
        ...     return wb.reduce_mean(wb.map_fn(lambda w, x: w * (w @ x), (wb.broadcast(w), x)))
        >>> work = work_of(wb.trace(one_round)(jnp.ones(1000), jnp.ones((4, 1000))))
        >>> work.flops, work.download_bytes, work.upload_bytes
        (2000.0, 4000.0, 4000.0)
    """
    plan = program if isinstance(program, PlanRecord) else getattr(program, "plan", None)
    if not isinstance(plan, PlanRecord) or not any(stage.kind == "clients" for stage in plan.walk()):
        message = (
            f"`work_of` received {type(program).__name__}"
            f"{f' of {plan.name!r}' if isinstance(plan, PlanRecord) else ''}, in which no client computes. A client's "
            "work is read from a program of `map_fn`, broadcasts and reductions: pass "
            "`wb.trace(algorithm.round)(state, batches)`."
        )
        raise ProgramError(message)
    flops, down, up = _totals(plan.stages, plan.name)
    memory = sum(value.size_bytes for value in plan.kept_local) + _largest_rows(plan)
    return WorkRecord(
        flops=flops, download_bytes=down, upload_bytes=up, memory_bytes=int(memory), spread=spread, source=plan.name
    )


def _totals(stages: tuple[StageRecord, ...], name: str) -> tuple[float, float, float]:
    """FLOPs of one client, bytes to it and bytes from it."""
    totals = [0.0, 0.0, 0.0]
    for stage in stages:
        found = _of_stage(stage, name)
        totals = [total + each for total, each in zip(totals, found, strict=True)]
    return totals[0], totals[1], totals[2]


def _of_stage(stage: StageRecord, name: str) -> tuple[float, float, float]:
    if stage.kind == "clients":
        return (stage.flops_per_client or 0.0) * stage.computations, 0.0, 0.0
    if stage.kind == "broadcast":
        return 0.0, stage.moved_bytes / stage.clients, 0.0
    if stage.kind == "reduce":
        return 0.0, 0.0, stage.moved_bytes / stage.clients
    if stage.kind == "branch":
        branches: dict[str, list[StageRecord]] = {}
        for inner in stage.body:
            branches.setdefault(inner.path.rpartition(".")[0], []).append(inner)
        found = [_totals(tuple(body), name) for body in branches.values()]
        return max(found, default=(0.0, 0.0, 0.0))
    if stage.kind == "loop":
        once = _totals(stage.body, name)
        if any(once) and stage.trip_count is None:
            message = (
                f"`work_of` received {name!r}, whose loop {stage.path} has a length that only a run decides. The work "
                "of a client is counted before anything runs: pass one round without the loop, or use `lax.scan`."
            )
            raise ProgramError(message)
        return once[0] * (stage.trip_count or 0), once[1] * (stage.trip_count or 0), once[2] * (stage.trip_count or 0)
    return 0.0, 0.0, 0.0


def _largest_rows(plan: PlanRecord) -> float:
    """Bytes that one client receives from broadcasts and makes, in the stage where these are most."""
    stages = [stage for stage in plan.walk(("loop", "branch")) if stage.kind == "clients"]
    return max(sum(_of_one(value, stage) for value in stage.outputs) for stage in stages) + sum(
        stage.moved_bytes / stage.clients for stage in plan.walk(("loop", "branch")) if stage.kind == "broadcast"
    )


def _of_one(value: ValueRecord, stage: StageRecord) -> float:
    return value.size_bytes / max(stage.clients, 1)
