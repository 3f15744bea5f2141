"""How a program computes its clients by short runs instead of by a rule: `jit(fn, chunk_size="tune")`."""

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from workbench import _jax_compat
from workbench.plan._choices import choice_record, load_choice, loop_fields, store_choice
from workbench.plan._chunk_size import choose_chunk_size
from workbench.plan._evaluate import form_of
from workbench.plan._jit import Jitted, trace, without_static
from workbench.plan._listen import listeners
from workbench.plan._loop_form import KEPT_BYTES, LoopForm
from workbench.plan._phases import Phase, find_phases, waiting_bytes
from workbench.plan._plan import Plan
from workbench.plan._spread import choose_spread
from workbench.records import PlanCandidateRecord, PlanChoiceRecord

Size: TypeAlias = int | Literal["auto"] | None

_CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64)
_UNROLLS = (2, 4)
_FIRST, _LAST = 3, 6  # runs of each candidate at first, and of those that are left in the end
_HOPELESS = 2.5  # a candidate whose first run is this much slower than the best one's is not run again
_NEAR = 1.15  # who is this near to the best takes part in the last runs
_SAME = 0.97  # what is not faster than this times the rule's own choice does not replace it
_LARGEST_BYTES = 2 << 30  # rows of all devices that a candidate may hold at once
_DONATES = ("donate_argnums", "donate_argnames")
_STATIC = ("static_argnums", "static_argnames")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to compute the clients of a device."""

    chunk_size: Size
    form: LoopForm


class TunedJitted(Jitted):
    """A program of which the best way to compute its clients is measured at the first call with new shapes."""

    def __init__(self, fn: Any, options: dict[str, Any], form: LoopForm, seconds: float) -> None:
        super().__init__(fn, "auto", options, form)
        self.seconds: float = seconds
        self._asked = form
        self._tuned: dict[Any, tuple[PlanChoiceRecord, Jitted]] = {}

    def __call__(self, *args: object, **kwargs: object) -> Any:
        # Inside another transformation there is nothing to time, and a listener must hear every round once.
        if not _jax_compat.at_top_level() or listeners():
            return super().__call__(*args, **kwargs)
        if (key := _shapes(args, kwargs)) not in self._tuned:
            self._tune(key, args, kwargs)
        self.plan_choice, chosen = self._tuned[key]
        self.chunk_size, self.form = chosen.chunk_size, chosen.form  # what inspects this program sees what runs
        return chosen(*args, **kwargs)

    def tune(self, *args: object, **kwargs: object) -> PlanChoiceRecord:
        """Measures before the first call, also on shapes alone.

        Args:
            *args: As for a call; a `jax.ShapeDtypeStruct` stands for random numbers (integers: zeros, which are valid
                labels and indices) with its sharding.
            **kwargs: The same by name.

        Returns:
            The choice; calls with these shapes and shardings use it.
        """
        args, kwargs = jax.tree.map(_made_up, (args, kwargs))
        key = _shapes(args, kwargs)
        if key not in self._tuned:
            self._tune(key, args, kwargs)
        return self._tuned[key][0]

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

    def _tune(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        contest = Contest(self, self._asked, args, kwargs, seconds=self.seconds)
        try:
            choice = contest.choose()
        except KeyboardInterrupt:  # whoever stops it gets the kernel back, and the best so far at the next call
            if (choice := contest.best_so_far()) is not None:
                self._keep(key, choice)
            raise
        self._keep(key, choice)

    def _keep(self, key: Any, choice: PlanChoiceRecord) -> None:
        self._tuned[key] = choice, Jitted(self.fn, choice.chunk_size, self.options, form_of(choice))

    def _chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Jitted:
        found = self._tuned.get(_shapes(args, kwargs))
        return found[1] if found else Jitted(self.fn, "auto", self.options, self._asked)


class Contest:
    """The candidates for one call take turns; those that are far behind drop out.

    First the chunk sizes, then, with the best of these, what else is free: whether rows wait for a second pass, how
    many chunks a turn of the loop computes, how clients are spread over a mesh. In the end those that are near the best
    run once more, in alternating order, and only these last runs decide. Arguments are never donated.

    Args:
        program: What `jit` returned.
        form: What it leaves open.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.
        seconds: No candidate is begun after this time; at least two are compared.
    """

    def __init__(
        self, program: Jitted, form: LoopForm, args: tuple[Any, ...], kwargs: dict[str, Any], *, seconds: float
    ) -> None:
        self.name: str = getattr(program.fn, "__name__", "program")
        self._program, self._form, self._args, self._kwargs = program, form, args, kwargs
        self._options = {key: value for key, value in program.options.items() if key not in _DONATES}
        self._seconds, self._began = seconds, time.monotonic()
        self._jitted: dict[Candidate, Jitted] = {}
        self._taken: dict[Candidate, list[float]] = {}

    def choose(self) -> PlanChoiceRecord:
        """The choice; by the rule for a program without clients, or one that calls back, prints or writes."""
        plan = self._plan()
        sizes = candidate_sizes(plan)
        if len(sizes) < 2:
            return self._by_rule("There is one way to compute its clients on these devices.")
        if plan.closed.jaxpr.effects:
            return self._by_rule("The program calls back, prints or writes, which runs for measuring would repeat.")
        if (kept := load_choice(plan, self._form)) is not None:
            return kept.replace(program=self.name)
        self._enter(Candidate(size, self._form) for size in sizes)
        for more in (_waiting_forms, _loop_forms):
            self._enter(more(plan, self._ranked()))
        choice = self._winner(self._last_turns())
        store_choice(plan, self._form, choice)
        return choice

    def best_so_far(self) -> PlanChoiceRecord | None:
        """What was fastest before somebody stopped it; None where fewer than two were timed."""
        if len(self._taken) < 2:
            return None
        made = self._winner(self._taken)
        return made.replace(why=f"Stopped after {len(self._taken)} candidates. {made.why}")

    def _by_rule(self, why: str) -> PlanChoiceRecord:
        return choice_record("auto", self._form, program=self.name, source="rule", why=why)

    def _plan(self) -> Plan:
        """The plan of the call, whose static arguments are values and not traced."""
        static = {name: self._program.options[name] for name in _STATIC if name in self._program.options}
        if not static:
            return trace(self._program.fn, *self._args, **self._kwargs).plan
        found: list[Plan] = []

        def look(*args: object, **kwargs: object) -> None:
            fn, moving, named = without_static(self._program.fn, args, kwargs)
            found.append(trace(fn, *moving, **named).plan)

        jax.jit(look, **static).trace(*self._args, **self._kwargs)
        return found[0]

    def _enter(self, candidates: Iterable[Candidate]) -> None:
        """Compiles candidates and runs each once or, where that is short, a few times in turn with the best so far."""
        new: list[Candidate] = []
        for candidate in candidates:
            if len(self._taken) >= 2 and self._late():
                return
            self._jitted[candidate] = Jitted(self._program.fn, candidate.chunk_size, self._options, candidate.form)
            try:
                jax.block_until_ready(self._jitted[candidate](*self._args, **self._kwargs))  # compiles
                self._taken[candidate] = [self._run(candidate)]
            except jax.errors.JaxRuntimeError:  # out of memory: no candidate
                if not self._taken:
                    raise
            else:
                new.append(candidate)
        if not new:
            return
        again = [*new, self._ranked()[0]]
        fastest = min(min(times) for times in self._taken.values())
        self._turns([one for one in dict.fromkeys(again) if min(self._taken[one]) <= _HOPELESS * fastest], _FIRST - 1)

    def _turns(self, candidates: Sequence[Candidate], count: int) -> None:
        for turn in range(count):
            if self._late():
                return
            for candidate in candidates[:: 1 if turn % 2 else -1]:
                self._taken[candidate].append(self._run(candidate))

    def _last_turns(self) -> dict[Candidate, list[float]]:
        """The runs that decide: of the rule's choice and of those that are near the best; and all others' runs."""
        ranked = self._ranked()
        limit = _NEAR * min(self._taken[ranked[0]])
        last = [one for one in ranked if min(self._taken[one]) <= limit or one.chunk_size == "auto"][:6]
        last = list(dict.fromkeys([*last, next(iter(self._taken))]))
        before = {one: len(self._taken[one]) for one in last}
        self._turns(last, _LAST)
        if all(len(self._taken[one]) > before[one] for one in last):
            return {**self._taken, **{one: self._taken[one][before[one] :] for one in last}}
        return self._taken

    def _ranked(self) -> list[Candidate]:
        return sorted(self._taken, key=lambda one: min(self._taken[one]))

    def _late(self) -> bool:
        return time.monotonic() - self._began > self._seconds

    def _run(self, candidate: Candidate) -> float:
        began = time.perf_counter()
        jax.block_until_ready(self._jitted[candidate](*self._args, **self._kwargs))
        return time.perf_counter() - began

    def _winner(self, timed: dict[Candidate, list[float]]) -> PlanChoiceRecord:
        records = {
            one: PlanCandidateRecord(
                **loop_fields(one.chunk_size, one.form),
                runs=len(times),
                median_seconds=statistics.median(times),
                fastest_seconds=min(times),
                slowest_seconds=max(times),
            )
            for one, times in timed.items()
        }
        most = max(record.runs for record in records.values())
        rule = next(iter(records))
        best = min((one for one in records if records[one].runs == most), key=lambda one: records[one].median_seconds)
        if records[rule].runs == most and records[best].median_seconds > _SAME * records[rule].median_seconds:
            best = rule
        took = f"{1e3 * records[best].median_seconds:.3g} ms, median of {records[best].runs} interleaved runs"
        if best is rule:
            why = f"The rule's choice took {took}; none of {len(records) - 1} others was more than 3 % faster."
        else:
            by_rule = 1e3 * records[rule].median_seconds
            why = f"{_in_words(best, self._form)} took {took}; the rule's choice took {by_rule:.3g} ms."
        return choice_record(
            best.chunk_size,
            best.form,
            program=self.name,
            source="measured",
            why=why,
            candidates=tuple(records.values()),
            tuning_seconds=time.monotonic() - self._began,
        )


def candidate_sizes(plan: Plan) -> list[Size]:
    """The chunk sizes that differ for a plan, "auto" first; None, all at once, where memory allows."""
    phases = _phases(plan)
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


def _waiting_forms(plan: Plan, ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best three chunk sizes with rows that wait for a second pass kept, where they were made again, or reverse."""
    waiting = waiting_bytes(plan)
    form = ranked[0].form
    if not waiting or waiting > _LARGEST_BYTES or form.kept_bytes != KEPT_BYTES:
        return []
    other = dataclasses.replace(form, kept_bytes=0 if waiting <= form.kept_bytes else math.inf)
    return [Candidate(one.chunk_size, other) for one in ranked[:3] if one.chunk_size is not None]


def _loop_forms(plan: Plan, ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best one with more chunks in a turn of the loop, and with its clients spread over the mesh by a `vmap`."""
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


def _in_words(candidate: Candidate, asked: LoopForm) -> str:
    size, form = candidate.chunk_size, candidate.form
    words = [
        "All clients of a device" if size is None else "The rule's chunks" if size == "auto" else f"{size} clients"
    ]
    words[0] += "" if size == "auto" else " together"
    if form.kept_bytes != asked.kept_bytes:
        words.append("rows for the second pass kept" if form.kept_bytes else "rows for the second pass made again")
    if form.unroll != asked.unroll:
        words.append(f"{form.unroll} chunks in a turn of the loop")
    if form.spread != asked.spread:
        words.append(f'spread by "{form.spread}"')
    return ", ".join(words)


def _made_up(x: Any) -> Any:
    """Numbers for a shape; everything else as it is."""
    if not isinstance(x, jax.ShapeDtypeStruct):
        return x
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        made = jax.random.split(jax.random.key(0), x.shape)
    elif jnp.issubdtype(x.dtype, jnp.floating):
        made = jax.random.normal(jax.random.key(0), x.shape, x.dtype)
    else:
        made = jnp.zeros(x.shape, x.dtype)
    return made if x.sharding is None else jax.device_put(made, x.sharding)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    mesh = jax.sharding.get_abstract_mesh()
    return tree, mesh, tuple(_shape(leaf) for leaf in leaves)


def _shape(leaf: Any) -> tuple[object, ...]:
    if hasattr(leaf, "dtype"):
        return leaf.shape, str(leaf.dtype), getattr(leaf, "sharding", None)
    return type(leaf), repr(leaf)
