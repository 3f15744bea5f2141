"""Profiles from other devices are opened, joined to the HLO that they carry, compared and written for Perfetto."""

import gzip
import itertools
import json
import statistics
import struct
from collections import defaultdict
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench import render
from workbench.cost import family_of
from workbench.cost._accuracy import ACCURACY
from workbench.errors import ProfileError
from workbench.measurement import open_profile
from workbench.measurement._profile_reader import ThinnedLine
from workbench.records.profile import ProfileRecord

RECORDED = Path(__file__).parents[1] / "recorded"
FILES = sorted(RECORDED.glob("*.xplane.pb"))
V6E = RECORDED / "tpu_v6e_4chips_host_offload.xplane.pb"
TWO_KERNELS = RECORDED / "mi300x_conv_two_kernels.xplane.pb"
ATTENTION = RECORDED / "mi355x_te_attention.xplane.pb"


@pytest.fixture(scope="module")
def v6e():
    return open_profile(V6E)


@pytest.fixture(scope="module")
def attention():
    return open_profile(ATTENTION)


def test_every_chip_is_there_with_its_kind(v6e):
    assert [(device.where, device.kind) for device in v6e.devices] == [(f"tpu:{n}", "TPU v6 Lite") for n in range(4)]
    assert sum(device.events for device in v6e.devices) == 809


def test_peaks_are_those_that_the_profile_states(v6e):
    peaks = {(device.peak_flops_per_second, device.peak_bytes_per_second) for device in v6e.devices}
    assert peaks == {(918e12, 1637.993152512e9)}


def test_all_operations_of_the_tpu_are_instructions_of_its_hlo(v6e):
    assert (v6e.joined, v6e.joined_seconds) == (1.0, 1.0)
    assert {program.hlo for program in v6e.programs} == {"carried"}


def test_sums_over_devices_operations_and_tree_agree(v6e):
    operations = sum(operation.seconds for operation in v6e.operations)
    devices = sum(device.busy_seconds for device in v6e.devices)
    trees = sum(sum(tree.root.total.measured_seconds.values()) for tree in v6e.trees.values())
    assert devices == pytest.approx(operations)
    assert trees == pytest.approx(operations)


def test_asynchronous_work_and_waiting_are_not_added_to_the_rest(v6e):
    kinds = {record.kind: record for record in v6e.unjoined}
    assert kinds["asynchronous"].events == 70
    assert kinds["asynchronous"].overlaps
    assert kinds["waiting for other chips"].overlaps


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem.split(".")[0])
def test_no_rate_is_above_the_published_peak(path):
    profile = open_profile(path)
    assert profile.chip is not None
    peak = max(profile.chip.peak_flops_per_second.values())
    assert all((operation.flops_per_second or 0.0) <= peak for operation in profile.operations)
    bandwidth = profile.chip.hbm_bytes_per_second
    working = [operation for operation in profile.operations if operation.kind == "compute" and operation.joined]
    # What fits into the cache of a chip (50 MB in an H200) can move faster.
    small = [operation for operation in working if (operation.accessed_bytes or 0.0) < 50e6]
    assert all((operation.bytes_per_second or 0.0) <= bandwidth for operation in working if operation not in small)
    assert all((operation.bytes_per_second or 0.0) <= 1.1 * bandwidth for operation in small)


def test_flops_of_the_convolution_count_once_for_two_kernels():
    (found,) = [o for o in open_profile(TWO_KERNELS).operations if o.name.startswith("cudnn-conv")]
    assert (found.flops, found.executions, found.events) == (32715571200.0, 5, 10)
    assert found.flops_per_second == pytest.approx(5 * 32715571200.0 / found.seconds)


def test_events_without_an_instruction_are_named_and_lower_the_share():
    profile = open_profile(TWO_KERNELS)
    (copies,) = [record for record in profile.unjoined if record.kind == "memory copies and fills"]
    assert (copies.events, copies.overlaps) == (53, False)
    assert profile.joined == 25 / 78


def test_attention_tree_names_its_functions(attention):
    assert attention.tree is not None
    names = {node.name for node in attention.tree.nodes if node.total.measured_seconds}
    assert any("te_fused_attn" in name for name in names)


def test_kernel_of_unknown_work_is_not_predicted(attention):
    kernels = [o for o in attention.operations if o.name.startswith("te_fused")]
    assert {(o.flops, o.predicted_seconds) for o in kernels} == {(None, None)}


def test_errors_of_predictions_are_those_of_the_recordings():
    found = defaultdict(list)
    for path in FILES:
        profile = open_profile(path)
        for operation in profile.operations:
            if operation.predicted_seconds is not None and operation.seconds >= 0.01 * profile.seconds:
                off = operation.predicted_seconds / operation.seconds_per_execution - 1
                found[family_of(profile.chip)].append(abs(off))
    stated = {family: each for (family, kind), each in ACCURACY.items() if kind == "operation of a profile"}
    assert found.keys() == stated.keys()
    for family, errors in found.items():
        assert len(errors) == stated[family].points
        assert statistics.median(errors) == pytest.approx(stated[family].median, abs=0.01)
        assert max(errors) == pytest.approx(stated[family].largest, abs=0.01)


def test_error_bar_is_reported_next_to_predictions(v6e):
    assert v6e.error_bar in str(v6e)
    assert "Errors of predicted seconds on TPU chips" in v6e.error_bar


def test_text_holds_devices_categories_tree_and_what_is_missing(v6e):
    text = str(v6e)
    for words in ("4 devices", "tpu:3 TPU v6 Lite", "copy-done 93", "call tree", "Not matched: asynchronous"):
        assert words in text


def test_profile_is_json(v6e):
    assert json.loads(v6e.to_json())["operations"][0]["name"] == v6e.operations[0].name


def test_run_of_the_explorer_has_every_device(v6e):
    run = v6e.as_run()
    assert {stage.where for stage in run.stages} == {f"tpu:{n}" for n in range(4)}
    assert run.events == v6e.events


def test_run_of_the_explorer_keeps_copies_apart_from_computing(v6e):
    stages = v6e.as_run().stages
    for device in v6e.devices:
        own = [stage for stage in stages if stage.where == device.where]
        assert sum(stage.compute_seconds for stage in own) == pytest.approx(device.compute_seconds, rel=1e-9)
        assert sum(stage.copy_seconds for stage in own) == pytest.approx(device.copy_seconds, rel=1e-9)
    assert sum(device.copy_seconds for device in v6e.devices) > 0.9 * v6e.seconds
    assert "copies" in render.text(v6e.as_run())


def test_call_tree_and_operations_name_the_waits_for_copies_alike(v6e):
    ends = sum(each.seconds for each in v6e.operations if each.category == "copy-done")
    nodes = [node for tree in v6e.trees.values() for node in tree.nodes if node.name.endswith("copy-done")]
    assert {node.name for node in nodes} == {"copy-start and copy-done"}
    assert sum(sum(node.own.measured_seconds.values()) for node in nodes) == pytest.approx(ends, rel=1e-3)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_perfetto_trace_holds_every_event_of_the_time_line(v6e, tmp_path, name):
    path = v6e.to_perfetto(tmp_path / name)
    data = gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    spans = [event for event in json.loads(data)["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == len(v6e.events)


def test_profiles_are_compared_per_call_path(attention):
    slower = attention.replace(
        operations=tuple(
            o.replace(seconds=2 * o.seconds) if "te_fused_attn_forward" in o.name else o for o in attention.operations
        )
    )
    comparison = wb.compare(attention, slower)
    changed = [row for row in comparison.differences if row.group == "seconds per call path"]
    assert {row.ratio for row in changed} == {2.0}
    assert all("te_fused_attn_forward" in row.name for row in changed)


def test_time_line_is_cut_evenly_and_sums_are_not():
    short = open_profile(V6E, max_events=40)
    assert {event.where for event in short.events} == {f"tpu:{n}" for n in range(4)}
    assert len(short.events) == 40
    assert short.seconds == open_profile(V6E).seconds
    assert any("40 of 809 events: the first 10 of each device" in note for note in short.notes)


# ---- formats and places


def test_points_over_time_are_thinned_evenly():
    line = ThinnedLine(most=8)
    for point in range(1000):
        line.add(float(point), point)
    assert line.count == 1000
    assert len(line.points) <= 8
    assert len({after - before for (before, _), (after, _) in itertools.pairwise(line.points)}) == 1


def test_log_directory_opens_its_newest_recording(tmp_path):
    import os

    for number, (date, source) in enumerate([("2026_01_01", ATTENTION), ("2026_02_01", V6E)]):
        folder = tmp_path / "plugins" / "profile" / date
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(source.read_bytes())
        os.utime(folder / "host.xplane.pb", (1000 + number, 1000 + number))
    assert len(open_profile(tmp_path).devices) == 4


def test_several_hosts_keep_their_devices_apart(tmp_path):
    for host in ("a", "b"):
        (tmp_path / f"{host}.xplane.pb").write_bytes(V6E.read_bytes())
    both, one = open_profile(tmp_path), open_profile(V6E)
    assert [device.where for device in both.devices] == [f"{host}/tpu:{n}" for host in "ab" for n in range(4)]
    assert both.seconds == pytest.approx(2 * one.seconds)
    assert {device.platform for device in (*both.devices, *one.devices)} == {"tpu"}
    assert {device.platform for device in open_profile(tmp_path, PSUM).devices} == {"tpu"}
    assert not any("simulated on one CPU" in note for note in one.notes)


def test_trace_in_json_gives_the_same_seconds(tmp_path):
    from workbench.measurement._xplane import read_space

    events = []
    for pid, plane in enumerate(read_space(V6E).planes):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}})
        for tid, line in enumerate(plane.lines()):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": line.name}})
            for event in plane.events(line):
                args = {k: v for k, v in {**event.kind.stats, **event.stats}.items() if not isinstance(v, bytes)}
                name = event.kind.display_name or event.kind.name
                span = {"ph": "X", "pid": pid, "tid": tid, "name": name, "args": args}
                events.append(span | {"ts": event.start_ps / 1e6, "dur": event.duration_ps / 1e6})
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode()))
    traced, proto = open_profile(path), open_profile(V6E)
    assert traced.seconds_by_category() == pytest.approx(proto.seconds_by_category())
    assert (traced.joined, {program.hlo for program in traced.programs}) == (0.0, {"missing"})
    assert any("has no HLO" in note for note in traced.notes)
    assert {operation.dtype for operation in traced.operations if operation.kind == "compute"} == {"float32"}


def test_profile_of_this_machine_is_joined_to_the_traced_program(tmp_path):
    def doubled(x):
        return jnp.tanh(x @ x)

    x = jnp.ones((32, 32))
    compiled = jax.jit(doubled)
    compiled(x).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        compiled(x).block_until_ready()
    profile = wb.open_profile(tmp_path, wb.trace(doubled)(x))
    assert isinstance(profile, ProfileRecord)
    assert {device.platform for device in profile.devices} == {"cpu"}
    assert any("simulated on one CPU" in note for note in profile.notes)
    mine = [operation for operation in profile.operations if operation.program.startswith("jit_doubled")]
    assert mine
    assert all(operation.joined for operation in mine)
    assert sum(operation.flops or 0.0 for operation in mine) == 2 * 32**3


# ---- damaged and hostile files


def cut(data, share):
    return data[: int(len(data) * share)]


@pytest.mark.parametrize("share", [0.35, 0.6, 0.9])
def test_cut_profile_gives_what_is_before_the_cut_and_says_so(tmp_path, share):
    path = tmp_path / "cut.xplane.pb"
    path.write_bytes(cut(V6E.read_bytes(), share))
    profile = open_profile(path)
    assert 0 < sum(device.events for device in profile.devices) <= 809
    assert any("damaged" in note for note in profile.notes)


@pytest.mark.parametrize(
    "data", [b"", b"no profile", b"\xef\xbf\xbd" * 1000, b"\x0a\xff\xff\xff\xff\x0f", struct.pack("<d", 1.5) * 9]
)
def test_what_is_no_profile_is_refused(tmp_path, data):
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match="`open_profile` was given"):
        open_profile(path)


def test_a_field_of_another_type_is_named(tmp_path):
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(b"\x08\x01")  # a number where planes are
    with pytest.raises(ProfileError, match="a field has a different type"):
        open_profile(path)


@pytest.mark.parametrize("data", [b"{}", b'{"traceEvents": [}', b"\x1f\x8b nothing"])
def test_what_is_no_trace_is_refused(tmp_path, data):
    path = tmp_path / "x.trace.json"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match="is not a trace"):
        open_profile(path)


def test_missing_path_and_empty_directory_are_named(tmp_path):
    with pytest.raises(ProfileError, match="does not exist"):
        open_profile(tmp_path / "nothing")
    with pytest.raises(ProfileError, match=r"contains no `\*\.xplane\.pb`"):
        open_profile(tmp_path)


def test_every_changed_byte_is_survived(tmp_path):
    """Whatever a byte becomes, the answer is a profile or a ProfileError."""
    data = bytearray(TWO_KERNELS.read_bytes()[:20_000])
    path = tmp_path / "changed.xplane.pb"
    for position in range(0, len(data), 397):
        changed = bytes(data[:position]) + bytes([data[position] ^ 0xFF]) + bytes(data[position + 1 :])
        path.write_bytes(changed)
        try:
            assert isinstance(open_profile(path), ProfileRecord)
        except ProfileError:
            continue


# ---- one of several programs

PSUM = "jit__psum(9646411105960254074)"


def test_one_program_is_read_by_its_name_with_its_own_sums(v6e):
    alone = open_profile(V6E, PSUM)
    (expected,) = [program for program in v6e.programs if program.name == PSUM]
    assert alone.programs == (expected,)
    assert alone.operations == tuple(operation for operation in v6e.operations if operation.program == PSUM)
    assert alone.seconds == pytest.approx(expected.seconds)
    assert {event.program for event in alone.events} == {PSUM}


def test_programs_together_have_the_seconds_of_the_profile(v6e):
    parts = [open_profile(V6E, program.name) for program in v6e.programs]
    assert sum(part.seconds for part in parts) == pytest.approx(v6e.seconds)
    assert sum(len(part.events) for part in parts) == sum(device.events for device in v6e.devices)


def test_module_name_is_enough_where_one_program_has_it():
    assert open_profile(V6E, "jit__psum").programs[0].name == PSUM


def test_only_the_chosen_program_is_in_the_note():
    assert any("jit__psum is read: 3.4 % of the seconds" in note for note in open_profile(V6E, "jit__psum").notes)


def test_unknown_program_is_refused_with_the_names_that_there_are(v6e):
    with pytest.raises(ProfileError, match="none of its programs has this name") as caught:
        open_profile(V6E, "jit_step")
    assert all(program.name in str(caught.value) for program in v6e.programs)


def written_events(tmp_path, events):
    """A trace of one GPU: (start, seconds, instruction, program) on one stream."""
    spans = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "Stream #1"}},
        *(
            {"ph": "X", "pid": 1, "tid": 1, "name": f"kernel_{name}", "ts": start * 1e6, "dur": seconds * 1e6,
             "args": {"hlo_op": name, "hlo_module": "jit_add", "program_id": program}}
            for start, seconds, name, program in events
        ),
    ]  # fmt: skip
    path = tmp_path / "gpu.trace.json"
    path.write_text(json.dumps({"traceEvents": spans}))
    return path


def test_name_of_two_programs_is_refused_with_both(tmp_path):
    path = written_events(tmp_path, [(0, 1, "add.1", 11), (1, 1, "add.1", 28)])
    with pytest.raises(
        ProfileError,
        match=r"2 programs of this profile have this name: "
        r"'jit_add\(11\)'.*'jit_add\(28\)'",
    ):
        open_profile(path, "jit_add")
    assert open_profile(path, "jit_add(28)").seconds == pytest.approx(1.0)


def test_other_programs_between_runs_of_the_chosen_one_are_no_idle_time(tmp_path):
    events = [(0, 1, "add.1", 11), (1, 4, "mul.1", 28), (5, 1, "add.1", 11), (6, 3, "mul.1", 28)]
    (device,) = open_profile(written_events(tmp_path, events), "jit_add(11)").devices
    assert (device.span_seconds, device.compute_seconds, device.other_seconds) == pytest.approx((6.0, 2.0, 4.0))


def test_events_of_one_instruction_name_keep_the_line_of_their_program(tmp_path):
    path = written_events(tmp_path, [(0, 1, "add.1", 11), (1, 1, "add.1", 28)])
    assert [event.program for event in open_profile(path).events] == ["jit_add(11)", "jit_add(28)"]


def test_program_that_holds_no_module_is_refused():
    with pytest.raises(ProfileError, match="program=int, which has no compiled module"):
        open_profile(V6E, 3)
