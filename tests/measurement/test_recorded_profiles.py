"""Profiles that were recorded on real TPUs and GPUs: every event is read, and the seconds are XProf's."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from workbench.measurement import open_profile, trim_profile
from workbench.measurement._device_events import (
    COMMAND_BUFFERS,
    COPIES,
    NO_INSTRUCTION,
    SPARSE_CORE,
    WAITING,
    DeviceEvent,
    ModuleRun,
    OtherEvent,
    execution_shares,
    kernels_per_execution,
    read_plane,
)
from workbench.measurement._xplane import EventKind, Line, MessageSpan, PlaneEvent, read_space

RECORDED = Path(__file__).parents[1] / "recorded"
V6E = "tpu_v6e_4chips_host_offload.xplane.pb"
EIGHT = "mi300x_8gpu_conv_jax08.xplane.pb"
TWO_KERNELS = "mi300x_conv_two_kernels.xplane.pb"
ATTENTION = "mi355x_te_attention.xplane.pb"


def read(name):
    return [found for plane in read_space(RECORDED / name).planes for found in read_plane(plane)]


def executions(name):
    return [found for found in read(name) if isinstance(found, DeviceEvent)]


def seconds_by(events, key):
    sums = defaultdict(float)
    for event in events:
        sums[key(event)] += event.self_seconds
    return dict(sums)


@pytest.mark.parametrize(("name", "count"), [(V6E, 809), (EIGHT, 198), (TWO_KERNELS, 25), (ATTENTION, 150)])
def test_every_execution_of_the_file_is_read(name, count):
    assert len(executions(name)) == count


def test_all_four_chips_and_their_programs_are_there():
    events = executions(V6E)
    assert Counter(event.device for event in events) == {0: 176, 1: 208, 2: 208, 3: 217}
    assert all(event.module for event in events)
    runs = [found for found in read(V6E) if isinstance(found, ModuleRun)]
    assert Counter(run.device for run in runs) == {0: 17, 1: 17, 2: 17, 3: 18}


def test_operations_fill_their_programs():
    runs = sum(found.seconds for found in read(V6E) if isinstance(found, ModuleRun))
    operations = sum(event.self_seconds for event in executions(V6E))
    assert 0.9 * runs < operations <= runs


def test_seconds_by_category_on_the_tpu_are_those_of_xprof():
    # Microseconds of self time that XProf 2.24.2 gives in its table of HLO statistics for this file.
    xprof = {
        "copy-done": 40491393.09,
        "all-reduce": 1460345.25875,
        "loop fusion": 1266520.1424999998,
        "broadcast": 4443.76625,
        "copy-start": 1.2262499999999998,
    }
    ours = seconds_by(executions(V6E), lambda event: event.category)
    assert {category: seconds * 1e6 for category, seconds in ours.items()} == pytest.approx(xprof, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "microseconds"), [(EIGHT, 27550.676), (TWO_KERNELS, 3586.493), (ATTENTION, 12133.585)]
)
def test_seconds_on_gpus_are_those_of_xprof(name, microseconds):
    assert sum(event.self_seconds for event in executions(name)) * 1e6 == pytest.approx(microseconds, rel=1e-3)


def test_asynchronous_copies_and_waiting_stay_apart():
    others = [found for found in read(V6E) if isinstance(found, OtherEvent)]
    assert Counter(event.kind for event in others)["asynchronous"] == 70
    assert all(event.overlaps for event in others)
    assert sum(event.seconds for event in others if event.kind == WAITING) > 0


def test_convolution_of_two_kernels_is_one_execution():
    shares = [
        share for event, share in execution_shares(executions(TWO_KERNELS)) if event.name.startswith("cudnn-conv")
    ]
    assert set(shares) == {0.5}
    assert sum(shares) == len(shares) / 2


def test_attention_backward_of_five_kernels_is_one_execution():
    found = defaultdict(list)
    for event, share in execution_shares(executions(ATTENTION)):
        found[event.name].append(share)
    kernels = {name: len(shares) / round(sum(shares)) for name, shares in found.items()}
    assert max(kernels.values()) == 5


def test_programs_of_one_name_keep_their_numbers():
    programs = {(event.module, event.program) for event in executions(ATTENTION)}
    assert len({program for _, program in programs}) == len(programs)


def test_device_that_lost_events_is_read_as_it_is():
    assert Counter(event.device for event in executions(EIGHT)) == {0: 23} | dict.fromkeys(range(1, 8), 25)


@pytest.mark.parametrize(
    ("kernels", "count"),
    [(["a"], 1), (["a", "a", "a"], 1), (["a", "b"], 2), (["a", "b", "a", "b"], 2), (["a", "b", "a", "c", "d"], 5)],
)
def test_kernels_of_an_execution_are_the_shortest_repetition(kernels, count):
    assert kernels_per_execution(kernels) == count


class MadePlane:
    """A plane in memory, for layouts of which nobody published a recording."""

    def __init__(self, name, **lines):
        self.name, self.stats, self._lines = name, {}, lines

    def lines(self):
        return [Line(name.replace("_", " "), 0, MessageSpan(0, 0)) for name in self._lines]

    def events(self, line):
        return self._lines[line.name.replace(" ", "_")]


def made(name, start, seconds, **stats):
    return PlaneEvent(EventKind(name), int(start * 1e12), int(seconds * 1e12), stats)


def test_sparse_core_is_no_device_of_its_own_number():
    plane = MadePlane("/device:TPU:0 SparseCore 0", XLA_Ops=[made("%f = f32[] fusion()", 0, 1)])
    (found,) = read_plane(plane)
    assert (type(found), found.kind, found.overlaps) == (OtherEvent, SPARSE_CORE, True)


def test_kernels_of_a_command_buffer_are_named_as_such():
    plane = MadePlane(
        "/device:GPU:0",
        Stream=[
            made("k", 0, 1, hlo_op="dot", hlo_module="jit_f"),
            made("k", 1, 1, hlo_op="command_buffer_1"),
            made("k", 2, 1, cuda_graph_id=5),
        ],
    )
    first, *others = read_plane(plane)
    assert isinstance(first, DeviceEvent)
    assert [(other.kind, other.overlaps) for other in others] == [(COMMAND_BUFFERS, False)] * 2


@pytest.mark.parametrize(("stream", "kind"), [("MemcpyH2D", COPIES), ("Memset", COPIES), ("Compute", NO_INSTRUCTION)])
def test_events_without_an_instruction_are_told_apart_by_their_stream(stream, kind):
    (found,) = read_plane(MadePlane("/device:GPU:0", **{f"Stream_#14({stream})": [made("k", 0, 1)]}))
    assert (type(found), found.kind) == (OtherEvent, kind)


def test_lines_that_viewers_add_to_a_gpu_are_not_counted_again():
    kernel = made("k", 0, 1, hlo_op="dot", hlo_module="jit_f")
    assert len(list(read_plane(MadePlane("/device:GPU:0", Stream=[kernel], XLA_Ops=[kernel])))) == 1


def test_loop_on_a_tpu_keeps_only_its_own_seconds():
    plane = MadePlane(
        "/device:TPU:0",
        XLA_Modules=[made("jit_f(7)", 0, 10)],
        XLA_Ops=[made("%while = () while()", 0, 10), made("%a = () fusion()", 1, 3), made("%b = () fusion()", 5, 4)],
    )
    events = {event.name: event for event in read_plane(plane) if isinstance(event, DeviceEvent)}
    assert {name: event.self_seconds for name, event in events.items()} == pytest.approx({"while": 3, "a": 3, "b": 4})
    assert {event.module for event in events.values()} == {"jit_f"}


@pytest.mark.parametrize("name", [V6E, EIGHT, TWO_KERNELS, ATTENTION])
def test_seconds_by_operation_and_category_agree_with_xprof_itself(name, tmp_path):
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    import json
    import shutil

    shutil.copy(RECORDED / name, tmp_path / name)
    table = json.loads(convert.xspace_to_tool_data([str(tmp_path / name)], "hlo_stats", {})[0])
    columns = [column["id"] for column in table["cols"]]
    theirs = defaultdict(float)
    for row in table["rows"]:
        cells = {column: cell.get("v") for column, cell in zip(columns, row["c"], strict=True)}
        for key in (cells["category"], f"operation {cells['hlo_op_name']}"):
            theirs[key] += cells["total_self_time"] * 1e-6
    ours = defaultdict(float)
    for operation in open_profile(RECORDED / name).operations:
        for key in (operation.category, f"operation {operation.name}"):
            ours[key] += operation.seconds
    assert ours == pytest.approx(dict(theirs), rel=1e-3)


@pytest.mark.parametrize("name", [V6E, EIGHT])
def test_events_of_some_kinds_are_what_is_left_of_all(name):
    for plane in read_space(RECORDED / name).planes:
        for line in plane.lines():
            events = list(plane.events(line))
            wanted = {event.kind.name for event in events[:1]}
            assert list(plane.events(line, kinds=wanted)) == [event for event in events if event.kind.name in wanted]
            assert list(plane.events(line, stating=["no statistic of this name"])) == []


def test_trimmed_profile_of_devices_keeps_their_planes(tmp_path):
    (tmp_path / "trimmed.xplane.pb").write_bytes(trim_profile(RECORDED / V6E))
    assert read(tmp_path / "trimmed.xplane.pb") == read(V6E)
