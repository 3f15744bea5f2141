"""Measured rates: what a calibration holds, where it is kept, and what predictions make of it."""

import itertools
import math

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.aot._calibrations import calibration_of_devices
from workbench.cost import CHIPS, collective_seconds, estimate_cost, known_chip, predict_operation, time_module
from workbench.cost._operations import seconds_of_call
from workbench.errors import MeshError
from workbench.inspection import inspect_module
from workbench.measurement import _calibrate
from workbench.records.hardware import ChipRecord, RateRecord


def rate(kind, amount, seconds, **fields):
    return RateRecord(
        kind=kind, amount=amount, seconds=seconds, low_seconds=seconds, high_seconds=seconds, runs=5, **fields
    )


# Seconds that double where the amount grows four times: no straight line, so that ends and middle tell laws apart.
MEASURED = CHIPS["v5e"].replace(
    rates=(
        rate("matrix product", 1e6, 1e-5, dtype="float32"),
        rate("matrix product", 1.6e7, 4e-5, dtype="float32"),
        rate("elementwise", 1e3, 1e-6),
        rate("elementwise", 1e6, 1e-4),
        rate("sort", 1e3, 1e-3),
        rate("operation", 0.0, 5e-7),
        rate("all-gather", 1e6, 1e-3, axis="clients", group_size=8),
    ),
    source="measured by hand",
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))


@pytest.fixture
def few(monkeypatch):
    """One size of every program, so that a test compiles little."""
    monkeypatch.setattr(_calibrate, "_SLOW_BYTES", (1 << 12, 1 << 13, 1 << 14))
    monkeypatch.setattr(_calibrate, "_LEAST_SECONDS", 1e-5)


@pytest.mark.parametrize(
    ("flops", "seconds"),
    [
        pytest.param(1e6, 1e-5, id="a measured size"),
        pytest.param(4e6, 2e-5, id="half way between, in logarithms"),
        pytest.param(1.0, 1e-5, id="below the smallest: its seconds"),
        pytest.param(1.6e8, 4e-4, id="ten times the largest: ten times its seconds"),
    ],
)
def test_measured_products_are_interpolated(flops, seconds):
    assert predict_operation(flops, 0.0, "float32", MEASURED, kind="matrix product").seconds == pytest.approx(seconds)


def test_measured_collective_scales_with_what_a_device_sends():
    # 8 devices send 7 operands each, 15 devices 14
    assert collective_seconds("all-gather", 1e6, 8, MEASURED) == pytest.approx(1e-3)
    assert collective_seconds("all-gather", 1e6, 15, MEASURED) == pytest.approx(2e-3)


def test_kind_that_was_not_measured_takes_the_table():
    whole = MEASURED.replace(rates=())
    assert collective_seconds("all-reduce", 1e9, 8, MEASURED) == pytest.approx(
        collective_seconds("all-reduce", 1e9, 8, whole), rel=0.15
    )


def test_operations_take_the_rate_of_their_class():
    text = """HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[125]) -> f32[125] {
  %a = f32[125] parameter(0)
  %negate = f32[125] negate(%a)
  ROOT %sort.1 = f32[125] sort(%negate), dimensions={0}
}
"""
    seconds = estimate_cost(inspect_module(text, platform="cpu"), chip=MEASURED).seconds
    assert seconds == pytest.approx(1e-6 + 1e-3)  # each reads and writes 1,000 bytes


def seconds_on_measured(text, *rates):
    chip = MEASURED.replace(rates=(*MEASURED.rates, *rates))
    return estimate_cost(inspect_module(text, platform="cpu"), chip=chip).seconds


def test_operand_that_was_made_long_ago_comes_from_a_slower_cache():
    # `far` reads what was made before 250,000 floats were written, `near` what was made just before
    text = """HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[125]) -> f32[125] {
  %a = f32[125] parameter(0)
  %first = f32[125] negate(%a)
  %large = f32[250000] broadcast(%first), dimensions={}
  %READ = f32[125] negate(%OPERAND)
  ROOT %last = f32[125] negate(%READ)
}
"""
    near, far = (text.replace("READ", "x").replace("OPERAND", name) for name in ("large", "first"))
    near = near.replace("negate(%large)", "slice(%large), slice={[0:125]}")
    fast, slow = rate("elementwise", 1e3, 1e-6), rate("elementwise", 1e6, 1e-2)  # ten times slower a byte
    chip = MEASURED.replace(rates=(fast, slow))
    times = [time_module(inspect_module(each, platform="cpu"), chip) for each in (near, far)]
    assert times[0]["x"].seconds == pytest.approx(times[0]["last"].seconds)
    assert times[1]["x"].seconds == pytest.approx(1e-2 * (1000 / 1e6), rel=0.01)
    assert times[1]["x"].seconds > 5 * times[1]["last"].seconds


def test_arguments_come_from_the_cache_that_holds_all_values_of_a_call():
    text = """HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[125]) -> f32[250000] {
  %a = f32[125] parameter(0)
  %first = f32[125] negate(%a)
  ROOT %large = f32[250000] broadcast(%first), dimensions={}
}
"""
    fast, slow = rate("elementwise", 1e3, 1e-6), rate("elementwise", 1e6, 1e-2)
    found = time_module(inspect_module(text, platform="cpu"), MEASURED.replace(rates=(fast, slow)))
    assert found["first"].seconds == pytest.approx(1e-2 * (1000 / 1e6), rel=0.01)


def test_exponentials_of_a_fusion_take_their_own_rate():
    text = """HloModule jit_f, is_scheduled=true

%inside (p: f32[125]) -> f32[125] {
  %p = f32[125] parameter(0)
  %minus = f32[125] negate(%p)
  ROOT %exponential = f32[125] exponential(%minus)
}

ENTRY %main (a: f32[125]) -> f32[125] {
  %a = f32[125] parameter(0)
  ROOT %fusion = f32[125] fusion(%a), kind=kLoop, calls=%inside
}
"""
    assert seconds_on_measured(text) == pytest.approx(1e-6)
    assert seconds_on_measured(text, rate("transcendental", 125.0, 3e-5)) == pytest.approx(3e-5)
    # the negation is the other operation of the fusion
    both = rate("transcendental", 125.0, 3e-5), rate("arithmetic", 125.0, 2e-5)
    assert seconds_on_measured(text, *both) == pytest.approx(5e-5)


def test_few_exponentials_take_their_share_of_the_smallest_measured_number():
    text = """HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[125]) -> f32[125] {
  %a = f32[125] parameter(0)
  ROOT %exponential = f32[125] exponential(%a)
}
"""
    assert seconds_on_measured(text, rate("transcendental", 500.0, 4e-5)) == pytest.approx(1e-5)


def test_first_run_of_an_operation_is_added_once_per_call():
    text = """HloModule jit_f, is_scheduled=true

%body (p: (s32[], f32[125])) -> (s32[], f32[125]) {
  %p = (s32[], f32[125]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[125] get-tuple-element(%p), index=1
  %y = f32[125] negate(%x)
  ROOT %t = (s32[], f32[125]) tuple(%i, %y)
}

%c (p: (s32[], f32[125])) -> pred[] {
  %p = (s32[], f32[125]) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (a: (s32[], f32[125])) -> (s32[], f32[125]) {
  %a = (s32[], f32[125]) parameter(0)
  ROOT %loop = (s32[], f32[125]) while(%a), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"8"}}
}
"""
    loop, with_first_run = (
        estimate_cost(inspect_module(text, platform="cpu"), chip=MEASURED.replace(name="cpu", rates=rates)).seconds
        for rates in (MEASURED.rates, (*MEASURED.rates, rate("first run", 0.0, 3e-6)))
    )
    assert loop is not None
    assert with_first_run == pytest.approx(loop + 3e-6)


def test_product_takes_no_less_than_its_operands():
    text = """HloModule jit_f, is_scheduled=true

ENTRY %main (a: f32[500,500], b: f32[500,1]) -> f32[500,1] {
  %a = f32[500,500] parameter(0)
  %b = f32[500,1] parameter(1)
  ROOT %dot = f32[500,1] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    thin = rate("thin product", 1_004_000.0, 7e-4)
    assert seconds_on_measured(text, thin) == pytest.approx(7e-4)
    assert seconds_on_measured(text) == pytest.approx(1e-4, rel=0.01)  # else those of elementwise operations
    on_cpu = MEASURED.replace(name="cpu", rates=(*MEASURED.rates, thin))  # whose cores do one after the other
    flops = 1e-5  # of 500,000 FLOPs, fewer than the smallest measured product has
    assert estimate_cost(inspect_module(text, platform="cpu"), chip=on_cpu).seconds == pytest.approx(7e-4 + flops)


def test_call_costs_more_with_more_arrays():
    chip = MEASURED.replace(rates=(rate("call", 0.0, 1e-5), rate("array", 0.0, 2e-6)))
    assert [seconds_of_call(chip, arrays) for arrays in (2, 12)] == pytest.approx([1e-5, 2e-5])
    assert seconds_of_call(CHIPS["v5e"], 12) == 0.0


def test_text_says_measured_rates_or_data_sheet():
    module = inspect_module(jax.jit(jnp.sin).lower(jnp.ones(8)).compile())
    assert "v5e, measured rates: measured by hand" in " ".join(estimate_cost(module, chip=MEASURED).assumptions)
    assert "v5e, data sheet: Google Cloud" in " ".join(estimate_cost(module, chip=CHIPS["v5e"]).assumptions)


def test_calibration_measures_every_kind_and_is_kept_for_the_devices(few, tmp_path):
    mesh = wb.make_mesh(clients=4, model=2)
    assert calibration_of_devices() is None
    with pytest.raises(MeshError, match=r"have no calibration.*run `wb.calibrate\(\)`"):
        known_chip("here")
    kinds = (
        "matrix product",
        "sort",
        "operation",
        "first run",
        "call",
        "upload",
        "download",
        "all-reduce",
        "all-to-all",
    )
    chip = wb.calibrate(on=mesh, seconds=0.01, kinds=kinds, progress=False)
    assert {each.kind for each in chip.rates} == {*kinds, "elementwise"}
    assert {(each.axis, each.group_size) for each in chip.rates if each.kind == "all-reduce"} == {
        ("clients", 4), ("model", 2),
    }  # fmt: skip
    assert all(0 < each.low_seconds <= each.seconds <= each.high_seconds for each in chip.rates)
    assert {each.amount for each in chip.rates if each.kind == "operation"} == {0.0}
    assert known_chip("here") == chip
    (tmp_path / "theirs.json").write_text(chip.to_json())
    assert known_chip(str(tmp_path / "theirs.json")) == chip


def test_flops_of_the_products_that_are_measured():
    trials = [trial for trial in _calibrate._all_trials(wb.make_mesh(x=1)) if trial.kind == "matrix product"]
    assert {trial.amount for trial in trials} == {2 * size**3 for size in (16, 64, 256, 1024)}


def test_one_cpu_device_needs_no_time_to_continue_a_loop():
    assert _calibrate._loop_seconds(wb.make_mesh(x=1)) == 0


def test_inspection_takes_measured_rates(few):
    chip = wb.calibrate(seconds=0.01, kinds=("matrix product", "operation"), progress=False)
    record = wb.inspect(lambda x: x @ x, on="here")(jnp.ones((64, 64)))
    assert record.cost.chip == chip
    assert record.cost.seconds is not None
    assert record.cost.seconds >= min(each.seconds for each in chip.rates if each.kind == "matrix product")


def test_stop_keeps_nothing(few, monkeypatch):
    calls = itertools.count()

    def interrupted(trial, repeats):
        if next(calls) > 5:
            raise KeyboardInterrupt
        return 1e-3

    monkeypatch.setattr(_calibrate, "_timed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        wb.calibrate(seconds=10, kinds=("call",), progress=False)
    assert calibration_of_devices() is None


def test_measuring_ends_when_the_spread_is_small(few, monkeypatch):
    monkeypatch.setattr(_calibrate, "_timed", lambda trial, repeats: 1e-3)
    chip = wb.calibrate(seconds=math.inf, kinds=("call",), progress=False, store=False)
    assert {each.runs for each in chip.rates} == {_calibrate._FEWEST_RUNS}


@pytest.mark.parametrize("text", ["", "{}", "not json"])
def test_file_that_holds_no_calibration_is_refused(tmp_path, text):
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(MeshError, match=r"cannot be read as a calibration.*workbench calibrate --out"):
        known_chip(str(path))


def test_calibration_survives_json():
    assert ChipRecord.from_json(MEASURED.to_json()) == MEASURED


def test_seconds_of_an_operation_leave_out_the_call():
    trial = _calibrate._Trial("sort", 1e3, lambda _: None, operations=2, repeats=100)
    trial.calls, trial.walls = [1e-3, 9e-3, 1e-3], [3e-3, 3e-3, 0.5e-3]
    # 2 ms for 200 operations; a run that was shorter than an empty call leaves a twentieth of itself
    assert trial.seconds == pytest.approx([1e-5, 1e-5, 0.5e-3 / 20 / 200])


def test_operation_is_repeated_until_a_run_takes_several_empty_calls(monkeypatch):
    clock = itertools.count()
    now = [0.0]
    hiccups = {1: 1.0}  # the first run with repetitions is disturbed

    def run(repeats):
        now[0] += 1e-3 + repeats * 1e-6 + hiccups.get(next(clock), 0.0)

    monkeypatch.setattr(_calibrate.time, "perf_counter", lambda: now[0])
    trial = _calibrate._Trial("sort", 1e3, run)
    assert _calibrate._warm(trial)
    assert trial.repeats * 1e-6 >= 3e-3


def test_the_call_and_the_loop_are_taken_off_the_seconds_of_an_operation():
    """One call takes 1 ms, a repetition of nothing 20 µs; 100 repetitions of four operations took 11 ms in all."""
    trial = _calibrate._Trial("operation", 0.0, lambda repeats: None, operations=4, repeats=100, loop_seconds=20e-6)
    trial.calls, trial.walls = [1e-3], [11e-3]
    assert trial.seconds == [pytest.approx(20e-6)]  # (11 - 1 - 2) ms / 400


def test_small_operations_are_repeated_on_accelerators_alone():
    assert [_calibrate._many(*of) for of in (("gpu", 4096), ("tpu", 1 << 30), ("cpu", 4096))] == [4, 1, 1]


def test_mesh_without_devices_is_refused():
    with pytest.raises(MeshError, match="`calibrate` was given an `AbstractMesh`, which has no devices"):
        wb.calibrate(on=jax.sharding.AbstractMesh((1,), ("devices",)))
