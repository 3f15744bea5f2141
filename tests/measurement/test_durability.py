"""Runs under faults: nothing is lost, nothing wrong is read, and the run can go on."""

import gc
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faults
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workbench.errors import DataError, EngineError, MeasureError, ProgramError, RoundError
from workbench.measurement import History, Run, _checkpoints, load_checkpoint, run_rounds
from workbench.records.live import RoundRecord

quiet: dict[str, Any] = {"progress": False}
# Orbax leaves its readers behind where a file is damaged.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _collect(settled: None) -> Iterator[None]:
    """What a test leaves behind is reported in this test, and not at the end of all."""
    yield
    gc.collect()


def add(state: Any, round: int) -> Any:
    return state + 1, {"loss": float(round)}


def test_flipped_bit_is_never_read_as_a_state(tmp_path: Path):
    like = jnp.asarray(np.random.default_rng(0).random(64), jnp.float32)
    right = {3: np.asarray(like + 1 + 1 + 1), 2: np.asarray(like + 1 + 1)}
    run_rounds(add, like, 3, checkpoint_dir=tmp_path, keep=2, **quiet)
    files = sorted(path for path in (tmp_path / "3").rglob("*") if path.is_file() and path.stat().st_size)
    generator = np.random.default_rng(1)
    for _ in range(40):
        path = files[generator.integers(len(files))]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[generator.integers(len(damaged))] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        finished, state, history = load_checkpoint(tmp_path, like)
        assert np.asarray(state).tobytes() == right[finished].tobytes()
        assert len(history) == finished
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("like", "said"),
    [
        (np.zeros(3, np.int32), r"state\['state'\] is int32\[3\] and was saved as float32\[3\]"),
        (np.zeros(3, np.float16), r"is float16\[3\] and was saved as float32\[3\]"),
        (np.zeros(4, np.float32), r"is float32\[4\] and was saved as float32\[3\]"),
        ({"w": np.zeros(3, np.float32)}, r"\['w'\] is not in the checkpoint"),
        (None, r"is only in the checkpoint"),
    ],
    ids=["int", "half", "longer", "tree", "none"],
)
def test_checkpoint_is_not_cast_into_another_state(tmp_path: Path, like: Any, said: str):
    run_rounds(add, jnp.zeros(3), 1, checkpoint_dir=tmp_path, **quiet)
    with pytest.raises(DataError, match=said):
        load_checkpoint(tmp_path, jax.tree.map(jnp.asarray, like))


def test_state_of_numpy_scalars_is_resumed_as_what_it_is(tmp_path: Path):
    state = {
        "count": np.int64(3),
        "rate": np.float32(0.1),
        "wide": np.float64(0.1),
        "on": np.bool_(True),
        "x": np.ones(2),
    }

    def step(state: Any, round: int) -> Any:
        return {**state, "count": state["count"] + 1}, {}

    run_rounds(step, state, 2, checkpoint_dir=tmp_path, progress=False)
    finished, found, _ = load_checkpoint(tmp_path, state)
    assert (finished, found["count"]) == (2, 5)
    assert {name: type(value) for name, value in found.items()} == {name: type(value) for name, value in state.items()}
    assert run_rounds(step, state, 3, checkpoint_dir=tmp_path, progress=False).state["count"] == 6


def test_history_is_appended_and_earlier_rounds_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[int] = []
    line_of = _checkpoints.line_of
    monkeypatch.setattr(_checkpoints, "line_of", lambda record: (written.append(record.round), line_of(record))[1])
    run_rounds(add, 0, 5, checkpoint_dir=tmp_path, **quiet)
    run_rounds(add, 0, 8, checkpoint_dir=tmp_path, **quiet)
    assert written == list(range(8))


def test_history_of_another_form_falls_back_to_the_checkpoint_before(tmp_path: Path):
    run_rounds(add, 0, 3, checkpoint_dir=tmp_path, **quiet)
    for about in (tmp_path / "3" / "history").iterdir():
        about.write_text(json.dumps({"something": "else"}))
    assert load_checkpoint(tmp_path, 0)[:2] == (2, 2)


def test_unreadable_newest_checkpoint_is_replaced_when_the_run_comes_to_its_round(tmp_path: Path):
    run_rounds(add, 0, 3, checkpoint_dir=tmp_path, **quiet)
    for file in (tmp_path / "3").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    run = run_rounds(add, 0, 3, checkpoint_dir=tmp_path, **quiet)
    assert run.problems == ()
    assert load_checkpoint(tmp_path, 0)[:2] == (3, 3)


def test_full_disk_in_the_history_keeps_the_checkpoints_before(tmp_path: Path):
    def step(state: Any, round: int) -> Any:
        return state + 1, {"loss": np.full(2000, float(round))}

    run = run_rounds(step, 0, 2, checkpoint_dir=tmp_path, **quiet)
    with faults.full_disk((tmp_path / _checkpoints.NAME).stat().st_size + 100):
        run = run_rounds(step, 0, 4, checkpoint_dir=tmp_path, **quiet)
    assert "could not be written" in run.problems[0].what
    assert load_checkpoint(tmp_path, 0)[:2] == (2, 2)
    assert run_rounds(step, 0, 5, checkpoint_dir=tmp_path, **quiet).problems == ()
    assert load_checkpoint(tmp_path, 0)[:2] == (5, 5)


def test_second_interrupt_while_the_last_checkpoint_is_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def step(state: Any, round: int) -> Any:
        if round == 2 and not raised:
            raised.append(True)
            faults.interrupt_on(_checkpoints.Checkpoints, "save", monkeypatch)
            raise KeyboardInterrupt
        return state + 1, {}

    raised: list[bool] = []
    run = Run(step, 0, 4, checkpoint_dir=tmp_path, checkpoint_every=10, **quiet)
    with pytest.raises(KeyboardInterrupt):
        run.start()
    assert (run.status, run.finished) == ("interrupted", 2)
    run.wait(timeout_seconds=1)
    assert (run.start().status, run.state) == ("finished", 4)


def test_a_checkpoint_that_appears_after_an_interrupt_is_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Round 4 is written in the background while round 5 is interrupted."""
    save, rounds, late = _checkpoints.Checkpoints.save, _checkpoints.Checkpoints.rounds, [True]

    def interrupted(self: Any, finished: int, *args: Any, **kwargs: Any) -> None:
        if late and finished == 5:
            raise KeyboardInterrupt
        save(self, finished, *args, **kwargs)

    monkeypatch.setattr(_checkpoints.Checkpoints, "save", interrupted)
    monkeypatch.setattr(
        _checkpoints.Checkpoints, "rounds", lambda self: [each for each in rounds(self) if each < 4 or not late]
    )
    run = Run(lambda state, round: (state + 1, {}), 0, 6, checkpoint_dir=tmp_path, **quiet)
    with pytest.raises(KeyboardInterrupt):
        run.start()
    late.clear()
    assert max(rounds(_checkpoints.Checkpoints(tmp_path))) == 4
    assert (run.start().status, run.state) == ("finished", 6)


INTERRUPTED = """
import faults, numpy as np, orbax.checkpoint
from workbench.measurement import Run
generator = np.random.default_rng({burst})
run = Run(lambda state, round: (state + 1, {{}}), 0, 60, checkpoint_dir={folder!r}, progress=False)
for _ in range(4):
    try:
        with faults.interrupts(*np.sort(generator.uniform(0.02, 0.3, {burst}))):
            run.start()
    except KeyboardInterrupt:
        pass
    assert run.status in ("ready", "interrupted", "finished"), run.status
    assert run.state == run.finished
assert run.start().state == 60
"""


@pytest.mark.parametrize("burst", [1, 2, 3])
def test_interrupts_at_any_moment_leave_a_run_that_goes_on(tmp_path: Path, burst: int):
    code = INTERRUPTED.format(burst=burst, folder=str(tmp_path / "run"))  # orbax does not clean up after an interrupt
    process = faults.python(code, cwd=tmp_path, stderr=subprocess.PIPE)
    errors = process.communicate(timeout=300)[1]
    assert process.returncode == 0, errors[-2000:]


def test_start_after_a_donating_step_failed_is_refused_instead_of_ending_the_process():
    taking = jax.jit(lambda state: state + 1, donate_argnums=0)

    def step(state: Any, round: int) -> Any:
        after = taking(state)
        state.delete()
        if round == 1:
            raise RuntimeError("after donation")
        return after, {}

    run = Run(step, jnp.zeros(2), 3, **quiet)
    with pytest.raises(RoundError, match=r"donates its state.*their state is lost.*start again, with `checkpoint_dir`"):
        run.start()
    with pytest.raises(EngineError, match=r"donates its state"):
        run.start()


def test_folder_of_a_running_run_is_refused_to_another(tmp_path: Path):
    def step(state: Any, round: int) -> Any:
        if round == 1:
            with pytest.raises(MeasureError, match=r"where another run is writing.*pass another folder"):
                other.start()
        return add(state, round)

    other = Run(add, 100, 3, checkpoint_dir=tmp_path, **quiet)
    assert run_rounds(step, 0, 3, checkpoint_dir=tmp_path, **quiet).state == 3


def test_folder_that_another_run_has_filled_meanwhile_is_refused(tmp_path: Path):
    first, second = (Run(add, start, 2, checkpoint_dir=tmp_path, **quiet) for start in (0, 100))
    first.start()
    with pytest.raises(MeasureError, match=r"newest round was 0 when this run read it and is 2 now"):
        second.start()
    assert load_checkpoint(tmp_path, 0)[:2] == (2, 2)


def test_state_of_another_step_is_noted(tmp_path: Path):
    run_rounds(add, 0, 1, checkpoint_dir=tmp_path, **quiet)
    run = run_rounds(lambda state, round: (state * 2, {}), 0, 2, checkpoint_dir=tmp_path, **quiet)
    assert "was written by another step (add " in run.problems[0].what


def test_exit_in_a_background_step_is_the_error_of_wait():
    def step(state: Any, round: int) -> Any:
        raise SystemExit(3)

    run = Run(step, 0, 2, **quiet).start(background=True)
    with pytest.raises(RoundError, match=r"round 0 of 2 failed: SystemExit: 3"):
        run.wait(timeout_seconds=60)


@pytest.mark.parametrize("rounds", [1.5, float("nan"), "3", True])
def test_rounds_that_are_no_whole_number_are_refused(rounds: Any):
    with pytest.raises(MeasureError, match=r"rounds=.*These are counts: pass whole numbers"):
        Run(add, 0, rounds, **quiet)


def test_metrics_of_one_name_are_refused():
    with pytest.raises(RoundError, match=r"two metrics named 'a\.b'.*rename one") as caught:
        run_rounds(lambda state, round: (state, {"a": {"b": 1}, "a.b": 2}), 0, 1, **quiet)
    assert isinstance(caught.value.__cause__, ProgramError)


def test_full_disk_leaves_the_old_file(tmp_path: Path):
    old = History([RoundRecord(round=0, seconds=0.5, metrics={"loss": 1.0})])
    old.to_json(tmp_path / "history.json")
    with faults.full_disk(100), pytest.raises(OSError, match="File too large"):
        History([*old] * 50).to_json(tmp_path / "history.json")
    assert History.from_json((tmp_path / "history.json").read_text()) == old
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]


def test_clock_that_jumps_does_not_change_the_seconds_of_a_round(monkeypatch: pytest.MonkeyPatch):
    def step(state: Any, round: int) -> Any:
        faults.clock_jumps(monkeypatch, -400 * 86_400.0)
        return state + 1, {}

    assert all(0 <= record.seconds < 60 for record in run_rounds(step, 0, 2, **quiet).history)


KILLED = """
import jax, jax.numpy as jnp
from workbench.measurement import run_rounds
step = jax.jit(lambda w, key: (w * 0.9 + jax.random.normal(key, w.shape), jnp.sum(w)))
def one(w, round, key):
    w, loss = step(w, key)
    return w, {{"loss": loss}}
run_rounds(one, jnp.ones(100), {rounds}, key=jax.random.key(0), checkpoint_dir={folder!r}, progress=False)
"""


@pytest.mark.parametrize("moment", [2, 4, 9])  # one checkpoint at least is whole by then
def test_killed_run_resumes_bit_for_bit(tmp_path: Path, moment: int):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    code = textwrap.dedent(KILLED)
    process = faults.python(code.format(rounds=10**6, folder=str(killed)), cwd=tmp_path)
    faults.kill_when(process, lambda: any(killed.glob(f"{moment}*")))
    finished = load_checkpoint(killed, jnp.ones(100))[0]
    for folder in (killed, whole):
        again = faults.python(code.format(rounds=finished + 2, folder=str(folder)), cwd=tmp_path)
        assert again.wait() == 0
    resumed, straight = (load_checkpoint(folder, jnp.ones(100)) for folder in (killed, whole))
    assert np.asarray(resumed[1]).tobytes() == np.asarray(straight[1]).tobytes()
    assert [record.metrics for record in resumed[2]] == [record.metrics for record in straight[2]]


def test_checkpoints_leave_the_log_to_the_user(tmp_path):
    # Orbax's import adds a handler to the root, with which `basicConfig` does nothing.
    pytest.importorskip("orbax.checkpoint", reason="needs the extra `checkpoints`")
    code = f"""
import logging, workbench as wb
folder = {str(tmp_path / "kept")!r}
wb.run_rounds(lambda total, round: (total + round, {{}}), 0, 1, checkpoint_dir=folder, progress=False)
assert logging.root.handlers == [], logging.root.handlers
logging.basicConfig(filename={str(tmp_path / "my.log")!r})
logging.warning("mine")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert "mine" in (tmp_path / "my.log").read_text()
