"""The TypeScript types of states are those of Python."""

from types import UnionType
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

import launch_examples
import pytest
import records_examples as examples
import state_types
import workbench_widgets
from workbench_widgets._launch import graph_state
from workbench_widgets._overlay import overlay_state
from workbench_widgets.states import (
    CostState,
    HeadlineFigure,
    HloCollective,
    HloCollectiveGroup,
    MemoryRow,
    MemoryState,
    MeshState,
    OperationsState,
    OverlayState,
    PlayedCollective,
    ProgramNode,
    ShardingState,
    TabState,
)

from workbench.measurement import History, overlay_runs
from workbench.records.live import RoundRecord


def test_the_committed_types_are_those_of_python():
    assert state_types.TARGET.read_text(encoding="utf-8") == state_types.written(), "run widgets/state_types.py"


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int | None, "number | null"),
        (list[list[str]], "readonly (readonly string[])[]"),
        (list[int | None], "readonly (number | null)[]"),
        (dict[str, list[float]], "Readonly<Record<string, readonly number[]>>"),
        (tuple[int, str, bool], "readonly [number, string, boolean]"),
        (Literal["a", "b"], '"a" | "b"'),
        (list[MemoryRow], "readonly MemoryRow[]"),
    ],
)
def test_hints_have_a_form_in_typescript(hint: object, text: str):
    assert state_types.typescript(hint) == text


def test_hints_without_a_form_in_json_are_refused():
    with pytest.raises(TypeError, match="bytes"):
        state_types.typescript(bytes)


def test_optional_keys_are_optional_in_typescript(monkeypatch: pytest.MonkeyPatch):
    class Place(TypedDict):
        """A line."""

        line: NotRequired[str]
        at: int

    monkeypatch.setattr(state_types, "STATES", (Place,))
    assert "  line?: string;\n  at: number;\n" in state_types.written()


def check(value: Any, hint: object, where: str) -> None:
    """Checks the keys of all typed dictionaries inside a value."""
    origin, inside = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        assert value.keys() == hints.keys(), where
        for name, each in hints.items():
            check(value[name], each, f"{where}.{name}")
    elif origin is list:
        for each in value:
            check(each, inside[0], where)
    elif origin is dict:
        for each in value.values():
            check(each, inside[1], where)
    elif origin is UnionType and value is not None and is_typeddict(inside[0]):
        check(value, inside[0], where)


def test_states_have_exactly_the_keys_of_their_types():
    data = workbench_widgets.Explorer(examples.fedavg_record()).data
    check(data["headline"], list[HeadlineFigure], "headline")
    check(data["views"], list[TabState], "views")
    states = {
        "memory": MemoryState, "operations": OperationsState, "mesh": MeshState, "cost": CostState,
        "sharding": ShardingState,
    }  # fmt: skip
    for name in states.keys() & data.keys():
        check(data[name], states[name], name)
    check(data["hlo"]["collectives"], list[HloCollective], "collectives")
    check(data["hlo"]["groups"], list[HloCollectiveGroup], "groups")
    check(data["player"]["collectives"], list[PlayedCollective], "player")
    histories = [History([RoundRecord(round=0, seconds=1.0, metrics={"loss": loss})]) for loss in (1.0, 2.0)]
    check(overlay_state(overlay_runs(histories)), OverlayState, "overlay")
    check(graph_state(launch_examples.graph())["nodes"], dict[str, ProgramNode], "launch")
