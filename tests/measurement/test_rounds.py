import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measurement_examples import bits, count, quiet

from workbench.errors import EngineError, MeasureError, ProgramError, RoundError
from workbench.measurement import Run, load_checkpoint, run_rounds

PATIENCE = 60.0
ROOT = Path(__file__).parents[2]


def test_rounds_pass_the_state_on_and_keep_the_metrics():
    run = run_rounds(count, 0, 3, **quiet)
    assert (run.state, run.status, run.finished) == (3, "finished", 3)
    assert [record.metrics for record in run.history] == [{"loss": 10.0}, {"loss": 9.0}, {"loss": 8.0}]


def test_no_rounds_leave_the_state_alone():
    run = run_rounds(count, 5, 0, **quiet)
    assert (run.state, run.status, len(run.history)) == (5, "finished", 0)


def test_second_round_does_not_compile_again():
    traces = []

    @jax.jit
    def step(state, round):
        traces.append(1)
        return state + 1, {"round": round}

    run_rounds(step, jnp.zeros(()), 4, **quiet)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (None, [0, 1, 2]),
        (lambda round: 10 * round, [0, 10, 20]),
        (iter("abcd"), ["a", "b", "c"]),
        ({"x": 1}, [{"x": 1}] * 3),
    ],
    ids=["round number", "function", "iterator", "constant"],
)
def test_step_gets_its_data(data, seen):
    got = []
    run_rounds(lambda state, batch: (got.append(batch), {}), 0, 3, data=data, **quiet)
    assert got == seen


def test_step_gets_a_key_of_its_own_every_round():
    key, got = jax.random.key(3), []
    run_rounds(lambda state, batch, key: (got.append(key), {}), 0, 2, key=key, **quiet)
    assert [bits(found) for found in got] == [bits(jax.random.fold_in(key, round)) for round in (0, 1)]


def interrupted(call):
    """The run of a call that Ctrl-C ends."""
    with pytest.raises(KeyboardInterrupt, match=r"`run\.start\(\)` continues") as caught:
        call()
    return caught.value.run


def test_interrupt_ends_a_loop_over_runs():
    begun = []

    def step(state, round):
        begun.append(state)
        if round == 1:
            raise KeyboardInterrupt
        return count(state, round)

    def loop():
        for seed in range(3):
            run_rounds(step, 10 * seed, 4, **quiet)

    assert interrupted(loop).finished == 1
    assert begun == [0, 1]


def test_interrupt_in_a_round_keeps_the_finished_ones(tmp_path):
    def step(state, round):
        if round == 2:
            raise KeyboardInterrupt
        return count(state, round)

    run = interrupted(lambda: run_rounds(step, 0, 5, checkpoint_dir=tmp_path, **quiet))
    assert (run.status, run.state, run.finished) == ("interrupted", 2, 2)
    assert load_checkpoint(tmp_path, 0)[:2] == (2, 2)


def test_interrupted_run_can_go_on():
    interrupts = iter([KeyboardInterrupt])

    def step(state, round):
        if round == 2:
            for interrupt in interrupts:
                raise interrupt
        return count(state, round)

    run = interrupted(lambda: run_rounds(step, 0, 4, **quiet))
    assert run.status == "interrupted"
    assert (run.start().status, run.state) == ("finished", 4)


def test_interrupt_after_the_state_was_donated_finishes_that_round(monkeypatch):
    step = jax.jit(lambda state, round: (state + 1, {"round": round}), donate_argnums=0)
    waits = iter([None, KeyboardInterrupt, None, None])
    real = jax.block_until_ready

    def block_until_ready(tree):
        if (interrupt := next(waits, None)) is not None:
            raise interrupt
        return real(tree)

    monkeypatch.setattr(jax, "block_until_ready", block_until_ready)
    run = interrupted(lambda: run_rounds(step, jnp.zeros(3), 5, **quiet))
    assert (run.status, run.finished) == ("interrupted", 2)
    assert run.state.tolist() == [2.0, 2.0, 2.0]


def test_signal_in_the_middle_of_a_round_keeps_what_was_done(tmp_path):
    add = jax.jit(lambda state: state + 1, donate_argnums=0)
    signals = iter([signal.SIGINT])  # what the stop button of a notebook sends

    def step(state, round):
        after = add(state)
        if round == 2:
            for number in signals:
                signal.raise_signal(number)
        return after, {}

    run = interrupted(lambda: run_rounds(step, jnp.zeros(2), 5, checkpoint_dir=tmp_path, **quiet))
    assert (run.status, run.finished) == ("interrupted", 2)
    assert load_checkpoint(tmp_path, jnp.zeros(2))[1].tolist() == [2.0, 2.0]
    assert run.start().state.tolist() == [5.0, 5.0]


def test_failing_round_is_named_and_carries_the_run():
    def step(state, round):
        if round == 2:
            raise EngineError("client 5 of stage 1 raised ZeroDivisionError", stage="1", client=5)
        return count(state, round)

    with pytest.raises(RoundError) as caught:
        run_rounds(step, 0, 5, **quiet)
    error = caught.value
    assert str(error).startswith("`run_rounds`: round 2 of 5 failed: EngineError: client 5 of stage 1 raised")
    assert "`.state`, `.history`" in str(error)
    assert "continue with `error.run.start()`" in str(error)
    assert (error.round, error.client, error.stage) == (2, 5, "1")
    assert isinstance(error.__cause__, EngineError)
    assert (error.run.state, error.run.status, error.run.finished) == (2, "failed", 2)


def test_nan_is_named_by_round_metric_and_client():
    def step(state, round):
        losses = np.ones(4)
        if round == 1:
            losses[2] = math.nan
        return state, {"client": {"loss": losses}, "mean": 1.0}

    run = run_rounds(step, 0, 3, **quiet)
    (problem,) = run.problems
    assert (problem.round, problem.metric, problem.client, problem.value) == (1, "client.loss", 2, "nan")
    assert problem.what == "client.loss of client 2 is nan in round 1"
    assert run.history[1].problems == (problem,)


def test_many_bad_clients_are_named_up_to_ten_and_then_counted():
    run = run_rounds(lambda state, round: (state, {"loss": jnp.full(15, jnp.inf)}), 0, 1, **quiet)
    assert [problem.client for problem in run.problems] == [*range(10), None]
    assert run.problems[-1].what == "loss is not finite for 5 more clients"


def test_nan_can_stop_the_run_with_the_state_before_it():
    run = run_rounds(
        lambda state, round: (state + 1, {"loss": math.nan if round == 2 else 1.0}), 0, 9, nonfinite="stop", **quiet
    )
    assert (run.status, run.state, run.finished) == ("stopped", 2, 2)
    assert run.problems[0].what == "loss is nan in round 2"


def test_stop_when_ends_after_that_round():
    run = run_rounds(count, 0, 100, stop_when=lambda record: record.metrics["loss"] < 8, **quiet)
    assert (run.status, run.finished) == ("stopped", 4)  # losses 10, 9, 8, 7


def test_background_run_is_paused_stopped_and_waited_for_from_here():
    reached, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def step(state, round):
        reached.release()
        assert go_on.acquire(timeout=PATIENCE)
        return count(state, round)

    run = run_rounds(step, 0, 100, background=True, **quiet)
    assert reached.acquire(timeout=PATIENCE)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "workbench-run")
    run.pause()
    go_on.release()
    until = time.monotonic() + PATIENCE
    while (run.status, run.finished) != ("paused", 1) and time.monotonic() < until:
        time.sleep(0.01)
    assert not reached.acquire(timeout=0.2)  # no second round while it is paused
    assert (run.status, run.finished) == ("paused", 1)
    run.resume()
    assert reached.acquire(timeout=PATIENCE)
    run.stop()
    go_on.release()
    assert run.wait(PATIENCE).status == "stopped"
    assert (run.state, run.finished) == (2, 2)


def test_run_that_is_under_way_cannot_be_started_again():
    entered, leave = threading.Event(), threading.Event()

    def step(state, round):
        entered.set()
        leave.wait(PATIENCE)
        return count(state, round)

    run = run_rounds(step, 0, 1, background=True, **quiet)
    entered.wait(PATIENCE)
    with pytest.raises(
        MeasureError, match=r"run that is running \(round 0 of 1\).*only one thread at a time.*`wait\(\)`"
    ):
        run.start()
    with pytest.raises(EngineError, match=r"gave up after 0.01 s.*0 of 1 rounds.*The run continues in the background"):
        run.wait(0.01)
    leave.set()
    run.wait(PATIENCE)


def test_background_failure_is_raised_where_it_is_waited_for():
    def step(state, round):
        raise ValueError("no data")

    run = run_rounds(step, 0, 1, background=True, **quiet)
    with pytest.raises(RoundError, match="ValueError: no data"):
        run.wait(PATIENCE)


def test_background_run_sees_the_mesh():
    mesh = jax.make_mesh((8,), ("clients",))
    seen = []

    def step(state, round):
        seen.append(jax.sharding.get_mesh().axis_names)
        return state, {}

    with jax.set_mesh(mesh):
        run_rounds(step, 0, 1, background=True, **quiet).wait(PATIENCE)
    run_rounds(step, 0, 1, background=True, **quiet).wait(PATIENCE)
    assert seen == [("clients",), ()]


def test_python_ends_in_peace_while_a_run_and_a_monitor_are_under_way():
    script = """
import time, jax, jax.numpy as jnp
from workbench.measurement import run_rounds, watch_devices
monitor = watch_devices(0.001)
step = jax.jit(lambda state, round: (jnp.tanh(state @ state), {}))
run = run_rounds(step, jnp.ones((300, 300)), 10**9, background=True, progress=False)
while run.finished < 3:
    time.sleep(0.01)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_callbacks_receive_every_round_and_a_broken_one_is_removed():
    received = []

    def broken(run, record):
        raise ValueError("no widget")

    run = run_rounds(
        count, 0, 3, callbacks=[broken, lambda run, record: received.append((run.finished, record.round))], **quiet
    )
    assert received == [(1, 0), (2, 1), (3, 2)]
    assert [problem.what for problem in run.problems] == ["a callback failed and was removed (ValueError: no widget)"]


def test_subscriber_can_leave_again():
    received = []
    run = Run(count, 0, 3, **quiet)
    leave = run.subscribe(lambda run, record: received.append(record.round))
    run.subscribe(lambda run, record: leave())
    run.start()
    assert received == [0]


def test_progress_bar_shows_rounds_and_metrics(capsys):
    run_rounds(lambda state, round: (state, {"loss": jnp.array([1.0, 3.0])}), 0, 3)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "loss=2" in shown


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            3,
            r"returned .* of type int in round 0\. A step returns two values.*`return state, \{'loss': loss\}`",
        ),
        ((0, {"name": "x"}), r"metric 'name' of round 0 is an object of type str.*numbers or arrays of numbers"),
        ((0, {"w": {"key": jax.random.key(0)}}), r"metric 'w.key' of round 0 is an object of type PRNGKeyArray"),
        ((0, {"z": np.complex64(1 + 2j)}), r"metric 'z' of round 0 is complex"),
    ],
    ids=["no pair", "text", "key", "complex"],
)
def test_step_that_returns_something_else_is_an_error(returned, message):
    with pytest.raises(RoundError, match=message) as caught:
        run_rounds(lambda state, round: returned, 0, 1, **quiet)
    assert isinstance(caught.value.__cause__, ProgramError)


def test_iterator_that_ends_early_is_an_error():
    with pytest.raises(RoundError, match=r"iterator as `data` that ended before round 1.*run fewer rounds"):
        run_rounds(count, 0, 3, data=iter([1]), **quiet)


def test_of_old_rounds_only_the_mean_over_clients_is_kept_where_that_is_wanted():
    run = run_rounds(
        lambda state, round: (state, {"loss": np.array([1.0, 3.0]) + round}), 0, 4, client_rounds=2, **quiet
    )
    assert [record.metrics["loss"] for record in run.history] == [2.0, 3.0, (3.0, 5.0), (4.0, 6.0)]


def test_impossible_settings_are_an_error():
    with pytest.raises(MeasureError, match=r"rounds=-1 and keep=0 and checkpoint_every=0 and every=0 and client"):
        Run(count, 0, -1, keep=0, checkpoint_every=0, every=0, client_rounds=0)


def _counted(state, round):
    return state + 1, {"loss": float(round)}


def test_an_evaluation_is_added_every_few_rounds_and_after_the_last():
    run = run_rounds(_counted, 0, 7, evaluate=lambda state: {"test loss": 10.0 * state}, every=3, progress=False)
    assert {r.round: r.metrics["test loss"] for r in run.history if "test loss" in r.metrics} == {
        2: 30.0,
        5: 60.0,
        6: 70.0,
    }
    assert [record.metrics["loss"] for record in run.history] == list(range(7))


def test_stop_when_and_trackers_see_the_evaluation(tmp_path):
    run = run_rounds(
        _counted,
        0,
        9,
        evaluate=lambda state: {"accuracy": 0.1 * state},
        stop_when=lambda record: record.metrics["accuracy"] >= 0.35,
        log=tmp_path,
        progress=False,
    )
    assert run.finished == 4
    (folder,) = tmp_path.iterdir()
    stored = Run.load(folder)
    assert stored.history[-1].metrics["accuracy"] == pytest.approx(0.4)
    assert stored.rerun().history[3].metrics["accuracy"] == pytest.approx(0.4)


def test_a_resumed_run_keeps_its_evaluations(tmp_path):
    options = {"evaluate": lambda state: {"test": float(state)}, "every": 2, "checkpoint_dir": tmp_path}
    run_rounds(_counted, jnp.int32(0), 4, progress=False, **options)
    again = run_rounds(_counted, jnp.int32(0), 6, progress=False, **options)
    assert [r.metrics.get("test") for r in again.history] == [None, 2.0, None, 4.0, None, 6.0]


def test_an_evaluation_that_fails_ends_the_run_and_keeps_the_round():
    def evaluate(state):
        if state == 2:
            raise ValueError("no test data")
        return {}

    with pytest.raises(RoundError, match="`evaluate` failed after round 1: ValueError: no test data") as failed:
        run_rounds(_counted, 0, 4, evaluate=evaluate, progress=False)
    assert failed.value.run.finished == 2
    assert failed.value.run.start().finished == 4


def test_an_evaluation_may_not_hide_a_metric_of_the_step():
    with pytest.raises(RoundError, match="both returned loss in round 0"):
        run_rounds(_counted, 0, 1, evaluate=lambda _: {"loss": 1.0}, progress=False)


def test_an_evaluation_that_is_not_finite_is_a_problem_of_its_round():
    run = run_rounds(_counted, 0, 2, evaluate=lambda _: {"test": float("nan")}, every=2, progress=False)
    assert [(problem.round, problem.metric) for problem in run.problems] == [(1, "test")]
