"""Trackers, the folder of a run, provenance, and running it again; each tracker with the real package, offline."""

import base64
import gzip
import json
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.cli import main
from workbench.errors import DataError, MeasureError, MissingDependencyError, RoundError
from workbench.measurement import MlflowLog, RunFolder, TensorBoardLog, TrackioLog, WandbLog, list_runs
from workbench.measurement._run_log import _digest_of, data_hash
from workbench.records.live import RoundRecord


def step(state: Any, batch: Any, key: Any) -> Any:
    state = state + batch.mean() + jax.random.normal(key)
    return state, {"loss": state**2, "client loss": jnp.stack([state, 2 * state])}


def rounds(log: Any, *, step: Any = step, count: int = 3, **options: Any) -> Any:
    options = {"data": jnp.arange(4.0), "key": jax.random.key(7), "progress": False} | options
    return wb.run_rounds(step, jnp.float32(0), count, log=log, **options)


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


class Recorder:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self, about: Mapping[str, Any], program: Any) -> None:
        self.calls.append(f"start {about['name']}")

    def log(self, record: RoundRecord) -> None:
        self.calls.append(f"round {record.round}")

    def finish(self, status: str) -> None:
        self.calls.append(status)


def test_a_tracker_hears_start_rounds_and_status_in_order() -> None:
    recorder = Recorder()
    rounds([recorder], count=2, name="mine")
    assert recorder.calls == ["start mine", "round 0", "round 1", "finished"]


def test_a_tracker_that_breaks_is_removed_and_noted_and_the_run_goes_on() -> None:
    class Broken(Recorder):
        def log(self, record: RoundRecord) -> None:
            raise OSError("the disk is full")

    run = rounds([Broken()])
    assert run.status == "finished"
    assert "the disk is full" in run.problems[0].what


def test_something_else_than_a_tracker_is_refused() -> None:
    with pytest.raises(MeasureError, match="start, log and finish"):
        rounds([3])


def test_a_folder_holds_every_round_and_where_they_come_from(tmp_path: Path) -> None:
    run = rounds(tmp_path)
    stored = wb.Run.load(only(tmp_path))
    assert stored.history == run.history
    assert stored.status == "finished"
    assert "jax.random.normal(key)" in stored.about["code"]
    assert stored.about["versions"]["jax"] == jax.__version__
    assert len(stored.about["devices"]) == len(jax.devices())
    assert stored.about["process"] == {"host": socket.gethostname(), "pid": os.getpid(), "index": 0}
    assert list_runs(tmp_path)["process"].tolist() == [f"{socket.gethostname()}:{os.getpid()}"]
    assert stored.about["key"] == np.asarray(jax.random.key_data(jax.random.key(7))).tolist()


def test_the_hash_of_the_data_changes_with_the_data(tmp_path: Path) -> None:
    hashes = []
    for place, data in (("a", jnp.arange(4.0)), ("b", jnp.arange(4.0)), ("c", jnp.ones(4))):
        rounds(tmp_path / place, data=data, count=1)
        hashes.append(wb.Run.load(only(tmp_path / place)).about["data_sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_run_runs_again_with_the_same_bits(tmp_path: Path) -> None:
    rounds(tmp_path, step=wb.jit(step))
    stored = wb.Run.load(only(tmp_path))
    assert stored.differences(stored.rerun()) == []


def test_another_run_differs_from_a_round_on(tmp_path: Path) -> None:
    rounds(tmp_path)
    other = rounds(None, key=jax.random.key(8))
    assert wb.Run.load(only(tmp_path)).differences(other)[0].endswith("differs from round 0 onwards")


def test_a_run_on_an_iterator_says_why_it_cannot_run_again(tmp_path: Path) -> None:
    rounds(tmp_path, data=iter([jnp.ones(1)] * 3))
    with pytest.raises(DataError, match="iterator"):
        wb.Run.load(only(tmp_path)).rerun()


def test_a_run_that_goes_on_goes_on_in_its_folder(tmp_path: Path) -> None:
    def breaks_once(state: Any, batch: Any, key: Any, done: list[int] = []) -> Any:  # noqa: B006
        done.append(1)
        if len(done) == 2:
            raise ValueError("once")
        return step(state, batch, key)

    with pytest.raises(RoundError) as caught:
        rounds(RunFolder(tmp_path, program=False), step=breaks_once)
    assert wb.Run.load(only(tmp_path)).status == "failed"
    caught.value.run.start()
    stored = wb.Run.load(only(tmp_path))
    assert (stored.status, len(stored.history)) == ("finished", 3)


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    rounds(tmp_path)
    file = only(tmp_path) / "history.jsonl"
    file.write_text(file.read_text()[:-10])
    assert len(wb.Run.load(only(tmp_path)).history) == 2


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run\.json"):
        wb.Run.load(tmp_path)


def test_the_registry_lists_compares_and_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        rounds(tmp_path / "runs", key=jax.random.key(seed), name="<b>mine")
    assert list_runs(tmp_path / "runs")["rounds"].tolist() == [3, 3]
    assert main(["runs", "list", str(tmp_path / "runs"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == ["<b>mine", "<b>mine"]
    assert main(["runs", "compare", str(tmp_path / "runs"), "--metric", "loss"]) == 0
    assert "<b>mine" in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["runs", "open", str(tmp_path / "runs"), listed[0]["run"], "--out", str(page)]) == 0
    assert "<b>mine" not in page.read_text()
    assert "&lt;b&gt;mine" in page.read_text()


def test_several_runs_open_in_one_page_with_their_seeds(tmp_path: Path) -> None:
    for name, keys in (("one", (1, 2)), ("other", (3,))):
        for seed in keys:
            rounds(tmp_path / "runs", key=jax.random.key(seed), name=name)
    page = tmp_path / "page.html"
    assert main(["runs", "open", str(tmp_path / "runs"), "--metric", "loss", "--out", str(page)]) == 0
    packed = re.findall(r'id="wb-state">(.*?)</script>', page.read_text(), re.DOTALL)[0]
    state = json.loads(gzip.decompress(base64.b64decode(packed)))[0]["state"]
    assert [(each["name"], each["compared"]) for each in state["data"]["results"]] == [("one", 2), ("other", 1)]


def test_opening_a_run_that_is_not_there_fails_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds(tmp_path, count=1, name="mine")
    assert main(["runs", "open", str(tmp_path), "yours"]) == 1
    assert re.search(r"'yours', but no run matches. The registry has .*mine", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("library", "extra", "tracker"),
    [
        ("tensorboardX", "tensorboard", TensorBoardLog("events")),
        ("wandb", "wandb", WandbLog("tests")),
        ("mlflow.tracking", "mlflow", MlflowLog("file:///nowhere")),
        ("trackio", "trackio", TrackioLog("tests")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_tracker_names_the_extra_that_brings_it(
    library: str, extra: str, tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=rf"\[{extra}\]"):
        rounds([tracker])


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="needs the extra `tensorboard`")
    pytest.importorskip("tensorboard", reason="needs tensorboard to read the events")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = rounds([TensorBoardLog(tmp_path, name="run")])
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(run.history.summary()["loss"].tolist())


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = rounds([WandbLog("tests", dir=str(tmp_path))])
    assert run.problems == ()
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, in MLflow's code
def test_mlflow_reads_the_metrics_from_its_database(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    pytest.importorskip("alembic", reason="needs the extra `mlflow`")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/runs.db"
    run = rounds([MlflowLog(uri)])
    assert run.problems == ()
    client = MlflowClient(tracking_uri=uri)
    (experiment,) = [e for e in client.search_experiments() if e.name == "workbench"]
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [m.value for m in history] == pytest.approx(run.history.summary()["loss"].tolist())
    assert found.info.status == "FINISHED"
    assert list(tmp_path.glob("mlruns/**/step.py"))


def test_trackio_keeps_the_metrics_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="needs the extra `trackio`")
    run = rounds([TrackioLog("tests")])
    assert run.problems == ()
    assert list(tmp_path.glob("*tests*"))


def test_hash_of_data_does_not_depend_on_the_order_of_its_names():
    first, second = {"a": jnp.ones(2), "b": jnp.zeros(3)}, {"b": jnp.zeros(3), "a": jnp.ones(2)}
    assert data_hash(first) == data_hash(second)
    assert len({data_hash(x) for x in (first, {"a": jnp.ones(2)}, {"a": jnp.ones(3), "b": jnp.zeros(3)})}) == 3
    assert _digest_of({"a": 1, "b": 2}) == _digest_of({"b": 2, "a": 1})
