"""The kernel's answers to the advice view, without a browser."""

import threading

import jax
import jax.numpy as jnp
import pytest
import records_examples as examples
import workbench_widgets
from workbench_widgets._advice_state import advice_state

import workbench as wb
from workbench.records.advice import AdviceRecord, FindingRecord, GainRecord

GAIN = GainRecord(quantity="peak bytes", before=2048.0, after=1024.0, verified=True, how="compiled")
FINDING = FindingRecord(
    rule="missing donation",
    what="1 KiB could be donated.",
    why="The state is kept beside its successor.",
    change="Donate it.",
    evidence=("2 arguments match results",),
    weight=0.5,
    code="jax.jit(step, donate_argnums=0)",
    leaves=("[0]",),
    size_bytes=1024.0,
    gain=GAIN,
    compared=(GAIN,),
)


def advises(*, found, progress, cancel):
    progress("compiling change 1 of 1", 0.0)
    return AdviceRecord(name="step", target="here", findings=(FINDING,), checked=("a rule",))


def flushed(view):
    assert view.answers.wait(20)
    return view.live


def test_findings_arrive_with_figures_written_out():
    view = workbench_widgets.Explorer(examples.fedavg_record(), advise=advises)
    assert view.data["advice"] == {"can_advise": True, "can_search": False, "missing": None, "rules": []}
    view.answers.start_advice()
    live = flushed(view)
    assert live["advice/job"]["status"] == "done"
    finding = live["advice/report"]["findings"][0]
    assert (finding["title"], finding["bytes"], finding["verified"]) == ("1 KiB could be donated.", "1 KiB", True)
    assert finding["gain"]["saved_share"] == 0.5


def test_record_without_a_program_cannot_be_advised():
    view = workbench_widgets.Explorer(examples.fedavg_record())
    assert view.data["advice"]["can_advise"] is False
    assert "a record without its program" in view.data["advice"]["missing"]
    with pytest.raises(RuntimeError, match="Open the view from the program"):
        view.answers.start_advice()


def test_stop_cancels_and_is_reported():
    started = threading.Event()

    def waits(*, found, progress, cancel):
        started.set()
        assert cancel.wait(60)
        return advises(found=found, progress=progress, cancel=cancel)

    view = workbench_widgets.Explorer(examples.fedavg_record(), advise=waits)
    view.answers.start_advice()
    assert started.wait(60)
    view.answers.stop("advice")
    assert flushed(view)["advice/job"]["status"] == "stopped"


def test_findings_are_shown_while_others_are_verified():
    shown, stop = threading.Event(), threading.Event()

    def finds(*, found, progress, cancel):
        found(AdviceRecord(name="step", target="here", findings=(FINDING,), checked=("a rule",)))
        shown.set()
        assert stop.wait(60)
        return advises(found=found, progress=progress, cancel=cancel)

    view = workbench_widgets.Explorer(examples.fedavg_record(), advise=finds)
    view.answers.start_advice()
    assert shown.wait(60)
    assert view.answers.advice is not None
    assert view.live["advice/job"]["status"] == "running"
    stop.set()
    assert flushed(view)["advice/job"]["status"] == "done"


def test_failure_is_reported_with_its_message():
    def fails(*, found, progress, cancel):
        raise ValueError("no such chip")

    view = workbench_widgets.Explorer(examples.fedavg_record(), advise=fails)
    view.answers.start_advice()
    assert flushed(view)["advice/job"]["error"]["message"] == "ValueError: no such chip"


def test_explorer_of_a_program_finds_its_missing_donation():
    average = jax.jit(lambda old, new: 0.9 * old + 0.1 * new)
    view = wb.explore(average)(jnp.ones((64, 64)), jnp.ones((64, 64)))
    view.answers.start_advice()
    finding = flushed(view)["advice/report"]["findings"][0]
    assert finding["rule"] == "missing donation"
    assert finding["verified"]
    assert finding["code"].startswith("fn = jax.jit(fn, donate_argnums=")


def test_search_arrives_as_rows_and_locked_specs_stay():
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    shape = jax.ShapeDtypeStruct((256, 256), "float32")
    view = wb.explore(lambda w, batch: jnp.tanh(batch @ w), on=mesh)(shape, shape)
    assert view.data["advice"]["can_search"]
    view.answers.start_search(lock={"batch": [["model"], []]}, compiled=False)
    assert view.answers.wait(120)
    assert view.live["advice/search_job"]["status"] == "done"
    rows = view.live["advice/search"]["rows"]
    assert all(row["specs"]["batch"] == "P('model')" for row in rows)
    assert 'batch = placed("batch", batch)' in rows[0]["code"]


def test_search_without_a_mesh_is_refused():
    with pytest.raises(RuntimeError, match="without a mesh"):
        workbench_widgets.Explorer(examples.fedavg_record()).answers.start_search()


def test_arrays_have_the_names_of_the_sharding_view():
    advice = AdviceRecord(name="step", target="here", findings=(FINDING,), checked=("a rule",))
    state = advice_state(advice, leaves={"[0]": "model.kernel"})
    assert state["findings"][0]["leaves"] == ["model.kernel"]


def test_what_is_shown_can_be_advised():
    shown = workbench_widgets.show_record(examples.fedavg_record(), advise=advises)
    assert shown.data["advice"]["can_advise"]


def test_every_form_of_show_and_explore_can_be_advised(monkeypatch):
    seen = []
    monkeypatch.setattr("workbench.api._show.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", seen.append)
    summed = jax.jit(lambda x: (x @ x).sum())
    wb.show(summed)(jnp.ones((4, 4)))
    record = wb.inspect(summed)(jnp.ones((4, 4)))
    wb.show(record)
    seen += [wb.explore(summed)(jnp.ones((4, 4))), wb.explore(record)]
    assert [view.data["advice"]["can_advise"] for view in seen if hasattr(view, "data")] == [True] * 4
    seen[-1].answers.start_advice()
    assert flushed(seen[-1])["advice/job"]["status"] == "done"
