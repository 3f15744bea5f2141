"""What holds on threads and on processes alike."""

import functools
import sys
import threading
from pathlib import Path

import launch_nodes as nodes
import pytest
from dask_library import dask_cluster
from ray_stand_in import SimulatedRay

from workbench.errors import NodeError, NodeTimeoutError, ProgramError
from workbench.launch import DaskEngine, Program, PyClassNode, PyNode, RayEngine, Restart, ServiceNode, launch

LONG = 180.0  # seconds after which something is broken; nothing here waits so long on purpose


@pytest.fixture(scope="module")
def dask_client():
    with dask_cluster(2, 6) as (_, client):
        yield client


@pytest.fixture(params=["threads", "processes", "dask", "ray", "stand-in for ray"])
def on(request, monkeypatch):
    if request.param == "stand-in for ray":
        monkeypatch.setitem(sys.modules, "ray", SimulatedRay())
        return RayEngine()
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return RayEngine()
    if request.param == "dask":
        return DaskEngine(request.getfixturevalue("dask_client"))
    return request.param


@pytest.fixture
def held(tmp_path):
    """The name of a file: `Counter.while_there` answers once it is removed."""
    file = tmp_path / "held"
    file.touch()
    yield str(file)
    file.unlink(missing_ok=True)


def program_with_counter():
    program = Program("test")
    with program.group("counter"):
        counter = program.add_node(ServiceNode(nodes.Counter, 0))
    return program, counter


class TestEveryEngine:
    def test_a_node_that_cannot_be_pickled_is_named(self, on):
        if on == "threads":
            pytest.skip("threads pickle nothing")
        program = Program("unpicklable")
        program.add_node(PyNode(nodes.idle))
        program.add_node(PyNode(nodes.add_once, threading.Lock(), 1))
        with pytest.raises(ProgramError, match=r"cannot send these nodes to their process: main/1 \(TypeError: "):
            launch(program, on)

    def test_nodes_call_a_service_through_their_handles_and_finish_with_code_0(self, on):
        program, counter = program_with_counter()
        with program.group("adders"):
            program.add_node(PyClassNode(nodes.Adder, counter, 20))
            program.add_node(PyNode(nodes.add_once, n=3, counter=counter))
        with launch(program, on) as launched:
            codes = launched.wait(LONG)
            total = launched.client(counter).add(0)
        assert total == 23  # 20 times 1, and 3
        assert codes == {"counter/0": None, "adders/0": 0, "adders/1": 0}
        assert launched.exit_codes["counter/0"] == 0
        assert not launched.alive

    def test_handles_inside_dataclasses_and_partial_calls_become_clients(self, on):
        program, counter = program_with_counter()
        settings = nodes.Settings(n=3, counter=counter)
        again = functools.partial(nodes.add_once, n=20, counter=counter)
        with program.group("adders"):
            program.add_node(PyNode(nodes.add_by_settings, settings, again=again))
            program.add_node(PyNode(functools.partial(nodes.add_once, counter, 100)))
        with launch(program, on) as launched:
            launched.wait(LONG)
            assert launched.client(counter).add(0) == 123
        assert [(e.source, e.target) for e in program.graph().edges] == [
            ("adders/0", "counter/0"),
            ("adders/1", "counter/0"),
        ]
        assert settings.counter == counter  # the notebook's own object is as it was

    def test_futures_come_back_in_their_own_time_and_waiting_ones_can_be_cancelled(self, on, held):
        program, counter = program_with_counter()
        with launch(program, on) as launched:
            client = launched.client(counter)
            assert client.add(1) == 1
            first, second, third = client.futures.while_there(held), client.futures.add(10), client.futures.add(100)
            assert third.cancel()
            Path(held).unlink()
            assert (first.result(LONG), second.result(LONG)) == (held, 11)
            assert client.add(0) == 11  # the cancelled call never reached the service

    def test_futures_of_one_caller_begin_in_the_order_sent(self, on):
        program, counter = program_with_counter()
        with launch(program, on) as launched:
            client = launched.client(counter)
            totals = [client.futures.add(n) for n in range(300)]
            assert [total.result(LONG) for total in totals] == [n * (n + 1) // 2 for n in range(300)]

    def test_a_slow_call_does_not_hold_up_the_answers_of_others(self, on, held):
        program = Program("wide")
        counter = program.add_node(ServiceNode(nodes.Counter), concurrency=2)
        with launch(program, on) as launched:
            client = launched.client(counter)
            assert [client.futures.echo(n).result(LONG) for n in range(20)] == list(range(20))
            slow = client.futures.while_there(held)
            assert [client.futures.echo(n).result(LONG) for n in range(100)] == list(range(100))
            assert not slow.done()
            Path(held).unlink()
            assert slow.result(LONG) == held

    def test_a_call_with_a_deadline_raises_and_says_which_node_was_late(self, on):
        program, counter = program_with_counter()
        with launch(program, on) as launched:
            client = launched.client(counter)
            assert client.within(LONG).add(1) == 1
            with pytest.raises(NodeTimeoutError, match=r"`slow` to node 'counter/0' got no answer within 0.05 s") as e:
                client.within(0.05).slow(0.5)
        assert isinstance(e.value, TimeoutError)
        assert e.value.stage == "counter/0"

    def test_what_a_method_raises_reaches_the_caller_and_the_service_answers_on(self, on):
        program, counter = program_with_counter()
        with launch(program, on) as launched:
            client = launched.client(counter)
            with pytest.raises(ValueError, match="no such thing") as caught:
                client.fail("no such thing")
            assert client.add(1) == 1
            assert nodes.eventually(lambda: launched.state()[0].call_errors == 1)
        text = "".join(pytest.ExceptionInfo.from_exception(caught.value).getrepr(chain=True).__str__())
        assert "launch_nodes.py" in text

    def test_batched_calls_arrive_together_and_each_caller_gets_its_own_result(self, on):
        program = Program("batches")
        doubler = program.add_node(ServiceNode(nodes.Doubler))
        with launch(program, on) as launched:
            client = launched.client(doubler)
            assert client.batch_sizes() == []
            answers = [client.futures.double(n) for n in range(4)]
            assert [answer.result(LONG) for answer in answers] == [0, 2, 4, 6]
            assert client.batch_sizes() == [4]

    def test_a_batched_method_with_too_few_results_says_so(self, on):
        program = Program("batches")
        doubler = program.add_node(ServiceNode(nodes.Doubler))
        with launch(program, on) as launched, pytest.raises(NodeError, match="returned 0 results for a batch of 1"):
            launched.client(doubler).short(1)

    def test_a_service_with_work_of_its_own_runs_and_answers(self, on):
        program = Program("ticker")
        ticker = program.add_node(ServiceNode(nodes.Ticker))
        with launch(program, on) as launched:
            client = launched.client(ticker)
            assert nodes.eventually(lambda: client.seen() > 2)
        assert launched.exit_codes == {"main/0": 0}
        assert launched.state()[0].state == "stopped"

    def test_a_node_that_raises_is_reported_with_label_and_traceback_and_stops_the_program(self, on):
        program, _ = program_with_counter()
        with program.group("idle"):
            program.add_node(PyNode(nodes.idle))
        with program.group("broken"):
            program.add_node(PyNode(nodes.raise_error))
        launched = launch(program, on)
        with pytest.raises(NodeError, match=r"found failed nodes: 'broken/0' \(raised\)") as caught:
            launched.wait(LONG)
        assert "RuntimeError: broken on purpose" in str(caught.value)
        assert "in raise_error" in str(caught.value)
        assert caught.value.stage == "broken/0"
        assert launched.exit_codes == {"counter/0": 0, "idle/0": 0, "broken/0": 1}
        assert not launched.alive

    def test_others_are_reported_of_a_failure_and_can_go_on(self, on):
        program = Program("reported")
        reported = program.add_node(PyNode(nodes.log_peers_then_end))
        program.add_node(PyNode(nodes.raise_error))
        launched = launch(program, on, on_failure="continue")
        with pytest.raises(NodeError, match="the program went on"):
            launched.wait(LONG)
        launched.stop()
        assert launched.exit_codes == {"main/0": 0, "main/1": 1}
        assert "main/1 failed: it raised: RuntimeError: broken on purpose" in launched.logs(reported)

    def test_calls_to_a_node_that_failed_for_good_raise_instead_of_waiting(self, on):
        program = Program("gone")
        gone = program.add_node(ServiceNode(nodes.Fragile))
        with launch(program, on, on_failure="continue") as launched:
            assert nodes.eventually(lambda: launched.failures)
            with pytest.raises(NodeError, match=r"node 'main/0'.*it raised: RuntimeError: fragile"):
                launched.client(gone).touch()

    def test_a_node_is_restarted_as_often_as_its_policy_allows(self, on):
        program, counter = program_with_counter()
        with program.group("worker", restart=Restart(limit=2)):
            program.add_node(PyNode(nodes.raise_first_times, counter, 2))
        with launch(program, on) as launched:
            assert launched.wait(LONG)["worker/0"] == 0
            assert launched.client(counter).add(0) == 3
            assert launched.state()[1].restarts == 2

    def test_log_reports_each_restart_and_the_loss(self, on, caplog):
        program, counter = program_with_counter()
        with program.group("worker", restart=Restart(limit=1)):
            program.add_node(PyNode(nodes.raise_first_times, counter, 5))
        with caplog.at_level("WARNING", logger="workbench.launch"), pytest.raises(NodeError):
            launch(program, on).wait(LONG)
        lines = [record.getMessage() for record in caplog.records if record.name == "workbench.launch"]
        assert "worker/0 raised; restart 1 of at most 1" in lines[0]
        assert "worker/0 is lost" in lines[1]

    def test_a_node_that_uses_up_its_restarts_fails(self, on):
        program, counter = program_with_counter()
        with program.group("worker", restart=Restart(limit=1)):
            program.add_node(PyNode(nodes.raise_first_times, counter, 5))
        launched = launch(program, on)
        with pytest.raises(NodeError, match="not yet"):
            launched.wait(LONG)
        assert launched.state()[1].restarts == 1

    def test_a_node_that_hangs_is_reported_with_its_stack(self, on):
        program = Program("hangs")
        program.add_node(PyNode(nodes.hang), hang_seconds=0.3)
        launched = launch(program, on)
        with pytest.raises(NodeError, match=r"'main/0' \(hung\)") as caught:
            launched.wait(LONG)
        assert "No heartbeat for" in str(caught.value)
        assert "in hang" in str(caught.value)

    def test_a_node_that_hangs_is_restarted(self, on):
        program, counter = program_with_counter()
        program.add_node(PyNode(nodes.hang_first_time, counter), hang_seconds=0.5, restart=Restart(limit=1))
        with launch(program, on) as launched:
            assert launched.wait(LONG)["main/0"] == 0
            assert launched.state()[1].restarts == 1

    def test_exit_codes_of_nodes_that_leave_by_themselves_are_kept(self, on):
        program = Program("leaves")
        program.add_node(PyNode(nodes.leave, 0))
        program.add_node(PyNode(nodes.leave, 3))
        launched = launch(program, on, on_failure="continue")
        with pytest.raises(NodeError, match="exited with code 3"):
            launched.wait(LONG)
        launched.stop()
        assert launched.exit_codes == {"main/0": 0, "main/1": 3}

    def test_a_node_can_stop_the_program(self, on):
        program = Program("stops")
        program.add_node(PyNode(nodes.idle))
        program.add_node(PyNode(nodes.stop_everything))
        launched = launch(program, on)
        assert launched.wait(LONG) == {"main/0": 0, "main/1": 0}
        assert not launched.alive

    def test_state_counts_calls_and_shows_the_queue(self, on, held):
        program, counter = program_with_counter()
        with launch(program, on) as launched:
            client = launched.client(counter)
            for _ in range(5):
                client.add(1)
            assert nodes.eventually(lambda: launched.state()[0].calls == 5)
            waiting = [client.futures.while_there(held) for _ in range(3)]
            assert nodes.eventually(lambda: launched.state()[0].queue_length == 2)
            assert nodes.eventually(lambda: launched.state()[0].active_calls == 1)
            state = launched.state()[0]
            Path(held).unlink()
            del waiting
        assert state.state == "serving"
        assert state.heartbeat_age_seconds >= 0
        assert (
            state.where.split()[0]
            == {"threads": "thread", "processes": "process", "dask": "worker", "ray": "actor"}[launched.engine]
        )

    def test_logs_hold_what_the_node_logged(self, on):
        program = Program("logs")
        node = program.add_node(PyNode(nodes.print_and_log, "this"))
        with launch(program, on) as launched:
            launched.wait(LONG)
            assert "logged this" in launched.logs(node)
            assert "logged this" in launched.state()[0].log_tail

    def test_nodes_defined_on_the_spot_work(self, on):
        class Local:
            def twice(self, x):
                return 2 * x

        program = Program("local")
        local = program.add_node(ServiceNode(Local))
        program.add_node(PyNode(lambda client: client.twice(2), local))
        with launch(program, on) as launched:
            launched.wait(LONG)
            assert launched.client(local).twice(4) == 8
