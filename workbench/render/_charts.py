"""Small SVG charts for live views and for pages: the roofline of a cost, memory over a schedule."""

import math
from collections.abc import Sequence

from workbench.records.compiled import CostRecord, MemoryRecord, StageCostRecord
from workbench.records.hardware import ChipRecord
from workbench.render._svg import Markup, element, group, join, line, path, rect, text, text_width
from workbench.render._theme import picture
from workbench.render.units import bytes_text, flops_text, number

LEFT, RIGHT, TOP, BOTTOM = 80.0, 18.0, 16.0, 40.0
_POINTS = 1200  # of the curve of memory


def render_roofline_svg(
    cost: CostRecord, *, width: float = 560.0, height: float = 300.0, dark: bool | None = None, live: bool = False
) -> Markup:
    """The stages of a cost as points under the chip's roofline, with logarithmic axes."""
    chip, points = cost.chip, _points(cost)
    if chip is None or not points:
        return Markup("")
    peak, bandwidth = _peak(chip), chip.hbm_bytes_per_second / chip.devices_per_chip
    ridge = peak / bandwidth
    scale = _Scale.around(
        [x for x, _, _ in points] + [ridge], [peak, *(min(peak, x * bandwidth) for x, _, _ in points)]
    )
    scale = scale.sized(width, height)
    body = [_frame(scale, width, height), _roof(scale, peak, bandwidth, chip)]
    positions: list[tuple[float, float]] = []
    for x, _, stage in sorted(points, key=lambda point: point[0]):
        body.append(_point(scale, (scale.x(x), scale.y(min(peak, x * bandwidth))), x, stage, positions))
    label = f"Roofline of {chip.name}, predicted: " + "; ".join(
        f"stage {stage.stage} {stage.name} {number(x)} FLOPs per byte" for x, _, stage in points
    )
    return picture(width, height, *body, label=label, dark=dark, live=live)


class _Scale:
    """Two logarithmic axes."""

    def __init__(self, x: tuple[int, int], y: tuple[int, int]) -> None:
        self.x_decades, self.y_decades = x, y
        self.width = self.height = 1.0

    @classmethod
    def around(cls, x: Sequence[float], y: Sequence[float]) -> "_Scale":
        """The full decades that enclose all values."""
        ends = [(math.floor(math.log10(min(v))), math.ceil(math.log10(max(v)) + 1e-9)) for v in (x, y)]
        (left, right), (bottom, top) = ends
        return cls((left, max(right, left + 1)), (bottom - 1, max(top, bottom + 1)))  # room for labels below points

    def sized(self, width: float, height: float) -> "_Scale":
        """The same scale for a picture of this size."""
        self.width, self.height = width - LEFT - RIGHT, height - TOP - BOTTOM
        return self

    def x(self, value: float) -> float:
        """Distance from the left in pixels."""
        low, high = self.x_decades
        return LEFT + (math.log10(value) - low) / (high - low) * self.width

    def y(self, value: float) -> float:
        """Distance from the top in pixels."""
        low, high = self.y_decades
        return TOP + (1 - (math.log10(value) - low) / (high - low)) * self.height


def _points(cost: CostRecord) -> list[tuple[float, float, StageCostRecord]]:
    return [
        (stage.flops / stage.accessed_bytes, stage.flops, stage)
        for stage in cost.stages
        if stage.flops and stage.accessed_bytes
    ]


def _peak(chip: ChipRecord) -> float:
    return chip.peak_flops_per_second[_dtype(chip)] / chip.devices_per_chip


def _dtype(chip: ChipRecord) -> str:
    """The dtype of the roof: bfloat16 or float32 if its peak is known, otherwise the fastest dtype."""
    peaks = chip.peak_flops_per_second
    return next((name for name in ("bfloat16", "float32") if name in peaks), max(peaks, key=lambda name: peaks[name]))


def _frame(scale: _Scale, width: float, height: float) -> Markup:
    parts = []
    for decade in range(scale.x_decades[0], scale.x_decades[1] + 1):
        x = scale.x(10.0**decade)
        parts.append(line(x, TOP, x, TOP + scale.height, class_="wb-stroke-line", stroke_width=0.7))
        parts.append(text(x, height - 22, _power(decade), size=11.5, class_="wb-fill-muted wb-middle"))
    low, high = scale.y_decades
    for decade in range(low, high + 1, max(1, (high - low) // 6)):
        y = scale.y(10.0**decade)
        parts.append(line(LEFT, y, LEFT + scale.width, y, class_="wb-stroke-line", stroke_width=0.7))
        label = f"{flops_text(10.0**decade)}/s"
        parts.append(text(LEFT - 7, y + 4, label, size=11, class_="wb-fill-muted wb-end"))
    parts.append(
        text(width / 2 + 20, height - 6, "FLOPs per byte of memory traffic", size=11, class_="wb-fill-muted wb-middle")
    )
    return join(parts)


def _power(decade: int) -> str:
    return f"{10**decade:,}" if 0 <= decade <= 4 else number(10.0**decade, 3) if -3 <= decade < 0 else f"1e{decade}"


def _roof(scale: _Scale, peak: float, bandwidth: float, chip: ChipRecord) -> Markup:
    ridge = peak / bandwidth
    low, high = 10.0 ** scale.x_decades[0], 10.0 ** scale.x_decades[1]
    floor = 10.0 ** scale.y_decades[0]
    start = max(low, floor / bandwidth)
    outline = [(start, start * bandwidth), (ridge, peak), (high, peak)]
    drawn = "M" + "L".join(f"{number(scale.x(x))} {number(scale.y(y))}" for x, y in outline)
    words = f"{chip.name}: {flops_text(peak)}/s ({_dtype(chip)}), {bandwidth / 1e9:,.0f} GB/s"
    # Above the slope, where no stage can lie.
    label = text(LEFT + 8, TOP + 14, words, size=11.5, class_="wb-fill-muted")
    return group(path(drawn, class_="wb-stroke-accent", fill="none", stroke_width=2), label)


def _point(
    scale: _Scale,
    place: tuple[float, float],
    intensity: float,
    stage: StageCostRecord,
    positions: list[tuple[float, float]],
) -> Markup:
    named = "" if stage.name == stage.kind else f" {stage.name}"
    role = "the whole program" if stage.kind == "program" else f"{stage.kind} stage {stage.stage}"
    spoken = f"{role}{named}: {number(intensity)} FLOPs per byte, bound by {stage.bound}"
    x, true_y = place
    y = true_y
    while any(abs(x - column) < 90 and abs(y - level) < 17 for column, level in positions):
        y += 17  # labels of stages at the same place are stacked, each connected to its point
    positions.append((x, y))
    near_right = x > LEFT + scale.width * 0.6
    label = text(x + (-10 if near_right else 10), y + 4, stage.name, size=11,
                 class_="wb-fill-fg" + (" wb-end" if near_right else ""))  # fmt: skip
    return group(
        element("title", spoken),
        line(x, true_y, x, y, class_=f"wb-stroke-{stage.kind}", pointer_events="none") if y > true_y else None,
        rect(x - (text_width(stage.name, 11) + 14 if near_right else 8), y - 8, text_width(stage.name, 11) + 22, 16,
             fill="transparent"),
        element("circle", cx=x, cy=y, r=6, class_=f"wb-fill-{stage.kind} wb-stroke-bg wb-card", stroke_width=1.5),
        label,
        data_stage=stage.stage,
        data_label=spoken,
        class_="wb-stage",
    )  # fmt: skip


def render_schedule_memory_svg(
    memory: MemoryRecord, *, width: float = 560.0, height: float = 190.0, dark: bool | None = None, live: bool = False
) -> Markup:
    """One device's live bytes over its module's schedule, with the peak marked; empty if unknown.

    Places are percentages, and a nested `<svg>` contains the curve in units of instructions. A live page can thus give
    the picture any size.
    """
    values = [size for _, size in memory.timeline]
    if len(values) < 2:
        return Markup("")
    last, most, at = len(values) - 1, max(values), values.index(max(values))
    step = max(1, len(values) // _POINTS)
    # Each point shows the maximum over its instructions, so that no peak is lost.
    tops = [(i, max(values[i : i + step])) for i in range(0, len(values), step)]
    curve = "".join(f"H{i}V{1 - size / max(most, 1):.3g}" for i, size in tops)
    name, x, near_right = memory.timeline[at][0], 14 + 84 * at / last, at > last / 2
    label = f"Memory of one device over {len(values)} instructions: peak {bytes_text(most)} at {name}"

    def words(content: str, x: float, y: float, class_: str, **shift: float) -> Markup:
        return element("text", content, x=f"{number(x)}%", y=f"{y:g}%", font_size=11, class_=class_, **shift)

    parts = [
        element(
            "svg",
            path(f"M0 1{curve}H{last}V1Z", class_="wb-fill-broadcast-soft wb-stroke-broadcast", stroke_width=1.5,
                 vector_effect="non-scaling-stroke"),
            x="14%", y="13%", width="84%", height="71%", viewBox=f"0 0 {last} 1", preserveAspectRatio="none",
            data_instructions=len(values),
        ),
        element("circle", cx=f"{number(x)}%", cy="13%", r=4, class_="wb-fill-bad"),
        words(f"most alive at once: {bytes_text(most)}", x, 13, f"wb-fill-fg{' wb-end' * near_right}",
              dx=-8 if near_right else 8, dy=-6),
        *(words(bytes_text(share * most), 13, 84 - 71 * share, "wb-fill-muted wb-end", dy=4) for share in (0, 0.5, 1)),
        words("instructions in the order in which they run", 56, 100, "wb-fill-muted wb-middle", dy=-6),
    ]  # fmt: skip
    return picture(width, height, *parts, label=label, dark=dark, live=live)
