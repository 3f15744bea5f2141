"""Rules about loops and small operations: small bodies, unrolled layers, and many small instructions."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from workbench.advice._module import CALLING, WORKLESS, Compiled
from workbench.records.advice import FindingRecord
from workbench.records.compiled import InstructionRecord
from workbench.records.program import SourceLine
from workbench.render.units import bytes_text, flops_text, line_text

_SMALL_BYTES = 1 << 15  # bytes read and written by one instruction, or by one iteration
_SMALL_FLOPS = 1e6
_MANY_ITERATIONS = 64
_MANY_INSTRUCTIONS = 500
_MANY_COPIES = 8
_FRAME = re.compile(r"stack_frame_id=(\d+)")


def small_loop_body(program: Compiled) -> Iterator[FindingRecord]:
    """A loop of many small iterations, which could be unrolled or batched."""
    bodies: dict[str, list[InstructionRecord]] = defaultdict(list)
    for instruction in program.module.instructions:
        if not instruction.fused and instruction.opcode not in WORKLESS:
            bodies[instruction.computation].append(instruction)
    # the figures for a computation exclude its callees
    nested = {instruction.computation for instruction in program.module.instructions if instruction.opcode in CALLING}
    all_executions = sum(i.executions or 0.0 for inside in bodies.values() for i in inside)
    for loop in program.module.instructions:
        if loop.opcode != "while" or not loop.executions:
            continue
        # a `while` calls its condition and its body; the body runs less often
        inner = [bodies[name] for name in loop.calls if bodies.get(name)]
        body = min(inner, key=lambda inside: inside[0].executions or 0.0, default=[])
        if not body or body[0].executions is None or body[0].computation in nested:
            continue
        iterations = body[0].executions / loop.executions
        moved, flops = sum(i.accessed_bytes for i in body), sum(i.flops for i in body)
        if iterations < _MANY_ITERATIONS or moved > _SMALL_BYTES or flops > _SMALL_FLOPS:
            continue
        source = loop.source or body[0].source
        place = "" if source is None else f" at {line_text(source)}"
        yield FindingRecord(
            rule="small loop body",
            what=f"Each of the {iterations:,.0f} iterations of the loop{place} moves only {bytes_text(moved)}.",
            why=f"The {len(body)} instruction{'s' * (len(body) != 1)} of an iteration start one after the other, and "
            "an iteration starts only when the previous iteration has finished.",
            change="Run several steps per iteration: `jax.lax.scan(..., unroll=8)`. If iterations do not depend on "
            "each other, use `jax.vmap` or `jax.lax.map(..., batch_size=…)` instead of the loop.",
            evidence=(
                f"{loop.name}: {iterations:,.0f} iterations, {len(body)} instructions each",
                f"one iteration moves {bytes_text(moved)} and computes {flops_text(flops)} of matrix products",
            ),
            weight=0.5 * sum(instruction.executions or 0.0 for instruction in body) / max(all_executions, 1.0),
            instructions=(loop.name,),
            sources=() if source is None else (source,),
        )


def unrolled_layers(program: Compiled) -> Iterator[FindingRecord]:
    """The same matrix product repeated many times: identical layers that could be one scan."""
    # Copies of one layer share the whole call stack. Products of a library's attention on one user line do not, except
    # in the backward pass, where XLA records only the line of the gradient.
    copies: dict[tuple[str, str, SourceLine, str], list[InstructionRecord]] = defaultdict(list)
    products = [i for i in program.module.instructions if i.opcode in ("dot", "convolution")]
    for product in products:
        if product.source is not None and product.executions == 1 and "transpose(" not in product.op_name:
            frame = _FRAME.search(program.lines.get(product.name, ""))
            copies[product.opcode, product.shape, product.source, frame.group(1) if frame else ""].append(product)
    if not copies:
        return
    (opcode, shape, source, _), group = max(copies.items(), key=lambda item: len(item[1]))
    if len(group) < _MANY_COPIES:
        return
    yield FindingRecord(
        rule="layers written out",
        what=f"The {opcode} at {line_text(source)} is compiled {len(group)} times, with the same shapes.",
        why="A Python loop over layers is unrolled by tracing, so every layer is compiled separately.",
        change="Stack the layers' parameters and scan over them (`jax.lax.scan`, `nnx.scan`, linen's `nn.scan`): "
        "one layer is compiled. A scan reduces the compile time, not the work of a step.",
        evidence=(
            f"{len(group)} {opcode} instructions of shape {shape.partition('{')[0]}",
            f"{len(program.module.instructions):,} instructions in the module",
        ),
        weight=min(0.1, 0.1 * len(group) / max(len(products), 1)),  # concerns only compilation, so it ranks low
        instructions=tuple(instruction.name for instruction in group[:8]),
        sources=(source,),
    )


def many_small_instructions(program: Compiled) -> Iterator[FindingRecord]:
    """Outside loops, hundreds of small instructions that may take longer to start than to execute."""
    worked = [
        instruction
        for instruction in program.module.instructions
        if not instruction.fused and instruction.opcode not in WORKLESS and instruction.executions == 1
    ]
    small = [i for i in worked if i.accessed_bytes <= _SMALL_BYTES and i.flops <= _SMALL_FLOPS]
    if len(small) < _MANY_INSTRUCTIONS or len(small) < 0.8 * len(worked):
        return
    lines = Counter(instruction.source for instruction in small if instruction.source is not None)
    sources = tuple(source for source, _ in lines.most_common(3))
    moved, everything = sum(instruction.accessed_bytes for instruction in small), program.module.accessed_bytes or 0.0
    yield FindingRecord(
        rule="many small instructions",
        what=f"{len(small):,} of {len(worked):,} instructions move at most {bytes_text(_SMALL_BYTES)} each.",
        why="Each instruction is started separately (on a GPU, as a kernel), and such small instructions do not keep "
        "a device busy.",
        change="Stack arrays of the same shape and process them together (`jax.vmap` over a stacked tree; "
        "`optax.flatten` around an optimizer), or make the batch larger.",
        evidence=(
            f"together they move {bytes_text(moved)} of {bytes_text(everything)}",
            *(f"{count} at {line_text(source)}" for source, count in lines.most_common(3)),
        ),
        weight=0.4 * len(small) / len(worked),
        instructions=tuple(instruction.name for instruction in small[:8]),
        sources=sources,
    )
