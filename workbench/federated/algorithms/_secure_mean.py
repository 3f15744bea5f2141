"""Secure aggregation as a reduction: the server learns only the sum."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int32, UInt32

from workbench.federated.algorithms._aggregate import Aggregator
from workbench.federated.algorithms._chacha import chacha20_words
from workbench.federated.algorithms._discrete_gaussian import discrete_gaussian, squares_exceed
from workbench.federated.algorithms._privacy import clip_to_norm
from workbench.federated.algorithms._secure_noise import NoiseGrid, noise_grid
from workbench.federated.algorithms._secure_session import Masks
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import map_fn, reduce_sum


def masked_sum(
    values: Int32[Array, " clients values"], masks: Masks, present: Float[Array, " clients"]
) -> UInt32[Array, " values"]:
    """Sums the present clients' integers modulo 2³²; the server sees only masked words.

    The only communication is one `reduce_sum` of words. Every client adds its pairwise masks and its own mask to its
    integers, and the server removes the recovered masks. Each client expands one mask per other client.

    Args:
        values: One row of integers per client.
        masks: Masks for this round, from `SecureSession.masks`, for the same `present` clients.
        present: Above 0 for clients whose results arrive.

    Returns:
        The sum modulo 2³². If a client's words were masked with different masks, the sum is random.

    References:
        Bonawitz et al., CCS 2017, section 4.
    """
    clients, size = values.shape
    numbers = jnp.arange(clients, dtype=jnp.int32)
    masked = map_fn(_masked, (values, masks.pairs, masks.own, numbers, present))
    total = reduce_sum(masked)
    return total - _left(masks, size)


def _masked(row: Array, pairs: Array, own_seed: Array, number: Array, present: Array) -> UInt32[Array, " values"]:
    """Masks one client's words; returns 0 for a client whose result does not arrive."""
    words = jax.lax.bitcast_convert_type(row, jnp.uint32) + chacha20_words(own_seed, row.shape[0])
    peers = jnp.arange(pairs.shape[0], dtype=jnp.int32)

    def add(words: Array, peer: tuple[Array, Array]) -> tuple[Array, None]:
        return words + _signed(chacha20_words(peer[0], row.shape[0]), number, peer[1]), None

    words, _ = jax.lax.scan(add, words, (pairs, peers))
    return jnp.where(present > 0, words, jnp.zeros_like(words))


def _signed(mask: Array, of: Array, peer: Array) -> Array:
    """Returns a pair's mask with its sign: the client with the smaller number adds it, and the other subtracts it."""
    return jnp.where(of == peer, jnp.zeros_like(mask), jnp.where(of < peer, mask, jnp.zeros_like(mask) - mask))


def _left(masks: Masks, size: int) -> UInt32[Array, " values"]:
    """Sums survivors' own masks and the pairwise masks shared with dropped clients."""
    survived = jnp.asarray(masks.survived)
    clients = survived.shape[0]
    numbers = jnp.arange(clients, dtype=jnp.int32)

    def add_own(total: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        seed, alive = item
        return total + jax.lax.cond(
            alive, lambda: chacha20_words(seed, size), lambda: jnp.zeros(size, jnp.uint32)
        ), None

    def of_pair(total: Array, pair: tuple[Array, Array, Array]) -> tuple[Array, None]:
        seed, dropped, alive = pair
        there = ~survived[dropped] & survived[alive]
        return total + jax.lax.cond(
            there, lambda: _signed(chacha20_words(seed, size), alive, dropped), lambda: jnp.zeros(size, jnp.uint32)
        ), None

    total, _ = jax.lax.scan(add_own, jnp.zeros(size, jnp.uint32), (jnp.asarray(masks.revealed_own), survived))
    dropped, alive = (jnp.repeat(numbers, clients), jnp.tile(numbers, clients))
    pairs = jnp.asarray(masks.revealed_pairs).reshape(clients * clients, 8)
    total, _ = jax.lax.scan(of_pair, total, (pairs, dropped, alive))
    return total


def _count(masks: Masks) -> Array:
    """Counts the survivors at the server, without computing on the clients' rows."""
    count, _ = jax.lax.scan(
        lambda count, alive: (count + alive.astype(jnp.int32), None), jnp.int32(0), jnp.asarray(masks.survived)
    )
    return count


def secure_mean(
    clients: int, *, clip: float, bits: int = 16, noise_multiplier: float = 0.0, threshold: int | None = None
) -> Aggregator:
    """Averages by secure aggregation, with optional distributed noise.

    A client clips its update to norm `clip`, converts it to integers of at most `bits` bits, adds its part of the
    noise, and masks the words. The server sees only masked words and their sum. The state contains the masks. Before
    every round, get new masks from a `SecureSession`: `state._replace(aggregation=session.masks(present))`. The masks
    determine which clients are present. Every round needs new masks; without them the mean is NaN. The mean is also NaN
    if the words do not match the masks, for example if they are from an earlier round. The metrics of the algorithm's
    round (its loss) are averaged unmasked.

    Without noise, all present clients with weight above 0 have the same weight, and an additional masked word counts
    them. With noise, the number of these clients would also have to stay secret. The sum is therefore divided by the
    number of present clients, and clients with weight 0 add zeros. Clients whose update is not finite are treated as
    clients with weight 0.

    A client's noise is a discrete Gaussian, drawn by integer arithmetic from that client's secret in `Masks`. Only the
    client knows the secret, which is new in each round. The noise of `threshold` clients together has the standard
    deviation `noise_multiplier * clip`; more clients add more noise. `secure_epsilon` computes the privacy guarantee.

    Args:
        clients: Number of clients.
        clip: The largest norm of one client's update.
        bits: Number of bits of the largest value, without the sign. With noise, the resolution is between `bits - 1`
            and `bits` bits.
        noise_multiplier: Standard deviation of the sum's noise, divided by `clip`, if `threshold` clients remain; 0 for
            no noise.
        threshold: The session's threshold; required with noise.

    Raises:
        ProgramError: if the sum does not fit into 32 bits, if a client's noise is coarser than its integers, or if a
            number is out of range.

    Example:
        >>> secure_mean(64, clip=4.0, bits=20).name  # of 32 bits, 6 are for the sum of 64 clients
        'secure mean of 20 bits'

    References:
        Bonawitz et al., CCS 2017; Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation", ICML 2021 (arXiv 2102.06387), without rotation and with rounding to the
        nearest integer.
    """
    grid = noise_grid(clients, clip=clip, bits=bits, noise_multiplier=noise_multiplier, threshold=threshold)

    def combine(update: ClientParams, weight: Weights, masks: Masks) -> tuple[Params, Any]:
        template = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), update)
        unravel = ravel_pytree(template)[1]
        words = map_fn(lambda row, weight, secret: _encode(row, weight, secret, grid), (update, weight, masks.noise))
        arrives = jnp.asarray(masks.present).astype(jnp.float32)
        total = jax.lax.bitcast_convert_type(masked_sum(words, masks, arrives), jnp.int32)
        survivors = _count(masks)
        present, counted = total[-2], total[-1]
        came = present if grid.is_noisy else counted
        mean = total[:-2].astype(jnp.float32) * grid.unit / jnp.maximum(came, 1).astype(jnp.float32)
        fits = (survivors > 0) & (present == survivors) & (counted >= 0) & (counted <= present)
        spent = jax.tree.map(lambda x: jnp.zeros_like(jnp.asarray(x)), masks)  # never mask twice
        return unravel(jnp.where(fits, mean, jnp.full_like(mean, jnp.nan))), spent

    def init(params: Params) -> Masks:
        zeros = jnp.zeros((clients, clients, 8), jnp.uint32)
        none_dropped = jnp.zeros(clients, bool)
        return Masks(zeros, zeros[0], zeros[0], none_dropped, zeros[0], zeros, none_dropped)  # pyright: ignore[reportArgumentType]

    return Aggregator(f"secure mean of {bits} bits", init, combine)


def _encode(row: object, weight: Array, secret: Array, grid: NoiseGrid) -> Int32[Array, " words"]:
    """Encodes one client's integers and presence and, without noise, whether its update is used."""
    single = jax.tree.map(lambda x: x.astype(jnp.float32), row)  # a norm in lower precision would be too inaccurate
    flat = ravel_pytree(clip_to_norm(single, grid.clip))[0]
    counts = (weight > 0) & jnp.isfinite(flat).all()
    # Use `where`, not a product: a client without data may have computed NaN.
    scaled = jnp.where(counts, jnp.round(flat / grid.unit), jnp.zeros_like(flat))
    words = jnp.clip(scaled, -grid.largest, grid.largest).astype(jnp.int32)
    ones = jnp.ones((), jnp.int32)
    if not grid.is_noisy:
        return jnp.concatenate([words, jnp.stack([ones, counts.astype(jnp.int32)])])
    # Floating-point clipping may leave a slightly larger norm. Check the integers, because `secure_epsilon` relies on
    # them.
    words = jnp.where(squares_exceed(words, grid.most_squared(words.shape[0])), jnp.zeros_like(words), words)
    words = words + discrete_gaussian(secret, words.shape[0], grid.log2_deviation)
    return jnp.concatenate([words, jnp.stack([ones, jnp.zeros_like(ones)])])
