"""Rules about operations that the partitioner handles badly, so that the program must be changed."""

import math
from collections.abc import Iterator

from workbench.advice._collectives import evidence_of, is_runtime_shift, share
from workbench.advice._module import Compiled, estimated, explained, sent
from workbench.advice._rewrite import RECOMPUTED
from workbench.records.advice import FindingRecord
from workbench.records.sharding import PlannedValueRecord
from workbench.render.units import bytes_text

# Steps of JAX's older generator: number all rows, split the list into halves, mix the halves and join the results.
_COUNTER_STEPS = ("iota", "slice", "split", "while", "concatenate")


def _scope(op_name: str) -> str:
    """The name of the function that contains an operation."""
    return op_name.rpartition("/")[0].rstrip("/")


def unsplit_operation(program: Compiled) -> Iterator[FindingRecord]:
    """An operation that the partitioner cannot split: every device gathers its operand and computes the full result."""
    for why, each in explained(program):
        if why.reason != "unsplit operation" or not why.operation:
            continue  # the operand of a callback is not gathered
        yield FindingRecord(
            rule="operation that is not split",
            what=f"Every device gathers the operand of `{why.operation.removeprefix('chlo.')}` and computes the full "
            "result.",
            why=why.sentence,
            change=why.advice,
            evidence=evidence_of(each),
            weight=share(program, sent(each)),
            instructions=(each.name,),
            sources=each.sources or (() if why.source is None else (why.source,)),
            gain=estimated("bytes sent", sent(each), 0.0, "without this exchange"),
        )


def lost_batch(program: Compiled) -> Iterator[FindingRecord]:
    """Activations that lost the mesh axis of the batch: one constraint keeps the axis."""
    pairs = list(explained(program))
    for cause in program.why.causes:
        found = [each for why, each in pairs if cause.axis in why.axes]
        if not found or cause.source is None:
            continue
        total = sum(map(sent, found))
        place = f"line {cause.source.line} of `{cause.source.function}`"
        yield FindingRecord(
            rule="activations without the batch axis",
            what=f"The batch loses `{cause.axis}` at {place}; {cause.collectives} collectives over the axis "
            "use the result.",
            why=cause.sentence,
            change=cause.advice,
            code=cause.advice.partition("`")[2].rpartition("`")[0],
            evidence=tuple(evidence_of(each)[0] for each in sorted(found, key=sent, reverse=True)[:4]),
            weight=share(program, total),
            instructions=tuple(each.name for each in found),
            axes=(cause.axis,),
            sources=(cause.source,),
            gain=estimated("bytes sent", program.sent_bytes, program.sent_bytes, "not compiled with the constraint"),
        )


def exchanged_counters(program: Compiled) -> Iterator[FindingRecord]:
    """Random numbers whose counters span all rows, so that devices must exchange parts of the counters."""
    known = program.record.propagation
    if known is None:
        return
    counters = {_scope(v.op_name) for v in known.values if v.operation == "iota" and v.dtype == "ui32"}
    rounds = {_scope(v.op_name) for v in known.values if v.operation == "while" and v.dtype == "ui32"}
    rounds |= {_scope(scope) for scope in rounds}  # the names of the rounds contain an extra part: empty, or the caller
    found = [
        collective
        for collective in program.module.collectives
        if any(
            _scope(name) in counters & rounds and name.rpartition("/")[2] in _COUNTER_STEPS
            for name in collective.op_names
        )
    ]
    if not found:
        return
    total = sum(map(sent, found))
    kinds = ", ".join(dict.fromkeys(each.kind for each in found))
    yield FindingRecord(
        rule="random numbers that are exchanged",
        what=f"Devices exchange {bytes_text(total)} to draw random numbers: {len(found)} collectives ({kinds}).",
        why="JAX's older generator numbers all rows in one list, splits this list into halves and joins two results, "
        "although the rows are on different devices.",
        change="Use the generator whose bits depend only on their position. It has been JAX's default since 0.5, but "
        "draws different numbers from the same key.",
        code='jax.config.update("jax_threefry_partitionable", True)',
        evidence=tuple(evidence_of(each)[0] for each in found[:4]),
        weight=share(program, total),
        instructions=tuple(each.name for each in found),
        sources=next((each.sources for each in found if each.sources), ()),
        gain=estimated("bytes sent", total, 0.0, "without these exchanges"),
    )


def runtime_shift(program: Compiled) -> Iterator[FindingRecord]:
    """A roll by a distance known only at run time, for which every device must receive the whole array."""
    for each in program.module.collectives:
        if not is_runtime_shift(program, each):
            continue
        yield FindingRecord(
            rule="shift known only when it runs",
            what=f"`jnp.roll` moves a sharded dimension by a distance that is an array: the {each.kind} of "
            f"{bytes_text(each.payload_bytes)} sends the whole dimension to every device.",
            why="The compiled program must handle any distance. With a static distance, each device sends its "
            "neighbour only the rows that cross (a collective-permute).",
            change="Make the shift static: a Python number, or an argument listed in `static_argnums`, which compiles "
            "the program again for every new distance. For distances that change, write `jax.lax.ppermute` inside "
            "`jax.shard_map`.",
            code="roll = jax.jit(jnp.roll, static_argnums=1)",
            evidence=evidence_of(each),
            weight=share(program, sent(each)),
            instructions=(each.name,),
            sources=each.sources,
        )


def axis_without_name(program: Compiled) -> Iterator[FindingRecord]:
    """A `shard_map` under `vmap` that omits the mapped dimension's mesh axis, so that values are gathered."""
    known = program.record.propagation
    manual = [value for value in (known.values if known else ()) if value.operation == "manual_computation"]
    mapped = {value.op_name for value in manual if "vmap(" in value.op_name}
    found = [each for each in program.module.collectives if mapped & set(each.op_names)]
    if not found:
        return
    total = sum(map(sent, found))
    axes = tuple(dict.fromkeys(axis for each in found for axis in each.axes))
    shown = " and ".join(f"`{axis}`" for axis in axes)
    name = f'"{axes[0]}"' if len(axes) == 1 else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"
    yield FindingRecord(
        rule="mapped axis that is not named",
        what=f"A `shard_map` inside `jax.vmap` does not name {shown}: its inputs are gathered along {shown}.",
        why=f"The mapped dimension is sharded over {shown}. A `shard_map` whose specs leave an axis out receives "
        "values that are unsharded along that axis, on every device.",
        change=f"Name the axis of the mapped dimension, `jax.vmap(fn, spmd_axis_name={name})`, and give the "
        "`shard_map` every mapped value as an argument: a value that its function captures cannot be named.",
        code=f"jax.vmap(fn, spmd_axis_name={name})",
        evidence=tuple(evidence_of(each)[0] for each in found[:4]),
        weight=share(program, total),
        instructions=tuple(each.name for each in found),
        sources=next((each.sources for each in found if each.sources), ()),
        axes=axes,
        gain=estimated("bytes sent", total, 0.0, "the change is inside the program"),
    )


def gather_outside_checkpoint(program: Compiled) -> Iterator[FindingRecord]:
    """A gather that precedes a checkpoint's barrier, so that its copy is kept instead of being gathered again."""
    known, memory = program.record.propagation, program.module.memory
    if known is None or not memory.peak_bytes:
        return
    values = {value.name: value for value in known.values}
    planned = [each.op_name for each in known.collectives if each.kind == "all-gather"]
    wanted = [
        value
        for value in known.values
        if value.operation == "sharding_constraint"
        and RECOMPUTED in value.op_name
        and any(_axes(given) - _axes(value) for given in _given(value, values))
    ]
    kept = []
    for name in dict.fromkeys(value.op_name for value in wanted):
        kept += [value for value in wanted if value.op_name == name][planned.count(name) :]
    sizes = {each.shape: each.size_bytes for each in known.collectives if each.kind == "all-gather"}
    total = sum(sizes.get(each.shape, 0) // _shards(each, program) for each in kept)
    if not total:
        return
    example = kept[0]
    yield FindingRecord(
        rule="gather before the checkpoint",
        what=f"{len(kept)} gathered {'copies' if len(kept) > 1 else 'copy'} of shape {list(example.shape)} "
        f"({bytes_text(total)} together) {'are' if len(kept) > 1 else 'is'} kept for the backward pass, although "
        "`jax.checkpoint` should gather again.",
        why="The constraint requests the gather, but the compiler inserts it before the barrier of the checkpoint's "
        "recomputation, so `jax.checkpoint` does not see it.",
        change="Write the gather into the program: `jax.lax.all_gather` inside `jax.shard_map`, called in the "
        "checkpointed function. The checkpoint's policy then covers the gather.",
        code="jax.shard_map(lambda part: jax.lax.all_gather(part, axis, axis=dim, tiled=True), …)",
        evidence=(
            f"peak: {bytes_text(memory.peak_bytes)}",
            f"{len(wanted)} constraints of the recomputation request a gather, and {len(wanted) - len(kept)} of these "
            "gathers are planned there",
        ),
        weight=0.5 + 0.5 * min(1.0, total / memory.peak_bytes),
        size_bytes=float(total),
        sources=tuple(dict.fromkeys(each.source for each in kept if each.source is not None)),
        gain=estimated(
            "peak bytes",
            float(memory.peak_bytes),
            float(max(memory.peak_bytes - total, 0)),
            "without these copies; the gathers are repeated in the backward pass",
        ),
    )


def _given(value: PlannedValueRecord, values: dict[str, PlannedValueRecord]) -> list[PlannedValueRecord]:
    """The operand of a constraint, traced back through the barrier of a checkpoint."""
    found = [values[name] for name in value.operands if name in values]
    return [each for each in found if each.operation == "optimization_barrier"]


def _axes(value: PlannedValueRecord) -> set[str]:
    return {axis for axes in value.spec for axis in axes}


def _shards(value: PlannedValueRecord, program: Compiled) -> int:
    mesh = program.record.mesh
    sizes = {} if mesh is None else {axis.name: axis.size for axis in mesh.axes}
    return math.prod(sizes.get(axis, 1) for axis in _axes(value))
