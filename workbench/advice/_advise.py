"""Runs every rule on one program and ranks the findings."""

import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from workbench._open_types import Progress
from workbench.advice._accumulation import repeated_reduction
from workbench.advice._batch_axis import lost_batch
from workbench.advice._chunks import chunk_size as chunk_size_rule, small_chunks
from workbench.advice._collectives import (
    gather_and_slice,
    gathered_for_one_use,
    loop_invariant_gather,
    reduced_then_sliced,
    wide_collective,
)
from workbench.advice._evidence import with_evidence
from workbench.advice._gathered_results import RULE as GATHERED, gathered_results
from workbench.advice._host import host_in_loop, retraces
from workbench.advice._links import device_order, slow_axis
from workbench.advice._loops import many_small_instructions, small_loop_body, unrolled_layers
from workbench.advice._memory import kept_activations, missing_donation, recomputation
from workbench.advice._module import Compiled
from workbench.advice._partitioning import (
    axis_without_name,
    exchanged_counters,
    gather_outside_checkpoint,
    runtime_shift,
    unsplit_operation,
)
from workbench.advice._remat import KEPT
from workbench.advice._search._program import SearchProgram
from workbench.advice._sharding import empty_slots, large_replicated, unbalanced_clients, uneven_shards, unused_axis
from workbench.advice._specs import costly_constraint, misplaced_spec, partly_sharded
from workbench.advice._verify import (
    Recompile,
    TimeLimitError,
    Trials,
    Variants,
    count_traces,
    is_gradient,
    parameters_of,
    verified,
    with_reason,
    wrapper_of,
)
from workbench.errors import InspectionError
from workbench.plan import ChunkSize
from workbench.records.advice import AdviceRecord, FindingRecord, GainRecord
from workbench.records.compiled import ProgramRecord
from workbench.render.units import counted_text

Rule = Callable[[Compiled], Iterator[FindingRecord]]
_LEAST_SAVED = 0.02  # minimum saving by a compiled change, as a share of its figure
# Rules that need the reasons for collectives come last: finding reasons takes seconds, and findings are shown at once.
RULES: tuple[Rule, ...] = (
    loop_invariant_gather,
    repeated_reduction,
    wide_collective,
    reduced_then_sliced,
    gather_and_slice,
    exchanged_counters,
    runtime_shift,
    axis_without_name,
    gather_outside_checkpoint,
    gathered_for_one_use,
    gathered_results,
    missing_donation,
    kept_activations,
    recomputation,
    misplaced_spec,
    large_replicated,
    partly_sharded,
    unused_axis,
    unbalanced_clients,
    empty_slots,
    uneven_shards,
    chunk_size_rule,
    small_chunks,
    slow_axis,
    device_order,
    host_in_loop,
    retraces,
    small_loop_body,
    many_small_instructions,
    unrolled_layers,
    costly_constraint,
    lost_batch,
    unsplit_operation,
)


def advise_record(
    record: ProgramRecord,
    *,
    recompile: Recompile | None = None,
    planner: SearchProgram | None = None,
    fn: Callable | None = None,
    chunk_size: ChunkSize = "auto",
    references: Collection[str] = (),
    at_most: int = 20,
    trials: Trials | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    found: Callable[[AdviceRecord], None] | None = None,
    until: float | None = None,
    compiling: float = 0.0,
    unverified: str = "not verified, because a record cannot be compiled again",
) -> AdviceRecord:
    """Returns ranked findings about an inspected program.

    Example:
        >>> record = wb.inspect(jax.jit(lambda x: x * 2))(jnp.ones(4))
        >>> advise_record(record).checked[-2]
        'Computations without the mesh axis of the batch: one constraint restores the axis.'
    """
    if record.module is None:
        message = (
            f"`advise` received the record of {record.name}, which was only planned, not compiled. Findings describe "
            'compiled instructions: inspect the program on a mesh of devices, or for a target such as `on="v5e:4x4"`.'
        )
        raise InspectionError(message)
    program = Compiled(
        record,
        record.module,
        planner,
        traces=count_traces(fn),
        chunk_size=chunk_size,
        recompile=recompile,
        wrapper=wrapper_of(fn),
        parameters=parameters_of(fn),
        references=frozenset(references),
        is_gradient=is_gradient(fn),
        until=until,
    )
    began = time.monotonic()
    clock = _Clock(recompile, cancel, until, compiling)

    def report(phase: str) -> None:
        if progress is not None:
            progress(phase, time.monotonic() - began)

    tell = found or (lambda _: None)
    report("reading the program")
    estimates: list[FindingRecord] = []
    findings: list[FindingRecord] = []
    checked: list[Rule] = []
    notes: list[str] = []

    def advice() -> AdviceRecord:
        return _advice(program, findings, checked, notes)

    def is_stopped(before: str) -> bool:
        if cancel is None or not cancel.is_set():
            return False
        notes.append(f"stopped before every {before}")
        return True

    try:
        for rule in RULES:
            if is_stopped("rule was checked"):
                return advice()
            new = [_for_pmap(with_evidence(draft, program), program) for draft in rule(program)]
            estimates += new if recompile is not None else [with_reason(one, program, unverified) for one in new]
            checked.append(rule)
            findings = sorted(_once(_without_effects(estimates)), key=lambda f: -f.weight)[:at_most]
            if new:
                tell(advice())
        unplanned = _unplanned(program)
        for number, finding in enumerate(findings):
            late = _too_late(number, len(findings), until, clock.compiling)
            notes += late
            if recompile is None or late or is_stopped("change was compiled"):
                break
            place = f"{number + 1} of {len(findings)}"
            findings[number], problem = _tried(finding, program, clock, trials, report, place)
            notes += [problem] if problem else []
            tell(advice())
        notes += unplanned
    except KeyboardInterrupt:
        if not findings:
            raise
        notes.append("interrupted before all changes were compiled")
    return advice()


class _Clock:
    """Compiles variants until the time limit; `compiling` is the duration of the slowest compilation in seconds."""

    def __init__(
        self, recompile: Recompile | None, cancel: threading.Event | None, until: float | None, compiling: float
    ) -> None:
        self.recompile, self.compiling = recompile, compiling
        self._cancel, self._until = cancel, until

    def over(self, recompile: Recompile) -> Recompile:
        """Makes `recompile` raise `TimeLimitError` if the advice was stopped or too little time is left."""

        def limited(**change: Any) -> ProgramRecord:
            start = time.monotonic()
            is_late = self._until is not None and start + self.compiling > self._until
            if is_late or (self._cancel is not None and self._cancel.is_set()):
                message = "the time limit ended, or the advice was stopped"
                raise TimeLimitError(message)
            record = recompile(**change)
            self.compiling = max(self.compiling, time.monotonic() - start)
            return record

        return limited


def _unplanned(program: Compiled) -> list[str]:
    """A note if the time limit ended before all rules that plan other shardings were complete."""
    if program.planner is None or not program.is_late:
        return []
    return ["the time limit (`seconds`) ended before every other sharding was planned"]


def _too_late(number: int, of: int, until: float | None, compiling: float) -> list[str]:
    """A note if the remaining time is too short for one compilation."""
    budget = math.inf if until is None else max(0.0, until - time.monotonic())
    if compiling <= budget:
        return []
    return [
        f"{of - number} of {of} changes were not compiled: a compilation takes about {compiling:.3g} s, but only "
        f"{budget:.3g} s of the time limit (`seconds`) are left"
    ]


def advise_call(
    record: ProgramRecord,
    variants: Variants,
    *,
    verify: bool = True,
    measure: bool = False,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    found: Callable[[AdviceRecord], None] | None = None,
    until: float | None = None,
    compiling: float = 0.0,
) -> AdviceRecord:
    """Ranked findings about a traced call and its record; changes are compiled and, with `measure`, run."""
    if measure and (not verify or variants.options.get("target") is not None):
        message = (
            f"`advise` was given measure=True for {record.name} with "
            f"{'verify=False' if not verify else 'the target ' + record.target}. `measure` runs the changed program, "
            "so it must be compiled for attached devices: omit one of the two options."
        )
        raise InspectionError(message)
    return advise_record(
        record,
        recompile=variants.recompile if verify else None,
        planner=variants.planner(),
        fn=variants.fn,
        chunk_size=variants.chunk_size,
        references=variants.references,
        trials=Trials(variants, cancel) if measure else None,
        progress=progress,
        cancel=cancel,
        found=found,
        until=until,
        compiling=compiling,
        unverified="not verified, because verify=False",
    )


def _unknown_loops(program: Compiled) -> list[str]:
    """A note about the figures of a program that has a loop of unknown length."""
    if all(instruction.executions is not None for instruction in program.module.instructions):
        return []
    return ["in a loop whose length is unknown, every instruction counts once, so bytes and FLOPs are lower bounds"]


def _overlaps(findings: list[FindingRecord]) -> list[str]:
    """Notes about quantities for which the compiled changes' savings add up to more than the total."""
    saved: dict[str, float] = {}
    for finding in findings:
        for row in finding.compared if finding.is_verified else ():
            if row.quantity in ("peak bytes", "bytes sent", "FLOPs"):
                saved[row.quantity] = saved.get(row.quantity, 0.0) + max(0.0, row.saved_share)
    quantities = [quantity for quantity, share in saved.items() if share > 1]
    if not quantities:
        return []
    return [
        f"together, the findings claim to save more {' and '.join(quantities)} than the program's total, so their "
        "gains overlap: make one change, then call `advise` again"
    ]


def rule_sentences(rules: Iterable[Rule] = RULES) -> tuple[str, ...]:
    """One sentence per rule: what it looks for.

    Example:
        >>> rule_sentences()[0]
        'A collective in a loop that has the same operand in every iteration.'
    """
    return tuple((rule.__doc__ or rule.__name__.replace("_", " ")).strip().splitlines()[0] for rule in rules)


def _advice(program: Compiled, findings: list[FindingRecord], checked: list[Rule], notes: list[str]) -> AdviceRecord:
    """The record of the findings so far, ranked."""
    # A change that brings no gain is dropped.
    selection = [f for f in findings if f.gain is None or _is_unknown(f.gain) or f.gain.saved_share > _LEAST_SAVED]
    selection = [f for f in selection if not _is_too_large(f, program)]
    record, available = program.record, program.module.memory.available_bytes
    return AdviceRecord(
        name=record.name,
        target=record.target,
        findings=tuple(sorted(selection, key=lambda finding: _rank(finding, available))),
        checked=rule_sentences(checked),
        notes=(*notes, *_overlaps(selection), *_unknown_loops(program)),
        error_bar="" if record.cost is None or record.cost.seconds is None else record.cost.error_bar,
    )


def _tried(
    finding: FindingRecord,
    program: Compiled,
    clock: _Clock,
    trials: Trials | None,
    report: Callable[[str], None],
    place: str,
) -> tuple[FindingRecord, str]:
    """Compiles the finding's change and, with `trials`, runs it; also returns the reason if the run failed."""
    report(f"compiling change {place}: {finding.rule}")
    if trials is None:
        assert clock.recompile is not None
        return verified(finding, program, clock.over(clock.recompile)), ""
    compiled = verified(finding, program, clock.over(trials.recompile))
    report(f"running change {place}: {finding.rule}")
    return trials.measured(compiled, program), trials.problem


def _for_pmap(finding: FindingRecord, program: Compiled) -> FindingRecord:
    """The finding adapted to `jax.pmap`, which does not accept shardings."""
    if program.wrapper != "jax.pmap" or not finding.specs:
        return finding
    return finding.replace(
        change="`jax.pmap` keeps such an argument unsharded on every device. Move the step to `jax.jit` on a mesh "
        f"with the same axis, and then: {finding.change}",
        code="",
    )


def _is_too_large(finding: FindingRecord, program: Compiled) -> bool:
    """Returns whether the change exceeds a device's memory although the original program fits."""
    available = program.module.memory.available_bytes
    peak = next((row for row in finding.compared if row.quantity == "peak bytes"), None)
    return bool(available and peak is not None and peak.before <= available < peak.after)


def _rank(finding: FindingRecord, available: float | None = None) -> tuple[bool, bool, float]:
    """Sort key: changes that make the program fit, then the largest saving; trade-offs that save no time last."""
    saved, gain = finding.saved_seconds, finding.gain
    peak = next((row for row in finding.compared if row.quantity == "peak bytes"), None)
    makes_room = bool(available and peak is not None and peak.after <= available < peak.before)
    is_faster = saved is not None and saved > 0
    is_trade = bool(finding.costs) or finding.rule == KEPT
    is_failed = gain is not None and _is_unknown(gain) and not gain.how.startswith("not verified")
    size = gain.saved_share if gain is not None and gain.verified else finding.weight
    return not makes_room, is_failed or (is_trade and not is_faster), -(size if saved is None else saved)


def _is_unknown(gain: GainRecord) -> bool:
    """Returns whether a change was neither compiled nor estimated."""
    return not gain.verified and gain.after >= gain.before


def _without_effects(findings: list[FindingRecord]) -> list[FindingRecord]:
    """Drops constraints that another finding explains: their gather runs in a loop, or serves only a result."""
    causes = ("loop-invariant collective", GATHERED)
    explained = {(s.file, s.line) for f in findings if f.rule in causes for s in f.sources}
    return [
        finding
        for finding in findings
        if finding.rule != "costly constraint" or not explained.intersection((s.file, s.line) for s in finding.sources)
    ]


def _once(findings: list[FindingRecord]) -> list[FindingRecord]:
    """Merges findings of the same rule at the same line, and adds up their gains."""
    groups: dict[object, list[FindingRecord]] = {}
    for number, finding in enumerate(findings):
        place = (finding.rule, finding.sources[0].file, finding.sources[0].line) if finding.sources else number
        if finding.leaves and finding.specs:
            # identical layers: the same change for leaves that differ only in an index
            layers = tuple(sorted(re.sub(r"\d+", "*", leaf) for leaf in finding.leaves))
            place = (finding.rule, layers, tuple(sorted(finding.specs.values())))
        elif finding.leaves or not finding.instructions:
            place = number
        groups.setdefault(place, []).append(finding)
    return [_merged(group) for group in groups.values()]


def _merged(group: list[FindingRecord]) -> FindingRecord:
    first = max(group, key=lambda finding: finding.weight)
    if len(group) == 1:
        return first
    gains = [finding.gain for finding in group if finding.gain is not None]
    gain = first.gain
    if gain is not None and len(gains) == len(group):
        gain = gain.replace(after=max(0.0, gain.before - sum(g.before - g.after for g in gains)))
    sizes, seconds = [finding.size_bytes for finding in group], [finding.seconds for finding in group]
    return first.replace(
        what=f"{first.what} The same applies to "
        + counted_text(len(group) - 1, "more argument" if first.leaves else "more case")
        + (" of equal layers." if first.leaves else " at this line."),
        leaves=tuple(dict.fromkeys(leaf for finding in group for leaf in finding.leaves)),
        specs={path: spec for finding in group for path, spec in finding.specs.items()},
        evidence=tuple(dict.fromkeys(line for finding in group for line in finding.evidence)),
        weight=min(1.0, sum(finding.weight for finding in group)),
        instructions=tuple(dict.fromkeys(name for finding in group for name in finding.instructions)),
        nodes=tuple(dict.fromkeys(node for finding in group for node in finding.nodes)),
        size_bytes=None if None in sizes else sum(size or 0.0 for size in sizes),
        seconds=None if None in seconds else sum(value or 0.0 for value in seconds),
        gain=gain,
    )
