"""`measure`: runs a program on the devices that are here and says what really took how long."""

from collections.abc import Callable
from typing import Any, Literal

from jax.sharding import Mesh

from workbench.cost import known_chip, largest_dtype
from workbench.errors import InspectionError
from workbench.inspection import Inspection, unwrap_jitted
from workbench.measurement import MeasureOptions, measure_compiled
from workbench.plan import ChunkSize
from workbench.records import PlanRecord, RunRecord


def measure_program(
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    rounds: int,
    warmup: int,
    clients: Literal["together", "probe"],
    mesh: Mesh | None,
    chip: str | None,
) -> RunRecord:
    """Runs one call of a function and times it; see `Traced.measure`."""
    if clients not in ("together", "probe"):
        message = (
            f"`measure` was given clients={clients!r}. The clients of a device run either as in production or one by "
            "one: "
            'pass "together" or "probe".'
        )
        raise InspectionError(message)
    fn, chunk_size = unwrap_jitted(fn)
    probe = clients == "probe"
    with_clients: ChunkSize = 1 if probe else chunk_size
    made = Inspection(fn, args, kwargs, with_clients, None).compile(mesh)
    assert made.module is not None
    options = MeasureOptions(
        mesh=made.mesh,
        client_stages=client_paths(made.plan) if probe else (),
        placement=made.plan.placements[0].name if made.plan.placements else None,
        clients=made.plan.placements[0].size if made.plan.placements else None,
        chip=(known := known_chip(chip) if chip else None),
        dtype=largest_dtype(made.plan, known),
    )
    run = measure_compiled(
        _Call(made.compiled, kwargs), args, made.module, rounds=rounds, warmup=warmup, options=options
    )
    return run.replace(name=made.plan.name)


def client_paths(plan: PlanRecord) -> tuple[str, ...]:
    """Paths of all client stages of a plan, those inside loops too."""
    return tuple(stage.path for stage in plan.walk(into=("loop", "branch")) if stage.kind == "clients")


class _Call:
    """A compiled program with its keyword arguments in place."""

    def __init__(self, compiled: Any, kwargs: dict[str, Any]) -> None:
        self._compiled, self._kwargs = compiled, kwargs

    def __call__(self, *args: Any) -> Any:
        return self._compiled(*args, **self._kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)
