"""The chunk size by short runs instead of by a rule: `jit(fn, chunk_size="tune")`."""

import hashlib
import importlib.metadata
import math
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax

from workbench import _jax_compat
from workbench._cache import DiskCache, cache_directory
from workbench.errors import MissingDependencyError
from workbench.plan._chunk_size import choose_chunk_size
from workbench.plan._evaluate import ChunkSize
from workbench.plan._jit import Jitted, trace, without_static
from workbench.plan._listen import listeners
from workbench.plan._phases import Phase, find_phases
from workbench.plan._plan import Plan
from workbench.plan._spread import Spread
from workbench.records import ChunkCandidateRecord, PlanChoiceRecord

Size: TypeAlias = int | Literal["auto"] | None

_CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64)
_FIRST, _TURNS = 3, 6  # runs of each candidate at first, and of those that are left then
_HOPELESS = 1.4  # a candidate whose fastest first run is this much slower than the best one's is not run again
_SAME = 0.97  # what is not faster than this times the rule's own choice does not replace it
_LARGEST_BYTES = 2 << 30  # rows of all devices that a candidate may hold at once
_DONATES = ("donate_argnums", "donate_argnames")
_STATIC = ("static_argnums", "static_argnames")


class TunedJitted(Jitted):
    """A program whose chunk size is measured at the first call with new shapes.

    Attributes:
        plan_choice: What was chosen for the last call, and why; None before the first.
    """

    def __init__(self, fn: Callable, options: dict[str, Any], spread: Spread, seconds: float) -> None:
        super().__init__(fn, "auto", options, spread)
        self.seconds: float = seconds
        self.plan_choice: PlanChoiceRecord | None = None
        self._tuned: dict[Any, tuple[PlanChoiceRecord, Jitted]] = {}

    def __call__(self, *args: object, **kwargs: object) -> Any:
        # Inside another transformation there is nothing to time, and a listener must hear every round once.
        if not _jax_compat.at_top_level() or listeners():
            return super().__call__(*args, **kwargs)
        key = _shapes(args, kwargs)
        if key not in self._tuned:
            choice = choose_plan(self, args, kwargs, seconds=self.seconds)
            self._tuned[key] = choice, Jitted(self.fn, choice.chunk_size, self.options, self.spread)
        self.plan_choice, chosen = self._tuned[key]
        self.chunk_size: ChunkSize = self.plan_choice.chunk_size  # what inspects this program sees what runs
        return chosen(*args, **kwargs)

    def lower(self, *args: object, **kwargs: object) -> jax.stages.Lowered:
        """As `jax.jit(fn).lower`, with the choice for these shapes, or "auto" where none was made."""
        return self._chosen(args, kwargs).lower(*args, **kwargs)

    def trace(self, *args: object, **kwargs: object) -> Any:
        """As `jax.jit(fn).trace`, with the choice for these shapes, or "auto" where none was made."""
        return self._chosen(args, kwargs).trace(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forgets what was traced, compiled and chosen in this process; choices on disk stay."""
        super().clear_cache()
        self._tuned.clear()

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Jitted:
        found = self._tuned.get(_shapes(args, kwargs))
        return found[1] if found else Jitted(self.fn, "auto", self.options, self.spread)


def choose_plan(program: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any], *, seconds: float) -> PlanChoiceRecord:
    """Times a program with several chunk sizes on the arguments of a call, interleaved.

    The arguments are never donated. What was measured before, by any process of this user, is read from the disk.

    Args:
        program: What `jit` returned.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.
        seconds: No candidate is begun after this time; at least two are compared.

    Returns:
        The choice. A program without clients, or one that calls back, prints or writes, is not run: the rule decides.
    """
    began = time.monotonic()
    name = getattr(program.fn, "__name__", "program")
    plan = _plan_of_call(program, args, kwargs)
    sizes = candidate_sizes(plan)
    if len(sizes) < 2:
        why = "There is one way to compute its clients on these devices."
        return PlanChoiceRecord(program=name, chunk_size="auto", source="rule", why=why)
    if plan.closed.jaxpr.effects:
        why = "The program calls back, prints or writes, which runs for measuring would repeat."
        return PlanChoiceRecord(program=name, chunk_size="auto", source="rule", why=why)
    cache, key = _cache(), _key(program, plan, args, kwargs)
    if cache is not None and (kept := cache.load(key)) is not None:
        try:
            found = PlanChoiceRecord.from_dict(kept)
        except Exception:  # of another version: it is measured again
            found = None
        if isinstance(found, PlanChoiceRecord) and found.chunk_size in sizes:
            why = f"Measured before by this user on the same devices: {found.why}"
            return PlanChoiceRecord(
                program=name, chunk_size=found.chunk_size, source="cache", why=why, candidates=found.candidates
            )
    options = {key: value for key, value in program.options.items() if key not in _DONATES}
    timed = _time({size: Jitted(program.fn, size, options, program.spread) for size in sizes}, args, kwargs, seconds)
    choice = _winner(name, timed, began)
    if cache is not None:
        cache.store(key, choice.to_dict())
    return choice


def _plan_of_call(program: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
    """The plan of a call, whose static arguments are values and not traced."""
    static = {name: program.options[name] for name in _STATIC if name in program.options}
    if not static:
        return trace(program.fn, *args, **kwargs).plan
    found: list[Plan] = []

    def look(*args: object, **kwargs: object) -> None:
        fn, moving, named = without_static(program.fn, args, kwargs)
        found.append(trace(fn, *moving, **named).plan)

    jax.jit(look, **static).trace(*args, **kwargs)
    return found[0]


def candidate_sizes(plan: Plan) -> list[Size]:
    """The chunk sizes that differ for a plan, "auto" first; None, all at once, where memory allows."""
    phases = [phase for level in find_phases(plan, recompute=True).values() for phase in level]
    per_shard = max((_per_shard(phase) for phase in phases), default=1)
    if per_shard == 1:
        return ["auto"]
    row_bytes = max(phase.row_bytes * _shards(phase) for phase in phases)
    by_rule = {choose_chunk_size(phase, _per_shard(phase)) for phase in phases}
    room = max(1, _LARGEST_BYTES // max(row_bytes, 1))
    sizes: list[Size] = [size for size in _CHUNK_SIZES if size < per_shard and size <= room]
    if per_shard <= room:
        sizes.append(None)
    return ["auto", *(size for size in sizes if {size} != by_rule)]


def _per_shard(phase: Phase) -> int:
    return math.ceil(phase.placement.size / _shards(phase))


def _shards(phase: Phase) -> int:
    return 1 if phase.layout is None else phase.layout.size


def _time(
    candidates: dict[Size, Jitted], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float
) -> dict[Size, list[float]]:
    """Seconds of each run; the candidates take turns, and those that are far behind drop out after the first."""
    began = time.monotonic()
    taken: dict[Size, list[float]] = {}
    for size, candidate in candidates.items():
        if len(taken) >= 2 and time.monotonic() - began > seconds:
            break
        try:
            jax.block_until_ready(candidate(*args, **kwargs))  # compiles
            taken[size] = [_seconds(candidate, args, kwargs)]
            if taken[size][0] * _FIRST * len(candidates) < seconds / 2:
                taken[size] += [_seconds(candidate, args, kwargs) for _ in range(_FIRST - 1)]
        except jax.errors.JaxRuntimeError:  # out of memory: no candidate
            if not taken:
                raise
    best = min(min(times) for times in taken.values())
    left: list[Size] = [size for size, times in taken.items() if size == "auto" or min(times) <= _HOPELESS * best]
    for turn in range(_TURNS):
        if time.monotonic() - began > seconds:
            break
        order: list[Size] = left[:: 1 if turn % 2 else -1]
        for size in order:
            taken[size].append(_seconds(candidates[size], args, kwargs))
    return taken


def _seconds(run: Jitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(run(*args, **kwargs))
    return time.perf_counter() - began


def _winner(name: str, timed: dict[Size, list[float]], began: float) -> PlanChoiceRecord:
    records = tuple(
        ChunkCandidateRecord(
            chunk_size=size,
            runs=len(times),
            median_seconds=statistics.median(times),
            fastest_seconds=min(times),
            slowest_seconds=max(times),
        )
        for size, times in timed.items()
    )
    most = max(record.runs for record in records)
    rule = records[0]
    best = min((r for r in records if r.runs == most), key=lambda record: record.median_seconds)
    if best.median_seconds > _SAME * rule.median_seconds:
        best = rule
    took = f"{1e3 * best.median_seconds:.3g} ms, median of {best.runs} interleaved runs"
    if best is rule:
        why = f"The rule's choice took {took}; none of {len(records) - 1} others was more than 3 % faster."
    else:
        size = "All clients of a device" if best.chunk_size is None else f"{best.chunk_size} clients"
        why = f"{size} together took {took}; the rule's choice took {1e3 * rule.median_seconds:.3g} ms."
    return PlanChoiceRecord(
        program=name,
        chunk_size=best.chunk_size,
        source="measured",
        why=why,
        candidates=records,
        tuning_seconds=time.monotonic() - began,
    )


def _cache() -> DiskCache | None:
    try:
        return DiskCache(cache_directory("plans"), limit_bytes=4 << 20)
    except MissingDependencyError:  # a kernel with few packages measures once per process
        return None


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    mesh = jax.sharding.get_abstract_mesh()
    return tree, mesh, tuple(_shape(leaf) for leaf in leaves)


def _shape(leaf: Any) -> tuple[object, ...]:
    if hasattr(leaf, "dtype"):
        return leaf.shape, str(leaf.dtype), getattr(leaf, "sharding", None)
    return type(leaf), repr(leaf)


def _key(program: Jitted, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A hash of the program without addresses of this process, the shapes and shardings, the devices and versions."""
    jaxpr = re.sub(r"0x[0-9a-f]+", "", str(plan.closed.jaxpr))
    devices = sorted(device.device_kind for device in jax.devices())
    shardings = [str(getattr(leaf, "sharding", "")) for leaf in jax.tree.leaves((args, kwargs))]
    options = {name: value for name, value in program.options.items() if name not in _DONATES}
    versions = [importlib.metadata.version(package) for package in ("jax", "jaxlib")]
    parts = [jaxpr, devices, shardings, str(jax.sharding.get_abstract_mesh()), repr(options), program.spread, versions]
    return hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", repr(parts)).encode()).hexdigest()
