"""The state that the launch view sends, its threads and its requests; what it looks like is tested in a browser."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
import workbench_widgets
from launch_examples import FakeLaunched, graph, node_state
from workbench_widgets._launch import LaunchView

from workbench.records.launch import LaunchedRecord


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr("workbench_widgets._launch.LOOK_SECONDS", 0.01)


def eventually(holds):
    until = time.monotonic() + 60
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def test_a_program_before_launch_has_its_picture_and_nothing_that_runs():
    before = set(threading.enumerate())
    view = LaunchView(graph())
    assert view.live == {}
    assert list(view.data["nodes"]) == ["store/0", "workers/0", "workers/1"]
    assert view.data["nodes"]["store/0"]["callers"] == ["workers/0", "workers/1"]
    assert view.data["nodes"]["workers/0"]["shares"] == ["workers/1"]
    assert view.text().startswith("Program p: 3 nodes, not launched.")
    assert not [thread for thread in threading.enumerate() if thread not in before and "launch-view" in thread.name]


def test_a_record_of_a_launched_program_is_shown_without_anything_to_stop():
    record = LaunchedRecord(
        graph=graph(), engine="threads", status="running", elapsed_seconds=1.0, states=(node_state("store/0"),)
    )
    view = workbench_widgets.show_record(record)
    assert isinstance(view, LaunchView)
    assert view.live["status"] == "running"
    assert view.log("store/0") == ["first", "last"]
    with pytest.raises(ValueError, match="shown as a record, so it cannot be stopped here"):
        view.stop()


def test_the_view_follows_the_program_until_it_has_ended():
    launched = FakeLaunched()
    before = set(threading.enumerate())
    view = LaunchView(launched)
    (thread,) = (each for each in threading.enumerate() if each not in before and "poll" in each.name)
    launched.calls = 7
    assert eventually(lambda: view.live["nodes"][0]["calls"] == 7)
    launched.alive, launched.status = False, "stopped"
    assert eventually(lambda: view.live["status"] == "stopped")
    thread.join(60)
    assert not thread.is_alive()


def test_a_view_that_nobody_holds_ends_its_thread():
    before = set(threading.enumerate())
    view = LaunchView(FakeLaunched())
    (thread,) = (each for each in threading.enumerate() if each not in before and "poll" in each.name)
    gone = weakref.ref(view)
    view.close()
    del view
    thread.join(60)
    gc.collect()
    assert not thread.is_alive()
    assert gone() is None


def test_only_services_have_calls_and_a_queue():
    view = LaunchView(FakeLaunched())
    store, worker, _ = view.live["nodes"]
    assert (store["rate"], store["queue"]) == (12.0, 3)
    assert (worker["rate"], worker["queue"]) == (None, None)


def test_the_chosen_node_comes_with_its_log_and_its_history():
    launched = FakeLaunched()
    view = LaunchView(launched)
    view.select(node="store/0")
    assert eventually(lambda: (view.live["chosen"] or {}).get("label") == "store/0")
    assert view.live["chosen"]["log"] == ["line 0", "line 1", "line 2"]
    history = view.live["chosen"]["history"]
    assert np.frombuffer(history["calls"], "<f4")[0] == 12.0
    assert np.isnan(np.frombuffer(history["memory"], "<f4")).all()
    assert view.log("store/0") == ["line 0", "line 1", "line 2"]


def test_a_traceback_is_not_shown_twice():
    launched = FakeLaunched(error="Traceback\nValueError: bad\n", log=("before", "Traceback", "ValueError: bad"))
    view = LaunchView(launched, selection={"node": "store/0"})
    view.refresh()
    assert eventually(lambda: view.live["chosen"])
    assert (view.live["chosen"]["log"], view.live["chosen"]["error"]) == (["before"], "Traceback\nValueError: bad\n")


def test_stop_returns_at_once_and_reaches_the_program():
    launched = FakeLaunched()
    view = LaunchView(launched)
    assert view.stop() == "stopping"
    assert eventually(lambda: launched.reported == ["stop"])


def test_an_error_of_the_program_is_shown_and_does_not_end_the_view():
    launched = FakeLaunched()
    view = LaunchView(launched)
    launched.broken = True
    assert eventually(lambda: "the engine lost its record" in view.problem.get("message", ""))
    launched.broken, launched.calls = False, 9
    assert eventually(lambda: view.live["nodes"][0]["calls"] == 9)


def test_the_static_picture_shows_the_states_that_were_seen_last():
    view = LaunchView(FakeLaunched())
    assert "store/0: serving" in view.static_picture()
    assert "● 1 serving" in view.text()
