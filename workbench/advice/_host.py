"""Rules about the host: callbacks and transfers that block the devices."""

from collections.abc import Iterator

from workbench.advice._module import Compiled
from workbench.records.advice import FindingRecord

_MANY_TRACES = 4
_TARGETS = ("callback", "CallbackTo", "MoveToHost", "MoveToDevice")


def host_in_loop(program: Compiled) -> Iterator[FindingRecord]:
    """A callback or a transfer to the host inside a loop."""
    for instruction in program.module.instructions:
        line = program.lines.get(instruction.name, "")
        talks = instruction.opcode in ("infeed", "outfeed", "send", "recv") or (
            instruction.opcode == "custom-call" and any(target in line for target in _TARGETS)
        )
        if not talks or (instruction.executions or 2) <= 1:
            continue
        times = "an unknown number of" if instruction.executions is None else f"{instruction.executions:,.0f}"
        yield FindingRecord(
            rule="host inside a loop",
            what=f"A loop calls the host {times} times in one call of the program.",
            why="A callback (`jax.debug.print`, `pure_callback`, `io_callback`) makes the devices wait for Python.",
            change="Return the values from the loop (the `ys` of a scan) and inspect them after the loop.",
            evidence=(f"{instruction.name}: {instruction.opcode}",),
            weight=0.6,
            instructions=(instruction.name,),
            sources=() if instruction.source is None else (instruction.source,),
        )


def retraces(program: Compiled) -> Iterator[FindingRecord]:
    """A function that was recompiled many times because shapes or dtypes changed."""
    if program.traces is None or program.traces < _MANY_TRACES:
        return
    yield FindingRecord(
        rule="retraces",
        what=f"`{program.record.name}` was compiled {program.traces} times in this process.",
        why="Every new shape, dtype, weak type or static argument compiles the function again.",
        change="Pad arrays to a few fixed shapes, and pass numbers as arrays of one dtype. "
        "`with wb.watch_compilations():` around a few calls reports which argument changed.",
        evidence=(f"the cache of the compiled function has {program.traces} entries",),
        weight=min(0.5, 0.05 * program.traces),
    )
