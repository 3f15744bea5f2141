"""Experiments from settings: they learn, they are what their code says, and impossible ones are told."""

import contextlib
import io
from typing import Any

import matplotlib
import numpy as np
import pytest

from workbench.errors import ProgramError
from workbench.federated.experiments import Experiment, Settings, write_code
from workbench.federated.experiments._settings import ALGORITHMS, COMPRESSIONS

pytestmark = pytest.mark.usefixtures("little_optimized")

SMALL: dict[str, Any] = {"clients": 8, "rounds": 3, "local_steps": 2, "dropout": 0.25}


def _metric(history: Any, name: str) -> list[Any]:
    return [record.metrics[name] for record in history]


@pytest.mark.parametrize(
    "changes",
    [
        *({"algorithm": name} for name in ALGORITHMS),
        *({"compression": name, "algorithm": "FedProx"} for name in COMPRESSIONS[1:]),
        {"noise": 0.5, "compression": "top 10 %", "alpha": float("inf"), "seed": 3},
    ],
    ids=str,
)
def test_code_does_what_the_experiment_does(changes: dict[str, Any]) -> None:
    settings = Settings(**{**SMALL, **changes})
    ours = Experiment(settings).run.start().history
    matplotlib.use("agg")
    cell: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(write_code(settings), "cell", "exec"), cell)
    theirs = cell["run"].history
    for name in ("test accuracy", "loss", "clients"):
        assert _metric(ours, name) == _metric(theirs, name)
    np.testing.assert_array_equal(_metric(ours, "client loss"), _metric(theirs, "client loss"))


def test_it_learns_and_counts_what_is_sent() -> None:
    experiment = Experiment(Settings(clients=16, rounds=25, participation=1.0))
    history = experiment.run.start().history
    assert _metric(history, "test accuracy")[-1] > 0.9
    # 64 × 32 + 32 + 32 × 10 numbers down; up the same, with a weight and the two metrics.
    assert experiment.sent_down_bytes == 4 * 2400
    assert 4 * 2400 < experiment.sent_up_bytes < 4 * 2400 + 64
    assert _metric(history, "sent up (MiB)")[-1] == pytest.approx(25 * 16 * experiment.sent_up_bytes / 2**20)


def test_compression_sends_less() -> None:
    sent = [Experiment(Settings(**SMALL, compression=name)).sent_up_bytes for name in ("none", "top 10 %", "top 1 %")]
    assert sent[0] > 4 * sent[1] > 8 * sent[2]


def test_noise_has_an_epsilon_and_its_absence_none() -> None:
    assert Experiment(Settings(**SMALL)).epsilon() is None
    loud, quiet = (Experiment(Settings(**SMALL, noise=noise)).epsilon() for noise in (2.0, 0.7))
    assert loud is not None
    assert quiet is not None
    assert 0 < loud < quiet


def test_who_answers_is_drawn() -> None:
    experiment = Experiment(Settings(clients=64, participation=0.5, dropout=0.5))
    answered = [(experiment.batches(round)["weight"] > 0).sum() for round in range(200)]
    assert np.mean(answered) == pytest.approx(16, abs=1)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"algorithm": "FedSVRG"}, r"algorithm='FedSVRG' is not one of FedAvg"),
        ({"clients": 1.5, "dropout": 1.0}, r"clients=1.5 is not a whole number from 2 to 256; dropout=1.0 is not"),
        ({"algorithm": "SCAFFOLD", "noise": 1.0}, r"SCAFFOLD sends two values"),
        ({"compression": "8 bits", "noise": 1.0}, r"with 8 bits, all clients share one scale"),
    ],
    ids=["algorithm", "ranges", "scaffold", "bits"],
)
def test_impossible_settings_are_all_reported(changes: dict[str, Any], reported: str) -> None:
    with pytest.raises(ProgramError, match=reported):
        Settings(**changes)
