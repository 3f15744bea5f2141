"""Applies a finding's change without editing the program, compiles the result, and reports the gain."""

import ast
import contextlib
import functools
import inspect
import math
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import Mesh

from workbench._jax_compat import checkpoints_with, is_pmapped, jit_cache_size
from workbench._open_types import AS_GIVEN, AsGiven, Foreign, Option
from workbench._processes import UNUSED_DONATIONS_ARE_FINE
from workbench._types import AnyMesh, Argument
from workbench.advice._accumulation import RULE as REPEATED
from workbench.advice._batch_axis import RULE as LOST, CandidateLine, code_in, lost_axes
from workbench.advice._gathered_results import RULE as GATHERED, TRADE, UNCOMPILED, read_gathered
from workbench.advice._links import crossed_links
from workbench.advice._module import Compiled
from workbench.advice._narrow import narrowed
from workbench.advice._remat import KEPT, rematerialised
from workbench.advice._repeated_sums import operand_specs, summed_once
from workbench.advice._rewrite import unconstrained, with_constraints, with_own_shards, with_written_gathers
from workbench.advice._search._program import SearchProgram
from workbench.advice._search._run import Runnable, median_interval, run_interleaved, with_specs
from workbench.advice._search._stand_in import as_accelerator
from workbench.advice._sharding import (
    TRADE as REPLICATED_TRADE,
    Replicated,
    best_spec,
    replicated_finding,
    replicated_groups,
)
from workbench.cost import estimate_cost
from workbench.errors import EngineError, WorkbenchError
from workbench.inspection import (
    Inspection,
    LoweredCall,
    TracedCall,
    current_mesh,
    inspect_call,
    mesh_of_values,
    trace_call,
)
from workbench.inspection.what_if import WhatIf
from workbench.plan import ChunkSize
from workbench.records.advice import FindingRecord, GainRecord, Spec
from workbench.records.compiled import ProgramRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import pattern_of
from workbench.render.units import bytes_text, flops_text, seconds_text, share_text, spec_text


class NothingToChangeError(ValueError):
    """A rewrite found no operation of the traced program to change at a finding's lines."""


class TimeLimitError(RuntimeError):
    """The advice was stopped, or its time limit is too short for one more compilation."""


Recompile = Callable[..., ProgramRecord]
Rewrite = Callable[[ClosedJaxpr, Any], tuple[ClosedJaxpr, int]]
Check = Callable[[FindingRecord, Compiled, Recompile], FindingRecord]
_FREE = 1.01  # maximum factor by which a change that is advised as free may increase the bytes sent


def with_reason(finding: FindingRecord, program: Compiled, reason: str) -> FindingRecord:
    """The finding with the reason why its change was not compiled; unchanged if no change can be compiled."""
    if finding.rule not in _CHECKS:
        return finding
    if finding.gain is None:
        peak = float(program.module.memory.peak_bytes or 0)
        gain = GainRecord(quantity="peak bytes", before=peak, after=peak, verified=False, how=reason)
        return finding.replace(gain=gain)
    return finding.replace(gain=finding.gain.replace(how=f"{finding.gain.how}; {reason}"))


def verified(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """The finding with a verified gain, or with the reason why the gain cannot be verified."""
    check = _CHECKS.get(finding.rule)
    if check is None:
        return finding
    try:
        return check(finding, program, recompile)
    except (WorkbenchError, ValueError, TypeError, RuntimeError) as error:
        name = "" if isinstance(error, NothingToChangeError) else f"{type(error).__name__}: "
        why = f"could not be verified: {name}{textwrap.shorten(str(error), 400)}"
        if finding.gain is not None:
            return finding.replace(gain=finding.gain.replace(how=f"{finding.gain.how}; {why}"))
        peak = float(program.module.memory.peak_bytes or 0)
        return finding.replace(gain=GainRecord(quantity="peak bytes", before=peak, after=peak, verified=False, how=why))


def _donation(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    match = re.search(r"donate(?:_argnums)?=(.*)\)$", finding.code)
    if match is None:
        return finding
    after = recompile(donate=ast.literal_eval(match[1]))
    gain = _peak(program, after, "compiled with the arguments donated")
    return finding.replace(gain=gain, compared=compared(program, after) if gain.verified else ())


def _specs(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Shards replicated arguments; the gain is verified by the peak memory."""
    after = recompile(specs=finding.specs)
    rows = compared(program, after)
    traffic = next((row for row in rows if row.quantity == "bytes sent"), None)
    gain = _gain(program, after, "compiled with this spec")
    if finding.rule == "partly sharded array" and traffic is not None and traffic.after > _FREE * traffic.before:
        gain = gain.replace(after=gain.before)  # the change was advised as free, but costs bytes when compiled
    return _with_results(finding, program, after).replace(gain=gain, compared=rows)


def _sharded(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Shards groups of similar arguments; groups with a price are left out if the other groups have no price."""
    complete = _specs(finding, program, recompile)
    groups = [group for group in replicated_groups(program) if group.leaves[0].path in finding.specs]
    if complete.costs and len(groups) > 1:
        with contextlib.suppress(TimeLimitError):
            complete = _without_price(complete, groups, program, recompile)
    # the compiled figures replace the plan
    return complete.replace(change=complete.change.partition(REPLICATED_TRADE)[0])


def _without_price(
    complete: FindingRecord, groups: Sequence[Replicated], program: Compiled, recompile: Recompile
) -> FindingRecord:
    """The finding about the groups that make no figure worse, or about all groups if there are none."""
    trials = [_specs(replicated_finding(program, [group]), program, recompile) for group in groups]
    free = [
        at
        for at, trial in enumerate(trials)
        if not trial.costs and trial.gain is not None and trial.gain.saved_share > 0
    ]
    if not free:
        return complete
    chosen = replicated_finding(program, [groups[at] for at in free])
    part = trials[free[0]] if len(free) == 1 else _specs(chosen, program, recompile)
    if part.costs:
        return complete
    price = ", ".join(
        f"{row.quantity} +{share_text(row.after / row.before - 1, 0)}" if row.before else f"more {row.quantity}"
        for row in complete.costs
    )
    priced = ", ".join(f"`{pattern_of(group.leaves[0].path)}`" for at, group in enumerate(groups) if at not in free)
    return part.replace(evidence=(*part.evidence, f"with {priced} sharded as well: {price}")) if priced else complete


def _moved(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Moves axes to another dimension; the gain is verified by the bytes that the compiled program sends."""
    after = recompile(specs=finding.specs)
    return _with_bytes_sent(_with_results(finding, program, after), program, after, "compiled with this spec")


def _results(record: ProgramRecord) -> list[tuple[str, tuple[tuple[str, ...], ...]]]:
    """The names and propagated shardings of a program's results, in order."""
    values = () if record.propagation is None else record.propagation.values
    return [(value.op_name, value.spec) for value in values if value.operation == "output"]


def _with_results(finding: FindingRecord, program: Compiled, after: ProgramRecord) -> FindingRecord:
    """Lists results with changed shardings in the evidence, because the code that uses them may have to reshard."""
    pairs = zip(_results(program.record), _results(after), strict=False)
    changed = [f"{name} {spec_text(old)} -> {spec_text(new)}" for (name, old), (_, new) in pairs if old != new]
    if not changed:
        return finding
    summary = ", ".join(changed[:3]) + (f", and {len(changed) - 3} more" if len(changed) > 3 else "")
    return finding.replace(evidence=(*finding.evidence, f"results with another sharding: {summary}"))


def _unconstrained(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Removes the line's constraints from the traced program and recompiles it."""
    after = recompile(rewrite=lambda closed, _: unconstrained(closed, _lines(finding)))
    return _with_bytes_sent(finding, program, after, "compiled without the constraint")


def _constrained(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Constrains one line after another in the traced program, and keeps the line that saves most."""
    lost = next(one for one in lost_axes(program) if one.axis in finding.axes)
    tried: list[tuple[float, CandidateLine, tuple[GainRecord, ...], tuple[float, float] | None]] = []
    count = 0
    for candidate in lost.candidates:
        lines, specs = [(candidate.source.file, candidate.source.line)], candidate.specs
        try:
            after = recompile(rewrite=lambda c, mesh, at=lines, by=specs: with_constraints(c, at, mesh, by))
        except NothingToChangeError:
            continue
        except TimeLimitError:
            if not count:
                raise
            break
        count += 1
        rows = compared(program, after)
        seconds = _chip_seconds(program, after)
        if _is_worth(rows, seconds):
            tried.append((_score(rows, seconds), candidate, rows, seconds))
    if not count and lost.cause is not None:
        message = "the traced program has no operation to constrain at these lines"
        raise NothingToChangeError(message)
    if not tried:  # repeated work that no constraint prevents is not advised
        assert finding.gain is not None
        how = "compiled with the constraint"
        return finding.replace(gain=finding.gain.replace(after=finding.gain.before, verified=True, how=how))
    least = min(trial[0] for trial in tried)
    alike = [trial for trial in tried if trial[0] <= least + _ALIKE]
    named = [trial for trial in alike if " = " in code_in(trial[1].change)]  # lines that assign a name
    score, best, rows, seconds = (named or alike)[0]
    order = ("bytes sent", "FLOPs", "peak bytes") if lost.cause is not None else ("FLOPs", "bytes sent", "peak bytes")
    gains = [row for name in order for row in rows if row.quantity == name]
    gain = next((row for row in gains if row.saved_share > _CLEAR), max(gains, key=lambda row: row.saved_share))
    place = f"line {best.source.line} of `{best.source.function}`"
    result = "saves most" if score == least else "assigns a name, and saves about as much as the best line"
    evidence = [f"{count} lines were constrained one by one: {place} {result}"] if count > 1 else []
    if seconds is not None and program.planner is not None and not _is_free(rows):  # why the trade is worth it
        before, after = map(seconds_text, seconds)
        evidence.append(f"predicted on {program.planner.chip.name}: {before} before, {after} with the constraint")
    return finding.replace(
        change=best.change,
        code=code_in(best.change),
        sources=(best.source,),
        evidence=(*finding.evidence, *evidence),
        gain=gain.replace(how="compiled with the constraint"),
        compared=rows,
    )


def _summed_once(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Sums over devices after the loop in the traced program, and recompiles it."""
    specs = operand_specs(program.record.propagation)
    after = recompile(rewrite=lambda closed, mesh: summed_once(closed, _lines(finding), specs, mesh))
    changed = _with_bytes_sent(finding, program, after, "compiled with one sum over devices, of the total")
    if changed.gain is not None and not _is_worth(changed.compared, _chip_seconds(program, after)):
        return changed.replace(gain=changed.gain.replace(after=changed.gain.before))  # too little for its price
    return changed


_CLEAR, _COST = 0.1, 1.05  # a clear saving, as a share; factor by which another figure may increase
_LEAST_FASTER = 0.02  # minimum saving, as a share
_ALIKE = 0.3  # difference of two scores that are alike
_TRADED = ("bytes sent", "FLOPs", "peak bytes")


def _chip_seconds(program: Compiled, after: ProgramRecord) -> tuple[float, float] | None:
    """Predicted seconds before and after a change, on the planner's chip; None if unknown."""
    planner = program.planner
    if planner is None or after.module is None:
        return None
    seconds = [
        estimate_cost(module, None, chip=planner.chip, mesh=program.record.mesh, dtype=planner.dtype).seconds
        for module in (program.module, after.module)
    ]
    return None if None in seconds else (seconds[0] or 0.0, seconds[1] or 0.0)


def _is_worth(rows: Sequence[GainRecord], seconds: tuple[float, float] | None) -> bool:
    """Returns whether a change saves bytes sent or FLOPs, and is faster if another figure increases."""
    is_faster = seconds is not None and seconds[1] < (1 - _LEAST_FASTER) * seconds[0]
    is_saving = any(row.saved_share > _LEAST_FASTER for row in rows if row.quantity in ("bytes sent", "FLOPs"))
    return is_saving and (is_faster or _is_free(rows))


def _is_free(rows: Sequence[GainRecord]) -> bool:
    """Returns whether no figure clearly increases."""
    return all(row.after <= _COST * row.before for row in rows if row.quantity in _TRADED)


def _score(rows: Sequence[GainRecord], seconds: tuple[float, float] | None) -> float:
    """The logarithm of the product of all figures' ratios; smaller is better."""
    pairs = [(row.before, row.after) for row in rows if row.quantity in _TRADED]
    pairs += [] if seconds is None else [(1e9 * seconds[0], 1e9 * seconds[1])]
    return sum(math.log((after + 1) / (before + 1)) for before, after in pairs)


def _own_shards(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Moves the operation into `jax.shard_map` in the traced program and recompiles it."""
    assert program.record.propagation is not None
    lines = _lines(finding)
    values = {v.name: v for v in program.record.propagation.values}
    here = [v for v in values.values() if _line_of(v.source) in lines]
    operands = [values[name] for v in here for name in v.operands if name in values]
    specs = {v.shape: v.spec for v in (*operands, *here) if any(v.spec)}
    after = recompile(rewrite=lambda closed, mesh: with_own_shards(closed, lines, mesh, specs))
    return _with_bytes_sent(finding, program, after, "compiled with the operation inside `jax.shard_map`")


def _written_gathers(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Writes the gathers into the traced program and recompiles it; CPU compilers merge such gathers."""
    if program.module.platform == "cpu" or finding.gain is None:
        how = "the CPU compiler merges explicit gathers again: to verify the change, compile for an accelerator (`on=`)"
        return finding if finding.gain is None else finding.replace(gain=finding.gain.replace(how=how))
    assert program.record.propagation is not None
    lines, values = _lines(finding), program.record.propagation.values
    by_name = {value.name: value for value in values}
    constraints = [v for v in values if v.operation == "sharding_constraint" and _line_of(v.source) in lines]
    operands = [by_name[name] for v in constraints for name in v.operands if name in by_name]
    specs = {v.shape: v.spec for v in operands if any(v.spec)}
    after = recompile(rewrite=lambda closed, mesh: with_written_gathers(closed, lines, mesh, specs))
    return finding.replace(
        gain=_gain(program, after, "compiled with explicit gathers"), compared=compared(program, after)
    )


def _static(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Makes integer arguments static, using the values that were passed, or 1 for shapes."""
    return _with_bytes_sent(finding, program, recompile(static=True), "compiled with a static shift")


def _used(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Shards the largest argument over the unused axis."""
    leaves = [] if program.record.inputs is None else program.record.inputs.leaves
    sizes = {axis.name: axis.size for axis in (program.record.mesh.axes if program.record.mesh else ())}
    sizes = {axis: size for axis, size in sizes.items() if axis in finding.axes}
    for leaf in sorted(leaves, key=lambda candidate: -candidate.bytes_per_device):
        choice = best_spec(leaf, sizes)
        if choice is None:
            continue
        rows = compared(program, recompile(specs={leaf.path: choice[1]}))
        gain = max(rows, key=lambda row: row.saved_share)
        if gain.saved_share > 0:
            how = f"compiled with `{leaf.path}` as {spec_text(choice[1])}"
            return finding.replace(gain=gain.replace(how=how), compared=rows)
        break
    return finding


def _in_shards(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Returns results in their computed shardings; for a trade, also shards the arguments that they replace."""
    names, is_trade = set(finding.instructions), bool(finding.specs)
    results = [r for r in read_gathered(program) if bool(r.replicated) == is_trade]
    results = [r for r in results if names.issuperset(collective.name for collective in r.collectives)]
    lines = {(r.constraint.file, r.constraint.line) for r in results if r.constraint is not None}
    change: dict[str, Any] = {"results": {r.at: r.computed for r in results}}
    if lines:
        change["rewrite"] = lambda closed, _: unconstrained(closed, lines)
    if not is_trade:
        return _with_bytes_sent(finding, program, recompile(**change), "compiled with the results in shards")
    after = recompile(specs=finding.specs, **change)
    rows = compared(program, after)
    figures = [row for name in ("bytes sent", "peak bytes") for row in rows if row.quantity == name]
    gain = next((row for row in figures if row.saved_share > _CLEAR), max(figures, key=lambda row: row.saved_share))
    changed = finding.replace(
        change=finding.change.replace(UNCOMPILED, ""),
        gain=gain.replace(how="compiled with the arguments and the results in shards"),
        compared=rows,
    )
    if changed.costs:
        return changed
    rest = changed.change.removeprefix(TRADE)
    return changed.replace(change=rest[:1].upper() + rest[1:])  # no figure gets worse


def _lines(finding: FindingRecord) -> frozenset[tuple[str, int]]:
    return frozenset((source.file, source.line) for source in finding.sources)


def _line_of(source: SourceLine | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)


def _with_bytes_sent(finding: FindingRecord, program: Compiled, after: ProgramRecord, how: str) -> FindingRecord:
    """The finding with the number of bytes that the changed program sends."""
    rows = compared(program, after)
    traffic = next((row for row in rows if row.quantity == "bytes sent"), None)
    return finding if traffic is None else finding.replace(gain=traffic.replace(how=how), compared=rows)


def _narrowed(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Moves the cast to after the collective in the traced program and recompiles it."""
    try:
        after = recompile(rewrite=lambda closed, _: narrowed(closed, _lines(finding)))
    except NothingToChangeError:
        if program.module.platform != "cpu" or finding.gain is None:
            raise
        # CPU compilers compute 16-bit products in float32. The program has no cast, so nobody could move it.
        how = "the CPU compiler inserted the conversion to float32"
        return finding.replace(gain=finding.gain.replace(after=finding.gain.before, verified=True, how=how))
    if after.module is None or not _same_work(program.module.flops, after.module.flops):
        return finding
    # CPU compilers always sum 16-bit numbers as float32, so both versions are counted as on accelerators.
    before, now = (as_accelerator(m) if m.platform == "cpu" else m for m in (program.module, after.module))
    return _with_bytes_sent(
        finding,
        Compiled(program.record, before),
        after.replace(module=now),
        "compiled with the conversion after the collective",
    )


def _by_position(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Uses the random generator whose bits depend only on their position; retraces and recompiles the function."""
    return _with_bytes_sent(finding, program, recompile(partitionable=True), "compiled with this generator")


def _ordered(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Compiles for the devices in JAX's order, and recounts the links of the groups."""
    after = recompile(ordered=True)
    if finding.gain is None or after.module is None or after.mesh is None:
        return finding
    links = crossed_links(after.mesh, after.module.collectives)
    if links is None:
        return finding
    now = sum(links.values())
    gain = finding.gain.replace(
        after=now, verified=True, how="compiled for the devices in JAX's order, with the links counted again"
    )
    return finding.replace(gain=gain, compared=compared(program, after))


_POLICIES = ("dots_saveable", "everything_saveable")  # keep products, or keep everything
_ALMOST = 0.9  # share of the FLOPs that would be saved without a checkpoint


def _kept(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Compiles with other checkpoint policies; prefers keeping only products if that saves nearly as many FLOPs."""
    base = recompile(policy=AS_GIVEN)
    assert base.module is not None
    if not _same_work(program.module.flops, base.module.flops):
        return finding  # retracing produced a different program, because an inner `jax.jit` has its own cache
    before, candidates, is_too_large = base.module.flops or 0.0, [], False
    for policy in _POLICIES:
        after = recompile(policy=getattr(jax.checkpoint_policies, policy))
        is_too_large |= after.module is not None and after.module.memory.fits is False
        if after.module is not None and after.module.memory.fits is not False:
            candidates.append((policy, after, before - (after.module.flops or before)))
    most = max((saved for _, _, saved in candidates), default=0.0)
    if most <= 0:  # for example, XLA's CPU compiler computes identical products in unrolled layers only once
        no_gain = GainRecord(quantity="FLOPs", before=before, after=before, verified=True, how="compiled with policies")
        return finding.replace(gain=no_gain) if candidates or is_too_large else finding  # no policy fits in the memory
    policy, after, _ = next(candidate for candidate in candidates if candidate[2] >= _ALMOST * most)
    assert after.module is not None
    change = (
        "Keep the matrix products: `jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)`."
        if policy == "dots_saveable"
        else "Leave `jax.checkpoint` out."
    )
    was, now = base.module.memory.peak_bytes, after.module.memory.peak_bytes
    peak = f" The memory peak changes from {bytes_text(was)} to {bytes_text(now)}." if was and now else ""
    rows = compared(Compiled(base, base.module), after)
    gain = next(row for row in rows if row.quantity == "FLOPs")
    return finding.replace(
        change=change + peak,
        code="policy = jax.checkpoint_policies.dots_saveable  # of jax.checkpoint" if policy == "dots_saveable" else "",
        gain=gain.replace(how=f"compiled with the policy {policy}"),
        compared=rows,
    )


_PRODUCTS = "dots_with_no_batch_dims_saveable"  # of `jax.checkpoint_policies`; excludes attention scores
_MOST = 0.7  # share of the memory that a policy must save, to be preferred to a checkpoint without a policy
_WORTH = 0.1  # minimum share of the peak that recomputation must save


def _recomputed(finding: FindingRecord, program: Compiled, recompile: Recompile) -> FindingRecord:
    """Recomputes the layers in the traced program, with and without a policy, and recompiles it."""
    lines, before, tried = _lines(finding), program.module.memory.peak_bytes or 0, []
    for policy in (None, _PRODUCTS):
        function = None if policy is None else getattr(jax.checkpoint_policies, policy)
        after = recompile(rewrite=lambda closed, _, keep=function: rematerialised(closed, lines, keep))
        if after.module is None or after.module.memory.peak_bytes is None:
            return finding
        tried.append((policy, after, after.module.memory))
        if policy is None and after.module.memory.peak_bytes > (1 - _WORTH) * before:
            return _not_saved(finding, program, after)
    (_, smallest, most), (_, partial, least) = tried
    saved, saved_with_policy = before - (most.peak_bytes or 0), before - (least.peak_bytes or 0)
    is_tight = program.module.memory.fits is False and least.fits is not True  # then only the smallest peak helps
    keeps = not is_tight and saved_with_policy >= (_WORTH * before if least.fits else _MOST * saved)
    after, other = (partial, smallest) if keeps else (smallest, partial)
    assert other.module is not None
    named = f"`policy=jax.checkpoint_policies.{_PRODUCTS}`"
    change = finding.change + (f" Add {named} to keep the matrix products." if keeps else "")
    figures = f"peak {bytes_text(other.module.memory.peak_bytes or 0)}, {flops_text(other.module.flops or 0)}"
    evidence = f"{'without the policy' if keeps else f'with {named}'}: {figures}"
    how = f"compiled with the layers recomputed{', except for matrix products' if keeps else ''}"
    return finding.replace(
        change=change,
        code=finding.code.replace(")", f", policy=jax.checkpoint_policies.{_PRODUCTS})", 1) if keeps else finding.code,
        evidence=(*finding.evidence, evidence),
        gain=_gain(program, after, how),
        compared=compared(program, after),
    )


def _not_saved(finding: FindingRecord, program: Compiled, after: ProgramRecord) -> FindingRecord:
    """The finding without a gain; for a Python loop on CPUs, the finding with an unverified gain."""
    gain = _gain(program, after, "compiled with the layers recomputed")
    if program.module.platform != "cpu" or finding.gain is None or ".scan(" in finding.code:
        return finding.replace(gain=gain.replace(after=max(gain.after, gain.before)))  # too little for its FLOPs
    how = (
        f"compiled for CPUs, the peak is {bytes_text(gain.after)}: recomputing the layers of a Python loop saves too "
        "little memory there. To verify the change, compile for an accelerator (`on=`), or write the "
        "loop as `jax.lax.scan`"
    )
    return finding.replace(gain=finding.gain.replace(how=how))


_CHECKS: dict[str, Check] = {
    KEPT: _recomputed,
    "missing donation": _donation,
    "large replicated array": _sharded,
    "partly sharded array": _specs,
    "spec on another dimension": _moved,
    "argument gathered for one use": _moved,
    "costly constraint": _unconstrained,
    "unused mesh axis": _used,
    "recomputation": _kept,
    "float32 collective of 16-bit values": _narrowed,
    "random numbers that are exchanged": _by_position,
    "shift known only at run time": _static,
    LOST: _constrained,
    REPEATED: _summed_once,
    "operation that is not split": _own_shards,
    "gather before the checkpoint": _written_gathers,
    "order of devices": _ordered,
    GATHERED: _in_shards,
}


class Trials:
    """Compiles variants for one finding after another, and runs the verified variants.

    Attributes:
        problem: The reason why the last finding was not run; "" if it was run, or if nothing was compiled for it.
    """

    def __init__(self, variants: "Variants", cancel: threading.Event | None) -> None:
        self._variants, self._cancel = variants, cancel
        self._made: list[tuple[ProgramRecord, dict[str, Any]]] = []
        self.problem: str = ""

    def recompile(self, **change: Any) -> ProgramRecord:
        """Compiles a variant and records how its figures change."""
        record = self._variants.recompile(**change)
        self._made.append((record, change))
        return record

    def measured(self, finding: FindingRecord, program: Compiled) -> FindingRecord:
        """The finding with the times measured for the program before and after the change."""
        variants, self._made, self.problem = self._made, [], ""
        if not finding.is_verified or not variants:
            return finding
        alike = [change for record, change in variants if compared(program, record) == finding.compared]
        change = alike[-1] if alike else variants[-1][1]
        # Policies are compiled from a retraced function, so the baseline is also retraced.
        base = {"policy": AS_GIVEN} if "policy" in change else {}
        try:
            both = [self._variants.runnable(**base), self._variants.runnable(**change)]
            before, after = run_interleaved(both, self._cancel)
        except (WorkbenchError, ValueError, TypeError, RuntimeError) as error:
            self.problem = f"{finding.rule} was not measured: {textwrap.shorten(str(error), 300)}"
            return finding
        saved = median_interval([1 - new / old for old, new in zip(before, after, strict=True)])
        certain = "" if saved.low > 0 or saved.high < 0 else ", so no difference is certain"
        how = (
            f"{len(before)} calls each, interleaved: {100 * saved.median:.1f} % saved, 95 % interval "
            f"{100 * saved.low:.1f} % to {100 * saved.high:.1f} %{certain}"
        )
        row = GainRecord(
            quantity="measured seconds",
            before=median_interval(before).median,
            after=median_interval(after).median,
            verified=True,
            how=how,
            saved_interval=(saved.low, saved.high),
        )
        return finding.replace(compared=(*finding.compared, row))


def compared(program: Compiled, after: ProgramRecord) -> tuple[GainRecord, ...]:
    """Peak, bytes sent, FLOPs and predicted time of the program before and after a compiled change."""
    assert after.module is not None
    now = Compiled(after, after.module)
    rows = [
        ("peak bytes", program.module.memory.peak_bytes, after.module.memory.peak_bytes),
        ("bytes sent", program.sent_bytes, now.sent_bytes),
        ("FLOPs", program.module.flops, after.module.flops),
        ("elementwise FLOPs", program.module.elementwise_flops, after.module.elementwise_flops),
        ("seconds", _seconds(program.record), _seconds(after)),
    ]
    return tuple(
        GainRecord(quantity=name, before=float(old), after=float(new), verified=True, how="compiled")
        for name, old, new in rows
        if old is not None and new is not None
    )


def _seconds(record: ProgramRecord) -> float | None:
    return None if record.cost is None else record.cost.seconds


def _peak(program: Compiled, after: ProgramRecord, how: str) -> GainRecord:
    assert after.module is not None
    if not _same_work(program.module.flops, after.module.flops):
        # Another `jax.jit` around a function that mutates its modules (`nnx.jit`) would lose the updates.
        peak = float(program.module.memory.peak_bytes or 0)
        how = "could not be verified: the automatically changed program does different work"
        return GainRecord(quantity="peak bytes", before=peak, after=peak, verified=False, how=how)
    return _gain(program, after, how)


def _gain(program: Compiled, after: ProgramRecord, how: str) -> GainRecord:
    assert after.module is not None
    before, now = program.module.memory.peak_bytes or 0, after.module.memory.peak_bytes or 0
    return GainRecord(quantity="peak bytes", before=float(before), after=float(now), verified=True, how=how)


def _same_work(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(after - before) <= 0.01 * max(before, 1.0)


def wrapper_of(fn: Callable | None) -> str:
    """Name of the user's jit wrapper; needed because each library has its own way to donate."""
    if is_pmapped(fn):
        return "jax.pmap"
    library = type(fn).__module__.partition(".")[0]
    return {"flax": "nnx.jit", "equinox": "eqx.filter_jit"}.get(library, "jax.jit")


def parameters_of(fn: Callable | None) -> tuple[str, ...]:
    """The parameters of a function, in order; empty if the signature is unknown."""
    try:
        return () if fn is None else tuple(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return ()


def count_traces(fn: Callable | None) -> int | None:
    """Number of compiled versions in a function's cache; None if it has no cache."""
    return jit_cache_size(getattr(fn, "jitted_fn", fn))


def is_gradient(fn: Callable | None) -> bool:
    """Returns whether a function comes from `jax.grad` or `jax.value_and_grad`, compiled or not."""
    return (getattr(fn, "__doc__", None) or "").startswith(("Gradient of ", "Value and gradient of "))


def _donating(fn: Callable, donated: int | tuple[int, ...]) -> Callable:
    if wrapper_of(fn) == "nnx.jit":
        wrapped: Foreign = fn  # keeps the updates of its modules, which another `jax.jit` would lose
        return sys.modules["flax.nnx"].jit(wrapped.fun, donate_argnums=donated)
    return jax.jit(fn, donate_argnums=donated)


def _donating_arrays(call: TracedCall, donated: str) -> tuple[Callable, tuple[Argument, ...]]:
    """The program as a function that donates all arrays (or all except the first argument's), and its arrays."""
    first = re.split(r"[\[.]", call.names[0], maxsplit=1)[0]
    kept_flags = [donated != "all" and re.match(rf"{re.escape(first)}\b", name) is not None for name in call.names]
    positions = tuple(at for at, is_kept in enumerate(kept_flags) if not is_kept)
    return jax.jit(jaxpr_as_fun(call.closed), donate_argnums=positions), tuple(call.leaves)


def _written_again(fn: Callable) -> Callable:
    """The function inside its `jit`, wrapped as a new function to force retracing."""
    if wrapper_of(fn) == "nnx.jit":
        module: Foreign = fn
        return sys.modules["flax.nnx"].jit(lambda *args, **kwargs: module.fun(*args, **kwargs))
    if wrapper_of(fn) == "eqx.filter_jit" and (below := getattr(fn, "__wrapped__", None)) is not None:
        # `jax.jit` would also trace the numbers and functions among a module's fields
        return sys.modules["equinox"].filter_jit(functools.wraps(below)(lambda *args, **kw: below(*args, **kw)))
    inner = _below_jit(fn)
    return jax.jit(functools.wraps(inner)(lambda *args, **kwargs: inner(*args, **kwargs)))


def _below_jit(fn: Callable) -> Callable:
    while isinstance(fn, jax.stages.Wrapped) and (below := getattr(fn, "__wrapped__", None)) is not None:
        fn = below  # only through jits, because `grad` also sets `__wrapped__`
    return fn


def _with_static_numbers(traced: "Variants") -> tuple[Callable, tuple[Argument, ...]]:
    """The function with its integer arguments fixed, and the remaining arguments."""
    numbers = {
        at: 1 if isinstance(argument, jax.ShapeDtypeStruct) else int(argument)
        for at, argument in enumerate(traced.args)
        if jax.tree_util.all_leaves([argument])
        and jax.numpy.shape(argument) == ()
        and jax.numpy.issubdtype(jax.numpy.result_type(argument), jax.numpy.integer)
    }
    if not numbers:
        message = "the distance is not an argument of the function"
        raise ValueError(message)
    inner = _below_jit(traced.fn)

    def fixed(*arrays: Argument, **kwargs: Argument) -> Argument:
        rest = iter(arrays)
        return inner(*(numbers[at] if at in numbers else next(rest) for at in range(len(traced.args))), **kwargs)

    return jax.jit(functools.wraps(inner)(fixed)), tuple(a for at, a in enumerate(traced.args) if at not in numbers)


@dataclass(frozen=True, kw_only=True)
class Variants:
    """A traced call that can be compiled with a different donation, specs, chunk size, generator or device order.

    Attributes:
        call: The traced call.
        fn: The user's function, which accepts the same positional and keyword arguments.
        options: Options of `inspect_call` with which the program is inspected.
    """

    call: TracedCall | LoweredCall
    fn: Callable
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]
    options: dict[str, Any]

    @property
    def chunk_size(self) -> ChunkSize:
        """The chunk size with which the call is compiled: a number, "auto", a function, or None for all clients."""
        option = self.options.get("chunk_size")
        return getattr(self.call, "chunk_size", "auto") if option is None else option[0]

    @property
    def references(self) -> frozenset[str]:
        """The arguments that are references."""
        call = self.call
        return (
            frozenset(call.names[at] for at in call.reference_leaves) if isinstance(call, TracedCall) else frozenset()
        )

    @property
    def mesh(self) -> AnyMesh | None:
        """The mesh of the call: the given mesh, the current mesh, the mesh of the trace, or the mesh of the arrays."""
        call = self.traced
        return self.options.get("mesh") or current_mesh() or call.mesh or mesh_of_values(call.leaves)

    @property
    def traced(self) -> TracedCall:
        """The traced call.

        Raises:
            ValueError: if only the lowered text of the call is available.
        """
        if not isinstance(self.call, TracedCall):
            message = "only the lowered text of the program is available; it cannot be rewritten"
            raise ValueError(message)
        return self.call

    def planner(self) -> SearchProgram | None:
        """Returns the planner that predicts costs with other specs; None without a mesh of several devices."""
        if not isinstance(self.call, TracedCall):
            return None
        mesh, target = self.mesh, self.options.get("target")
        if mesh is None or mesh.empty or mesh.size < 2:
            return None
        chip = self.options.get("chip") or (target or "v5e").partition(":")[0]
        try:
            return SearchProgram(self.call, mesh, chip, compiler="cpu")
        except Exception:  # the other rules work even if JAX or Shardy fails
            return None

    def recompile(self, **change: Any) -> ProgramRecord:
        """Inspects the call with one change, given as an option of `_changed`."""
        if change.get("specs") is not None:
            call = self._rewritten(change.get("rewrite"), change.get("results"))
            tried = WhatIf(call, mesh=self.options.get("mesh"), target=self.options.get("target"))
            with UNUSED_DONATIONS_ARE_FINE:  # another spec than the result that would reuse the memory
                return tried.compile(tried.plan(change["specs"])).after
        return self._changed(self._inspect, **change)

    def runnable(self, **change: Any) -> Runnable:
        """Compiles the call for the devices of this process, unchanged or with one change.

        Raises:
            ValueError: if only the lowered text of the call is available.
            EngineError: if specs are given for a call with keyword arguments, or if there are no devices.
        """
        if change.get("specs") is not None:
            mesh = self.mesh
            if not isinstance(mesh, Mesh):
                message = "Specs need a mesh of attached devices to run on: set one with `jax.set_mesh`."
                raise EngineError(message)
            call = self._rewritten(change.get("rewrite"), change.get("results"))
            return with_specs(call, mesh, change["specs"], self.chunk_size)
        return self._changed(self._compile, **change)

    def _changed(
        self,
        finish: Callable[..., Any],
        *,
        donate: int | tuple[int, ...] | str = (),
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        policy: Callable[..., object] | AsGiven | None = None,
        rewrite: Rewrite | None = None,
        results: Mapping[int, Spec] | None = None,
        static: bool = False,
        partitionable: bool = False,
        ordered: bool = False,
    ) -> Any:
        """Makes one change and calls `finish` with the changed call, inside the contexts that the call needs."""
        if partitionable:
            with jax.threefry_partitionable(True):
                return finish(self._trace(self.fn, self.args, self.kwargs))
        if ordered:
            return self._in_order_of_jax(finish)
        if static:
            fn, args = _with_static_numbers(self)
            return finish(self._trace(fn, args, self.kwargs))
        if rewrite is not None or results:
            return finish(self._rewritten(rewrite, results))
        if policy is not None:
            fn = _written_again(self.fn)
            with contextlib.nullcontext() if policy is AS_GIVEN else checkpoints_with(policy):
                return finish(self._trace(fn, self.args, self.kwargs))
        if chunk_size is not AS_GIVEN:
            return finish(self.call, chunk_size=(chunk_size,))
        if donate == ():
            return finish(self.call)
        fn, args, kwargs = self.fn, self.args, self.kwargs
        if isinstance(donate, str):
            (fn, args), kwargs = _donating_arrays(self.traced, donate), {}
        else:
            fn = _donating(fn, donate)
        with UNUSED_DONATIONS_ARE_FINE:  # failed donations are visible in the compiled module's memory
            return finish(self._trace(fn, args, kwargs))

    def _rewritten(self, rewrite: Rewrite | None, results: Mapping[int, Spec] | None) -> TracedCall:
        """The traced call with other equations, and with other shardings of results by position."""
        call = self.traced
        if rewrite is not None:
            mesh = self.options.get("mesh") or call.mesh or mesh_of_values(call.leaves) or current_mesh()
            closed, count = rewrite(call.closed, mesh)
            if not count:
                message = "the traced program has no operation to change at this place"
                raise NothingToChangeError(message)
            call = call.rewritten(closed)
        return call.with_results(results) if results else call

    def _trace(self, fn: Callable, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> TracedCall | LoweredCall:
        return trace_call(fn, args, kwargs, self.options.get("mesh"))

    def _inspect(self, call: TracedCall | LoweredCall, **changed: Option) -> ProgramRecord:
        return inspect_call(call, **{**self.options, **changed})

    def _compile(self, call: TracedCall | LoweredCall, **changed: Any) -> Runnable:
        if not isinstance(call, TracedCall):
            message = "only the lowered text of the program is available, without arguments to run"
            raise TypeError(message)
        options = {**self.options, **changed}
        chunk_size = options.get("chunk_size")
        chunks = call.chunk_size if chunk_size is None else chunk_size[0]
        inspection = Inspection(call, chunks).compile(options.get("mesh"))
        if inspection.compiled is None:
            message = "The program is planned on an abstract mesh, but a measured gain needs attached devices."
            raise EngineError(message)
        return Runnable(inspection.compiled, inspection.args, inspection.kwargs)

    def _in_order_of_jax(self, finish: Callable[..., Any]) -> Any:
        """The call, compiled for the same devices in the order of `jax.make_mesh`."""
        if self.options.get("target") is not None:
            return finish(self.call, order="topology")
        mesh = self.options.get("mesh") or current_mesh() or self.traced.mesh
        if not isinstance(mesh, jax.sharding.Mesh):
            message = "the mesh has no devices to order"
            raise TypeError(message)
        reordered_mesh = jax.make_mesh(
            mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, devices=list(mesh.devices.flat)
        )
        return finish(self.call, mesh=reordered_mesh)
