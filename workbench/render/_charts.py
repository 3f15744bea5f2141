"""Small SVG charts for live views and for pages: memory over a schedule."""

from workbench.records.compiled import MemoryRecord
from workbench.render._svg import Markup, element, path
from workbench.render._theme import picture
from workbench.render.units import bytes_text, number

_POINTS = 1200  # of the curve of memory


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
