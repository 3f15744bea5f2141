"""Shamir's secret sharing over a prime field.

The libraries that share secrets do it for bytes or in GF(2¹²⁸), one bit at a time (PyCryptodome), and a round needs
clients² shares. Over a prime field Python's own integers compute a share.
"""

import secrets
from collections.abc import Mapping

from workbench.errors import ProgramError

PRIME = 2**256 + 297
"""The smallest prime that holds every secret of 32 bytes."""


def share_secret(secret: bytes, *, shares: int, threshold: int) -> dict[int, int]:
    """Cuts a secret of 32 bytes into shares, of which `threshold` determine it and fewer say nothing.

    Args:
        secret: 32 bytes.
        shares: How many; they are numbered from 1.
        threshold: How many recover it.

    Example:
        >>> found = share_secret(b"x" * 32, shares=5, threshold=3)
        >>> recover_secret({number: found[number] for number in (5, 1, 4)}, threshold=3) == b"x" * 32
        True

    References:
        Shamir, "How to Share a Secret", Communications of the ACM 1979.
    """
    coefficients = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    found = {}
    for x in range(1, shares + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        found[x] = value
    return found


def recover_secret(shares: Mapping[int, int], *, threshold: int) -> bytes:
    """The secret of `threshold` shares, by Lagrange's interpolation at 0; more shares are left unused.

    Raises:
        ProgramError: if there are fewer, or they do not belong to one secret of 32 bytes.
    """
    if len(shares) < threshold:
        message = (
            f"`recover_secret` received {len(shares)} shares of a secret that was shared with threshold {threshold}. "
            "Fewer shares than the threshold say nothing about the secret: wait for more."
        )
        raise ProgramError(message)
    used = dict(sorted(shares.items())[:threshold])
    secret = 0
    for x, value in used.items():
        numerator = denominator = 1
        for other in used:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        secret = (secret + value * numerator * pow(denominator, -1, PRIME)) % PRIME
    if secret >= 2**256:
        message = (
            f"`recover_secret` received {len(used)} shares whose polynomial is no secret of 32 bytes at 0. All shares "
            "are of one secret: leave out those of another one, or damaged ones."
        )
        raise ProgramError(message)
    return secret.to_bytes(32, "little")
