"""Rules about collectives that are unnecessary, too large, or too frequent."""

import re
from collections.abc import Iterator

from workbench.advice._module import Compiled, dtype_of, explained, less_sent
from workbench.advice._search._stand_in import promoted_sums
from workbench.records.advice import FindingRecord
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.sharding import CollectiveKind
from workbench.render.units import bytes_text, spec_text

_HALVED = {"bf16", "f16"}
_REARRANGED = {"bitcast", "copy", "reshape", "transpose"}
_SMALL_BYTES = 1 << 12
_RUNTIME_SHIFT = "_roll_dynamic"  # JAX's name for `jnp.roll` with an array as the shift
_PARAMETER = re.compile(r" parameter\((\d+)\)")


def gathered_for_one_use(program: Compiled) -> Iterator[FindingRecord]:
    """An argument that is stored sharded, but fully gathered in every call and used once."""
    inputs, outputs = program.record.inputs, program.record.outputs
    if inputs is None:
        return
    # not the state of a training step, because gathering it in every step is intended to save memory between steps
    state = set() if outputs is None else {(leaf.shape, leaf.dtype) for leaf in outputs.leaves}
    arguments = sum(_PARAMETER.search(line) is not None for line in program.entry_lines)
    if arguments != len(inputs.leaves):  # unused arguments were removed, so there is no mapping
        return
    for collective in program.module.collectives:
        instruction = program.by_name.get(collective.name)
        if collective.kind != "all-gather" or instruction is None or (collective.executions or 2) > 1:
            continue
        origins = [o for operand in instruction.operands for o in program.sources_of(operand)]
        numbers = {int(match[1]) for o in origins if (match := _PARAMETER.search(program.lines.get(o.name, "")))}
        leaf = inputs.leaves[numbers.pop()] if len(numbers) == 1 else None
        users = program.real_users(collective.name)
        saved = collective.sent_bytes
        if leaf is None or len(users) != 1 or (leaf.shape, leaf.dtype) in state or saved < _SMALL_BYTES:
            continue
        reason = next((why for why, other in explained(program) if other.name == collective.name), None)
        if reason is not None and reason.reason == "unsplit operation":  # has a rule of its own
            continue
        spec = tuple(tuple(axis for axis in axes if axis not in collective.axes) for axes in leaf.spec)
        count = collective.group_size
        more = bytes_text(leaf.bytes_per_device * (count - 1))
        is_other = reason is not None and reason.reason == "disagreement"
        yield FindingRecord(
            rule="argument gathered for one use",
            what=f"`{leaf.path}` is stored in {count} shards, fully gathered in every call "
            f"({bytes_text(leaf.bytes_per_device * count)}), and used once.",
            why=f"The argument and the other operand are sharded over {' and '.join(collective.axes)} along different "
            "dimensions, so one of the two must be gathered."
            if is_other
            else "The operation that uses the argument needs all of it on each device; the reason was not found."
            if reason is None
            else reason.sentence,
            change=f"Keep the gathered dimension unsharded, as in `{spec_text(spec)}`. Then nothing is gathered, but "
            f"each device holds {more} more."
            + " Or shard the dimension over an axis that the other operand does not use."
            * is_other,
            specs={leaf.path: spec},
            evidence=evidence_of(collective),
            weight=0.5 * share(program, saved),  # costs memory
            instructions=(collective.name, users[0].name),
            leaves=(leaf.path,),
            sources=collective.sources,
            gain=less_sent(program, saved, "without this gather"),
        )


def loop_invariant_gather(program: Compiled) -> Iterator[FindingRecord]:
    """A collective in a loop that has the same operand in every iteration."""
    for collective in program.module.collectives:
        instruction = program.by_name.get(collective.name)
        times = collective.executions or 1.0
        if instruction is None or times <= 1 or not instruction.operands:
            continue
        if not all(program.is_loop_invariant(operand) for operand in instruction.operands):
            continue
        before = collective.sent_bytes
        yield FindingRecord(
            rule="loop-invariant collective",
            what=f"{_name(collective)} runs {times:,.0f} times in a loop, on a value that the loop never changes.",
            why="The value is sharded outside the loop but needed unsharded inside the loop, so the partitioner "
            "gathers the value in every iteration.",
            change="Gather the value once, before the loop: `jax.lax.with_sharding_constraint(value, P())` outside "
            "the scan. "
            "The gathered copy then stays in memory while the loop runs.",
            evidence=evidence_of(collective),
            weight=0.5 + 0.5 * share(program, before * (1 - 1 / times)),  # the cause ranks before its effects
            instructions=(collective.name,),
            sources=collective.sources,
            gain=less_sent(
                program,
                before * (1 - 1 / times),
                "the loop is inside the program, so the change cannot be applied automatically",
            ),
        )


def wide_collective(program: Compiled) -> Iterator[FindingRecord]:
    """A float32 collective whose values are bfloat16 before or after the collective."""
    promoted = promoted_sums(program.module) if program.module.platform == "cpu" else set()
    for collective in program.module.collectives:
        instruction = program.by_name.get(collective.name)
        if instruction is None or not instruction.operands or dtype_of(instruction.shape) != "f32":
            continue
        if collective.name in promoted or collective.sent_bytes < _SMALL_BYTES:
            continue
        origins = [o for operand in instruction.operands for o in program.sources_of(operand)]
        # TPU compilers move the conversion into the collective: a 16-bit operand and a 32-bit result.
        widened = [o for o in origins if dtype_of(o.shape) in _HALVED or _converts_from_half(program, o.name)]
        if not widened and not _is_narrowed(program, collective.name):
            continue
        before = collective.sent_bytes
        yield FindingRecord(
            rule="float32 collective of 16-bit values",
            what=f"{_name(collective)} sends float32 although the values are 16-bit "
            + ("before it." if widened else "right after it."),
            why="The conversion to float32 happens before the exchange instead of after it.",
            change="Exchange 16-bit values where 16-bit precision is sufficient: convert with `.astype(jnp.float32)` "
            "after "
            "the collective. For products, omit `preferred_element_type=jnp.float32`.",
            evidence=evidence_of(collective),
            weight=share(program, before / 2),
            instructions=(collective.name, *(o.name for o in widened)),
            sources=collective.sources,
            gain=less_sent(program, before / 2, "half the bytes per element"),
        )


def _sliced(program: Compiled, kind: CollectiveKind) -> Iterator[tuple[CollectiveRecord, list[str]]]:
    """Collectives of one kind whose results are only sliced, with the names of the slices."""
    for collective in program.module.collectives:
        if collective.kind == kind and is_sliced(program, collective):
            yield collective, [user.name for user in program.real_users(collective.name)]


def is_sliced(program: Compiled, collective: CollectiveRecord) -> bool:
    """Returns whether every device keeps only a slice of a collective's result."""
    users = program.real_users(collective.name)
    return bool(users) and all(user.opcode == "dynamic-slice" or "dynamic-slice" in user.name for user in users)


def reduced_then_sliced(program: Compiled) -> Iterator[FindingRecord]:
    """An all-reduce after which every device keeps only a slice: a reduce-scatter suffices."""
    if program.module.platform == "cpu":
        return
    for collective, slices in _sliced(program, "all-reduce"):
        before = collective.sent_bytes
        yield FindingRecord(
            rule="all-reduce and slice",
            what=f"{_name(collective)} returns the whole sum to every device, but each device keeps only its slice.",
            why="The result is sharded, but the sum is first computed fully replicated. A reduce-scatter would send "
            "half the bytes.",
            change="Constrain the result to its final sharding: `jax.lax.with_sharding_constraint(result, spec)`. In "
            "`jax.shard_map`, write `jax.lax.psum_scatter`.",
            evidence=evidence_of(collective),
            weight=share(program, before / 2),
            instructions=(collective.name, *slices),
            sources=collective.sources,
            gain=less_sent(program, before / 2, "ring formulas for both collectives"),
        )


def gather_and_slice(program: Compiled) -> Iterator[FindingRecord]:
    """An all-gather followed by a slice along another dimension: effectively an all-to-all."""
    for collective, slices in _sliced(program, "all-gather"):
        if is_runtime_shift(program, collective):  # the slice depends on an argument, so this is not an all-to-all
            continue
        saved = collective.sent_bytes * (1 - 1 / max(collective.group_size, 1))
        yield FindingRecord(
            rule="all-gather and slice",
            what=f"{_name(collective)} gathers a whole array, of which each device keeps one slice.",
            why="The array changes from one sharded dimension to another; an all-to-all sends only the elements that "
            "move to another device.",
            change="Write the exchange yourself: `jax.reshard(x, new_spec)` on Explicit axes, or "
            "`jax.lax.all_to_all` inside `jax.shard_map`.",
            evidence=evidence_of(collective),
            weight=share(program, saved),
            instructions=(collective.name, *slices),
            sources=collective.sources,
            gain=less_sent(program, saved, "ring formulas for both collectives"),
        )


def is_runtime_shift(program: Compiled, collective: CollectiveRecord) -> bool:
    """Returns whether a collective's name or its users' names show that it implements a `jnp.roll` by an array."""
    read_by = [program.lines.get(user.name, "") for user in program.real_users(collective.name)]
    return any(_RUNTIME_SHIFT in name for name in (*collective.op_names, *read_by))


def _converts_from_half(program: Compiled, name: str) -> bool:
    instruction = program.by_name[name]
    inside = [instruction]
    if instruction.opcode == "fusion" and instruction.calls:
        roots = [i for i in program.module.instructions if i.computation in instruction.calls]
        inside += [i for i in roots if "ROOT " in program.lines.get(i.name, "")]
    return any(
        i.opcode == "convert"
        and i.operands
        and (operand := program.by_name.get(i.operands[0])) is not None
        and dtype_of(operand.shape) in _HALVED
        for i in inside
    )


def _is_narrowed(program: Compiled, value: str) -> bool:
    """Returns whether all users of a value, including users inside fusions, first convert it to 16 bits."""
    waiting, is_found = [value], False
    while waiting:
        name = waiting.pop()
        users = program.users.get(name, ())
        if not users:
            return False
        for user in users:
            if user.opcode == "fusion":
                waiting += _inside(program, user, name)
            elif user.opcode in _REARRANGED:
                waiting.append(user.name)
            elif user.opcode == "convert" and dtype_of(user.shape) in _HALVED:
                is_found = True
            else:
                return False
    return is_found


def _inside(program: Compiled, fusion: InstructionRecord, operand: str) -> list[str]:
    """The parameters through which a fusion receives an operand."""
    places = {f" parameter({at})" for at, name in enumerate(fusion.operands) if name == operand}
    inside = [i.name for i in program.module.instructions if i.computation in fusion.calls and i.opcode == "parameter"]
    return [name for name in inside if any(place in program.lines.get(name, "") for place in places)]


def _name(collective: CollectiveRecord) -> str:
    axes = " and ".join(collective.axes) or "a group that is not a mesh axis"
    return f"The {collective.kind} of {bytes_text(collective.payload_bytes)} over {axes}"


def evidence_of(collective: CollectiveRecord) -> tuple[str, ...]:
    """A collective with its axes, executions, bytes and source lines."""
    lines = [f"{source.function} line {source.line}" for source in collective.sources[:3]]
    count = (
        "an unknown number of executions"
        if collective.executions is None
        else f"{collective.executions:,.0f} executions"
    )
    times = "1 execution" if collective.executions == 1 else count
    return (
        f"{collective.name}: {collective.kind} over {'+'.join(collective.axes) or 'unknown axes'}, {times}, "
        f"one device sends {bytes_text(collective.sent_bytes)}",
        *lines,
    )


def share(program: Compiled, saved: float) -> float:
    """The saved bytes as a share of all bytes sent, from 0 to 1."""
    return min(1.0, saved / program.sent_bytes) if program.sent_bytes else 0.0
