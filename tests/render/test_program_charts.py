import xml.etree.ElementTree as ET

import records_examples as examples
from records_parts import cost_record

from workbench import render
from workbench.records.compiled import MemoryRecord


def test_roofline_has_a_point_for_every_stage_that_computes():
    picture = render.svg(cost_record())
    assert picture is not None
    points = ET.fromstring(picture).findall(".//*[@data-stage]")
    assert sorted(point.attrib["data-stage"] for point in points) == ["1", "2", "3", "4"]  # a broadcast has no FLOPs


def test_roofline_says_the_intensity():
    picture = render.svg(cost_record())
    assert picture is not None
    # 16 clients of 491,520 FLOPs over 624,000 bytes.
    assert f"{16 * 491_520 / 624_000:.1f} FLOPs per byte" in picture


def test_roofline_needs_a_chip():
    assert render.svg(cost_record().replace(chip=None)) == ""


def test_memory_marks_the_largest_moment_however_many_instructions_there_are():
    timeline = tuple((f"i{k}", 1024 if k != 70_001 else 4096) for k in range(100_000))
    picture = render.svg(MemoryRecord(timeline=timeline))
    assert picture is not None
    assert "peak 4 KiB at i70001" in picture
    assert len(picture) < 40_000


def test_memory_without_a_timeline_has_no_picture():
    assert render.svg(examples.fedavg_record().module.memory.replace(timeline=())) == ""
