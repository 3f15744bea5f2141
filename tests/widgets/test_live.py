import gc
import math
import threading
import time
import weakref

import numpy as np
import pytest
import records_examples as examples
import workbench_widgets
from live_examples import FakeMonitor, FakeRun, sample
from workbench_widgets._client_courses import MOST_ROUNDS as MOST_KEPT, ClientCourses
from workbench_widgets._clients import ClientsView
from workbench_widgets._devices import devices_state
from workbench_widgets._run import MOST_COLUMNS, MOST_POINTS, MergedMap, RunDigest

from workbench.records.live import ClientOutcomeRecord, RoundRecord, TappedValueRecord, TapRecord, TimelineRecord
from workbench.records.run import ClientRunRecord, RunRecord


def numbers(made: bytes) -> np.ndarray:
    return np.frombuffer(made, "<f4")


def test_devices_state_keeps_the_memory_of_every_device_over_time():
    state = devices_state([sample(0, 10, 20), sample(1, 30, 40)])
    assert numbers(state["seconds"]).tolist() == [0, 1]
    assert numbers(state["memory"]).reshape(2, 2).tolist() == [[10, 30], [20, 40]]


def test_devices_state_without_samples_is_empty():
    assert devices_state([])["devices"] == []


def test_devices_without_scripts_are_a_table_of_the_last_sample():
    monitor = FakeMonitor()
    view = workbench_widgets.DevicesView(monitor)
    assert "no samples" in view.static_html()
    monitor.take(sample(0, 1024, 2048))
    assert "2 KiB</td>" in view.static_html()
    view.close()


def test_a_closed_devices_view_leaves_the_monitor_alone():
    monitor = FakeMonitor(sample(0, 1))
    view = workbench_widgets.DevicesView(monitor)
    alive = weakref.ref(view)
    view.close()
    assert monitor.callbacks == []
    del view
    gc.collect()
    assert alive() is None


def test_a_forgotten_and_closed_run_view_ends_its_thread(monkeypatch):
    monkeypatch.setattr("workbench_widgets._run_controller.LOOK_SECONDS", 0.01)
    before = set(threading.enumerate())
    view = workbench_widgets.RunView(FakeRun(rounds=2))
    mine = [thread for thread in threading.enumerate() if thread not in before and "poll" in thread.name]
    view.close()
    for thread in mine:
        thread.join(60)
    assert len(mine) == 1
    assert not mine[0].is_alive()


def test_a_pause_is_seen_although_no_round_finishes(monkeypatch):
    monkeypatch.setattr("workbench_widgets._run_controller.LOOK_SECONDS", 0.01)
    run = FakeRun(rounds=2)
    view = workbench_widgets.RunView(run)
    run.status = "paused"
    until = time.monotonic() + 60
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


def test_map_joins_neighbouring_clients():
    run, digest = FakeRun(rounds=500), RunDigest()
    for step in range(5):
        run.finish(loss=tuple(float(step + client % 2) for client in range(1000)))
    made = digest.state(run)["map"]
    grid = numbers(made["values"]).reshape(made["rows"], made["columns"])
    assert (made["first"], made["last"], made["columns"], made["together"], made["each"]) == (0, 4, 5, 4, 1)
    assert grid[0, 0] == 0.5  # clients 0 to 3 of round 0: 0, 1, 0, 1
    assert numbers(made["latest"])[:2].tolist() == [4, 5]


def test_map_of_more_rounds_than_columns_averages_neighbours_and_holds_all_rounds():
    merged = MergedMap(4)
    for step in range(11):
        merged.add(step, np.array([float(step), np.nan]))
    assert (merged.first, merged.last, merged.each) == (0, 10, 4)
    np.testing.assert_array_equal(merged.grid(), [[1.5, 5.5, 9.0], [np.nan] * 3])


def test_a_long_run_has_no_more_columns_than_a_screen():
    merged = MergedMap(MOST_COLUMNS)
    for step in range(3 * MOST_COLUMNS + 7):
        merged.add(step, np.array([float(step)]))
    assert len(merged.columns) <= MOST_COLUMNS


def test_curve_holds_percentiles_over_clients_and_the_time():
    run, digest = FakeRun(rounds=2), RunDigest()
    run.finish(loss=tuple(float(client) for client in range(101)))
    curve = digest.state(run)["curves"][0]
    assert numbers(curve["spread"]).tolist() == [0.5, 10, 25, 50, 75, 90]


def test_the_first_round_says_nothing_about_the_time_that_is_left():
    run, digest = FakeRun(rounds=10), RunDigest()
    run.finish(loss=1.0)
    assert digest.state(run)["left"] == "unknown"
    run.finish(loss=1.0)
    assert digest.state(run)["left"] == "4 s"


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
    view = workbench_widgets.RunView(run)
    sent = []
    monkeypatch.setattr(view, "send", sent.append)
    view._receive(view, {"kind": "request", "id": 1, "name": f"{name}_run", "args": {}}, [])
    assert run.reported == [name]
    assert sent[0]["value"] == run.status
    view.close()


def clients_view(**options):
    run = FakeRun(rounds=9)
    view = ClientsView(examples.fedavg_record(4), rounds=run, **options)
    return run, view


def ask(view, name, **arguments):
    sent = []
    view.send = sent.append
    view._receive(view, {"kind": "request", "id": 1, "name": name, "args": arguments}, [])
    wait_until(lambda: any(each["kind"] == "response" for each in sent))
    return next(each for each in sent if each["kind"] == "response")


def wait_until(holds, seconds=60.0):
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    assert holds()


def test_clients_of_a_run_are_followed_round_by_round(monkeypatch):
    run, view = clients_view()
    run.finish(loss=(4.0, 3.0, 2.0, 1.0), accuracy=0.5)
    run.finish(loss=(3.0, 2.0, 1.0, math.nan), accuracy=0.6)
    wait_until(lambda: view.live.get("rounds") == (0, 1))
    assert view.live["metrics"] == [{"key": "loss", "round": 1}]  # accuracy is not of single clients
    assert numbers(view.live["values"])[:3].tolist() == [3, 2, 1]
    (course,) = ask(view, "client_course", client=3)["value"]
    assert (course["rounds"], course["values"]) == ([0, 1], [1.0, None])
    assert course["mean"] == [2.5, 2.0]
    assert ask(view, "clients_in_round", round=0)["value"] == {"loss": [4.0, 3.0, 2.0, 1.0]}
    view.close()


def test_local_steps_of_the_last_round_belong_to_a_clients_course():
    courses = ClientCourses(2)
    courses.read([RoundRecord(round=0, seconds=1.0, metrics={"loss": ((4.0, 2.0), (8.0, 6.0))})])
    (course,) = courses.of(1)
    assert (course["values"], course["steps"]) == ([7.0], [8.0, 6.0])


def test_courses_hold_the_last_rounds_only_and_start_again_with_the_run():
    courses = ClientCourses(2)
    rounds = [RoundRecord(round=i, seconds=1.0, metrics={"loss": (float(i), 0.0)}) for i in range(MOST_KEPT + 50)]
    courses.read(rounds)
    assert courses.of(0)[0]["rounds"] == list(range(50, MOST_KEPT + 50))
    courses.read(rounds[:2])
    assert courses.of(0)[0]["values"] == [0.0, 1.0]


def test_a_client_is_opened_by_evaluating_the_program():
    value = TappedValueRecord(stage="1", name="loss", operation="div", shape=(), dtype="float32", mean=0.5, value=0.5)
    taps = []

    def tap(client):
        taps.append(client)
        return TapRecord(name="fedavg", client=(client,), stages={"1": "train"}, values=(value,))

    _, view = clients_view(tap=tap)
    answer = ask(view, "open_client", client=2)["value"]
    assert taps == [2]
    assert "treescope" in answer["html"]
    assert "loss: float32 0.5" in answer["text"]
    assert view.data["opens"]
    view.close()


def test_a_record_without_its_program_cannot_be_opened():
    _, view = clients_view()
    answer = ask(view, "open_client", client=2)
    assert (
        "`open_client` was given client=2, but this view shows a record without its program"
        in answer["error"]["message"]
    )
    assert not view.data["opens"]
    view.close()


def test_a_view_without_a_run_cannot_pause_it():
    view = workbench_widgets.Explorer(examples.fedavg_record())
    assert "`pause` was called on a view without a run" in ask(view, "pause_run")["error"]["message"]
    view.close()


def test_explorer_sends_rounds_only_while_a_tab_shows_them():
    run = FakeRun(rounds=9)
    explorer = workbench_widgets.Explorer(examples.fedavg_record(4), rounds=run, view="mesh")
    run.finish(loss=(1.0, 2.0, 3.0, 4.0))
    assert explorer.live["run/finished"] == 0
    explorer.settings = {"view": "run"}
    wait_until(lambda: explorer.live["run/finished"] == 1)
    assert numbers(explorer.live["clients/values"]).tolist() == [1, 2, 3, 4]
    explorer.close()


def test_columns_distinguish_estimated_measured_and_simulated():
    outcome = [
        ClientOutcomeRecord(client=i, status="late" if i else "finished", needed_seconds=1.0 + i) for i in range(4)
    ]
    timeline = TimelineRecord(name="round", seconds=1.0, spans=(), outcomes=tuple(outcome))
    clients = tuple(ClientRunRecord(stage="1", client=i, seconds=(1.0, 1.0, 1.0, 4.0)[i]) for i in range(4))
    run = RunRecord(name="fedavg", engine="cpu x 1", seconds=1.0, clients=clients)
    view = ClientsView(examples.fedavg_record(4), run, timeline=timeline)
    kinds = {column["key"]: column["kind"] for column in view.data["columns"]}
    assert (kinds["flops"], kinds["seconds"], kinds["needed"]) == ("predicted", "measured", "simulated")
    assert numbers(view.arrays["clients.slowness"]).tolist() == [1, 1, 1, 4]
    assert "multiple of the median time (measured)" in view.text()
    view.close()
