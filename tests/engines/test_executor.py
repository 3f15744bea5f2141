import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from engine_contract import CLIENTS, EngineContract, client_data, fedavg, printing, rounds, start
from stragglers import check_rounds_go_on

import workbench as wb
from workbench.engines import Engine, Executor, _executor, _remote
from workbench.errors import EngineError, ProgramError

pytestmark = pytest.mark.usefixtures("little_optimized")


class Shipping(concurrent.futures.Executor):
    """A worker in this process that gets, and gives back, nothing but pickled bytes."""

    def __init__(self) -> None:
        self.tasks: list[bytes] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.tasks.append(pickle.dumps((fn, args)))
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        call, operands = pickle.loads(self.tasks[-1])
        try:
            future.set_result(pickle.loads(pickle.dumps(call(*operands))))
        except Exception as error:
            future.set_exception(error)
        return future


class TestThreads(EngineContract):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            yield Executor(pool, clients_per_task=2)


class TestStagesAsBytes(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return Executor(Shipping(), clients_per_task=3)


@pytest.mark.slow
class TestLoky(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        loky = pytest.importorskip("loky")
        return Executor(loky.get_reusable_executor(2, timeout=60, env={"JAX_PLATFORMS": "cpu"}), clients_per_task=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    pytest.importorskip("distributed.client", reason="needs the extra `dask`")  # a folder can be called `distributed`
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0", silence_logs=50
        ) as started,
        distributed.Client(started) as client,
    ):
        yield client


@pytest.mark.slow
class TestDask(EngineContract):
    @pytest.fixture
    def engine(self, cluster: Any) -> Engine:
        return Executor(cluster.get_executor(), clients_per_task=2)


@pytest.mark.slow
def test_rounds_on_dask_go_on_without_tasks_that_are_late(cluster: Any):
    check_rounds_go_on(Executor(cluster.get_executor(), clients_per_task=1, quorum=4), steps=3 * 10**8)


@wb.program(clients=5)
def logarithms(x: Any) -> Any:
    return wb.reduce_sum(wb.map_fn(jnp.log, x))


def test_partial_sums_travel_and_not_clients():
    @wb.program(clients=100)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row**2, x))

    run = Executor(Shipping(), clients_per_task=25).run(total, np.ones((100, 8), np.float32))
    # 4 tasks reply with a sum of 8 float32 each; nothing is broadcast.
    assert run.moved_bytes == 4 * 8 * 4
    assert run.results.tolist() == [100.0] * 8


def test_stage_is_compiled_once_per_worker_and_not_per_client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_remote, "_LOADED", {})
    Executor(Shipping(), clients_per_task=1).run(rounds, start(), client_data())
    assert len(_remote._LOADED) == 1


def test_last_batch_is_filled_up_and_not_counted():
    run = Executor(Shipping(), clients_per_task=4).run(fedavg, start(), client_data())
    assert [client.client for client in run.clients] == list(range(CLIENTS))


@pytest.mark.parametrize("pool", [Shipping, lambda: concurrent.futures.ThreadPoolExecutor(2)], ids=["bytes", "threads"])
def test_nan_in_a_batch_is_traced_to_its_client(pool: Any):
    x = np.array([1, 2, 3, -1, 5], np.float32)
    with pytest.raises(EngineError, match=r"stage 0 .* produced a NaN for client 3, in the partial result") as caught:
        Executor(pool(), clients_per_task=5, check_nan=True).run(logarithms, x)
    assert caught.value.client == 3


def test_task_that_raises_names_its_clients():
    class Broken(Shipping):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            future = super().submit(fn, *args, **kwargs)
            if len(self.tasks) == 2:
                future = concurrent.futures.Future()
                future.set_exception(MemoryError("worker out of memory"))
            return future

    with pytest.raises(EngineError, match=r"one of the clients 2, 3 on a worker: MemoryError: worker out") as caught:
        Executor(Broken(), clients_per_task=2).run(fedavg, start(), client_data())
    assert isinstance(caught.value.__cause__, MemoryError)
    assert caught.value.client == "2, 3"


def test_client_that_raises_on_threads_is_named():
    def look(v: np.ndarray) -> np.ndarray:
        if v == 3:
            message = "no such file"
            raise OSError(message)
        return v

    @wb.program(clients=5)
    def looked(x: Any) -> Any:
        aval = jax.ShapeDtypeStruct((), jnp.float32)
        return wb.reduce_sum(wb.map_fn(lambda v: jax.pure_callback(look, aval, v, vmap_method="sequential"), x))

    with (
        concurrent.futures.ThreadPoolExecutor(2) as pool,
        pytest.raises(EngineError, match=r"failed for client 3 on .*no such file") as caught,
    ):
        Executor(pool, clients_per_task=5).run(looked, np.arange(5, dtype=np.float32))
    assert caught.value.client == 3


def test_task_that_hangs_ends_the_run():
    class Silent(Shipping):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return concurrent.futures.Future()

    with pytest.raises(EngineError, match=r"did not answer for one of the clients 0, 1 within .*timeout_seconds=0.2"):
        Executor(Silent(), clients_per_task=2, timeout_seconds=0.2).run(fedavg, start(), client_data())


def test_waiting_ends_when_the_run_is_cancelled():
    class Silent(Shipping):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            cancel.set()
            return concurrent.futures.Future()

    cancel = threading.Event()
    with pytest.raises(EngineError, match="was cancelled"):
        Executor(Silent(), clients_per_task=2).run(fedavg, start(), client_data(), cancel=cancel)


def test_closed_pool_says_so():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(EngineError, match="cannot schedule new futures after shutdown"):
        Executor(pool).run(fedavg, start(), client_data())


def test_callbacks_cannot_travel():
    with pytest.raises(EngineError, match=r"stage 0 \(`one`\) could not be exported.*stages cannot have callbacks"):
        Executor(Shipping()).run(wb.program(clients=5)(printing), np.ones(5, np.float32))


def test_forking_pool_is_refused():
    context = multiprocessing.get_context("fork")
    with (
        concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool,
        pytest.raises(EngineError, match=r"ProcessPoolExecutor that starts its processes by fork.*hangs.*spawn"),
    ):
        Executor(pool)


@pytest.mark.parametrize("size", [0, "many", True], ids=str)
def test_batch_size_is_checked(size: Any):
    with pytest.raises(ProgramError, match=r"clients_per_task=.*positive int"):
        Executor(Shipping(), clients_per_task=size)


def test_pool_is_checked():
    with pytest.raises(ProgramError, match="which has no `submit`"):
        Executor("four threads")  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_killed_worker_is_an_error_that_names_stage_and_clients():
    loky = pytest.importorskip("loky")
    x, y = client_data()
    pool = loky.ProcessPoolExecutor(1, timeout=60, env={"JAX_PLATFORMS": "cpu"})
    pids = [pool.submit(os.getpid).result(timeout=120)]

    def progress(stage: str, done: float) -> None:
        if done == 1.0 and pids:
            os.kill(pids.pop(), signal.SIGKILL)  # after round 0

    with pytest.raises(EngineError, match=r"lost a worker process") as caught:
        Executor(pool, clients_per_task=2).run(rounds, start(), (x, y), progress=progress)
    assert caught.value.stage is not None
    assert caught.value.run.rounds == 1
    np.testing.assert_allclose(caught.value.run.results[0], fedavg(start(), (x, y))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spawn", "loky"])
def test_a_pool_that_lost_a_worker_is_made_again_for_the_next_run(kind: str):
    if kind == "loky":
        pool = pytest.importorskip("loky").get_reusable_executor(1)
    else:
        pool = concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    engine = Executor(pool, clients_per_task=2)
    expected = fedavg(start(), client_data())
    os.kill(pool.submit(os.getpid).result(timeout=120), signal.SIGKILL)

    def until_seen() -> None:  # that the process is gone
        for _ in range(100):
            engine.run(fedavg, start(), client_data())

    with pytest.raises(
        EngineError, match=r"lost a worker process.*has created a new pool: run the round again"
    ) as caught:
        until_seen()
    assert caught.value.client is None
    run = engine.run(fedavg, start(), client_data())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), run.results, expected)
    engine.pool.shutdown()


def test_work_that_is_called_off_blames_no_clients_data():
    class Closed(concurrent.futures.Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            future.cancel()
            return future

    x, y = client_data()
    with pytest.raises(EngineError, match="task was cancelled") as caught:
        Executor(Closed()).run(fedavg, start(), (x, y))
    assert "data" not in str(caught.value)


@pytest.mark.slow
def test_worker_killed_in_the_middle_of_a_stage_is_an_error_that_names_it():
    loky = pytest.importorskip("loky")
    pool = loky.ProcessPoolExecutor(1, timeout=60, env={"JAX_PLATFORMS": "cpu"})
    worker = psutil.Process(pool.submit(os.getpid).result(timeout=120))

    @wb.program(clients=2)
    def sines(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.fori_loop(0, 10**9, lambda _, v: jnp.sin(v) + row, row), x))

    def kill() -> None:
        while worker.cpu_times().user < 8:  # long after it has compiled, long before it is done
            time.sleep(0.1)
        worker.kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(EngineError, match="lost a worker process") as caught:
        Executor(pool, clients_per_task=2).run(sines, np.ones(2, np.float32))
    assert caught.value.stage is not None
    assert not worker.is_running()


@wb.program(clients=8)
def _scaled(w: Any, x: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(lambda w, x: w * x, (wb.broadcast(w), x)))


@pytest.mark.slow
def test_large_values_of_the_server_go_to_a_file_that_a_worker_reads_once(monkeypatch: pytest.MonkeyPatch):
    loky = pytest.importorskip("loky")
    engine = Executor(loky.get_reusable_executor(1, env={"JAX_PLATFORMS": "cpu"}), clients_per_task=2)
    stored: list[Any] = []
    real = _remote.StoredValues
    monkeypatch.setattr(_executor, "StoredValues", lambda values: stored.append(real(values)) or stored[-1])
    run = engine.run(_scaled, np.ones(10**6, np.float32), np.arange(8, dtype=np.float32))
    assert run.results[:2].tolist() == [3.5, 3.5]
    (path,) = [values.path for values in stored]
    assert len(pickle.dumps(stored[0])) < 1000
    stored.clear()
    assert not Path(path).exists()


@pytest.mark.slow
def test_workers_that_hang_are_replaced():
    loky = pytest.importorskip("loky")
    engine = Executor(loky.get_reusable_executor(1, env={"JAX_PLATFORMS": "cpu"}), clients_per_task=2)
    args = np.ones(3, np.float32), np.arange(8, dtype=np.float32)
    engine.run(_scaled, *args)
    engine.timeout_seconds = 3
    for pid in list(engine.pool._processes):  # pyright: ignore[reportAttributeAccessIssue]
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EngineError, match="This engine has killed the workers and created a new pool"):
        engine.run(_scaled, *args)
    engine.timeout_seconds = None
    assert engine.run(_scaled, *args).results.tolist() == [3.5] * 3


@pytest.mark.slow
def test_dask_workers_with_another_version_are_named(cluster: Any, monkeypatch: pytest.MonkeyPatch):
    from workbench.engines import _executor

    cluster.__dict__.pop("_workbench_checked", None)
    monkeypatch.setattr(_executor, "__version__", "9.9")
    with pytest.raises(EngineError, match=r"do not have workbench 9\.9, which this process runs: inproc://.*: 0\."):
        Executor(cluster.get_executor()).run(fedavg, start(), client_data())


_STRANGER = """
import os, sys
import distributed
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
security = distributed.Security(require_encryption=False)
with distributed.Client(sys.argv[1], timeout=20, security=security) as client:
    print("ran as", *client.run(os.getuid).values())
"""


@pytest.mark.slow
@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "no TLS"])
def test_other_users_of_a_dask_cluster_are_refused_with_tls_and_noted_without(tls: bool):
    distributed = pytest.importorskip("dask.distributed", reason="needs the extra `dask`")
    pytest.importorskip("cryptography", reason="certificates need it")
    settings = {"protocol": "tls://" if tls else "tcp://", "security": tls or None, "dashboard_address": None}
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, **settings) as started,
        distributed.Client(started) as client,
    ):
        run = Executor(client.get_executor()).run(fedavg, start(), client_data())
        stranger = [sys.executable, "-c", _STRANGER, started.scheduler_address]
        asked = subprocess.run(stranger, capture_output=True, text=True)
    assert any("does not use TLS" in note for note in run.notes) is not tls
    assert ("ran as" in asked.stdout) is not tls, asked.stderr
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
