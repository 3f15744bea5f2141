"""`measure`: runs a program on the devices that are here and says what really took how long."""

from collections.abc import Callable
from typing import Any, Literal

from jax.sharding import Mesh

from workbench._errors import InspectionError
from workbench._inspect import Inspection, opened
from workbench.cost import known_chip
from workbench.live import MeasureOptions, measure_compiled
from workbench.plan import AtOnce
from workbench.records import PlanRecord, RunRecord, StageRecord


def measure(
    fn: Callable,
    *args: Any,
    rounds: int = 3,
    warmup: int = 1,
    clients: Literal["together", "probe"] = "together",
    mesh: Mesh | None = None,
    chip: str | None = None,
    **kwargs: Any,
) -> RunRecord:
    """Runs a program and returns the measured seconds of every stage on every device.

    Costs `warmup + 2 * rounds` calls: each measured call has a twin without the profiler, which tells the overhead.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or what `jit` returned.
        *args: Its arguments.
        rounds: Calls to measure.
        warmup: Calls before them that do not count.
        clients: "together" runs them as in production; "probe" runs the clients of a device one after the other, so
            that each has its own time and number of steps.
        mesh: Mesh to run it on. Default: that of `jax.set_mesh`.
        chip: Chip whose peaks the achieved rates are compared with.
        **kwargs: Keyword arguments of `fn`.

    Returns:
        The run; its `results` are the program's. On a CPU, waiting for other devices is shown as waiting and never as
        communication.

    Raises:
        InspectionError: if `fn` is not a function or `clients` is neither "together" nor "probe".
        EngineError: if the profiler is busy, or the program fails.

    Example:
        >>> from workbench import map_fn, program, reduce_mean
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> float(measure(mean_square, jax.numpy.ones(8), rounds=1).results)
        1.0
    """
    if clients not in ("together", "probe"):
        message = (
            f"`measure` was given clients={clients!r}. The clients of a device run either as in production or one by "
            "one: "
            'pass "together" or "probe".'
        )
        raise InspectionError(message)
    fn, at_once = opened(fn, "auto")
    probe = clients == "probe"
    with_clients: AtOnce = 1 if probe else at_once
    made = Inspection(fn, args, kwargs, with_clients, None).compile(mesh)
    assert made.module is not None
    options = MeasureOptions(
        mesh=made.mesh,
        client_stages=client_paths(made.plan) if probe else (),
        placement=made.plan.placements[0].name if made.plan.placements else None,
        clients=made.plan.placements[0].size if made.plan.placements else None,
        chip=known_chip(chip) if chip else None,
    )
    run = measure_compiled(
        _Call(made.compiled, kwargs), args, made.module, rounds=rounds, warmup=warmup, options=options
    )
    return run.replace(name=made.plan.name)


def client_paths(plan: PlanRecord) -> tuple[str, ...]:
    """Paths of all client stages of a plan, those inside loops too."""

    def walk(stages: tuple[StageRecord, ...]) -> list[str]:
        found = []
        for stage in stages:
            if stage.kind == "clients":
                found.append(stage.path)
            elif stage.kind in ("loop", "branch"):
                found += walk(stage.body)
        return found

    return tuple(walk(plan.stages))


class _Call:
    """A compiled program with its keyword arguments in place."""

    def __init__(self, compiled: Any, kwargs: dict[str, Any]) -> None:
        self._compiled, self._kwargs = compiled, kwargs

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args, **self._kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)
