"""Rules about operations that the partitioner handles badly, so that the program must be changed."""

import math
from collections.abc import Iterator

from workbench.advice._collectives import evidence_of, is_runtime_shift, share
from workbench.advice._module import Compiled, estimated, explained, less_sent
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
    for why, collective in explained(program):
        if why.reason != "unsplit operation" or not why.operation:
            continue  # the operand of a callback is not gathered
        yield FindingRecord(
            rule="operation that is not split",
            what=f"Every device gathers the operand of `{why.operation.removeprefix('chlo.')}` and computes the full "
            "result.",
            why=why.sentence,
            change=why.advice,
            evidence=evidence_of(collective),
            weight=share(program, collective.sent_bytes),
            instructions=(collective.name,),
            sources=collective.sources or (() if why.source is None else (why.source,)),
            gain=less_sent(program, collective.sent_bytes, "without this exchange"),
        )


def exchanged_counters(program: Compiled) -> Iterator[FindingRecord]:
    """Random numbers whose counters span all rows, so that devices must exchange parts of the counters."""
    propagation = program.record.propagation
    if propagation is None:
        return
    counters = {_scope(v.op_name) for v in propagation.values if v.operation == "iota" and v.dtype == "ui32"}
    rounds = {_scope(v.op_name) for v in propagation.values if v.operation == "while" and v.dtype == "ui32"}
    rounds |= {_scope(scope) for scope in rounds}  # the names of the rounds contain an extra part: empty, or the caller
    collectives = [
        collective
        for collective in program.module.collectives
        if any(
            _scope(name) in counters & rounds and name.rpartition("/")[2] in _COUNTER_STEPS
            for name in collective.op_names
        )
    ]
    if not collectives:
        return
    total = sum(collective.sent_bytes for collective in collectives)
    kinds = ", ".join(dict.fromkeys(collective.kind for collective in collectives))
    yield FindingRecord(
        rule="random numbers that are exchanged",
        what=f"Devices exchange {bytes_text(total)} to draw random numbers: {len(collectives)} collectives ({kinds}).",
        why="JAX's older generator draws the numbers of all rows as one list: it splits this list into halves and "
        "concatenates the two results, although the rows are on different devices.",
        change="Use the generator whose bits depend only on their position. This generator has been JAX's default "
        "since 0.5. From the same key, the two generators draw different numbers.",
        code='jax.config.update("jax_threefry_partitionable", True)',
        evidence=tuple(evidence_of(collective)[0] for collective in collectives[:4]),
        weight=share(program, total),
        instructions=tuple(collective.name for collective in collectives),
        sources=next((collective.sources for collective in collectives if collective.sources), ()),
        gain=less_sent(program, total, "without these exchanges"),
    )


def runtime_shift(program: Compiled) -> Iterator[FindingRecord]:
    """A roll by a distance known only at run time, so that every device must receive the whole array."""
    for collective in program.module.collectives:
        if not is_runtime_shift(program, collective):
            continue
        yield FindingRecord(
            rule="shift known only at run time",
            what=f"`jnp.roll` moves a sharded dimension by a distance that is an array: the {collective.kind} of "
            f"{bytes_text(collective.payload_bytes)} sends the whole dimension to every device.",
            why="The compiled program must handle any distance. With a static distance, each device sends its "
            "neighbour only the rows that cross a shard boundary (a collective-permute).",
            change="Make the shift static: a Python number, or an argument listed in `static_argnums`, which compiles "
            "the program again for every new distance. For distances that change, write `jax.lax.ppermute` inside "
            "`jax.shard_map`.",
            code="roll = jax.jit(jnp.roll, static_argnums=1)",
            evidence=evidence_of(collective),
            weight=share(program, collective.sent_bytes),
            instructions=(collective.name,),
            sources=collective.sources,
        )


def axis_without_name(program: Compiled) -> Iterator[FindingRecord]:
    """A `shard_map` under `vmap` that omits the mapped dimension's mesh axis, so that values are gathered."""
    propagation = program.record.propagation
    manual = [value for value in (propagation.values if propagation else ()) if value.operation == "manual_computation"]
    mapped = {value.op_name for value in manual if "vmap(" in value.op_name}
    collectives = [collective for collective in program.module.collectives if mapped & set(collective.op_names)]
    if not collectives:
        return
    total = sum(collective.sent_bytes for collective in collectives)
    axes = tuple(dict.fromkeys(axis for collective in collectives for axis in collective.axes))
    shown = " and ".join(f"`{axis}`" for axis in axes)
    name = f'"{axes[0]}"' if len(axes) == 1 else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"
    yield FindingRecord(
        rule="mapped axis that is not named",
        what=f"A `shard_map` inside `jax.vmap` does not name {shown}: its inputs are gathered along {shown}.",
        why=f"The mapped dimension is sharded over {shown}. If the specs of a `shard_map` omit an axis, every "
        "device receives values that are unsharded along that axis.",
        change=f"Name the axis of the mapped dimension, as in `jax.vmap(fn, spmd_axis_name={name})`. Pass every mapped "
        "value to the `shard_map` as an argument: values that its function captures are not sharded over the named "
        "axis.",
        code=f"jax.vmap(fn, spmd_axis_name={name})",
        evidence=tuple(evidence_of(collective)[0] for collective in collectives[:4]),
        weight=share(program, total),
        instructions=tuple(collective.name for collective in collectives),
        sources=next((collective.sources for collective in collectives if collective.sources), ()),
        axes=axes,
        gain=less_sent(program, total, "the change is inside the program"),
    )


def gather_outside_checkpoint(program: Compiled) -> Iterator[FindingRecord]:
    """A gather before a checkpoint's barrier: the gathered copy is kept in memory instead of being gathered again."""
    propagation, memory = program.record.propagation, program.module.memory
    if propagation is None or not memory.peak_bytes:
        return
    values = {value.name: value for value in propagation.values}
    planned = [collective.op_name for collective in propagation.collectives if collective.kind == "all-gather"]
    constraints = [
        value
        for value in propagation.values
        if value.operation == "sharding_constraint"
        and RECOMPUTED in value.op_name
        and any(_axes(operand) - _axes(value) for operand in _given(value, values))
    ]
    gathers = []
    for name in dict.fromkeys(value.op_name for value in constraints):
        gathers += [value for value in constraints if value.op_name == name][planned.count(name) :]
    sizes = {c.shape: c.size_bytes for c in propagation.collectives if c.kind == "all-gather"}
    total = sum(sizes.get(gather.shape, 0) // _shards(gather, program) for gather in gathers)
    if not total:
        return
    example = gathers[0]
    yield FindingRecord(
        rule="gather before the checkpoint",
        what=f"{len(gathers)} gathered {'copies' if len(gathers) > 1 else 'copy'} of shape {list(example.shape)} "
        f"({bytes_text(total)} together) {'are' if len(gathers) > 1 else 'is'} kept for the backward pass, although "
        "`jax.checkpoint` should repeat the gather.",
        why="The constraint requests the gather, but only the compiler inserts it. `jax.checkpoint` sees the traced "
        "program, which has no gather, so the gathered copies are kept.",
        change="Write the gather into the program: `jax.lax.all_gather` inside `jax.shard_map`, called in the "
        "checkpointed function. The checkpoint's policy then covers the gather.",
        code="jax.shard_map(lambda part: jax.lax.all_gather(part, axis, axis=dim, tiled=True), …)",
        evidence=(
            f"peak: {bytes_text(memory.peak_bytes)}",
            f"{len(constraints)} constraints of the recomputation request a gather, but only "
            f"{len(constraints) - len(gathers)} of these gathers are planned in the recomputation",
        ),
        weight=0.5 + 0.5 * min(1.0, total / memory.peak_bytes),
        size_bytes=float(total),
        sources=tuple(dict.fromkeys(gather.source for gather in gathers if gather.source is not None)),
        gain=estimated(
            "peak bytes",
            float(memory.peak_bytes),
            float(max(memory.peak_bytes - total, 0)),
            "without these copies; the gathers are repeated in the backward pass",
        ),
    )


def _given(value: PlannedValueRecord, values: dict[str, PlannedValueRecord]) -> list[PlannedValueRecord]:
    """The operand of a constraint, traced back through the barrier of a checkpoint."""
    operands = [values[name] for name in value.operands if name in values]
    return [operand for operand in operands if operand.operation == "optimization_barrier"]


def _axes(value: PlannedValueRecord) -> set[str]:
    return {axis for axes in value.spec for axis in axes}


def _shards(value: PlannedValueRecord, program: Compiled) -> int:
    mesh = program.record.mesh
    sizes = {} if mesh is None else {axis.name: axis.size for axis in mesh.axes}
    return math.prod(sizes.get(axis, 1) for axis in _axes(value))
