"""One agent learns the same wherever it runs."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dask_library import dask_cluster
from scipy import stats

from examples.agents import run_agent
from examples.deep_q import _project, deep_q_agent
from examples.soft_actor_critic import draw, soft_actor_critic_agent
from workbench.errors import MissingDependencyError, ProgramError
from workbench.launch import DaskEngine, RayEngine

pytestmark = pytest.mark.usefixtures("little_optimized")

OPTIONS = {"steps": 1400, "batch": 64, "actors": 2, "samples_per_insert": 4.0, "evaluate_every": 100}


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
    """Whether the curve begins at 0, and six or more greedy policies of the last eight points find the way."""
    values = [value for _, value in run.curve]
    return values[0] == 0.0 and sum(values[-8:]) >= 6


PLACES = ["here", "threads", *(pytest.param(name, marks=pytest.mark.slow) for name in ("processes", "dask", "ray"))]


@pytest.mark.parametrize("place", PLACES, indirect=True)
def test_agent_finds_the_way_over_the_lake(agent, place):
    run = run_agent(agent, place, **OPTIONS)
    assert [step for step, _ in run.curve] == list(range(0, 1401, 100))
    assert found_the_way(run), run.curve
    ahead = 2 * 64 / 4 + 2 * 16  # two batches, and what two actors have begun
    assert 0 <= run.counts["inserted"] - 1400 * 64 / 4 <= ahead


def test_agent_that_learns_distributions_finds_the_way_over_the_lake():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    agent = deep_q_agent(
        "FrozenLake-v1", is_slippery=False, exploration=0.5, discount=0.95, learning_rate=1e-2, episodes=1, longest=30,
        support=(0.0, 1.0, 21),
    )  # fmt: skip
    run = run_agent(agent, **{**OPTIONS, "steps": 2000})
    assert found_the_way(run), run.curve


def test_projection_of_a_distribution_is_the_papers_loop():
    """Bellemare et al., 2017, Algorithm 1, with floors and ceilings."""
    random = np.random.default_rng(0)
    lowest, highest, atoms = -1.0, 2.0, 7
    shares = random.dirichlet(np.ones(atoms), 5)
    reward, discount = random.normal(size=5), np.array([0.9, 0.0, 0.5, 0.99, 1.0])
    expected = np.zeros((5, atoms))
    step = (highest - lowest) / (atoms - 1)
    for row in range(5):
        for j in range(atoms):
            moved = np.clip(reward[row] + discount[row] * (lowest + j * step), lowest, highest)
            place = (moved - lowest) / step
            low, high = int(np.floor(place)), int(np.ceil(place))
            expected[row, low] += shares[row, j] * (1.0 if low == high else high - place)
            expected[row, high] += shares[row, j] * (0.0 if low == high else place - low)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = _project(jnp.asarray(shares), reward, discount, (lowest, highest, atoms))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_density_of_a_drawn_action_is_that_of_a_squashed_normal():
    """By the change of variables, with SciPy's normal density and the derivative of tanh by JAX."""
    layer = lambda w, b: {"w": jnp.asarray(w, "float32"), "b": jnp.asarray(b, "float32")}  # noqa: E731
    actor = {"0": layer(np.zeros((3, 2)), [[0.3, -0.5]])}  # mean 0.3, logarithm of the scale -0.5
    actions, densities = draw(actor, jnp.ones((50, 3)), jax.random.key(0))
    before = np.arctanh(np.asarray(actions[:, 0], float))
    slope = jax.vmap(jax.grad(jnp.tanh))(jnp.asarray(before))
    expected = stats.norm.logpdf(before, 0.3, np.exp(-0.5)) - np.log(slope)
    np.testing.assert_allclose(densities, expected, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def pendulum():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    return soft_actor_critic_agent("Pendulum-v1", reward_scale=0.1, learning_rate=2e-3, longest=200)


CONTINUOUS = {"batch": 64, "samples_per_insert": 64.0, "min_size": 500, "evaluate_every": 1000}


def test_soft_actor_critic_runs_here_are_the_same_with_the_same_seed(pendulum):
    short = {**CONTINUOUS, "steps": 5, "min_size": 64, "evaluate_every": 5}
    first, second = (run_agent(pendulum, **short) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)
    assert first.curve == second.curve


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "processes", "dask", "ray"], indirect=True)
def test_soft_actor_critic_raises_the_pendulum(pendulum, place):
    run = run_agent(pendulum, place, steps=4000, actors=1, **CONTINUOUS)
    assert run.curve[0][1] < -900
    assert max(value for _, value in run.curve) > -400, run.curve


def test_learner_on_several_devices_learns_the_same():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    short = {**CONTINUOUS, "steps": 5, "min_size": 64, "evaluate_every": 5}
    agents = [soft_actor_critic_agent("Pendulum-v1", longest=5, devices=n) for n in (1, 4)]
    one, four = (run_agent(agent, "here", **short).params for agent in agents)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), one, four)
    random = np.random.default_rng(0)
    columns = [random.normal(size=(64, n)).astype(np.float32) for n in (3, 1, 3)]
    scalars = random.normal(size=(2, 64)).astype(np.float32)
    items = list(zip(columns[0], columns[1], scalars[0], columns[2], scalars[1], strict=True))
    state, _ = agents[1].learn(agents[1].state, items, [1.0] * 64)
    assert len(state.params["temperature"].sharding.device_set) == 4


def test_environments_without_continuous_actions_are_refused():
    pytest.importorskip("gymnasium", reason="needs the extra `rl`")
    with pytest.raises(ProgramError, match=r"CartPole-v1.*bounded box actions"):
        soft_actor_critic_agent("CartPole-v1")


@pytest.mark.parametrize("place", PLACES[2:], indirect=True)
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
