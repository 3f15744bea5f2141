"""Asynchronous learning finds what least squares finds, and keeps its bounds."""

import threading

import launch_nodes as nodes
import numpy as np
import pytest
from launch_learning import TRUTH, act, client_data, fail_once_started, learn, train

from workbench.errors import ProgramError
from workbench.launch import ReplayNode, launch
from workbench.launch.asynchronous import actor_learner_program, asynchronous_fedavg_program, mixed

LONG = 120.0


@pytest.mark.parametrize("on", ["threads", "processes"])
def test_asynchronous_fedavg_finds_the_least_squares_solution(on):
    program, server = asynchronous_fedavg_program(train, np.zeros(3), client_data(4), rounds=20)
    with launch(program, on) as launched:
        launched.wait(LONG)
        found = launched.client(server).current()
    assert found["version"] == 80  # 4 clients, 20 rounds
    np.testing.assert_allclose(found["params"], TRUTH, atol=1e-3)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_client_is_further_ahead_than_the_bound_and_the_fast_one_uses_it(staleness):
    is_launched = threading.Event()

    def train_last(params, data):
        is_slow, examples = data
        if is_slow:  # its rounds end when another client has been as far ahead as it may be
            assert is_launched.wait(LONG)
            assert nodes.eventually(lambda: staleness in [entry["ahead"] for entry in client.history()], LONG)
        return train(params, examples)

    data = list(zip((False, False, True), client_data(3), strict=True))
    program, server = asynchronous_fedavg_program(train_last, np.zeros(3), data, rounds=8, staleness=staleness)
    with launch(program) as launched:
        client = launched.client(server)
        is_launched.set()
        launched.wait(LONG)
        history = client.history()
    assert max(entry["ahead"] for entry in history) == staleness
    # Between a client's pull and its push another one, at most `staleness` ahead then and behind before, can push at
    # most 2 * staleness + 1 times.
    assert max(entry["late"] for entry in history) <= 2 * (2 * staleness + 1)


def test_a_late_result_weighs_less():
    program, server = asynchronous_fedavg_program(
        train, np.zeros(3), client_data(2), rounds=6, mixing=0.8, exponent=1.0
    )
    with launch(program) as launched:
        launched.wait(LONG)
        history = launched.client(server).history()
    assert all(entry["weight"] == pytest.approx(0.8 / (1 + entry["late"])) for entry in history)


def test_clients_that_failed_are_not_waited_for():
    data = [*client_data(2), None]
    program, server = asynchronous_fedavg_program(fail_once_started, np.zeros(3), data, rounds=10, staleness=0)
    with launch(program, on_failure="continue") as launched:
        with pytest.raises(RuntimeError, match="clients/2"):
            launched.wait(LONG)
        found = launched.client(server).current()
    assert found["version"] == 20
    np.testing.assert_allclose(found["params"], TRUTH, atol=0.05)


@pytest.mark.parametrize(
    "options",
    [{"rounds": 0}, {"rounds": 1, "staleness": -1}, {"rounds": 1, "mixing": 0.0}],
    ids=["no rounds", "negative staleness", "no mixing"],
)
def test_impossible_asynchronous_programs_are_refused(options):
    with pytest.raises(ProgramError, match=f"`asynchronous_fedavg_program` received {[*options][-1]}="):
        asynchronous_fedavg_program(train, np.zeros(3), client_data(1), **options)


@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_actors_and_learner_find_the_least_squares_solution(sampling, on):
    table = ReplayNode(500, sampling=sampling, min_size=16)
    program, learner, replay = actor_learner_program(
        act, learn, np.zeros(3), actors=2, steps=200, batch=16, replay=table
    )
    with launch(program, on) as launched:
        launched.wait(LONG)
        found = launched.client(learner).current()
        counts = launched.client(replay).counts()
    np.testing.assert_allclose(found["params"], TRUTH, atol=0.02)
    assert (found["steps"], counts["sampled"]) == (200, 3200)


def test_learning_from_nobody_is_refused():
    with pytest.raises(ProgramError, match=r"received actors=0\."):
        actor_learner_program(act, learn, np.zeros(3), actors=0, steps=1, batch=1)


def test_parameters_of_any_nesting_are_mixed():
    assert mixed((1.0, {"a": [3.0]}), (3.0, {"a": [5.0]}), 0.5) == (2.0, {"a": [4.0]})
