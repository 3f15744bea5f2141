"""A kernel that is killed in the middle of a run leaves no process, no file and no shared memory."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@contextlib.contextmanager
def killed_kernel(
    command: list[str], folder: Path, seconds: float, files: Callable[[], list[Any]]
) -> Iterator[list[psutil.Process]]:
    """Kills a kernel once a process below it has computed for `seconds`; gives those that are left some time later.

    It is later once all of them have ended and `files()` are gone, or after a long time; shared memory has to be gone.
    """
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    places = {"TMPDIR": str(folder), "RAY_TMPDIR": str(folder)}
    environment = {**os.environ, **places, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    kernel = psutil.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment)
    started: list[psutil.Process] = []
    try:
        assert kernel.stdout.readline() == "begins\n"
        started = at_work(kernel, seconds)
        shared = shared_memory([kernel, *started])
        kernel.send_signal(signal.SIGKILL)
        kernel.wait(LONG)
        until = time.monotonic() + LONG
        while (living(started) or files()) and time.monotonic() < until:
            time.sleep(0.05)
        yield living(started)
        assert [name for name in shared if Path(name).exists()] == []
    finally:
        kernel.stdout.close()
        for process in living([kernel, *started]):
            process.kill()
        kernel.wait(LONG)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spawn", "forkserver", "loky", "beam", "dask", "spark"])
def test_engine_leaves_nothing_when_the_kernel_is_killed(kind: str, tmp_path: Path, short_folder: Path) -> None:
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    if kind == "spark" and not shutil.which("java"):
        pytest.skip("no Java")
    script = tmp_path / "kernel.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with killed_kernel([str(script), kind], short_folder, 3.0, lambda: left_in(short_folder)) as left:
        assert left == []
    assert left_in(short_folder) == []


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
    sessions = functools.partial(short_folder.glob, "ray/session_*")
    with killed_kernel([str(script), what], short_folder, 8.0, lambda: list(sessions())) as left:
        assert [process.name() for process in left] == []
    assert left_in(short_folder) in ([], ["ray"])
    assert list(sessions()) == []
