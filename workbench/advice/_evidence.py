"""Evidence for a finding: call-tree nodes, bytes and execution time of its instructions."""

from collections.abc import Mapping

from workbench.advice._module import Compiled
from workbench.cost import seconds_of_collective
from workbench.records.advice import FindingRecord, Spec
from workbench.records.compiled import ProgramRecord
from workbench.records.sharding import pattern_of
from workbench.render import placement_code

_MOST_NODES = 8


def with_evidence(finding: FindingRecord, program: Compiled) -> FindingRecord:
    """The finding with its call tree nodes, bytes and, if a chip is known, predicted time."""
    names = set(finding.instructions)
    collectives = [collective for collective in program.module.collectives if collective.name in names]
    size = finding.size_bytes
    if size is None and collectives:
        size = sum(collective.sent_bytes for collective in collectives)
    if size is None and finding.gain is not None and finding.gain.quantity.endswith("bytes"):
        size = finding.gain.before
    axes = finding.axes or tuple(dict.fromkeys(axis for collective in collectives for axis in collective.axes))
    cost = program.record.cost
    seconds = finding.seconds
    if seconds is None and collectives and cost is not None and cost.chip is not None:
        times = [None if c.executions is None else seconds_of_collective(c, cost.chip) for c in collectives]
        if all(time is not None for time in times):
            seconds = sum(
                (once or 0.0) * (collective.executions or 0.0)
                for once, collective in zip(times, collectives, strict=True)
            )
    return finding.replace(
        nodes=finding.nodes or _nodes(finding, program),
        size_bytes=size,
        axes=axes,
        seconds=seconds,
        code=finding.code or placing_code(finding.specs, program.record),
    )


def placing_code(specs: Mapping[str, Spec], record: ProgramRecord) -> str:
    """Code that places the arguments according to the advised specs; empty if no specs are advised."""
    if not specs or record.mesh is None:
        return ""
    by_pattern = {pattern_of(path): spec for path, spec in specs.items()}
    return placement_code(by_pattern, record.mesh.axes, others_stay=True)


def _nodes(finding: FindingRecord, program: Compiled) -> tuple[int, ...]:
    """The nodes that contain the finding's instructions; without instructions, the nodes of its lines."""
    tree = program.record.call_tree
    if tree is None:
        return ()
    names = set(finding.instructions)
    nodes = [node for node in tree.nodes if names.intersection(node.instructions)]
    if not nodes:
        lines = {(source.file, source.line) for source in finding.sources}
        nodes = [node for node in tree.nodes if node.kind in ("line", "call") and (node.file, node.line) in lines]
    return tuple(node.id for node in nodes[:_MOST_NODES])
