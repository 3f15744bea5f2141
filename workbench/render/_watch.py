"""Watched training loops and watched blocks of code, described in words."""

import math

from workbench.records.live import ExplanationRecord, OutOfMemoryRecord, RoundRecord, WatchRecord
from workbench.render.units import bytes_text, count_text, counted_text, flops_text, seconds_text, share_text


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


_SHOWN_PROBLEMS = 8
_WAITING_SHARE, _TYPICAL_SHARE = 0.3, 0.5
_MEASURED = ("_seconds", "_bytes", "_share", "_per_second")


def render_watch_text(record: WatchRecord) -> str:
    """Describes steps and their times first, then work, memory, outputs, compilations, changes and problems.

    Example:
        >>> print(render_watch_text(WatchRecord(name="step", status="running", steps=3, step_seconds=0.5)))
        Watch of `step`, running: 3 steps, 500 ms each
    """
    pace = "" if record.step_seconds is None else f", {seconds_text(record.step_seconds)} each"
    lines = [f"Watch of `{record.name}`, {record.status}: {counted_text(record.steps, 'step')}{pace}"]
    lines += _indented(_host(record), _work(record), _memory(record), _outputs(record), _compilations(record))
    problems = [problem.what for problem in record.problems]
    for retrace in record.retraces:
        starts = [reason.partition("; argument `")[0] for reason, _ in retrace.reasons]
        if any(start in problem for problem in problems for start in starts):
            continue  # the line of the compilation gives the reasons
        reasons = "; ".join(reason for reason, _ in retrace.reasons[:3])
        lines.append(f"  retraced {count_text(retrace.count)} ×: {retrace.function} ({retrace.defined}): {reasons}")
    if record.changes:
        lines.append("  compared with the previous version:")
        lines += [f"    {change}" for change in record.changes]
    for problem in record.problems[:_SHOWN_PROBLEMS]:
        lines.append(f"  {problem.what}")
    if len(record.problems) > _SHOWN_PROBLEMS:
        lines.append(f"  and {count_text(len(record.problems) - _SHOWN_PROBLEMS)} more in `record.problems`")
    return "\n".join([*lines, *(f"Note: {note}" for note in record.notes)])


def watched_outputs(step: RoundRecord) -> dict[str, float]:
    """A step's outputs, except the figures that `watch` itself measures; arrays are shown as their mean."""
    outputs = {}
    for name, value in step.metrics.items():
        if name.endswith(_MEASURED):
            continue
        numbers = value if isinstance(value, tuple) else (value,)
        outputs[name] = sum(numbers) / len(numbers) if numbers else math.nan
    return outputs


def _indented(*parts: str) -> list[str]:
    return [f"  {part}" for part in parts if part]


def _host(record: WatchRecord) -> str:
    parts = []
    if record.dispatch_seconds is not None:
        parts.append(f"{seconds_text(record.dispatch_seconds)} until the call returns")
    if record.between_seconds is not None:
        parts.append(f"{seconds_text(record.between_seconds)} between calls")
    if record.idle_share is not None:
        waiting = ""
        if record.idle_share > _WAITING_SHARE:
            steps = record.idle_steps_share
            is_typical = steps is None or steps >= _TYPICAL_SHARE
            waiting = (
                " (input-bound)" if is_typical else f"; only {share_text(steps)} of the steps start after a long wait"
            )
        parts.append(f"devices wait for the host {share_text(record.idle_share, 0)} of the time{waiting}")
    return ", ".join(parts)


def _work(record: WatchRecord) -> str:
    parts = []
    if record.flops is not None:
        rate = "" if record.flops_per_second is None else f", {flops_text(record.flops_per_second)}/s"
        share = "" if record.peak_flops_share is None else f", {share_text(record.peak_flops_share)} of the peak"
        parts.append(f"{flops_text(record.flops)} in matrix products per step and device{rate}{share}")
    if record.bytes_per_second is not None:
        share = (
            "" if record.peak_bandwidth_share is None else f", {share_text(record.peak_bandwidth_share)} of the peak"
        )
        parts.append(f"{bytes_text(record.bytes_per_second)}/s of memory traffic{share}")
    if record.collectives:
        traffic = "an unknown number of bytes" if record.sent_bytes is None else bytes_text(record.sent_bytes)
        parts.append(f"{counted_text(record.collectives, 'collective')}, a device sends {traffic}")
    return "; ".join(parts)


def _memory(record: WatchRecord) -> str:
    figures = (
        ("in use", record.memory_bytes),
        ("at the peak", record.peak_bytes),
        ("planned by the compiler", record.planned_peak_bytes),
    )
    parts = [f"{bytes_text(figure)} {title}" for title, figure in figures if figure is not None]
    return f"memory of a device: {', '.join(parts)}" if parts else ""


def _outputs(record: WatchRecord) -> str:
    if not record.history:
        return ""
    last = record.history[-1]
    outputs = [f"{name} {value:.6g}" for name, value in watched_outputs(last).items()]
    return f"step {last.round}: {', '.join(outputs)}" if outputs else ""


def _compilations(record: WatchRecord) -> str:
    count = sum(compilation.count for compilation in record.compilations)
    if not count:
        return ""
    seconds = sum(compilation.seconds for compilation in record.compilations)
    return f"{counted_text(count, 'compilation')}, {seconds_text(seconds)}"
