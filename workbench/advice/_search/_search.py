"""The search: expert choices as seeds, steps chosen by an integer program, compilation of the best choices."""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from workbench._open_types import Progress
from workbench.advice._search._groups import Spec, SpecGroup, candidates, pattern_argument
from workbench.advice._search._program import Assignment, Priced, SearchProgram
from workbench.errors import WorkbenchError
from workbench.records.advice import SearchRecord, ShardingChoiceRecord

Found = Callable[[SearchRecord], None]
_SMALL_SHARE = 0.002  # groups below this share of all bytes get their spec by propagation
_PLANNING_SHARE = 0.45  # of the time
_REHEARSING_SHARE = 0.5  # share of the time after planning, if the chip's own compiler is used afterwards
_REHEARSED = 48  # choices at most
_PATIENCE = 12  # number of consecutive choices without an improvement
_COMPILED = 5  # maximum number of choices for the chip's own compiler
_SLACK = 1.25  # factor by which planned seconds may exceed compiled seconds, because compilers fuse memory traffic away
_OVERESTIMATED = 2.0  # a program may fit if its estimated peak is below this multiple of a device's memory
_NEAR = 2.0  # multiple of the best planned seconds up to which the most different choice is sought
_SHOWN = 12


class _StopSearch(Exception):
    """Raised when time runs out or the search is cancelled."""


UNCOMPARED = "no planned peak was compared with a compiled peak, so the error of planned peaks is unknown"


class Search:
    """A search over one mesh; its record is available at any time.

    Args:
        program: The program.
        seconds: Time for the whole search.
        progress: Called with the current activity and the elapsed seconds.
        cancel: An event that stops the search once it is set; the choices found so far are returned.
        found: Called with the record so far whenever a better choice is known.
    """

    def __init__(
        self,
        program: SearchProgram,
        *,
        seconds: float,
        compiled: bool = True,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        found: Found | None = None,
    ) -> None:
        self.program = program
        self._began = time.monotonic()
        self._budget, self._compiles = seconds, compiled
        self._until = self._began + seconds * (_PLANNING_SHARE if compiled else 1.0)
        self._progress, self._cancel, self._on_record = progress, cancel, found
        self._names: dict[tuple[Spec, ...], str] = {}
        self._plans: dict[tuple[Spec, ...], Priced] = {}
        self._rehearsed: dict[tuple[Spec, ...], Priced] = {}
        self._compiled: dict[tuple[Spec, ...], Priced] = {}
        self._failed: set[tuple[Spec, ...]] = set()
        self._requested: dict[tuple[Spec, ...], dict[str, Spec]] = {}
        self._notes: list[str] = []
        self._ended: Literal["complete", "time", "stopped"] = "complete"

    def run(self) -> SearchRecord:
        """Runs the search: seeds, descent and compilation."""
        try:
            self._seed()
            self._descend()
        except _StopSearch:
            pass
        if self._compiles and not self._is_cancelled():
            self._compile_best()
        return self.record()

    def consider(self, choices: Mapping[tuple[Spec, ...], str]) -> None:
        """Plans named choices from another search."""
        for specs, name in choices.items():
            if self._is_cancelled():
                break
            with contextlib.suppress(_StopSearch):
                self._try(specs, name)

    def names_of(self, choices: Iterable[tuple[Spec, ...]]) -> dict[tuple[Spec, ...], str]:
        """The choices with the names they have in the record."""
        return {specs: self._names.get(specs) or "found" for specs in choices if specs in self._plans}

    def record(self) -> SearchRecord:
        """The record of the search so far."""
        program = self.program
        ranked = self._ranked()
        rest = sorted((s for s in self._plans if s not in self._compiled), key=self._order_of)
        named = [specs for specs in rest if specs in self._names]
        others = [specs for specs in rest if specs not in self._names]
        shown = ranked + sorted(named + others[: max(2, _SHOWN - len(ranked) - len(named))], key=self._order_of)
        count = 0
        choices = []
        for specs in shown:
            priced = self._compiled.get(specs) or self._rehearsed.get(specs) or self._plans[specs]
            name = self._names.get(specs, "")
            if not name:
                count += 1
                name = f"found {count}"
            choices.append(self._choice(name, priced))
        front = pareto(choices)
        return SearchRecord(
            name=program.call.name,
            chip=program.chip.name,
            target=program.where,
            choices=tuple(choice.replace(pareto=at in front) for at, choice in enumerate(choices)),
            groups=tuple(group.record(program.leaves) for group in program.groups),
            planned_count=program.planned_count,
            compiled_count=program.compiled_count,
            seconds_spent=time.monotonic() - self._began,
            ended=self._ended,
            arguments=tuple(dict.fromkeys(pattern_argument(leaf.name) for leaf in program.leaves)),
            jit=program.jit,
            notes=tuple(dict.fromkeys([*self._notes, *self._gain_notes(choices), *self._how_notes()])),
        )

    def _gain_notes(self, choices: Sequence[ShardingChoiceRecord]) -> list[str]:
        """The note that a mesh brings no gain, returned only if the best choice does not shard anything."""
        if self.program.mesh.size < 2 or not choices or any(map(any, choices[0].specs.values())):
            return []
        best = choices[0].seconds
        if any(best is not None and other.seconds is not None and other.seconds < best for other in choices):
            return []  # a choice that was only planned may be faster
        return [
            "the mesh brings no gain: replicating all arguments, so that every device computes the same result, is at "
            "least as fast as sharding them"
        ]

    def _ranked(self) -> list[tuple[Spec, ...]]:
        return sorted(self._compiled, key=lambda specs: self._rank(self._compiled[specs]))

    @property
    def chosen(self) -> tuple[Spec, ...]:
        """The specs of the record's first choice."""
        return next(iter(self._ranked()), None) or min(self._plans, key=self._order_of)

    def _choice(self, name: str, priced: Priced) -> ShardingChoiceRecord:
        groups = self.program.groups
        paired = zip(groups, priced.specs, strict=True)
        listed = [(group, spec) for group, spec in paired if any(spec) or group.is_exception]
        specs = {pattern: spec for group, spec in listed for pattern in group.patterns}
        return ShardingChoiceRecord(
            name=name,
            mesh=self.program.axes,
            specs=specs,
            seconds=priced.seconds,
            peak_bytes=None if priced.peak_bytes is None else int(priced.peak_bytes),
            argument_bytes=None if priced.argument_bytes is None else int(priced.argument_bytes),
            sent_bytes=priced.sent,
            fits=priced.fits,
            how=priced.how,
            note=priced.note,
            chunk_size=self.program.chunk_size,
            results={} if priced.how == "planned" else self._requested_results(priced.specs),
        )

    def _requested_results(self, specs: tuple[Spec, ...]) -> dict[str, Spec]:
        if specs not in self._requested:
            results = self.program.requested_results(specs)
            self._requested[specs] = {str(position): spec for position, spec in results.items()}
        return self._requested[specs]

    def _how_notes(self) -> list[str]:
        chip, notes = self.program.chip.name, []
        if self._rehearsed:
            note = f"compiled for CPU devices to save time, with the cost on {chip} predicted from that program"
            notes.append(f"rehearsed: {note}")
        if any(priced.counts_plan for priced in self._on_cpu.values()):
            notes.append(
                "compiled for CPU devices, whose compiler fuses less, so memory traffic is capped at the traffic of "
                "the plan; `inspect` counts all of it"
            )
        if self.program.counts_once:
            notes.append("loops of unknown length count once, so seconds and bytes sent are lower bounds")
        return [*notes, self._memory_note()]

    def _memory_note(self) -> str:
        """The ratio between planned and compiled peaks of the same choices."""
        compiled = {**self._on_cpu, **self._rehearsed, **self._compiled}
        ratios = sorted(
            planned / priced.peak_bytes
            for specs, priced in compiled.items()
            if priced.peak_bytes and specs in self._plans and (planned := self._plans[specs].peak_bytes)
        )
        if not ratios:
            return UNCOMPARED
        spread = f"{ratios[0]:.2f} × the compiled peak of the same choice"
        if len(ratios) > 1:
            spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} × the compiled peaks of the same {len(ratios)} choices"
        return f"planned peaks: {spread}"

    @property
    def data_parallel(self) -> tuple[Spec, ...]:
        """The baselines: everything replicated, and the data sharded over all axes."""
        every = tuple(name for name, size in self.program.axes.items() if size > 1)
        priced = self.program.plan(self._sharded_data(self._data_groups(), every))
        return priced.specs

    # Seeds: starting points that an expert would choose.

    def _seed(self) -> None:
        program = self.program
        if program.given is not None and all(g.locked is None for g in program.groups):
            self._try(program.given, "as given")
        every = tuple(name for name, size in program.axes.items() if size > 1)
        data = self._data_groups()
        self._try(self._replicated(), "replicated" if every else "one device")
        self._try(self._sharded_data(data, every), f"data parallel over {'+'.join(every)}" if every else "one device")
        for axes in _subsets(every):
            base = self._sharded_data(data, axes)
            self._try(base, "")
            self._try(self._opened(base, keep=data), "")
            self._try(self._fully_sharded(base, data, axes), "")
            self._try(self._fully_sharded(base, data, every), "")
        for group in data:  # one argument at a time, because it is unknown which one is the batch
            for axes in _subsets(every):
                self._try(self._opened(self._sharded_data([group], axes), keep=[group]), "")
        self._propagated_seeds(data, every)

    def _propagated_seeds(self, data: Sequence[SpecGroup], every: tuple[str, ...]) -> None:
        """Model parallelism: one parameter is sharded, and all other shardings follow by propagation."""
        groups = self.program.groups
        for axes in _subsets(every):
            rest = {name: self.program.axes[name] for name in every if name not in axes}
            if not rest and len(every) > 1:
                continue
            base = self._sharded_data(data, axes) if len(every) > 1 else self._replicated()
            for at, group in enumerate(groups):
                if (group in data and len(every) > 1) or group.locked is not None or self._is_small(group):
                    continue
                for spec in candidates(group.shape, rest or self.program.axes)[1:]:
                    self._try(_with(self._opened(base, keep=data if len(every) > 1 else []), at, spec), "")

    def _data_groups(self) -> list[SpecGroup]:
        """The arguments that a program does not return (batches); if it returns no argument, all but the largest."""
        groups = self.program.groups
        state = {group.argument for group in groups if group.outputs}
        data = [group for group in groups if group.argument not in state and group.shape]
        if state:
            return data
        largest = max((group.argument for group in groups), default="", key=self._bytes_of)
        return [group for group in data if group.argument != largest] or data

    def _bytes_of(self, argument: str) -> int:
        return sum(group.size_bytes for group in self.program.groups if group.argument == argument)

    def _replicated(self) -> Assignment:
        return tuple(
            group.locked if group.locked is not None else ((),) * len(group.shape) for group in self.program.groups
        )

    def _sharded_data(self, data: Sequence[SpecGroup], axes: Sequence[str]) -> Assignment:
        """Everything replicated except the first dimension of the data, which is sharded over `axes`."""
        specs = list(self._replicated())
        for at, group in enumerate(self.program.groups):
            if group in data and group.locked is None and group.shape:
                size = math.prod(self.program.axes[axis] for axis in axes)
                if group.shape[0] % size == 0:
                    specs[at] = (tuple(axes), *[()] * (len(group.shape) - 1))
        return tuple(specs)

    def _opened(self, base: Assignment, keep: Sequence[SpecGroup]) -> Assignment:
        """The assignment that leaves all groups to propagation, except the kept and locked groups."""
        return tuple(
            spec if group in keep or group.locked is not None else None
            for group, spec in zip(self.program.groups, base, strict=True)
        )

    def _fully_sharded(self, base: Assignment, data: Sequence[SpecGroup], axes: Sequence[str]) -> Assignment:
        """Shards the parameters over `axes` as well, on their largest divisible dimension."""
        specs = list(base)
        size = math.prod(self.program.axes[axis] for axis in axes)
        for at, group in enumerate(self.program.groups):
            if group in data or group.locked is not None or self._is_small(group):
                continue
            dims = [dim for dim, n in enumerate(group.shape) if n % size == 0]
            if dims:
                chosen = max(dims, key=lambda dim: group.shape[dim])
                specs[at] = tuple(tuple(axes) if dim == chosen else () for dim in range(len(group.shape)))
        return tuple(specs)

    # Descent: the cost of every change to one group is predicted; an integer program combines the useful changes.

    def _descend(self) -> None:
        starts = self.best(3)
        for start in starts:
            current = start
            while True:
                better = self._step(current)
                if better is None:
                    break
                current = better

    def _step(self, current: tuple[Spec, ...]) -> tuple[Spec, ...] | None:
        program = self.program
        base = self._plans[current]
        options: list[tuple[int, Spec, Priced]] = []
        for at, group in enumerate(program.groups):
            if group.locked is not None or self._is_small(group):
                continue
            for spec in candidates(group.shape, program.axes):
                if spec != current[at]:
                    changed = self._try(_with(current, at, spec), "")
                    if changed is not None:
                        options.append((at, spec, changed))
        joint = _joined(base, options, program.memory_bytes)
        tried = [price.specs for _, _, price in options]
        if joint:
            combination = current
            for at, spec in joint:
                combination = _with(combination, at, spec)
            priced = self._try(combination, "")
            if priced is not None:
                tried.append(priced.specs)
        best = min(tried, key=lambda specs: self._rank(self._plans[specs]), default=current)
        return best if self._rank(self._plans[best]) < self._rank(base) else None

    def best(self, count: int) -> list[tuple[Spec, ...]]:
        """The best choices, either as planned or as compiled for CPU devices."""
        return sorted(self._plans, key=self.rank_of)[:count]

    def _difference(self, specs: tuple[Spec, ...], other: tuple[Spec, ...]) -> int:
        """Bytes of the arguments that two choices shard differently."""
        groups = self.program.groups
        return sum(group.size_bytes for group, a, b in zip(groups, specs, other, strict=True) if a != b)

    def _rank(self, priced: Priced) -> tuple[bool, float]:
        """Rank of a choice, by predicted time; a program that does not fit comes after every program that fits."""
        over = max(0.0, (priced.peak_bytes or 0.0) / self.program.memory_bytes - 1)
        seconds = math.inf if priced.seconds is None else priced.seconds
        # If seconds are equal, the smaller choice ranks first.
        return priced.fits is False, (over if over else seconds) * (1 + 1e-3 * _share(priced, self.program))

    def _try(self, assignment: Assignment, name: str) -> Priced | None:
        """Plans an assignment; if it has open specs, plans it again with the specs that propagation chose."""
        self._check(f"planned {self.program.planned_count} choices")
        try:
            priced = self.program.plan(assignment)
            if any(spec is None for spec in assignment):
                priced = self.program.plan(priced.specs)
        except WorkbenchError as error:
            self._notes.append(str(error).splitlines()[0][:300])
            return None
        specs = priced.specs
        if name and specs not in self._names:
            self._names[specs] = name
        if specs not in self._plans:
            better = not self._plans or self._rank(priced) < min(map(self._rank, self._plans.values()))
            self._plans[specs] = priced
            if better and self._on_record is not None:
                self._on_record(self.record())
        return self._plans[specs]

    def _compile_best(self) -> None:
        """Compiles the best planned choices: on CPU devices, then with the chip's compiler if it is installed.

        Compilers for accelerators take up to a minute per choice; the CPU compiler takes about a second. Both compilers
        use the same partitioner, whose collectives the plan may predict wrongly.
        """
        deadline = self._began + self._budget
        if self.program.target is None:
            self._explore(deadline)
            return
        now = time.monotonic()
        self._explore(now + _REHEARSING_SHARE * (deadline - now))
        slowest = 0.0
        while len(self._compiled) < _COMPILED and not self._is_cancelled():
            specs = self._next_for_chip()
            budget = deadline - time.monotonic()
            if specs is None:
                break
            if budget < slowest:
                self._ended = "time"
                break
            before = time.monotonic()
            self._report(f"compiling choice {len(self._compiled) + 1} for {self.program.where}")
            self.compile(specs, timeout_seconds=max(budget, 1.0))
            slowest = max(slowest, time.monotonic() - before)
            if self._on_record is not None:
                self._on_record(self.record())
        if not self._compiled and self._plans:
            self._notes.append(
                f"the compiler for {self.program.where} did not finish in time: pass a larger `seconds=`, or use the "
                "CPU compiler's figures"
            )

    def _explore(self, until: float) -> None:
        """Compiles choices for CPU devices, most promising first, until no other choice looks better.

        A plan is optimistic: it misses collectives for reshardings that the partitioner implements differently. The
        most promising choice is therefore compiled and ranked again, repeatedly, alternating with choices that the plan
        may underrate.
        """
        since, best = 0, (True, math.inf)
        self._until = until
        queue = [*self.best(2), self.data_parallel, *[s for s in self._names if s in self._plans]]
        while since < _PATIENCE and len(self._tried) < _REHEARSED:
            waiting = [specs for specs in queue if specs in self._plans and specs not in self._tried]
            specs = waiting[0] if waiting else self._promising(best)
            if specs is None or self._is_cancelled():
                break
            budget = until - time.monotonic()
            if budget < 0 and self._tried:
                self._ended = "time"
                break
            self._report(f"compiling choice {len(self._tried) + 1} for CPU devices")
            self.rehearse(specs, timeout_seconds=max(budget, 1.0) if self._tried else None)
            since += not waiting
            if specs not in self._failed and self.rank_of(specs) < best:
                best, since = self.rank_of(specs), 0
                self._plan_around(specs)
            if self._on_record is not None:
                self._on_record(self.record())

    def _promising(self, best: tuple[bool, float]) -> tuple[Spec, ...] | None:
        """The next choice to compile: in turn the best as planned, the best as corrected, and the most different."""
        options = [s for s in self.best(len(self._plans)) if s not in self._tried]
        options = [specs for specs in options if self.rank_of(specs) < (best[0], _SLACK * best[1])]
        kind = len(self._tried) % 3
        if not options or kind == 0:
            return options[0] if options else None
        if kind == 1 and self._on_cpu:
            return min(options, key=self._corrected)
        limit = self.rank_of(options[0])
        near = [specs for specs in options if self.rank_of(specs) <= (limit[0], _NEAR * limit[1])]
        return max(near, key=lambda specs: min((self._difference(specs, other) for other in self._tried), default=0))

    def _corrected(self, specs: tuple[Spec, ...]) -> tuple[bool, float]:
        """The planned rank, multiplied by the compiled-to-planned ratio of the most similar compiled choice."""
        nearest = min(self._on_cpu, key=lambda other: self._difference(specs, other))
        compiled_seconds, planned = self._on_cpu[nearest].seconds, self._plans[nearest].seconds
        over, seconds = self.rank_of(specs)
        return over, seconds * (compiled_seconds / planned if compiled_seconds and planned else 1.0)

    def _plan_around(self, specs: tuple[Spec, ...]) -> None:
        """Plans every change to a single group of a good choice, with and without propagation to the other groups."""
        with contextlib.suppress(_StopSearch):
            self._step(specs)
            opened = [None if not any(spec) and g.locked is None else spec for g, spec in self._paired(specs)]
            for at, (group, spec) in enumerate(self._paired(specs)):
                if any(spec) or group.locked is not None or self._is_small(group):
                    continue
                for candidate in candidates(group.shape, self.program.axes)[1:]:
                    self._try(_with(opened, at, candidate), "")

    def _paired(self, specs: tuple[Spec, ...]) -> Iterator[tuple[SpecGroup, Spec]]:
        return zip(self.program.groups, specs, strict=True)

    def _next_for_chip(self) -> tuple[Spec, ...] | None:
        """The next choice: the best on CPU devices, a choice that may fit, the best as planned, or a named choice."""
        options = [specs for specs in self._plans if specs not in self._compiled and specs not in self._failed]
        if not options:
            return None
        by_rehearsal = min(options, key=self._order_of)
        if not self._compiled:
            return by_rehearsal
        by_plan = min(options, key=lambda specs: self._rank(self._plans[specs]))
        best, slowest = min(map(self._rank, self._compiled.values())), _SLACK
        tight = [specs for specs in options if self._may_fit(specs)]
        if tight and not best[0]:
            chosen = min(tight, key=lambda specs: self._estimate(specs).seconds or math.inf)
            if (self._estimate(chosen).seconds or math.inf) < best[1]:
                return chosen
        for chosen, rank in (by_rehearsal, self.rank_of(by_rehearsal)), (by_plan, self._rank(self._plans[by_plan])):
            if rank < (best[0], slowest * best[1]):
                return chosen
            slowest = 1.0
        return next((specs for specs in options if specs in self._names), None)

    def _may_fit(self, specs: tuple[Spec, ...]) -> bool:
        """Returns whether a choice may fit despite its estimate, which counts reused memory twice."""
        priced, room = self._estimate(specs), self.program.memory_bytes
        arguments = priced.argument_bytes or 0.0
        return priced.fits is False and arguments <= room and (priced.peak_bytes or 0.0) <= _OVERESTIMATED * room

    def _estimate(self, specs: tuple[Spec, ...]) -> Priced:
        """Estimate for a choice before it has been compiled with the chip's compiler."""
        return self._on_cpu.get(specs) or self._plans[specs]

    @property
    def _on_cpu(self) -> dict[tuple[Spec, ...], Priced]:
        """Choices compiled for CPU devices; without a compiler for the chip these figures are final."""
        return self._compiled if self.program.target is None else self._rehearsed

    @property
    def _tried(self) -> set[tuple[Spec, ...]]:
        """Choices that were compiled for CPU devices, or failed to compile."""
        return {*self._on_cpu, *self._failed}

    def rehearse(self, specs: tuple[Spec, ...], *, timeout_seconds: float | None = None) -> None:
        """Compiles one choice for CPU devices; without the chip's compiler, this is the only compilation."""
        start = time.monotonic()
        try:
            self._on_cpu[specs] = self.program.rehearse(specs, cancel=self._cancel, timeout_seconds=timeout_seconds)
        except WorkbenchError as error:
            self._note_failure(specs, error, start, timeout_seconds)

    def compile(self, specs: tuple[Spec, ...], *, timeout_seconds: float | None = None) -> None:
        """Compiles one choice; a compiler failure is noted."""
        start = time.monotonic()
        try:
            self._compiled[specs] = self.program.compile(specs, cancel=self._cancel, timeout_seconds=timeout_seconds)
        except WorkbenchError as error:
            self._note_failure(specs, error, start, timeout_seconds)

    def _note_failure(
        self, specs: tuple[Spec, ...], error: WorkbenchError, start: float, timeout_seconds: float | None
    ) -> None:
        self._failed.add(specs)
        if timeout_seconds is not None and time.monotonic() - start >= timeout_seconds:
            self._ended = "time"  # the limit is what is left of the search's time; the record says that it ran out
        else:
            self._notes.append(str(error).splitlines()[0][:300])

    def _is_small(self, group: SpecGroup) -> bool:
        total_bytes = sum(member.size_bytes for member in self.program.groups)
        return not group.shape or group.size_bytes < _SMALL_SHARE * total_bytes

    def rank_of(self, specs: tuple[Spec, ...]) -> tuple[bool, float]:
        """Rank of a choice not compiled by the chip's compiler: first by whether it fits, then by predicted time."""
        return self._rank(self._estimate(specs))

    def _order_of(self, specs: tuple[Spec, ...]) -> tuple[bool, tuple[bool, float]]:
        """Sort key for choices not compiled for the chip; choices compiled for CPU devices come first."""
        return bool(self._rehearsed) and specs not in self._rehearsed, self.rank_of(specs)

    def is_planned(self, specs: tuple[Spec, ...]) -> bool:
        return specs in self._plans

    def is_rehearsed(self, specs: tuple[Spec, ...]) -> bool:
        """Returns whether a choice was compiled for CPU devices, or failed to compile."""
        return specs in self._tried

    def is_compiled(self, specs: tuple[Spec, ...]) -> bool:
        return specs in self._compiled

    def _is_cancelled(self) -> bool:
        if self._cancel is not None and self._cancel.is_set():
            self._ended = "stopped"
            return True
        return False

    def _check(self, phase: str) -> None:
        if self._is_cancelled():
            raise _StopSearch
        if time.monotonic() > self._until and self._plans:
            self._ended = "time"
            raise _StopSearch
        self._report(phase)

    def _report(self, phase: str) -> None:
        if self._progress is not None:
            self._progress(phase, time.monotonic() - self._began)


def _joined(base: Priced, options: Sequence[tuple[int, Spec, Priced]], memory_bytes: int) -> list[tuple[int, Spec]]:
    """The changes with the largest total savings that fit in memory, at most one per group.

    The choice is a 0-1 integer program: x[g, s] selects spec s for group g, at most one per group, and the sum of the
    peaks stays within the memory.
    """
    useful = [option for option in options if option[2].seconds is not None and base.seconds is not None]
    if not useful:
        return []
    saved = np.array([(priced.seconds or 0.0) - (base.seconds or 0.0) for _, _, priced in useful])
    bytes_more = np.array([(priced.peak_bytes or 0.0) - (base.peak_bytes or 0.0) for _, _, priced in useful])
    groups = sorted({at for at, _, _ in useful})
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow import
    from scipy.sparse import lil_matrix

    one_each = lil_matrix((len(groups), len(useful)))
    for column, (at, _, _) in enumerate(useful):
        one_each[groups.index(at), column] = 1.0
    room = memory_bytes - (base.peak_bytes or 0.0)
    scale = max(abs(room), 1.0)
    # a group may also stay as it is, which takes 0 bytes more
    smallest = sum(min(0.0, *(b for b, o in zip(bytes_more, useful, strict=True) if o[0] == g)) for g in groups)
    limit = max(room, smallest) / scale  # programs that cannot fit are made as small as possible
    unit = max(float(np.abs(saved).max()), 1e-12)
    solved = milp(
        saved / unit + 1e-6 * bytes_more / scale,
        constraints=[
            LinearConstraint(one_each.tocsr(), -np.inf, 1.0),
            LinearConstraint(bytes_more[None, :] / scale, -np.inf, limit + 1e-9),
        ],
        integrality=np.ones(len(useful)),
        bounds=Bounds(0, 1),
        options={"time_limit": 2.0},
    )
    if solved.x is None:
        return []
    return [(useful[i][0], useful[i][1]) for i in np.flatnonzero(solved.x > 0.5)]


def _with(assignment: Sequence[Spec | None], at: int, spec: Spec) -> Assignment:
    return (*assignment[:at], spec, *assignment[at + 1 :])


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """All nonempty subsets of the axes, largest first."""
    for count in range(len(axes), 0, -1):
        yield from itertools.combinations(axes, count)


def _share(priced: Priced, program: SearchProgram) -> float:
    return (priced.peak_bytes or 0.0) / max(program.memory_bytes, 1)


def pareto(choices: Sequence[ShardingChoiceRecord]) -> set[int]:
    """Positions of the choices that no other choice beats in both time and peak; of identical choices, the first.

    If any choices are compiled, only the compiled choices are considered.
    """
    compiled = [at for at, choice in enumerate(choices) if choice.how == "compiled"]
    points = {
        at: (choice.seconds, choice.peak_bytes)
        for at, choice in enumerate(choices)
        if (not compiled or at in compiled) and choice.seconds is not None and choice.peak_bytes is not None
    }
    first = {point: at for at, point in reversed(points.items())}
    return {at for point, at in first.items() if not any(_beats(other, point) for other in first)}


def _beats(other: tuple[float, float], point: tuple[float, float]) -> bool:
    return other != point and other[0] <= point[0] and other[1] <= point[1]
