"""Times of a call tree's nodes in seconds, predicted for a chip or measured in a profile."""

from collections.abc import Mapping

from workbench.cost import time_module
from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.compiled import ModuleRecord
from workbench.records.hardware import ChipRecord


def predict_seconds(tree: CallTreeRecord, module: ModuleRecord, chip: ChipRecord, dtype: str) -> CallTreeRecord:
    """A compiled module's tree with predicted seconds per call on a chip.

    The seconds come from `workbench.cost.time_module`, like the seconds of every stage. Collective time that is hidden
    behind other operations is not counted.
    """
    times = time_module(module, chip, dtype)
    # A loop of unknown length counts as one iteration, as in the other figures of the tree.
    often = {
        operation.name: 1.0 if operation.executions is None else operation.executions
        for operation in (*module.instructions, *module.collectives)
    }
    figures: dict[int, CallFiguresRecord] = {}
    reasons: dict[str, None] = {}
    for node in tree.nodes:
        parts = [(times[name], often[name] * share) for name, share in node.instructions.items() if name in times]
        if not parts:
            continue
        seconds = [time.seconds and time.seconds * count for time, count in parts]
        reasons |= dict.fromkeys(time.unknown for time, _ in parts if time.seconds is None)
        values = [value for value in seconds if value is not None]
        is_known = len(values) == len(parts)
        figures[node.id] = node.own.replace(
            predicted_seconds=sum(values) if is_known else None, unknown_seconds=not is_known
        )
    placed = {name for node in tree.nodes for name in node.instructions}
    seconds = sum((time.seconds or 0.0) * often[name] for name, time in times.items() if name not in placed)
    if seconds:  # operations in fast memory, which have no figures except their time
        tree = _with_unattributed(tree, CallFiguresRecord(predicted_seconds=seconds))
    notes = tuple(f"predicted seconds are unknown: {reason}" for reason in reasons)
    return tree.replace(notes=(*tree.notes, *notes)).with_own(figures)


def _with_unattributed(tree: CallTreeRecord, figures: CallFiguresRecord) -> CallTreeRecord:
    """The tree with an extra node below the root for the time of instructions that belong to no other node."""
    node = CallNodeRecord(
        id=len(tree.nodes), parent=0, kind="unattributed", name="time of unknown operations", own=figures, total=figures
    )
    return tree.replace(nodes=(*tree.nodes, node))


def measured_tree(tree: CallTreeRecord, seconds: Mapping[str, Mapping[str, float]]) -> CallTreeRecord:
    """A compiled module's tree with the seconds measured in a profile.

    Args:
        tree: The tree of the module that ran.
        seconds: Seconds per call of the program, by instruction and device.

    Returns:
        The tree. The seconds of an instruction are divided among its nodes; instructions that belong to no node get a
        separate node.

    Example:
        >>> from workbench.records.call_tree import CallNodeRecord
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
    figures: dict[int, CallFiguresRecord] = {}
    for node in tree.nodes:
        if measured := _measured(node, shares, seconds):
            figures[node.id] = node.own.replace(measured_seconds=measured)
    lost: dict[str, float] = {}
    for name in seconds.keys() - shares.keys():
        for device, amount in seconds[name].items():
            lost[device] = lost.get(device, 0.0) + amount
    if lost:
        tree = _with_unattributed(tree, CallFiguresRecord(measured_seconds=lost))
    return tree.with_own(figures)


def _measured(
    node: CallNodeRecord, shares: Mapping[str, float], seconds: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, share in node.instructions.items():
        for device, amount in seconds.get(name, {}).items():
            totals[device] = totals.get(device, 0.0) + amount * share / shares[name]
    return totals
