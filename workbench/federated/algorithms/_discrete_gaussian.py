"""Discrete Gaussian integers from a secret key stream, using only integer arithmetic."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from workbench.federated.algorithms._chacha import chacha20_words

MOST_LOG2_DEVIATION = 26
"""Largest exponent of a standard deviation: of 64 random bits, two integers use 26 each, a uniform choice uses 12."""

_PER_LANE = 64  # integers per lane; enough that all lanes finish at nearly the same step
_STEPS_PER_INTEGER, _MORE_STEPS = 32, 256  # exceeded with probability 1e-11; the mean is 15 steps per integer
_CHOICES = 2**12
_GEOMETRIC, _THIN, _DRAW, _LINEAR, _SQUARE = range(5)  # phases of one attempt, in this order


class _Lanes(NamedTuple):
    """One sampling attempt per lane. The candidate is ±(v · 2^k + u)."""

    step: Array
    made: Array  # integers that the lane has finished
    phase: Array
    v: Array
    u: Array
    negative: Array
    left: Array  # trials of this phase that must still succeed
    term: Array  # term of the alternating series that decides one trial
    out: Array


def discrete_gaussian(secret: UInt32[Array, " 8"], size: int, log2_deviation: int) -> Int32[Array, " size"]:
    """Draws integers x with probability proportional to exp(-x² / (2 · 4^k)), for k = `log2_deviation`.

    Every decision compares uniform random integers with integers, so no probability is rounded. The deviation is a
    power of two so that no comparison needs more than 32 bits. A secret yields the same integers every time, so use
    each secret only once.

    Args:
        secret: 256 bits, the key of ChaCha20.
        size: Number of integers.
        log2_deviation: k, from 1 to 26.

    Returns:
        Independent integers.

    References:
        Karney, "Sampling exactly from the normal distribution", ACM TOMS 2016 (arXiv 1303.6257), algorithm D;
        Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020
        (arXiv 2004.00010), algorithm 1 for the trials with probability exp(-x).
    """
    lanes = -(-size // _PER_LANE)
    quota = -(-size // lanes)
    zeros = jnp.zeros(lanes, jnp.uint32)
    start = _Lanes(
        step=jnp.uint32(0), made=zeros, phase=zeros, v=zeros, u=zeros, negative=zeros, left=zeros,
        term=zeros + jnp.uint32(1), out=jnp.zeros((quota, lanes), jnp.int32),
    )  # fmt: skip

    def advance(state: _Lanes) -> _Lanes:
        words = chacha20_words(secret, 2 * lanes, nonce=state.step)
        return _advance(state, words[:lanes], words[lanes:], log2_deviation)

    # A while loop would synchronise the devices of all clients at every step, and would reveal how long the slowest
    # client's draws take. After this fixed number of steps, almost all runs need no further step.
    usual = _STEPS_PER_INTEGER * quota + _MORE_STEPS
    end = jax.lax.fori_loop(0, usual, lambda _, state: advance(state), start)
    end = jax.lax.while_loop(lambda state: (state.made < quota).any(), advance, end)
    return end.out.reshape(-1)[:size]


def _advance(state: _Lanes, first: Array, second: Array, bits: int) -> _Lanes:
    """Runs one trial in each lane and applies the transition for its outcome."""
    one = jnp.ones_like(first)
    a, b = first >> jnp.uint32(32 - bits), second >> jnp.uint32(32 - bits)
    choice = (first & jnp.uint32(63)) | ((second & jnp.uint32(63)) << jnp.uint32(6))
    phase = state.phase
    halved = (phase == _GEOMETRIC) | (phase == _THIN) | (phase == _SQUARE)
    options = state.term << halved.astype(jnp.uint32)  # the trial succeeds with x / term, where x is 1/2, u or u² / 2
    usable = (choice < (jnp.uint32(_CHOICES) // options) * options) & (state.made < state.out.shape[0])
    success = choice % options == 0
    success &= ~((phase == _LINEAR) | (phase == _SQUARE)) | (a < state.u)
    success &= (phase != _SQUARE) | (b < state.u)
    drawing = usable & (phase == _DRAW)
    going_on = usable & ~drawing & success
    decided = usable & ~drawing & ~success
    happened = decided & (state.term % 2 == 1)  # an event with probability exp(-x)
    failed = decided & ~happened

    counted = happened & (phase == _GEOMETRIC)
    v = jnp.where(counted, state.v + one, state.v)
    passed = happened & (phase != _GEOMETRIC)
    left = jnp.where(passed, state.left - one, state.left)
    ended = failed & (phase == _GEOMETRIC)
    left = jnp.where(ended, v * (v - jnp.minimum(v, one)), left)
    u, negative = jnp.where(drawing, a, state.u), jnp.where(drawing, b & one, state.negative)
    left = jnp.where(drawing, v, left)
    minus_zero = drawing & (v == 0) & (u == 0) & (negative == 1)  # 0 has only one sign
    entered = passed | ended | drawing
    following = jnp.where(left > 0, phase, phase + one)
    following = jnp.where(ended, jnp.where(left > 0, one * _THIN, one * _DRAW), following)
    following = jnp.where(drawing, jnp.where(left > 0, one * _LINEAR, one * _SQUARE), following)
    finished = passed & (phase == _SQUARE)
    left = jnp.where(entered & (following == _SQUARE), one, left)
    restart = finished | minus_zero | (failed & (phase != _GEOMETRIC))

    size = jax.lax.bitcast_convert_type((v << jnp.uint32(bits)) + u, jnp.int32)
    value = jnp.where(negative == 1, -size, size)
    row = jnp.where(finished, state.made, jnp.full_like(state.made, state.out.shape[0]))
    out = state.out.at[row, jnp.arange(row.shape[0], dtype=jnp.int32)].set(value, mode="drop")
    zero = jnp.zeros_like(one)
    return _Lanes(
        step=state.step + jnp.uint32(1),
        made=jnp.where(finished, state.made + one, state.made),
        phase=jnp.where(restart, zero, jnp.where(entered, following, phase)),
        v=jnp.where(restart, zero, v),
        u=u,
        negative=negative,
        left=left,
        term=jnp.where(going_on, state.term + one, jnp.where(decided | drawing, one, state.term)),
        out=out,
    )


def squares_exceed(integers: Int32[Array, " values"], limit: int) -> Array:
    """Returns whether the sum of squares is above `limit`, computed without rounding."""
    size = jnp.abs(integers).astype(jnp.uint32)
    high, low = size >> jnp.uint32(16), size & jnp.uint32(0xFFFF)
    # (high · 2^16 + low)², as digits of 16 bits.
    digits = _digits(high * high, 2) + _digits((high * low) << jnp.uint32(1), 1) + _digits(low * low, 0)
    exceeds = jnp.zeros((), bool)
    carry = jnp.zeros((), jnp.uint32)
    for place in range(9):  # from the lowest digit: a higher digit overrides lower digits
        total = carry
        for at, digit in digits:
            total = total + (digit if at == place else jnp.zeros_like(digit))
        word, bound = total & jnp.uint32(0xFFFF), jnp.uint32((limit >> (16 * place)) & 0xFFFF)
        exceeds = (word > bound) | ((word == bound) & exceeds)
        carry = total >> jnp.uint32(16)
    return exceeds


def _digits(values: UInt32[Array, " values"], place: int) -> list[tuple[int, Array]]:
    """Sums up to 2^32 words into digits of 16 bits."""
    digits = []
    for half, words in enumerate((values & jnp.uint32(0xFFFF), values >> jnp.uint32(16))):
        blocks = -(-words.shape[0] // 2**16)
        padded = jnp.pad(words, (0, blocks * 2**16 - words.shape[0])) if blocks > 1 else words
        sums = padded.reshape(blocks, -1).sum(axis=1, dtype=jnp.uint32)
        low, high = ((part).sum(dtype=jnp.uint32) for part in (sums & jnp.uint32(0xFFFF), sums >> jnp.uint32(16)))
        for shift, total in ((0, low), (1, high)):
            digits += [
                (place + half + shift, total & jnp.uint32(0xFFFF)),
                (place + half + shift + 1, total >> jnp.uint32(16)),
            ]
    return digits
