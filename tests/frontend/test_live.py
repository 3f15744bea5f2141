import gc
import threading
import time
import weakref

import numpy as np
import pytest
from live_examples import FakeMonitor, FakeRun, sample

import widgets
from widgets._devices import devices_state
from widgets._run import MOST_POINTS, MOST_ROUNDS, RunDigest


def numbers(made: bytes) -> np.ndarray:
    return np.frombuffer(made, "<f4")


def test_devices_state_keeps_the_memory_of_every_device_over_time():
    state = devices_state([sample(0, 10, 20), sample(1, 30, 40)])
    assert numbers(state["seconds"]).tolist() == [0, 1]
    assert numbers(state["memory"]).reshape(2, 2).tolist() == [[10, 30], [20, 40]]


def test_devices_state_without_samples_is_empty():
    assert devices_state([])["devices"] == []


def test_a_closed_devices_view_leaves_the_monitor_alone():
    monitor = FakeMonitor(sample(0, 1))
    view = widgets.DevicesView(monitor)
    alive = weakref.ref(view)
    view.close()
    assert monitor.callbacks == []
    del view
    gc.collect()
    assert alive() is None


def test_a_forgotten_and_closed_run_view_ends_its_thread(monkeypatch):
    monkeypatch.setattr("widgets._run_desk.LOOK_SECONDS", 0.01)
    before = set(threading.enumerate())
    view = widgets.RunView(FakeRun(rounds=2))
    mine = [thread for thread in threading.enumerate() if thread not in before and "run-view" in thread.name]
    view.close()
    for thread in mine:
        thread.join(10)
    assert len(mine) == 1
    assert not mine[0].is_alive()


def test_a_pause_is_seen_although_no_round_finishes(monkeypatch):
    monkeypatch.setattr("widgets._run_desk.LOOK_SECONDS", 0.01)
    run = FakeRun(rounds=2)
    view = widgets.RunView(run)
    run.status = "paused"
    until = time.monotonic() + 10
    while view.live["status"] != "paused" and time.monotonic() < until:
        time.sleep(0.01)
    assert view.live["status"] == "paused"
    view.close()


def test_curve_is_mean_least_and_most_over_clients():
    run, digest = FakeRun(rounds=2), RunDigest()
    run.finish(loss=(3.0, 1.0))
    run.finish(loss=(float("nan"), 2.0))
    curve = digest.state(run)["curves"][0]
    assert numbers(curve["points"]).reshape(-1, 4).tolist() == [[0, 2, 1, 3], [1, 2, 2, 2]]


def test_thousands_of_rounds_are_thinned_and_end_with_the_last():
    run, digest = FakeRun(rounds=5000), RunDigest()
    for step in range(4321):
        run.finish(loss=float(step))
    points = numbers(digest.state(run)["curves"][0]["points"]).reshape(-1, 4)
    assert len(points) <= MOST_POINTS + 1
    assert points[-1].tolist() == [4320, 4320, 4320, 4320]


def test_map_holds_the_last_rounds_and_joins_neighbouring_clients():
    run, digest = FakeRun(rounds=500), RunDigest()
    for step in range(MOST_ROUNDS + 5):
        run.finish(loss=tuple(float(step + client % 2) for client in range(1000)))
    made = digest.state(run)["map"]
    grid = numbers(made["values"]).reshape(made["rows"], made["columns"])
    assert (made["first"], made["columns"], made["together"]) == (5, MOST_ROUNDS, 4)
    assert grid[0, 0] == 5.5  # clients 0 to 3 of round 5: 5, 6, 5, 6
    assert numbers(made["latest"])[:2].tolist() == [124, 125]


def test_a_run_taken_up_from_an_earlier_round_starts_its_curves_again():
    run, digest = FakeRun(rounds=9), RunDigest()
    for step in range(4):
        run.finish(loss=float(step))
    digest.state(run)
    del run.history[2:]
    run.finish(loss=7.0)
    points = numbers(digest.state(run)["curves"][0]["points"]).reshape(-1, 4)
    assert points[:, 1].tolist() == [0, 1, 7]


@pytest.mark.parametrize("name", ["pause", "resume", "stop"])
def test_requests_of_the_view_reach_the_run(name, monkeypatch):
    run = FakeRun(rounds=1)
    view = widgets.RunView(run)
    sent = []
    monkeypatch.setattr(view, "send", sent.append)
    view._receive(view, {"kind": "request", "id": 1, "name": f"{name}_run", "args": {}}, [])
    assert run.told == [name]
    assert sent[0]["value"] == run.status
    view.close()
