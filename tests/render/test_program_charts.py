import records_examples as examples

from workbench import render
from workbench.records.compiled import MemoryRecord


def test_memory_marks_the_largest_moment_however_many_instructions_there_are():
    timeline = tuple((f"i{k}", 1024 if k != 70_001 else 4096) for k in range(100_000))
    picture = render.svg(MemoryRecord(timeline=timeline))
    assert picture is not None
    assert "peak 4 KiB at i70001" in picture
    assert len(picture) < 40_000


def test_memory_without_a_timeline_has_no_picture():
    assert render.svg(examples.fedavg_record().module.memory.replace(timeline=())) == ""
