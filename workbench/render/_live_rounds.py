"""A simulated round as a Gantt chart, and sentences about the samples of devices."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from workbench.records.live import ClientOutcomeRecord, SampleRecord, TimelineRecord
from workbench.render._live import Chart, Interval
from workbench.render._svg import Markup, join, text, text_width
from workbench.render.units import bytes_text, seconds_text

_LARGEST_ROWS = 48
_PHASES = {  # kind of span: (legend text, hue, pattern)
    "download": ("download", "broadcast", 1),
    "compute": ("compute", "clients", 0),
    "upload": ("upload", "reduce", 2),
}
_OUTCOMES = {"finished": ("✓ counts", "good"), "late": ("✗ late", "bad"), "dropped": ("✗ dropped out", "bad"),
             "surplus": ("not needed", "muted")}  # fmt: skip


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
