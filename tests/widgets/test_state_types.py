"""The TypeScript types of states are those of Python."""

from typing import Literal, NotRequired, TypedDict

import pytest
import records_examples as examples
import state_types
import workbench_widgets
from workbench_widgets._memory import memory_state
from workbench_widgets.states import FigureColumn, HeadlineFigure, MemoryRow, MemoryState, TabState


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


def test_states_have_exactly_the_keys_of_their_types():
    record = examples.fedavg_record()
    memory, _ = memory_state(record)
    assert memory.keys() == MemoryState.__annotations__.keys()
    assert all(row.keys() == MemoryRow.__annotations__.keys() for row in memory["buffers"])
    data = workbench_widgets.Explorer(record).data
    assert all(each.keys() == HeadlineFigure.__annotations__.keys() for each in data["headline"])
    assert all(each.keys() == TabState.__annotations__.keys() for each in data["views"])
    assert FigureColumn.__annotations__.keys() == {"key", "title", "unit", "tip"}
