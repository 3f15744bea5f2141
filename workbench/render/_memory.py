"""Memory as figures and text: what the compiler planned for one device, and what arrays take on every device."""

from typing import TYPE_CHECKING

from workbench.records.compiled import BufferRecord, MemoryRecord
from workbench.render._svg import bytes_text, count_text, line_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LISTED = 12
_PARTS = (
    ("argument_bytes", "arguments"),
    ("temporary_bytes", "temporaries"),
    ("output_bytes", "outputs"),
    ("code_bytes", "code"),
)


def plot_memory(
    memory: MemoryRecord, *, buffers: int = 10, ax: "Axes | None" = None, dark: bool | None = None
) -> "Figure":
    """The planned memory of one device by use, and the largest buffers alive at its peak.

    Example:
        >>> record = wb.inspect(lambda x: x @ x)(jnp.ones((64, 64)))
        >>> plot_memory(record.module.memory).axes[0].get_xlabel()
        'planned memory of one device (bytes)'
    """
    from workbench.render._figures import (
        byte_axis,
        canvas,
        colour,
        grid,
        ink,
        legend,
        say_nothing,
        stacked_bars,
        style,
        title,
    )

    largest = memory.largest[:buffers]
    figure, place = canvas(7.2, 2.1 + 0.3 * max(len(largest), 1), ax)
    top, bottom = place.subplots(2, 1, height_ratios=(1, max(len(largest), 1) * 0.3 + 0.4))
    for axes in (top, bottom):
        style(axes, dark)
    known = {name: [float(getattr(memory, key))] for key, name in _PARTS if getattr(memory, key) is not None}
    if known:
        stacked_bars(top, [""], known, dark)
        for name, value, at in (("peak", memory.peak_bytes, "--"), ("available", memory.available_bytes, "-")):
            if value is not None:
                top.axvline(value, color=ink(dark), linestyle=at, linewidth=1.2, label=f"{name} {bytes_text(value)}")
        byte_axis(top.xaxis)
        top.set_xlabel("planned memory of one device (bytes)")
        legend(top, dark, loc="upper left", bbox_to_anchor=(1.0, 1.1))
        title(top, describe_memory(memory), dark)
    else:
        say_nothing(top, dark, "this backend does not report how it plans memory")
    if largest:
        bottom.barh(range(len(largest)), [b.size_bytes for b in largest], color=colour(1), height=0.62)
        bottom.set_yticks(range(len(largest)), [_buffer_name(buffer) for buffer in largest])
        bottom.invert_yaxis()
        byte_axis(bottom.xaxis)
        bottom.set_xlabel("size of the largest buffers at the peak (bytes)")
        grid(bottom, dark, "x")
    else:
        say_nothing(bottom, dark, "no buffer is known by name")
    return figure


def plot_memory_timeline(memory: MemoryRecord, *, ax: "Axes | None" = None, dark: bool | None = None) -> "Figure":
    """Live bytes over the schedule of the compiled program, with its peak named.

    Example:
        >>> record = wb.inspect(lambda x: x @ x)(jnp.ones((64, 64)))
        >>> plot_memory_timeline(record.module.memory).axes[0].get_ylabel()
        'live memory of one device (bytes)'
    """
    from workbench.render._figures import byte_axis, colour, grid, ink, new_figure, say_nothing, title

    figure, axes = new_figure(7.2, 3.0, dark=dark, ax=ax)
    if not memory.timeline:
        say_nothing(axes, dark, "the schedule of this program is not known")
        return figure
    live = [amount for _, amount in memory.timeline]
    at = max(range(len(live)), key=live.__getitem__)
    axes.fill_between(range(len(live)), live, step="post", color=colour(4), alpha=0.35, linewidth=0)
    axes.step(range(len(live)), live, where="post", color=colour(0), linewidth=1.4)
    axes.plot([at], [live[at]], marker="o", color=colour(5))
    axes.annotate(
        f"{memory.timeline[at][0]}: {bytes_text(live[at])}", (at, live[at]), xytext=(0, 6), textcoords="offset points",
        fontsize=8.5, color=ink(dark), ha="right" if at > len(live) / 2 else "left",
    )  # fmt: skip
    axes.set_ylim(0, max(live) * 1.15 or 1)
    axes.set_xlim(0, max(len(live) - 1, 1))
    byte_axis(axes.yaxis)
    axes.set_xlabel("instruction (position in the schedule)")
    axes.set_ylabel("live memory of one device (bytes)")
    title(axes, f"Planned memory over {count_text(len(live))} instructions", dark)
    grid(axes, dark)
    return figure


def describe_memory(memory: MemoryRecord) -> str:
    """One sentence: peak, available, whether it fits.

    Example:
        >>> describe_memory(MemoryRecord(peak_bytes=2**30, available_bytes=2**31, fits=True))
        'Peak of 1 GiB per device, fits into 2 GiB'
    """
    if memory.peak_bytes is None:
        return "Peak memory is not known"
    fits = {True: ", fits into ", False: ", does not fit into ", None: " of "}[memory.fits]
    available = f"{fits}{bytes_text(memory.available_bytes)}" if memory.available_bytes is not None else ""
    return f"Peak of {bytes_text(memory.peak_bytes)} per device{available}"


def render_memory_text(memory: MemoryRecord) -> str:
    """Peak, parts and the largest buffers."""
    lines = [describe_memory(memory) + ".", *memory_parts(memory)]
    for buffer in memory.largest[:_LISTED]:
        where = f" at {line_text(buffer.source)}" if buffer.source else ""
        lines.append(f"  {bytes_text(buffer.size_bytes):>9} {buffer.name} {buffer.shape}{where}".rstrip())
    rest = memory.largest[_LISTED:]
    if rest:
        size = bytes_text(sum(each.size_bytes for each in rest))
        lines.append(f"  {size:>9} in {count_text(len(rest))} smaller buffers")
    return "\n".join(lines)


def memory_parts(memory: MemoryRecord) -> list[str]:
    """The compiler's totals in one line, and why they exceed the peak where they do; nothing without totals."""
    parts = [f"{name} {bytes_text(getattr(memory, key))}" for key, name in _PARTS if getattr(memory, key) is not None]
    if memory.alias_bytes:
        parts.append(f"shared by inputs and outputs {bytes_text(memory.alias_bytes)}")
    why = [f"  {note}" for note in memory.notes if note.startswith("temporaries are more than the peak")]
    return [f"  {', '.join(parts)}", *why] if parts else []


def _buffer_name(buffer: BufferRecord) -> str:
    where = f" ({buffer.source.file.rsplit('/', 1)[-1]}:{buffer.source.line})" if buffer.source else ""
    name = f"{buffer.name}{where}"
    return name if len(name) <= 40 else name[:39] + "…"
