"""Options of questions: `on=` names the machine, and options that are not used are refused."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.errors import InspectionError, MeshError, ProgramError, WorkbenchError
from workbench.inspection import machine_of
from workbench.measurement import History
from workbench.records.advice import SearchRecord
from workbench.records.live import RoundRecord

EIGHT = jax.sharding.AbstractMesh((8,), ("data",))
ONES = jnp.ones((16, 16))


def product(w, x):
    return jnp.tanh(x @ w).sum()


@pytest.mark.parametrize(
    ("on", "parts"),
    [
        (None, (None, None, None)),
        (EIGHT, (EIGHT, None, None)),
        ("v5e:4x4", (None, "v5e:4x4", None)),
        ("v5e-16", (None, "v5e-16", None)),
        ("v5e", (None, None, "v5e")),
        ("NVIDIA H100 80GB HBM3", (None, None, "NVIDIA H100 80GB HBM3")),
        ((EIGHT, "v5e"), (EIGHT, None, "v5e")),
        ((EIGHT, None), (EIGHT, None, None)),
        (("v5e:2x4", EIGHT), (EIGHT, "v5e:2x4", None)),
    ],
)
def test_machine_has_a_mesh_a_target_and_a_chip(on, parts):
    machine = machine_of(on, "inspect")
    assert (machine.mesh, machine.target, machine.chip) == parts


@pytest.mark.parametrize(
    ("on", "fact"),
    [
        (("v5e", "v5p"), "two chips: v5e and v5p"),
        ((EIGHT, EIGHT), "two meshes"),
        (3, "on=3, an object of type int"),
        ("v99", "'v99'"),
    ],
)
def test_what_is_no_machine_is_refused(on, fact):
    with pytest.raises(MeshError, match=fact):
        wb.inspect(product, on=on)(ONES, ONES)


def test_measuring_takes_no_target():
    with pytest.raises(MeshError, match=r"`measure` was given the target 'v5e:4x4'"):
        wb.measure(product, on="v5e:4x4")(ONES, ONES)
    with pytest.raises(MeshError, match=r"`measure` was given an `AbstractMesh`"):
        wb.measure(product, on=EIGHT)(ONES, ONES)


@pytest.mark.parametrize("question", [wb.inspect, wb.show, wb.explore])
@pytest.mark.parametrize("thing", [ONES, EIGHT, {"w": ONES}], ids=["array", "mesh", "pytree"])
def test_options_of_programs_are_refused_for_other_things(question, thing):
    with pytest.raises(ProgramError, match=rf"`{question.__name__}` was given `on=`"):
        question(thing, on="v5e:2x2")


@pytest.mark.parametrize("question", [wb.inspect, wb.show, wb.explore, wb.why, wb.advise, wb.measure])
@pytest.mark.parametrize(
    "option",
    [{"on": "v5z"}, {"on": 3}, {"chunk_size": 0}, {"rounds": -1}, {"examples_per_client": 3}, {"timeout_seconds": 9.0}],
    ids=str,
)
def test_errors_name_the_function_that_was_called(question, option):
    if option.keys() <= inspect.signature(question).parameters.keys():
        with pytest.raises(WorkbenchError, match=rf"^`{question.__name__}` was given"):
            question(product, **option)(ONES, ONES)


@pytest.mark.parametrize("question", [wb.show, wb.explore])
@pytest.mark.parametrize("option", ["gradient", "rounds", "monitor", "run", "timeline", "runs", "dock"])
def test_explorer_options_of_another_type_are_refused(question, option):
    value = "left" if option == "dock" else 3
    with pytest.raises(InspectionError, match=f"`{question.__name__}` "):
        question(product, **{option: value})(ONES, ONES)
    with pytest.raises(InspectionError, match=f"`{question.__name__}` "):
        question(wb.inspect(product)(ONES, ONES), **{option: value})


def test_explorer_options_also_apply_to_programs_that_are_compiled():
    record = wb.inspect(product)(ONES, ONES)
    assert wb.explore(record, runs=[history(3.0, 1.0)], gradient=record).gradient is record


def test_options_of_targets_are_refused_without_one():
    with pytest.raises(ProgramError, match="`inspect` was given `order` without a target"):
        wb.inspect(product, order="naive")(ONES, ONES)


def test_old_names_of_the_machine_lead_to_the_new():
    with pytest.raises(TypeError, match=r"`inspect` received `target`.*Did you mean `on`\?"):
        wb.inspect(product, **{"target": "v5e:4x4"})


@pytest.mark.parametrize("question", [wb.show, wb.explore])
def test_unknown_view_is_refused_with_the_views_that_there_are(question):
    with pytest.raises(InspectionError, match=rf"`{question.__name__}` was given view='costs'.* mean 'cost'\?.*memory"):
        question(product, view="costs")(ONES, ONES)


def test_every_view_of_a_program_can_be_explored_alone():
    import workbench_widgets

    mesh = wb.make_mesh(data=8)
    for view in workbench_widgets.PROGRAM_VIEWS:
        widget = wb.explore(product, view=view, on=(mesh, "v5e"))(ONES, ONES)
        assert isinstance(widget, workbench_widgets.WorkbenchWidget), view


def test_what_the_explorer_alone_shows_is_refused_with_another_view():
    with pytest.raises(ProgramError, match=r"`explore` was given `monitor=` with view='hlo'"):
        wb.explore(product, view="hlo", monitor=object())(ONES, ONES)


def test_errors_name_the_question():
    with pytest.raises(InspectionError, match="`measure` received an object of type ArrayImpl"):
        wb.measure(ONES)
    with pytest.raises(InspectionError, match="`compare` was given functions together with other objects"):
        wb.compare(product, ONES)


def test_one_line_forms_have_the_options_of_the_methods():
    for name in ("inspect", "explore", "why", "measure", "advise", "search"):
        form, method = getattr(wb.api, name), getattr(wb.api.Traced, name)
        own = [
            p for p in inspect.signature(method).parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD
        ]
        assert [p for p in inspect.signature(form).parameters.values()][1 : 1 + len(own)] == own, name


def test_questions_take_a_traced_call():
    traced = wb.trace(product)(ONES, ONES)
    assert wb.inspect(traced).name == "product"
    assert wb.measure(traced, rounds=1).name == "product"


@pytest.mark.parametrize("on", [EIGHT, (EIGHT, "v5p"), "v5e:2x2", "v5e", ["v5e", "v5p:2x2x1"]])
def test_search_answers_with_one_kind_of_record(on):
    found = wb.search(product, on=on, compiled=False, seconds=5)(ONES, ONES)
    assert isinstance(found, SearchRecord)
    assert found.best.fits
    assert "w" in found.code()
    assert SearchRecord.from_json(found.to_json()) == found


def test_search_for_slices_has_a_row_per_family():
    found = wb.search(product, on=["v5e", "v5p"], compiled=False)(ONES, ONES)
    assert [row.chip for row in found.slices] == ["v5e", "v5p"]
    assert found.best.seconds == min(row.seconds for row in found.slices)
    assert list(found.to_pandas()["chip"]) == ["v5e", "v5p"]


@pytest.mark.parametrize(
    ("on", "options"),
    [(EIGHT, {"axes": ("data",)}), ("v5e:2x2", {"found": print}), ("v5e", {"lock": {}}), ("v5e", {"memory_bytes": 1})],
)
def test_search_refuses_options_of_other_kinds_of_search(on, options):
    with pytest.raises(ProgramError, match=f"`{next(iter(options))}`, which a search for"):
        wb.search(product, on=on, compiled=False, **options)(ONES, ONES)


def test_search_refuses_a_mesh_of_another_size_than_the_target():
    with pytest.raises(MeshError, match="a mesh of 8 devices and the target v5e:2x2, which has 4 devices"):
        wb.search(product, on=(EIGHT, "v5e:2x2"), compiled=False)(ONES, ONES)


def history(*losses):
    return History([RoundRecord(round=r, seconds=1.0, metrics={"loss": x}) for r, x in enumerate(losses)])


def test_runs_are_compared_like_programs():
    by_name = wb.compare({"a": [history(3.0, 1.0)], "b": [history(3.0, 2.0)]})
    in_order = wb.compare(history(3.0, 1.0), history(3.0, 2.0), metric="loss")
    assert by_name.table()["mean"].tolist() == in_order.table()["mean"].tolist() == [1.0, 2.0]


def test_options_of_runs_are_refused_for_programs():
    record = wb.inspect(product)(ONES, ONES)
    with pytest.raises(ProgramError, match="`compare` was given `metric=` without runs"):
        wb.compare(record, record, metric="loss")


def test_the_root_has_at_most_forty_names_and_all_of_them_exist():
    assert len(wb.__all__) <= 40
    assert all(hasattr(wb, name) for name in wb.__all__)


def test_packages_are_attributes_of_the_root_though_it_does_not_list_them():
    assert callable(wb.aot.list_targets)
    assert "aot" not in wb.__all__
