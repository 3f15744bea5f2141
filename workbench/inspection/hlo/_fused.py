"""Contents of fusions, and the stages that own them."""

from workbench.inspection.hlo._attribution import NamedStage, StageFinder
from workbench.inspection.hlo._elementwise import ElementwiseCounter
from workbench.inspection.hlo._flops import FlopCounter
from workbench.inspection.hlo._text import Hlo, Instruction
from workbench.inspection.hlo._traffic import Traffic
from workbench.records.compiled import StagePartRecord

_MOST_PARTS = 100_000


def inside(hlo: Hlo, fusion: Instruction) -> list[Instruction]:
    """Contents of a fusion, with inner fusions expanded; the fusion itself if its nesting is infinite."""
    parts, pending = [], [fusion]
    while pending:
        for name in pending.pop().calls("calls"):
            for inner in hlo.computations[name].instructions:
                (pending if inner.opcode == "fusion" else parts).append(inner)
        if len(parts) > _MOST_PARTS:
            return [fusion]
    return parts


class FusedStages:
    """Divides fusions that contain operations of several stages, such as a product and its sum in one fusion."""

    def __init__(
        self, hlo: Hlo, stages: StageFinder, flops: FlopCounter, elementwise: ElementwiseCounter, traffic: Traffic
    ) -> None:
        self._hlo, self._stages = hlo, stages
        self._flops, self._elementwise, self._traffic = flops, elementwise, traffic

    def parts(self, fusion: Instruction) -> tuple[StagePartRecord, ...]:
        """The figures of a fusion by stage; empty if they all belong to the fusion's own stage."""
        fusion_stage = self._stages.stage(fusion)
        sums: dict[NamedStage | None, tuple[float, float, int]] = {}

        def add(inner: Instruction, flops: float, elementwise: float, size: int) -> None:
            if flops or elementwise or size:
                stage = self._stages.stage(inner) or fusion_stage
                totals = sums.get(stage, (0.0, 0.0, 0))
                sums[stage] = totals[0] + flops, totals[1] + elementwise, totals[2] + size

        for inner in inside(self._hlo, fusion):
            add(inner, self._flops.instruction(inner), self._elementwise.instruction(inner), 0)
        for inner, size in self._traffic.parts(fusion):
            add(inner, 0.0, 0.0, size)
        if sums.keys() <= {fusion_stage}:
            return ()
        return tuple(
            StagePartRecord(
                stage=None if stage is None else stage.path,
                kind="" if stage is None else stage.kind,
                flops=products,
                elementwise_flops=elementwise_flops,
                accessed_bytes=size,
            )
            for stage, (products, elementwise_flops, size) in sums.items()
        )
