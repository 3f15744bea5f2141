"""No result is wrong when tasks, answers and tables are damaged on the way, on Dask, Ray and Spark."""

import shutil

import pytest

from tests.oracles.chaos import run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize(("name", "library"), [("dask", "dask.distributed"), ("ray", "ray"), ("spark", "pyspark")])
def test_runs_on_a_cluster_are_right_or_end_in_an_error_that_says_why(name: str, library: str):
    pytest.importorskip(library)
    if name == "spark" and not shutil.which("java"):
        pytest.skip("no Java")
    counts = run(name, seed=0, seconds=600.0, passes=60, rate=0.05)
    assert counts["passes"] >= 60
    assert counts["errors"] > 0
    assert counts["wrong"] == counts["unclear"] == 0


def test_the_check_notices_an_engine_that_counts_nothing(monkeypatch: pytest.MonkeyPatch):
    """Without the checks of answers, damaged answers give wrong results."""
    pytest.importorskip("dask.distributed")
    monkeypatch.setattr("workbench.engines._remote.Reply.is_of", lambda *_: True)
    monkeypatch.setattr("tests.oracles.chaos.KINDS", ("outputs",))
    monkeypatch.setattr("tests.oracles.chaos.WEIGHTS", [1.0])
    assert run("dask", seed=0, seconds=600.0, passes=40, rate=0.1)["wrong"] > 0
