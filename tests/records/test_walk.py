"""The one walk over the stages of a plan."""

from workbench.records.program import PlanRecord, StageRecord


def stage(path: str, kind="server", *body: StageRecord) -> StageRecord:
    return StageRecord(index=0, path=path, kind=kind, name=path, body=body)


PLAN = PlanRecord(
    name="nested",
    placements=(),
    stages=(
        stage("0", "loop", stage("0.0", "clients", stage("0.0.0", "reduce")), stage("0.1")),
        stage("1", "branch", stage("1[0].0"), stage("1[1].0")),
    ),
)


def test_walk_visits_outer_stages_before_inner_ones_in_program_order():
    assert [each.path for each in PLAN.walk()] == ["0", "0.0", "0.0.0", "0.1", "1", "1[0].0", "1[1].0"]


def test_walk_opens_only_the_kinds_that_are_asked_for():
    assert [each.path for each in PLAN.walk(into=("loop",))] == ["0", "0.0", "0.1", "1"]


def test_walk_of_a_stage_begins_with_itself():
    assert [each.path for each in PLAN.stages[0].walk()] == ["0", "0.0", "0.0.0", "0.1"]
