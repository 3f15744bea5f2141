"""One agent learns the same wherever it runs."""

import sys

import numpy as np
import pytest
from dask_library import dask_cluster

from examples.agents import run_agent
from examples.deep_q import deep_q_agent
from workbench.errors import MissingDependencyError, ProgramError
from workbench.launch import DaskEngine, RayEngine

OPTIONS = {"steps": 700, "batch": 64, "actors": 2, "samples_per_insert": 4.0, "evaluate_every": 100}


@pytest.fixture
def agent():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    return deep_q_agent(
        "FrozenLake-v1", is_slippery=False, exploration=0.5, discount=0.95, learning_rate=3e-3, episodes=1, longest=30
    )


@pytest.fixture(scope="module")
def dask_client():
    with dask_cluster(2, 6) as (_, client):
        yield client


@pytest.fixture
def place(request):
    """What `run_agent` gets as `on`."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return RayEngine()
    return DaskEngine(request.getfixturevalue("dask_client")) if request.param == "dask" else request.param


def found_the_way(run):
    """Whether the curve begins at 0, and the greedy policies of the last three points all find the way."""
    return (run.curve[0][1], *(value for _, value in run.curve[-3:])) == (0.0, 1.0, 1.0, 1.0)


PLACES = ["here", "threads", *(pytest.param(name, marks=pytest.mark.slow) for name in ("processes", "dask", "ray"))]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_agent_finds_the_way_over_the_lake(agent, place):
    run = run_agent(agent, place, **OPTIONS)
    assert [step for step, _ in run.curve] == list(range(0, 701, 100))
    assert found_the_way(run), run.curve
    ahead = 2 * 64 / 4 + 2 * 16  # two batches, and what two actors have begun
    assert 0 <= run.counts["inserted"] - 700 * 64 / 4 <= ahead


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_agent_with_a_network_of_flax_finds_the_way_over_the_lake(place):
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    networks = pytest.importorskip("launch_networks", reason="needs the extra `course`")
    agent = deep_q_agent(
        "FrozenLake-v1", networks.Values, is_slippery=False, exploration=0.5, discount=0.95, learning_rate=3e-3,
        episodes=1, longest=30,
    )  # fmt: skip
    run = run_agent(agent, place, **OPTIONS)
    assert found_the_way(run), run.curve
    assert sorted(run.params) == ["hidden", "out"]


def test_network_with_other_state_than_parameters_is_refused():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    networks = pytest.importorskip("launch_networks", reason="needs the extra `course`")
    with pytest.raises(ProgramError, match=r"network with \d+ variables besides its parameters"):
        deep_q_agent("FrozenLake-v1", networks.Dropping)


def test_runs_here_are_the_same_with_the_same_seed(agent):
    short = {**OPTIONS, "steps": 20, "evaluate_every": 10}
    first, second, other = (run_agent(agent, **short, seed=seed) for seed in (0, 0, 5))
    np.testing.assert_array_equal(first.params["in"], second.params["in"])
    assert (first.params["in"] != other.params["in"]).any()


def test_actors_here_insert_no_more_than_the_learner_needs(agent):
    run = run_agent(agent, **{**OPTIONS, "steps": 20})
    assert run.counts["inserted"] <= 20 * 64 / 4 + 100 + 16


def test_impossible_runs_are_refused(agent):
    with pytest.raises(ProgramError, match="actors=0"):
        run_agent(agent, steps=1, actors=0)


def test_environments_without_discrete_actions_are_refused():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    with pytest.raises(ProgramError, match="Pendulum-v1"):
        deep_q_agent("Pendulum-v1")


def test_missing_gymnasium_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingDependencyError, match=r"mapreduce-workbench\[rl\]"):
        deep_q_agent("FrozenLake-v1")
