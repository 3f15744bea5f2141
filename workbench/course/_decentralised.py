"""Exercises of notebook 28: gossip on a graph, and training without a server."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from workbench.course._grading import called, exercise, expect_number, expect_values, several, wrong

_PATH = np.array([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]], float)  # client 1 is in the middle
_TREE = np.zeros((5, 5))
for _i, _j in ((0, 1), (1, 2), (1, 3), (3, 4)):  # the edge from 3 to 4 has a larger weight than the others
    _TREE[_i, _j] = _TREE[_j, _i] = 1
_RING = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], float)


@exercise("28.1", "Metropolis weights of a graph")
def metropolis_weights(answer: object) -> str:
    for edges, expected in (
        (_PATH, [[0.75, 0.25, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 0.25, 0.75, 0], [0, 0.25, 0, 0.75]]),
        (_RING, (_RING + np.eye(4)) / 3),
        (
            _TREE,
            [
                [3 / 4, 1 / 4, 0, 0, 0],
                [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0],
                [0, 1 / 4, 3 / 4, 0, 0],
                [0, 1 / 4, 0, 5 / 12, 1 / 3],
                [0, 0, 0, 1 / 3, 2 / 3],
            ],
        ),
    ):
        count = len(edges)
        matrix = np.asarray(called(answer, edges.copy()))
        if matrix.shape != (count, count):
            wrong(f"W has shape {matrix.shape}; {count} clients need ({count}, {count}).")
        if np.any(np.abs(matrix[(edges == 0) & ~np.eye(count, dtype=bool)]) > 1e-9):
            wrong("W has a nonzero entry for two clients that are not joined by an edge and must not communicate.")
        if not np.allclose(matrix.sum(1), 1):
            wrong("the rows of W should sum to one: the diagonal is one minus the sum of the edge weights.")
        if not np.allclose(matrix.sum(0), 1):
            wrong("the columns of W should sum to one: use the larger degree of the two clients of an edge.")
        expect_values(
            matrix, np.array(expected), "An edge has the weight 1 / (1 + the larger degree of its two clients)."
        )
    return "each client needs only its own degree and those of its neighbours."


@exercise("28.2", "rounds of gossip on a ring of 100 clients")
def rounds_on_a_ring(answer: object) -> str:
    rate = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / 100)
    hint = "Find the smallest integer t with λ^t ≤ 0.01; logarithms help."
    expect_number(answer, math.ceil(math.log(0.01) / math.log(rate)), hint, rtol=1e-4)
    return "thousands of rounds: long rings agree slowly."


@exercise("28.3", "gradient tracking on a graph")
def gradient_tracking(answer: object) -> str:
    wishes = jnp.array([[4.0, 0.0], [0.0, 1.0], [-1.0, 3.0], [9.0, 2.0]])
    curvature = jnp.array([[1.0], [2.0], [0.5], [1.5]])
    mixing, start = jnp.asarray((_RING + np.eye(4)) / 3, jnp.float32), jnp.zeros((4, 2))

    def gradients(x: jax.Array) -> jax.Array:
        return curvature * (x - wishes)

    x, y, expected = start, gradients(start), {0: start}
    for step in range(1, 301):
        moved = mixing @ (x - 0.1 * y)
        y = mixing @ (y + gradients(moved) - gradients(x))
        x = expected[step] = moved
    optimum = np.asarray((curvature * wishes).sum(0) / curvature.sum())
    result = np.asarray(called(answer, start, gradients, mixing, 0.1, 300))
    if result.shape != (4, 2):
        wrong(f"the result has shape {result.shape}; expected (4, 2), one row for each client.")
    hint = f"After 300 rounds every row should be {optimum.round(3)}, where the mean gradient is 0."
    expect_values(result, np.broadcast_to(optimum, (4, 2)), hint, atol=1e-2)
    alone = np.asarray(called(answer, start, gradients, jnp.eye(4), 0.1, 300))
    expect_values(
        alone, wishes, "With W = I there is no communication, and each client should find its own optimum.", atol=1e-2
    )
    for rounds in (1, 2):
        hint = f"After round {rounds} the rows do not follow the two equations: in both equations, mix after the step."
        expect_values(called(answer, start, gradients, mixing, 0.1, rounds), expected[rounds], hint, atol=1e-4)
    return "with a constant learning rate, all clients are at the optimum of the mean loss."


@exercise("28.4", "bytes sent to average on a ring, on a torus, and with a server")
def bytes_of_an_average(answer: object) -> str:
    names = ("ring", "torus", "server")
    numbers = several(answer, 3, "bytes on the ring, on the torus, with a server")
    for name, value, messages in zip(names, numbers, (89 * 2 * 16, 10 * 2 * 32, 2 * 16), strict=True):
        hint = (
            "Two vectors cross each edge in each round."
            if name != "server"
            else "One vector up and one down for each client."
        )
        expect_number(value, messages * 4096, hint, what=f"the number for the {name}", rtol=5e-3)
    return "the server sends the fewest bytes, but all clients depend on it."
