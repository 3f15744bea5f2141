"""Rules about loops and small operations: small bodies, unrolled layers, many small instructions."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from workbench.advice._module import CALLING, WORKLESS, Compiled
from workbench.records.advice import FindingRecord
from workbench.records.compiled import InstructionRecord
from workbench.records.program import SourceLine
from workbench.render.units import bytes_text, flops_text

_SMALL_BYTES = 1 << 15  # bytes read and written by one instruction, or by one iteration
_SMALL_FLOPS = 1e6
_MANY_ITERATIONS = 64
_MANY_INSTRUCTIONS = 500
_MANY_COPIES = 8
_FRAME = re.compile(r"stack_frame_id=(\d+)")


def small_loop_body(program: Compiled) -> Iterator[FindingRecord]:
    """A loop of many small iterations, which could be unrolled or batched."""
    bodies: dict[str, list[InstructionRecord]] = defaultdict(list)
    for each in program.module.instructions:
        if not each.fused and each.opcode not in WORKLESS:
            bodies[each.computation].append(each)
    # the figures for a computation exclude its callees
    nested = {each.computation for each in program.module.instructions if each.opcode in CALLING}
    all_executions = sum(each.executions or 0.0 for inside in bodies.values() for each in inside)
    for loop in program.module.instructions:
        if loop.opcode != "while" or not loop.executions:
            continue
        # a `while` calls its condition and its body; the body runs less often
        inner = [bodies[name] for name in loop.calls if bodies.get(name)]
        body = min(inner, key=lambda inside: inside[0].executions or 0.0, default=[])
        if not body or body[0].executions is None or body[0].computation in nested:
            continue
        iterations = body[0].executions / loop.executions
        moved, flops = sum(each.accessed_bytes for each in body), sum(each.flops for each in body)
        if iterations < _MANY_ITERATIONS or moved > _SMALL_BYTES or flops > _SMALL_FLOPS:
            continue
        source = loop.source or body[0].source
        place = "" if source is None else f" at {source.file}:{source.line}"
        yield FindingRecord(
            rule="small loop body",
            what=f"Each of the {iterations:,.0f} iterations of the loop{place} moves only {bytes_text(moved)}.",
            why=f"An iteration is {len(body)} instruction{'s' * (len(body) != 1)}, started one after the other, and "
            "the next iteration waits for the last.",
            change="Do several steps per iteration: `jax.lax.scan(..., unroll=8)`. If iterations do not depend on each "
            "other, use `jax.vmap` or `jax.lax.map(..., batch_size=…)` instead of the loop.",
            evidence=(
                f"{loop.name}: {iterations:,.0f} iterations, {len(body)} instructions each",
                f"one iteration moves {bytes_text(moved)} and computes {flops_text(flops)} of matrix products",
            ),
            weight=0.5 * sum(each.executions or 0.0 for each in body) / max(all_executions, 1.0),
            instructions=(loop.name,),
            sources=() if source is None else (source,),
        )


def unrolled_layers(program: Compiled) -> Iterator[FindingRecord]:
    """The same matrix product repeated many times: identical layers that could be one scan."""
    # Copies of one layer share the whole call stack. Products of a library's attention on one user line do not, except
    # in the backward pass, where XLA records only the line of the gradient.
    copies: dict[tuple[str, str, SourceLine, str], list[InstructionRecord]] = defaultdict(list)
    products = [each for each in program.module.instructions if each.opcode in ("dot", "convolution")]
    for each in products:
        if each.source is not None and each.executions == 1 and "transpose(" not in each.op_name:
            frame = _FRAME.search(program.lines.get(each.name, ""))
            copies[each.opcode, each.shape, each.source, frame.group(1) if frame else ""].append(each)
    if not copies:
        return
    (opcode, shape, source, _), same = max(copies.items(), key=lambda item: len(item[1]))
    if len(same) < _MANY_COPIES:
        return
    yield FindingRecord(
        rule="layers written out",
        what=f"The {opcode} at {source.file}:{source.line} is compiled {len(same)} times, with the same shapes.",
        why="A Python loop over layers is unrolled by tracing, so every layer is compiled separately.",
        change="Stack the layers' parameters and scan over them (`jax.lax.scan`, `nnx.scan`, linen's `nn.scan`): "
        "one layer is compiled. It changes the time to compile, not the work of a step.",
        evidence=(
            f"{len(same)} instructions {opcode} of shape {shape.partition('{')[0]}",
            f"{len(program.module.instructions):,} instructions in the module",
        ),
        weight=min(0.1, 0.1 * len(same) / max(len(products), 1)),  # concerns only compilation, so it ranks low
        instructions=tuple(each.name for each in same[:8]),
        sources=(source,),
    )


def many_small_instructions(program: Compiled) -> Iterator[FindingRecord]:
    """Hundreds of small instructions outside loops, which may take longer to start than to execute."""
    worked = [
        each
        for each in program.module.instructions
        if not each.fused and each.opcode not in WORKLESS and each.executions == 1
    ]
    small = [each for each in worked if each.accessed_bytes <= _SMALL_BYTES and each.flops <= _SMALL_FLOPS]
    if len(small) < _MANY_INSTRUCTIONS or len(small) < 0.8 * len(worked):
        return
    lines = Counter(each.source for each in small if each.source is not None)
    sources = tuple(source for source, _ in lines.most_common(3))
    moved, everything = sum(each.accessed_bytes for each in small), program.module.accessed_bytes or 0.0
    yield FindingRecord(
        rule="many small instructions",
        what=f"{len(small):,} of {len(worked):,} instructions move at most {bytes_text(_SMALL_BYTES)} each.",
        why="Each is started on its own (on a GPU, as a kernel); work this small does not fill a device.",
        change="Stack arrays of the same shape and process them together (`jax.vmap` over a stacked tree; "
        "`optax.flatten` around an optimizer), or make the batch larger.",
        evidence=(
            f"together they move {bytes_text(moved)} of {bytes_text(everything)}",
            *(f"{count} at {source.file}:{source.line}" for source, count in lines.most_common(3)),
        ),
        weight=0.4 * len(small) / len(worked),
        instructions=tuple(each.name for each in small[:8]),
        sources=sources,
    )
