"""Least squares for the tests of asynchronous learning, importable by spawned processes."""

import numpy as np

TRUTH = np.array([1.0, -2.0, 0.5])


def client_data(clients, seed=0):
    random = np.random.default_rng(seed)
    inputs = [random.normal(size=(40, 3)) for _ in range(clients)]
    return [(x, x @ TRUTH) for x in inputs]  # all clients agree, so the best parameters are the truth


def train(params, data):
    inputs, targets = data
    for _ in range(5):
        params = params - 0.2 * inputs.T @ (inputs @ params - targets) / len(targets)
    return params


def fail_once_started(params, data):
    if data is None:
        raise RuntimeError("no data")
    return train(params, data)


def act(params, random):
    x = random.normal(size=3)
    return (x, x @ TRUTH), 1.0 + abs(x @ (params - TRUTH))


def learn(params, items, probabilities):
    inputs, targets = (np.stack(column) for column in zip(*items, strict=True))
    errors = inputs @ params - targets
    return params - 0.1 * inputs.T @ errors / len(items), 1.0 + np.abs(errors)
