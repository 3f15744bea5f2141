"""Seconds of stages, peaks of memory and the programs of a calibration, from numbers that are written by hand."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from records_parts import toy_module

import workbench as wb
from workbench.cost import known_chip
from workbench.measurement import ReadingOptions, _calibrate, _measure
from workbench.measurement._device_events import DeviceEvent
from workbench.measurement._join import JoinedEvent, JoinedProfile
from workbench.measurement._measure import _Rounds
from workbench.records.compiled import CollectiveRecord, InstructionRecord, MemoryRecord, StagePartRecord
from workbench.records.hardware import ChipRecord, ClientRange, MeshRecord, RateRecord

V3: Any = known_chip("v3")
LABELS = {0: "tpu:0", 1: "tpu:1"}
CHIP = ChipRecord(
    name="toy", peak_flops_per_second={"float32": 400.0}, hbm_bytes=1, hbm_bytes_per_second=200.0,
    link_bytes_per_second=1.0, devices_per_chip=2, links=1, topology="switch", source="hand",
)  # fmt: skip


def instruction(name: str, stage: str | None = "1", **fields: Any) -> InstructionRecord:
    options: dict[str, Any] = {"opcode": "dot", "computation": "main", "shape": "f32[]", "size_bytes": 4}
    return InstructionRecord(name=name, executions=7, stage=stage, **{**options, **fields})


def leaf(done: InstructionRecord | None, seconds: float, *, device: int = 0, kind: Any = "compute",
         wait: float = 0.0, share: float = 1.0, name: str = "") -> JoinedEvent:  # fmt: skip
    event = DeviceEvent(
        device=device, name=name or (done.name if done else "lost"), module="m", run=1, start_seconds=0.0,
        seconds=seconds,
    )  # fmt: skip
    return JoinedEvent(event, done, kind, wait, share)


DOT = instruction("dot", flops=30.0, products={"float32": 30.0}, elementwise_flops=4.0, accessed_bytes=10)
FUSED = instruction(
    "fused", opcode="fusion", flops=8.0, products={"float32": 8.0}, accessed_bytes=40,
    stage_parts=(StagePartRecord(stage="1", kind="clients", flops=6.0, elementwise_flops=1.0, accessed_bytes=10),
                 StagePartRecord(stage="2", kind="reduce", flops=2.0, elementwise_flops=0.0, accessed_bytes=30)),
)  # fmt: skip
SUM = instruction("sum", "2", opcode="all-reduce", accessed_bytes=64)
SUMMED = CollectiveRecord(
    name="sum", kind="all-reduce", axes=(), group_size=2, groups=1, payload_bytes=8, wire_bytes=8.0, executions=1,
    stages=("2", "3"), stage_shares={"2": 0.75, "3": 0.25},
)  # fmt: skip
MODULE = toy_module(instructions=(DOT, FUSED, SUM), collectives=(SUMMED,))


def stages(*leaves: JoinedEvent, rounds: int = 2, chip: ChipRecord | None = CHIP) -> dict[tuple[str, str], Any]:
    records = _measure._stage_runs(leaves, MODULE, LABELS, rounds, ReadingOptions(chip=chip))
    return {(record.stage, record.where): record for record in records}


def test_seconds_and_work_of_a_stage_are_those_of_one_call():
    # Four executions in two calls: two of a call, 60 FLOPs in 1 second; the device has half of the chip's peaks.
    (run,) = stages(*[leaf(DOT, 0.5, wait=0.0)] * 4).values()
    assert (run.stage, run.where, run.calls) == ("1", "tpu:0", 2)
    assert (run.compute_seconds, run.collective_seconds, run.wait_seconds) == (1.0, 0.0, 0.0)
    assert (run.flops_per_second, run.elementwise_flops_per_second, run.bytes_per_second) == (60.0, 8.0, 20.0)
    # 60 FLOPs take 60 / 200 s at the peak of a device, and 20 bytes 20 / 100 s
    assert (run.peak_flops_share, run.peak_bandwidth_share) == (pytest.approx(0.3), pytest.approx(0.2))


def test_kernels_of_one_execution_count_its_work_once():
    (run,) = stages(leaf(DOT, 1.0, share=0.5), leaf(DOT, 3.0, share=0.5), rounds=1).values()
    assert (run.compute_seconds, run.flops_per_second, run.bytes_per_second) == (4.0, 30 / 4, 10 / 4)


def test_a_fusion_divides_its_seconds_by_products_and_its_work_by_parts():
    runs = stages(leaf(FUSED, 4.0), rounds=1)
    assert {key: run.compute_seconds for key, run in runs.items()} == {("1", "tpu:0"): 3.0, ("2", "tpu:0"): 1.0}
    assert [run.flops_per_second for run in runs.values()] == [2.0, 2.0]
    assert [run.bytes_per_second for run in runs.values()] == [10 / 3, 30.0]
    assert [run.elementwise_flops_per_second for run in runs.values()] == [1 / 3, 0.0]
    assert [run.peak_flops_share for run in runs.values()] == pytest.approx([6 / 200 / 3, 2 / 200])


def test_a_collective_divides_its_seconds_among_its_stages_and_waits_apart():
    runs = stages(leaf(SUM, 5.0, kind="collective", wait=1.0), rounds=1)
    assert [(run.stage, run.collective_seconds, run.wait_seconds) for run in runs.values()] == [
        ("2", 3.0, 0.75), ("3", 1.0, 0.25),
    ]  # fmt: skip
    assert {run.compute_seconds for run in runs.values()} == {0.0}
    assert {(run.bytes_per_second, run.peak_bandwidth_share, run.peak_flops_share) for run in runs.values()} == {
        (None, None, None)
    }


def test_events_without_an_instruction_or_a_stage_have_a_stage_without_a_name():
    runs = stages(leaf(None, 2.0), leaf(DOT.replace(stage=None), 1.0, device=1), leaf(DOT, 1.0, device=5), rounds=1)
    assert {key: run.compute_seconds for key, run in runs.items()} == {
        ("", "tpu:0"): 2.0, ("", "tpu:1"): 1.0, ("1", "5"): 1.0,
    }  # fmt: skip


def test_unknown_peaks_leave_shares_unknown():
    assert [run.peak_flops_share for run in stages(leaf(DOT, 1.0), chip=None).values()] == [None]
    nameless = CHIP.replace(peak_flops_per_second={})
    (run,) = stages(leaf(DOT, 1.0), chip=nameless, rounds=1).values()
    assert (run.peak_flops_share, run.peak_bandwidth_share) == (None, 0.1)


def test_measured_seconds_of_the_call_tree_are_those_of_one_call():
    tree: Any = wb.inspect(lambda x: x @ x)(jnp.ones((8, 8))).call_tree
    (name,) = {name for node in tree.nodes if node.own.flops_matmul for name in node.instructions}
    joined = types.SimpleNamespace(leaves=(*[leaf(None, 1.0, name=name)] * 4, leaf(None, 1.0, name=name, device=7)))
    measured: Any = _measure._measured_tree(MODULE.replace(call_tree=tree), joined, LABELS, 2)  # type: ignore[arg-type]
    assert measured.root.total.measured_seconds == {"tpu:0": 2.0, "7": 0.5}
    assert _measure._measured_tree(MODULE.replace(call_tree=None), joined, LABELS, 2) is None  # type: ignore[arg-type]


def test_clients_are_the_slots_of_their_placement(monkeypatch):
    calls: list[Any] = []
    monkeypatch.setattr(_measure, "client_runs", lambda *args, **options: calls.append((args[2], options)) or ())
    ranges = tuple(
        ClientRange(placement=name, device_id=0, start=2, stop=4, padding=padding)
        for name, padding in (("clients", 1), ("pods", 0))
    )
    mesh = MeshRecord(axes=(), devices=(), clients=ranges)
    joined: Any = JoinedProfile(leaves=(), containers=(), joined=1.0, attributed=1.0, notes=())

    def slots(**options: Any) -> Any:
        calls.clear()
        runs, notes = _measure._clients(joined, MODULE, LABELS, 3, ReadingOptions(**options))
        assert (runs, len(notes)) == ((), len(calls))
        return [call[0] for call in calls]

    assert slots(mesh=mesh) == []
    assert slots(mesh=mesh, client_stages=("1", "2"), placement="clients") == [{0: [2, 3, None]}] * 2
    assert calls[1][1] == {"stage": "2", "labels": LABELS, "rounds": 3}
    assert slots(mesh=mesh, client_stages=("1",)) == [{0: [2, 3]}]
    assert slots(client_stages=("1",), clients=2) == [{0: [0, 1], 1: [0, 1]}]
    assert slots(client_stages=("1",)) == [{}]


def device(platform: str, **stats: int) -> Any:
    return types.SimpleNamespace(platform=platform, id=0, process_index=0, memory_stats=lambda: stats or None)


@pytest.mark.parametrize(
    ("platform", "before", "temporary", "expected"),
    [("tpu", 100, 30, 100 + 30 + 8 - 2), ("tpu", 10, 30, 70), ("tpu", None, 30, 70), ("tpu", 100, None, 70),
     ("gpu", 100, 30, 70)],
)  # fmt: skip
def test_peak_of_a_tpu_is_at_least_the_planned_peak(monkeypatch, platform, before, temporary, expected):
    monkeypatch.setattr(_measure, "_fullest", lambda devices, *, peak: 70)
    memory = MemoryRecord(temporary_bytes=temporary, output_bytes=8, alias_bytes=2)
    assert _measure._peak([device(platform)], before, MODULE.replace(memory=memory)) == expected


def test_planned_peak_where_the_backend_reports_none(monkeypatch):
    monkeypatch.setattr(_measure, "_fullest", lambda devices, *, peak: None)
    memory = MemoryRecord(temporary_bytes=30)
    assert _measure._peak([device("tpu")], 5, MODULE.replace(memory=memory)) == 35


def test_the_fullest_device_counts(monkeypatch):
    monkeypatch.setattr("workbench.measurement._memory.is_here", lambda device: True)
    devices = [device("gpu", bytes_in_use=5, peak_bytes_in_use=9), device("gpu", bytes_in_use=7, peak_bytes_in_use=8)]
    assert [_measure._fullest(devices), _measure._fullest(devices, peak=True)] == [7, 9]
    assert _measure._fullest([device("gpu", other=1)]) is None


@pytest.mark.parametrize(
    ("platform", "stats", "spans", "joined", "facts"),
    [
        ("tpu", {"bytes_in_use": 1}, 9, 0.5, []),
        ("tpu", {"bytes_in_use": 1}, 10, 0.5, ["contains the longest 9 of 10 spans"]),
        ("cpu", {}, 9, 0.5, ["simulated on one CPU", "planned 3 MiB at the peak"]),
        ("gpu", {"bytes_in_use": 1}, 9, 0.98, ["command buffer"]),
        ("gpu", {"bytes_in_use": 1}, 9, 0.99, []),
    ],
)
def test_notes_of_a_measurement(platform, stats, spans, joined, facts):
    walls = _Rounds(plain=[1e-3, 2.994e-3, 9e-3], profiled=[9.994e-3, 3e-3, 10e-3])
    module = MODULE.replace(memory=MemoryRecord(peak_bytes=3 * 2**20))
    profile: Any = types.SimpleNamespace(joined=joined)
    first, *rest = _measure._notes(
        walls, spans, module, [device(platform, **stats)], ReadingOptions(max_events=9), profile
    )
    assert first == "Profiling: a call takes 9.99 ms with the profiler and 2.99 ms without it (medians of 3)."
    assert len(rest) == len(facts)
    assert all(fact in note for fact, note in zip(facts, rest, strict=True))


# ---- calibration


def calibrated() -> Any:
    """The programs on two axes of 4 and 2 devices: the FLOPs or bytes of an operation, by kind."""
    amounts: dict[str, set[Any]] = {}
    for trial in _calibrate._all_trials(wb.make_mesh(x=4, y=2)):
        key = trial.kind if not trial.axis else f"{trial.kind} {trial.axis} {trial.group_size}"
        amounts.setdefault(key, set()).add((trial.dtype, trial.amount, trial.operations) if trial.dtype else
                                           (trial.amount, trial.operations))  # fmt: skip
    return amounts


def test_work_of_the_programs_of_a_calibration():
    amounts = calibrated()
    assert amounts.pop("matrix product") == {
        (dtype, 2.0 * size**3, 1) for dtype in ("float32", "bfloat16") for size in (16, 64, 256, 1024)
    }
    # 4 images of 16 x 16 points and 3 x 3 taps: 2 FLOPs for each pair of channels
    assert amounts.pop("convolution") == {(2 * 4 * 256 * 9 * 64, 1), (2 * 4 * 256 * 9 * 4096, 1)}
    assert amounts.pop("transcendental") == {(256, 1), (2**18, 1)}
    assert amounts.pop("arithmetic") == {(32 * 3 * 256, 1), (32 * 3 * 2**18, 1)}  # 32 times a shift, a XOR and a sum
    assert amounts.pop("sort") == {(2.0 * size, 1) for size in (2**8, 2**12, 2**17, 2**21, 2**24)}  # read and written
    assert amounts.pop("factorisation") == {(size**3 / 3, 1) for size in (16, 64, 128, 256)}
    assert amounts.pop("eigenvalues") == {(14 * size**3 / 3, 1) for size in (16, 64, 128, 256)}
    assert amounts.pop("call") == {(0.0, 20)}
    assert amounts.pop("array") == {(0.0, 20 * 32)}  # 32 additional arrays in each of 20 calls
    for copied in ("upload", "download"):
        assert amounts.pop(copied) == {(2.0**16, 1), (2.0**24, 1)}
    for kind in _calibrate._COLLECTIVES:
        for axis, members in (("x", 4), ("y", 2)):
            assert amounts.pop(f"{kind} {axis} {members}") == {(2.0**n, 1) for n in (12, 17, 21)}
    counted = {"elementwise", "reduction", "transpose", "gather", "scatter", "thin product", "operation", "first run"}
    assert amounts == {kind: {(0.0, 1)} for kind in counted}  # these amounts are counted in the compiled program


def test_kinds_select_programs():
    mesh = wb.make_mesh(x=1)
    assert {trial.kind for trial in _calibrate._trials(mesh, {"call", "sort"})} == {"call", "sort"}
    assert not [trial for trial in _calibrate._trials(mesh, None) if trial.kind in _calibrate._COLLECTIVES]


@pytest.mark.parametrize(("repeats", "many"), [(0, 1), (1, 1), (3, 2)])
def test_a_program_repeats_its_operation(repeats, many):
    """Each repetition adds 1, and the program is called with `repeats` repetitions."""
    counts: list[int] = []

    def body(x: Any) -> Any:
        jax.debug.callback(lambda: counts.append(1))
        return x + 1.0

    trial = _calibrate._repeated(wb.make_mesh(x=1), "operation", 0.0, body, (8,), many=many)
    trial.run(repeats)
    jax.effects_barrier()
    assert (len(counts), trial.operations) == (repeats * many, many)


@pytest.mark.parametrize(
    ("size", "shape"), [(16, (4,)), (20, (4,)), (32, (8,)), (4, (4,))]
)  # whole groups of 4 elements, at least one
def test_operand_of_a_collective_has_whole_parts(monkeypatch, size, shape):
    shapes = []
    monkeypatch.setattr(_calibrate, "_repeated", lambda *args, **options: shapes.append((args, options)))
    _calibrate._collective(wb.make_mesh(x=4), "all-gather", "x", 4, size)
    ((args, options),) = shapes
    assert args[1:3] + args[4:] == ("all-gather", 4.0 * shape[0], shape)
    assert options == {"axis": "x", "group_size": 4}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all-reduce", [2, 3, 4, 5, 2, 3, 4, 5]),  # half of the sums 4, 6, 8, 10
        ("all-gather", [0, 1, 2, 3, 0, 1, 2, 3]),  # the part of the first device
        ("reduce-scatter", [2, 1, 2, 3, 4, 5, 6, 7]),  # half of the first sum of each part replaces a number
        ("all-to-all", [0, 1, 4, 5, 2, 3, 6, 7]),
        ("collective-permute", [4, 5, 6, 7, 0, 1, 2, 3]),
    ],
)
def test_operation_of_a_collective_communicates_as_its_name_says(monkeypatch, kind, expected):
    """Two devices with the numbers 0 to 3 and 4 to 7."""
    bodies = []
    monkeypatch.setattr(_calibrate, "_repeated", lambda *args, **options: bodies.append(args[3]))
    mesh = wb.make_mesh(x=2)
    _calibrate._collective(mesh, kind, "x", 2, 16)
    spec = jax.sharding.PartitionSpec("x")
    operation = jax.jit(jax.shard_map(bodies[0], mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    assert operation(jnp.arange(8.0)).tolist() == expected


def row(kind: Any, amount: float, seconds: float, **fields: Any) -> RateRecord:
    return RateRecord(
        kind=kind, amount=amount, seconds=seconds, low_seconds=seconds, high_seconds=seconds, runs=5, **fields
    )


RATES = (
    row("matrix product", 100.0, 2.0, dtype="float32"), row("matrix product", 900.0, 3.0, dtype="float32"),
    row("matrix product", 90.0, 0.1, dtype="bfloat16"), row("matrix product", 90.0, 0.0, dtype="bfloat16"),
    row("matrix product", 80.0, 2.0, dtype="float32:highest"),
    row("elementwise", 10.0, 1.0), row("elementwise", 30.0, 2.0), row("elementwise", 20.0, 0.1),
    row("collective-permute", 8.0, 2.0), row("collective-permute", 9.0, 2.0), row("all-reduce", 99.0, 1.0),
)  # fmt: skip


def test_peaks_of_a_measured_chip_are_its_best_rates(monkeypatch):
    mesh = wb.make_mesh(x=2)
    monkeypatch.setattr(_calibrate, "_row", lambda kind: None)
    monkeypatch.setattr(_calibrate, "_host_bytes", lambda mesh: 77)
    chip = _calibrate._chip(mesh, RATES)
    assert chip.peak_flops_per_second == {"float32": 300.0, "bfloat16": 900.0}
    assert chip.vector_flops_per_second == 40.0  # products with full precision
    assert chip.hbm_bytes_per_second == 15.0  # of the largest operation
    assert (chip.link_bytes_per_second, chip.links, chip.topology) == (4.5, 1, "switch")
    assert (chip.hbm_bytes, chip.devices_per_chip, chip.dcn_bytes_per_second) == (77, 1, None)
    monkeypatch.setattr(_calibrate, "_row", lambda kind: V3.replace(devices_per_chip=2))
    known = _calibrate._chip(mesh, RATES)  # each device was measured alone, and the peaks are a chip's
    assert known.peak_flops_per_second == {"float32": 600.0, "bfloat16": 1800.0}
    assert (known.hbm_bytes_per_second, known.vector_flops_per_second) == (30.0, 80.0)
    assert (known.name, known.hbm_bytes, known.links) == ("v3", V3.hbm_bytes, V3.links)
    assert f"measured on 2 × {jax.devices()[0].device_kind}" in known.source


def test_host_memory_is_divided_among_the_devices(monkeypatch):
    monkeypatch.setattr(_calibrate.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert _calibrate._host_bytes(wb.make_mesh(x=8)) == 512_000
    monkeypatch.setattr(_calibrate.os, "sysconf", lambda name: int("no"))
    assert _calibrate._host_bytes(wb.make_mesh(x=8)) == 0


def test_quartiles_and_the_end_of_a_measurement():
    trial = _calibrate._Trial("call", 0.0, lambda _: None)
    trial.walls = [4.0]
    assert (trial.rate().low_seconds, trial.rate().seconds, trial.rate().high_seconds) == (4.0, 4.0, 4.0)
    trial.walls = [1.0, 2.0, 3.0, 4.0]
    assert not trial.is_settled
    trial.walls = [1.0, 2.0, 3.0, 4.0, 5.0]
    rate = trial.rate()
    assert (rate.low_seconds, rate.seconds, rate.high_seconds, rate.runs) == (2.0, 3.0, 4.0, 5)
    assert not trial.is_settled
    trial.walls = [100.0, 97.5, 102.5, 90.0, 110.0]  # quartiles 5 % apart
    assert trial.is_settled
    trial.walls = [1.0, 2.0, 3.0, 4.0, 5.0] * 6
    assert trial.is_settled


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"kind": "matrix product", "amount": 8192.0, "dtype": "bfloat16"}, "matrix product bfloat16 8.19e+03 FLOP"),
     ({"kind": "all-reduce", "amount": 64.0, "axis": "x"}, "all-reduce x 64 B"),
     ({"kind": "call", "amount": 0.0}, "call")],
)  # fmt: skip
def test_name_of_a_program(fields, name):
    assert _calibrate._Trial(run=lambda _: None, **fields).name == name


def test_progress_line_is_replaced_and_removed(capsys):
    line = _calibrate._Line(shown=True)
    line("")  # nothing to remove
    line("abcdef")
    line("xy")
    line("")
    assert capsys.readouterr().err == "\rabcdef\rxy    \r  \r"
    hidden = _calibrate._Line(shown=False)
    hidden("abc")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "repeats", "usable"),
    [
        (lambda n: 1e-3 + n * 3e-3, 1, True),  # at least 2 ms and three empty calls
        (lambda n: 1e-3 + n * 1e-3, 4, True),  # twice as often: 1, 2, 4
        (lambda n: n * 0.26, 1, False),  # longer than 0.25 s
        (lambda n: n * 0.25, 1, True),
        (lambda n: 0.0, 1 << 16, True),  # 16 times as often: 16, 256, 4,096, 65,536
        (lambda n: n * 1e-4, 32, True),  # 16 times as often, then twice
    ],
)
def test_repeats_of_a_program(monkeypatch, seconds, repeats, usable):
    monkeypatch.setattr(_calibrate, "_timed", lambda trial, repeats: seconds(repeats))
    trial = _calibrate._Trial("sort", 1.0, lambda _: None)
    assert (_calibrate._warm(trial), trial.repeats) == (usable, repeats)


def test_amount_and_number_of_operations_are_those_of_the_compiled_program(monkeypatch):
    monkeypatch.setattr(_calibrate, "_timed", lambda trial, repeats: float(bool(repeats)) / 8)
    for kind, expected in (("elementwise", (50.0, 2)), ("operation", (0.0, 2)), ("sort", (7.0, 1))):
        trial = _calibrate._Trial(kind, 7.0, lambda _: None)  # type: ignore[arg-type]
        trial.counted = lambda: (100.0, 2)
        assert _calibrate._warm(trial)
        assert (trial.amount, trial.operations) == expected


def test_program_that_a_device_does_not_support_is_left_out():
    def run(repeats: int) -> None:
        raise NotImplementedError

    assert not _calibrate._warm(_calibrate._Trial("sort", 1.0, run))


LOOP = """HloModule jit_f, is_scheduled=true

fused {
  p = f32[64] parameter(0)
  ROOT f = f32[64] negate(p)
}

called {
  q = f32[64] parameter(0)
  ROOT g = f32[64] negate(q)
}

body {
  c = (s32[], f32[64], f32[16], f32[15]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  x = f32[64] get-tuple-element(c), index=1
  quarter = f32[16] get-tuple-element(c), index=2
  less = f32[15] get-tuple-element(c), index=3
  a = f32[64] fusion(x), kind=kLoop, calls=fused
  b = f32[64] call(a), to_apply=called
  d = f32[16] negate(quarter)
  e = f32[15] negate(less)
  ROOT t = (s32[], f32[64], f32[16], f32[15]) tuple(i, b, d, e)
}

condition {
  k = (s32[], f32[64], f32[16], f32[15]) parameter(0)
  n = s32[] get-tuple-element(k), index=0
  ROOT more = pred[] compare(n, n), direction=LT
}

ENTRY main {
  y = (s32[], f32[64], f32[16], f32[15]) parameter(0)
  before = f32[64] get-tuple-element(y), index=1
  outside = f32[64] negate(before)
  ROOT l = (s32[], f32[64], f32[16], f32[15]) while(y), condition=condition, body=body
}
"""


def test_large_operations_of_the_loop_are_counted():
    """In the loop, two operations read and write 64 floats, one 16 floats, a quarter, and one 15 floats."""
    assert _calibrate._counted(LOOP) == (2 * 4 * (64 + 64 + 16), 3)  # type: ignore[arg-type]
