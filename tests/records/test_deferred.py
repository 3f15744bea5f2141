"""Fields that are made when they are read."""

import copy
import dataclasses
import pickle

import pytest

from workbench.records import Record, deferred
from workbench.records.program import StageRecord


@pytest.fixture
def made() -> list[str]:
    return []


@pytest.fixture
def stage(made: list[str]) -> StageRecord:
    def make() -> str:
        made.append("text")
        return "{ lambda ; }"

    return StageRecord(index=0, path="0", kind="server", name="f", jaxpr=deferred(make))


WHOLE = StageRecord(index=0, path="0", kind="server", name="f", jaxpr="{ lambda ; }")


def test_text_is_made_once_when_it_is_read(stage, made):
    assert stage.name == "f"
    assert made == []
    assert [stage.jaxpr, stage.jaxpr] == ["{ lambda ; }"] * 2
    assert made == ["text"]


@pytest.mark.parametrize(
    "through",
    [
        lambda stage: pickle.loads(pickle.dumps(stage)),
        copy.deepcopy,
        lambda stage: Record.from_json(stage.to_json()),
        dataclasses.replace,
        lambda stage: stage,
    ],
    ids=["pickle", "deepcopy", "json", "replace", "itself"],
)
def test_record_with_a_deferred_text_equals_the_whole_one(stage, through):
    assert through(stage) == WHOLE
    assert repr(through(stage)) == repr(WHOLE)
