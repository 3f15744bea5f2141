"""Events in a block of code, shown as a short table."""

from workbench.records.live import ExplanationRecord, OutOfMemoryRecord
from workbench.render.units import bytes_text, count_text, counted_text


def render_explanation_text(record: ExplanationRecord) -> str:
    """Lists out-of-memory errors, retraces and slow compilations, or writes one line if nothing happened.

    Example:
        >>> print(render_explanation_text(ExplanationRecord(seconds=2.0)))
        watch_compilations: 2.0 s; no retraces, no slow compilations.
    """
    compiling = sum(compilation.seconds for compilation in record.compilations)
    count = sum(compilation.count for compilation in record.compilations)
    slow = [compilation for compilation in record.compilations if compilation.seconds >= record.slow_seconds]
    head = f"watch_compilations: {record.seconds:.1f} s"
    if count:
        head += f", {compiling:.1f} s of it in {counted_text(count, 'compilation')}"
    missing = [
        words for words, items in (("no retraces", record.retraces), ("no slow compilations", slow)) if not items
    ]
    lines = [f"{head}{'; ' + ', '.join(missing) if missing else ''}."]
    if record.out_of_memory is not None:
        lines += _memory_lines(record.out_of_memory)
    for retrace in record.retraces:
        lines.append(
            f"  retraced {count_text(retrace.count)} ×: {retrace.function} ({retrace.defined}), last at "
            f"{retrace.called or 'an unknown line'}"
        )
        lines += [f"    {count_text(times)} × {reason}" for reason, times in retrace.reasons[:5]]
        if len(retrace.reasons) > 5:
            lines.append(f"    and {count_text(len(retrace.reasons) - 5)} other reasons")
    for compilation in slow:
        where = f" at {compilation.called}" if compilation.called else ""
        lines.append(
            f"  {compilation.seconds:.1f} s for {counted_text(compilation.count, 'compilation')} of "
            f"{compilation.function}{where}: tracing {compilation.trace_seconds:.1f} s, lowering "
            f"{compilation.lower_seconds:.1f} s, XLA {compilation.compile_seconds:.1f} s"
        )
    return "\n".join([*lines, *(f"  Note: {note}" for note in record.notes)])


def _memory_lines(record: OutOfMemoryRecord) -> list[str]:
    lines = [f"  Memory ran out at {record.line or 'an unknown line'}: {record.message}"]
    if record.in_use_bytes is not None and record.limit_bytes is not None:
        lines.append(f"    {bytes_text(record.in_use_bytes)} of {bytes_text(record.limit_bytes)} are in use")
    if record.arrays:
        lines.append("    largest live arrays, on the fullest device:")
    for array in record.arrays:
        shape = f"{array.dtype}[{','.join(map(str, array.shape))}]"
        times = f"{count_text(array.count)} × " if array.count > 1 else ""
        origin = f"  made at {array.made_at}" if array.made_at else ""
        lines.append(f"      {bytes_text(array.device_bytes)}  {times}{shape}{origin}{_held(array.names)}")
    return lines


def _held(names: tuple[str, ...]) -> str:
    return (
        f"  held by {', '.join(names)}" if names else ("  not referenced by any variable of the functions on the stack")
    )
