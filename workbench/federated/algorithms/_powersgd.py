"""PowerSGD: low-rank compression of updates with error feedback."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, wide
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, map_fn, reduce_weighted_mean


class PowerSgdState(NamedTuple):
    """The right factors from the previous round, and each client's residual (`[clients, ...]`)."""

    factors: list[jax.Array]
    memory: PyTree[Array]


def power_sgd_mean(rank: int, *, seed: int = 0) -> Aggregator:
    """Averages low-rank updates; for each matrix, clients send two thin matrices.

    Every round runs one step of power iteration, starting from the previous round's factors. Clients send `M Q`,
    receive an orthonormal basis P of the mean of `M Q`, and send `Mᵀ P`. A leaf `[n, ...]` is treated as a matrix with
    n rows; leaves smaller than their factors (vectors, biases) are sent unchanged. The difference between a client's
    matrix and the low-rank mean is added to the client's next update (error feedback).

    Args:
        rank: r; a matrix `[n, m]` costs r (n + m) numbers instead of n m.
        seed: Seed for the initial factors.

    Raises:
        ProgramError: if the rank is not positive.

    Example:
        >>> with program(clients=2):
        ...     aggregator = power_sgd_mean(1)
        ...     rows = jnp.stack([jnp.ones((4, 4)), 3 * jnp.ones((4, 4))])  # their mean has rank 1
        ...     update, _ = aggregator.combine(rows, jnp.ones(2), aggregator.init(rows[0]))
        >>> bool(jnp.allclose(update, 2.0))
        True

    References:
        Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", NeurIPS 2019 (arXiv 1905.13727), Algorithms 1 and 2.
    """
    if rank < 1:
        message = (
            f"`power_sgd_mean` received rank={rank}. The rank is the number of columns of each factor: pass rank=1 or "
            "more."
        )
        raise ProgramError(message)

    def is_low(shape: tuple[int, ...]) -> bool:
        rows, columns = _matrix(shape)
        return rank * (rows + columns) < rows * columns

    def init(params: Params) -> PowerSgdState:
        key = jax.random.key(seed)
        leaves = jax.tree.leaves(params)
        factors = [
            jax.random.normal(jax.random.fold_in(key, number), (_matrix(leaf.shape)[1], rank), leaf.dtype)
            for number, leaf in enumerate(leaves)
            if is_low(leaf.shape)
        ]
        return PowerSgdState(factors, broadcast(jax.tree.map(jnp.zeros_like, params)))

    def combine(update: ClientParams, weight: Weights, state: PowerSgdState) -> tuple[Params, PowerSgdState]:
        target = map_fn(lambda row, residual: jax.tree.map(jnp.add, row, residual), (update, state.memory))
        leaves, structure = jax.tree.flatten(target)
        factors, means, new = iter(state.factors), [], []
        for leaf in leaves:
            if not is_low(leaf.shape[1:]):
                means.append(reduce_weighted_mean(leaf, weight))
                continue
            shape = _matrix(leaf.shape[1:])
            left = map_fn(lambda x, q, shape=shape: x.reshape(shape) @ q, (leaf, broadcast(next(factors))))
            basis = jnp.linalg.qr(wide(reduce_weighted_mean(left, weight)))[0].astype(leaf.dtype)
            right = map_fn(lambda x, p, shape=shape: x.reshape(shape).T @ p, (leaf, broadcast(basis)))
            factor = reduce_weighted_mean(right, weight)
            means.append((basis @ factor.T).reshape(leaf.shape[1:]))
            new.append(factor)
        mean = structure.unflatten(means)

        def left_over(row: object, residual: PyTree[Array], average: PyTree[Array], weight: jax.Array) -> PyTree[Array]:
            return jax.tree.map(
                lambda x, k, m: jnp.where(weight > 0, x - m if is_low(x.shape) else jnp.zeros_like(x), k),
                row,
                residual,
                average,
            )

        memory = map_fn(left_over, (target, state.memory, broadcast(mean), weight))
        return mean, PowerSgdState(new, memory)

    return Aggregator(f"PowerSGD rank {rank}", init, combine, per_client=True)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    if not shape:
        return 1, 1
    columns = 1
    for size in shape[1:]:
        columns *= size
    return shape[0], columns
