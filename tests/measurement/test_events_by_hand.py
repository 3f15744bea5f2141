"""Events, facts and bytes of profiles, written by hand."""

import json
import struct
import types
from typing import Any

import pytest
from records_parts import toy_module

from workbench.measurement import _open_profile, open_profile
from workbench.measurement._device_events import (
    COMMAND_BUFFERS,
    COPIES,
    NO_INSTRUCTION,
    DeviceEvent,
    ModuleRun,
    _gpu_kind,
    _integer,
    _nested,
    _RunTable,
    _tpu_name,
    device_of,
    execution_shares,
)
from workbench.measurement._operation_facts import (
    category_of,
    dtype_of,
    dtype_of_text,
    fact_of,
    kind_of,
    module_name,
    natural_order,
    program_name,
    source_of,
)
from workbench.measurement._xplane import EventKind, MessageSpan, Plane, PlaneEvent, WireError, _event, _length, fields
from workbench.records.compiled import InstructionRecord


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1)])  # in some files, runs are not in time order
def test_run_at_a_moment(order):
    table = _RunTable()
    runs = [ModuleRun(0, "f", 7, 1, 1.0, 2.0), ModuleRun(0, "g", None, None, 4.0, 1.0),
            ModuleRun(0, "f", 7, 2**60 + 1, 5.0, 2.0)]  # fmt: skip
    for place in order:
        table.add(runs[place])
    expected = {
        0.5: None, 1.0: ("f", 7, 1), 2.9: ("f", 7, 1), 3.0: None, 3.5: None, 4.0: ("g", None, None),
        4.9: ("g", None, None), 5.0: ("f", 7, 2**60 + 1), 7.0: None,
    }  # fmt: skip
    assert {moment: table.at(moment) for moment in expected} == expected
    assert table.at(1.0 - 5e-10) == ("f", 7, 1)  # moments are rounded to nanoseconds
    assert _RunTable().at(0.0) is None


def event(name: str, start: float = 0.0, seconds: float = 1.0, **fields: Any) -> DeviceEvent:
    return DeviceEvent(device=0, name=name, module="m", run=None, start_seconds=start, seconds=seconds, **fields)


@pytest.mark.parametrize(
    ("spans", "inner"),
    [
        ([("a", 0, 10), ("b", 2, 5), ("c", 6, 9)], {"a": 6, "b": 0, "c": 0}),
        ([("a", 0, 10), ("b", 2, 8), ("c", 3, 7)], {"a": 6, "b": 4, "c": 0}),  # only what is directly inside
        ([("a", 0, 10), ("b", 10, 12)], {"a": 0, "b": 0}),
        ([("a", 0, 10), ("b", 5, 15)], {"a": 0, "b": 0}),  # overlaps
        ([("a", 0, 10), ("b", 9, 10)], {"a": 1, "b": 0}),
        ([("a", 0, 20), ("b", 2, 8), ("c", 5, 12)], {"a": 13, "b": 0, "c": 0}),  # of the event around both
    ],
)
def test_seconds_inside_other_events(spans, inner):
    picoseconds = 10**9  # a millisecond, so that rounding errors of a nanosecond matter less
    events = [(start * picoseconds, end * picoseconds, event(name, start, end - start)) for name, start, end in spans]
    found = list(_nested(iter(events)))
    assert {e.name: e.inner_seconds for e in found} == inner
    assert {e.name: e.self_seconds for e in found} == {
        name: end - start - inner[name] for name, start, end in spans
    }  # fmt: skip


@pytest.mark.parametrize(("end", "inside"), [(11_000, 6.0), (11_001, 0.0)])
def test_an_event_may_end_a_nanosecond_after_the_event_around_it(end, inside):
    outer, inner = list(_nested(iter([(0, 10_000, event("a", 0, 10)), (5_000, end, event("b", 5, 6.0))])))[::-1]
    assert {outer.name: outer.inner_seconds, inner.name: inner.inner_seconds} == {"a": inside, "b": 0}


def test_kernels_in_a_row_are_one_execution():
    kernels = [event("x", kernel="k1"), event("x", kernel="k2"), event("y", kernel="k1"), event("x", kernel="k1"),
               event("plain"), event("x", kernel="k1")]  # fmt: skip
    shares = [(e.name, e.kernel, share) for e, share in execution_shares(kernels)]
    assert sorted(shares) == sorted([
        ("x", "k1", 0.5), ("x", "k2", 0.5), ("y", "k1", 1.0), ("plain", "", 1.0), ("x", "k1", 1.0), ("x", "k1", 1.0),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "stats", "expected"),
    [
        ("command_buffer::execute", "Stream #1", {}, COMMAND_BUFFERS),
        ("kernel", "Stream #1", {"cuda_graph_id": 3}, COMMAND_BUFFERS),
        ("MemcpyD2D", "Stream #1", {}, COPIES),
        ("kernel", "Stream #1", {"memcpy_details": "x"}, COPIES),
        ("kernel", "Stream #1", {"memset_details": "x"}, COPIES),
        ("kernel", "Stream #1(Memset)", {}, COPIES),
        ("kernel", "Stream #1(MemcpyH2D)", {}, COPIES),
        ("gemm", "Stream #1(Compute)", {}, NO_INSTRUCTION),
    ],
)
def test_kind_of_a_kernel_without_an_instruction(name, line, stats, expected):
    assert _gpu_kind(PlaneEvent(EventKind(name), 0, 1, stats), line, "") == expected


def test_names_and_numbers_of_events():
    assert _tpu_name(EventKind("%dot.1 = f32[8] dot(x)")) == "dot.1"
    assert _tpu_name(EventKind("%dot.1 = f32[8] dot(x)", "shown")) == "shown"
    assert _tpu_name(EventKind("while")) == "while"
    assert [_integer(value) for value in (3, "7", None, "x", 2.9)] == [3, 7, None, None, 2]
    planes = (
        "/device:TPU:3",
        "/device:GPU:0",
        "/device:CUSTOM:Megascale Trace",
        "/device:TPU:0 SparseCore 1",
        "/host:CPU",
    )
    assert [device_of(name) for name in planes] == [("tpu", 3), ("gpu", 0), None, None, None]


def instruction(name: str, opcode: str, *operands: str, **fields: Any) -> InstructionRecord:
    options = {"computation": "main", "shape": "f32[8]{0}", "size_bytes": 32, "executions": 1.0} | fields
    return InstructionRecord(name=name, opcode=opcode, operands=operands, **options)


MODULE = toy_module(
    text="  %fused.1 = f32[8] fusion(%a), kind=kOutput, calls=%inside\n  fused.2 = f32[8] fusion(%a), calls=%inside\n",
    instructions=(
        instruction("p", "parameter", shape="bf16[64]", computation="inside"),
        instruction("q", "parameter", shape="f32[2]", computation="inside"),
        instruction("product", "dot", "p", "q", computation="inside"),
        instruction("a", "parameter", shape="s8[128]"),
        instruction("fused.1", "fusion", "a", calls=("inside",)),
        instruction("sum", "add", "a", "lost"),
        instruction("made", "iota"),
    ),
)


def of(name: str) -> InstructionRecord:
    return next(i for i in MODULE.instructions if i.name == name)


def test_categories_kinds_and_dtypes_of_instructions():
    assert category_of(of("fused.1"), MODULE) == "output fusion"
    assert category_of(of("fused.1").replace(name="fused.2"), MODULE) == "fusion"
    assert [category_of(of("sum").replace(opcode=opcode), MODULE) for opcode in ("copy", "transpose", "add")] == [
        "data formatting", "data formatting", "add",
    ]  # fmt: skip
    assert dtype_of(of("fused.1"), MODULE) == "bfloat16"  # of the product inside
    assert dtype_of(of("sum"), MODULE) == "int8"
    assert dtype_of(of("made"), MODULE) == "float32"  # no operands, so the dtype of the result


@pytest.mark.parametrize(
    ("name", "category", "opcode", "kind"),
    [("x", "", "all-reduce-start", "collective"), ("all-gather.1", "", "", "collective"),
     ("all-gather.1", "loop fusion", "", "compute"), ("x", "all-to-all", "", "collective"),
     ("x", "copy-done", "", "copy"), ("x", "", "dynamic-slice-start", "copy"), ("x", "infeed", "", "copy"),
     ("all-reduce.1", "", "fusion", "compute"), ("x", "", "copy", "compute")],
)  # fmt: skip
def test_kind_of_an_operation(name, category, opcode, kind):
    assert kind_of(name, category, instruction("i", opcode) if opcode else None) == kind


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("", ""), ("f32[0]", "float32"), ("f32[]", "float32"), ("s32[100] bf16[2,3] f16[7]", "float16"),
     ("f32[7] bf16[2,4]", "bfloat16"), ("f8e4m3fn[9], s4[3]", "float8_e4m3fn")],
)  # fmt: skip
def test_dtype_of_the_largest_array_in_a_text(text, dtype):
    assert dtype_of_text(text) == dtype


def test_other_facts():
    facts = {"flops": "x", "model_flops": "12", "bytes": 3}
    assert [fact_of(facts, *names) for names in (("flops", "model_flops"), ("bytes",), ("none", "flops"))] == [
        12,
        3,
        None,
    ]
    line: Any = source_of("/a:b/c.py:12")
    assert ((line.file, line.line), source_of("c.py")) == (("/a:b/c.py", 12), None)
    assert sorted(["tpu:10", "tpu:9", "b/tpu:1", "a/tpu:2"], key=natural_order) == [
        "a/tpu:2",
        "b/tpu:1",
        "tpu:9",
        "tpu:10",
    ]
    assert [program_name("f", 3), program_name("f", 0), program_name("f", None)] == ["f(3)", "f(0)", "f"]
    assert [module_name("f(3)"), module_name("f(x)"), module_name("f")] == ["f", "f(x)", "f"]


# ---- bytes


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\x08\x05\x10\xac\x02", [(1, 5), (2, 300)]),
        (b"\x12\x02ab\x08\x01", [(2, MessageSpan(2, 4)), (1, 1)]),
        (b"\xba\x02\x01x", [(39, MessageSpan(3, 4))]),  # a key of two bytes
        (b"\x09\x01" + bytes(7) + b"\x0d\x02" + bytes(3), [(1, 1), (1, 2)]),
        (b"\x08" + b"\xff" * 9 + b"\x01", [(1, 2**64 - 1)]),
    ],
)
def test_fields_of_a_message(data, expected):
    assert list(fields(data, MessageSpan(0, len(data)))) == expected
    assert list(fields(b"xy" + data, MessageSpan(2, len(data) + 2))) == [
        (number, MessageSpan(value.start + 2, value.stop + 2) if isinstance(value, MessageSpan) else value)
        for number, value in expected
    ]


@pytest.mark.parametrize(
    ("data", "fact"),
    [(b"\x08", "truncated"), (b"\x12\x03ab", "3 bytes at byte 2"), (b"\x09\x01", "number at byte 1"),
     (b"\x0b", "byte 1 does not start"), (b"\x08" + b"\xff" * 11, "truncated"),
     (b"\x0d\x01\x02\x03", "number at byte 1")],
)  # fmt: skip
def test_messages_that_are_cut_or_of_another_kind_are_refused(data, fact):
    with pytest.raises(WireError, match=fact):
        list(fields(data, MessageSpan(0, len(data))))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", (0, 0, 0, [])),
        (b"\x08\x07\x10\xac\x02\x18\x05", (7, 300, 5, [])),
        (b"\x10" + b"\xff" * 9 + b"\x01", (0, -1, 0, [])),  # a negative start
        (b"\x22\x02ab\x08\x07\x22\x01c", (7, 0, 0, [b"ab", b"c"])),
        (b"\x08\x07\x3d\x01\x02\x03\x04\x18\x05\x22\x01c", (7, 0, 5, [b"c"])),  # an unknown field between them
        (b"\x22\x81\x01" + b"z" * 129, (0, 0, 0, [b"z" * 129])),
    ],
)
def test_numbers_and_statistics_of_an_event(data, expected):
    assert _event(data) == expected


@pytest.mark.parametrize(
    ("number", "start"), [(2**62, 2**62), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]
)
def test_starts_are_signed(number, start):
    assert _event(b"\x10" + _length(number))[1] == start


@pytest.mark.parametrize("data", [b"\x08", b"\x10\x80", b"\x22", b"\x22\x02a", b"\x10" + b"\xff" * 11, b"\x22\x80"])
def test_cut_events_are_refused(data):
    with pytest.raises(WireError):
        _event(data)


@pytest.mark.parametrize(
    ("data", "stat"),
    [
        (b"\x08\x01\x11" + struct.pack("<d", 1.5), ("name", 1.5)),
        (b"\x08\x01\x18\x07", ("name", 7)),
        (b"\x08\x01\x20" + b"\xff" * 9 + b"\x01", ("name", -1)),
        (b"\x08\x01\x2a\x02ab", ("name", "ab")),
        (b"\x08\x01\x32\x02ab", ("name", b"ab")),
        (b"\x08\x01\x38\x02", ("name", "other")),
        (b"\x08\x05\x38\x05", ("stat 5", "")),
        (b"", ("", None)),
    ],
)
def test_statistic_of_every_type(data, stat):
    plane: Any = types.SimpleNamespace(_buffer=b"z" + data, _stat_names={1: "name", 2: "other"})
    assert Plane._stat(plane, MessageSpan(1, len(data) + 1)) == stat
    assert Plane._stat(plane, MessageSpan(0, len(data)), data) == stat


@pytest.mark.parametrize(("value", "data"), [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_length_of_a_message(value, data):
    assert _length(value) == data


# ---- a profile of two devices


def written(tmp_path: Any, *events: tuple[int, float, float, str], platform: str = "GPU") -> Any:
    """A trace of kernels: device, start and seconds, and instruction."""
    spans: list[Any] = []
    for number in {device for device, *_ in events}:
        spans += [
            {"ph": "M", "pid": number, "name": "process_name", "args": {"name": f"/device:{platform}:{number}"}},
            {"ph": "M", "pid": number, "tid": 1, "name": "thread_name", "args": {"name": "Stream #1(Compute)"}},
        ]
    for number, start, seconds, name in events:
        args = {"hlo_op": name, "hlo_module": "jit_f"} if name else {}
        spans.append({"ph": "X", "pid": number, "tid": 1, "name": f"k_{name}", "ts": start * 1e6, "dur": seconds * 1e6,
                      "args": args})  # fmt: skip
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": spans}))
    return path


EVENTS = (0, 10.0, 2.0, "dot.1"), (0, 12.0, 1.0, "all-reduce.1"), (1, 10.5, 4.0, "dot.1"), (1, 20.0, 1.0, "")


def test_sums_shares_and_timeline_of_a_profile(tmp_path):
    profile = open_profile(written(tmp_path, *EVENTS))
    rows = [(o.name, o.executions, o.seconds, o.seconds_by_device, o.kind, o.events) for o in profile.operations]
    assert rows == [
        ("dot.1", 2, pytest.approx(6), {"gpu:0": pytest.approx(2), "gpu:1": pytest.approx(4)}, "compute", 2),
        ("all-reduce.1", 1, pytest.approx(1), {"gpu:0": pytest.approx(1)}, "collective", 1),
    ]
    assert [(e.where, e.name, e.kind) for e in profile.events] == [
        ("gpu:0", "dot.1", "compute"), ("gpu:1", "dot.1", "compute"), ("gpu:0", "all-reduce.1", "collective"),
        ("gpu:1", "k_", "other"),
    ]  # fmt: skip
    assert [e.start_seconds for e in profile.events] == pytest.approx([0.0, 0.5, 2.0, 10.0])  # from the first event
    first, second = profile.devices
    assert (first.span_seconds, first.compute_seconds, first.collective_seconds) == pytest.approx((3, 2, 1))
    assert (second.span_seconds, second.compute_seconds, second.other_seconds) == pytest.approx((10.5, 4, 1))
    assert (profile.joined, profile.joined_seconds) == (0.0, 0.0)
    kinds = {record.kind: (record.events, pytest.approx(record.seconds)) for record in profile.unjoined}
    assert kinds == {"operations of jit_f without an instruction in HLO": (3, 7), NO_INSTRUCTION: (1, 1)}
    assert profile.unjoined[0].kind.startswith("operations")  # the longest first
    assert [note.partition(",")[0] for note in profile.notes] == ["The profile has no HLO for jit_f"]


def test_timeline_is_cut_to_an_equal_number_for_each_device(tmp_path):
    profile = open_profile(written(tmp_path, *EVENTS), max_events=2)
    assert [(e.where, e.start_seconds) for e in profile.events] == [("gpu:0", 0.0), ("gpu:1", 0.5)]
    assert any("2 of 3 events: the first 1 of each device" in note for note in profile.notes)
    assert not any("timeline contains" in note for note in open_profile(written(tmp_path, *EVENTS), max_events=4).notes)


def test_an_event_without_a_start_or_a_duration_begins_at_0(tmp_path):
    path = written(tmp_path, (0, 2.0, 1.0, "dot.1"))
    trace = json.loads(path.read_text())
    *_, span = trace["traceEvents"]
    trace["traceEvents"].append({key: value for key, value in span.items() if key not in ("ts", "dur")})
    path.write_text(json.dumps(trace))
    profile = open_profile(path)
    assert [(event.start_seconds, event.seconds) for event in profile.events] == [(0.0, 0.0), (2.0, pytest.approx(1.0))]
    assert profile.devices[0].span_seconds == pytest.approx(3.0)


def test_text_of_an_instruction_names_the_shapes_of_its_operands():
    assert _open_profile._text_of(of("product"), MODULE) == "%product = f32[8]{0} dot(bf16[64] %p, f32[2] %q)"
    assert _open_profile._text_of(of("sum"), MODULE) == "%sum = f32[8]{0} add(s8[128] %a, %lost)"
    assert _open_profile._text_of(None, MODULE) == _open_profile._text_of(of("sum"), None) == ""
