"""Memory as figures and text: the compiler's plan for one device, and the arrays on every device."""

from typing import TYPE_CHECKING

from workbench.records.compiled import BufferRecord, MemoryRecord
from workbench.render.units import bytes_text, count_text, line_text

if TYPE_CHECKING:
    pass

_LISTED = 12
_PARTS = (
    ("argument_bytes", "arguments"),
    ("temporary_bytes", "temporaries"),
    ("output_bytes", "outputs"),
    ("code_bytes", "code"),
)


def describe_memory(memory: MemoryRecord) -> str:
    """Summarizes memory in one sentence: the peak, the available memory, and whether the program fits.

    Example:
        >>> describe_memory(MemoryRecord(peak_bytes=2**30, available_bytes=2**31, fits=True))
        'Peak of 1 GiB per device, fits into 2 GiB'
    """
    if memory.peak_bytes is None:
        return "Peak memory is unknown"
    fits = {True: ", fits into ", False: ", does not fit into ", None: " of "}[memory.fits]
    available = f"{fits}{bytes_text(memory.available_bytes)}" if memory.available_bytes is not None else ""
    return f"Peak of {bytes_text(memory.peak_bytes)} per device{available}"


def render_memory_text(memory: MemoryRecord) -> str:
    """The peak, its parts and the largest buffers."""
    lines = [describe_memory(memory) + ".", *memory_parts(memory)]
    for buffer in memory.largest[:_LISTED]:
        where = f" at {line_text(buffer.source)}" if buffer.source else ""
        lines.append(f"  {bytes_text(buffer.size_bytes):>9} {buffer.name} {buffer.shape}{where}".rstrip())
    rest = memory.largest[_LISTED:]
    if rest:
        size = bytes_text(sum(b.size_bytes for b in rest))
        lines.append(f"  {size:>9} in {count_text(len(rest))} smaller buffers")
    return "\n".join(lines)


def memory_parts(memory: MemoryRecord) -> list[str]:
    """The compiler's totals in one line, and a reason if they exceed the peak; empty if there are no totals."""
    parts = [f"{name} {bytes_text(getattr(memory, key))}" for key, name in _PARTS if getattr(memory, key) is not None]
    if memory.alias_bytes:
        parts.append(f"shared by inputs and outputs {bytes_text(memory.alias_bytes)}")
    why = [f"  {note}" for note in memory.notes if note.startswith("temporaries exceed the peak")]
    return [f"  {', '.join(parts)}", *why] if parts else []


def _buffer_name(buffer: BufferRecord) -> str:
    where = f" ({buffer.source.file.rsplit('/', 1)[-1]}:{buffer.source.line})" if buffer.source else ""
    name = f"{buffer.name}{where}"
    return name if len(name) <= 40 else name[:39] + "…"
