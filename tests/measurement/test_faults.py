"""What is left when something breaks, each fault really made: interrupts, exceptions, NaN, full disks."""

import queue
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jupyter_client.manager import start_new_kernel

import workbench as wb
from workbench.engines import ClientReader, Sequential
from workbench.errors import RoundError
from workbench.measurement import run_rounds

X = jnp.arange(1.0, 13.0).reshape(6, 2)


def train(w, x):
    def step(w, _):
        loss = jnp.sum((w * x - 1) ** 2)
        wb.emit("loss", loss)
        return w - 0.01 * loss, None

    last, _ = jax.lax.scan(step, w, None, length=3)
    wb.emit("change", last - w)
    return last


@wb.program(clients=6)
def one_round(w, x):
    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), x)))


def step_with(compiled, poison=None):
    """A round of `one_round`; in round `poison[0]` client `poison[1]` has a NaN in its data."""

    def step(w, round):
        x = X if poison is None or round != poison[0] else X.at[poison[1], 0].set(jnp.nan)
        after = compiled(w, x)
        return (w if jnp.isnan(after) else after), {"mean": float(jnp.nan_to_num(after))}

    return step


def test_what_clients_emit_is_a_metric_per_client_and_local_step():
    with jax.set_mesh(wb.make_mesh(clients=2)):
        run = run_rounds(step_with(wb.jit(one_round)), jnp.float32(0.1), 2, emitted=True, progress=False)
    first = run.history[0].metrics
    assert np.shape(first["loss"]) == (6, 3)
    assert np.shape(first["change"]) == (6,)
    assert first["loss"][2][0] == pytest.approx(float(jnp.sum((0.1 * X[2] - 1) ** 2)), rel=1e-5)
    table = run.history.to_pandas()
    assert table.query("metric == 'loss' and round == 1 and client == 5").step.tolist() == [0, 1, 2]


def test_nan_in_one_client_names_client_round_and_value():
    run = run_rounds(step_with(wb.jit(one_round), (2, 4)), jnp.float32(0.1), 4, emitted=True, progress=False)
    assert {(problem.round, problem.client, problem.metric, problem.value) for problem in run.problems} == {
        (2, 4, "loss", "nan"), (2, 4, "change", "nan"),
    }  # fmt: skip
    assert "loss of client 4 is nan in round 2" in [problem.what for problem in run.problems]
    assert run.status == "finished"


def test_nan_ends_the_run_before_that_round_where_that_is_wanted(tmp_path):
    run = run_rounds(
        step_with(wb.jit(one_round), (2, 4)), jnp.float32(0.1), 9, emitted=True, nonfinite="stop",
        checkpoint_dir=tmp_path, progress=False,
    )  # fmt: skip
    assert (run.status, run.finished) == ("stopped", 2)
    finished, state, history = wb.measurement.load_checkpoint(tmp_path, jnp.float32(0.0))
    assert (finished, float(state), len(history)) == (2, float(run.state), 2)


def test_a_client_that_raises_names_itself_and_the_finished_rounds_are_kept(tmp_path):
    def read(index, round):
        if (index, round) == (3, 2):
            raise OSError("the phone of client 3 is off")
        return X[index]

    def step(w, round):
        reader = ClientReader(lambda: ((index, read(index, round)) for index in range(6)), clients=6)
        return Sequential().run(one_round, w, reader).results, {}

    with pytest.raises(RoundError) as caught:
        run_rounds(step, jnp.float32(0.1), 5, checkpoint_dir=tmp_path, progress=False)
    error = caught.value
    assert "the phone of client 3 is off" in str(error)
    assert (error.round, error.stage, error.run.finished) == (2, "1", 2)
    finished, state, _ = wb.measurement.load_checkpoint(tmp_path, jnp.float32(0.0))
    assert (finished, float(state)) == (2, float(error.run.state))


def test_a_client_function_that_raises_names_itself_before_anything_runs():
    def broken(w, x):
        return w @ x.T

    @wb.program(clients=6)
    def program(w, x):
        return wb.reduce_mean(wb.map_fn(broken, (wb.broadcast(w), x)))

    with pytest.raises(RoundError, match=r"round 0 of 3 failed: .*client function `broken`.*\(6 clients\)"):
        run_rounds(lambda w, _: (program(w, X), {}), jnp.ones(3), 3, progress=False)


def test_metrics_that_cannot_take_emitted_values_are_an_error():
    compiled = wb.jit(one_round)
    with pytest.raises(RoundError, match=r"emitted=True and a step whose metrics are .* type float.*a dictionary"):
        run_rounds(lambda w, _: (compiled(w, X), 0.5), jnp.float32(0.1), 1, emitted=True, progress=False)


KERNEL = """
import jax, jax.numpy as jnp, workbench as wb
from pathlib import Path
@wb.program(clients=4)
def slow(w, x):
    def train(w, x):
        return jax.lax.fori_loop(0, 400, lambda _, w: jnp.tanh(w @ w) / 10, w) + x
    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), x)))
compiled = wb.jit(slow)
def step(w, round):
    w = compiled(w, jnp.ones(4))
    Path({folder!r}, f"started-{{round}}").touch()
    return w, {{"norm": jnp.linalg.norm(w)}}
"""


def wait_for(client, seconds=120.0):
    """The reply to the last request, and what it printed."""
    printed, until = "", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["msg_type"] == "stream":
            printed += message["content"]["text"]
        if message["msg_type"] == "error":
            printed += message["content"]["ename"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return printed
    raise TimeoutError


def test_a_kernel_that_is_interrupted_in_the_middle_of_a_round_keeps_the_rounds_before(tmp_path):
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute(textwrap.dedent(KERNEL).format(folder=str(tmp_path)))
        assert wait_for(client) == ""
        folder = str(tmp_path / "states")
        client.execute(
            f"run = wb.Run(step, jnp.eye(200), 10**6, checkpoint_dir={folder!r}, progress=False)\n"
            "run.start()\nprint('after the run')"
        )
        until = time.monotonic() + 120
        while not (tmp_path / "started-3").exists() and time.monotonic() < until:
            time.sleep(0.02)
        manager.interrupt_kernel()
        assert wait_for(client) == "KeyboardInterrupt"
        client.execute("import sys; print(run.status, sys.last_value.run is run)")
        assert wait_for(client) == "interrupted True\n"
        client.execute(
            "finished, state, history = wb.measurement.load_checkpoint(" + repr(folder) + ", jnp.eye(200))\n"
            "print(finished == run.finished >= 3, bool((state == run.state).all()), len(history) == finished)\n"
            "again = wb.Run(step, jnp.eye(200), finished + 1, checkpoint_dir=" + repr(folder) + ", progress=False)\n"
            "print(again.start().status)"
        )
        assert wait_for(client) == "True True True\nfinished\n"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
