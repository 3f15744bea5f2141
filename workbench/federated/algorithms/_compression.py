"""Compressed means that send only the largest entries, or all entries in a few bits."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, of_present, wide
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import broadcast, map_fn, program, reduce_by_key, reduce_max, reduce_sum


def top_k_mean(fraction: float, *, memory: bool = True) -> Aggregator:
    """Averages each client's largest entries, sent as position-value pairs.

    A pair needs twice as many bytes as a value, so with a fraction of 0.1 clients send a fifth of the bytes. The plan
    shows the pairs, because the reduction is a `reduce_by_key` whose keys are the positions.

    Args:
        fraction: Share of all parameters to send (rounded up), above 0 and up to 1.
        memory: Whether a client adds the unsent part to its next update (error feedback).

    Raises:
        ProgramError: if `fraction` is out of range.

    Example:
        >>> with program(clients=2):
        ...     aggregator = top_k_mean(0.5)
        ...     memory = aggregator.init(jnp.zeros(2))
        ...     update, memory = aggregator.combine(jnp.array([[4.0, 1.0], [0.5, 2.0]]), jnp.ones(2), memory)
        >>> update.tolist(), memory.tolist()
        ([2.0, 1.0], [[0.0, 1.0], [0.5, 0.0]])

    References:
        Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018 (arXiv 1809.07599), Algorithm 1.
    """
    if not 0 < fraction <= 1:
        message = (
            f"`top_k_mean` was given fraction={fraction}, but a client sends at least one and at most all of its "
            "entries. `fraction` is the fraction of the entries that a client sends: pass a number above 0 and up to "
            "1, such as 0.05."
        )
        raise ProgramError(message)

    def largest(
        update: PyTree[Array], weight: jax.Array, residual: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        flat = ravel_pytree(update)[0]
        target = flat + residual if memory else flat
        _, positions = jax.lax.top_k(jnp.abs(target), math.ceil(fraction * target.size))
        new_residual = jnp.where(weight > 0, target.at[positions].set(0), residual) if memory else residual
        return target[positions] * weight.astype(target.dtype), positions, new_residual

    def combine(update: ClientParams, weight: Weights, residual: PyTree[Array]) -> tuple[Params, Any]:
        size, unravel = _flat_form(update)
        update, weight = of_present(update, weight)
        values, positions, residual = map_fn(largest, (update, weight, residual))
        total = reduce_by_key(values, positions, size) / jnp.maximum(reduce_sum(weight), 1e-30).astype(values.dtype)
        return unravel(total), residual

    def init(params: Params) -> PyTree[Array]:
        flat = ravel_pytree(params)[0]
        return broadcast(jnp.zeros_like(flat if memory else flat[:0]))

    return Aggregator(f"top {fraction:.3g}", init, combine, bounded=not memory, per_client=memory)


def _flat_form(rows: PyTree[Array]) -> tuple[int, Any]:
    """Returns the length of one client's flattened row, and the function that restores its structure."""
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), rows))
    return flat.size, unravel


def quantized_mean(bits: int = 8, *, seed: int = 0) -> Aggregator:
    """Averages updates rounded to a few bits per entry, with several entries per word.

    Packed words are added directly, so an all-reduce also moves packed words. Each number therefore needs room for the
    sum over all clients: `bits + log2(clients)` bits. The scale of an array is its largest entry at any client, found
    with a `reduce_max` of a single number. Rounding is stochastic, so that the mean is unbiased. Derivatives treat
    rounding as the identity.

    Args:
        bits: Number of bits per value, 2 to 16.
        seed: Seed for the rounding in all rounds.

    Raises:
        ProgramError: if `bits` is out of range, or the sum over this many clients does not fit into 32 bits.

    Example:
        >>> with program(clients=2):
        ...     aggregator = quantized_mean(bits=2)  # −1, 0 or 1 times the largest
        ...     update, _ = aggregator.combine(jnp.array([[4.0, 0.0], [-4.0, 4.0]]), jnp.ones(2), aggregator.init(None))
        >>> update.tolist()
        [0.0, 2.0]

    References:
        Alistarh et al., "QSGD", NeurIPS 2017 (arXiv 1610.02132), equation 1; Mishchenko et al., "IntSGD", ICLR 2022
        (arXiv 2102.08374), Algorithm 1: one scale for all clients, so that the integers can be added.
    """
    if not 2 <= bits <= 16:
        message = (
            f"`quantized_mean` was given bits={bits}. A number needs a sign bit and a magnitude bit, and the sum over "
            "all clients must fit into 32 bits: pass 2 to 16 bits."
        )
        raise ProgramError(message)

    def combine(update: ClientParams, weight: Weights, round: jax.Array) -> tuple[Params, Any]:
        update, weight = of_present(update, weight)
        total_weight = jnp.maximum(reduce_sum(weight), 1e-30)
        shares = map_fn(
            lambda row, w: jax.tree.map(lambda x: wide(x) * (w / total_weight).astype(wide(x).dtype), row),
            (update, weight),
        )
        key = jax.random.fold_in(jax.random.key(seed), round)
        mean = _integer_sum(bits, shares, key)
        return jax.tree.map(lambda x, like: x.astype(like.dtype), mean, update), round + 1

    return Aggregator(f"{bits}-bit mean", lambda params: jnp.int32(0), combine)


def _integer_sum(bits: int, shares: PyTree[Array], key: jax.Array) -> PyTree[Array]:
    clients = jax.tree.leaves(shares)[0].shape[0]
    room = math.ceil(math.log2(clients * 2 * _levels(bits) + 1))
    if room > 32:
        message = (
            f"`quantized_mean` was given bits={bits} for {clients} clients, whose sum needs {room} bits. The sum must "
            f"fit into 32 bits: use at most {bits - room + 32} bits, or fewer clients."
        )
        raise ProgramError(message)

    @jax.custom_jvp
    def rounded(shares: PyTree[Array], key: jax.Array) -> PyTree[Array]:  # a captured key would end with its trace
        return _sum_of_words(bits, room, shares, key)

    @rounded.defjvp
    def _as_if_exact(primals: PyTree[Array], tangents: PyTree[Array]) -> PyTree[Array]:
        with program(clients=clients):  # differentiation may run after the program's block has ended
            return rounded(*primals), reduce_sum(tangents[0])

    return rounded(shares, key)


def _levels(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _sum_of_words(bits: int, room: int, shares: PyTree[Array], key: jax.Array) -> PyTree[Array]:
    levels, lanes = _levels(bits), 32 // room
    shares = jax.lax.stop_gradient(shares)
    clients = jax.tree.leaves(shares)[0].shape[0]
    shifts = jnp.arange(lanes, dtype=jnp.uint32) * jnp.uint32(room)

    def pack(row: object, scale: object, number: jax.Array, key: jax.Array) -> jax.Array:
        client_key = jax.random.fold_in(key, number)
        scaled = jax.tree.map(lambda x, s: jnp.where(s > 0, x / s, 0) * levels, row, scale)
        flat = ravel_pytree(scaled)[0]
        drawn = jnp.floor(flat + jax.random.uniform(client_key, flat.shape, flat.dtype))
        words = (jnp.clip(drawn, -levels, levels) + levels).astype(jnp.uint32)
        padded = jnp.pad(words, (0, -words.size % lanes)).reshape(-1, lanes)
        return (padded << shifts[None, :]).sum(-1, dtype=jnp.uint32)

    with program(clients=clients):
        largest = reduce_max(map_fn(lambda row: jax.tree.map(lambda x: jnp.abs(x).max(initial=0), row), (shares,)))
        numbers = jnp.arange(clients, dtype=jnp.int32)
        words = reduce_sum(map_fn(pack, (shares, broadcast(largest), numbers, broadcast(key))))
    size, unravel = _flat_form(shares)
    mask = jnp.uint32(2**room - 1)
    sums = ((words[:, None] >> shifts[None, :]) & mask).reshape(-1)[:size]
    values = (sums.astype(jnp.int32) - clients * levels).astype(jnp.float32) / levels
    return jax.tree.map(lambda x, s: x * s, unravel(values), largest)
