"""The drift of clients: their paths end where the run itself went, and their weighted mean is the mean's path."""

import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from workbench.errors import ProgramError
from workbench.federated.experiments import Experiment, Settings

pytestmark = pytest.mark.usefixtures("little_optimized")

SMALL = {"clients": 4, "participation": 1.0, "local_steps": 2, "rounds": 2, "alpha": 0.1}


def params_of(experiment: Experiment, state) -> np.ndarray:
    return np.asarray(ravel_pytree(experiment.algorithm.params_of(state))[0])


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    made = Experiment(Settings(**SMALL))
    made.run.start()
    return made


def test_mean_moves_as_far_as_the_run_did(experiment: Experiment) -> None:
    # A server rate of 1 takes the mean of the clients as it is, so that the next state lies where the mean ends.
    before = params_of(experiment, experiment._before[1])
    assert experiment.drift(1).moved == pytest.approx(
        np.linalg.norm(params_of(experiment, experiment.run.state) - before)
    )


def test_mean_is_the_weighted_mean_of_the_paths(experiment: Experiment) -> None:
    drift, weight = experiment.drift(0), experiment.batches(0)["weight"]
    np.testing.assert_allclose(np.einsum("c,cst->st", weight / weight.sum(), drift.paths), drift.mean, atol=1e-6)


def test_paths_begin_at_the_server(experiment: Experiment) -> None:
    drift = experiment.drift(0)
    assert drift.steps == (0, 1, 2)
    assert not drift.paths[:, 0].any()


def test_control_variates_are_those_of_the_run() -> None:
    made = Experiment(Settings(algorithm="SCAFFOLD", **SMALL))
    made.run.start()
    moved = params_of(made, made.run.state) - params_of(made, made._before[1])
    assert made.drift(1).moved == pytest.approx(np.linalg.norm(moved), rel=1e-5)


def test_a_round_whose_state_was_not_kept_is_refused(experiment: Experiment) -> None:
    with pytest.raises(ProgramError, match="kept: 0, 1"):
        experiment.drift(7)
