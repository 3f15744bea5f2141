"""`workbench.jit`: which plan of a program is compiled."""

import functools
from collections.abc import Callable
from typing import Literal, TypeAlias, overload

from workbench._open_types import Option
from workbench.errors import ProgramError
from workbench.plan._evaluate import ChunkSize, form_of
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

    Clients that are only reduced are computed in chunks on every device, with running reductions; each reduction is one
    collective. Also for gradient programs: `jit(jax.grad(program))`. Random keys of the "rbg" generators give numbers
    that depend on `chunk_size`, since JAX's `vmap` uses one such key per batch; those of "threefry2x32" do not.

    Args:
        fn: A program, or any function that calls programs. Without it, `jit(chunk_size=8)` is a decorator.
        chunk_size: Clients that a device computes together. "auto" takes what "tune" found before for this program,
            these shapes and devices, and otherwise chooses by a rule; "tune" measures by short interleaved runs on the
            arguments of the first call with new shapes: the chunk size, whether rows that a gradient reads again are
            kept, chunks in an iteration, and the spread; None: all of a device's clients.
        spread: How clients are spread over a mesh. "shard_map": each device computes its own clients, and nothing of
            them reaches another one's. "vmap": the compiler partitions one program with an axis of devices, which it
            survives where a client has what no partly manual program may hold. "auto": "vmap" only where the mesh has
            axes apart from the clients' and the client calls back, runs kernels, has Refs, or gathers over two of them.
        plan: The `plan_choice` of a program that was tuned, in this process or read from its JSON: the same plan again,
            on any machine, in place of `chunk_size` and `spread`.
        tune_seconds: With "tune", no further candidate is begun after this many seconds, compilations included. What
            was measured is kept on disk for this program, these shapes, devices and versions, and `plan_choice` of
            what `jit` returns says what was chosen and why. Interrupting it keeps the best so far for this process.
        **options: As for `jax.jit`: `static_argnums`, `donate_argnums`, `in_shardings`, …

    Returns:
        A callable like that of `jax.jit`, with `lower` and `trace`; `jax.export.export` takes it as well.

    Raises:
        ProgramError: if `chunk_size` is neither "auto", "tune", None nor a positive int, `spread` is none of the
            three, `plan` is no choice or comes with one of these, or `tune_seconds` is not positive.

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
    wrong = chunk_size not in ("auto", "tune", None) and not (
        isinstance(chunk_size, int) and not isinstance(chunk_size, bool) and chunk_size >= 1
    )
    if wrong:
        message = (
            f"`jit` was given chunk_size={chunk_size!r}. It is the number of clients that one device computes "
            'together: pass a positive int, "auto" to let the workbench choose, "tune" to let it measure, or None for '
            "all of them."
        )
        raise ProgramError(message)
    if spread not in ("auto", "shard_map", "vmap"):
        message = (
            f"`jit` received spread={spread!r}. It names how clients are spread over a mesh, and there are two ways: "
            'pass "shard_map" or "vmap", or "auto" to let the workbench choose.'
        )
        raise ProgramError(message)
    if not (isinstance(tune_seconds, int | float) and tune_seconds > 0):
        message = (
            f"`jit` received tune_seconds={tune_seconds!r}. It is how long candidates may be tried, in seconds: pass a "
            "positive number."
        )
        raise ProgramError(message)
    if plan is not None and (not isinstance(plan, PlanChoiceRecord) or chunk_size != "auto" or spread != "auto"):
        message = (
            f"`jit` received a {type(plan).__name__} as `plan`, with chunk_size={chunk_size!r} and spread={spread!r}. "
            "A plan is the `plan_choice` of a tuned program, and holds the other two: pass it alone, "
            "or read one from JSON with `workbench.records.program.PlanChoiceRecord.from_json`."
        )
        raise ProgramError(message)
    if fn is None:
        return functools.partial(
            jit, chunk_size=chunk_size, spread=spread, plan=plan, tune_seconds=tune_seconds, **options
        )
    if plan is not None:
        made = Jitted(fn, plan.chunk_size, options, form_of(plan))
        made.computes_as(plan.chunk_size, made.form, plan)
        return made
    if chunk_size == "tune":
        return TunedJitted(fn, options, LoopForm(spread), float(tune_seconds))
    return Jitted(fn, chunk_size, options, LoopForm(spread))
