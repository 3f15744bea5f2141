"""Secure aggregation as a reduction: the server adds masked words, and learns the sum alone."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int32, UInt32

from workbench.errors import ProgramError, needs_library
from workbench.federated.algorithms._aggregate import Aggregator
from workbench.federated.algorithms._chacha import chacha20_words
from workbench.federated.algorithms._privacy import clip_to_norm
from workbench.federated.algorithms._secure_session import Masks
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, map_fn, reduce_sum

_TAILS = 12  # standard deviations of noise that fit next to the sum


def masked_sum(
    values: Int32[Array, " clients values"], masks: Masks, present: Float[Array, " clients"]
) -> UInt32[Array, " values"]:
    """The sum of the present clients' integers modulo 2³², of which the server sees masked words only.

    Communicates one `reduce_sum` of words: every client adds the masks of its pairs and its own one to its integers,
    and the server removes what it has recovered. Each client expands one mask per other client.

    Args:
        values: One row of integers per client.
        masks: Of this round, from `SecureSession.masks`; `present` must be those for whom they were revealed.
        present: Above 0 for clients whose results arrive.

    Returns:
        The sum modulo 2³². Words of clients that are masked otherwise than `masks` say make it random.

    References:
        Bonawitz et al., CCS 2017, section 4.
    """
    clients, size = values.shape
    numbers = jnp.arange(clients, dtype=jnp.int32)
    masked = map_fn(_masked, (values, masks.pairs, masks.own, numbers, present))
    total = reduce_sum(masked)
    return total - _left(masks, size)


def _masked(row: Array, pairs: Array, own: Array, number: Array, present: Array) -> UInt32[Array, " values"]:
    """One client's words; 0 of a client whose result does not arrive."""
    words = jax.lax.bitcast_convert_type(row, jnp.uint32) + chacha20_words(own, row.shape[0])
    others = jnp.arange(pairs.shape[0], dtype=jnp.int32)

    def add(words: Array, other: tuple[Array, Array]) -> tuple[Array, None]:
        return words + _signed(chacha20_words(other[0], row.shape[0]), number, other[1]), None

    words, _ = jax.lax.scan(add, words, (pairs, others))
    return jnp.where(present > 0, words, jnp.zeros_like(words))


def _signed(mask: Array, of: Array, other: Array) -> Array:
    """The mask of a pair as one of them adds it: the smaller number adds, the larger subtracts."""
    return jnp.where(of == other, jnp.zeros_like(mask), jnp.where(of < other, mask, jnp.zeros_like(mask) - mask))


def _left(masks: Masks, size: int) -> UInt32[Array, " values"]:
    """The masks in the sum, from revealed seeds: own ones of survivors, and those shared with clients that dropped."""
    survived = jnp.asarray(masks.survived)
    clients = survived.shape[0]
    numbers = jnp.arange(clients, dtype=jnp.int32)

    def own(total: Array, each: tuple[Array, Array]) -> tuple[Array, None]:
        seed, alive = each
        return total + jax.lax.cond(
            alive, lambda: chacha20_words(seed, size), lambda: jnp.zeros(size, jnp.uint32)
        ), None

    def of_pair(total: Array, pair: tuple[Array, Array, Array]) -> tuple[Array, None]:
        seed, dropped, alive = pair
        there = ~survived[dropped] & survived[alive]
        return total + jax.lax.cond(
            there,
            lambda: _signed(chacha20_words(seed, size), alive, dropped),
            lambda: jnp.zeros(size, jnp.uint32),
        ), None

    total, _ = jax.lax.scan(own, jnp.zeros(size, jnp.uint32), (jnp.asarray(masks.revealed_own), survived))
    dropped, alive = (jnp.repeat(numbers, clients), jnp.tile(numbers, clients))
    pairs = jnp.asarray(masks.revealed_pairs).reshape(clients * clients, 8)
    total, _ = jax.lax.scan(of_pair, total, (pairs, dropped, alive))
    return total


def secure_mean(
    clients: int, *, clip: float, bits: int = 16, noise_multiplier: float = 0.0, threshold: int | None = None,
    seed: int = 0,
) -> Aggregator:  # fmt: skip
    """A mean of which the server sees no client's update, only masked words and their sum; with distributed noise.

    A client clips its update to norm `clip`, writes it as integers of `clip / 2 ** bits`, adds its part of the noise,
    and masks the words. The state holds the masks: set it again before every round by `SecureSession.masks(present)`,
    `state._replace(aggregation=...)`. Who is present is what the masks say; of them, all of weight above 0 count alike,
    and one more masked word says how many they are. A round uses its masks up: another one without new masks gives NaN,
    and so does a first one without any. Metrics of the algorithm's round (its loss) are averaged in clear.

    The noise is Skellam: the difference of two Poisson numbers, of which sums are Skellam again, so that the sum of
    `threshold` clients already holds all that `skellam_epsilon` counts.

    Args:
        clients: How many.
        clip: The largest norm of one client's update.
        bits: Of the largest number, without the sign.
        noise_multiplier: Standard deviation of the sum's noise over `clip`, if `threshold` clients stay; 0 for none.
        threshold: That of the session; needed for noise.
        seed: Decides the noise.

    Raises:
        ProgramError: if the sum does not fit into 32 bits, or a number is out of its range.

    Example:
        >>> secure_mean(64, clip=4.0, bits=20).name  # of 32 bits, 6 are for the sum of 64 clients
        'secure mean of 20 bits'

    References:
        Bonawitz et al., CCS 2017; Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated
        Learning", NeurIPS 2021 (arXiv 2110.04995), Algorithm 1 without rotation.
    """
    scale = 2.0**bits / clip if clip > 0 else math.nan
    spread = noise_multiplier * clip * scale
    least = clients if threshold is None else threshold
    needs_threshold = noise_multiplier > 0 and threshold is None
    fits = clients * 2**bits + _TAILS * spread * math.sqrt(clients / max(least, 1)) < 2**31
    if not (clients >= 2 and clip > 0 and bits >= 1 and noise_multiplier >= 0 and fits) or needs_threshold:
        message = (
            f"`secure_mean` received clients={clients}, clip={clip}, bits={bits}, noise_multiplier={noise_multiplier} "
            f"and threshold={threshold}. The sum of all clients and its noise must fit into 31 bits, and noise is "
            "split among the clients that certainly stay: pass fewer bits, and the session's threshold with noise."
        )
        raise ProgramError(message)

    def encode(row: object, number: jax.Array, weight: jax.Array, key: jax.Array) -> jax.Array:
        counts = (weight > 0).astype(jnp.int32)
        flat = ravel_pytree(clip_to_norm(row, clip))[0].astype(jnp.float32)
        # Not a product: what a client without data computed may be NaN.
        words = jnp.where(counts > 0, jnp.round(flat * scale).astype(jnp.int32), jnp.zeros(flat.shape, jnp.int32))
        if noise_multiplier > 0:
            up, down = jax.random.split(jax.random.fold_in(key, number))
            rate = spread**2 / least / 2
            words = words + jax.random.poisson(up, rate, words.shape) - jax.random.poisson(down, rate, words.shape)
        return jnp.append(words, counts)

    def combine(update: ClientParams, weight: Weights, masks: Masks) -> tuple[Params, Any]:
        one = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), update)
        unravel = ravel_pytree(one)[1]
        # Fresh in every round, as the masks are: no two rounds share a seed of a client.
        key = jax.random.fold_in(jax.random.key(seed), jnp.asarray(masks.revealed_own)[0, 0])
        numbers = jnp.arange(clients, dtype=jnp.int32)
        words = map_fn(encode, (update, numbers, weight, broadcast(key)))
        survived = jnp.asarray(masks.survived)
        total = jax.lax.bitcast_convert_type(masked_sum(words, masks, survived.astype(jnp.float32)), jnp.int32)
        came = jnp.maximum(total[-1], 1).astype(jnp.float32)
        mean = total[:-1].astype(jnp.float32) / scale / came
        spent = jax.tree.map(lambda x: jnp.zeros_like(jnp.asarray(x)), masks)  # twice the same mask would unmask
        return unravel(jnp.where(survived.any(), mean, jnp.full_like(mean, jnp.nan))), spent

    def init(params: Params) -> Masks:
        zeros = jnp.zeros((clients, clients, 8), jnp.uint32)
        return Masks(zeros, zeros[0], zeros[0], zeros, jnp.zeros(clients, bool))  # pyright: ignore[reportArgumentType]

    return Aggregator(f"secure mean of {bits} bits", init, combine)


def skellam_epsilon(
    noise_multiplier: float, *, clip: float, bits: int, values: int, rounds: int, delta: float
) -> float:
    """How much `secure_mean` with noise leaks about one client: ε of (ε, δ)-differential privacy, an upper bound.

    Rényi divergences of the Skellam mechanism, composed over rounds; every client is counted in every round, so a
    smaller participation only helps. The neighbouring data set holds one client more.

    Args:
        noise_multiplier: As in `secure_mean`.
        clip: Likewise.
        bits: Likewise.
        values: Numbers in an update; rounding lengthens it by up to half a unit each.
        rounds: How many.
        delta: δ.

    Returns:
        ε; infinite without noise and 0 without rounds.

    Raises:
        ProgramError: if a number is out of its range.
        MissingDependencyError: if `dp-accounting` is not installed.

    Example:
        >>> skellam_epsilon(0.0, clip=1.0, bits=16, values=10, rounds=5, delta=1e-5)  # without noise
        inf

    References:
        Agarwal, Kairouz and Liu, NeurIPS 2021 (arXiv 2110.04995), Theorem 3.5; Mironov, "Rényi Differential Privacy",
        CSF 2017.
    """
    if noise_multiplier < 0 or clip <= 0 or bits < 1 or values < 1 or rounds < 0 or not 0 < delta < 1:
        message = (
            f"`skellam_epsilon` received noise_multiplier={noise_multiplier}, clip={clip}, bits={bits}, "
            f"values={values}, rounds={rounds} and delta={delta}. Noise and rounds are not negative, the others "
            "positive, and delta is a chance: pass 1e-5 or less for delta."
        )
        raise ProgramError(message)
    if noise_multiplier == 0 or rounds == 0:
        return 0.0 if rounds == 0 else math.inf
    with needs_library("dp-accounting", extra="privacy", needed_for="`skellam_epsilon`"):
        from dp_accounting.rdp import compute_epsilon
    longest = 2.0**bits + math.sqrt(values) / 2
    summed = min(longest * math.sqrt(values), longest**2)
    variance = (noise_multiplier * 2.0**bits) ** 2
    orders = [*range(2, 65), 80, 96, 128, 192, 256, 512]
    divergences = [rounds * skellam_divergence(order, longest, summed, variance) for order in orders]
    return float(compute_epsilon(orders, divergences, delta)[0])


def skellam_divergence(order: float, l2: float, l1: float, variance: float) -> float:
    """Rényi divergence of one sum with Skellam noise, for whole orders above 1, an upper bound.

    Args:
        order: α.
        l2: Largest Euclidean norm of one client's integers.
        l1: Largest sum of their absolute values.
        variance: Of the noise of each number.
    """
    more = min(((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance))
    return order * l2**2 / (2 * variance) + more
