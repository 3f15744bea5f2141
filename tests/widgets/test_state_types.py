"""The TypeScript types of states are those of Python."""

from pathlib import Path
from types import UnionType
from typing import Any, Literal, NotRequired, TypedDict, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

import jax
import jax.numpy as jnp
import launch_examples
import pytest
import records_examples as examples
import state_types
import workbench_widgets
from every_view import VIEWS
from workbench_widgets._client_courses import ClientCourses
from workbench_widgets._launch import LaunchView
from workbench_widgets._picture import PictureView
from workbench_widgets.states import LIVE, STATES, MemoryRow

import workbench as wb
from workbench.measurement import open_profile
from workbench.records.live import RoundRecord, TapRecord, TimelineRecord

RECORDED = Path(__file__).parents[1] / "recorded" / "tpu_v6e_4chips_host_offload.xplane.pb"


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
    with pytest.raises(TypeError, match="set"):
        state_types.typescript(set[str])


def test_optional_keys_are_optional_in_typescript(monkeypatch: pytest.MonkeyPatch):
    class Place(TypedDict):
        """A line."""

        line: NotRequired[str]
        at: int

    class Partial(TypedDict, total=False):
        """Part of a line."""

        place: Place

    monkeypatch.setattr(state_types, "STATES", {"view": Partial})
    assert "  line?: string;\n  at: number;\n" in state_types.written()
    assert "  place?: Place;\n" in state_types.written()


def check(value: Any, hint: object, where: str) -> None:
    """Checks the keys of all typed dictionaries inside a value."""
    origin, inside = get_origin(hint), get_args(hint)
    if is_typeddict(hint):
        hints, required = get_type_hints(hint), cast("Any", hint).__required_keys__
        assert required <= value.keys() <= hints.keys(), where
        for name in value:
            check(value[name], hints[name], f"{where}.{name}")
    elif origin is list:
        for each in value:
            check(each, inside[0], where)
    elif origin is dict:
        for each in value.values():
            check(each, inside[1], where)
    elif origin in (Union, UnionType) and isinstance(value, dict):
        forms = [form for form in inside if is_typeddict(form)]
        check(
            value,
            next((f for f in forms if value.get("form") in get_args(get_type_hints(f).get("form"))), forms[0]),
            where,
        )


OWN = {"glossary", "lessons", "cells", "code"}  # of the whole widget
MORE_VIEWS = VIEWS | {
    "launch": lambda: LaunchView(launch_examples.FakeLaunched()),
    "player": lambda: workbench_widgets.PlayerView(None, examples.fedavg_record()),
    "playground": lambda: wb.experiments.playground(),
    "profile": lambda: workbench_widgets.ProfileView(open_profile(RECORDED)),
    "picture": lambda: PictureView(TimelineRecord(name="round", seconds=1.0, spans=(), outcomes=())),
}


def check_data(data: dict[str, Any], view: str) -> None:
    """Checks the state of a widget, and of its tabs."""
    tabs = {tab["key"] for tab in data.get("views", ())}
    own = OWN - get_type_hints(STATES[view]).keys() | tabs
    check({name: value for name, value in data.items() if name not in own}, STATES[view], view)
    for tab in tabs:
        check(data[tab], STATES[tab], tab)


def check_live(live: dict[str, Any], view: str) -> None:
    """Checks the live values of a widget, and of its tabs."""
    for key, value in live.items():
        part, _, own = key.rpartition("/")
        check(value, get_type_hints(LIVE[part or view])[own], key)


@pytest.mark.parametrize("name", MORE_VIEWS)
def test_states_and_live_values_have_exactly_the_keys_of_their_types(name: str):
    view = MORE_VIEWS[name]()
    check_data(view.data, view.view_name)
    check_live(view.live, view.view_name)
    view.close()


def test_results_of_the_kernel_have_exactly_the_keys_of_their_types():
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    shape = jax.ShapeDtypeStruct((256, 256), "float32")
    view = wb.explore(lambda w, batch: jnp.tanh(batch @ w), on=mesh)(shape, shape)
    assert isinstance(view, workbench_widgets.Explorer)
    view.answers.start_search(compiled=False)
    view.answers.start_trial({"w": [["model"], []]}, compiled=False)
    assert view.answers.wait(120)
    assert {"advice/search", "sharding/trial"} <= view.live.keys()
    check_data(view.data, "explorer")
    check_live(view.live, "explorer")


def test_advice_has_exactly_the_keys_of_its_type():
    view = wb.explore(jax.jit(lambda old, new: 0.9 * old + 0.1 * new))(jnp.ones((64, 64)), jnp.ones((64, 64)))
    assert isinstance(view, workbench_widgets.Explorer)
    view.answers.start_advice()
    assert view.answers.wait(120)
    assert view.live["advice/report"]["findings"]
    check_live(view.live, "explorer")


def test_answers_have_exactly_the_keys_of_their_types():
    answers = state_types.answers()
    tapped = TapRecord(name="round", client=(3,), stages={}, values=())
    explorer = workbench_widgets.Explorer(examples.fedavg_record(), tap=lambda _: tapped)
    check(explorer.answers.scale(explorer.record.target, clients=32), answers["scale"], "scale")
    check(explorer.answers.open_client(3), answers["open_client"], "open_client")
    courses = ClientCourses(2)
    courses.read([RoundRecord(round=0, seconds=1.0, metrics={"loss": (1.0, 2.0)})])
    check(courses.of(1), answers["client_course"], "client_course")
    check(courses.state(), LIVE["clients"], "clients")
