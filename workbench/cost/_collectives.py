"""Seconds of a collective from the bandwidth of links: rings, without contention or overlap."""

import math

from workbench.records import ChipRecord

HOP_SECONDS = 1e-6


def is_closed_ring(chip: ChipRecord, group_size: int) -> bool:
    """Whether an axis of this many chips wraps around on the chip's torus, so that both directions of a ring are open.

    Args:
        chip: The chip.
        group_size: Chips along the axis.

    Returns:
        True on a switch; on a 3-D torus for multiples of 4, on a 2-D torus for whole sides of 16.
    """
    if chip.topology == "switch":
        return True
    return group_size % (4 if chip.topology == "torus3d" else 16) == 0


def collective_seconds(
    kind: str,
    payload_bytes: float,
    group_size: int,
    chip: ChipRecord,
    *,
    closed: bool | None = None,
    across_slices: bool = False,
) -> float | None:
    """The time of one collective along one axis.

    With n devices and an operand of S bytes at each: an all-gather sends S·(n-1), a reduce-scatter S·(n-1)/n, an
    all-reduce both (2·S·(n-1)/n), over a ring that uses one direction, or both when it is closed. An all-to-all
    sends every pair its part over n/4 hops on average on a closed ring (n·S/8 through each link) and n·S/4 through the
    middle of an open one; through a switch, S·(n-1)/n leave every port. Every step adds 1 µs.

    A sum or gather over more chips than the links join (k groups of p) goes in three parts: inside every group over the
    links, between the groups over the data-centre network, where each chip answers for one p-th, and back. Other
    collectives then send all that they send over that network.

    Args:
        kind: As in `CollectiveRecord`.
        payload_bytes: Bytes of one device's operand.
        group_size: Devices in a group.
        chip: Gives the links.
        closed: Whether the axis wraps around; None decides by `is_closed_ring`.
        across_slices: Whether members of one group lie in different slices of a TPU.

    Returns:
        Seconds; None where the chip's links, or its network beyond their reach, have no published bandwidth.

    Example:
        >>> from workbench.cost import known_chip
        >>> round(collective_seconds("all-gather", 1e6, 16, known_chip("v5e")) * 1e6)  # 15 MB over 2 × 50 GB/s, 8 hops
        158

    References:
        Austin et al., "How to Scale Your Model", 2025, section 3 (sharded matrices) and 5 (across pods).
    """
    if group_size < 2 or payload_bytes == 0 or kind == "recv":
        return 0.0
    reach = _reach(chip)
    beyond = across_slices or group_size > reach
    link = chip.dcn_bytes_per_second if beyond else chip.link_bytes_per_second
    if not link:
        return None
    if group_size > reach > 1 and not across_slices and kind in ("all-reduce", "all-gather", "reduce-scatter"):
        return _in_three_parts(kind, payload_bytes, group_size, chip)
    if beyond or chip.topology == "switch":
        return sent_bytes(kind, payload_bytes, group_size) / link + HOP_SECONDS * _steps(kind, group_size, closed=False)
    closed = is_closed_ring(chip, group_size) if closed is None else closed
    latency = HOP_SECONDS * _steps(kind, group_size, closed=closed)
    if kind.endswith("all-to-all"):
        return group_size * payload_bytes / (8 if closed else 4) / link + latency
    if kind in ("collective-permute", "send"):
        return payload_bytes / link + latency
    return sent_bytes(kind, payload_bytes, group_size) / (2 if closed else 1) / link + latency


def _reach(chip: ChipRecord) -> float:
    """How many devices the chip's links join."""
    return math.inf if chip.domain is None else chip.domain * chip.devices_per_chip


def why_unpriced(group_size: int, chip: ChipRecord, *, across_slices: bool = False) -> str:
    """Why `collective_seconds` gives None, in one clause."""
    if across_slices:
        return f"it crosses slices, and no bandwidth of {chip.name}'s data-centre network is published"
    if group_size > _reach(chip):
        return (
            f"its groups of {group_size:,} devices exceed the {_reach(chip):,.0f} that {chip.name}'s links join, and "
            "no bandwidth of the network beyond is published"
        )
    return f"no bandwidth of {chip.name}'s links is published"


def _in_three_parts(kind: str, payload_bytes: float, group_size: int, chip: ChipRecord) -> float | None:
    inside = int(_reach(chip))
    groups = -(-group_size // inside)
    parts = {
        "all-reduce": [("reduce-scatter", payload_bytes), ("all-reduce", payload_bytes / inside),
                       ("all-gather", payload_bytes / inside)],
        "reduce-scatter": [("reduce-scatter", payload_bytes), ("reduce-scatter", payload_bytes / inside)],
        "all-gather": [("all-gather", payload_bytes * groups), ("all-gather", payload_bytes)],
    }[kind]  # fmt: skip
    # The second part of each is the one between groups.
    seconds = [
        collective_seconds(name, amount, groups if i == 1 else inside, chip, across_slices=i == 1)
        for i, (name, amount) in enumerate(parts)
    ]
    known = [each for each in seconds if each is not None]
    return sum(known) if len(known) == len(parts) else None


def sent_bytes(kind: str, payload_bytes: float, group_size: int) -> float:
    """What one device of a group sends in one collective, as a ring does it."""
    share = (group_size - 1) / group_size
    if kind == "all-reduce":
        return 2 * payload_bytes * share
    if kind == "all-gather":
        return payload_bytes * (group_size - 1)
    if kind in ("collective-permute", "collective-broadcast", "send"):
        return payload_bytes
    return payload_bytes * share


def _steps(kind: str, group_size: int, *, closed: bool) -> int:
    if kind in ("collective-permute", "send"):
        return 1
    one_way = group_size // 2 if closed else group_size - 1
    return 2 * one_way if kind == "all-reduce" else one_way
