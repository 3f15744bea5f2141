"""Counter-based random numbers, which make client 17 the same client in every run."""

import hashlib
import math

import numpy as np
from jaxtyping import Float, Integer, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def key_of(seed: int, *names: str | int) -> np.uint64:
    """Derives the key for one stream of numbers, such as the speeds of all devices.

    Example:
        >>> bool(key_of(0, "speed") == key_of(0, "speed")), bool(key_of(0, "speed") == key_of(1, "speed"))
        (True, False)
    """
    text = "/".join(map(str, (seed, *names))).encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


def draw_bits(
    key: np.uint64 | UInt64[np.ndarray, " n"], counters: Integer[np.ndarray, " n"]
) -> UInt64[np.ndarray, " n"]:
    """Draws 64 random bits for every counter with SplitMix64's output function.

    Args:
        key: Key for the stream, or one key per counter. For numbers that depend on two counters, the keys are the bits
            of an earlier draw.
        counters: Non-negative whole numbers.

    References:
        Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 17; Salmon et al.,
        "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, for counters instead of states.
    """
    bits = counters.astype(np.uint64) * _GOLDEN
    bits += key
    bits ^= bits >> _SHIFTS[0]
    bits *= _FIRST
    bits ^= bits >> _SHIFTS[1]
    bits *= _SECOND
    bits ^= bits >> _SHIFTS[2]
    return bits


def draw_uniform(
    key: np.uint64 | UInt64[np.ndarray, " n"], counters: Integer[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Draws a number between 0 and 1 (both excluded) for every counter.

    Example:
        >>> draws = draw_uniform(key_of(0, "example"), np.arange(100_000))
        >>> bool(abs(draws.mean() - 0.5) < 0.005)
        True
    """
    return ((draw_bits(key, counters) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def draw_normal(key: np.uint64, counters: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Draws a standard normal number for every counter (Box-Muller)."""
    bits = draw_bits(key, counters)
    first = ((bits >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
    second = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    return np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)


def parts_of(bits: UInt64[np.ndarray, " n"]) -> tuple[Float[np.ndarray, " n"], ...]:
    """Splits one draw into four numbers between 0 and 1 with 16 bits each."""
    mask = np.uint64(0xFFFF)
    return tuple((((bits >> np.uint64(16 * i)) & mask).astype(np.float64) + 0.5) * 2.0**-16 for i in range(4))


class Permutation:
    """A random permutation of `range(size)`; any part can be computed separately.

    A Feistel network with four rounds permutes pairs of base-√size digits. The few numbers that are too large are left
    out.

    Args (of the constructor):
        size: Number of integers, which start at 0.
        key: PRNG key that determines the order.

    Attributes:
        positions: Number of positions in the order; some are empty.

    Example:
        >>> order = Permutation(10, key_of(0, "order"))
        >>> sorted(order.stretch(0, order.positions).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]

    References:
        Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", SIAM J. Comput.
        1988; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.
    """

    def __init__(self, size: int, key: np.uint64) -> None:
        self._size = np.uint64(size)
        self._base = np.uint64(math.isqrt(size - 1) + 1)
        self._keys = draw_bits(key, np.arange(4))
        self.positions = int(self._base) ** 2

    def stretch(self, start: int, stop: int) -> Integer[np.ndarray, " n"]:
        """Returns the numbers at positions `start` to `stop - 1`, without empty positions."""
        positions = np.arange(start, min(stop, self.positions), dtype=np.uint64)
        left, right = np.divmod(positions, self._base)
        for key in self._keys:
            left, right = right, (left + (draw_bits(key, right) >> np.uint64(8))) % self._base
        numbers = left * self._base + right
        return numbers[numbers < self._size].astype(np.int64)
