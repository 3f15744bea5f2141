"""The time of a measured run per stage as text, and rows of bars over a time axis."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from workbench.records.run import RunRecord, StageRunRecord
from workbench.render._disclosure import run_disclosed_lines
from workbench.render._svg import Markup, group, line, path, rect, text, text_width
from workbench.render._theme import hatches, picture
from workbench.render.units import counted_text, number, seconds_text

ROW = 22.0
HEAD = 34.0  # the legend
FOOT = 40.0  # the axis
_BAR = 14.0

Interval = tuple[float, float]


def describe_run(run: RunRecord) -> str:
    """Summarizes a run in a few sentences, for screen readers and plain text.

    Example:
        >>> describe_run(RunRecord(name="round", engine="cpu x 8", seconds=0.5, rounds=2))
        'Run of round on cpu x 8: 2 calls in 500 ms.'
    """
    sentences = [
        f"Run of {run.name} on {run.engine}: {counted_text(run.rounds, 'call')} in {seconds_text(run.seconds)}."
    ]
    parts = _parts_of(run)
    total = {kind: sum(getattr(stage, f"{kind}_seconds") for stage in run.stages) for kind in parts}
    busy = sum(total.values())
    if busy:
        shares = ", ".join(f"{100 * seconds / busy:.0f} % {parts[kind]}" for kind, seconds in total.items())
        sentences.append(f"Of the devices' time: {shares}.")
    if run.joined_events is not None and run.attributed_seconds is not None:
        sentences.append(
            f"{100 * run.joined_events:.1f} % of the events are instructions of the program, and "
            f"{100 * run.attributed_seconds:.1f} % of the time is attributed to a stage."
        )
    return " ".join(sentences)


def render_run_text(run: RunRecord) -> str:
    """Time per stage as a table in plain text: the mean over the devices, per call.

    Example:
        >>> stage = StageRunRecord(stage="1", where="cpu:0", compute_seconds=0.25)
        >>> print(render_run_text(RunRecord(name="round", engine="cpu x 1", seconds=0.5, stages=(stage,))))
        Run of round on cpu x 1: 1 call in 500 ms. Of the devices' time: 100 % compute, 0 % collective, 0 % waiting.
        stage  compute  collective  waiting
        1       250 ms         0 s      0 s
    """
    by_stage: defaultdict[str, list[StageRunRecord]] = defaultdict(list)
    for stage in run.stages:
        by_stage[stage.stage].append(stage)
    parts = _parts_of(run)
    table = [("stage", *parts.values())]
    for path_, stages in sorted(by_stage.items(), key=lambda item: natural(item[0])):
        means = [sum(getattr(stage, f"{kind}_seconds") for stage in stages) / len(stages) for kind in parts]
        table.append((path_ or "none", *(seconds_text(mean) for mean in means)))
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in table
    ]
    return "\n".join([describe_run(run), *(lines if run.stages else []), *run_disclosed_lines(run)])


_PARTS = {"compute": "compute", "collective": "collective", "wait": "waiting"}


def _parts_of(run: RunRecord) -> dict[str, str]:
    """Parts of a run's time; includes copies only if a profile distinguishes them."""
    return _PARTS | ({"copy": "copies"} if any(stage.copy_seconds for stage in run.stages) else {})


class Chart:
    """Rows of bars over one time axis, with a legend above."""

    def __init__(self, rows: Sequence[str], end: float, width: float, *, right: float = 16.0) -> None:
        self._rows = rows
        self._end = end or 1.0
        self._left = 16.0 + max((text_width(name, 12) for name in rows), default=0.0)
        self._width = width
        self._scale = max(width - self._left - right, 10.0) / self._end
        self.height = HEAD + ROW * max(len(rows), 2) + FOOT

    def x(self, seconds: float) -> float:
        """Horizontal position that corresponds to a time, in pixels."""
        return self._left + seconds * self._scale

    def y(self, row: int) -> float:
        """Baseline of a row's text."""
        return HEAD + row * ROW + ROW / 2 + 4

    def bars(self, row: int, intervals: Iterable[Interval], *, hue: str, pattern: int) -> Markup:
        """All bars of one kind in a row as a single path; bars less than half a pixel apart are joined."""
        top = HEAD + row * ROW + (ROW - _BAR) / 2
        pieces = []
        for left, right in merge([(self.x(start), self.x(end)) for start, end in intervals], gap=0.5):
            wide = number(max(right - left, 0.4))
            pieces.append(f"M{number(left)} {number(top)}h{wide}v{number(_BAR)}h-{wide}z")
        if not pieces:
            return Markup("")
        commands = "".join(pieces)
        over = path(commands, fill=f"url(#wb-hatch-{pattern})") if pattern else Markup("")
        return group(path(commands, class_=f"wb-fill-{hue}"), over)

    def mark(self, seconds: float, label: str, *, hue: str) -> Markup:
        """A vertical line with its name at the bottom."""
        x, bottom = self.x(seconds), self.height - FOOT
        return group(
            line(x, HEAD - 2, x, bottom + 4, class_=f"wb-stroke-{hue}", stroke_width=1.5),
            text(x, bottom + 31, label, size=11, class_=f"wb-fill-{hue} {'wb-end' if x > self._width / 2 else ''}"),
        )  # fmt: skip

    def svg(self, body: Markup, legend: Sequence[tuple[str, str, int]], *, label: str, dark: bool | None) -> Markup:
        """The whole picture around `body`."""
        names = [
            text(self._left - 8, self.y(row), name, size=12, class_="wb-fill-fg wb-end")
            for row, name in enumerate(self._rows)
        ]
        parts = (hatches(), self._axis(), *names, body, self._legend(legend))
        return picture(self._width, self.height, *parts, label=label, dark=dark)

    def _axis(self) -> Markup:
        bottom = self.height - FOOT
        drawn = []
        for tick in ticks(self._end, most=max(int((self._width - self._left) / 90), 2)):
            x, name = self.x(tick), seconds_text(tick)
            cut = x + text_width(name, 11) / 2 > self._width
            at, side = (self._width - 2, "wb-end") if cut else (x, "wb-middle")
            drawn.append(line(x, HEAD - 2, x, bottom, class_="wb-stroke-line", stroke_width=0.7))
            drawn.append(text(at, bottom + 15, name, size=11, class_=f"wb-fill-muted {side}"))
        return group(*drawn) if self._rows else Markup("")

    def _legend(self, entries: Sequence[tuple[str, str, int]]) -> Markup:
        drawn, x = [], self._left
        for name, hue, pattern in entries:
            drawn.append(rect(x, 9, 14, 12, class_=f"wb-fill-{hue}"))
            if pattern:
                drawn.append(rect(x, 9, 14, 12, fill=f"url(#wb-hatch-{pattern})"))
            drawn.append(text(x + 19, 19, name, size=11.5, class_="wb-fill-fg"))
            x += 19 + text_width(name, 11.5) + 16
        return group(*drawn)


def merge(intervals: Iterable[Interval], *, gap: float) -> list[Interval]:
    """Sorted intervals; intervals less than `gap` apart are joined.

    Example:
        >>> merge([(5, 6), (0, 1), (1.2, 2)], gap=0.5)
        [(0, 2), (5, 6)]
    """
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start - joined[-1][1] < gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def ticks(end: float, *, most: int) -> list[float]:
    """Round numbers from 0 to `end`, at most `most` + 1 of them.

    Example:
        >>> ticks(1.0, most=5)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = end / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [float(f"{index * step:.12g}") for index in range(math.floor(end / step * (1 + 1e-9)) + 1)]


def natural(name: str) -> tuple[tuple[int, float, str], ...]:
    """Returns a sort key that orders names by the value of the numbers in them.

    Example:
        >>> sorted(["cpu:10", "cpu:9"], key=natural)
        ['cpu:9', 'cpu:10']
    """
    parts: list[tuple[int, float, str]] = []
    word = ""
    for character in [*name, ""]:
        if word and (not character or character.isdigit() != word[-1].isdigit()):
            parts.append((0, float(word), "") if word.isdigit() else (1, 0.0, word))
            word = ""
        word += character
    return tuple(parts)
