"""Predicts the time of collectives from link bandwidth, for rings and tori without contention."""

import math
from collections.abc import Sequence

from workbench.cost._operations import interpolate
from workbench.cost._rates import LARGE_BYTES, rates_of
from workbench.records.compiled import CollectiveRecord
from workbench.records.hardware import ChipRecord, RateRecord

Torus = Sequence[tuple[int, bool]]  # chips along each dimension of a group, and whether its ends are joined


def is_closed_ring(chip: ChipRecord, group_size: int) -> bool:
    """Returns, without using coordinates, whether a ring of this size closes on the chip's torus.

    Returns: True on a switch, for multiples of 4 on a 3-D torus, and for full sides of 16 on a 2-D torus.
    """
    if chip.topology == "switch":
        return True
    return group_size % (4 if chip.topology == "torus3d" else 16) == 0


def seconds_of_collective(collective: CollectiveRecord, chip: ChipRecord) -> float | None:
    """The time of one execution of a compiled collective.

    Args:
        collective: From `inspect_module`.
        chip: Chip with its links.

    Returns:
        The time in seconds; None if the members or the bandwidth between them are unknown.
    """
    if collective.wire_bytes is None:
        return None
    if not collective.wire_bytes:
        return 0.0
    return collective_seconds(
        collective.kind,
        collective.payload_bytes,
        collective.group_size,
        chip,
        across_slices=collective.across_slices,
        hosts=collective.hosts,
        torus=collective.torus,
    )


def collective_seconds(
    kind: str,
    payload_bytes: float,
    group_size: int,
    chip: ChipRecord,
    *,
    closed: bool | None = None,
    across_slices: bool = False,
    hosts: int | None = None,
    torus: Torus = (),
) -> float | None:
    """The time of one collective along one axis.

    With n devices and an operand of S bytes on each device, an all-gather sends S·(n-1), a reduce-scatter S·(n-1)/n,
    and an all-reduce 2·S·(n-1)/n. These collectives use all links of a chip at a corner of the group: two along a
    dimension whose ends are joined, and one along any other dimension. The time of an all-to-all follows from the bytes
    that cross the narrowest cut of the torus; with a switch, every port sends S·(n-1)/n. Links reach only a share of
    their bandwidth, and every collective and every step has a fixed cost (`rates_of`).

    A sum or gather may span more chips than the links join: k groups of p chips. On TPUs, the collective then has three
    parts: over the links inside every group, over the data-centre network between the groups, and inside every group
    again. In the second part, each chip sends 1/p of the data. On GPUs, there are p concurrent rings through all hosts,
    where p is the number of the group's members on each host. Other collectives send all their bytes over this network.

    Args:
        kind: As in `CollectiveRecord`.
        payload_bytes: Bytes of one device's operand.
        group_size: Devices in a group.
        chip: Chip with its links.
        closed: Whether the group is a closed ring, used if `torus` is empty; None means that `is_closed_ring` decides.
        across_slices: Whether a group spans several TPU slices.
        hosts: Number of GPU hosts that a group spans; None means as few as possible.
        torus: Number of chips along each torus dimension of the group, and whether the ends are joined.

    Returns:
        The time in seconds; None if the needed links or network have no published bandwidth.

    Example:
        >>> from workbench.cost import known_chip
        >>> v5e = known_chip("v5e")  # 15 MB over 2 × 50 GB/s at 88 %, 8 hops of 1 µs, 10 µs to start
        >>> round(collective_seconds("all-gather", 1e6, 16, v5e) * 1e6)
        188

    References:
        Austin et al., "How to Scale Your Model", 2025, sections 3 (sharded matrices) and 5 (across pods).
    """
    if group_size < 2 or payload_bytes == 0 or kind == "recv":
        return 0.0
    measured = _measured(kind, payload_bytes, group_size, chip)
    if measured is not None:
        return measured
    reach = group_size // hosts if hosts else _reach(chip)
    beyond = across_slices or group_size > reach
    link = chip.dcn_bytes_per_second if beyond else chip.link_bytes_per_second
    if not link:
        return None
    has_both = group_size > reach > 1 and not across_slices
    if has_both and kind in ("all-reduce", "all-gather", "reduce-scatter"):
        if chip.topology == "switch":
            return _rings_over_hosts(kind, payload_bytes, group_size, chip, reach)
        return _in_three_parts(kind, payload_bytes, group_size, chip)
    rates = rates_of(chip)
    hop = rates.large_hop_seconds if payload_bytes >= LARGE_BYTES else rates.hop_seconds
    start = rates.permute_seconds if kind in ("collective-permute", "send") else rates.collective_seconds
    link *= rates.network if beyond else rates.links.get(kind, rates.links[""])
    if beyond or chip.topology == "switch":
        steps = _steps(kind, ((group_size, False),))
        return sent_bytes(kind, payload_bytes, group_size) / link + hop * steps + start
    chips = math.prod(size for size, _ in torus)
    is_torus = bool(torus) and group_size % chips == 0
    cores = group_size // chips if is_torus else 1  # for one group per chip; other groups share the chip's links
    sharing = max(1, chip.devices_per_chip // cores) if is_torus else 1
    if not is_torus:
        torus = ((group_size, is_closed_ring(chip, group_size) if closed is None else closed),)
        if closed is None and chip.topology == "torus2d" and group_size == chip.domain:
            side = math.isqrt(group_size)  # a whole pod
            torus = ((side, True), (side, True))
    latency = hop * _steps(kind, torus) + start
    if kind in ("collective-permute", "send"):
        return payload_bytes / link + latency
    return _torus_bytes(kind, payload_bytes, cores, torus) * sharing / link + latency


def _torus_bytes(kind: str, payload_bytes: float, cores: int, torus: Torus) -> float:
    """Bytes that cross the busiest link of a torus, for one group with `cores` devices on each chip."""
    if kind.endswith("all-to-all"):
        return max(_through_cut(size, wraps) for size, wraps in torus) * payload_bytes * cores
    payload = payload_bytes * cores if kind == "all-gather" else payload_bytes
    lanes = sum(2 if wraps and size > 2 else 1 for size, wraps in torus)
    return sent_bytes(kind, payload, math.prod(size for size, _ in torus)) / lanes


def _through_cut(size: int, wraps: bool) -> float:
    """Share of a device's operand that crosses the middle link of a ring or line while all chips send.

    A ring of n chips splits n²/4 chip-hops over two directions ((n²-1)/4 if n is odd); the middle link of a line
    carries all bytes from one half to the other.
    """
    if wraps and size > 2:
        return (size * size - size % 2) / (8 * size)
    return (size // 2) * (size - size // 2) / size


def _reach(chip: ChipRecord) -> float:
    """Number of devices that the chip's links join."""
    return math.inf if chip.domain is None else chip.domain * chip.devices_per_chip


def why_unpriced(group_size: int, chip: ChipRecord, *, across_slices: bool = False, hosts: int | None = None) -> str:
    """Returns the reason why `collective_seconds` is None, as a clause."""
    if across_slices:
        return (
            f"it crosses slices, and no bandwidth of {chip.name}'s data-centre network is published: specify it, as in "
            f'on="{chip.name}@100G"'
        )
    if hosts is not None and hosts > 1:
        return (
            f"its groups of {group_size:,} devices span {hosts:,} hosts, and no bandwidth of the network between hosts "
            f'is published: specify it, as in on="{chip.name}@8x400G"'
        )
    if group_size > _reach(chip):
        return (
            f"its groups of {group_size:,} devices exceed the {_reach(chip):,.0f} that {chip.name}'s links join, and "
            f'no bandwidth of the network beyond these links is published: specify it, as in on="{chip.name}@8x400G"'
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
    # The second part of each collective is between groups.
    seconds = [
        collective_seconds(name, amount, groups if i == 1 else inside, chip, across_slices=i == 1)
        for i, (name, amount) in enumerate(parts)
    ]
    values = [value for value in seconds if value is not None]
    return sum(values) if len(values) == len(parts) else None


def _rings_over_hosts(
    kind: str, payload_bytes: float, group_size: int, chip: ChipRecord, inside: float
) -> float | None:
    """The time of NCCL's rings through all hosts; the adapters of the `inside` chips on each host share the bytes."""
    rates = rates_of(chip)
    if not chip.dcn_bytes_per_second:
        return None
    traffic = sent_bytes(kind, payload_bytes, group_size)
    network = traffic / (chip.dcn_bytes_per_second * rates.network * inside)
    links = traffic / (chip.link_bytes_per_second * rates.links[""])
    hop = rates.large_hop_seconds if payload_bytes >= LARGE_BYTES else rates.hop_seconds
    return max(network, links) + hop * _steps(kind, ((group_size, False),)) + rates.collective_seconds


def sent_bytes(kind: str, payload_bytes: float, group_size: int) -> float:
    """Bytes that one device sends in one collective with a ring algorithm."""
    share = (group_size - 1) / group_size
    if kind == "all-reduce":
        return 2 * payload_bytes * share
    if kind == "all-gather":
        return payload_bytes * (group_size - 1)
    if kind in ("collective-permute", "collective-broadcast", "send"):
        return payload_bytes
    return payload_bytes * share


def _steps(kind: str, torus: Torus) -> int:
    if kind in ("collective-permute", "send"):
        return 1
    one_way = sum(size // 2 if wraps else size - 1 for size, wraps in torus)
    return 2 * one_way if kind == "all-reduce" else one_way


def _measured(kind: str, payload_bytes: float, group_size: int, chip: ChipRecord) -> float | None:
    """Interpolates, by sent bytes, the measured rows of the nearest group size; None without rows."""
    rows = [row for row in chip.rates if row.kind == kind.removeprefix("ragged-") and row.group_size > 1]
    if not rows:
        return None
    nearest = min({row.group_size for row in rows}, key=lambda size: abs(math.log(size / group_size)))
    candidates = [row for row in rows if row.group_size == nearest]
    share = sent_bytes(kind, 1.0, group_size) / sent_bytes(kind, 1.0, nearest)
    slowest: dict[float, RateRecord] = {}
    for row in candidates:  # among axes of equal size, the slowest
        if row.amount not in slowest or row.seconds > slowest[row.amount].seconds:
            slowest[row.amount] = row
    return interpolate(sorted(slowest.values(), key=lambda row: row.amount), payload_bytes * share)
