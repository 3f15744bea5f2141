"""A recorded profile as text: time by device, category, operation and line."""

from workbench.records.profile import ProfileRecord
from workbench.render._call_tree import tree_lines
from workbench.render.units import bytes_text, count_text, counted_text, flops_text, seconds_text, share_text

_OPERATIONS = 10
_TREE_LINES = 16


def render_profile_text(profile: ProfileRecord) -> str:
    """Devices, categories, the slowest operations, the call tree, and events not matched to HLO.

    Example:
        >>> print(render_profile_text(ProfileRecord(name="run", files=())))
        Profile run: 0 devices, 0 programs, 0 s of operations.
    """
    lines = [
        f"Profile {profile.name}: {counted_text(len(profile.devices), 'device')}"
        f"{f' of {len(profile.hosts)} hosts' if len(profile.hosts) > 1 else ''}, "
        f"{counted_text(len(profile.programs), 'program')}, {seconds_text(profile.seconds)} of operations."
    ]
    if profile.operations or profile.unjoined:
        lines.append(
            f"  matched to HLO: {share_text(profile.joined)} of the events, "
            f"{share_text(profile.joined_seconds)} of the seconds"
        )
    for device in profile.devices:
        parts = {
            "computing": device.compute_seconds,
            "collectives": device.collective_seconds,
            "copies": device.copy_seconds,
            "without instruction": device.other_seconds,
            "waiting for chips": device.wait_seconds,
        }
        reported = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in parts.items() if seconds)
        lines.append(
            f"  {device.where} {device.kind}: {count_text(device.events)} events in "
            f"{seconds_text(device.span_seconds)}: {reported or 'nothing'}; idle {100 * device.idle_share:.0f} %"
        )
    for program in profile.programs[:_OPERATIONS]:
        runs = f", {counted_text(program.runs, 'run')}" if program.runs else ""
        lines.append(f"  program {program.name}: {seconds_text(program.seconds)}{runs}, HLO {program.hlo}")
    total = profile.seconds or 1.0
    if profile.operations:
        reported = ", ".join(
            f"{n or 'unknown'} {share_text(s / total)}" for n, s in list(profile.seconds_by_category().items())[:8]
        )
        lines.append(f"  by category: {reported}")
    for operation in profile.operations[:_OPERATIONS]:
        rate = operation.flops_per_second
        predicted = operation.predicted_seconds
        reported = [share_text(operation.seconds / total), f"{seconds_text(operation.seconds_per_execution)} each"]
        reported += [f"{flops_text(rate)}/s"] if rate else []
        reported += [f"{bytes_text(operation.bytes_per_second)}/s"] if operation.bytes_per_second else []
        bound = f", {operation.bound}-bound" if operation.bound else ""
        reported += [f"predicted {seconds_text(predicted)}{bound}"] if predicted else []
        reported += [str(operation.source)] if operation.source else []
        executions = count_text(round(operation.executions))
        lines.append(f"  {executions} × {operation.name} ({operation.category or 'unknown'}): {', '.join(reported)}")
    if profile.tree is not None:
        lines += ["  call tree, all devices:", *(f"  {line}" for line in tree_lines(profile.tree, most=_TREE_LINES))]
    for allocator in profile.memory[:4]:
        lines.append(f"  memory of {allocator.where} {allocator.allocator}: at most {bytes_text(allocator.peak_bytes)}")
    for lost in profile.unjoined:
        beside = " (next to other work)" if lost.overlaps else ""
        lines.append(
            f"Not matched: {lost.kind}, {count_text(lost.events)} events, {seconds_text(lost.seconds)}{beside}"
        )
    lines += [profile.error_bar] if profile.error_bar else []
    lines += [f"Note: {note}" for note in profile.notes]
    return "\n".join(lines)
