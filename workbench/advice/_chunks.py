"""Rules about chunk sizes that are too large or too small."""

from collections.abc import Iterator

from workbench.advice._module import Compiled
from workbench.advice._verify import compared
from workbench.errors import WorkbenchError
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.compiled import ProgramRecord
from workbench.render.units import bytes_text

_WORTH = 0.2  # of the peak
_FEWER = 0.5  # larger chunks must save at least this share of the started instructions


def chunk_size(program: Compiled) -> Iterator[FindingRecord]:
    """A chunk size that is too large: another compiled chunk size needs much less memory."""
    plan, memory = program.record.plan, program.module.memory
    clients = [stage for stage in plan.walk() if stage.kind == "clients"]
    if program.recompile is None or not clients or not memory.peak_bytes:
        return
    # "auto" balances memory against the cost of starting operations; try smaller sizes only if the program does not fit
    tried = [] if program.chunk_size == "auto" or callable(program.chunk_size) else ["auto"]
    tried += [1] if memory.fits is False else []
    best: tuple[int, ProgramRecord] | None = None
    for chunk in tried:
        try:
            after = program.recompile(chunk_size=chunk)
        except (WorkbenchError, ValueError, TypeError, RuntimeError):
            continue
        size = after.plan.chunk_size
        peak = None if after.module is None else after.module.memory.peak_bytes
        if size is None or peak is None or peak > (1 - _WORTH) * memory.peak_bytes:
            continue
        best = size, after
        if after.module is not None and after.module.memory.fits is not False:
            break
    if best is None:
        return
    chunk, after = best
    rows = compared(program, after)
    gain = next(row for row in rows if row.quantity == "peak bytes")
    one, several = "all clients of a device processed together", f"chunks of {plan.chunk_size} clients"
    now = one if program.chunk_size is None else several
    yield FindingRecord(
        rule="chunk size",
        what=f"With {now}, the program needs {bytes_text(gain.before)}; with chunks of {chunk}, "
        f"{bytes_text(gain.after)}.",
        why="Values that are kept for the gradient are stored once for each client in the chunk.",
        change=f"Compile with `wb.jit({program.record.name}, chunk_size={chunk})`"
        + (', or keep `chunk_size="auto"`, which selects the same size.' if tried[0] == "auto" else "."),
        code=f"{program.record.name} = wb.jit({program.record.name}, chunk_size={chunk})",
        evidence=(
            f"{max(stage.clients for stage in clients)} clients in {len(clients)} stages",
            f"peak memory {bytes_text(gain.before)} before, {bytes_text(gain.after)} after",
        ),
        weight=gain.saved_share,
        gain=GainRecord(
            quantity="peak bytes", before=gain.before, after=gain.after, verified=True, how=f"compiled with {chunk}"
        ),
        compared=rows,
    )


def small_chunks(program: Compiled) -> Iterator[FindingRecord]:
    """A chunk size that is too small: a larger compiled chunk size launches far fewer instructions."""
    plan, memory = program.record.plan, program.module.memory
    clients = [stage for stage in plan.walk() if stage.kind == "clients"]
    if program.recompile is None or not clients or not isinstance(program.chunk_size, int) or not plan.chunk_size:
        return
    try:
        after = program.recompile(chunk_size="auto")
    except (WorkbenchError, ValueError, TypeError, RuntimeError):
        return
    chunk = after.plan.chunk_size
    if after.module is None or after.module.memory.fits is False or chunk is None or chunk <= plan.chunk_size:
        return
    before, now = program.started, Compiled(after, after.module).started
    if before is None or now is None or now > _FEWER * before:
        return
    peak, then = memory.peak_bytes or 0, after.module.memory.peak_bytes or 0
    yield FindingRecord(
        rule="small chunks",
        what=f"With chunks of {plan.chunk_size} clients, a device starts {before:,.0f} instructions per call; with "
        f"chunks of {chunk}, it starts {now:,.0f}.",
        why="Every chunk starts the client's instructions again, and a client this small does not keep a device busy.",
        change=f'Compile with `wb.jit({program.record.name}, chunk_size={chunk})`, or keep `chunk_size="auto"`, '
        "which selects the same size.",
        code=f"{program.record.name} = wb.jit({program.record.name}, chunk_size={chunk})",
        evidence=(
            f"{max(stage.clients for stage in clients)} clients in {len(clients)} stages",
            f"peak memory {bytes_text(peak)} before, {bytes_text(then)} after",
        ),
        weight=0.5 * (1 - now / before),
        gain=GainRecord(
            quantity="instructions started", before=before, after=now, verified=True, how=f"compiled with {chunk}"
        ),
        compared=compared(program, after),
    )
