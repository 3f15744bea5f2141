"""Every record has a text with units; and heavy libraries wait until they are needed."""

import dataclasses
import subprocess
import sys

import pytest
from records_examples import fedavg_record, pods_record, rounds_record
from records_parts import TOY_CHIP, cost_record, mesh_record, module_record, sharding_record

from workbench import render
from workbench.records import Record
from workbench.records.hardware import ClientRange
from workbench.records.run import RunRecord
from workbench.records.sharding import PropagationRecord


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HolderRecord(Record):
    """A record that no view knows."""

    ranges: tuple[ClientRange, ...]


CHIP = TOY_CHIP.replace(peak_flops_per_second={"int8": 2e12}, hbm_bytes=1024, hbm_bytes_per_second=8e11, links=2)
RECORDS = [
    fedavg_record(),
    pods_record(),
    rounds_record(),
    fedavg_record().plan,
    module_record(),
    module_record().memory,
    cost_record(),
    sharding_record(),
    sharding_record().leaves[0],
    mesh_record(),
    PropagationRecord(),
    CHIP,
    RunRecord(name="r", engine="mesh", seconds=0.5),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_record_has_a_text_of_its_own_words(record):
    text = render.text(record)
    assert text.strip()
    assert "Record(" not in text
    assert max(map(len, text.splitlines())) < 400


def test_module_text_has_totals_collectives_and_memory():
    module = module_record()
    first, *rest = render.text(module).splitlines()
    assert first.startswith(f"Module {module.name} for {module.platform}")
    assert sum("all-reduce over" in line for line in rest) == sum(c.kind == "all-reduce" for c in module.collectives)
    assert any(line.startswith("Peak") for line in rest)


def test_unknown_totals_are_reported_as_unknown():
    assert "unknown, unknown of memory traffic" in render.text(module_record().replace(flops=None, accessed_bytes=None))


def test_other_records_list_their_fields_with_units():
    assert render.text(CHIP).splitlines()[1:5] == [
        "  name: toy",
        "  peak_flops_per_second: int8 2 TFLOP/s",
        "  hbm_bytes: 1 KiB",
        "  hbm_bytes_per_second: 800 GB/s",
    ]


def test_long_lists_are_cut_and_counted():
    held = tuple(ClientRange(placement="clients", device_id=0, start=0, stop=1) for _ in range(14))
    run = RunRecord(name="r", engine="mesh", seconds=1.0, errors=(), notes=())
    assert "… and 2 more" in render.text(HolderRecord(ranges=held))
    assert render.text(run) == "Run of r on mesh: 1 call in 1 s."


def test_views_load_matplotlib_and_treescope_only_when_asked():
    code = "import sys, workbench.render; print(*{'matplotlib', 'treescope'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
