"""Figures and text of memory: what was planned, what arrays take, and nothing where nothing is known."""

import pytest

from workbench.records import (
    BufferRecord,
    DeviceRecord,
    LeafShardingRecord,
    MemoryRecord,
    MeshRecord,
    ShardingRecord,
    ShardRecord,
    SourceLine,
)
from workbench.render import (
    bytes_by_device,
    plot_memory,
    plot_memory_by_device,
    plot_memory_timeline,
    render_memory_text,
)

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
    assert said == ["this backend does not tell how it plans memory", "no buffer is known by name"]


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


def test_bytes_by_device_name_the_largest_arrays_and_add_up_the_rest():
    leaves = (array("a", 8, (1,)), array("b", 4, (1, 3)), array("c", 2, (3,)), array("d", 1, (3,)))
    table, devices = bytes_by_device(ShardingRecord(leaves=leaves, mesh=MESH), arrays=2)
    assert table == {"a": {1: 8}, "b": {1: 4, 3: 4}, "others": {3: 3}}
    assert devices == [3, 1]  # the order of the mesh


def test_summarised_arrays_count_on_every_device_and_host_arrays_on_none():
    leaves = (array("a", 8), array("host", 100, replication=0, kind="host"))
    assert bytes_by_device(ShardingRecord(leaves=leaves, mesh=MESH))[0] == {"a": {3: 8, 1: 8}}


def test_devices_figure_stacks_arrays():
    leaves = (array("a", 8, (1,)), array("b", 4, (1, 3)))
    (axes,) = plot_memory_by_device(ShardingRecord(leaves=leaves, mesh=MESH)).axes
    assert [[bar.get_height() for bar in bars] for bars in axes.containers] == [[0, 8], [4, 4]]
    assert [bar.get_y() for bar in axes.containers[1]] == [0, 8]
    assert axes.get_title(loc="left") == "12 B on the fullest of 2 devices"


def test_thousands_of_devices_are_one_shape_per_array():
    devices = tuple(DeviceRecord(id=number, position=(number,)) for number in range(1000))
    (axes,) = plot_memory_by_device(
        ShardingRecord(leaves=(array("a", 8),), mesh=MeshRecord(axes=(), devices=devices))
    ).axes
    assert (len(axes.patches), len(axes.collections)) == (0, 1)


def test_tree_on_no_device_says_so():
    (axes,) = plot_memory_by_device(ShardingRecord(leaves=())).axes
    assert axes.texts[0].get_text() == "none of these arrays lies on a device"


@pytest.mark.parametrize("plot", [plot_memory, plot_memory_timeline], ids=lambda plot: plot.__name__)
@pytest.mark.parametrize("dark", [None, False, True], ids=["either", "light", "dark"])
def test_figures_are_drawn_in_every_theme(plot, dark):
    assert plot(MEMORY, dark=dark).png().startswith(b"\x89PNG")


def test_text_has_peak_parts_and_buffers():
    assert render_memory_text(MEMORY).splitlines() == [
        "Peak of 3 KiB per device, fits into 4 KiB.",
        "  arguments 1 KiB, temporaries 2 KiB, outputs 512 B",
        "      1 KiB dot.1 f32[256] at a/train.py:7",
    ]


def test_text_of_what_does_not_fit_says_so():
    assert "does not fit into 4 KiB" in render_memory_text(MEMORY.replace(fits=False))
