"""Seconds of a collective from the bandwidth of links: rings, without contention or overlap."""

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
        Austin et al., "How to Scale Your Model", 2025, section 3 (sharded matrices).
    """
    if group_size < 2 or payload_bytes == 0 or kind == "recv":
        return 0.0
    beyond = across_slices or (chip.domain is not None and group_size > chip.domain * chip.devices_per_chip)
    link = chip.dcn_bytes_per_second if beyond else chip.link_bytes_per_second
    if not link:
        return None
    if beyond or chip.topology == "switch":
        return sent_bytes(kind, payload_bytes, group_size) / link + HOP_SECONDS * _steps(kind, group_size, closed=False)
    closed = is_closed_ring(chip, group_size) if closed is None else closed
    latency = HOP_SECONDS * _steps(kind, group_size, closed=closed)
    if kind.endswith("all-to-all"):
        return group_size * payload_bytes / (8 if closed else 4) / link + latency
    if kind in ("collective-permute", "send"):
        return payload_bytes / link + latency
    return sent_bytes(kind, payload_bytes, group_size) / (2 if closed else 1) / link + latency


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
