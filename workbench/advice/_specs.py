"""Rules that try different shardings: specs on the wrong dimension, and costly constraints."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.advice._module import Compiled, estimated, explained
from workbench.advice._planning import divides, plan_with, planned_base, planned_bytes
from workbench.advice._search._program import Priced, SearchProgram
from workbench.advice._sharding import all_of, best_spec, named
from workbench.records.advice import FindingRecord
from workbench.records.program import SourceLine
from workbench.render.units import bytes_text, share_text, spec_text

_LESS = 0.9  # a change must reduce the bytes sent to this share or less
_SMALL_BYTES = 1 << 12
_SAME_WORK = 1.05  # share of the FLOPs of one device
_TRIED = 12  # maximum number of arguments, largest first
_LARGE, _LARGE_BYTES = 0.1, 1 << 16  # share of the arguments on one device; smaller arguments are ignored


def misplaced_spec(program: Compiled) -> Iterator[FindingRecord]:
    """An argument whose transposed spec would cause much less communication."""
    planner, base = planned_base(program)
    before = 0.0 if base is None else sum(base.sent.values())
    if planner is None or base is None or before < _SMALL_BYTES:
        return
    groups, state = planner.groups[:_TRIED], _state(program, planner)
    # in a training step, batches are sharded over examples, so only the spec of the state may be wrong
    places = [at for at, g in enumerate(groups) if any(base.specs[at]) and (not state or g.pattern in state)]
    singles = [(at,) for at in places]
    # two products in a row, whose weights have equal sizes: with one transposed spec, the other is wrong
    pairs = [
        (at, other)
        for at, other in itertools.combinations(places, 2)
        if groups[at].shape == groups[other].shape[:-2] + groups[other].shape[-2:][::-1]
    ]
    is_found = False
    for chosen in (*singles, *pairs):
        if program.is_late or (is_found and len(chosen) > 1):
            return
        after, specs = _transposed(program, planner, base, chosen)
        if after > _LESS * before:
            continue
        is_found = True
        leaves = {planner.leaves[i].name: spec for at, spec in specs.items() for i in groups[at].leaves}
        was = " and ".join(f"`{groups[at].pattern}` is sharded as `{spec_text(base.specs[at])}`" for at in specs)
        new = " and ".join(f"`{spec_text(spec)}`" for spec in specs.values())
        yield FindingRecord(
            rule="spec on another dimension",
            what=f"{was}; with {new}, the program would send fewer bytes.",
            why="Operations that read the array either need parts from other devices, or produce partial sums, which "
            "devices must add. The number of bytes depends on the sharded dimension.",
            change=f"Shard {' and '.join(f'`{groups[at].pattern}` as `{spec_text(specs[at])}`' for at in specs)}.",
            specs=leaves,
            evidence=(planned_bytes(program, before, after),),
            weight=_weight(before, after),
            leaves=tuple(leaves),
            axes=tuple(axis for at in specs for axes in base.specs[at] for axis in axes),
            size_bytes=before,
            gain=estimated("bytes sent", before, after, "planned, not compiled"),
        )


def _transposed(
    program: Compiled, planner: SearchProgram, base: Priced, places: Sequence[int]
) -> tuple[float, dict[int, Any]]:
    """The fewest planned bytes with permuted specs at these places, and the specs; infinite if devices repeat work."""
    options = []
    for at in places:
        permuted = {permutation for permutation in itertools.permutations(base.specs[at])} - {base.specs[at]}
        options.append(sorted(p for p in permuted if divides(p, planner.groups[at].shape, planner)))
    best: tuple[float, dict[int, Any]] = math.inf, {}
    for choice in itertools.takewhile(lambda _: not program.is_late, itertools.product(*options)):
        specs = dict(zip(places, choice, strict=True))
        priced = plan_with(planner, tuple(specs.get(at, spec) for at, spec in enumerate(base.specs)))
        # a spec with which devices repeat work is not better, even if it sends fewer bytes
        if priced is not None and (priced.flops or 0.0) <= _SAME_WORK * (base.flops or 0.0):
            best = min(best, (sum(priced.sent.values()), specs), key=lambda pair: pair[0])
    return best


def partly_sharded(program: Compiled) -> Iterator[FindingRecord]:
    """A sharded argument that could be sharded over another axis without more communication."""
    planner, base = planned_base(program)
    if planner is None or base is None or program.record.inputs is None or program.record.mesh is None:
        return
    sizes = {axis.name: axis.size for axis in program.record.mesh.axes if axis.size > 1}
    total = sum(leaf.bytes_per_device for leaf in program.record.inputs.leaves)
    before = sum(base.sent.values())
    for at, group in enumerate(planner.groups[:_TRIED]):
        if program.is_late:
            return
        leaves = [program.record.inputs.leaves[i] for i in group.leaves]
        leaf, held_bytes = leaves[0], sum(member.bytes_per_device for member in leaves)
        choice = best_spec(leaf, sizes)
        if (
            choice is None
            or not any(leaf.spec)
            or leaf.replication <= 1
            or held_bytes < max(_LARGE * total, _LARGE_BYTES)
        ):
            continue
        axis, spec = choice
        tried = plan_with(planner, (*base.specs[:at], spec, *base.specs[at + 1 :]))
        if tried is None or sum(tried.sent.values()) > before or (tried.seconds or 0.0) > (base.seconds or 0.0):
            continue
        yield FindingRecord(
            rule="partly sharded array",
            what=f"{named(leaves)} stored in parts of {bytes_text(leaf.bytes_per_device)}, each on "
            f"{leaf.replication} devices.",
            why=f"The spec `{spec_text(leaf.spec)}` omits `{axis}`. According to the plan, adding this axis does not "
            "increase the bytes sent.",
            change=f"Shard {all_of(leaves)} over `{axis}` as well, as `{spec_text(spec)}`.",
            evidence=(
                f"{share_text(held_bytes / total, 0)} of one device's argument bytes",
                planned_bytes(program, before, sum(tried.sent.values())),
            ),
            weight=0.5 * held_bytes / total,
            specs={member.path: spec for member in leaves},
            leaves=tuple(member.path for member in leaves),
            axes=(axis,),
            size_bytes=float(held_bytes),
        )


def costly_constraint(program: Compiled) -> Iterator[FindingRecord]:
    """A sharding constraint that causes a large amount of communication."""
    planner, base = planned_base(program)
    propagation = program.record.propagation
    if planner is None or base is None or propagation is None:
        return
    values = [value for value in propagation.values if value.operation == "sharding_constraint"]
    constraints: dict[Any, list[int]] = {}  # a derivative repeats the constraints of its function on the same line
    for number, value in enumerate(values):
        constraints.setdefault(number if value.source is None else (value.source.file, value.source.line), []).append(
            number
        )
    planned = sum(base.sent.values())
    if max(planned, program.sent_bytes) < _SMALL_BYTES:
        return
    for numbers in list(constraints.values())[:_TRIED]:
        if program.is_late:
            return
        value = values[numbers[0]]
        without = plan_with(planner, base.specs, without=tuple(numbers))
        before, after = planned, planned if without is None else sum(without.sent.values())
        slower = without is None or (without.seconds or 0.0) > (base.seconds or 0.0)
        evidence = planned_bytes(program, before, after)
        # The plan leaves out a constraint that the next value undoes.
        if not slower and (planned < _SMALL_BYTES or after > _LESS * planned):
            operands = {operand for number in numbers for operand in values[number].operands}
            reasons = [(why, c) for why, c in explained(program) if why.reason == "constraint"]
            here = [c for why, c in reasons if operands.intersection(operand.value for operand in why.operands)]
            before, saved = program.sent_bytes, sum(collective.sent_bytes for collective in here)
            after = before - saved
            evidence = f"one device sends {bytes_text(saved)} of {bytes_text(before)} for this constraint"
        if after >= _LESS * before or slower:
            continue
        sources: tuple[SourceLine, ...] = () if value.source is None else (value.source,)
        yield FindingRecord(
            rule="costly constraint",
            what=f"The constraint `{spec_text(value.spec)}` on a value with shape {list(value.shape)} makes the "
            "program send more bytes.",
            why="The value is computed in one sharding, but the constraint requests another sharding, so devices "
            "exchange the value.",
            change="Remove the constraint, or request the sharding in which the value is computed.",
            evidence=(evidence, f"{value.name}: {value.op_name}"),
            weight=_weight(before, after),
            sources=sources,
            axes=tuple(axis for axes in value.spec for axis in axes),
            size_bytes=before - after,
            gain=estimated(
                "bytes sent",
                before,
                after,
                "without the constraint; not compiled, because the constraint is inside the program",
            ),
        )


def _state(program: Compiled, planner: SearchProgram) -> set[str]:
    """The arguments that the results of a training step replace; empty if they make up less than half of all bytes."""
    outputs = program.record.outputs
    results = set() if outputs is None else {(tuple(leaf.shape), leaf.dtype) for leaf in outputs.leaves}
    groups = [group for group in planner.groups if group.outputs or (tuple(group.shape), group.dtype) in results]
    total = sum(group.size_bytes for group in planner.groups)
    return {group.pattern for group in groups} if 2 * sum(group.size_bytes for group in groups) > total else set()


def _weight(before: float, after: float) -> float:
    """Weight of a finding, in the upper half of the scale so that causes rank before the collectives they cause."""
    return 0.5 + 0.5 * (1 - after / before)
