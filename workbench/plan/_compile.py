"""`workbench.jit`: compiles a program according to its plan."""

import functools
from collections.abc import Callable
from typing import Literal, TypeAlias, overload

from workbench._open_types import Option
from workbench.errors import ProgramError
from workbench.plan._chunk_size import ChunkSize, check_chunk_size
from workbench.plan._evaluate import form_of
from workbench.plan._jit import Jitted
from workbench.plan._loop_form import LoopForm, Spread
from workbench.plan._tune import TunedJitted
from workbench.records.program import PlanChoiceRecord

Choice: TypeAlias = ChunkSize | Literal["tune"]


@overload
def jit(
    fn: Callable, *, chunk_size: Literal["tune"], spread: Spread = "auto", tune_seconds: float = 20.0, **options: Option
) -> TunedJitted: ...
@overload
def jit(
    fn: Callable,
    *,
    chunk_size: ChunkSize = "auto",
    spread: Spread = "auto",
    plan: PlanChoiceRecord | None = None,
    **options: Option,
) -> Jitted: ...
@overload
def jit(
    *,
    chunk_size: Choice = "auto",
    spread: Spread = "auto",
    plan: PlanChoiceRecord | None = None,
    tune_seconds: float = 20.0,
    **options: Option,
) -> Callable[[Callable], Jitted]: ...


def jit(
    fn: Callable | None = None,
    *,
    chunk_size: Choice = "auto",
    spread: Spread = "auto",
    plan: PlanChoiceRecord | None = None,
    tune_seconds: float = 20.0,
    **options: Option,
) -> Jitted | Callable[[Callable], Jitted]:
    """Compiles a program so that its memory does not grow with the number of clients.

    Clients whose results are only reduced are computed in chunks on every device, with running reductions; each
    reduction is one collective. Gradient programs are compiled in the same way: `jit(jax.grad(program))`. Random
    numbers from the "rbg" generators depend on `chunk_size`, because JAX's `vmap` uses one such key per batch; random
    numbers from "threefry2x32" do not.

    Args:
        fn: A program, or any function that calls programs. If it is omitted, `jit(chunk_size=8)` is a decorator.
        chunk_size: Number of clients that a device processes together. "auto" uses the stored result of "tune" for this
            program, these shapes and these devices; if there is none, it applies a rule. "tune" takes short interleaved
            measurements on the arguments of the first call with new shapes. Tuning chooses the chunk size, the chunks
            per iteration, the spread, and whether to keep rows for a gradient's second pass. None computes all of a
            device's clients together.
        spread: How clients are spread over a mesh. "shard_map": each device computes its own clients, isolated from the
            clients on other devices. "vmap": the compiler partitions one program with a device axis; this also works
            for operations that JAX or XLA cannot compile in a partly manual program. "auto": uses "vmap" only if the
            mesh has additional axes, and the client uses callbacks, kernels, Refs, or a gather over two additional
            axes.
        plan: The `plan_choice` of a tuned program, from this process or read from JSON. The choice replaces
            `chunk_size` and `spread`, and results in the same plan on any machine.
        tune_seconds: With "tune", no new candidate starts after this many seconds; compilation time is included. The
            result is stored on disk for this program, these shapes, devices and versions. The returned program's
            `plan_choice` states the choice and its reason. After an interrupt, this process uses the best candidate
            found so far.
        **options: Options of `jax.jit`: `static_argnums`, `donate_argnums`, `in_shardings`, …

    Returns:
        A callable like the result of `jax.jit`, with `lower` and `trace`; `jax.export.export` also accepts it.

    Raises:
        ProgramError: if `chunk_size` is neither "auto", "tune", None nor a positive int; if `spread` is unknown; if
            `plan` is not a choice, or is combined with `chunk_size` or `spread`; or if `tune_seconds` is not positive.

    Example:
        >>> from workbench import program, reduce_mean, map_fn
        >>> @program(clients=1000)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> float(jit(mean_square, chunk_size=10)(jax.numpy.ones(1000)))
        1.0

    References:
        DrJAX (2024), section 3; gradient accumulation over chunks as in Chen et al., arXiv 1604.06174.
    """
    if fn is not None and not callable(fn):
        message = (
            f"`jit` received an object of type {type(fn).__name__}, which is not a function. `jit` compiles a program: "
            "pass the function, and its arguments in the second call, as in `jit(fn)(*args)`."
        )
        raise ProgramError(message)
    check_chunk_size("jit", chunk_size)
    if spread not in ("auto", "shard_map", "vmap"):
        message = (
            f"`jit` received spread={spread!r}. `spread` is the method that spreads clients over a mesh: pass "
            '"shard_map" or "vmap", or "auto" to let the workbench choose.'
        )
        raise ProgramError(message)
    if not (isinstance(tune_seconds, int | float) and tune_seconds > 0):
        message = (
            f"`jit` received tune_seconds={tune_seconds!r}. `tune_seconds` is the time for trying candidates, in "
            "seconds: pass a positive number."
        )
        raise ProgramError(message)
    if plan is not None and (not isinstance(plan, PlanChoiceRecord) or chunk_size != "auto" or spread != "auto"):
        message = (
            f"`jit` received an object of type {type(plan).__name__} as `plan`, with chunk_size={chunk_size!r} and "
            f"spread={spread!r}. A plan is the `plan_choice` of a tuned program, and includes the other two options: "
            "pass only the plan, or read a plan from JSON with `workbench.records.program.PlanChoiceRecord.from_json`."
        )
        raise ProgramError(message)
    if fn is None:
        return functools.partial(
            jit, chunk_size=chunk_size, spread=spread, plan=plan, tune_seconds=tune_seconds, **options
        )
    if plan is not None:
        jitted = Jitted(fn, plan.chunk_size, options, form_of(plan))
        jitted.computes_as(plan.chunk_size, jitted.form, plan)
        return jitted
    if chunk_size == "tune":
        return TunedJitted(fn, options, LoopForm(spread), float(tune_seconds))
    return Jitted(fn, chunk_size, options, LoopForm(spread))
