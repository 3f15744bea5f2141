"""Figures and text of memory: what was planned, what arrays take, and nothing where nothing is known."""

import pytest

from workbench.records.compiled import BufferRecord, MemoryRecord
from workbench.records.hardware import DeviceRecord, MeshRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import LeafShardingRecord, ShardRecord
from workbench.render import plot_memory, plot_memory_timeline, render_text

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


def array(path, held_bytes, devices=(), **fields):
    shards = tuple(ShardRecord(device_id=device, start=(0,), stop=(1,)) for device in devices)
    given = {"replication": 1} | fields
    return LeafShardingRecord(
        path=path,
        shape=(1,),
        dtype="int8",
        spec=((),),
        shard_shape=(1,),
        size_bytes=held_bytes,
        bytes_per_device=held_bytes,
        shards=shards,
        **given,
    )


MESH = MeshRecord(axes=(), devices=tuple(DeviceRecord(id=number, position=()) for number in (3, 1)))


def test_parts_are_stacked_against_peak_and_available():
    top, bottom = plot_memory(MEMORY).axes
    assert [bars[0].get_width() for bars in top.containers] == [1024, 2048, 512]
    assert [line.get_xdata()[0] for line in top.lines] == [3072, 4096]
    assert [label.get_text() for label in bottom.get_yticklabels()] == ["dot.1 (train.py:7)"]


def test_byte_ticks_are_round_in_binary_units():
    top, _ = plot_memory(MEMORY).axes
    top.figure.canvas.draw()
    assert [label.get_text() for label in top.get_xticklabels()] == ["0 B", "1 KiB", "2 KiB", "3 KiB", "4 KiB"]


def test_unknown_memory_says_so():
    said = [axes.texts[0].get_text() for axes in plot_memory(MemoryRecord()).axes]
    assert said == ["this backend does not report how it plans memory", "no buffer is known by name"]


def test_timeline_marks_its_peak():
    (axes,) = plot_memory_timeline(MEMORY).axes
    assert axes.texts[0].get_text() == "dot.1: 3 KiB"
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "instruction (position in the schedule)",
        "live memory of one device (bytes)",
    )


def test_timeline_that_is_not_known_says_so():
    assert (
        plot_memory_timeline(MemoryRecord()).axes[0].texts[0].get_text() == "the schedule of this program is not known"
    )


@pytest.mark.parametrize("plot", [plot_memory, plot_memory_timeline], ids=lambda plot: plot.__name__)
@pytest.mark.parametrize("dark", [None, False, True], ids=["either", "light", "dark"])
def test_figures_are_drawn_in_every_theme(plot, dark):
    assert plot(MEMORY, dark=dark).png().startswith(b"\x89PNG")


def test_text_has_peak_parts_and_buffers():
    assert render_text(MEMORY).splitlines() == [
        "Peak of 3 KiB per device, fits into 4 KiB.",
        "  arguments 1 KiB, temporaries 2 KiB, outputs 512 B",
        "      1 KiB dot.1 f32[256] at a/train.py:7",
    ]


def test_text_of_what_does_not_fit_says_so():
    assert "does not fit into 4 KiB" in render_text(MEMORY.replace(fits=False))
