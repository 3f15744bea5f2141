import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import nbclient
import nbformat
import numpy as np
import psutil
import pytest
from engine_contract import EngineContract, by_key, client_data, fedavg, rounds, start

import workbench as wb
from workbench.engines import Beam, Engine
from workbench.engines.beam._child import Child
from workbench.errors import EngineError, MissingDependencyError, ProgramError

try:
    import apache_beam
except ImportError:
    apache_beam = None
needs_beam = pytest.mark.skipif(apache_beam is None, reason="the extra `beam` is not installed")
# Beam 2.77 and its dependencies use what Python 3.11 and protobuf deprecate.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@needs_beam
class TestBeam(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return Beam(clients_per_batch=2)


@needs_beam
@pytest.mark.slow
def test_worker_processes_give_the_same_numbers():
    engine = Beam(["--direct_running_mode=multi_processing", "--direct_num_workers=2"], clients_per_batch=2)
    run = engine.run(by_key, start(), client_data())
    np.testing.assert_allclose(run.results, wb.jit(by_key)(start(), client_data()), rtol=1e-5, atol=1e-6)


@needs_beam
@pytest.mark.slow
def test_portable_job_server_gives_the_same_numbers():
    engine = Beam(["--job_endpoint=embed", "--environment_type=LOOPBACK"], runner="PortableRunner", clients_per_batch=2)
    run = engine.run(by_key, start(), client_data())
    np.testing.assert_allclose(run.results, wb.jit(by_key)(start(), client_data()), rtol=1e-5, atol=1e-6)


@needs_beam
@pytest.mark.slow
def test_pipelines_of_another_process_give_the_same_numbers_and_leave_nothing_behind():
    engine = Beam(clients_per_batch=2, own_process=True)
    run = engine.run(rounds, start(), client_data())
    np.testing.assert_allclose(run.results[0], wb.jit(rounds)(start(), client_data())[0], rtol=1e-5, atol=1e-6)
    assert not [child for child in psutil.Process().children(recursive=True) if "beam._child" in str(child.cmdline())]


@needs_beam
@pytest.mark.slow
def test_pipeline_of_another_process_ends_when_cancelled():
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(EngineError, match="was cancelled in stage"):
        Beam(own_process=True).run(fedavg, start(), client_data(), cancel=cancel)
    assert not [child for child in psutil.Process().children(recursive=True) if "beam._child" in str(child.cmdline())]


@wb.program(clients=6)
def slow_sines(x: Any) -> Any:
    """About a second for each client."""
    return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.fori_loop(0, 2 * 10**7, lambda _, v: jnp.sin(v) + row, row), x))


@needs_beam
@pytest.mark.slow
def test_pipeline_that_takes_too_long_ends_with_the_run():
    with pytest.raises(
        EngineError, match=r"did not finish on beam .* timeout_seconds=1.0. A pass finishes when its last"
    ):
        Beam(clients_per_batch=1, timeout_seconds=1.0).run(slow_sines, np.ones(6, np.float32))


@needs_beam
@pytest.mark.slow
def test_pipeline_of_this_process_ends_when_cancelled(tmp_path: Path):
    cancel = threading.Event()
    pipelines: list[list[threading.Thread]] = []

    def progress(stage: str, done: float) -> None:
        pipelines.append([thread for thread in threading.enumerate() if thread.name == "a Beam pipeline"])
        cancel.set()

    with pytest.raises(EngineError, match="was cancelled in stage"):
        Beam(folder=tmp_path, clients_per_batch=1).run(
            slow_sines, np.ones(6, np.float32), cancel=cancel, progress=progress
        )
    assert len(pipelines) == 1
    assert not list(tmp_path.iterdir())
    for thread in pipelines[0]:
        thread.join(120)
        assert not thread.is_alive()


@needs_beam
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # Beam's threads that served it
@pytest.mark.parametrize(
    ("after_seconds", "own_process"),
    [(0, False), (0, True), (2, True)],  # of processor time: before it speaks with the runner, and at work
)
def test_killed_worker_process_is_an_error_and_leaves_nothing(
    after_seconds: float, own_process: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from workbench.engines.beam import _here

    options = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    killed: list[int] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def progress(stage: str, done: float) -> None:
        for process in _here._workers():
            if not killed and process.name().startswith("python") and sum(process.cpu_times()[:2]) >= after_seconds:
                killed.append(process.pid)
                process.kill()

    with pytest.raises(EngineError, match=r"stage 0 .* failed in its Beam pipeline") as caught:
        Beam(options, clients_per_batch=3, own_process=own_process).run(
            _endless, np.ones(6, np.float32), progress=progress
        )
    assert killed
    assert caught.value.stage is not None
    assert not _here._workers()
    for thread in threading.enumerate():
        if thread.name in ("beam_control_read", "read_grpc_client_inputs", "run_worker"):  # Beam's, which raise now
            thread.join(60)
    assert not [file.name for file in tmp_path.iterdir() if not file.name.startswith("pymp-")]


@wb.program(clients=6)
def _endless(x: Any) -> Any:
    return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.fori_loop(0, 2 * 10**9, lambda _, v: jnp.sin(v) + row, row), x))


@needs_beam
@pytest.mark.slow
@pytest.mark.notebook
def test_beam_works_in_a_notebook():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(_CELL)])
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert "'text': '6.0" in str(notebook.cells[0].outputs)


_CELL = """
import numpy, workbench as wb
@wb.program(clients=3)
def total(x):
    return wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x))
print(float(wb.engines.Beam().run(total, numpy.ones(3, numpy.float32)).results))
"""


@needs_beam
def test_sums_are_in_the_dtype_that_the_reduction_states():
    @wb.program(clients=6)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 1, x))

    # In bfloat16, 256 + 1 is 256; in float32 the sum of 256 and five ones is 261, which rounds to 260 or 262.
    x = jnp.array([256, 1, 1, 1, 1, 1], jnp.bfloat16)
    run = Beam(clients_per_batch=1).run(total, x)
    assert run.results.dtype == jnp.bfloat16
    assert float(run.results) in (260.0, 262.0)


@needs_beam
def test_failing_batch_names_its_clients(monkeypatch: pytest.MonkeyPatch):
    from workbench.engines.beam import _worker as _beam_worker

    def failing(task: Any) -> Any:
        if int(task.operands[0]) == 1:
            message = "no memory"
            raise MemoryError(message)
        return whole(task)

    whole = _beam_worker.run_task
    monkeypatch.setattr(_beam_worker, "run_task", failing)
    with pytest.raises(
        EngineError, match=r"one of the clients 2, 3 on beam \(FnApiRunner\).*MemoryError: no memory"
    ) as e:
        Beam(clients_per_batch=2).run(fedavg, start(), client_data())
    assert e.value.client == "2, 3"


@needs_beam
def test_nan_of_a_pass_is_an_error():
    @wb.program(clients=3)
    def logarithms(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(jnp.log, x))

    with pytest.raises(EngineError, match=r"produced a NaN for client 1, in the partial result"):
        Beam(check_nan=True).run(logarithms, np.array([1, -1, 2], np.float32))


@needs_beam
def test_rows_wait_in_the_given_folder_and_are_removed(tmp_path: Path):
    seen: list[int] = []
    Beam(folder=tmp_path, clients_per_batch=2).run(
        fedavg, start(), client_data(), progress=lambda *_: seen.append(len(list(tmp_path.glob("*/rows-*"))))
    )
    assert seen[0] == 3  # 5 clients by 2
    assert not list(tmp_path.iterdir())


@needs_beam
def test_runner_that_cannot_start_names_the_stage(tmp_path: Path):
    with pytest.raises(EngineError, match=r"failed in its Beam pipeline on beam \(NoSuchRunner\)") as caught:
        Beam(runner="nowhere.NoSuchRunner").run(fedavg, start(), client_data())
    assert caught.value.stage is not None


def test_pipelines_whose_process_ended_say_so():
    child = Child()
    os.kill(child._process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the process of the Beam pipelines ended with exit status -9"):
        child.run("run_pipeline", ("nowhere", 1), "none", [], lambda: None)
    child.close()


def test_missing_beam_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r'pip install "mapreduce-workbench\[beam\]"'):
        Beam()


@needs_beam
@pytest.mark.parametrize(
    ("arguments", "error", "expected"),
    [
        ({"runner": "apache_beam.runners.dask.dask_runner.DaskRunner"}, EngineError, "wrong sums.*Executor"),
        ({"options": "--x=1"}, ProgramError, "a list of flags"),
        ({"runner": object(), "own_process": True}, ProgramError, "runner is sent to another process by name"),
        ({"clients_per_batch": 0}, ProgramError, "clients_per_batch=0.*positive int"),
    ],
    ids=["DaskRunner", "options", "runner", "batch"],
)
def test_impossible_settings_are_refused(arguments: Any, error: Any, expected: str):
    with pytest.raises(error, match=expected):
        Beam(**arguments)
