"""A recorded profile as one page: time line, devices, roofline with measured points, call tree, operations."""

import math

from workbench.records.profile import ProfileRecord
from workbench.records.program import SourceLine
from workbench.render._call_tree import render_call_tree_svg
from workbench.render._charts import MeasuredPoint, render_measured_roofline_svg
from workbench.render._html import figure, page, section
from workbench.render._live import render_run_svg
from workbench.render._svg import Markup, bytes_text, count_text, element, flops_text, seconds_text, work_text

_OPERATIONS = 40
_POINTS = 12


def render_profile_html(profile: ProfileRecord) -> Markup:
    """The whole page, with nothing fetched from anywhere.

    Args:
        profile: From `open_profile`.

    Returns:
        HTML that follows the reader's light or dark system.

    Example:
        >>> "No operation" in render_profile_html(ProfileRecord(name="run", files=()))
        True
    """
    parts: list[object] = [element("p", _lead(profile))]
    if not profile.operations:
        parts.append(element("p", "No operation of a device was read."))
    if profile.events:
        parts.append(section("Time line", figure(render_run_svg(profile.as_run()), "What every device did, and when.")))
    if profile.devices:
        parts.append(section("Devices", _devices(profile)))
    if profile.programs:
        parts.append(section("Programs", _programs(profile)))
    roofline = _roofline(profile)
    if roofline is not None:
        parts.append(section("Roofline", figure(roofline, "Measured rates of the operations, under the chip's roof.")))
    if profile.tree is not None:
        tree = render_call_tree_svg(profile.tree, figure="measured")
        parts.append(section("Call tree", figure(tree, f"Measured seconds of {profile.programs[0].name}.")))
    if profile.operations:
        parts.append(section("Operations", _operations(profile)))
    if profile.unjoined:
        parts.append(section("Not joined to an instruction", _unjoined(profile)))
    notes = [*([profile.error_bar] if profile.error_bar else []), *profile.notes]
    if notes:
        parts.append(section("Notes", *(element("p", note) for note in notes)))
    return page(f"Profile {profile.name}", *parts)


def _lead(profile: ProfileRecord) -> str:
    chips = {device.kind or device.platform for device in profile.devices}
    return (
        f"Devices: {count_text(len(profile.devices))} ({', '.join(sorted(chips)) or 'none'}). Programs: "
        f"{count_text(len(profile.programs))}. Measured: {seconds_text(profile.seconds)} of operations. "
        f"{profile.joined:.1%} of the events and {profile.joined_seconds:.1%} of the seconds are joined to HLO."
    )


def _devices(profile: ProfileRecord) -> Markup:
    header = ("device", "kind", "events", "span", "computing", "collectives", "copies", "other", "waiting", "idle")
    rows = [
        (
            device.where,
            device.kind,
            count_text(device.events),
            *(
                seconds_text(seconds) if seconds else "–"
                for seconds in (
                    device.span_seconds,
                    device.compute_seconds,
                    device.collective_seconds,
                    device.copy_seconds,
                    device.other_seconds,
                    device.wait_seconds,
                )
            ),
            f"{100 * device.idle_share:.0f} %",
        )
        for device in profile.devices
    ]
    return _table(header, rows)


def _programs(profile: ProfileRecord) -> Markup:
    header = ("program", "seconds", "share", "runs", "operations", "FLOPs per call", "HLO")
    total = profile.seconds or 1.0
    rows = [
        (
            program.name,
            seconds_text(program.seconds),
            f"{program.seconds / total:.1%}",
            "–" if program.runs is None else count_text(program.runs),
            count_text(program.operations),
            work_text(program.flops, program.elementwise_flops) if program.flops or program.elementwise_flops else "–",
            program.hlo,
        )
        for program in profile.programs[:_OPERATIONS]
    ]
    return _table(header, rows)


def _operations(profile: ProfileRecord) -> Markup:
    header = ("operation", "category", "share", "executions", "each", "predicted", "FLOP/s", "bytes/s", "line")
    total = profile.seconds or 1.0
    rows = []
    for operation in profile.operations[:_OPERATIONS]:
        flops, moved, predicted = operation.flops_per_second, operation.bytes_per_second, operation.predicted_seconds
        rows.append(
            (
                operation.name,
                operation.category or "–",
                f"{operation.seconds / total:.1%}",
                count_text(round(operation.executions)),
                seconds_text(operation.seconds_per_execution),
                seconds_text(predicted) if predicted is not None else "–",
                f"{flops_text(flops)}/s" if flops else "–",
                f"{bytes_text(moved)}/s" if moved else "–",
                _line(operation.source),
            )
        )
    return _table(header, rows)


def _line(source: SourceLine | None) -> str:
    """The last two parts of a path are enough to know a line by."""
    return "–" if source is None else f"{'/'.join(source.file.split('/')[-2:])}:{source.line}"


def _unjoined(profile: ProfileRecord) -> Markup:
    header = ("kind", "events", "seconds", "next to other work")
    rows = [
        (lost.kind, count_text(lost.events), seconds_text(lost.seconds), "yes" if lost.overlaps else "no")
        for lost in profile.unjoined
    ]
    return _table(header, rows)


def _roofline(profile: ProfileRecord) -> Markup | None:
    if profile.chip is None:
        return None
    points = [
        MeasuredPoint(operation.name, operation.intensity, operation.flops_per_second, operation.dtype)
        for operation in profile.operations
        if operation.intensity and operation.flops_per_second and math.isfinite(operation.intensity)
    ]
    return render_measured_roofline_svg(profile.chip, points[:_POINTS]) if points else None


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> Markup:
    head = element("tr", *(element("th", name) for name in header))
    return element("table", head, *(element("tr", *(element("td", cell) for cell in row)) for row in rows))
