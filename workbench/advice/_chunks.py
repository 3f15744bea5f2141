"""A rule about clients that a device computes together."""

from collections.abc import Iterator

from workbench.advice._module import Compiled
from workbench.advice._verify import compared
from workbench.errors import WorkbenchError
from workbench.records import FindingRecord, GainRecord, ProgramRecord
from workbench.render import bytes_text

_WORTH = 0.2  # of the peak


def chunk_size(program: Compiled) -> Iterator[FindingRecord]:
    """More clients computed together than pay: another chunk size, compiled, takes clearly less memory."""
    plan, memory = program.record.plan, program.module.memory
    clients = [stage for stage in plan.walk() if stage.kind == "clients"]
    if program.recompile is None or not clients or not memory.peak_bytes:
        return
    # "auto" weighs memory against starting operations anew; below its choice only a program that does not fit should go
    tried = [] if program.chunk_size == "auto" or callable(program.chunk_size) else ["auto"]
    tried += [1] if memory.fits is False else []
    best: tuple[int, ProgramRecord] | None = None
    for chunk in tried:
        try:
            after = program.recompile(chunk_size=chunk)
        except (WorkbenchError, ValueError, TypeError, RuntimeError):
            continue
        taken = after.plan.chunk_size
        peak = None if after.module is None else after.module.memory.peak_bytes
        if taken is None or peak is None or peak > (1 - _WORTH) * memory.peak_bytes:
            continue
        best = taken, after
        if after.module is not None and after.module.memory.fits is not False:
            break
    if best is None:
        return
    chunk, after = best
    rows = compared(program, after)
    gain = next(row for row in rows if row.quantity == "peak bytes")
    now = "all clients of a device" if program.chunk_size is None else f"chunks of {plan.chunk_size} clients"
    yield FindingRecord(
        rule="chunk size",
        what=f"With {now} computed together the program takes {bytes_text(gain.before)}; with {chunk} it takes "
        f"{bytes_text(gain.after)}.",
        why="What a client keeps for its gradient is in memory once for every client that is computed with it.",
        change=f"Compile with `wb.jit({program.record.name}, chunk_size={chunk})`"
        + (', or leave `chunk_size="auto"`, which chooses the same.' if tried[0] == "auto" else "."),
        code=f"{program.record.name} = wb.jit({program.record.name}, chunk_size={chunk})",
        evidence=(
            f"{max(stage.clients for stage in clients)} clients in {len(clients)} stages",
            f"peak of memory {bytes_text(gain.before)} before, {bytes_text(gain.after)} after",
        ),
        weight=gain.saved_share,
        gain=GainRecord(
            quantity="peak bytes", before=gain.before, after=gain.after, verified=True, how=f"compiled with {chunk}"
        ),
        compared=rows,
    )
