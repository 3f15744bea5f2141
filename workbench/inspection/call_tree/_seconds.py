"""Seconds on the nodes of a call tree: predicted for a chip, and measured by a profile."""

from collections.abc import Iterable, Mapping

from workbench.cost import collective_seconds
from workbench.records import CallFiguresRecord, CallNodeRecord, CallTreeRecord, ChipRecord, CollectiveRecord


def predict_seconds(
    tree: CallTreeRecord, collectives: Iterable[CollectiveRecord], chip: ChipRecord, dtype: str
) -> CallTreeRecord:
    """A compiled module's tree with the seconds that its operations take on a chip, one after the other.

    An operation takes as long as its matrix products need at the chip's peak or its traffic at the chip's bandwidth,
    whichever is longer, and a collective what `workbench.cost.collective_seconds` says. The sum over a program is at
    least the estimate of its cost, which lets the work of a whole stage overlap.

    Args:
        tree: The tree of a compiled module.
        collectives: The module's collectives.
        chip: The chip; its peak is that of one device.
        dtype: Whose peak counts.

    Returns:
        The tree. It has no predicted seconds where the chip has no peak for `dtype`, or where a collective has no
        published bandwidth: a sum without that collective would rank chips by what is not known of them.
    """
    collectives = list(collectives)
    communicating = {record.name: _collective_seconds(record, chip) for record in collectives}
    if dtype not in chip.peak_flops_per_second or None in communicating.values():
        return tree
    peak = chip.peak_flops_per_second[dtype] / chip.devices_per_chip
    bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip
    own: dict[int, CallFiguresRecord] = {}
    for node in tree.nodes:
        if node.kind in ("operation", "unattributed") and not node.own.is_zero:
            seconds = max(node.own.flops_matmul / peak, node.own.traffic_bytes / bandwidth)
            seconds += sum((communicating.get(name) or 0.0) * share for name, share in node.instructions.items())
            own[node.id] = node.own.replace(predicted_seconds=seconds)
    return tree.with_own(own)


def measured_tree(tree: CallTreeRecord, seconds: Mapping[str, Mapping[str, float]]) -> CallTreeRecord:
    """A compiled module's tree with what a profile measured.

    Args:
        tree: The tree of the module that ran.
        seconds: Per instruction and device the seconds of one call of the program.

    Returns:
        The tree; the seconds of an instruction are shared by the nodes that it is split over, and those of instructions
        that are on no node get a node of their own.

    Example:
        >>> from workbench.records import CallNodeRecord
        >>> root = CallNodeRecord(id=0, parent=None, kind="root", name="step")
        >>> dot = CallNodeRecord(id=1, parent=0, kind="operation", name="dot_general", instructions={"dot.1": 1.0})
        >>> tree = measured_tree(CallTreeRecord(made_from="compiled", nodes=(root, dot)), {"dot.1": {"cpu:0": 0.25}})
        >>> tree.root.total.measured_seconds
        {'cpu:0': 0.25}
    """
    shares: dict[str, float] = {}
    for node in tree.nodes:
        for name, share in node.instructions.items():
            shares[name] = shares.get(name, 0.0) + share
    own: dict[int, CallFiguresRecord] = {}
    for node in tree.nodes:
        if measured := _measured(node, shares, seconds):
            own[node.id] = node.own.replace(measured_seconds=measured)
    lost: dict[str, float] = {}
    for name in seconds.keys() - shares.keys():
        for device, amount in seconds[name].items():
            lost[device] = lost.get(device, 0.0) + amount
    if lost:
        figures = CallFiguresRecord(measured_seconds=lost)
        node = CallNodeRecord(id=len(tree.nodes), parent=0, kind="unattributed", name="time of no known operation",
                              own=figures, total=figures)  # fmt: skip
        tree = tree.replace(nodes=(*tree.nodes, node))
    return tree.with_own(own)


def _measured(
    node: CallNodeRecord, shares: Mapping[str, float], seconds: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, share in node.instructions.items():
        for device, amount in seconds.get(name, {}).items():
            found[device] = found.get(device, 0.0) + amount * share / shares[name]
    return found


def _collective_seconds(record: CollectiveRecord, chip: ChipRecord) -> float | None:
    """The seconds of a collective in one call; one in a loop of unknown length counts once, as its operations do."""
    if record.wire_bytes is None:
        return None
    once = collective_seconds(
        record.kind, record.payload_bytes, record.group_size, chip, across_slices=record.across_slices
    )
    return None if once is None else once * (1.0 if record.executions is None else record.executions)
