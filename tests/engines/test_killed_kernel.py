"""A kernel that is killed in the middle of a run leaves no process, no file and no shared memory."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

_OF_LIBRARIES = ("pymp-", "dask-scratch-space")
LONG = 120.0  # seconds after which something is broken; nothing here waits so long on purpose

SCRIPT = """
    import multiprocessing, sys, threading, time

    if __name__ == "__main__":  # spawned processes import this script
        import jax, numpy as np
        import workbench as wb
        from workbench import engines

        @wb.program(clients=8)
        def sines(x):
            return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.fori_loop(0, 10**9, lambda _, v: v * 0.5 + row, row), x))

        def engine(kind):
            if kind == "beam":
                options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
                return engines.Beam(options, clients_per_batch=1)
            if kind == "loky":
                import loky
                return engines.Executor(loky.ProcessPoolExecutor(2, timeout=600), clients_per_task=1)
            if kind == "dask":
                import distributed
                cluster = distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=":0", silence_logs=50)
                return engines.Executor(distributed.Client(cluster).get_executor(), clients_per_task=1)
            if kind == "spark":
                return engines.Spark("local[2]", clients_per_batch=1)
            from concurrent.futures import ProcessPoolExecutor
            context = multiprocessing.get_context(kind)
            return engines.Executor(ProcessPoolExecutor(2, mp_context=context), clients_per_task=1)

        print("begins", flush=True)
        engine(sys.argv[1]).run(sines, np.ones(8, np.float32))
"""
NEEDS = {"beam": "apache_beam", "loky": "loky", "dask": "dask", "spark": "pyspark"}


def at_work(parent: psutil.Popen, seconds: float) -> list[psutil.Process]:
    """The processes below `parent`, once one of them has computed for so long."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        found = parent.children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ended between two looks
            if any(sum(each.cpu_times()[:2]) > seconds for each in found if each.name() != "java"):
                return found
        assert parent.poll() is None, "the kernel ended by itself"
        time.sleep(0.1)
    raise AssertionError("no process of the engine came to its work")


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def shared_memory(processes: list[psutil.Process]) -> set[str]:
    """The files of shared memory that the processes use; semaphores among them."""
    if not Path("/dev/shm").is_dir():
        return set()
    maps = [each for process in processes for each in process.memory_maps()]
    return {each.path for each in maps if each.path.startswith("/dev/shm/")}


def left_in(folder: Path) -> list[str]:
    """Names of files; what Python and Dask keep for themselves until their next start is not counted."""
    return [file.name for file in folder.iterdir() if not file.name.startswith(_OF_LIBRARIES)]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path: Python puts a socket in there, whose path may have 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spawn", "forkserver", "loky", "beam", "dask", "spark"])
def test_engine_leaves_nothing_when_the_kernel_is_killed(kind: str, tmp_path: Path, short_folder: Path) -> None:
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    if kind == "spark" and not shutil.which("java"):
        pytest.skip("no Java")
    folder = short_folder
    script = tmp_path / "kernel.py"
    script.write_text(textwrap.dedent(SCRIPT))
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder), "JAX_PLATFORMS": "cpu"}
    kernel = psutil.Popen([sys.executable, str(script), kind], stdout=subprocess.PIPE, text=True, env=environment)
    started: list[psutil.Process] = []
    try:
        assert kernel.stdout.readline() == "begins\n"
        started = at_work(kernel, 3.0)
        shared = shared_memory([kernel, *started])
        kernel.send_signal(signal.SIGKILL)
        kernel.wait(LONG)
        until = time.monotonic() + LONG
        while (living(started) or left_in(folder)) and time.monotonic() < until:
            time.sleep(0.05)
        assert living(started) == []
        assert left_in(folder) == []
        assert [name for name in shared if Path(name).exists()] == []
    finally:
        kernel.stdout.close()
        for process in living([kernel, *started]):
            process.kill()
        kernel.wait(LONG)


RAY = """
    import os, sys, time

    if __name__ == "__main__":
        import jax, numpy as np, ray
        import workbench as wb
        from workbench import engines
        from workbench.launch import Program, PyNode, RayEngine, ServiceNode, launch

        @wb.program(clients=8)
        def sines(x):
            return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.fori_loop(0, 10**9, lambda _, v: v * 0.5 + row, row), x))

        class Holder:
            def work(self, rows):
                until = time.monotonic() + 600
                while time.monotonic() < until:
                    float((rows * rows).sum())

        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        environment = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
                 object_store_memory=100 * 2**20, runtime_env=environment)
        print("begins", flush=True)
        if sys.argv[1] == "tasks":
            engines.Ray(clients_per_task=1).run(sines, np.ones(8, np.float32))
        program = Program("held")
        holder = program.add_node(ServiceNode(Holder))
        program.add_node(PyNode(lambda held: held.work(np.ones(1_000_000, np.float32)), holder))
        launched = launch(program, RayEngine())
        time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["launch", "tasks"])
def test_ray_leaves_nothing_when_the_kernel_that_started_it_is_killed(
    what: str, tmp_path: Path, short_folder: Path
) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    script = tmp_path / "kernel.py"
    script.write_text(textwrap.dedent(RAY))
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    folder = str(short_folder)
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": folder, "RAY_TMPDIR": folder, "JAX_PLATFORMS": "cpu"}
    kernel = psutil.Popen([sys.executable, str(script), what], stdout=subprocess.PIPE, text=True, env=environment)
    started: list[psutil.Process] = []
    try:
        assert kernel.stdout.readline() == "begins\n"
        started = at_work(kernel, 8.0)
        shared = shared_memory([kernel, *started])
        kernel.send_signal(signal.SIGKILL)
        kernel.wait(LONG)
        until = time.monotonic() + LONG
        while (living(started) or list(short_folder.glob("ray/session_*"))) and time.monotonic() < until:
            time.sleep(0.1)
        assert [process.name() for process in living(started)] == []
        assert left_in(short_folder) in ([], ["ray"])
        assert list(short_folder.glob("ray/session_*")) == []
        assert [name for name in shared if Path(name).exists()] == []
    finally:
        kernel.stdout.close()
        for process in living([kernel, *started]):
            process.kill()
        kernel.wait(LONG)
