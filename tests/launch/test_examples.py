"""The ready programs of `examples.services`, on threads and processes."""

import collections

import numpy as np
import pytest

from examples.services import evolution, map_reduce, parameter_server
from workbench.launch import launch

GOAL = np.array([1.0, -2.0, 0.5])
WHERE = pytest.mark.parametrize("where", ["threads", pytest.param("processes", marks=pytest.mark.slow)])


def gradient(params, part):
    inputs, targets = part
    return inputs.T @ (inputs @ params - targets) / len(targets)


def words(text):
    return [(word, 1) for word in text.split()]


def reward(params):
    return -float(np.sum((params - GOAL) ** 2))


def finished(program, where):
    launched = launch(program, where)
    launched.wait(60)
    return launched


@WHERE
def test_parameter_server_finds_the_parameters_that_all_workers_agree_on(where):
    random = np.random.default_rng(0)
    parts = [(x, x @ GOAL) for x in random.normal(size=(3, 40, 3))]
    program, server = parameter_server(np.zeros(3), gradient, parts, steps=40, rate=0.2)
    with finished(program, where) as launched:
        params, updates = launched.client(server).result()
    assert updates == 3 * 40
    np.testing.assert_allclose(params, GOAL, atol=1e-2)


@WHERE
def test_map_reduce_counts_words(where):
    texts = ["a rose is a rose", "is a rose", "a name is a name"]
    program, reducers = map_reduce(words, sum, texts, reducers=2)
    with finished(program, where) as launched:
        found = [launched.client(reducer).result() for reducer in reducers]
    assert found[0] | found[1] == collections.Counter(" ".join(texts).split())
    assert not found[0].keys() & found[1].keys()


@WHERE
def test_evolution_climbs_to_the_largest_reward(where):
    program, learner = evolution(reward, np.zeros(3), evaluators=4, steps=60)
    with finished(program, where) as launched:
        np.testing.assert_allclose(launched.client(learner).result(), GOAL, atol=0.3)
