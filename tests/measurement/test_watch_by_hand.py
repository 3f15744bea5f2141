"""The record of a watched loop from steps whose moments, memory and programs are written by hand."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workbench.inspection import inspect_module
from workbench.measurement import _watch_core
from workbench.measurement._watch_core import Core, WatchedStep, _executions, _numbers_of, _sent, _typical
from workbench.measurement._watch_outputs import Mean
from workbench.records.compiled import CollectiveRecord
from workbench.records.live import CompilationRecord, RetraceRecord, RoundRecord


@pytest.mark.parametrize(
    ("leaf", "numbers"),
    [
        (np.float32(2.5), 2.5),
        (3, 3.0),
        (np.array([4.0]), 4.0),
        (np.array([4.0, 4.0]), 4.0),
        (np.array([4.0, 5.0]), (4.0, 5.0)),
        (np.array([[4.0, 5.0], [5.0, 4.0]]), (4.0, 5.0, 5.0, 4.0)),
        (np.array([]), ()),
        (Mean(6.0, 3), 2.0),
        (Mean(np.array([6.0, 8.0]), np.array([2, 2])), 3.5),  # per device
        (Mean(5.0, 0), 5.0),  # nothing was counted
        (Mean(5.0, 0.5), 5.0),
    ],
)
def test_numbers_of_an_output(leaf, numbers):
    assert _numbers_of(leaf) == numbers


@pytest.mark.parametrize(
    ("seconds", "typical"),
    [
        ([], None),
        ([3.0], 3.0),
        ([1.0] * 10 + [2.0] * 9, 28 / 19),  # fewer than twice ten: the mean
        ([1.0] * 10 + [2.0] * 10, 1.5),  # the median of the means of ten
        ([1.0] * 10 + [3.0] * 10 + [100.0] * 9, 2.0),  # without the incomplete last ten
        ([1.0] * 10 + [5.0] * 10 + [2.0] * 10, 2.0),
    ],
)
def test_typical_seconds_of_a_step(seconds, typical):
    assert _typical(seconds) == (None if typical is None else pytest.approx(typical))


def collective(wire_bytes: float | None, executions: float | None) -> CollectiveRecord:
    return CollectiveRecord(
        name="c", kind="all-reduce", axes=(), group_size=2, groups=1, payload_bytes=8, wire_bytes=wire_bytes,
        executions=executions,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "executions", "sent"),
    [
        ([], 0, 0),
        ([(8.0, 1.0), (2.0, 5.0)], 6, 18.0),
        ([(8.0, None), (2.0, 5.0)], None, None),
        ([(0.0, None), (2.0, 5.0)], None, 10.0),  # nothing is sent, however often
        ([(0.0, 3.0), (2.0, 5.0)], 8, 10.0),
        ([(8.0, 0.0), (2.0, 5.0)], 5, 10.0),
        ([(None, 1.0)], 1, None),
        ([(8.0, 0.5), (8.0, 0.6)], 1, 8.8),
    ],
)
def test_collectives_of_a_step(pairs, executions, sent):
    records = tuple(collective(*pair) for pair in pairs)
    assert (_executions(records), _sent(records)) == (executions, pytest.approx(sent))


def step(index: int, called: float, returned: float, end: float, between: float | None = None) -> WatchedStep:
    made = WatchedStep(index, called, between)
    made.returned, made.end = returned, end
    return made


def recorded(*steps: WatchedStep) -> Core:
    core = Core("step", [])
    for each in steps:
        core._record(each)
        core.settle()
    return core


def test_seconds_idle_time_and_typical_values_of_steps():
    # The second call begins 0.5 s after the first has ended; the third, before the second has ended.
    core = recorded(step(0, 0.0, 0.1, 1.0), step(1, 1.5, 1.8, 2.5, 0.4), step(2, 2.0, 2.2, 4.0, 0.2))
    rows = [(row.seconds, row.metrics) for row in core.history]
    assert rows == [
        (1.0, {"dispatch_seconds": 0.1, "idle_seconds": 0.0}),
        (1.0, {"dispatch_seconds": pytest.approx(0.3), "idle_seconds": 0.5, "between_seconds": 0.4}),
        (1.5, {"dispatch_seconds": pytest.approx(0.2), "idle_seconds": 0.0, "between_seconds": 0.2}),
    ]
    record = core.record()
    assert record.step_seconds == pytest.approx(3.5 / 3)
    assert (record.dispatch_seconds, record.between_seconds) == (pytest.approx(0.2), pytest.approx(0.3))  # medians
    # from the end of a step to the end of the next: 1, 1.5 and 1.5 s, of which 0.5 s idle
    assert record.idle_share == pytest.approx(0.5 / 4)
    assert record.idle_steps_share == pytest.approx(1 / 3)
    assert (record.steps, len(record.history), len(core.record(history=False).history)) == (3, 3, 0)


@pytest.mark.parametrize(("idle", "share"), [(0.43, 1 / 2), (0.42, 0.0)])  # 30 % of 1 + 0.43 s
def test_steps_that_wait_for_the_host_wait_more_than_30_percent(idle, share):
    core = recorded(step(0, 0.0, 0.0, 1.0), step(1, 1 + idle, 1 + idle, 2 + idle))
    assert core.record().idle_steps_share == share


def test_a_step_that_ended_before_another_takes_no_time():
    core = recorded(step(0, 0.0, 0.1, 5.0), step(1, 1.0, 1.1, 4.0), step(2, 5.5, 5.6, 6.0))
    assert [row.seconds for row in core.history] == [5.0, 0.0, 0.5]
    assert core.record().step_seconds == 2.75  # only steps that took time


def test_a_loop_without_steps_has_no_values():
    record = Core("step", []).record()
    fields = "step_seconds dispatch_seconds between_seconds idle_share idle_steps_share memory_bytes flops".split()
    assert {getattr(record, name) for name in fields} == {None}
    assert (record.steps, record.history, record.status) == (0, (), "ready")


HLO = """HloModule jit_f, is_scheduled=true

ENTRY main {
  x = f32[8,8] parameter(0)
  ROOT y = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""  # 1,024 FLOPs; reads 512 bytes and writes 256 bytes
PROGRAM: Any = types.SimpleNamespace(module=inspect_module(HLO, platform="cpu"), plan=None, mesh=None)
PROGRAM_WITHOUT_MODULE: Any = types.SimpleNamespace(module=None, plan=None)
CPU: Any = types.SimpleNamespace(device_kind="cpu")
V5E: Any = types.SimpleNamespace(device_kind="TPU v5 lite")


@pytest.mark.parametrize("late", [True, False])
def test_rates_are_the_work_of_a_step_per_second(late):
    core = Core("step", [])
    if not late:
        core._know(PROGRAM, V5E, ())
    core._record(step(0, 0.0, 0.1, 2.0))
    if late:  # the steps before are filled in
        core._know(PROGRAM, V5E, ())
    (row,) = core.history
    assert (row.metrics["flops_per_second"], row.metrics["bytes_per_second"]) == (512, 384)
    assert row.metrics["peak_bandwidth_share"] == pytest.approx(384 / 819e9)
    record = core.record()
    assert (record.flops, record.accessed_bytes) == (1024, 768)
    assert (record.flops_per_second, record.bytes_per_second) == (512, 384)
    assert record.peak_flops_share == row.metrics["peak_flops_share"] == pytest.approx(1024 / 197e12 / 2)
    assert record.notes == ()


def test_steps_wait_for_the_cost_of_their_own_program():
    core = Core("step", [])
    for number, name in enumerate("ab"):
        core._record(of_shape(number, version=name))
    for known, name in enumerate("ba", 1):
        core._know(PROGRAM, V5E, (name,))
        assert sum("flops_per_second" in row.metrics for row in core.history) == known


def test_device_without_published_peaks_and_program_without_a_module_are_noted():
    core = Core("step", [])
    core._know(PROGRAM, CPU, ())
    core._know(PROGRAM_WITHOUT_MODULE, CPU, ("other",))
    assert [note.partition(":")[0] for note in core.record().notes] == [
        "fractions of peak are unknown",
        "the cost is unknown",
    ]
    core._record(step(0, 0.0, 0.1, 2.0))
    assert set(core.history[0].metrics) >= {"flops_per_second", "bytes_per_second"}
    assert core.record().peak_flops_share is None


def of_shape(number: int, *, version: str) -> WatchedStep:
    made = step(number, float(number), number + 0.5, number + 0.5)
    made.version = (version,)
    return made


@pytest.mark.parametrize(("versions", "shown"), [("aab", "a"), ("abb", "b"), ("ab", "b"), ("ba", "b")])
def test_the_record_shows_the_program_of_most_steps_and_of_equals_the_latest_program(versions, shown):
    core = Core("step", [])
    for name in "ab":
        core._know(PROGRAM, V5E, (name,))
    for number, name in enumerate(versions):
        core._record(of_shape(number, version=name))
    assert core.shown is core._versions[shown,]
    count = versions.count(shown)
    assert any(note.startswith("2 programs ran") and f"describe {count} of the {len(versions)} latest" in note
               for note in core.record().notes)  # fmt: skip


def test_of_many_programs_the_last_eight_are_kept():
    core = Core("step", [])
    for number in range(10):
        core._know(PROGRAM, V5E, (number,))
    assert [*core._versions] == [(number,) for number in range(2, 10)]


def test_history_keeps_the_latest_steps_and_every_second_step_before(monkeypatch):
    monkeypatch.setattr(_watch_core, "_KEPT", 8)
    monkeypatch.setattr(_watch_core, "_WHOLE", 4)
    core = Core("step", [])
    kept = []
    for number in range(10):
        core._keep(RoundRecord(round=number, seconds=1.0, metrics={}))
        kept.append([row.round for row in core._history])
    assert kept[6:] == [[*range(7)], [0, 2, 4, 5, 6, 7], [0, 2, *range(4, 9)], [0, 4, 6, 7, 8, 9]]


def test_the_first_hundred_problems_are_kept():
    core = Core("step", [])
    for number in range(100):
        core.problem(number, "x")
    assert (len(core.problems), core.record().notes) == (100, ())
    core.problem(100, "x")
    assert (core.problems[-1].round, core.record().notes) == (99, ("only the first 100 problems are kept",))


def test_an_output_that_is_not_finite_is_a_problem_once():
    core = Core("step", [])
    for number, values in enumerate([{"loss": 1.0}, {"loss": float("nan"), "size": 3.0},
                                     {"loss": float("inf"), "norm": np.array([1.0, np.inf, np.nan])}]):  # fmt: skip
        watched = step(number, number, number, number + 0.5)
        watched.values = values
        core._record(watched)
    assert [(p.round, p.what, p.metric, p.value) for p in core.problems] == [
        (1, "loss is nan in step 1", "loss", "nan"), (2, "norm is inf in step 2", "norm", "inf"),
    ]  # fmt: skip


class _Heard:
    """What JAX reported during a call: functions with their compile seconds, and reasons."""

    def __init__(self, seconds: dict[str, float], *reasons: str) -> None:
        self._seconds, self._reasons = seconds, reasons

    def compilations(self) -> tuple[CompilationRecord, ...]:
        return tuple(
            CompilationRecord(function=name, count=1, trace_seconds=0.0, lower_seconds=0.0, compile_seconds=s)
            for name, s in self._seconds.items()
        )  # fmt: skip

    def retraces(self, *, compiled_only: bool) -> tuple[RetraceRecord, ...]:
        assert compiled_only
        counts = tuple((reason, 1) for reason in self._reasons)
        return (RetraceRecord(function="f", defined="", called="", count=1, reasons=counts),) if counts else ()


@pytest.mark.parametrize(
    ("index", "heard", "changed", "problem"),
    [
        (0, _Heard({"f": 2.0}), "", None),  # the first step compiles
        (1, _Heard({}, "argument `x`: r"), "", None),
        (1, _Heard({"f": 2.0, "_fun": 0.34}), "", "step 1 compiled `f`, `step` in 2.3 s"),
        (1, _Heard(dict.fromkeys("abcd", 1.0)), "c", "step 1 compiled `a`, `b`, `c` in 4 s: c"),
        (1, _Heard({"f": 1.0}, "argument `x`: r; argument `y`: s", "t"), "c",
         "step 1 compiled `f` in 1 s: argument `x`: r; argument `y`: s; t"),
        (1, _Heard({"f": 1.0}, "argument `x`: r; argument `y`: s", "t", "u", "v"), "",
         "step 1 compiled `f` in 1 s: argument `x`: r; argument `y`: s; t; and 2 more"),
    ],
)  # fmt: skip
def test_compilations_of_later_steps_are_problems_with_their_reasons(index, heard, changed, problem):
    core, watched = Core("step", []), step(index, 0.0, 0.1, 5.0)
    watched.heard, watched.changed = heard, changed
    core._record(watched)
    assert [p.what for p in core.problems] == ([] if problem is None else [problem])
    total = sum(heard._seconds.values())
    (row,) = core.history
    assert row.metrics.get("compile_seconds", 0.0) == total
    assert (core.record().step_seconds is None) == bool(total)  # the seconds of a step that compiles are not typical
    assert len(core.record().retraces) == bool(index and heard._reasons)


def test_memory_is_the_fullest_devices_and_is_read_four_times_a_second(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(_watch_core.time, "monotonic", lambda: clock[0])
    stats = [{"bytes_in_use": 5, "peak_bytes_in_use": 20}, {"bytes_in_use": 7, "peak_bytes_in_use": 9}, None]
    devices = [types.SimpleNamespace(process_index=0, memory_stats=lambda stat=stat: stat) for stat in stats]
    other = types.SimpleNamespace(process_index=1, memory_stats=lambda: {"bytes_in_use": 99})
    core, watched = Core("step", []), step(0, 0.0, 0.0, 1.0)
    assert core._memory_now(watched) == {}  # no array whose devices could be asked
    watched.probe = types.SimpleNamespace(sharding=types.SimpleNamespace(device_set=[*devices, other]))  # type: ignore[assignment]
    assert core._memory_now(watched) == {"memory_bytes": 7.0, "peak_bytes": 20.0}
    clock[0] += 0.24
    assert core._memory_now(watched) == {}
    clock[0] += 0.02
    del stats[0]["peak_bytes_in_use"], stats[1]["peak_bytes_in_use"]
    assert core._memory_now(watched) == {"memory_bytes": 7.0}
    assert (core.record().memory_bytes, core.record().peak_bytes) == (7, None)


class _Probe:
    def __init__(self, *, ready: bool) -> None:
        self.ready = ready

    def is_ready(self) -> bool:
        return self.ready

    def block_until_ready(self) -> None:
        self.ready = True


@pytest.mark.parametrize(
    ("seen", "ready", "ends"),
    [
        # the thread wakes at 4 s, and the steps began at 1, 2 and 3 s
        ([None, None, None], [True, True, True], [2.0, 3.0, 4.0]),
        ([1.5, None, None], [True, True, True], [1.5, 3.0, 4.0]),  # the user's thread saw the end of the first step
        ([1.5, 1.7, None], [True, True, True], [1.5, 2.0, 4.0]),  # no step ends before its call
        ([None, None, None], [True, False, True], [4.0, 4.0, 4.0]),
    ],
)
def test_ends_of_steps_that_are_ready_together(monkeypatch, seen, ready, ends):
    monkeypatch.setattr(_watch_core.time, "perf_counter", lambda: 4.0)
    core, steps = Core("step", []), [WatchedStep(number, number + 1.0, None) for number in range(3)]
    for watched, moment, is_ready in zip(steps, seen, ready, strict=True):
        watched.ready, watched.probe = moment, _Probe(ready=is_ready)  # type: ignore[assignment]
        core._queue.put(watched)
    core._queue.put(None)
    core._see()
    assert [watched.end for watched in steps] == ends


def test_a_call_without_results_ends_when_it_returns():
    core, watched = Core("step", []), step(0, 1.0, 1.25, 1.0)
    core._queue.put(watched)
    core._queue.put(None)
    core._see()
    assert watched.end == 1.25
    assert core.record().notes == ("the seconds cover only the calls: the results have no array to wait for",)


def test_devices_are_named_by_their_number_on_their_platform():
    core = Core("step", [])
    assert [core._label(number) for number in (jax.local_devices()[-1].id, 99)] == ["cpu:7", "99"]


def test_displays_are_called_four_times_a_second_unless_the_view_is_paused(monkeypatch):
    clock, calls = [100.0], []
    monkeypatch.setattr(_watch_core.time, "monotonic", lambda: clock[0])
    core = Core("step", [])
    core.callbacks.append(lambda core: calls.append(clock[0]))
    for moment in (100.0, 100.2, 100.25, 100.3, 100.5):
        clock[0] = moment
        core._notify()
    assert calls == [100.0, 100.25, 100.5]
    core.pause(True)  # which draws once
    clock[0] = 101.0
    core._notify()
    assert len(calls) == 4
    core.pause(False)
    assert len(calls) == 5


def test_calls_beyond_ten_thousand_that_wait_are_not_recorded():
    core = Core("step", [])
    core._thread = object()  # type: ignore[assignment]  # started already
    core.put(WatchedStep(10_000, 0.0, None))
    assert (core._queue.qsize(), core.finished) == (1, 0)
    core.put(WatchedStep(10_001, 0.0, None))
    assert (core._queue.qsize(), core.finished) == (1, 1)
    assert "more than 10,000 calls" in core.record().notes[0]


def test_a_zero_dimensional_array_of_jax_is_a_number():
    assert _numbers_of(jnp.float32(0.5)) == 0.5


@pytest.mark.parametrize(("finished", "step_of_problem"), [(0, 0), (1, 0), (3, 2)])
def test_a_tracker_that_fails_is_removed_in_the_last_recorded_step(finished, step_of_problem):
    class Broken:
        def finish(self, status: str) -> None:
            raise OSError("full")

    core: Any = Core("step", [Broken()])  # type: ignore[list-item]
    for _ in range(finished):
        core.settle()
    core._finish()
    (problem,) = core.problems
    assert (core.trackers, problem.round, problem.what) == (
        [], step_of_problem, "Broken failed and was removed (OSError: full)",
    )  # fmt: skip
