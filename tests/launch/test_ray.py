"""What only Ray does: actors that are shared, placed by resources, killed and started anew."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import CancelledError

import launch_nodes as nodes
import pytest
from launch_bursts import check_that_a_lost_service_takes_few_calls_with_it
from ray_stand_in import SimulatedRay

from workbench.errors import MissingDependencyError, NodeError, ProgramError
from workbench.launch import Program, PyClassNode, PyNode, RayEngine, Restart, ServiceNode, launch

LONG = 120.0


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r'RayEngine needs the library `ray`.*\[ray\]"'):
        RayEngine()


def test_before_ray_is_connected_the_error_says_to_call_init(monkeypatch):
    class NotConnected:
        @staticmethod
        def is_initialized():
            return False

    monkeypatch.setitem(sys.modules, "ray", NotConnected)
    with pytest.raises(ProgramError, match=r"`RayEngine\(\)` was created before `ray.init`.*`ray.init\(address=...\)`"):
        RayEngine()


def check_that_callers_find_a_lost_actor_again(lose):
    program = Program("lost")
    counter = program.add_node(ServiceNode(nodes.Counter), restart=Restart(limit=1))
    relay = program.add_node(ServiceNode(nodes.Relay, counter))
    with launch(program, RayEngine(), on_failure="continue") as launched:
        direct, through = launched.client(counter), launched.client(relay)
        assert direct.add(5) == 5
        assert through.add(5) == 10
        lose(direct)
        assert nodes.eventually(lambda: launched.state()[0].restarts == 1, LONG)
        assert nodes.eventually(lambda: launched.state()[0].state == "serving", LONG)
        assert direct.add(1) == 1  # a new object
        with pytest.raises(NodeError, match="may have taken effect"):  # the other node had not heard of it
            through.add(1)
        assert through.add(1) == 2


def test_a_lost_actor_that_still_owns_its_name_is_restarted_and_found_again(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimulatedRay())

    def lose(_):
        ray = sys.modules["ray"]
        ray.lose(next(actor for name, actor in ray.named.items() if name.endswith("main/0")))

    check_that_callers_find_a_lost_actor_again(lose)


def test_a_lost_actor_takes_few_calls_with_it_and_the_others_reach_the_next_one(monkeypatch):
    ray = SimulatedRay()
    monkeypatch.setitem(sys.modules, "ray", ray)

    def lose(_):
        ray.lose(next(iter(ray.named.values())))

    check_that_a_lost_service_takes_few_calls_with_it(RayEngine(), lose, LONG)


def test_when_ray_is_shut_down_nodes_are_lost_calls_raise_and_no_new_cluster_is_started(monkeypatch):
    ray = SimulatedRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    program = Program("cut")
    counter = program.add_node(ServiceNode(nodes.Counter), restart=Restart(limit=1))
    launched = launch(program, RayEngine(), on_failure="continue")
    client = launched.client(counter)
    assert client.add(1) == 1
    under_way, waiting = client.futures.slow(30.0), client.futures.add(1)
    assert nodes.eventually(lambda: launched.state()[0].active_calls == 1, LONG)
    for name in ("get", "wait", "get_actor", "kill", "remote", "nodes"):  # each would start a cluster
        monkeypatch.setattr(ray, name, None)
    ray.shut_down = True
    with pytest.raises(NodeError, match=r"`slow` did not get an answer"):
        under_way.result(LONG)
    with pytest.raises(CancelledError):
        waiting.result(LONG)
    monkeypatch.setattr(next(iter(ray.named.values())), "under_way", [])
    for actor in ray.named.values():  # what would end with the actor's process
        actor.pools["control"].shutdown()
        actor.instance._actor.end_output()
    assert nodes.eventually(lambda: launched.failures, LONG)
    assert launched.failures == {"main/0": "The actor of 'main/0' was lost: Ray was shut down"}
    with pytest.raises(NodeError, match="Ray was shut down"):
        client.add(1)
    launched.stop()


def test_ray_can_be_shut_down_under_a_program_and_started_again():
    pytest.importorskip("ray", reason="needs the extra `ray`")
    code = """
        import time
        import ray
        from workbench.launch import Program, RayEngine, ServiceNode, launch

        class Slow:
            def slow(self, seconds):
                time.sleep(seconds)
                return seconds

        def start():
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
            program = Program("cut")
            slow = program.add_node(ServiceNode(Slow))
            launched = launch(program, RayEngine())
            return launched, launched.client(slow)

        launched, client = start()
        assert client.slow(0.01) == 0.01
        under_way = client.futures.slow(60.0)
        time.sleep(0.5)
        ray.shutdown()
        print(under_way.exception(30))
        launched.stop()
        print(launched.failures)
        again, client = start()
        print("again", client.slow(0.01))
        again.stop()
        ray.shutdown()
    """
    environment = os.environ | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "`slow` did not get an answer from node 'main/0'" in ran.stdout
    assert "Ray was shut down" in ran.stdout
    assert "again 0.01" in ran.stdout


@pytest.mark.usefixtures("ray_cluster")
class TestOnACluster:
    def test_resources_that_nobody_has_are_named_at_once(self):
        program = Program("wishes")
        with program.group("rich", resources={"GPU": 64}):
            program.add_node(PyNode(nodes.idle))
        with pytest.raises(ProgramError, match=r"no machine in the cluster can run: rich/0 needs {'GPU': 64}"):
            launch(program, RayEngine())

    def test_colocated_nodes_share_an_actor_with_the_resources_and_the_environment_of_their_group(self):
        program = Program("pair")
        with program.group("pair", colocate=True, resources={"SLOT": 0.5}, environment={"WORKBENCH_TEST_NUMBER": "41"}):
            counter = program.add_node(ServiceNode(nodes.Counter))
            program.add_node(PyNode(nodes.read_environment, counter, "WORKBENCH_TEST_NUMBER"))
        with program.group("apart"):
            program.add_node(PyClassNode(nodes.Adder, counter, 1))
        with launch(program, RayEngine()) as launched:
            assert launched.wait(LONG) == {"pair/0": None, "pair/1": 0, "apart/0": 0}
            assert launched.client(counter).add(0) == 42
            where = [state.where for state in launched.state()]
        assert where[0] == where[1] != where[2]

    def test_an_actor_that_is_killed_is_reported_with_its_label_and_calls_to_it_raise(self):
        program = Program("lost")
        counter = program.add_node(ServiceNode(nodes.Counter))
        with launch(program, RayEngine(), on_failure="continue") as launched:
            remote = launched.client(counter)
            assert remote.add(5) == 5
            os.kill(remote.pid(), 9)
            assert nodes.eventually(lambda: launched.failures, LONG)
            assert launched.exit_codes == {"main/0": -9}
            with pytest.raises(NodeError, match=r"it was (lost|killed): The actor is dead"):
                remote.add(1)

    def test_an_actor_that_is_killed_is_restarted_as_its_policy_says_and_found_again(self):
        check_that_callers_find_a_lost_actor_again(lambda counter: os.kill(counter.pid(), 9))

    def test_an_actor_that_is_killed_takes_few_calls_with_it_and_the_others_reach_the_next_one(self):
        check_that_a_lost_service_takes_few_calls_with_it(RayEngine(), lambda pid: os.kill(pid, 9), LONG)
