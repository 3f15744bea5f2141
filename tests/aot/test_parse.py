import pytest

from workbench.aot import list_targets, parse_target
from workbench.errors import MeshError
from workbench.records.compiled import TargetRecord

GOOD = [
    # name, canonical name, platform, hosts, chips, devices: counted by hand, 4 chips per TPU host
    ("v5e:16x16", "v5e:16x16", "tpu", 64, 256, 256),
    ("v5e:16x16*4", "v5e:16x16*4", "tpu", 256, 1024, 1024),
    ("v5e:1x1", "v5e:1x1", "tpu", 1, 1, 1),
    ("v5p:8x8x16", "v5p:8x8x16", "tpu", 256, 1024, 1024),
    ("v4:2x2x1", "v4:2x2x1", "tpu", 1, 4, 4),
    ("tpu7x:4x4x4", "tpu7x:4x4x4", "tpu", 16, 64, 128),
    ("v3:4x4", "v3:4x4", "tpu", 4, 16, 32),
    (" V5E : 4X4 ", "v5e:4x4", "tpu", 4, 16, 16),
    ("v5e-16", "v5e:4x4", "tpu", 4, 16, 16),
    ("v5litepod-16*2", "v5e:4x4*2", "tpu", 8, 32, 32),
    ("v5p-16", "v5p:2x2x2", "tpu", 2, 8, 8),  # Google Cloud counts cores here
    ("v3-8", "v3:2x2", "tpu", 1, 4, 8),
    ("h100:8", "h100:8", "cuda", 1, 8, 8),
    ("h100:1x8", "h100:8", "cuda", 1, 8, 8),
    ("b200:4x8", "b200:4x8", "cuda", 4, 32, 32),
    ("h100:128x8", "h100:128x8", "cuda", 128, 1024, 1024),
]


@pytest.mark.parametrize(("name", "canonical", "platform", "hosts", "chips", "devices"), GOOD, ids=[g[0] for g in GOOD])
def test_target_counts_hosts_chips_and_devices(name, canonical, platform, hosts, chips, devices):
    target = parse_target(name)
    assert (target.name, target.platform, target.hosts, target.chips, target.devices, target.seen) == (
        canonical, platform, hosts, chips, devices, True,
    )  # fmt: skip


BAD = [
    ("v7x:4x4x4", "'v7x' is not a known chip", "did you mean 'tpu7x:4x4x4'?"),
    ("v5lite:4x4", "'v5lite' is not a known chip", "did you mean 'v5e:4x4'?"),
    ("h10:8", "'h10' is not a known chip", "did you mean 'h100:8'?"),
    ("cerebras:1", "'cerebras' is not a known chip", "v2, v3, v4, v5e, v5p, v6e, tpu7x, a100, h100, h200, b200"),
    ("v5e", "not of the form chip:topology", "'v5e:16x16'"),
    (
        "v5e-12",
        "not of the form chip:topology",
        "in v5e-N, N is the number of chips: 1, 4, 8, 16, 32, 64, 128, 256; write 'v5e:2x4'",
    ),
    ("h100-8", "not of the form chip:topology", "write 'h100:8'"),
    ("tpu7x-16", "not of the form chip:topology", "write 'tpu7x:2x2x4'"),  # chips or devices: nobody can tell
    ("v5e:4x", "not of the form chip:topology", "'v5e:16x16*4'"),
    ("v5p:4x4", "with 2 sizes", "3 sizes in chips: write, for example, 'v5p:4x4x4'"),
    ("v5e:4x4x4", "with 3 sizes", "2 sizes in chips"),
    ("h100:2x2x8", "with 3 sizes", "hosts x GPUs per host"),
    ("h100:16", "16 GPUs in one host", "'h100:2x8'"),
    ("h100:8*2", "2 slices", "'h100:2x8'"),
    ("v5e:0x4", "a size is 0", "at least 1"),
    ("v5e:4x4*0", "a size is 0", "at least 1"),
    ("v5e:32x32", "untested topology", "nearest: v5e:16x16"),
    ("v5e:4x4*9", "untested topology", "in up to 8 slices"),
    (None, "given None", "'v5p:4x4x4'"),
]


@pytest.mark.parametrize(("name", "fact", "remedy"), BAD, ids=[str(b[0]) for b in BAD])
def test_target_that_cannot_be_says_why_and_what_to_write(name, fact, remedy):
    with pytest.raises(MeshError) as caught:
        parse_target(name)
    message = str(caught.value)
    assert message.startswith("`parse_target` was given")
    assert fact in message
    assert remedy in message


def test_topology_that_was_not_seen_is_taken_by_force_and_says_so():
    target = parse_target("v5e:32x32", force=True)
    assert (target.chips, target.seen) == (1024, False)
    assert "may crash" in target.notes[0]


@pytest.mark.parametrize("chip", list_targets(), ids=lambda chip: chip.chip)
def test_every_topology_that_is_offered_parses_to_itself(chip):
    names = [f"{chip.chip}:{topology}" for topology in chip.topologies]
    found = [parse_target(name) for name in names]
    assert [target.topology for target in found] == list(chip.topologies)
    assert all(target.available_bytes > 7 * 2**30 for target in found)


def test_canonical_name_parses_to_the_same_target():
    for chip in list_targets():
        target = parse_target(f"{chip.chip}:{chip.topologies[3]}")
        assert parse_target(target.name) == target


def test_target_record_is_json_able():
    record = parse_target("tpu7x:2x2x1")
    assert isinstance(record, TargetRecord)
    assert record.to_dict()["devices"] == 8


@pytest.mark.parametrize(
    "target", ["v5e:" + "9" * 5000, "v5e:4x4*" + "9" * 5000, "9" * 5000, "v5e:" + "4x" * 5000 + "4"]
)
def test_target_of_thousands_of_digits_is_refused_in_one_short_message(target: str):
    with pytest.raises(MeshError, match="not of the form chip:topology") as caught:
        parse_target(target)
    assert len(str(caught.value)) < 1000
