"""DP-FTRL's tree noise, and adaptive clipping at a quantile of the clients' norms."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from workbench._types import PyTree
from workbench.errors import check_settings, needs_library
from workbench.federated.algorithms._aggregate import Aggregator, squared_norm
from workbench.federated.algorithms._privacy import clip_to_norm
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, map_fn, reduce_sum


def ftrl_mean(
    clip: float, noise_multiplier: float, *, rounds: int, expected: float | None = None, seed: int = 0
) -> Aggregator:
    """Averages with noise from a binary tree over the rounds (DP-FTRL).

    The sum over rounds is private even if clients are not sampled at random. The noise of the first t rounds together
    is a sum of independent draws, one for each 1 in the binary form of t. This sum has at most log2(rounds) + 1 terms;
    with independent noise per round, it would have t terms. With `optax.sgd` as the server's optimizer, this is
    DP-FTRL. Sends as many bytes as a mean. All present clients have the same weight.

    Args:
        clip: The largest norm of one client's update.
        noise_multiplier: z, the standard deviation of one tree node's noise divided by `clip`.
        rounds: Number of rounds of a tree, which determines its depth. Later rounds start new trees; `ftrl_epsilon`
            still bounds ε for clients that join one round.
        expected: Number of clients in a round, by which the sum is divided. Default: all clients.
        seed: Seed for the noise in all rounds.

    Raises:
        ProgramError: if the clip is not positive, the multiplier is negative, or there are no rounds.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=2):
        ...     aggregator = ftrl_mean(1.0, 0.0, rounds=4)
        ...     update, _ = aggregator.combine(jnp.array([[3.0, 4.0], [0.0, 0.5]]), jnp.ones(2), aggregator.init(None))
        >>> [round(float(x), 2) for x in update]
        [0.3, 0.65]

    References:
        Kairouz et al., "Practical and Private (Deep) Learning Without Sampling or Shuffling", ICML 2021
        (arXiv 2103.00039), Algorithm 1 and appendix B (the tree).
    """
    check_settings(
        "ftrl_mean",
        (
            clip > 0 and math.isfinite(clip),
            f"clip={clip}",
            "One client changes a node of the tree by at most `clip`: pass a positive finite `clip`.",
        ),
        (noise_multiplier >= 0, f"noise_multiplier={noise_multiplier}", "`noise_multiplier` must be at least 0."),
        (rounds >= 1, f"rounds={rounds}", "The tree has one leaf per round: `rounds` must be at least 1."),
    )
    levels = rounds.bit_length()

    def combine(update: ClientParams, weight: Weights, round: jax.Array) -> tuple[Params, Any]:
        total, client_count = (
            _clipped_sum(update, weight, jnp.asarray(clip, jnp.float32)),
            float(expected or weight.shape[0]),
        )
        tree, place = round // rounds, round % rounds
        key = jax.random.key(seed)
        key = jax.lax.select(tree == 0, key, jax.random.fold_in(key, -tree))  # leaves have the numbers from 0
        after, before = (_tree_noise(key, at, levels, total) for at in (place + 1, place))

        def noisy(x: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
            return (x + noise_multiplier * clip * (new - old)) / client_count

        return jax.tree.map(noisy, total, after, before), round + 1

    return Aggregator("FTRL mean", lambda params: jnp.int32(0), combine)


def _tree_noise(key: jax.Array, finished: jax.Array, levels: int, like: object) -> PyTree[Array]:
    """Computes the noise of the first `finished` rounds, with one draw per tree node in the sum."""

    def of_leaf(x: jax.Array, number: int) -> jax.Array:
        total = jnp.zeros_like(x)
        for level in range(levels):
            node = finished >> level
            node_key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, number), level), node)
            drawn = jax.random.normal(node_key, x.shape, x.dtype)
            total = total + jnp.where((node & 1) == 1, drawn, jnp.zeros_like(drawn))
        return total

    leaves, structure = jax.tree.flatten(like)
    return structure.unflatten([of_leaf(leaf, number) for number, leaf in enumerate(leaves)])


def ftrl_epsilon(noise_multiplier: float, *, rounds: int, delta: float) -> float:
    """Computes an upper bound on ε for clients that join one round of `ftrl_mean`.

    The guarantee is (ε, δ)-differential privacy, computed by `dp-accounting` (extra `privacy`). Clients need not be
    sampled at random. If a client takes part k times, the noise needs k² times the variance.

    Args:
        noise_multiplier: z, as in `ftrl_mean`.
        rounds: Number of rounds. The tree has one leaf per round.
        delta: δ.

    Returns:
        An upper bound on ε, which is infinite without noise.

    Raises:
        ProgramError: if a number is out of range.
        MissingDependencyError: if `dp-accounting` is not installed.

    Example:
        >>> ftrl_epsilon(0.0, rounds=8, delta=1e-5)
        inf
    """
    check_settings(
        "ftrl_epsilon",
        (noise_multiplier >= 0, f"noise_multiplier={noise_multiplier}", "`noise_multiplier` must be at least 0."),
        (rounds >= 1, f"rounds={rounds}", "`rounds` must be at least 1."),
        (0 < delta < 1, f"delta={delta}", "`delta` is a probability: pass a number between 0 and 1, such as 1e-5."),
    )
    if noise_multiplier == 0:
        return math.inf
    with needs_library("dp-accounting", extra="privacy", needed_for="`ftrl_epsilon`"):
        import dp_accounting
        from dp_accounting.rdp import RdpAccountant
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(noise_multiplier, rounds))
    return float(accountant.get_epsilon(delta))


def adaptive_clip_mean(
    noise_multiplier: float,
    *,
    first_clip: float = 0.1,
    quantile: float = 0.5,
    learning_rate: float = 0.2,
    count_noise: float = 0.0,
    expected: float | None = None,
    seed: int = 0,
) -> Aggregator:
    """Averages with differential privacy; the clip follows a quantile of the clients' norms.

    Every client also sends one bit: whether its norm is at most the clip C. C is multiplied by exp(−η_C (share of such
    clients − quantile)). The state is `(round, C)`. All present clients have the same weight.

    Args:
        noise_multiplier: z for the updates: the standard deviation of their noise, divided by C.
        first_clip: C in the first round.
        quantile: γ, the long-run share of clients whose updates are not clipped.
        learning_rate: η_C, the learning rate of the clip.
        count_noise: Standard deviation of the noise on the number of unclipped clients, because this number is also
            private. The paper uses a twentieth of the clients in a round. For the combined guarantee, pass
            z₊ = (z⁻² + (2 b)⁻²)^(−1/2) to `epsilon`, where b is `count_noise`.
        expected: Number of clients in a round. Default: all clients.
        seed: Seed for the noise.

    Raises:
        ProgramError: if a number is out of range.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=2):
        ...     aggregator = adaptive_clip_mean(0.0, first_clip=1.0, learning_rate=1.0)
        ...     _, (_, clip) = aggregator.combine(jnp.array([0.5, 4.0]), jnp.ones(2), aggregator.init(None))
        >>> float(clip)  # half of the clients are not clipped, as requested
        1.0

    References:
        Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021 (arXiv 1905.03871),
        Algorithm 1 and theorem 1.
    """
    check_settings(
        "adaptive_clip_mean",
        (noise_multiplier >= 0, f"noise_multiplier={noise_multiplier}", "`noise_multiplier` must be at least 0."),
        (first_clip > 0, f"first_clip={first_clip}", "Pass a positive `first_clip`."),
        (
            0 < quantile < 1,
            f"quantile={quantile}",
            "`quantile` is the share of updates that are not clipped: pass a number between 0 and 1.",
        ),
        (count_noise >= 0, f"count_noise={count_noise}", "`count_noise` must be at least 0."),
        (learning_rate > 0, f"learning_rate={learning_rate}", "Pass a positive `learning_rate`."),
    )

    def combine(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
        round, clip = state
        client_count = float(expected or weight.shape[0])
        key = jax.random.fold_in(jax.random.key(seed), round)
        below = map_fn(_is_below, (update, weight, broadcast(clip)))
        total = _clipped_sum(update, weight, clip)
        leaves, structure = jax.tree.flatten(total)

        def noisy(x: jax.Array, number: int) -> jax.Array:
            noise = jax.random.normal(jax.random.fold_in(key, number + 1), x.shape, x.dtype)
            return (x + (noise_multiplier * clip).astype(x.dtype) * noise) / client_count

        mean = structure.unflatten([noisy(leaf, number) for number, leaf in enumerate(leaves)])
        counted = reduce_sum(below) + count_noise * jax.random.normal(jax.random.fold_in(key, 0))
        next_clip = clip * jnp.exp(-learning_rate * (counted / client_count - quantile))
        return mean, (round + 1, next_clip)

    return Aggregator("adaptive clip mean", lambda params: (jnp.int32(0), jnp.float32(first_clip)), combine)


def _is_below(row: object, weight: jax.Array, clip: jax.Array) -> jax.Array:
    return ((squared_norm(row).astype(clip.dtype) <= clip**2) & (weight > 0)).astype(clip.dtype)


def _clipped_sum(update: PyTree[Array], weight: jax.Array, clip: jax.Array) -> PyTree[Array]:
    def clipped(row: object, weight: jax.Array, limit: jax.Array) -> PyTree[Array]:
        entries = jax.tree.map(lambda x: jnp.where(weight > 0, x, jnp.zeros_like(x)), row)
        return clip_to_norm(entries, limit)

    return reduce_sum(map_fn(clipped, (update, weight, broadcast(clip))))
