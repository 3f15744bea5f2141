"""Whole profiles, written by hand byte by byte or as JSON, and what is read from them."""

import gzip
import json
import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from records_parts import toy_module

from workbench.cost import seconds_of_collective
from workbench.errors import ProfileError
from workbench.measurement import _trace_json, _xplane, open_profile, trim_profile
from workbench.measurement._device_events import device_of, first_moment, read_plane
from workbench.measurement._trace_json import read_trace
from workbench.measurement._xplane import Plane, _length, read_space
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.profile import ProfileRecord
from workbench.records.program import SourceLine

Value = int | float | str | bytes


def message(*pairs: tuple[int, Value]) -> bytes:
    """A message of the wire format: fields of integers, doubles, texts and messages."""
    data = b""
    for number, value in pairs:
        if isinstance(value, float):
            data += _length(number << 3 | 1) + struct.pack("<d", value)
        elif isinstance(value, int):
            data += _length(number << 3) + _length(value % 2**64)
        else:
            content = value.encode() if isinstance(value, str) else value
            data += _length(number << 3 | 2) + _length(len(content)) + content
    return data


Event = tuple[str, int, int] | tuple[str, int, int, dict[str, Value]]  # kind, offset and duration in microseconds


def plane(name: str, lines: Iterable[tuple[str, int, list[Any]]], stats: dict[str, Value] | None = None,
          kinds: dict[str, dict[str, Value]] | None = None) -> bytes:  # fmt: skip
    """A plane; lines start at nanoseconds, and `kinds` are the statistics of all events of a kind."""
    names: dict[str, int] = {}
    numbers: dict[str, int] = {}

    def stat(key: str, value: Value) -> bytes:
        number = names.setdefault(key, len(names) + 1)
        field = {float: 2, int: 4, str: 5, bytes: 6}[type(value)]
        return message((1, number), (field, value))

    fields: list[tuple[int, Value]] = [(1, 5), (2, name)]
    for title, start, events in lines:
        content: list[tuple[int, Value]] = [(2, title), (3, start)]
        for kind, offset, duration, *others in events:
            number = numbers.setdefault(kind, len(numbers) + 1)
            own = [(4, stat(key, value)) for key, value in (others[0] if others else {}).items()]
            content.append((4, message((1, number), (2, offset * 10**6), (3, duration * 10**6), *own)))
        fields.append((3, message(*content)))
    for kind, number in numbers.items():
        facts = [(5, stat(key, value)) for key, value in (kinds or {}).get(kind, {}).items()]
        fields.append((4, message((1, number), (2, message((1, number), (2, kind), *facts)))))
    fields += [(6, stat(key, value)) for key, value in (stats or {}).items()]
    fields += [(5, message((1, number), (2, message((1, number), (2, key))))) for key, number in names.items()]
    return message(*fields)


def written(folder: Path, *planes: bytes, name: str = "a.xplane.pb", host: str = "") -> Path:
    path = folder / name
    path.write_bytes(message(*((1, content) for content in planes), *([(4, host)] if host else [])))
    return path


def near(seconds: float) -> Any:
    return pytest.approx(seconds * 1e-6, abs=1e-12)


# ---- a TPU

DOT = "%dot.3 = f32[8,4]{1,0} dot(f32[8,8] %a, bf16[8,4] %b)"
TPU = plane(
    "/device:TPU:1",
    [
        ("XLA Modules", 2000, [("jit_f(7)", 0, 12, {"run_id": 3}), ("jit_g(8)", 20, 4, {"run_id": 4})]),
        ("XLA Ops", 2000, [
            ("%fusion.1 = bf16[64] fusion(x)", 0, 4), ("%while.2 = f32[8] while(x)", 4, 7), (DOT, 5, 2),
            ("%all-reduce.4 = f32[8] all-reduce(x)", 20, 3), ("lost", 30, 1),
        ]),
        ("Async XLA Ops", 2000, [("%copy-start.9 = f32[8] copy-start(x)", 1, 6, {"hlo_op": "copy-start.9"})]),
        ("XLA TraceMe", 2000, [("barrier-cores", 1, 2), ("something else", 5, 5), ("dependency-wait", 8, 3)]),
        ("Steps", 2000, [("1", 0, 40)]),
    ],
    {"device_type_string": "TPU v5 lite", "peak_teraflops_per_second": 197.5,
     "peak_hbm_bw_gigabytes_per_second": 819.0},
    {DOT: {"hlo_category": "convolution fusion", "model_flops": 512, "raw_bytes_accessed": "384",
           "source": "/a/b.py:12", "tf_op": "jit(f)/mlp/dot:", "program_id": 7}},
)  # fmt: skip


@pytest.fixture(scope="module")
def tpu(tmp_path_factory: pytest.TempPathFactory) -> ProfileRecord:
    return open_profile(written(tmp_path_factory.mktemp("tpu"), TPU))


def test_operations_of_a_tpu(tpu):
    rows = [(o.name, o.program, o.executions, o.seconds, o.seconds_by_device, o.kind) for o in tpu.operations]
    assert rows == [
        ("while.2", "jit_f(7)", 1, near(5), {"tpu:1": near(5)}, "compute"),  # without the product inside
        ("fusion.1", "jit_f(7)", 1, near(4), {"tpu:1": near(4)}, "compute"),
        ("all-reduce.4", "jit_g(8)", 1, near(3), {"tpu:1": near(3)}, "collective"),
        ("dot.3", "jit_f(7)", 1, near(2), {"tpu:1": near(2)}, "compute"),
        ("lost", "", 1, near(1), {"tpu:1": near(1)}, "compute"),  # between the runs of programs
    ]
    dot = tpu.operations[3]
    assert (dot.category, dot.flops, dot.accessed_bytes, dot.dtype) == ("convolution fusion", 512, 384, "float32")
    assert (dot.op_name, dot.source.file, dot.source.line, dot.hlo) == ("jit(f)/mlp/dot", "/a/b.py", 12, DOT)
    assert (dot.opcode, dot.stage, dot.joined, dot.elementwise_flops) == ("", None, False, None)
    assert dot.predicted_seconds is not None
    assert [o.predicted_seconds for o in tpu.operations if o is not dot] == [None] * 4  # unknown work


def test_device_and_programs_of_a_tpu(tpu):
    (device,) = tpu.devices
    assert (device.where, device.platform, device.kind) == ("tpu:1", "tpu", "TPU v5 lite")
    assert (device.peak_flops_per_second, device.peak_bytes_per_second) == (197.5e12, 819e9)
    assert (device.events, device.span_seconds) == (5, near(31))
    assert (device.compute_seconds, device.collective_seconds) == (near(12), near(3))
    assert (device.wait_seconds, device.overlapped_seconds, device.other_seconds) == (near(5), near(6), 0.0)
    assert [(p.name, p.module, p.seconds, p.operations, p.runs, p.hlo) for p in tpu.programs] == [
        ("jit_f(7)", "jit_f", near(11), 3, 1, "missing"), ("jit_g(8)", "jit_g", near(3), 1, 1, "missing"),
        ("", "", near(1), 1, None, "missing"),
    ]  # fmt: skip
    assert (tpu.joined, tpu.joined_seconds, tpu.chip.name) == (0.0, 0.0, "v5e")


def test_timeline_and_unjoined_events_of_a_tpu(tpu):
    assert [(e.name, e.kind, e.start_seconds, e.seconds) for e in tpu.events] == [
        ("fusion.1", "compute", 0.0, near(4)), ("barrier-cores", "wait", near(1), near(2)),
        ("while.2", "compute", near(4), near(7)), ("dot.3", "compute", near(5), near(2)),
        ("dependency-wait", "wait", near(8), near(3)), ("all-reduce.4", "collective", near(20), near(3)),
        ("lost", "compute", near(30), near(1)),
    ]  # fmt: skip
    unjoined = {
        record.kind: (record.events, record.seconds, record.overlaps, [*record.names]) for record in tpu.unjoined
    }
    assert unjoined == {
        "operations of jit_f(7) without an instruction in HLO": (3, near(11), False, ["while.2", "fusion.1", "dot.3"]),
        "asynchronous": (1, near(6), True, ["copy-start.9"]),
        "waiting for other chips": (2, near(5), True, ["dependency-wait", "barrier-cores"]),
        "operations of jit_g(8) without an instruction in HLO": (1, near(3), False, ["all-reduce.4"]),
        "operations of no program without an instruction in HLO": (1, near(1), False, ["lost"]),
    }
    assert [record.seconds for record in tpu.unjoined] == sorted((r.seconds for r in tpu.unjoined), reverse=True)


def test_one_program_of_a_tpu_leaves_the_others_out(tmp_path):
    path = written(tmp_path, TPU)
    profile = open_profile(path, "jit_f")
    assert [o.name for o in profile.operations] == ["while.2", "fusion.1", "dot.3"]
    (device,) = profile.devices
    assert (device.platform, device.events, device.wait_seconds, device.other_seconds) == ("tpu", 3, 0.0, 0.0)
    assert "Only jit_f is read: 73.3 % of the seconds" in profile.notes[0]  # 11 of 15 microseconds
    assert "ignored: 2 other programs" in profile.notes[0]
    with pytest.raises(ProfileError) as error:
        open_profile(path, "jit_h")
    assert "'jit_f(7)' (1.1e-05 s), 'jit_g(8)' (3e-06 s), '' (1e-06 s)." in str(error.value)


def test_other_time_of_a_selected_program_is_between_its_own_events(tmp_path):
    events = [("%a = f32[] add(x)", 0, 1), ("%b = f32[] add(x)", 10, 2), ("%c = f32[] add(x)", 20, 4),
              ("%d = f32[] add(x)", 30, 8), ("%e = f32[] add(x)", 40, 16)]  # fmt: skip
    runs = [(f"jit_{name}(1)", start, 9) for name, start in zip("gfgfg", range(0, 50, 10), strict=True)]
    path = written(tmp_path, plane("/device:TPU:0", [("XLA Modules", 0, runs), ("XLA Ops", 0, events)]))
    (device,) = open_profile(path, "jit_f(1)").devices
    assert (device.compute_seconds, device.other_seconds) == (near(10), near(4))  # c, between b and d


def test_devices_per_host_and_their_hosts(tmp_path):
    written(tmp_path, TPU, name="one.xplane.pb", host="first")
    written(tmp_path, TPU, name="two.x.xplane.pb")
    profile = open_profile(tmp_path)
    assert [device.where for device in profile.devices] == ["first/tpu:1", "two/tpu:1"]
    assert (profile.hosts, [Path(file).name for file in profile.files]) == (
        ("first", "two"), ["one.xplane.pb", "two.x.xplane.pb"],
    )  # fmt: skip
    assert profile.operations[0].seconds_by_device == {"first/tpu:1": near(5), "two/tpu:1": near(5)}
    assert open_profile(tmp_path / "one.xplane.pb").hosts == ("first",)
    assert open_profile(tmp_path / "two.x.xplane.pb").hosts == ()


# ---- a GPU and a CPU


def kernel(name: str, start: int, duration: int, **stats: Value) -> Event:
    return name, start, duration, stats


def gpu(*lines: tuple[str, int, list[Event]], number: int = 0, **stats: Value) -> bytes:
    facts: dict[str, Value] = {"device_vendor": "AMD", "core_count": 304, "memory_size": 206_141_652_992}
    return plane(f"/device:GPU:{number}", lines, facts | stats)


def test_kernels_of_streams_are_merged(tmp_path):
    first = [kernel("k1", 0, 2, hlo_op="dot.1", hlo_module="jit_f", program_id=5),
             kernel("k2", 6, 2, hlo_op="dot.1", hlo_module="jit_f", program_id=5)]  # fmt: skip
    second = [kernel("k3", 3, 2, hlo_op="add.1", hlo_module="jit_f", program_id=5), kernel("MemcpyD2H", 9, 4)]
    lines = ("Stream #1(Compute)", 0, first), ("Stream #2(Compute)", 0, second), ("XLA Ops", 0, [kernel("x", 0, 90)])
    profile = open_profile(written(tmp_path, gpu(*lines)))
    assert [(o.name, o.program, o.executions, o.events, o.seconds) for o in profile.operations] == [
        ("dot.1", "jit_f(5)", 2, 2, near(4)), ("add.1", "jit_f(5)", 1, 1, near(2)),
    ]  # fmt: skip
    (device,) = profile.devices
    assert (device.kind, device.span_seconds, device.other_seconds) == ("AMD MI300X", near(13), near(4))
    assert (device.peak_flops_per_second, device.peak_bytes_per_second) == (None, None)
    assert profile.joined == 0.0
    assert any("no HLO for jit_f(5)" in note for note in profile.notes)


def test_a_device_with_other_events_alone_has_its_platform(tmp_path):
    copies = [kernel("MemcpyD2H", 5, 4), kernel("MemcpyD2H", 1, 2)]
    planes = gpu(("Stream #1", 0, copies), core_count=7), gpu(("Stream #1", 0, []), number=1)
    profile = open_profile(written(tmp_path, *planes))
    (device,) = profile.devices  # the second has no events
    assert (device.platform, device.kind) == ("gpu", "AMD GPU of 7 cores")
    assert (device.events, device.other_seconds, device.span_seconds) == (0, near(6), near(8))
    assert [(e.name, e.kind, e.start_seconds) for e in profile.events] == [
        ("MemcpyD2H", "other", 0.0), ("MemcpyD2H", "other", near(4)),
    ]  # fmt: skip
    assert (profile.joined, profile.joined_seconds) == (0.0, 0.0)
    assert any("command buffer" in note for note in profile.notes)


def test_events_of_no_duration_have_shares_of_zero(tmp_path):
    lines = ("Stream #1", 0, [kernel("k", 0, 0, hlo_op="dot.1", hlo_module="jit_f")])
    profile = open_profile(written(tmp_path, gpu(lines)))
    assert (profile.joined_seconds, profile.operations[0].seconds) == (0.0, 0.0)


def test_five_names_of_unjoined_events_are_kept_longest_first(tmp_path):
    copies = [kernel(f"MemcpyD2H {number}", 10 * number, number + 1) for number in range(6)]
    lost = [kernel("k", 10 * number + 70, number + 1, hlo_op=f"dot.{number}", hlo_module="f") for number in range(6)]
    profile = open_profile(written(tmp_path, gpu(("Stream #1", 0, [*copies, *lost]))))
    names = {record.kind: [*record.names] for record in profile.unjoined}
    assert names == {
        "memory copies and fills": [f"MemcpyD2H {number}" for number in (5, 4, 3, 2, 1)],
        "operations of f without an instruction in HLO": [f"dot.{number}" for number in (5, 4, 3, 2, 1)],
    }


def test_two_hundred_names_of_unjoined_events_are_summed(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.measurement._profile_reader._MOST_NAMES", 2)
    copies = [kernel(f"Memcpy {name}", start, 1 + start) for start, name in enumerate("abcab")]
    profile = open_profile(written(tmp_path, gpu(("Stream #1", 0, copies))))
    (record,) = profile.unjoined
    assert (record.events, record.seconds) == (5, near(15))
    assert record.names == {"Memcpy b": near(7), "Memcpy a": near(5)}


def test_long_names_of_unjoined_events_are_cut(tmp_path):
    profile = open_profile(written(tmp_path, gpu(("Stream #1", 0, [kernel("Memcpy" + "x" * 300, 0, 1)]))))
    assert [*profile.unjoined[0].names] == ["Memcpy" + "x" * 194]


HOST = plane(
    "/host:CPU",
    [
        ("tf_XLA", 3000, [
            kernel("dot", 0, 2, hlo_op="dot.1", hlo_module="jit_f", device_ordinal=2, run_id=9, program_id=4),
            kernel("dot", 5, 3, hlo_op="dot.1", hlo_module="jit_f", device_ordinal=0, run_id=9, program_id=4),
            kernel("without a device", 9, 1, hlo_op="x"),
        ]),
        ("allocator", 3000, [
            kernel("MemoryAllocation", 1, 0, bytes_allocated=100, bytes_reserved=7, allocator_name="a"),
            kernel("MemoryDeallocation", 2, 0, bytes_allocated=40, peak_bytes_in_use=300, allocator_name="a"),
            kernel("MemoryAllocation", 3, 0, bytes_allocated=500, allocator_name="b"),
            kernel("another", 4, 0, bytes_allocated=9999, allocator_name="a"),
        ]),
    ],
)  # fmt: skip


def test_simulated_devices_and_allocations_of_a_host(tmp_path):
    profile = open_profile(written(tmp_path, HOST))
    assert [(device.where, device.platform, device.compute_seconds) for device in profile.devices] == [
        ("cpu:0", "cpu", near(3)), ("cpu:2", "cpu", near(2)),
    ]  # fmt: skip
    assert [(o.name, o.program, o.executions) for o in profile.operations] == [("dot.1", "jit_f(4)", 2)]
    rows = [(record.where, record.allocator, record.peak_bytes, record.events) for record in profile.memory]
    assert rows == [("this host", "b", 500, 1), ("this host", "a", 300, 2)]
    assert [[(pytest.approx(seconds), used) for seconds, used in record.timeline] for record in profile.memory] == [
        [(3e-6, 500)], [(1e-6, 107), (2e-6, 40)],
    ]  # fmt: skip
    assert any("Devices simulated on one CPU" in note for note in profile.notes)


def test_a_long_memory_timeline_is_thinned(tmp_path):
    events = [kernel("MemoryAllocation", moment, 0, bytes_allocated=moment) for moment in range(2001)]
    content = plane("/host:CPU", [("x", 1, [kernel("dot", 0, 2, hlo_op="d", device_ordinal=0)]), ("y", 1, events)])
    (record,) = open_profile(written(tmp_path, content)).memory
    assert (record.events, record.peak_bytes) == (2001, 2000)
    assert [used for _, used in record.timeline] == [*range(0, 2001, 2)]


# ---- with the HLO of the program


def instruction(name: str, opcode: str, computation: str = "main", **fields: Any) -> InstructionRecord:
    options = {"shape": "f32[8]{0}", "size_bytes": 32, "executions": 1.0} | fields
    return InstructionRecord(name=name, opcode=opcode, computation=computation, **options)


def collective(name: str, group_size: int) -> CollectiveRecord:
    return CollectiveRecord(
        name=name, kind="all-reduce", axes=(), group_size=group_size, groups=1, payload_bytes=2**20, wire_bytes=2.0**20,
        executions=1,
    )  # fmt: skip


LINE = SourceLine(file="mine.py", line=4)
MODULE = toy_module(
    name="jit_f",
    instructions=(
        instruction("dot.1", "dot", flops=1e9, accessed_bytes=10**6, elementwise_flops=3.0, stage="2", source=LINE,
                    op_name="mine"),
        instruction("custom.1", "custom-call", accessed_bytes=10**6),
        instruction("fused", "fusion", accessed_bytes=10**6), instruction("conv-like", "add", accessed_bytes=10**6),
        instruction("slice-start", "slice-start", accessed_bytes=8),
        instruction("all-reduce.1", "all-reduce"), instruction("all-reduce.2", "all-reduce"),
    ),
    collectives=(collective("all-reduce.1", 4), collective("all-reduce.2", 1)),
)  # fmt: skip


def of_program(*names: str, **facts: Value) -> bytes:
    events = [(f"%{name} = f32[8] op(x)", 2 * place, 1) for place, name in enumerate(names)]
    lines = [("XLA Modules", 1, [("jit_f(7)", 0, 2 * len(names))]), ("XLA Ops", 1, events)]
    kinds: dict[str, dict[str, Value]] = {events[0][0]: facts}
    return plane("/device:TPU:0", lines, {"device_type_string": "TPU v5 lite"}, kinds)


def test_operations_have_the_facts_of_their_instructions(tmp_path):
    names = [member.name for member in MODULE.instructions]
    path = written(tmp_path, of_program(*names, "lost", source="theirs.py:9", tf_op="theirs", model_flops=5))
    profile = open_profile(path, MODULE)
    rows = {o.name: (o.opcode, o.flops, o.accessed_bytes, o.kind, o.joined) for o in profile.operations}
    assert rows == {
        "dot.1": ("dot", 1e9, 1e6, "compute", True), "custom.1": ("custom-call", None, 1e6, "compute", True),
        "fused": ("fusion", 0.0, 1e6, "compute", True), "conv-like": ("add", 0.0, 1e6, "compute", True),
        "slice-start": ("slice-start", 0.0, None, "copy", True),
        "all-reduce.1": ("all-reduce", 0.0, 0.0, "collective", True),
        "all-reduce.2": ("all-reduce", 0.0, 0.0, "collective", True), "lost": ("", None, None, "compute", False),
    }  # fmt: skip
    by_name = {operation.name: operation for operation in profile.operations}
    dot = by_name["dot.1"]
    assert (dot.stage, dot.source, dot.op_name, dot.elementwise_flops) == ("2", LINE, "mine", 3.0)
    predicted = {name for name, operation in by_name.items() if operation.predicted_seconds is not None}
    assert predicted == {"dot.1", "fused", "conv-like", "all-reduce.1"}
    chip: Any = profile.chip
    assert by_name["all-reduce.1"].predicted_seconds == seconds_of_collective(MODULE.collectives[0], chip)
    # memory bound: a megabyte at the bandwidth of the chip, as a fusion and as an addition
    assert by_name["fused"].predicted_seconds == by_name["conv-like"].predicted_seconds
    assert by_name["dot.1"].predicted_seconds != by_name["fused"].predicted_seconds
    assert profile.joined == pytest.approx(7 / 8)
    assert profile.joined_seconds == pytest.approx(7 / 8)
    assert [(e.name, e.stage, e.source) for e in profile.events[:2]] == [("dot.1", "2", LINE), ("custom.1", None, None)]
    assert [(p.hlo, p.flops, p.operations) for p in profile.programs] == [("given", 0.0, 8)]
    assert not any("no HLO" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("opcode", "own"), [("while", 4.0), ("conditional", 4.0), ("call", 4.0), ("fusion", 10.0), ("while twice", 0.0)]
)
def test_events_of_hosts_around_others_keep_their_own_seconds(tmp_path, opcode, own):
    twice = opcode.endswith("twice")  # parts that overlap on several threads
    module = toy_module(name="jit_f", instructions=(
        instruction("outer", opcode.partition(" ")[0], calls=("condition", "body")),
        instruction("less", "compare", "condition"), instruction("dot", "dot", "body"), instruction("other", "add"),
    ))  # fmt: skip

    def execution(name: str, start: int, duration: int, device: int = 0) -> Event:
        return kernel(name, start, duration, hlo_op=name, hlo_module="jit_f", device_ordinal=device)

    events = [execution("outer", 0, 10), execution("less", 0, 2), execution("dot", 3, 4), execution("other", 20, 1),
              execution("outer", 0, 3, 1)]  # fmt: skip
    lines = [("one", 1, events), ("other", 1, [execution("dot", 3, 7)] if twice else [])]
    operations = open_profile(written(tmp_path, plane("/host:CPU", lines)), module).operations
    seconds = {operation.name: operation.seconds_by_device for operation in operations}
    assert seconds["outer"] == {"cpu:0": near(own), "cpu:1": near(3)}
    assert seconds["other"] == {"cpu:0": near(1)}
    assert seconds["dot"] == {"cpu:0": near(11 if twice else 4)}


@pytest.mark.parametrize(("most", "kept"), [(1, 2), (3, 2), (4, 4), (7, 6), (100, 8)])
def test_each_device_has_an_equal_part_of_the_timeline(tmp_path, most, kept):
    def stream(number: int) -> bytes:
        events = [kernel("k", 10 * place + number, 1, hlo_op="a", hlo_module="f") for place in range(4)]
        return gpu(("Stream #1", 0, events), number=number)

    profile = open_profile(written(tmp_path, stream(0), stream(1)), max_events=most)
    assert len(profile.events) == kept
    assert {event.where for event in profile.events} == {"gpu:0", "gpu:1"}
    assert profile.operations[0].events == 8
    cut = f"contains {kept} of 8 events: the first {kept // 2} of each device"
    assert any(cut in note for note in profile.notes) == (most < 8)
    (alone,) = {len(open_profile(written(tmp_path, stream(0)), max_events=most).events)}
    assert alone == min(4, most)


def test_device_whose_events_all_overlap_has_no_span(tmp_path):
    copies = [("%copy-start.1 = f32[8] copy-start(x)", 5, 6)]
    profile = open_profile(written(tmp_path, plane("/device:TPU:0", [("Async XLA Ops", 0, copies)])))
    (device,) = profile.devices
    assert (device.span_seconds, device.overlapped_seconds, profile.joined, profile.events) == (0.0, near(6), 0.0, ())
    assert [*profile.unjoined[0].names] == ["copy-start.1"]
    (event,) = read_plane(of_file(plane("/device:TPU:0", [("Async XLA Ops", 0, copies)])))
    assert (event.start_seconds, event.seconds) == (near(5), near(6))


def test_kernels_of_a_command_buffer_have_the_instructions_of_the_program(tmp_path):
    module = toy_module(name="jit_f", instructions=(
        instruction("p", "parameter"), instruction("loop_add_fusion", "fusion"), instruction("gemm", "custom-call"),
        instruction("loop_multiply_fusion", "fusion"),
    ))  # fmt: skip

    def node(number: int, name: str, start: int) -> Event:
        return kernel(name, start, number + 1, hlo_op="command_buffer", hlo_module="jit_f", cuda_graph_id=1,
                      cuda_graph_node_id=number)  # fmt: skip

    kernels = [("loop_add_fusion", 0), ("memset32", 1), ("cublas_gemm", 2), ("loop_multiply_fusion", 3)]
    events = [node(number, name, 10 * number + 100 * run) for run in (0, 1) for name, number in kernels]
    content = gpu(("Stream #1", 0, events))
    profile = open_profile(written(tmp_path, content), module)
    rows = {o.name: (o.executions, o.events, o.seconds, o.joined) for o in profile.operations}
    assert rows == {
        "loop_add_fusion": (2, 2, near(2), True), "gemm": (2, 4, near(10), True),  # with the memory that is cleared
        "loop_multiply_fusion": (2, 2, near(8), True),
    }  # fmt: skip
    assert [event.name for event in profile.events][:4] == ["loop_add_fusion", "gemm", "gemm", "loop_multiply_fusion"]
    assert {event.kind for event in profile.events} == {"compute"}
    assert any("The instructions of 4 kernels in command buffers" in note for note in profile.notes)
    # another program: its kernels stay without an instruction
    other = open_profile(written(tmp_path, content), module.replace(instructions=module.instructions[:2]))
    (buffers,) = other.unjoined
    assert (other.operations, buffers.kind, buffers.events, buffers.seconds) == ((), "command buffers", 8, near(20))
    assert [(event.name, event.kind) for event in other.events] == [("command buffers", "other")] * 8
    assert (other.devices[0].events, other.devices[0].other_seconds) == (0, near(20))


# ---- planes


def test_planes_that_are_devices():
    assert [device_of(name) for name in ("/device:CUSTOM:0", "/device:GPU:12", "/device:GPU:1 x")] == [
        None, ("gpu", 12), None,
    ]  # fmt: skip


def of_file(data: bytes) -> Plane:
    (only,) = read_space(message((1, data))).planes
    return only


def test_sparse_cores_and_custom_devices():
    lines = [("XLA Modules", 0, [("m", 0, 1)]), ("Steps", 0, [("s", 0, 1)]), ("XLA Ops", 0, [("op", 2, 3)])]
    for name, expected in (
        ("/device:TPU:3 SparseCore 1", [(3, "SparseCore operations", "op", near(2), near(3), True)]),
        ("/device:TPU:3 other", [(3, "events of /device:TPU:3 other", "op", near(2), near(3), True)]),
        ("/device:CUSTOM:0", []), ("/host:other", []),
    ):  # fmt: skip
        assert [tuple(event) for event in read_plane(of_file(plane(name, lines)))] == expected


def test_first_moment_of_planes_with_device_events():
    def moment(*planes: bytes) -> int:
        return first_moment([of_file(content) for content in planes])

    ops = [("XLA Ops", 5, [("x", 0, 1)])]
    assert moment(plane("/device:TPU:0", ops)) == 5000
    assert moment(plane("/device:TPU:0", ops), plane("/host:CPU", [("x", 3, [])])) == 3000
    assert moment(plane("/host:other", ops)) == 0
    assert moment(plane("/device:TPU:0", [("a", 0, []), ("b", 7, [])])) == 7000  # 0 is no time
    assert moment(plane("/device:TPU:0", [("a", -1, []), ("b", 1, [])])) == 1000


@pytest.mark.parametrize("origin", [0, 1, 10**6, 5 * 10**6])
def test_seconds_are_relative_to_the_origin(origin):
    (event,) = read_plane(of_file(plane("/device:TPU:0", [("XLA Ops", 5000, [("x", 2, 3)])])), origin_ps=origin)
    assert event.start_seconds == pytest.approx(7e-6 - origin * 1e-12)


def test_lines_of_a_plane():
    events = message((1, 1), (2, 5))
    contents = [
        ((2, "name"), (3, 4), (4, events)),
        ((11, "display"), (3, -4), (4, events)),
        ((2, "name"), (3, 1), (4, events), (11, "late")),
        ((4, events), (11, "display"), (3, 2)),
        ((4, events), (3, 2), (2, "after its events")),
        (),
    ]
    data = of_file(message((2, "p"), *((3, message(*content)) for content in contents)))
    assert [(line.name, line.start_ps) for line in data.lines()] == [
        ("name", 4000), ("display", -4000), ("name", 1000), ("display", 2000), ("after its events", 2000), ("", 0),
    ]  # fmt: skip
    assert [event.start_ps for line in data.lines() for event in data.events(line)] == [4005, -3995, 1005, 2005, 2005]


def test_events_of_chosen_kinds_and_with_chosen_statistics():
    events = [("a", 0, 1, {"x": 1}), ("b", 1, 1), ("a", 2, 1, {"x": 1, "y": "text"}), ("a", 3, 1, {"x": 2})]
    data = of_file(plane("p", [("line", 0, events)]))
    (line,) = data.lines()
    assert [(event.kind.name, event.stats) for event in data.events(line)] == [
        ("a", {"x": 1}), ("b", {}), ("a", {"x": 1, "y": "text"}), ("a", {"x": 2}),
    ]  # fmt: skip
    assert [event.start_ps for event in data.events(line, kinds=("b",))] == [10**6]
    assert list(data.events(line, kinds=("c",))) == []
    assert len(list(data.events(line, stating=("x", "y")))) == 4
    assert list(data.events(line, stating=("x", "z"))) == []
    assert [kind.name for kind in data.kinds()] == ["a", "b"]
    assert data.kind(99).name == "event 99"


def test_a_bounded_number_of_decoded_statistics_is_kept(monkeypatch):
    monkeypatch.setattr(_xplane, "_MOST_STATS", 2)
    data = of_file(plane("p", [("line", 0, [("a", 0, 1, {"x": number}) for number in (1, 2, 3, 3, 1)])]))
    (line,) = data.lines()
    assert [event.stats["x"] for event in data.events(line)] == [1, 2, 3, 3, 1]
    assert len(data._known_stats) == 2
    data.forget()
    assert len(data._known_stats) == 0


def test_facts_of_a_kind():
    kind = message((1, 3), (2, "name"), (4, "shown"), (5, message((1, 8), (5, "text"))))
    data = of_file(message((4, message((1, 3), (2, kind))), (5, message((1, 8), (2, message((1, 8), (2, "key")))))))
    (only,) = data.kinds()
    assert (only.name, only.display_name, only.stats) == ("name", "shown", {"key": "text"})
    data = of_file(message((4, message((2, message((2, "zero"))))), (5, message((2, message((2, "key")))))))
    assert (data.kind(0).name, data._stat_names) == ("zero", {0: "key"})  # the format omits zeros
    empty = of_file(message((4, message((1, 3))), (5, message((1, 8)))))  # entries without a value
    assert list(empty.kinds()) == []


def test_parts_of_a_file():
    space = read_space(message((1, message((2, "p"))), (2, "an error"), (3, "a warning"), (4, "host"), (4, "other")))
    assert ([p.name for p in space.planes], space.hosts, space.warnings, space.damage) == (
        ["p"], ("host", "other"), ("an error", "a warning"), "",
    )  # fmt: skip


def test_warnings_of_a_file_are_noted_up_to_three(tmp_path):
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(message((1, TPU), *((3, f"warning {number}") for number in range(4))))
    notes = open_profile(path).notes
    assert notes[:3] == tuple(f"a.xplane.pb: warning {number}" for number in range(3))
    assert not any("warning 3" in note for note in notes)


@pytest.mark.parametrize(
    ("data", "fact"),
    [(b"", "it contains no planes"), (b"\x0a\x05a", "5 bytes at byte 2"), (message((4, "host")), "no planes"),
     (message((1, 3)), "different type")],
)  # fmt: skip
def test_files_without_a_plane_are_refused(data, fact):
    with pytest.raises(ProfileError, match=rf"given {len(data)} bytes.*{fact}"):
        read_space(data)


def test_what_is_before_the_damage_is_kept():
    assert "4 bytes at byte" in read_space(message((1, message((2, "p")))) + b"\x0a\x04p").damage


def test_planes_of_hosts_are_removed_unless_they_are_the_devices(tmp_path):
    def names(*planes: str) -> list[str]:
        path = written(tmp_path, *(message((2, name), (1, 300)) for name in planes), host="secret")
        space = read_space(trim_profile(path))
        assert space.hosts == ()
        return [kept.name for kept in space.planes]

    always = ["/host:metadata", "/device:CUSTOM:Task"]
    assert names("/host:CPU", *always, "/device:GPU:0", "Task Environment") == [*always, "/device:GPU:0"]
    assert names("/host:CPU", *always, "/host:python") == ["/host:CPU", *always]


class Mapped(mmap.mmap):
    """A mapped file that keeps the released parts in pages."""

    released: list[tuple[float, float]]

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:  # type: ignore[override]
        assert option == mmap.MADV_DONTNEED
        self.released.append((start / mmap.PAGESIZE, length / mmap.PAGESIZE))


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="this system cannot release pages")
@pytest.mark.parametrize(
    ("start", "stop", "released"),
    [(0, 2.5, [(0, 2)]), (0.5, 3.0, [(1, 2)]), (1.0, 2.0, [(1, 1)]), (0.5, 1.5, []), (1.5, 1.9, []), (0.0, 0.9, [])],
)
def test_whole_pages_that_were_read_are_released(start, stop, released):
    with Mapped(-1, 4 * mmap.PAGESIZE) as buffer:
        buffer.released = []
        first, last = int(start * mmap.PAGESIZE), int(stop * mmap.PAGESIZE)
        assert _xplane._release(buffer, first, last) == last
        assert buffer.released == released
    assert _xplane._release(b"not mapped", 0, 10**6) == 10**6


def test_a_long_line_is_released_while_it_is_read(monkeypatch):
    monkeypatch.setattr(_xplane, "_RELEASED", 20)
    released: list[tuple[int, int]] = []
    monkeypatch.setattr(_xplane, "_release", lambda buffer, start, stop: released.append((start, stop)) or stop)
    data = of_file(plane("p", [("line", 0, [("a", number, 1) for number in range(9)])]))
    (line,) = data.lines()
    assert len(list(data.events(line))) == 9
    assert (released[0][0], released[-1][1]) == (line.span.start, line.span.stop)
    assert [stop for _, stop in released[:-1]] == [start for start, _ in released[1:]]
    assert {stop - start > 20 for start, stop in released[:-1]} == {True}
    assert len(released) > 3


# ---- traces in JSON


def trace(path: Path, *events: dict[str, Any], **options: Any) -> Path:
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}, **options))
    return path


def span(name: str = "k", **fields: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": 2, "name": name, "ts": 1.5, "dur": 2.25} | fields


def test_processes_threads_and_events_of_a_trace(tmp_path):
    path = trace(
        tmp_path / "a.trace.json",
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "another", "args": {"name": "no"}},
        span("late", ts=9), span("inside", dur=1), span("around", dur=3),
        span(pid=5, tid="x"), span(pid="no", tid=7.0), {"ph": "C", "pid": 1}, span(args={"hlo_category": "c"}, tid=3),
    )  # fmt: skip
    planes, damage = read_trace(path)
    assert damage == ""
    rows = {p.name: {line.name: [event.kind.name for event in p.events(line)] for line in p.lines()} for p in planes}
    assert rows == {
        "/device:TPU:0": {"XLA Ops": ["around", "inside", "late"], "3": ["k"]},
        "process 5": {"0": ["k"]}, "process 0": {"7": ["k"]},
    }  # fmt: skip
    first, other = planes[0].lines()
    event = next(planes[0].events(first))
    assert (event.start_ps, event.duration_ps, event.kind.display_name, event.kind.stats) == (
        1_500_000,
        3_000_000,
        "",
        {},
    )
    (event,) = planes[0].events(other)
    assert (event.kind.display_name, event.kind.stats) == ("k", {"hlo_category": "c"})


def test_events_of_one_name_share_their_kind_unless_category_or_program_differ(tmp_path):
    args = [{"hlo_category": "a"}, {"hlo_category": "a", "other": 1}, {"hlo_category": "b"},
            {"hlo_category": "a", "program_id": 3}, {"long_name": "x"}, None]  # fmt: skip
    planes, _ = read_trace(trace(tmp_path / "a.trace.json", *(span(args=each) for each in args)))
    kinds = [id(event.kind) for line in planes[0].lines() for event in planes[0].events(line)]
    assert kinds[0] == kinds[1]
    assert len(set(kinds)) == 4  # an event without facts has the kind of the first of its name


@pytest.mark.parametrize("chunk", [70, 200, 10_000])  # the list must begin in the first piece
@pytest.mark.parametrize("form", ["object", "list", "indented", "compressed"])
def test_a_trace_is_read_in_pieces(tmp_path, monkeypatch, chunk, form):
    events = [span(f"event {number}", ts=number) for number in range(20)]
    path = trace(tmp_path / "a.trace.json", *events, indent=2 if form == "indented" else None)
    if form == "list":
        path.write_text(json.dumps([*events, "no event"]))
    if form == "compressed":
        path = tmp_path / "a.trace.json.gz"
        path.write_bytes(gzip.compress((tmp_path / "a.trace.json").read_bytes()))
    monkeypatch.setattr(_trace_json, "_CHUNK", chunk)
    planes, damage = read_trace(path)
    names = [event.kind.name for p in planes for line in p.lines() for event in p.events(line)]
    assert (names, damage) == ([f"event {number}" for number in range(20)], "")


def test_a_trace_has_a_most_number_of_events(tmp_path, monkeypatch):
    monkeypatch.setattr(_trace_json, "MOST_EVENTS", 3)
    path = trace(tmp_path / "a.trace.json", *(span(ts=number) for number in range(3)))
    assert read_trace(path)[1] == "only its first 3 events were read"
    planes, _ = read_trace(trace(path, *(span(ts=number) for number in range(9))))
    assert sum(len(line.events) for p in planes for line in p.lines()) == 3
    assert read_trace(trace(path, *(span(ts=number) for number in range(2))))[1] == ""


@pytest.mark.parametrize(
    ("text", "fact"),
    [("{}", "no list of events"), ("[]", "it has no events"), ('[{"ph": "X"', "JSONDecodeError"),
     ('{"traceEvents": 3}', "no list"), ('[{"ph": "M"}]', "it has no events")],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, text, fact):
    path = tmp_path / "a.trace.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=f"a.trace.json.*{fact}"):
        read_trace(path)


def test_events_before_the_damage_are_read(tmp_path, monkeypatch):
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps([span(), span()])[:-5])
    planes, damage = read_trace(path)
    assert (len(next(planes[0].lines()).events), damage.startswith("JSONDecodeError")) == (1, True)
    monkeypatch.setattr(_trace_json, "_CHUNK", 64)
    monkeypatch.setattr(_trace_json, "_LARGEST_EVENT", 128)  # an event that never ends is not read to its end
    path.write_text(json.dumps([span(), "x" * 500]))
    assert read_trace(path)[1].startswith("JSONDecodeError")
    path.write_text(json.dumps([span(), "x" * 100]))
    assert read_trace(path)[1] == ""
