"""The rule about sums over devices that a loop repeats, although one sum after the loop gives the same result."""

import contextlib
from collections.abc import Iterator

from jax.extend.core import ClosedJaxpr

from workbench._types import AnyMesh
from workbench.advice._collectives import evidence_of, is_sliced, share
from workbench.advice._module import Compiled, less_sent
from workbench.advice._repeated_sums import Repeated, operand_specs, repeated_sums
from workbench.records.advice import FindingRecord
from workbench.records.compiled import CollectiveRecord
from workbench.render.units import bytes_text, counted_text, line_text

RULE = "sum repeated in a loop"
_SMALL_BYTES = 1 << 12


def repeated_reduction(program: Compiled) -> Iterator[FindingRecord]:
    """Sums over devices that a loop repeats, although one sum after the loop gives the same result."""
    sums = [c for c in program.module.collectives if c.kind == "all-reduce" and not is_sliced(program, c)]
    if program.recompile is None or sum(c.sent_bytes for c in sums) < _SMALL_BYTES:
        return
    loops: list[Repeated] = []

    def read(closed: ClosedJaxpr, mesh: AnyMesh) -> tuple[ClosedJaxpr, int]:
        loops.extend(repeated_sums(closed, operand_specs(program.record.propagation), mesh))
        return closed, 0  # nothing is changed, so nothing is compiled

    with contextlib.suppress(Exception):  # the other rules work even if the program cannot be traced again
        program.recompile(rewrite=read)
    for loop in loops:
        collectives = [collective for collective in sums if _is_of(loop, collective)]
        saved = sum(collective.sent_bytes for collective in collectives) * (1 - 1 / loop.times)
        if saved < _SMALL_BYTES:
            continue
        axes = " and ".join(f"`{axis}`" for axis in loop.axes)
        arrays = f"{counted_text(loop.arrays, 'array')} ({bytes_text(loop.size_bytes)})"
        often = f"in each of its {loop.times} iterations" if loop.is_loop else f"{loop.times} times"
        place = f"{'loop' if loop.is_loop else 'code'} at {line_text(loop.source)}"
        yield FindingRecord(
            rule=RULE,
            what=f"The {place} sums {arrays} over {axes} {often}, and only adds the results.",
            why="One sum over devices after the additions gives the same result, except for rounding.",
            change=_change(loop),
            evidence=(
                *(evidence_of(collective)[0] for collective in collectives[:3]),
                *["TPU compilers make some of these changes themselves: compile with `on=` to check"]
                * (program.module.platform == "cpu"),
            ),
            weight=share(program, saved),
            instructions=tuple(collective.name for collective in collectives),
            axes=tuple(dict.fromkeys(axis for collective in collectives for axis in collective.axes)),
            sources=(loop.source,),
            gain=less_sent(program, saved, "one sum instead of one per iteration"),
        )


def _is_of(loop: Repeated, collective: CollectiveRecord) -> bool:
    """Returns whether a compiled all-reduce computes the loop's sums."""
    is_repeated = not loop.is_loop or (collective.executions or 0) >= loop.times
    is_along = loop.kind == "clients" or set(collective.axes) == set(loop.axes)
    return is_repeated and is_along and any((s.file, s.line) in loop.lines for s in collective.sources)


def _change(loop: Repeated) -> str:
    name = f'"{loop.axes[0]}"' if len(loop.axes) == 1 else str(loop.axes).replace("'", '"')
    after = "after the loop" if loop.is_loop else "after the last addition"
    if loop.kind == "clients":
        return f"Add the values of each client, and call `wb.reduce_sum` or `wb.reduce_mean` once, {after}."
    if loop.kind == "sharded":
        place = "the loop" if loop.is_loop else "this code"
        return (
            f"Move {place} into `jax.shard_map` over {name}: each device adds its own values, and "
            f"`jax.lax.psum(total, {name})` sums them once, {after}. If each device computes the mean of its examples, "
            "divide the sum by the number of devices (`jax.lax.pmean`)."
        )
    change = f"Add the values of each device, and call `jax.lax.psum` or `jax.lax.pmean` once, {after}."
    if not loop.is_implicit:
        return change
    return (
        f'Differentiate with respect to `jax.lax.pcast(params, {name}, to="varying")`: otherwise, `jax.grad` sums the '
        f"gradients of replicated parameters itself. {change}"
    )
