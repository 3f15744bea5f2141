"""What only a cluster can do: lack resources, lose a worker."""

import os
import signal

import launch_nodes as nodes
import pytest
from dask_library import dask_cluster
from launch_bursts import check_that_a_lost_service_takes_few_calls_with_it

from workbench.errors import MissingDependencyError, NodeError, ProgramError
from workbench.launch import DaskEngine, Program, PyNode, Restart, ServiceNode, launch

LONG = 60.0


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(MissingDependencyError, match=r'DaskEngine needs the library `distributed`.*\[dask\]"'):
        DaskEngine(None)


@pytest.fixture(scope="module")
def client():
    with dask_cluster(1, 2, resources={"SLOT": 1}) as (_, connected):
        yield connected


def test_everything_that_a_cluster_cannot_hold_is_named_at_once(client):
    program = Program("wishes")
    with program.group("pair", colocate=True):
        program.add_node(ServiceNode(nodes.Counter))
        program.add_node(PyNode(nodes.idle))
    with program.group("rich", resources={"GPU": 2}):
        program.add_node(PyNode(nodes.idle))
    with program.group("apart", environment={"A": "1"}):
        program.add_node(PyNode(nodes.idle))
    with pytest.raises(ProgramError) as caught:
        launch(program, DaskEngine(client))
    for fault in (
        "pair/0 and pair/1 are colocated",
        "rich/0 needs {'GPU': 2}, which no worker offers",
        "apart/0 sets environment variables",
    ):
        assert fault in str(caught.value)


def test_a_node_runs_where_its_resources_are(client):
    program = Program("slot")
    with program.group("seated", resources={"SLOT": 1}):
        counter = program.add_node(ServiceNode(nodes.Counter))
    with launch(program, DaskEngine(client)) as launched:
        assert launched.client(counter).add(1) == 1


def speak(store):
    print("got", store.add(2))
    print("unfinished", end="")


class Speaking(nodes.Counter):
    def add(self, number=1):
        print("adds", number)
        return super().add(number)


def test_printed_lines_of_nodes_are_in_their_logs():
    with dask_cluster(1, 4, processes=True) as (_, connected):
        program = Program("speakers")
        store = program.add_node(ServiceNode(Speaking))
        node = program.add_node(PyNode(speak, store))
        with launch(program, DaskEngine(connected)) as launched:
            launched.wait(LONG)
            assert launched.logs(node) == ("got 2", "unfinished")
            assert launched.logs(store) == ("adds 2",)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 1], ids=["fails", "restarts"])
def test_a_service_whose_worker_is_killed_is_reported_and_restarted_only_as_its_policy_says(limit):
    with dask_cluster(2, 2, processes=True, direct=True) as (_, connected):
        program = Program("lost")
        counter = program.add_node(ServiceNode(nodes.Counter), restart=Restart(limit=limit))
        with launch(program, DaskEngine(connected), on_failure="continue") as launched:
            remote = launched.client(counter)
            assert remote.add(5) == 5
            os.kill(remote.pid(), signal.SIGKILL)
            if limit:
                assert nodes.eventually(lambda: launched.state()[0].restarts == 1)
                assert nodes.eventually(lambda: launched.state()[0].state == "serving")
                assert remote.add(1) == 1
            else:
                assert nodes.eventually(lambda: launched.failures)
                assert launched.state()[0].state == "killed"
                with pytest.raises(NodeError, match="was lost"):
                    remote.add(1)


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_few_calls_with_it_and_the_others_reach_the_next_one():
    with dask_cluster(2, 2, processes=True, direct=True) as (_, connected):
        check_that_a_lost_service_takes_few_calls_with_it(
            DaskEngine(connected), lambda pid: os.kill(pid, signal.SIGKILL), LONG
        )


@pytest.mark.parametrize("what", ["client", "cluster"])
def test_when_dask_is_closed_under_a_program_calls_end_and_so_does_the_program(what, tmp_path):
    held = tmp_path / "held"
    held.touch()
    with dask_cluster(1, 4) as (cluster, connected):
        program = Program("cut")
        counter = program.add_node(ServiceNode(nodes.Counter))
        launched = launch(program, DaskEngine(connected), on_failure="continue")
        client = launched.client(counter)
        assert client.add(1) == 1
        calls = [client.futures.while_there(str(held)), client.futures.add(1)]
        assert nodes.eventually(lambda: launched.state()[0].active_calls == 1, LONG)
        (connected if what == "client" else cluster).close()
        for call in calls:
            with pytest.raises(NodeError, match="did not get an answer from node 'main/0'"):
                call.result(LONG)
        with pytest.raises(NodeError, match="did not get an answer from node 'main/0'"):
            client.add(1)
        held.unlink()
        launched.stop()
        assert launched.state()[0].state == "killed"


@pytest.mark.slow
def test_a_task_whose_worker_is_killed_is_not_run_again_behind_our_back():
    with dask_cluster(2, 2, processes=True) as (_, connected):
        program = Program("lost")
        node = program.add_node(PyNode(nodes.log_pid_then_idle))
        with launch(program, DaskEngine(connected), on_failure="continue") as launched:
            assert nodes.eventually(lambda: launched.logs(node))
            os.kill(int(launched.logs(node)[0]), signal.SIGKILL)
            with pytest.raises(NodeError, match=r"'main/0' \(killed\)"):
                launched.wait(LONG)
            assert len([line for line in launched.logs(node) if line.isdigit()]) == 1
