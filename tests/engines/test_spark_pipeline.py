"""The pipeline on Spark, from Parquet to scores: numbers of pandas and NumPy, and a killed executor changes nothing."""

import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from examples import spark_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def session() -> Any:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    if not shutil.which("java"):
        pytest.skip("no Java")
    made = spark_pipeline.own_session("local-cluster[2,1,1024]")
    yield made
    made.stop()


def by_hand(events: pd.DataFrame, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and scores of gradient descent on the whole table, in float64."""
    age = events["age"].astype("Float64").to_numpy(float, na_value=np.nan)
    age = np.nan_to_num((age - np.nanmean(age)) / 30)
    x = np.stack([np.ones(len(age)), np.log(events["amount"]), age, events["device"] == "web"], axis=1).astype(float)
    w = np.zeros(4)
    for _ in range(rounds):
        w -= 2 * x.T @ (1 / (1 + np.exp(-x @ w)) - events["bought"]) / len(x)
    return w, x @ w


def executors() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_pipeline_gives_the_numbers_of_numpy_with_and_without_a_killed_executor(session: Any, tmp_path: Path):
    spark_pipeline.write_events(tmp_path / "events.parquet")
    calm = spark_pipeline.run_pipeline(session, tmp_path, rounds=6)
    weights, scores = by_hand(pd.read_parquet(tmp_path / "events.parquet"), 6)
    np.testing.assert_allclose(calm["weights"], weights, rtol=1e-4, atol=1e-5)
    assert calm["losses"][-1] < calm["losses"][0]
    table = pd.read_parquet(calm["scores"]).sort_values("at")
    np.testing.assert_allclose(table["score"], scores, rtol=1e-4, atol=1e-5)

    killed: list[psutil.Process] = []
    steps = []

    def kill() -> None:
        while len(steps) < 2:
            time.sleep(0.01)
        killed.append(executors()[0])
        killed[0].kill()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    again = spark_pipeline.run_pipeline(session, tmp_path, rounds=6, callbacks=[lambda *_: steps.append(1)])
    thread.join(60)
    assert len(killed) == 1
    assert not killed[0].is_running()
    assert again["weights"].tobytes() == calm["weights"].tobytes()
    pd.testing.assert_frame_equal(
        pd.read_parquet(again["scores"]).sort_values("at", ignore_index=True), table.reset_index(drop=True)
    )
