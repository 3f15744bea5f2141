"""Text and picture of memory: what was planned, and nothing where nothing is known."""

from workbench import render
from workbench.records.compiled import BufferRecord, MemoryRecord
from workbench.records.program import SourceLine

MEMORY = MemoryRecord(
    argument_bytes=1024,
    output_bytes=512,
    temporary_bytes=2048,
    peak_bytes=3072,
    available_bytes=4096,
    fits=True,
    largest=(
        BufferRecord(name="dot.1", size_bytes=1024, shape="f32[256]", source=SourceLine(file="a/train.py", line=7)),
    ),
    timeline=(("p", 1024), ("dot.1", 3072), ("out", 512)),
)


def test_text_has_peak_parts_and_buffers():
    assert render.text(MEMORY).splitlines() == [
        "Peak of 3 KiB per device, fits into 4 KiB.",
        "  arguments 1 KiB, temporaries 2 KiB, outputs 512 B",
        "      1 KiB dot.1 f32[256] at a/train.py:7",
    ]


def test_text_of_what_does_not_fit_says_so():
    assert "does not fit into 4 KiB" in render.text(MEMORY.replace(fits=False))


def test_picture_marks_the_peak_and_is_empty_where_the_schedule_is_not_known():
    assert "peak 3 KiB at dot.1" in render.svg(MEMORY)
    assert render.svg(MemoryRecord()) == ""
