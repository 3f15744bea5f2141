"""A simulated round as a Gantt chart, and memory over time."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from workbench.records.live import ClientOutcomeRecord, SampleRecord, TimelineRecord
from workbench.render._live import Chart, Interval, natural, ticks
from workbench.render._svg import Markup, group, join, line, path, text, text_width
from workbench.render._theme import picture, series
from workbench.render.units import bytes_text, seconds_text

_LARGEST_ROWS = 48
_PHASES = {  # kind of span: (legend text, hue, pattern)
    "download": ("download", "broadcast", 1),
    "compute": ("compute", "clients", 0),
    "upload": ("upload", "reduce", 2),
}
_OUTCOMES = {"finished": ("✓ counts", "good"), "late": ("✗ late", "bad"), "dropped": ("✗ dropped out", "bad"),
             "surplus": ("not needed", "muted")}  # fmt: skip
_DASHES = (None, "7 3", "2 3", "9 3 2 3")


def render_gantt_svg(timeline: TimelineRecord, *, width: float = 880, dark: bool | None = None) -> Markup:
    """A simulated round: one row per client, with its spans and whether its update is included.

    Example:
        >>> outcome = ClientOutcomeRecord(client=7, status="late")
        >>> record = TimelineRecord(name="round", seconds=2.0, spans=(), outcomes=(outcome,))
        >>> "client 7" in render_gantt_svg(record) and "late" in render_gantt_svg(record)
        True
    """
    shown = _shown(timeline)
    rows = {outcome.client: index for index, outcome in enumerate(shown)}
    right = 20.0 + max(text_width(words, 11.5) for words, _ in _OUTCOMES.values())
    chart = Chart([f"client {client}" for client in rows], timeline.seconds, width, right=right)
    bars: defaultdict[tuple[int, str], list[Interval]] = defaultdict(list)
    for span in timeline.spans:
        if span.client in rows:
            bars[rows[span.client], span.kind].append((span.start_seconds, span.start_seconds + span.seconds))
    drawn = [
        chart.bars(row, spans, hue=_PHASES[kind][1], pattern=_PHASES[kind][2]) for (row, kind), spans in bars.items()
    ]
    words = [
        text(chart.x(timeline.seconds) + 10, chart.y(row), word, size=11.5, class_=f"wb-fill-{hue}")
        for row, (word, hue) in enumerate(_OUTCOMES[outcome.status] for outcome in shown)
    ]
    at_deadline = timeline.deadline_seconds == timeline.seconds
    end = chart.mark(
        timeline.seconds, f"{'deadline' if at_deadline else 'round ends'}, {seconds_text(timeline.seconds)}", hue="fg"
    )
    return chart.svg(join([*drawn, *words, end]), list(_PHASES.values()), label=describe_timeline(timeline), dark=dark)


def describe_timeline(timeline: TimelineRecord) -> str:
    """Summarizes a simulated round in one sentence.

    Example:
        >>> describe_timeline(TimelineRecord(name="round 3", seconds=2.0, spans=(), outcomes=()))
        'Simulated round 3: 2 s, 0 clients.'
    """
    counts = Counter(outcome.status for outcome in timeline.outcomes)
    tally = ", ".join(f"{counts[status]} {status}" for status in _OUTCOMES if counts[status])
    idle = f" Clients were idle {100 * timeline.idle_share:.0f} % of the time." if timeline.spans else ""
    clients = f"{len(timeline.outcomes)} clients" + (f": {tally}" if tally else "")
    return f"Simulated {timeline.name}: {seconds_text(timeline.seconds)}, {clients}.{idle}"


def render_samples_svg(
    samples: Sequence[SampleRecord], *, width: float = 880, height: float = 260, dark: bool | None = None
) -> Markup:
    """Memory in use on every device over time; devices with identical curves share a line.

    Example:
        >>> "No memory samples" in render_samples_svg([])
        True
    """
    courses = _courses(samples)
    label = describe_samples(samples)
    if not courses:
        nothing = text(width / 2, height / 2, "No memory samples yet.", size=12, class_="wb-fill-muted wb-middle")
        return picture(width, height, nothing, label=label, dark=dark)
    start = samples[0].time_seconds
    times = [sample.time_seconds - start for sample in samples]
    top = max(max(value or 0 for value in course) for course in courses) or 1
    names = {course: _span_of_names(devices) for course, devices in courses.items()}
    left, right = 72.0, width - 18.0 - max(text_width(name, 11.5) for name in names.values())

    def place(seconds: float, value: float) -> tuple[float, float]:
        x = left + (right - left) * seconds / (times[-1] or 1.0)
        return x, height - 34 - (height - 54) * value / (1.05 * top)

    scale = [
        group(
            line(left, place(0, tick)[1], right, place(0, tick)[1], class_="wb-stroke-line", stroke_width=0.7),
            text(left - 7, place(0, tick)[1] + 4, bytes_text(tick), size=11, class_="wb-fill-muted wb-end"),
        )
        for tick in _byte_ticks(top)
    ]
    moments = [
        text(place(tick, 0)[0], height - 14, seconds_text(tick), size=11, class_="wb-fill-muted wb-middle")
        for tick in ticks(times[-1] or 1.0, most=6)
        if tick <= times[-1]
    ]
    lines, heights = [], []
    for index, (course, name) in enumerate(sorted(names.items(), key=lambda item: item[0][-1] or 0, reverse=True)):
        points = [place(seconds, value) for seconds, value in zip(times, course, strict=True) if value is not None]
        beside = _free(points[-1][1] + 4, heights)
        heights.append(beside)
        lines.append(_line(points, name, index, at=(right + 8, beside)))
    return picture(width, height, *scale, *moments, *lines, label=label, dark=dark)


def describe_samples(samples: Sequence[SampleRecord]) -> str:
    """Summarizes the last and the highest sample in one sentence.

    Example:
        >>> describe_samples([])
        'Memory of the devices: no samples.'
    """
    readings = [
        (device.bytes_in_use, device.where)
        for sample in samples
        for device in sample.devices
        if device.bytes_in_use is not None
    ]
    if not readings:
        return "Memory of the devices: no samples."
    most, where = max(readings)
    absent_devices = [device.where for device in samples[-1].devices if not device.present]
    lost = f" No longer readable: {', '.join(absent_devices)}." if absent_devices else ""
    counted = f"{len(samples[-1].devices)} devices, {len(samples)} samples"
    return f"Memory of {counted}: at most {bytes_text(most)} on {where}.{lost}"


def _shown(timeline: TimelineRecord) -> list[ClientOutcomeRecord]:
    if len(timeline.outcomes) <= _LARGEST_ROWS:
        return list(timeline.outcomes)
    slowest = sorted(timeline.outcomes, key=lambda outcome: -(outcome.needed_seconds or 0.0))[:_LARGEST_ROWS]
    return sorted(slowest, key=lambda outcome: outcome.client)


def _courses(samples: Sequence[SampleRecord]) -> dict[tuple[int | None, ...], list[str]]:
    """Maps each curve of bytes over time to the devices that have it."""
    by_device: defaultdict[str, list[int | None]] = defaultdict(lambda: [None] * len(samples))
    for index, sample in enumerate(samples):
        for device in sample.devices:
            by_device[device.where][index] = device.bytes_in_use if device.present else None
    courses: defaultdict[tuple[int | None, ...], list[str]] = defaultdict(list)
    for name in sorted(by_device, key=natural):
        if any(value is not None for value in by_device[name]):
            courses[tuple(by_device[name])].append(name)
    return dict(courses)


def _span_of_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"


def _line(points: Sequence[tuple[float, float]], name: str, index: int, *, at: tuple[float, float]) -> Markup:
    commands = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    hue = series(index)
    return group(
        path(
            commands,
            fill="none",
            class_=f"wb-stroke-{hue}",
            stroke_width=2,
            stroke_dasharray=_DASHES[index % len(_DASHES)],
        ),
        text(*at, name, size=11.5, class_="wb-fill-fg"),
    )


def _free(y: float, heights: Sequence[float]) -> float:
    """The nearest position at or below `y` where a label does not overlap other labels."""
    while any(abs(y - height) < 13 for height in heights):
        y += 1
    return y


def _byte_ticks(top: float) -> list[float]:
    unit = 1024.0 ** max(int(len(f"{int(top):b}") - 1) // 10, 0)
    return [tick * unit for tick in ticks(top / unit, most=5)]
