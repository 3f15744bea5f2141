"""Tunes the client loop by short measured runs: `jit(fn, chunk_size="tune")`."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from workbench import _jax_compat
from workbench._types import Argument
from workbench.plan._choices import choice_record, load_choice, loop_fields, store_choice
from workbench.plan._chunk_size import choose_chunk_size
from workbench.plan._evaluate import form_of
from workbench.plan._jit import Jitted, trace, without_static
from workbench.plan._listen import listeners
from workbench.plan._loop_form import KEPT_BYTES, LoopForm
from workbench.plan._phases import Phase, find_phases, waiting_bytes
from workbench.plan._plan import Plan
from workbench.plan._spread import choose_spread
from workbench.records.program import PlanCandidateRecord, PlanChoiceRecord

Size: TypeAlias = int | Literal["auto"] | None

_CHUNK_SIZES = (1, 8, 4, 16, 2, 32, 64)  # coarse sizes come first, because time may run out
_UNROLLS = (2, 4)
_FIRST, _LAST, _FINALISTS = 3, 6, 4  # number of first runs per candidate, of runs per finalist, and of finalists
_LEAST_SECONDS = 0.02  # seconds per run; shorter calls are repeated
_SHARE_OF_FIRST = 0.7  # share of the time limit for compilation and first runs
_HOPELESS = 2.0  # a candidate whose first run is this much slower than the best is dropped
_NEAR = 1.15  # candidates this close to the best take part in the last runs
_MARGINS = ((5, 0.97), (3, 0.93), (1, 0.8))  # number of runs, and the time ratio below which the rule is replaced
_LARGEST_BYTES = 2 << 30  # maximum size of the rows that a candidate may keep on all devices together
_DONATES = ("donate_argnums", "donate_argnames")
_STATIC = ("static_argnums", "static_argnames")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One configuration of a device's client loop."""

    chunk_size: Size
    form: LoopForm


class TunedJitted(Jitted):
    """A program whose client loop is tuned at the first call with new shapes."""

    def __init__(self, fn: Callable, options: dict[str, Any], form: LoopForm, seconds: float) -> None:
        super().__init__(fn, "auto", options, form)
        self.seconds: float = seconds
        self._base_form = form
        self._tuned: dict[Any, tuple[PlanChoiceRecord, Jitted]] = {}

    def __call__(self, *args: object, **kwargs: object) -> Argument:
        # Under another transformation, nothing can be timed, and listeners must receive every round only once.
        if not _jax_compat.at_top_level() or listeners():
            return super().__call__(*args, **kwargs)
        if (key := _shapes(args, kwargs)) not in self._tuned:
            self._tune(key, args, kwargs)
        choice, chosen = self._tuned[key]
        self.computes_as(chosen.chunk_size, chosen.form, choice)
        return chosen(*args, **kwargs)

    def tune(self, *args: object, **kwargs: object) -> PlanChoiceRecord:
        """Tunes the program before the first call; the arguments can be shapes.

        Args:
            *args: Arguments as for a call; a `jax.ShapeDtypeStruct` is replaced by random numbers with its sharding, or
                for integers by zeros, which are valid labels and indices.
            **kwargs: Keyword arguments, treated in the same way.

        Returns:
            The choice; calls with these shapes and shardings use it.
        """
        args, kwargs = jax.tree.map(_made_up, (args, kwargs))
        key = _shapes(args, kwargs)
        if key not in self._tuned:
            self._tune(key, args, kwargs)
        return self._tuned[key][0]

    def lower(self, *args: object, **kwargs: object) -> jax.stages.Lowered:
        """Like `jax.jit(fn).lower`, with the choice for these shapes, or with "auto" if there is none."""
        return self.chosen_for(args, kwargs).lower(*args, **kwargs)

    def trace(self, *args: object, **kwargs: object) -> jax.stages.Traced:
        """Like `jax.jit(fn).trace`, with the choice for these shapes, or with "auto" if there is none."""
        return self.chosen_for(args, kwargs).trace(*args, **kwargs)

    def clear_cache(self) -> None:
        """Drops this process's traces, compiled programs and choices; choices on disk are kept."""
        super().clear_cache()
        self._tuned.clear()

    def _tune(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        contest = Contest(self, self._base_form, args, kwargs, seconds=self.seconds)
        try:
            choice = contest.choose()
        except KeyboardInterrupt:  # on interrupt, keep the best candidate so far
            if (choice := contest.best_so_far()) is not None:
                self._keep(key, choice)
            raise
        self._keep(key, choice)

    def _keep(self, key: Hashable, choice: PlanChoiceRecord) -> None:
        jitted = Jitted(self.fn, choice.chunk_size, self.options, form_of(choice))
        jitted.computes_as(jitted.chunk_size, jitted.form, choice)
        self._tuned[key] = choice, jitted

    def chosen_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Jitted:
        """The program with the choice for these shapes, or with "auto" if there is none."""
        entry = self._tuned.get(_shapes(args, kwargs))
        return entry[1] if entry else Jitted(self.fn, "auto", self.options, self._base_form)


class Contest:
    """Runs the candidates for one call in an interleaved order; slow candidates drop out.

    The first candidates are chunk sizes. Next, with the best sizes, the other parameters are varied: whether rows are
    kept for a second pass, chunks per iteration, and the spread over a mesh. Each run is paired with a run of the
    rule's choice, and candidates are compared by the median of the ratios. Finally, all candidates near the best are
    run again, and only these last runs decide. Arguments are never donated.
    """

    def __init__(
        self, program: Jitted, form: LoopForm, args: tuple[Any, ...], kwargs: dict[str, Any], *, seconds: float
    ) -> None:
        self.name: str = getattr(program.fn, "__name__", "program")
        self._program, self._form, self._args, self._kwargs = program, form, args, kwargs
        self._options = {key: value for key, value in program.options.items() if key not in _DONATES}
        self._seconds, self._began = seconds, time.monotonic()
        self._jitted: dict[Candidate, Jitted] = {}
        self._timed: dict[Candidate, list[tuple[float, float]]] = {}  # seconds, and ratio to the paired run of the rule

    def choose(self) -> PlanChoiceRecord:
        """Returns the measured choice, or the rule's choice with one chunk size, side effects or several processes."""
        plan = self._plan()
        sizes = candidate_sizes(plan)
        if len(sizes) < 2:
            return self._by_rule("There is only one way to process the clients on these devices.")
        if plan.closed.jaxpr.effects:
            return self._by_rule("Tuning would repeat the program's side effects (callbacks, printing or writing).")
        if jax.process_count() > 1:
            return self._by_rule("Several processes run the program, and could choose differently and deadlock.")
        if (measured_choice := load_choice(plan, self._form)) is not None:
            return measured_choice.replace(program=self.name)
        self._enter(Candidate(size, self._form) for size in sizes)
        for more in (_waiting_forms, _loop_forms):
            self._enter(more(plan, self._ranked()))
        self._last_runs()
        choice = self._winner()
        store_choice(plan, self._form, choice)
        return choice

    def best_so_far(self) -> PlanChoiceRecord | None:
        """Returns the fastest choice so far; None if fewer than two candidates were timed."""
        if len(self._timed) < 2:
            return None
        choice = self._winner()
        return choice.replace(why=f"Stopped after {len(self._timed)} candidates. {choice.why}")

    def _by_rule(self, why: str) -> PlanChoiceRecord:
        return choice_record("auto", self._form, program=self.name, source="rule", why=why)

    def _plan(self) -> Plan:
        """The plan for the call, with its static arguments as values."""
        static = {name: self._program.options[name] for name in _STATIC if name in self._program.options}
        if not static:
            return trace(self._program.fn, self._args, self._kwargs).plan
        plans: list[Plan] = []

        def look(*args: object, **kwargs: object) -> None:
            fn, moving, named = without_static(self._program.fn, args, kwargs)
            plans.append(trace(fn, moving, named).plan)

        jax.jit(look, **static).trace(*self._args, **self._kwargs)
        return plans[0]

    def _enter(self, candidates: Iterable[Candidate]) -> None:
        """Compiles candidates and times each one a few times; drops slow candidates after their first run."""
        for candidate in candidates:
            if len(self._timed) >= 2 and self._late(_SHARE_OF_FIRST):
                return
            self._jitted[candidate] = Jitted(self._program.fn, candidate.chunk_size, self._options, candidate.form)
            try:
                jax.block_until_ready(self._jitted[candidate](*self._args, **self._kwargs))  # compiles
                if self._timed:
                    self._pair(candidate)
                else:
                    self._timed[candidate] = [(self._run(candidate), 1.0)]
            except Exception:  # out of memory, or unsupported for this program, so drop the candidate
                if not self._timed:
                    raise
                self._timed.pop(candidate, None)
        for _ in range(_FIRST - 1):
            for candidate in self._near(_HOPELESS):
                if len(self._timed[candidate]) < _FIRST and not self._late(_SHARE_OF_FIRST):
                    self._pair(candidate)

    def _last_runs(self) -> None:
        """Times the candidates near the best once more; only these runs count if there are enough of them."""
        last = [candidate for candidate in self._near(_NEAR) if candidate is not self._rule][:_FINALISTS]
        before = {candidate: len(self._timed[candidate]) for candidate in last}
        for number in range(_LAST):
            for candidate in last[:: 1 if number % 2 else -1]:
                if not self._late():
                    self._pair(candidate)
        for candidate in last:
            again = self._timed[candidate][before[candidate] :]
            self._timed[candidate] = again if len(again) >= _FIRST else self._timed[candidate]

    def _pair(self, candidate: Candidate) -> None:
        """Times a candidate next to the rule's choice: other processes slow both down, so their ratio is unaffected."""
        pair = (self._rule, candidate)
        seconds = {
            member: self._run(member) for member in pair[:: 1 if len(self._timed.get(candidate, ())) % 2 else -1]
        }
        self._timed.setdefault(candidate, []).append((seconds[candidate], seconds[candidate] / seconds[self._rule]))
        self._timed[self._rule].append((seconds[self._rule], 1.0))

    @property
    def _rule(self) -> Candidate:
        return next(iter(self._timed))

    def _ratio(self, candidate: Candidate) -> float:
        return statistics.median(ratio for _, ratio in self._timed[candidate])

    def _ranked(self) -> list[Candidate]:
        return sorted(self._timed, key=self._ratio)

    def _near(self, factor: float) -> list[Candidate]:
        ranked = self._ranked()
        return [candidate for candidate in ranked if self._ratio(candidate) <= factor * self._ratio(ranked[0])]

    def _late(self, share: float = 1.0) -> bool:
        return time.monotonic() - self._began > share * self._seconds

    def _run(self, candidate: Candidate) -> float:
        """Measures a call in seconds; short calls run back to back, because the first call after a pause is slower."""
        began, calls, seconds = time.perf_counter(), 0, 0.0
        while seconds < _LEAST_SECONDS:
            jax.block_until_ready(self._jitted[candidate](*self._args, **self._kwargs))
            calls, seconds = calls + 1, time.perf_counter() - began
        return seconds / calls

    def _winner(self) -> PlanChoiceRecord:
        records = {candidate: self._record(candidate) for candidate in self._timed}
        # With fewer runs, a larger margin is needed.
        sure = [c for c, r in records.items() if r.ratio < next(m for runs, m in _MARGINS if r.runs >= runs)]
        best = min(sure, key=lambda candidate: records[candidate].ratio, default=self._rule)
        took = f"{1e3 * records[best].median_seconds:.3g} ms, median of {records[best].runs} runs"
        if best is self._rule:
            why = (
                f"The rule's choice took {took}; none of the {len(records) - 1} other candidates was faster by more "
                "than the measurement noise."
            )
        else:
            why = (
                f"{_in_words(best, self._form)} took {took}: {records[best].ratio:.2f} of the time of the "
                "rule's choice, in paired runs."
            )
        return choice_record(
            best.chunk_size,
            best.form,
            program=self.name,
            source="measured",
            why=why,
            candidates=tuple(records.values()),
            tuning_seconds=time.monotonic() - self._began,
        )

    def _record(self, candidate: Candidate) -> PlanCandidateRecord:
        seconds = [duration for duration, _ in self._timed[candidate]]
        return PlanCandidateRecord(
            **loop_fields(candidate.chunk_size, candidate.form),
            runs=len(seconds),
            ratio=self._ratio(candidate),
            median_seconds=statistics.median(seconds),
            fastest_seconds=min(seconds),
            slowest_seconds=max(seconds),
        )


def candidate_sizes(plan: Plan) -> list[Size]:
    """The distinct chunk sizes to try for a plan, "auto" first; None (all at once) is included if memory allows."""
    phases = _phases(plan)
    per_shard = max((_per_shard(phase) for phase in phases), default=1)
    if per_shard == 1:
        return ["auto"]
    row_bytes = max(phase.row_bytes * _shards(phase) for phase in phases)
    by_rule = {choose_chunk_size(phase, _per_shard(phase)) for phase in phases}
    room = max(1, _LARGEST_BYTES // max(row_bytes, 1))
    sizes: list[Size] = [size for size in _CHUNK_SIZES if size < per_shard and size <= room]
    if per_shard <= room:
        sizes.insert(2, None)
    return ["auto", *(size for size in sizes if {size} != by_rule)]


def _waiting_forms(plan: Plan, ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best three chunk sizes, with the opposite choice between keeping and recomputing rows."""
    waiting = waiting_bytes(plan)
    form = ranked[0].form
    if not waiting or waiting > _LARGEST_BYTES or form.kept_bytes != KEPT_BYTES:
        return []
    alternative = dataclasses.replace(form, kept_bytes=0 if waiting <= form.kept_bytes else math.inf)
    return [
        Candidate(candidate.chunk_size, alternative) for candidate in ranked[:3] if candidate.chunk_size is not None
    ]


def _loop_forms(plan: Plan, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Variants of the best candidate: with more chunks per iteration, and with clients spread by a `vmap`."""
    best = ranked[0]
    phases = [phase for phase in _phases(plan) if phase.divisible]
    chunks = max((_per_shard(phase) // _together(best, phase) for phase in phases), default=1)
    forms = [dataclasses.replace(best.form, unroll=count) for count in _UNROLLS if count < chunks]
    spread_by = {choose_spread(phase, "auto") for phase in phases if _shards(phase) > 1}
    if best.form.spread == "auto" and spread_by == {"shard_map"}:
        forms.append(dataclasses.replace(best.form, spread="vmap"))
    return [Candidate(best.chunk_size, form) for form in forms]


def _together(candidate: Candidate, phase: Phase) -> int:
    if isinstance(candidate.chunk_size, int):
        return candidate.chunk_size
    return _per_shard(phase) if candidate.chunk_size is None else choose_chunk_size(phase, _per_shard(phase))


def _phases(plan: Plan) -> list[Phase]:
    return [phase for level in find_phases(plan).values() for phase in level]


def _per_shard(phase: Phase) -> int:
    return math.ceil(phase.placement.size / _shards(phase))


def _shards(phase: Phase) -> int:
    return 1 if phase.layout is None else phase.layout.size


def _in_words(candidate: Candidate, base_form: LoopForm) -> str:
    size, form = candidate.chunk_size, candidate.form
    named = {None: "All clients of a device together", "auto": "The rule's chunks", 1: "One client at a time"}
    words = [named.get(size, f"{size} clients together")]
    if form.kept_bytes != base_form.kept_bytes:
        words.append("rows for the second pass kept" if form.kept_bytes else "rows for the second pass recomputed")
    if form.unroll != base_form.unroll:
        words.append(f"{form.unroll} chunks per iteration")
    if form.spread != base_form.spread:
        words.append(f'spread by "{form.spread}"')
    return ", ".join(words)


def _made_up(x: Argument) -> Argument:
    """Replaces a shape with random numbers or zeros; returns other values unchanged."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        value = jax.random.split(jax.random.key(0), x.shape)
    elif jnp.issubdtype(x.dtype, jnp.floating):
        value = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    else:
        value = jnp.zeros(x.shape, x.dtype)
    return value if x.sharding is None else jax.device_put(value, x.sharding)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    leaves, tree = jax.tree.flatten((args, kwargs))
    mesh = jax.sharding.get_abstract_mesh()
    return tree, mesh, tuple(_shape(leaf) for leaf in leaves)


def _shape(leaf: Argument) -> tuple[object, ...]:
    if hasattr(leaf, "dtype"):
        return leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)
    return type(leaf), repr(leaf)
