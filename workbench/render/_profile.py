"""A recorded profile as text: where the seconds went, by device, category, operation and line."""

from workbench.records import shorten_paths
from workbench.records.call_tree import CallNodeRecord, CallTreeRecord
from workbench.records.profile import ProfileRecord
from workbench.render.units import bytes_text, count_text, flops_text, seconds_text

_OPERATIONS = 10
_TREE_LINES = 16
_TREE_SHARE = 0.02
_ALL = 0.999


def render_profile_text(profile: ProfileRecord) -> str:
    """Devices, categories, the operations that take most, the call tree, and what could not be joined.

    Example:
        >>> print(render_profile_text(ProfileRecord(name="run", files=())))
        Profile run: 0 devices, 0 programs, 0 s of operations.
    """
    lines = [
        f"Profile {profile.name}: {count_text(len(profile.devices))} devices"
        f"{f' of {len(profile.hosts)} hosts' if len(profile.hosts) > 1 else ''}, "
        f"{count_text(len(profile.programs))} programs, {seconds_text(profile.seconds)} of operations."
    ]
    if profile.operations or profile.unjoined:
        lines.append(
            f"  joined to HLO: {profile.joined:.1%} of the events, {profile.joined_seconds:.1%} of the seconds"
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
        runs = f", {count_text(program.runs)} runs" if program.runs else ""
        lines.append(f"  program {program.name}: {seconds_text(program.seconds)}{runs}, HLO {program.hlo}")
    total = profile.seconds or 1.0
    if profile.operations:
        reported = ", ".join(
            f"{n or 'unknown'} {s / total:.1%}" for n, s in list(profile.seconds_by_category().items())[:8]
        )
        lines.append(f"  by category: {reported}")
    for operation in profile.operations[:_OPERATIONS]:
        rate = operation.flops_per_second
        predicted = operation.predicted_seconds
        reported = [f"{operation.seconds / total:.1%}", f"{seconds_text(operation.seconds_per_execution)} each"]
        reported += [f"{flops_text(rate)}/s"] if rate else []
        reported += [f"{bytes_text(operation.bytes_per_second)}/s"] if operation.bytes_per_second else []
        reported += [f"predicted {seconds_text(predicted)}"] if predicted else []
        reported += [str(operation.source)] if operation.source else []
        executions = count_text(round(operation.executions))
        lines.append(f"  {executions} × {operation.name} ({operation.category or 'unknown'}): {', '.join(reported)}")
    if profile.tree is not None:
        lines += _tree_lines(profile.tree)
    for held in profile.memory[:4]:
        lines.append(f"  memory of {held.where} {held.allocator}: at most {bytes_text(held.peak_bytes)}")
    for lost in profile.unjoined:
        beside = " (next to other work)" if lost.overlaps else ""
        lines.append(f"Not joined: {lost.kind}, {count_text(lost.events)} events, {seconds_text(lost.seconds)}{beside}")
    lines += [profile.error_bar] if profile.error_bar else []
    lines += [f"Note: {note}" for note in profile.notes]
    return "\n".join(lines)


def _tree_lines(tree: CallTreeRecord) -> list[str]:
    whole = _measured(tree.root)
    lines = ["  call tree, seconds of all devices:"]
    largest: dict[int, float] = {}  # node -> seconds of its largest child
    for node in tree.nodes:
        if node.parent is not None:
            largest[node.parent] = max(largest.get(node.parent, 0.0), _measured(node))
    depths: dict[int, int] = {}  # of what is shown: a node whose seconds are all those of one child is left out
    for node in tree.nodes:
        seconds = _measured(node)
        share = seconds / whole if whole else 0.0
        passes = node.parent is not None and largest.get(node.id, 0.0) >= _ALL * seconds
        above = depths.get(-1 if node.parent is None else node.parent, 0)
        depths[node.id] = above if passes or node.hidden else above + 1
        if share >= _TREE_SHARE and len(lines) <= _TREE_LINES and not node.hidden and not passes:
            where = f" at {shorten_paths(node.file)}:{node.line}" if node.file and node.line else ""
            lines.append(f"  {'  ' * depths[node.id]}{share:6.1%} {node.name}{where}")
    return lines


def _measured(node: CallNodeRecord) -> float:
    return sum(node.total.measured_seconds.values())
