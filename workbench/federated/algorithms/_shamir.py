"""Shamir's secret sharing over a prime field.

Existing libraries share secrets byte by byte or, in PyCryptodome, one bit at a time in GF(2¹²⁸). A round needs clients²
shares, so speed matters. Over a prime field, Python integers compute a share directly.
"""

import math
import secrets
from collections.abc import Iterable, Mapping

from workbench.errors import ProgramError

PRIME = 2**256 + 297
"""The smallest prime above every secret of 32 bytes."""


def share_secret(secret: bytes, *, shares: int, threshold: int) -> dict[int, int]:
    """Splits a secret of 32 bytes into shares; `threshold` shares recover it.

    Args:
        secret: 32 bytes.
        shares: Number of shares; they are numbered from 1.
        threshold: Number of shares that recover the secret; fewer shares reveal nothing.

    Example:
        >>> found = share_secret(b"x" * 32, shares=5, threshold=3)
        >>> recover_secret({number: found[number] for number in (5, 1, 4)}, threshold=3) == b"x" * 32
        True

    References:
        Shamir, "How to Share a Secret", Communications of the ACM 1979.
    """
    coefficients = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    points = {}
    for x in range(1, shares + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        points[x] = value
    return points


def recover_secret(shares: Mapping[int, int], *, threshold: int) -> bytes:
    """Recovers a secret from `threshold` shares, by Lagrange interpolation at 0.

    Raises:
        ProgramError: if there are fewer than `threshold` shares, or they do not belong to one secret of 32 bytes.
            Additional shares are checked against the polynomial, so a wrong share is detected.
    """
    if len(shares) < threshold:
        message = (
            f"`recover_secret` received {len(shares)} shares of a secret that was shared with threshold {threshold}. "
            "Fewer shares than the threshold reveal nothing about the secret: wait for more shares."
        )
        raise ProgramError(message)
    used = dict(sorted(shares.items())[:threshold])
    secret = 0
    for x, value in used.items():
        numerator = math.prod(point for point in used if point != x)
        secret += value * numerator * pow(_distances(x, used), -1, PRIME)
    secret %= PRIME
    if secret >= 2**256 or not _are_on_a_polynomial(shares, threshold):
        message = (
            f"`recover_secret` received {len(shares)} shares that are not points of one polynomial of degree "
            f"{threshold - 1} with a secret of 32 bytes. All shares must belong to one secret: omit damaged shares and "
            "shares of other secrets."
        )
        raise ProgramError(message)
    return secret.to_bytes(32, "little")


def _distances(x: int, points: Iterable[int]) -> int:
    return math.prod(point - x for point in points if point != x) % PRIME


def _are_on_a_polynomial(shares: Mapping[int, int], threshold: int) -> bool:
    """Returns whether all shares fit one polynomial of degree `threshold - 1`.

    The check multiplies the polynomial through all shares by a random polynomial. The leading coefficient of the
    product is 0 as long as the degrees stay below the number of shares (Cascudo and David, "SCRAPE", ACNS 2017). The
    check errs with probability 1 / `PRIME`.
    """
    random = [secrets.randbelow(PRIME) for _ in range(len(shares) - threshold)]
    total = 0
    for x, value in shares.items():
        factor = 0
        for coefficient in random:
            factor = (factor * x + coefficient) % PRIME
        total += value * factor * pow(_distances(x, shares), -1, PRIME)
    return total % PRIME == 0
