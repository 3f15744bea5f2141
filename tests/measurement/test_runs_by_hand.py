"""Limits, texts, metrics and folders of runs, derived by hand."""

import json
import math
import re
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measurement_examples import count, quiet

from workbench.errors import DataError, EngineError, MeasureError, ProgramError, RoundError
from workbench.measurement import History, MlflowLog, Run, RunFolder, StoredRun, WandbLog, list_runs, run_rounds
from workbench.measurement._emissions import _clients_first
from workbench.measurement._history import _not_finite, read_metrics, round_of
from workbench.measurement._progress import Progress
from workbench.measurement._rounds import Checkpoints
from workbench.measurement._run_log import data_hash, describe_run, installed_versions, names_of_devices
from workbench.measurement._run_store import load_run
from workbench.measurement._state_check import changed_leaves, describe_state, misfits
from workbench.measurement._tpu_metrics import TpuMetrics
from workbench.measurement._trackers import _plain, scalars_of
from workbench.records.live import ProblemRecord, RoundRecord

LEAST = {"rounds": 0, "keep": 1, "checkpoint_every": 1, "every": 1, "client_rounds": 1}


@pytest.mark.parametrize("name", LEAST)
def test_least_counts_of_a_run(name):
    def make(value: Any) -> Run:
        return Run(count, 0, **{"rounds": 2, name: value}, **quiet)

    assert make(LEAST[name]).status == make(np.int64(3)).status == "ready"
    with pytest.raises(MeasureError, match=rf"given {name}={LEAST[name] - 1}, .* Pass {name} >= {LEAST[name]}\."):
        make(LEAST[name] - 1)
    for value in (True, 1.0):
        with pytest.raises(MeasureError, match=rf"given {name}={value}\. These are counts.* {name}=10\."):
            make(value)


@pytest.mark.parametrize(("kept", "shapes"), [(1, "mmmc"), (3, "mccc"), (4, "cccc"), (9, "cccc"), (None, "cccc")])
def test_rounds_that_keep_the_metrics_of_every_client(kept, shapes):
    metrics = {"loss": np.array([1.0, 5.0])}
    run = run_rounds(lambda state, round: (state, metrics), 0, 4, client_rounds=kept, **quiet)
    values = {"m": 3.0, "c": (1.0, 5.0)}
    assert [record.metrics["loss"] for record in run.history] == [values[shape] for shape in shapes]


@pytest.mark.parametrize(("kept", "shapes"), [(1, "mmmc"), (3, "mccc"), (9, "cccc"), (None, "cccc")])
def test_resumed_rounds_that_keep_the_metrics_of_every_client(tmp_path, monkeypatch, kept, shapes):
    rounds = [RoundRecord(round=number, seconds=1.0, metrics={"loss": (1.0, 5.0)}) for number in range(4)]
    monkeypatch.setattr(Checkpoints, "rounds", lambda self: [4])
    monkeypatch.setattr(Checkpoints, "load", lambda self, like: (4, 7, History(rounds)))
    run = Run(count, 0, 9, checkpoint_dir=tmp_path, client_rounds=kept, **quiet)
    values = {"m": 3.0, "c": (1.0, 5.0)}
    assert [record.metrics["loss"] for record in run.history] == [values[shape] for shape in shapes]
    assert (run.finished, run.state, run.problems) == (4, 7, ())


def test_a_run_states_its_progress():
    run = Run(lambda state, round: (state, {"loss": math.inf}), 0, 2, **quiet)
    assert repr(run) == "<Run ready: 0 of 2 rounds, 0 problems>"
    assert repr(run.start()) == "<Run finished: 2 of 2 rounds, 2 problems>"
    assert [problem.round for problem in run.problems] == [0, 1]


@pytest.mark.parametrize(("saved", "kept"), [(0, "there is no earlier checkpoint"), (1, "of round 1 is kept")])
def test_a_checkpoint_that_fails_is_a_problem_with_the_first_line_of_its_reason(tmp_path, monkeypatch, saved, kept):
    calls: list[int] = []

    def save(self: Any, finished: int, *_: Any, **__: Any) -> None:
        calls.append(finished)
        if finished > saved:
            raise OSError("x" * 400 + "\nmore")

    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr(Checkpoints, "rounds", lambda self: [])
    run = run_rounds(count, 0, 2, checkpoint_dir=tmp_path, **quiet)
    assert calls == [1, 2, 2]  # the last round is tried again at the end
    problem = run.problems[-1]
    assert problem.round == 1
    assert problem.what.startswith(f"checkpoint of round 2 could not be written (OSError: {'x' * 300}); ")
    assert problem.what.endswith(kept)


@pytest.mark.parametrize(("every", "written"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (6, [5])])
def test_checkpoints_are_written_every_few_rounds_and_at_the_end(tmp_path, monkeypatch, every, written):
    calls: list[int] = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, finished, *_, **__: calls.append(finished))
    monkeypatch.setattr(Checkpoints, "rounds", lambda self: [])
    run_rounds(count, 0, 5, checkpoint_dir=tmp_path, checkpoint_every=every, **quiet)
    assert calls == written


@pytest.mark.parametrize("saved", [True, False])
def test_a_failed_round_that_donated_its_state_says_where_the_state_is(tmp_path, monkeypatch, saved):
    monkeypatch.setattr(Checkpoints, "save", lambda *_, **__: None)
    monkeypatch.setattr(Checkpoints, "rounds", lambda self: [])

    def step(state: Any, round: int) -> Any:
        state.delete()
        if round == 1:
            raise ValueError("no data")
        return jnp.ones(2), {}

    run = Run(step, jnp.zeros(2), 3, checkpoint_dir=tmp_path if saved else None, **quiet)
    with pytest.raises(RoundError) as error:
        run.start()
    text = "the state of round 1 is on disk" if saved else "their state is lost"
    assert f"The history of the 1 finished rounds is kept in `error.run`, {'and' if saved else 'but'} {text}" in str(
        error.value
    )
    with pytest.raises(EngineError, match="after 1 rounds") as asked:
        _ = run.state
    assert ("Round 1 is on disk" in str(asked.value)) == saved


def test_a_callback_that_fails_is_a_problem_of_its_round():
    def fail(run: Any, record: Any) -> None:
        if record.round == 2:
            raise KeyError("x")

    run = run_rounds(count, 0, 4, callbacks=[fail], **quiet)
    assert [(problem.round, problem.what) for problem in run.problems] == [
        (2, "a callback failed and was removed (KeyError: 'x')")
    ]


# ---- metrics


@pytest.mark.parametrize(
    ("metrics", "numbers"),
    [
        (2, {"value": 2.0}),
        ({"a": {"b": np.float32(1.5)}, "c": [1, 2]}, {"a.b": 1.5, "c.0": 1.0, "c.1": 2.0}),
        ({"a": np.ones((2, 1))}, {"a": ((1.0,), (1.0,))}),
        ({}, {}),
    ],
)
def test_metrics_of_a_round_are_numbers_by_name(metrics, numbers):
    assert read_metrics(metrics, round=0) == (numbers, ())


def problems(values: Any) -> list[tuple[int | None, str | None]]:
    return [(problem.client, problem.value) for problem in read_metrics({"m": values}, round=3)[1]]


def test_values_that_are_not_finite_are_named_by_client():
    assert problems(math.nan) == [(None, "nan")]
    assert problems([1.0, math.inf]) == [(None, "inf")]  # two metrics
    assert problems(np.array([1.0, math.inf, -math.inf])) == [(1, "inf"), (2, "-inf")]
    assert problems(np.array([[1.0, 2.0], [3.0, math.nan]])) == [(1, "nan")]
    assert problems(np.array([[[1.0, -math.inf], [math.nan, 2.0]]])) == [(0, "-inf")]  # the first value
    assert problems(np.full(10, math.nan)) == [(client, "nan") for client in range(10)]
    other_host = np.ma.masked_array([1.0, math.nan, math.inf], [False, True, False])
    assert [problem.client for problem in _not_finite("m", other_host, 3)] == [2]
    (*_, last) = read_metrics({"m": np.full((12, 2), math.nan)}, round=3)[1]
    assert (last.round, last.metric, last.what) == (3, "m", "m is not finite for 2 more clients")
    (first,) = read_metrics({"m": np.array([1.0, math.nan])}, round=3)[1]
    assert (first.round, first.metric, first.what) == (3, "m", "m of client 1 is nan in round 3")


def test_names_of_metrics_differ():
    with pytest.raises(ProgramError, match=r"two metrics named 'a\.b' in round 4"):
        read_metrics({"a": {"b": 1.0}, "a.b": 2.0}, round=4)


def record(number: int = 0, seconds: float = 1.0, **metrics: Any) -> RoundRecord:
    return RoundRecord(round=number, seconds=seconds, metrics=metrics)


def test_table_of_a_history():
    history = History([record(4, a=(1.0, 2.0)), record(5, b=(((1.0, 2.0), (3.0, 4.0)),))])
    rows = history.to_pandas().astype(object).where(lambda table: table.notna(), None).values.tolist()
    assert rows == [
        [4, "a", 0, None, 1.0], [4, "a", 1, None, 2.0],
        [5, "b", 0, 0, 1.0], [5, "b", 0, 1, 2.0], [5, "b", 0, 2, 3.0], [5, "b", 0, 3, 4.0],
    ]  # fmt: skip
    assert repr(History()) == "<History of 0 rounds: no metrics>"
    assert history != History(history[:1])
    assert history == History([*history])


@pytest.mark.parametrize("text", ["", "3", "[3]", '[{"round": 1}]', "[" * 100_000])
def test_what_is_no_history_is_refused(text):
    with pytest.raises(DataError, match="text that is not a history"):
        History.from_json(text)


def test_a_round_is_read_back():
    problem = ProblemRecord(round=2, what="w", metric="m", client=1, value="nan")
    written = RoundRecord(round=2, seconds=0.5, metrics={"m": (1.0, (2.0, 3.0))}, problems=(problem,), unix_seconds=9.5)
    assert round_of(json.loads(json.dumps(written.to_dict()))) == written


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [(("clients",), (3,), (3,)), (("step", "clients"), (2, 3), (3, 2)), (("step",), (2,), (2,)), ((), (), ()),
     (("round 1", "step", "clients"), (4, 2, 3), (3, 4, 2)), (("clients", "step"), (3, 2), (3, 2))],
)  # fmt: skip
def test_clients_are_the_first_axis_of_emitted_values(axes, shape, expected):
    assert _clients_first(axes, jnp.zeros(shape)).shape == expected


# ---- the progress bar


class Bar:
    def __init__(self, **options: Any) -> None:
        self.calls: list[Any] = [options]

    def set_postfix(self, shown: dict[str, Any], *, refresh: bool) -> None:
        self.calls.append((shown, refresh))

    def update(self) -> None:
        self.calls.append("update")

    def set_description_str(self, text: str) -> None:
        self.calls.append(text)

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(("status", "said"), [("finished", []), ("stopped", ["stopped"])])
def test_progress_shows_three_metrics_and_the_number_of_problems(monkeypatch, status, said):
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    progress: Any = Progress(9, 4, shown=True)
    progress.update(record(0, a=1.23456, b=(1.0, 2.0), c=3.0, d=4.0))
    problem = ProblemRecord(round=1, what="w")
    progress.update(record(1, a=2.0).replace(problems=(problem, problem)))
    progress.update(record(2))
    progress.close(status)
    assert progress._bar.calls == [
        {"total": 9, "initial": 4, "unit": "round"},
        ({"a": "1.235", "b": "1.5", "c": "3"}, False), "update",
        ({"a": "2", "problems": 2}, False), "update", ({"problems": 2}, False), "update", *said, "close",
    ]  # fmt: skip


def test_progress_that_is_not_shown_does_nothing():
    progress: Any = Progress(9, 4, shown=False)
    progress.update(record())
    progress.close("failed")
    assert progress._bar is None


# ---- folders of runs


def test_name_of_a_folder(tmp_path):
    folder = RunFolder(tmp_path, name="a b/ü_-" + "x" * 80)
    folder.start({"name": "other", "started_unix_seconds": 0.9, "earlier": [record(0), record(1)]}, {"cannot": "no"})
    assert folder.path is not None
    assert re.fullmatch(r"19700101-000000-a-b-ü_-x{53}-[0-9a-f]{6}", folder.path.name)
    about = json.loads((folder.path / "run.json").read_text())
    assert (about["name"], about["status"], about["rerun"]) == ("a b/ü_-" + "x" * 80, "running", "no")
    assert "earlier" not in about
    assert len(load_run(folder.path, print).history) == 2
    before = folder.path
    folder.start({"name": "other", "started_unix_seconds": 9.0, "earlier": [record(0)]}, {})
    assert (folder.path, len(load_run(before, print).history)) == (before, 2)


def test_runs_are_listed_in_order_with_their_last_metrics(tmp_path):
    for name, start, seconds in (("b", 2.0, (1.0, 2.0, 4.0)), ("a", 1.0, ())):
        folder = RunFolder(tmp_path, name=name, program=False)
        about = {"name": name, "started_unix_seconds": start, "earlier": [], "code_sha256": "0123456789"}
        folder.start(about | ({"process": {"host": "h", "pid": 3}} if name == "b" else {}), {})
        for number, duration in enumerate(seconds):
            folder.log(record(number, duration, loss=(float(number), 10.0 * number)))
    table: Any = list_runs(tmp_path)
    assert table[["name", "rounds", "seconds", "code", "process"]].values.tolist() == [
        ["a", 0, 0, "01234567", ""], ["b", 3, 7.0, "01234567", "h:3"],
    ]  # fmt: skip
    assert math.isnan(table["loss"][0])
    assert table["loss"][1] == 11.0


def stored(*rounds: RoundRecord, **about: Any) -> StoredRun[Any]:
    facts = {"versions": installed_versions(), "devices": names_of_devices(), "status": "finished"} | about
    return StoredRun(path=Path("x"), about=facts, history=History(rounds), make_run=print)


def test_differences_of_a_rerun():
    rounds = record(0, a=1.0, b=(1.0, math.nan)), record(1, a=2.0), record(2, a=3.0)
    old = stored(*rounds)

    def differences(*others: RoundRecord, **about: Any) -> list[str]:
        return stored(*rounds, **about).differences(stored(*others))

    assert old.differences(old) == []
    assert differences(record(0, a=1.0, b=(1.0, math.nan)), record(1, a=2.0)) == [
        "3 rounds had finished, and 2 have now"
    ]
    assert differences(rounds[0], rounds[1].replace(metrics={"a": 2.5}), rounds[2].replace(metrics={"a": 9.0})) == [
        "a differs from round 1 onwards"
    ]
    assert differences(rounds[0], rounds[1].replace(metrics={}), rounds[2]) == ["a differs from round 1 onwards"]
    assert differences(*rounds[:2], rounds[2].replace(metrics={"a": 3.0, "c": 1.0})) == [
        "c differs from round 2 onwards"
    ]
    versions = installed_versions() | {"jax": "0.1", "lost": "2"}
    assert differences(*rounds, versions=versions, devices=["tpu:0 v9", "tpu:1 v9"]) == [
        f"jax was 0.1 and is now {jax.__version__}", "lost was 2 and is now not installed",
        "the run had 2 devices (tpu:0 v9), and now has others",
    ]  # fmt: skip


def test_provenance_of_a_run():
    about = describe_run(count, jnp.zeros(2), data=None, key=jax.random.key(3), rounds=4, name="")
    assert (about["name"], about["rounds"], about["key"], about["mesh"]) == ("count", 4, [0, 3], {})
    assert about["command"] == sys.argv[:1]
    assert about["devices"][7].startswith("cpu:7 ")
    named = describe_run(count, jnp.ones(2), data=None, key=None, rounds=4, name="mine")
    assert (named["name"], named["key"]) == ("mine", None)
    assert named["state_sha256"] != about["state_sha256"]
    assert named["code_sha256"] == about["code_sha256"] != ""


def test_hash_of_data_by_kind():
    assert [data_hash(data) for data in (None, iter([1]))] == ["", ""]
    assert data_hash(count).startswith("code ")
    assert len(data_hash(jnp.ones(2))) == 64


# ---- trackers


def test_numbers_of_a_round_for_a_tracker():
    assert scalars_of(record(0, 0.5, a=2.0, b=((1.0, 2.0), (3.0, 6.0)))) == {
        "a": 2.0, "b": 3.0, "b.least": 1.0, "b.largest": 6.0, "seconds": 0.5,
    }  # fmt: skip


def test_parameters_of_a_run_for_a_tracker():
    about = describe_run(count, 0, data=None, key=None, rounds=4, name="") | {"devices": [f"d{n}" for n in range(9)]}
    plain = _plain(about)
    assert (plain["devices"], plain["key"], plain["rounds"]) == ("d0, d1, d2, d3, d4, d5, d6, d7", "None", 4)
    assert plain["version jax"] == jax.__version__


class Calls:
    """Keeps the calls of its methods."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.summary: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append((name, *args, options))


def test_rounds_in_mlflow():
    tracker: Any = MlflowLog("sqlite:///x.db")
    tracker._client = Calls()
    tracker.log(record(3, 0.5, a=2.0).replace(unix_seconds=1.2345))
    tracker.log(record(4, 0.5))
    for status in ("finished", "stopped", "interrupted", "failed"):
        tracker.finish(status)
    assert tracker._client.calls == [
        ("log_metric", "", "a", 2.0, {"timestamp": 1234, "step": 3}),
        ("log_metric", "", "seconds", 0.5, {"timestamp": 1234, "step": 3}),
        ("log_metric", "", "seconds", 0.5, {"timestamp": None, "step": 4}),
        *(("set_terminated", "", state, {}) for state in ("FINISHED", "FINISHED", "KILLED", "FAILED")),
    ]


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("interrupted", 0), ("failed", 1)])
def test_end_of_a_run_in_wandb(status, code):
    tracker: Any = WandbLog("p")
    tracker._run = Calls()
    tracker.log(record(3, 0.5, a=2.0))
    tracker.finish(status)
    assert tracker._run.calls == [
        ("log", {"a": 2.0, "seconds": 0.5}, {"step": 3}), ("finish", {"exit_code": code}),
    ]  # fmt: skip
    assert tracker._run.summary == {"status": status}


# ---- states


@pytest.mark.parametrize(
    ("like", "saved", "fact"),
    [
        (np.zeros(2, np.float32), np.ones(2, np.float32), None),
        (np.zeros(2, np.float32), np.ones(3, np.float32), "state is float32[2] and was saved as float32[3]"),
        (np.zeros(2, np.float32), np.ones(2, np.int32), "state is float32[2] and was saved as int32[2]"),
        # the first round makes an array of a number
        (0, np.int32(3), None), (0, np.uint8(3), None), (1j, np.complex64(3), None), (0.0, np.float32(3), None),
        (0.0, np.asarray(3, jnp.bfloat16), None), (0, 3, None), (False, np.bool_(1), None),
        (0, np.float32(3), "state is int and was saved as float32"),
        (0.0, np.int32(3), "state is float and was saved as int32"),
        (0, np.ones(1, np.int32), "state is int and was saved as int32[1]"),
        (0, 3.0, "state is int and was saved as float"),
        ("a", "b", None), ("a", 1, "state is str and was saved as int"),
    ],
)  # fmt: skip
def test_states_that_fit_a_checkpoint(like, saved, fact):
    assert misfits(like, describe_state(saved)) == ([] if fact is None else [fact])


def test_leaves_that_a_checkpoint_lacks_or_has_more():
    saved = describe_state({"a": 1, "b": 2})
    assert misfits({"a": 1, "c": 2}, saved) == [
        "state['c'] is not in the checkpoint", "state['b'] is only in the checkpoint",
    ]  # fmt: skip
    assert changed_leaves({"a": 1, "b": 3}, saved) == ["state['b']"]
    assert changed_leaves({"a": 1}, saved) == ["state['b']"]
    assert changed_leaves({"a": 1, "b": 2}, {**saved, "['b']": ["int", [], ""]}) == []  # no digest: on another host


def test_digests_of_leaves():
    key = jax.random.key(1)
    leaves = {"text": "ab", "bytes": b"ab", "other": "ac", "key": key, "words": jax.random.key_data(key),
              "empty": np.zeros(0), "object": np.array([object()]), "thing": object()}  # fmt: skip
    digests = {name: describe_state(leaf)[""][2] for name, leaf in leaves.items()}
    assert digests["text"] == digests["bytes"] != digests["other"]
    assert digests["key"] == digests["words"]
    assert digests["empty"] == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of nothing
    assert digests["object"] == digests["thing"] == ""


# ---- a TPU's monitoring


class Worker:
    """A child process that answers when it is told to."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.answer, self.returncode = log, "", 0

    def poll(self) -> int | None:
        return 0 if self.answer else None

    def communicate(self) -> tuple[str, str]:
        return self.answer, ""

    def kill(self) -> None:
        self.log.append("killed")


def test_queries_of_a_tpu_are_ten_seconds_apart_and_end_after_twenty(monkeypatch):
    clock, log = [100.0], []
    workers: list[Worker] = []

    def start(command: list[str], **_: Any) -> Worker:
        log.append(f"started at {clock[0]:g}")
        workers.append(Worker(log))
        return workers[-1]

    module = "workbench.measurement._tpu_metrics."
    monkeypatch.setattr(module + "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(module + "subprocess", types.SimpleNamespace(Popen=start, DEVNULL=0, PIPE=1))
    metrics = TpuMetrics(["x"])
    answers = {104.0: '{"duty_cycle_pct": ["1.5"]}'}
    values = []
    for moment in (100.0, 103.0, 104.0, 109.9, 110.0, 130.0, 130.1, 200.0):
        clock[0] = moment
        for worker in workers[-1:]:
            worker.answer = answers.get(moment, "")
        values.append(metrics.poll().get("duty_cycle_pct"))
    assert values == [None, None, [1.5], [1.5], [1.5], [1.5], [1.5], [1.5]]
    assert log == ["started at 100", "started at 110", "killed"]
    assert metrics.problem is not None
