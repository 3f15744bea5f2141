import pytest
import records_examples as examples
import records_parts as parts
import workbench_widgets
from workbench_widgets._clients import ClientsView
from workbench_widgets._cost import CostView

from workbench.records.compiled import MemoryRecord
from workbench.records.run import EventRecord, RunRecord

EVENT = EventRecord(where="cpu:0", name="dot", start_seconds=0.0, seconds=0.5)

RECORDS = {
    "program": (examples.fedavg_record, workbench_widgets.Explorer),
    "plan": (lambda: examples.fedavg_record().plan, workbench_widgets.Explorer),
    "mesh": (parts.mesh_record, workbench_widgets.MeshView),
    "sharding": (parts.sharding_record, workbench_widgets.ShardingView),
    "run": (
        lambda: RunRecord(name="round", engine="mesh", seconds=1.0, events=(EVENT,)),
        workbench_widgets.TimelineView,
    ),
    "leaf": (lambda: parts.sharding_record().leaves[0], workbench_widgets.ShardingView),
}
VIEWS = {
    "explorer": workbench_widgets.Explorer,
    "program": workbench_widgets.ProgramView,
    "clients": ClientsView,
    "mesh": workbench_widgets.MeshView,
    "sharding": workbench_widgets.ShardingView,
    "hlo": workbench_widgets.HloView,
    "cost": CostView,
}


@pytest.mark.parametrize(("make", "kind"), RECORDS.values(), ids=RECORDS)
def test_every_record_finds_its_view(make, kind):
    assert isinstance(workbench_widgets.show_record(make()), kind)


@pytest.mark.parametrize(("view", "kind"), VIEWS.items(), ids=VIEWS)
def test_a_program_is_shown_in_the_view_that_was_asked_for(view, kind):
    made = workbench_widgets.show_record(examples.fedavg_record(), view)
    assert isinstance(made, kind)
    assert made.text()


def test_record_without_a_live_view_is_refused_with_what_can_be_shown():
    with pytest.raises(
        TypeError,
        match=r"`show_record` was given .* of type MemoryRecord, which has no live view.*ProgramRecord",
    ):
        workbench_widgets.show_record(MemoryRecord())


def test_unknown_view_is_refused_with_what_exists():
    with pytest.raises(
        ValueError,
        match=r"given view='hol', but the views .* of type ProgramRecord are explorer, program, clients",
    ):
        workbench_widgets.show_record(examples.fedavg_record(), "hol")


def test_view_of_something_the_record_lacks_is_refused_with_the_remedy():
    record = examples.fedavg_record().replace(mesh=None)
    with pytest.raises(ValueError, match=r"contains no `mesh`.*Inspect the program under a mesh"):
        workbench_widgets.show_record(record, "mesh")


def test_advice_is_opened_in_the_explorer():
    view = workbench_widgets.show_record(examples.fedavg_record(), "advice")
    assert (view.view_name, view.settings) == ("explorer", {"view": "advice"})


def test_explorer_has_only_the_views_for_which_it_has_something():
    record = examples.fedavg_record().replace(mesh=None, inputs=None, module=None, cost=None, stablehlo="")
    views = [view["key"] for view in workbench_widgets.Explorer(record).data["views"]]
    assert views == ["program", "clients"]


def test_explorer_refuses_a_view_that_it_does_not_have():
    with pytest.raises(ValueError, match=r"was given view='devices', but its record of fedavg has the views program"):
        workbench_widgets.Explorer(examples.fedavg_record(), view="devices")
