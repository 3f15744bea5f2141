"""Every view of hand-written records, as pages show it first and as they show it after the first clicks."""

from collections.abc import Callable

import records_examples as examples
import records_parts as parts
import workbench_widgets
from live_examples import FakeMonitor, FakeRun, sample
from playwright.sync_api import Locator

from workbench.records import EventRecord, RunRecord

EVENTS = tuple(
    EventRecord(where=f"cpu:{d}", name="dot", start_seconds=0.1 * d, seconds=0.5, kind=kind, stage="1")
    for d, kind in enumerate(("compute", "collective", "wait"))
)


def finished_run() -> FakeRun:
    run = FakeRun(rounds=4)
    run.finish(loss=(3.0, 1.0), accuracy=0.25)
    run.finish(loss=(2.0, 1.0), accuracy=0.5)
    return run


VIEWS: dict[str, Callable[[], workbench_widgets.WorkbenchWidget]] = {
    "program": lambda: workbench_widgets.ProgramView(examples.fedavg_record(), examples.gradient_record()),
    "clients": lambda: workbench_widgets.ClientsView(examples.fedavg_record()),
    "mesh": lambda: workbench_widgets.MeshView(parts.mesh_record(), parts.cost_record()),
    "large-mesh": lambda: workbench_widgets.MeshView(parts.mesh_record(clients=640, axes=(("x", 64), ("y", 10)))),
    "sharding": lambda: workbench_widgets.ShardingView(parts.sharding_record()),
    "hlo": lambda: workbench_widgets.HloView(examples.fedavg_record()),
    "hlo-graph": lambda: workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "graph"}),
    "hlo-source": lambda: workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "source"}),
    "hlo-instructions": lambda: workbench_widgets.HloView(examples.fedavg_record(), settings={"face": "instructions"}),
    "memory": lambda: workbench_widgets.MemoryView(examples.fedavg_record()),
    "cost": lambda: workbench_widgets.CostView(examples.fedavg_record()),
    "devices": lambda: workbench_widgets.DevicesView(FakeMonitor(sample(0, 1024, 2048), sample(1, 2048, 4096))),
    "run": lambda: workbench_widgets.RunView(finished_run()),
    "timeline": lambda: workbench_widgets.TimelineView(
        RunRecord(name="round", engine="mesh", seconds=1.0, events=EVENTS)
    ),
    "explorer": lambda: workbench_widgets.Explorer(examples.fedavg_record()),
}


def act_on(view: Locator, name: str) -> None:
    """Brings up what is hidden at first: the panel of something chosen, whatever is folded."""
    if name == "hlo":
        view.locator('[data-collective="all-reduce.1"]').click()
    if name == "program":
        view.locator('[data-stage="1"]').first.click()
    for folded in view.locator("details").all():
        folded.evaluate("node => node.open = true")
