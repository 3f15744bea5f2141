"""The options of the one-line forms: typed for checkers, and written out for `help`."""

import difflib
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Required, TypeAlias, TypedDict, TypeVar

from jax.sharding import AbstractMesh, Mesh

from workbench._types import Argument, Spec
from workbench.measurement import DeviceMonitor, Run
from workbench.plan import ChunkSize
from workbench.records import ProgramRecord, RunRecord, ShardingSearchRecord, TimelineRecord

Progress = Callable[[str, float], None]
Layout: TypeAlias = Any  # an `ipywidgets.Layout`, whose package carries no types, or a mapping of its fields
F = TypeVar("F", bound=Callable)


class InspectOptions(TypedDict, total=False):
    """Options of `Traced.inspect`."""

    mesh: Mesh | AbstractMesh | None
    target: str | None
    chip: str | None
    chunk_size: ChunkSize
    examples_per_client: Sequence[int] | None
    order: Literal["topology", "naive"]
    force: bool
    progress: Progress | None
    cancel: threading.Event | None
    timeout_seconds: float | None


class AdviseOptions(InspectOptions, total=False):
    """Options of `Traced.advise`."""

    verify: bool


class ShowOptions(InspectOptions, total=False):
    """Options of `Traced.show`."""

    view: str | None


class WhyOptions(InspectOptions, total=False):
    """Options of `Traced.why`."""

    large_bytes: int | None


class ExploreOptions(InspectOptions, total=False):
    """Options of `Traced.explore`."""

    gradient: Callable | ProgramRecord | None
    rounds: Run | None
    monitor: DeviceMonitor | None
    run: RunRecord | None
    timeline: TimelineRecord | None
    runs: object
    dock: Literal["right"] | None
    layout: Layout | None


class MeasureOptions(TypedDict, total=False):
    """Options of `Traced.measure`."""

    rounds: int
    warmup: int
    clients: Literal["together", "probe"]
    mesh: Mesh | None
    chip: str | None


class TapOptions(TypedDict, total=False):
    """Options of `Traced.tap`."""

    client: int | tuple[int, ...]
    most_values: int
    most_bytes: int
    only: str | tuple[str, ...] | None


class SpecsOptions(TypedDict, total=False):
    """Options of `Traced.try_specs`, but the specs."""

    mesh: Mesh | AbstractMesh | None
    target: str | None
    compiled: bool
    chunk_size: ChunkSize
    progress: Progress | None
    cancel: threading.Event | None


class SuggestOptions(TypedDict, total=False):
    """Options of `Traced.suggest_shardings`."""

    mesh: Mesh | AbstractMesh | None
    chip: str | None
    lock: Mapping[str, Spec] | None
    seconds: float
    compiled: bool
    compiler: Literal["auto", "cpu"]
    memory_bytes: int | None
    progress: Progress | None
    cancel: threading.Event | None
    found: Callable[[ShardingSearchRecord], None] | None


class MeshOptions(TypedDict, total=False):
    """Options of `Traced.suggest_mesh`."""

    chips: Required[str]
    axes: Sequence[str] | None
    lock: Mapping[str, Spec] | None
    seconds: float
    compiled: bool
    compiler: Literal["auto", "cpu"]
    progress: Progress | None
    cancel: threading.Event | None


class FitOptions(TypedDict, total=False):
    """Options of `Traced.fit`."""

    targets: Required[Sequence[str]]
    axes: Sequence[str] | None
    seconds: float
    compiled: bool
    progress: Progress | None
    cancel: threading.Event | None


class ExportOptions(TypedDict, total=False):
    """Options of `Traced.export`."""

    platforms: Sequence[str] | None
    chunk_size: ChunkSize
    derivatives: int


def options_of(method: Callable) -> Callable[[F], F]:
    """Gives a one-line form the options of a method of `Traced`: in its signature, and checked at its first call."""

    def decorate(fn: F) -> F:
        own = [p for p in inspect.signature(fn).parameters.values() if p.kind is not p.VAR_KEYWORD]
        known = {p.name: p for p in _options(method) if p.name not in {q.name for q in own}}

        @functools.wraps(fn)
        def checked(*args: Argument, **options: Argument) -> Argument:
            unknown = [name for name in options if name not in known and name not in {p.name for p in own}]
            if unknown:
                raise TypeError(_unknown(fn.__name__, unknown, known))
            return fn(*args, **options)

        returned = inspect.signature(fn).return_annotation
        checked.__signature__ = inspect.Signature(  # pyright: ignore[reportAttributeAccessIssue]
            [*own, *known.values()], return_annotation=returned
        )
        return checked  # pyright: ignore[reportReturnType]

    return decorate


def _options(method: Callable) -> list[inspect.Parameter]:
    found = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    named = [p.replace(kind=p.KEYWORD_ONLY) for p in found if p.kind is not p.VAR_KEYWORD]
    if len(named) != len(found):  # **options: Unpack[InspectOptions]
        hints = InspectOptions.__annotations__
        named += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_NOT_GIVEN, annotation=hint)
            for name, hint in hints.items()
        ]
    return named


class _NotGiven:
    def __repr__(self) -> str:
        return "..."


_NOT_GIVEN = _NotGiven()


def _unknown(name: str, unknown: Sequence[str], known: Mapping[str, Any]) -> str:
    near = [match for word in unknown for match in difflib.get_close_matches(word, known, n=1)]
    hint = f" Did you mean {', '.join(f'`{word}`' for word in near)}?" if near else ""
    return (
        f"`{name}` received {', '.join(f'`{word}`' for word in unknown)}, which it has no option for.{hint} The "
        f"options of `{name}` are {', '.join(known)}; arguments of your function go into the second call, "
        f"`{name}(fn)(*args, **kwargs)`."
    )
