"""Every view of hand-written records, as pages show it first and as they show it after the first clicks."""

from collections.abc import Callable

import records_examples as examples
import records_parts as parts
import workbench_widgets
from live_examples import FakeMonitor, FakeRun, sample
from playwright.sync_api import Locator
from workbench_widgets._clients import ClientsView
from workbench_widgets._compare import CompareView
from workbench_widgets._cost import CostView
from workbench_widgets._memory import MemoryView

from workbench.records.advice import ComparedRecord, ComparisonRecord
from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.records.run import (
    EventRecord,
    OverlaidMetricRecord,
    OverlaidResultRecord,
    ResultPairRecord,
    RunOverlayRecord,
    RunRecord,
)

EVENTS = tuple(
    EventRecord(where=f"cpu:{d}", name="dot", start_seconds=0.1 * d, seconds=0.5, kind=kind, stage="1")
    for d, kind in enumerate(("compute", "collective", "wait"))
)


def finished_run() -> FakeRun:
    run = FakeRun(rounds=4)
    run.finish(loss=(3.0, 1.0), accuracy=0.25)
    run.finish(loss=(2.0, 1.0), accuracy=0.5)
    return run


def overlaid() -> RunOverlayRecord:
    """Two results with two seeds each, and one that diverged."""

    def curve(metric: str, *seeds: tuple[float, ...]) -> OverlaidMetricRecord:
        mean = tuple(sum(values) / len(values) for values in zip(*seeds, strict=True))
        return OverlaidMetricRecord(
            metric=metric,
            rounds=(0, 1),
            mean=mean,
            low=tuple(min(values) for values in zip(*seeds, strict=True)),
            high=tuple(max(values) for values in zip(*seeds, strict=True)),
            seeds=seeds,
            final=mean[-1],
            final_low=min(values[-1] for values in seeds),
            final_high=max(values[-1] for values in seeds),
        )

    lost = curve("loss", (9.0, 12.0)).replace(low=(None,) * 2, high=(None,) * 2, final=None, final_low=None)
    return RunOverlayRecord(
        name="three",
        metric="loss",
        minimize=True,
        confidence=0.95,
        results=(
            OverlaidResultRecord(
                name="lr=0.1",
                status="finished",
                seeds=(0, 1),
                compared=2,
                metrics=(curve("loss", (3.0, 2.0), (3.5, 2.5)), curve("accuracy", (0.2, 0.4), (0.2, 0.5))),
            ),
            OverlaidResultRecord(
                name="lr=0.3",
                status="finished",
                seeds=(0, 1),
                compared=2,
                metrics=(curve("loss", (3.0, 1.0), (3.5, 1.5)), curve("accuracy", (0.2, 0.7), (0.2, 0.8))),
            ),
            OverlaidResultRecord(
                name="lr=9",
                status="diverged",
                seeds=(0,),
                compared=0,
                left_out=("seed 0: diverged: loss is not finite in round 2 (2 of 4 rounds)",),
                metrics=(lost.replace(final_high=None),),
            ),
        ),
        pairs=(
            ResultPairRecord(
                metric="loss",
                a="lr=0.1",
                b="lr=0.3",
                pairs=2,
                difference=1.0,
                low=1.0,
                high=1.0,
                p=0.5,
                p_corrected=0.5,
            ),
        ),
    )


def call_tree(flops: float, module: str) -> CallTreeRecord:
    """A step with one module in its loss."""

    def node(at: int, parent: int | None, kind: str, name: str, count: float) -> CallNodeRecord:
        figures = CallFiguresRecord(flops_matmul=count)
        return CallNodeRecord(id=at, parent=parent, kind=kind, name=name, total=figures)  # pyright: ignore[reportArgumentType]

    nodes = (node(0, None, "root", "step", flops + 1e6), node(1, 0, "function", "loss", flops),
             node(2, 1, "scope", module, flops), node(3, 0, "scope", "update", 1e6))  # fmt: skip
    return CallTreeRecord(made_from="compiled", nodes=nodes)


def compared_trees() -> ComparisonRecord:
    """Two steps whose call trees differ in one module."""
    return ComparisonRecord(
        names=("before", "after"),
        targets=("cpu x 8", "cpu x 8"),
        rows=(ComparedRecord(group="per device", name="FLOPs", values=(3e6, 5e6), unit="flops", status="changed"),),
        trees=(call_tree(2e6, "Linear"), call_tree(4e6, "Attention")),
    )


VIEWS: dict[str, Callable[[], workbench_widgets.WorkbenchWidget]] = {
    "program": lambda: workbench_widgets.ProgramView(examples.fedavg_record(), examples.gradient_record()),
    "clients": lambda: ClientsView(examples.fedavg_record()),
    "mesh": lambda: workbench_widgets.MeshView(parts.mesh_record(), parts.cost_record()),
    "large-mesh": lambda: workbench_widgets.MeshView(parts.mesh_record(clients=640, axes=(("x", 64), ("y", 10)))),
    "sharding": lambda: workbench_widgets.ShardingView(parts.sharding_record(), selection={"leaf": "['data']['x']"}),
    "hlo": lambda: workbench_widgets.HloView(examples.fedavg_record()),
    "hlo-graph": lambda: workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "graph"}),
    "hlo-source": lambda: workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "source"}),
    "hlo-instructions": lambda: workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "instructions"}),
    "memory": lambda: MemoryView(examples.fedavg_record()),
    "cost": lambda: CostView(examples.fedavg_record()),
    "devices": lambda: workbench_widgets.DevicesView(FakeMonitor(sample(0, 1024, 2048), sample(1, 2048, 4096))),
    "run": lambda: workbench_widgets.RunView(finished_run()),
    "runs": lambda: workbench_widgets.RunsView(overlaid()),
    "timeline": lambda: workbench_widgets.TimelineView(
        RunRecord(name="round", engine="mesh", seconds=1.0, events=EVENTS)
    ),
    "compare": lambda: CompareView(compared_trees(), settings={"face": "tree"}),
    "explorer": lambda: workbench_widgets.Explorer(examples.fedavg_record()),
}


def act_on(view: Locator, name: str) -> None:
    """Brings up what is hidden at first: the panel of something chosen, whatever is folded."""
    if name == "hlo":
        view.locator('[data-collective="all-reduce.1"]').click()
    if name == "runs":
        view.locator('[data-result="lr=0.3"] button').click()
    if name == "program":
        view.locator('[data-stage="1"]').first.click()
    for folded in view.locator("details").all():
        folded.evaluate("node => node.open = true")
