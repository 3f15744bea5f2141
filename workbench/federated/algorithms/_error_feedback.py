"""Means of compressed updates; with error feedback, a client adds its compression error to its next update."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator, gather_rows, of_present, wide
from workbench.primitives import broadcast, map_fn, program, reduce_weighted_mean


class Compressor(NamedTuple):
    """Encodes a client's update in fewer bytes and decodes it at the server.

    Both functions are written in JAX for one client. The key differs for every client and round. The client and the
    server both know the key, so random draws need not be sent.

    Attributes:
        name: Name of the compressor.
        encode: `encode(update, key)` returns the message, a pytree of arrays.
        decode: `decode(message, form, key)` returns an update with the shapes and dtypes of `form`.
    """

    name: str
    encode: Callable[[Any, jax.Array], Any]
    decode: Callable[[Any, Any, jax.Array], Any]


class FeedbackState(NamedTuple):
    """Each client's residual, `[clients, ...]` (empty without feedback), and the number of rounds so far."""

    memory: PyTree[Array]
    round: jax.Array


def compressed_mean(compressor: Compressor, *, memory: bool = True, seed: int = 0) -> Aggregator:
    """Averages compressed updates; with error feedback, clients add the compression error to their next update.

    Client i sends C(uᵢ + eᵢ) and keeps eᵢ ← uᵢ + eᵢ − C(uᵢ + eᵢ). Every client sends its message once, and the server
    reads and averages the messages one after another. Messages are not summed in transit, so with several devices each
    device receives all messages. `top_k_mean`, `quantized_mean` and `power_sgd_mean` send sums and are therefore
    cheaper in this case. Derivatives treat compression as the identity.

    Args:
        compressor: A compressor, such as `top_k(...)`, `random_k(...)`, `scaled_sign()`, `round_to_bits(...)`,
            `low_rank(...)` or your own. Training converges if the compressor is a contraction, which means that
            E ‖x − C(x)‖² ≤ (1 − δ) ‖x‖² with δ > 0.
        memory: Whether clients keep the compression error (error feedback). Without error feedback, training may not
            converge.
        seed: Seed for the compressor's random draws.

    Returns:
        The aggregator. Absent clients keep their memory.

    Example:
        >>> with program(clients=2):
        ...     aggregator = compressed_mean(top_k(0.5))
        ...     state = aggregator.init(jnp.zeros(2))
        ...     update, state = aggregator.combine(jnp.array([[4.0, 1.0], [0.5, 2.0]]), jnp.ones(2), state)
        >>> update.tolist(), state.memory.tolist()
        ([2.0, 1.0], [[0.0, 1.0], [0.5, 0.0]])

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019
        (arXiv 1901.09847), Algorithm 2, and section 3 for cases without memory that do not converge; Seide et al.,
        "1-Bit Stochastic Gradient Descent", Interspeech 2014.
    """

    def init(params: PyTree[Array]) -> FeedbackState:
        return FeedbackState(broadcast(jax.tree.map(jnp.zeros_like, params)) if memory else (), jnp.int32(0))

    def combine(update: PyTree[Array], weight: jax.Array, state: FeedbackState) -> tuple[Any, FeedbackState]:
        key = jax.random.fold_in(jax.random.key(seed), state.round)
        update, weight = of_present(update, weight)
        target = map_fn(_add, (update, state.memory)) if memory else update
        mean, residual = _exchange(compressor, key, target, weight)
        next_memory = map_fn(_left_over, (residual, state.memory, weight)) if memory else ()
        return mean, FeedbackState(next_memory, state.round + 1)

    name = f"{compressor.name} with error feedback" if memory else compressor.name
    return Aggregator(name, init, combine, per_client=memory)


def _add(row: object, residual: PyTree[Array]) -> PyTree[Array]:
    return jax.tree.map(jnp.add, row, residual)


def _left_over(error: PyTree[Array], memory: PyTree[Array], weight: jax.Array) -> PyTree[Array]:
    return jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), error, memory)


def _exchange(compressor: Compressor, key: jax.Array, target: PyTree[Array], weight: jax.Array) -> tuple[Any, Any]:
    """Returns the mean of decoded messages, and each client's compression error."""
    clients = weight.shape[0]
    form = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), target)

    @jax.custom_jvp
    def exchanged(target: PyTree[Array], weight: jax.Array, key: jax.Array) -> tuple[Any, Any]:  # a traced key, too
        def send(row: object, number: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            client_key = jax.random.fold_in(key, number)
            message = compressor.encode(row, client_key)
            return message, jax.tree.map(jnp.subtract, row, compressor.decode(message, form, client_key))

        def decode_next(total: object, item: tuple[PyTree[Array], jax.Array, jax.Array]) -> tuple[PyTree[Array], None]:
            message, weight, number = item
            row = compressor.decode(message, form, jax.random.fold_in(key, number))
            return jax.tree.map(lambda t, x: t + weight.astype(x.dtype) * x, total, row), None

        with program(clients=clients):
            numbers = jnp.arange(clients, dtype=jnp.int32)
            messages, residual = map_fn(send, (target, numbers, broadcast(key)))
            messages, weights = gather_rows((messages, weight), clients)
        zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), form)
        total, _ = jax.lax.scan(decode_next, zeros, (messages, weights, numbers))
        total_weight = jnp.maximum(weights.sum(), 1e-30)
        return jax.tree.map(lambda t: t / total_weight.astype(t.dtype), total), residual

    @exchanged.defjvp
    def _as_if_exact(primals: PyTree[Array], tangents: PyTree[Array]) -> PyTree[Array]:
        with program(clients=clients):  # differentiation may run after the program's block has ended
            outputs = exchanged(*primals)
            _, slope = jax.jvp(reduce_weighted_mean, primals[:2], tangents[:2])
        return outputs, (slope, jax.tree.map(jnp.zeros_like, outputs[1]))

    return exchanged(target, weight, key)


def top_k(fraction: float) -> Compressor:
    """Sends the largest entries as values and positions; δ is at least `fraction`.

    Args:
        fraction: Share of the entries to send (rounded up), above 0 and up to 1.

    Raises:
        ProgramError: if `fraction` is out of range.

    Example:
        >>> values, positions = top_k(0.5).encode(jnp.array([1.0, -3.0, 2.0, 0.0]), jax.random.key(0))
        >>> values.tolist(), positions.tolist()
        ([-3.0, 2.0], [1, 2])

    References:
        Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018 (arXiv 1809.07599), Definition 2.1.
    """
    _check_fraction("top_k", fraction)

    def encode(row: object, key: jax.Array) -> PyTree[Array]:
        flat = ravel_pytree(row)[0]
        positions = jax.lax.top_k(jnp.abs(flat), math.ceil(fraction * flat.size))[1]
        return flat[positions], positions

    def decode(message: PyTree[Array], form: object, key: jax.Array) -> PyTree[Array]:
        values, positions = message
        size, unravel = _flat(form)
        return unravel(jnp.zeros(size, values.dtype).at[positions].set(values))

    return Compressor(f"top {fraction:.3g}", encode, decode)


def random_k(fraction: float) -> Compressor:
    """Sends only the values of entries at random positions; δ is `fraction`.

    Args:
        fraction: Share of the entries to send (rounded up), above 0 and up to 1.

    Raises:
        ProgramError: if `fraction` is out of range.

    Example:
        >>> key, row = jax.random.key(0), jnp.array([1.0, -3.0, 2.0, 0.0])
        >>> message = random_k(0.5).encode(row, key)
        >>> message.shape, int((random_k(0.5).decode(message, row, key) != row).sum() <= 2)
        ((2,), 1)

    References:
        Stich, Cordonnier and Jaggi, NeurIPS 2018 (arXiv 1809.07599), Definition 2.1.
    """
    _check_fraction("random_k", fraction)

    def positions_of(size: int, key: jax.Array) -> jax.Array:
        return jax.random.permutation(key, size)[: math.ceil(fraction * size)]

    def encode(row: object, key: jax.Array) -> PyTree[Array]:
        flat = ravel_pytree(row)[0]
        return flat[positions_of(flat.size, key)]

    def decode(message: PyTree[Array], form: object, key: jax.Array) -> PyTree[Array]:
        size, unravel = _flat(form)
        return unravel(jnp.zeros(size, message.dtype).at[positions_of(size, key)].set(message))

    return Compressor(f"random {fraction:.3g}", encode, decode)


def scaled_sign() -> Compressor:
    """Sends ‖x‖₁ / d · sign(x) as one bit per entry and one number; δ is ‖x‖₁² / (d ‖x‖₂²).

    Example:
        >>> row = jnp.array([3.0, -1.0, 2.0])
        >>> scaled_sign().decode(scaled_sign().encode(row, jax.random.key(0)), row, jax.random.key(0)).tolist()
        [2.0, -2.0, 2.0]

    References:
        Karimireddy et al., ICML 2019 (arXiv 1901.09847), section 4 and Lemma 8; Seide et al., Interspeech 2014.
    """

    def encode(row: object, key: jax.Array) -> PyTree[Array]:
        flat = ravel_pytree(row)[0]
        return jnp.abs(flat).mean(), _pack((flat >= 0).astype(jnp.uint32), 1)

    def decode(message: PyTree[Array], form: object, key: jax.Array) -> PyTree[Array]:
        scale, words = message
        size, unravel = _flat(form)
        return unravel(jnp.where(_unpack(words, 1, size) == 1, scale, -scale))

    return Compressor("sign", encode, decode)


def round_to_bits(bits: int) -> Compressor:
    """Rounds every entry to an integer of a few bits, scaled by the largest entry.

    Args:
        bits: Number of bits per value, 2 to 16.

    Raises:
        ProgramError: if `bits` is out of range.

    Example:
        >>> row = jnp.array([4.0, 1.0, -3.0])
        >>> coder = round_to_bits(2)  # −1, 0 or 1 times the largest
        >>> coder.decode(coder.encode(row, jax.random.key(0)), row, jax.random.key(0)).tolist()
        [4.0, 0.0, -4.0]

    References:
        Wu et al., "Error Compensated Quantized SGD and its Applications to Large-scale Distributed Optimization",
        ICML 2018 (arXiv 1806.08054).
    """
    if not 2 <= bits <= 16:
        message = (
            f"`round_to_bits` received bits={bits}. A number needs a sign bit and at least one magnitude bit: pass 2 "
            "to 16 bits."
        )
        raise ProgramError(message)
    levels = 2 ** (bits - 1) - 1

    def encode(row: object, key: jax.Array) -> PyTree[Array]:
        flat = ravel_pytree(row)[0]
        scale = jnp.abs(flat).max()
        integers = jnp.round(jnp.where(scale > 0, flat / scale, 0) * levels)
        return scale, _pack((integers + levels).astype(jnp.uint32), bits)

    def decode(message: PyTree[Array], form: object, key: jax.Array) -> PyTree[Array]:
        scale, words = message
        size, unravel = _flat(form)
        integers = _unpack(words, bits, size).astype(jnp.int32) - levels
        return unravel(integers.astype(scale.dtype) * scale / levels)

    return Compressor(f"{bits} bits", encode, decode)


def low_rank(rank: int) -> Compressor:
    """Factors each matrix into two thin matrices with one step of subspace iteration.

    A leaf `[n, ...]` is treated as a matrix with n rows. Leaves smaller than their factors are sent unchanged. The
    result is an orthogonal projection of the columns onto r directions. Unlike `power_sgd_mean`, `low_rank` does not
    start from the previous round's factors and does not sum factors in transit.

    Args:
        rank: r; a matrix `[n, m]` costs r (n + m) numbers instead of n m.

    Raises:
        ProgramError: if the rank is not positive.

    Example:
        >>> row, key = jnp.outer(jnp.arange(4.0), jnp.ones(5)), jax.random.key(0)
        >>> bool(jnp.allclose(low_rank(1).decode(low_rank(1).encode(row, key), row, key), row, atol=1e-5))
        True

    References:
        Vogels, Karimireddy and Jaggi, "PowerSGD", NeurIPS 2019 (arXiv 1905.13727), Algorithm 1.
    """
    if rank < 1:
        message = (
            f"`low_rank` received rank={rank}. The rank is the number of columns of each factor: pass rank=1 or more."
        )
        raise ProgramError(message)

    def matrix(shape: tuple[int, ...]) -> tuple[int, int] | None:
        rows, columns = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
        return (rows, columns) if rank * (rows + columns) < rows * columns else None

    def encode(row: object, key: jax.Array) -> PyTree[Array]:
        def of_leaf(number: int, leaf: jax.Array) -> PyTree[Array]:
            if (shape := matrix(leaf.shape)) is None:
                return leaf
            matrix_form = leaf.reshape(shape)
            start = jax.random.normal(jax.random.fold_in(key, number), (shape[1], rank), leaf.dtype)
            basis = jnp.linalg.qr(wide(matrix_form @ start))[0].astype(leaf.dtype)
            return basis, matrix_form.T @ basis

        return [of_leaf(number, leaf) for number, leaf in enumerate(jax.tree.leaves(row))]

    def decode(message: PyTree[Array], form: object, key: jax.Array) -> PyTree[Array]:
        leaves, structure = jax.tree.flatten(form)
        parts = [
            part if matrix(like.shape) is None else (part[0] @ part[1].T).reshape(like.shape)
            for part, like in zip(message, leaves, strict=True)
        ]
        return structure.unflatten(parts)

    return Compressor(f"rank {rank}", encode, decode)


def _check_fraction(name: str, fraction: float) -> None:
    if not 0 < fraction <= 1:
        message = (
            f"`{name}` received fraction={fraction}, but a client sends at least one and at most all of its entries. "
            "`fraction` is the fraction of the entries that a client sends: pass a number above 0 and up to 1, such "
            "as 0.05."
        )
        raise ProgramError(message)


def _flat(form: object) -> tuple[int, Callable[[jax.Array], Any]]:
    flat, unravel = ravel_pytree(jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), form))
    return flat.size, unravel


def _pack(numbers: jax.Array, bits: int) -> jax.Array:
    """Packs as many numbers of a few bits as fit into each 32-bit word."""
    lanes = 32 // bits
    padded = jnp.pad(numbers, (0, -numbers.size % lanes)).reshape(-1, lanes)
    return (padded << _shifts(bits)[None, :]).sum(-1, dtype=jnp.uint32)


def _unpack(words: jax.Array, bits: int, size: int) -> jax.Array:
    mask = jnp.uint32(2**bits - 1)
    return ((words[:, None] >> _shifts(bits)[None, :]) & mask).reshape(-1)[:size]


def _shifts(bits: int) -> jax.Array:
    return jnp.arange(32 // bits, dtype=jnp.uint32) * jnp.uint32(bits)
