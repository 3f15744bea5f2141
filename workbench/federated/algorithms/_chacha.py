"""The ChaCha20 key stream as JAX operations, so that masks are generated on the device."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def chacha20_words(
    key: UInt32[Array, " 8"], words: int, *, nonce: UInt32[Array, ""] | int = 0
) -> UInt32[Array, " words"]:
    """Computes the first words of a key's stream.

    Args:
        key: 256 bits as little-endian words. Use each key and nonce pair for one purpose only.
        words: Number of words.
        nonce: First word of the nonce; the other two are 0.

    Example:
        >>> hex(int(chacha20_words(jnp.zeros(8, "uint32"), 4)[0]))
        '0xade0b876'

    References:
        Nir and Langley, "ChaCha20 and Poly1305 for IETF Protocols", RFC 8439, section 2.3.
    """
    blocks = -(-words // 16)
    counters = jnp.arange(blocks, dtype=jnp.uint32)
    zeros = jnp.zeros_like(counters)
    constants = [jnp.full_like(counters, c) for c in _CONSTANTS]
    start = [*constants, *(jnp.broadcast_to(key[i], counters.shape) for i in range(8)), counters]
    start += [zeros + jnp.asarray(nonce, jnp.uint32), zeros, zeros]

    def double_round(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        words_ = list(state)
        for places in (*_QUARTERS, *_DIAGONALS):
            a, b, c, d = (words_[i] for i in places)
            a, d = _step(a, b, d, 16)
            c, b = _step(c, d, b, 12)
            a, d = _step(a, b, d, 8)
            c, b = _step(c, d, b, 7)
            for place, value in zip(places, (a, b, c, d), strict=True):
                words_[place] = value
        return tuple(words_), None

    end, _ = jax.lax.scan(double_round, tuple(start), None, length=10)
    return jnp.stack([a + b for a, b in zip(start, end, strict=True)], axis=1).reshape(-1)[:words]


def _step(x: Array, y: Array, z: Array, bits: int) -> tuple[Array, Array]:
    x = x + y
    z = z ^ x
    return x, (z << jnp.uint32(bits)) | (z >> jnp.uint32(32 - bits))
