"""Plans as Ray tasks: the contract, and workers, runs and clusters that end too early."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from engine_contract import EngineContract, client_data, fedavg, start
from stragglers import check_rounds_go_on

import workbench as wb
from workbench.engines import Engine, Ray
from workbench.engines._remote import Task, Values, fingerprint
from workbench.errors import EngineError, MissingDependencyError, ProgramError

LONG = 120.0  # seconds after which something is broken; nothing here waits so long on purpose
ENDLESS = 2 * 10**9


@wb.program(clients=3)
def sines(steps: Any, x: Any) -> Any:
    def one(steps: Any, row: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, v: jnp.sin(v) + row, row)

    return wb.reduce_sum(wb.map_fn(one, (steps, x)))


X = np.arange(3, dtype=np.float32)


def computing() -> list[psutil.Process]:
    """The processes of Ray that compute a task of ours."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith("ray::run_task") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def eventually(condition: Callable[[], Any]) -> Any:
    until = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.1)
    return found


def kill_after_first_client(killed: list[int]) -> Callable[[str, float], None]:
    """A `progress` that ends the workers of all other clients, which compute for seconds more."""

    began: list[float] = []

    def progress(stage: str, done: float) -> None:
        began.extend([done] if done else [])  # while it waits, the run reports 0
        if began and not killed:
            for process in computing():
                killed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)

    return progress


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
class TestRay(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return Ray(clients_per_task=2, check_nan=True)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
class TestFaults:
    def test_rounds_go_on_without_tasks_that_are_late(self):
        check_rounds_go_on(Ray(clients_per_task=1, quorum=4), steps=3 * 10**8)
        eventually(lambda: not computing())

    def test_killed_workers_cost_time_and_change_nothing(self):
        steps, killed = np.array([10, 3 * 10**7, 3 * 10**7], np.int32), []
        run = Ray(clients_per_task=1).run(sines, steps, X, progress=kill_after_first_client(killed))
        assert killed
        assert not set(killed) & {int(client.where.split()[1].rstrip(",")) for client in run.clients[1:]}
        np.testing.assert_allclose(run.results, wb.jit(sines)(steps, X), rtol=1e-5)

    def test_worker_that_is_killed_once_too_often_is_an_error_that_names_its_client(self):
        steps, killed = np.array([10, ENDLESS, ENDLESS], np.int32), []
        with pytest.raises(EngineError, match=r"failed for client [12] on a worker: WorkerCrashedError") as caught:
            Ray(clients_per_task=1, retries=0).run(sines, steps, X, progress=kill_after_first_client(killed))
        assert caught.value.client in (1, 2)
        assert caught.value.stage is not None
        eventually(lambda: not computing())

    def test_task_that_takes_too_long_ends_with_the_run(self):
        with pytest.raises(EngineError, match="timeout_seconds=1"):
            Ray(timeout_seconds=1).run(sines, np.full(3, ENDLESS, np.int32), X)
        eventually(lambda: not computing())

    def test_interrupted_run_ends_its_tasks_and_the_engine_goes_on(self):
        engine = Ray(clients_per_task=1)

        def interrupt() -> None:
            eventually(lambda: len(computing()) == 3)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            engine.run(sines, np.full(3, ENDLESS, np.int32), X)
        eventually(lambda: not computing())
        steps = np.full(3, 10, np.int32)
        np.testing.assert_allclose(engine.run(sines, steps, X).results, wb.jit(sines)(steps, X), rtol=1e-5)

    def test_client_that_raises_is_named_without_pages_of_traceback(self):
        engine = Ray(clients_per_task=2)
        pool: Any = engine.pool
        submit = pool.submit
        broken = engine._put(Values(b"no stage", [], fingerprint([], "other")))
        pool.submit = lambda fn, task, values: submit(fn, Task("other", b"", task.operands), broken)
        with pytest.raises(EngineError, match=r"on a worker: InspectionError") as caught:
            engine.run(fedavg, start(), client_data())
        assert len(str(caught.value)) < 1500


@pytest.mark.slow
def test_resources_that_nobody_has_are_named(ray_cluster: Any):
    with pytest.raises(ProgramError, match=r"resources={'CPU': 1.0, 'GPU': 64.0}, but no machine"):
        Ray(resources={"CPU": 1, "GPU": 64})


@pytest.mark.slow
def test_tasks_take_their_resources(ray_cluster: Any):
    engine = Ray(resources={"CPU": 1, "SLOT": 0.5}, clients_per_task=1)
    assert engine.pool._max_workers == 2  # pyright: ignore[reportAttributeAccessIssue]
    run = engine.run(fedavg, start(), client_data())
    np.testing.assert_allclose(run.results[0], fedavg(start(), client_data())[0], rtol=1e-5)


@pytest.mark.slow
def test_impossible_retries_are_refused(ray_cluster: Any):
    with pytest.raises(ProgramError, match="retries=-2"):
        Ray(retries=-2)


def test_missing_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "mapreduce-workbench\[ray\]"'):
        Ray()


@pytest.mark.slow
def test_ray_that_is_not_started_says_so(monkeypatch: pytest.MonkeyPatch):
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ProgramError, match=r"before `ray.init`.*call `ray.init\(\)`"):
        Ray()


_ASK = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        with socket.create_connection((sys.argv[1], port), 10) as connection:
            connection.settimeout(3)
            connection.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
            print(port, connection.recv(100))
    except OSError as error:
        print(port, error)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not Path("/usr/bin/python3").exists(), reason="only root can ask as another")
def test_no_port_answers_requests_of_another_user_without_the_token(ray_cluster: Any):
    """By default, Ray's autoscaler serves metrics on all interfaces."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert [process for process in processes if "monitor.py" in " ".join(process.cmdline())]
    ports = {
        str(connection.laddr.port)
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert ports
    for address in ("127.0.0.1", ray_cluster.util.get_node_ip_address()):
        command = ["/usr/bin/python3", "-c", _ASK, address, *ports]
        done = subprocess.run(
            command, user=65534, group=65534, extra_groups=[], cwd="/", capture_output=True, text=True, check=True
        )
        assert len(done.stdout.splitlines()) == len(ports)
        assert " 200 " not in done.stdout


_LOST = """
import sys
import numpy as np, psutil, ray
import workbench as wb
from workbench.engines import Ray

@wb.program(clients=2)
def double(x):
    return wb.reduce_sum(wb.map_fn(lambda v: 2 * v, x))

ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=sys.argv[1])
engine = Ray()
raylet = next(child for child in psutil.Process().children() if child.name() == "raylet")
raylet.kill()
raylet.wait()
try:
    engine.run(double, np.ones(2, np.float32))
except wb.errors.EngineError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_raylet_lost_between_runs_is_an_error_and_not_the_end_of_the_kernel():
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        command = [sys.executable, "-c", _LOST, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "`Ray` has lost its cluster: the raylet of this process exited" in done.stdout


_SLOW_AGENT = """
import sys, time
if any(word.endswith(("dashboard/agent.py", "agent/main.py")) for word in sys.orig_argv):
    time.sleep(35)
"""
_START = """
import contextlib, sys
import ray
from workbench._processes import patient_ray_start
with patient_ray_start if sys.argv[1] == "patient" else contextlib.nullcontext():
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=sys.argv[2])
print(ray.get(ray.remote(lambda: 3).options(runtime_env={"env_vars": {"A": "1"}}).remote(), timeout=300))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["patient", "plain"])
def test_ray_starts_although_its_agents_need_more_than_30_seconds(start: str):
    """A plain `ray.init` fails, because the raylet exits while the agent still imports."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # names of Ray's sockets have at most 107 characters
        (Path(folder) / "sitecustomize.py").write_text(_SLOW_AGENT)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])}
        command = [sys.executable, "-c", _START, start, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.strip()[-1:] == "3") == (start == "patient"), done.stderr[-2000:]
