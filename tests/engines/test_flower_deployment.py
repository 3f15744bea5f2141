"""Flower's deployment runtime: a SuperLink and SuperNodes as processes; takes minutes and is asked for."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import pytest
from engine_contract import client_data, fedavg, rounds, start
from flower_tests import family, flower_warnings, needs_deployment, needs_flower, none_left

import workbench as wb
from workbench.engines import Flower
from workbench.engines.flower._runtime import Deployment
from workbench.errors import EngineError

pytestmark = [needs_flower, needs_deployment, *flower_warnings]


def test_deployment_has_a_process_for_every_party_and_the_same_numbers():
    with Flower("deployment", clients_per_node=3, start_seconds=500) as engine:
        run = engine.run(fedavg, start(), client_data())
        runtime: Any = engine._running
        assert set(runtime.processes.pids) == {"superlink", "supernode 0", "supernode 1", "flwr run"}
        processes = family(engine)
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
    assert len({client.where for client in run.clients}) == 2  # SuperNodes, each with processes of its own
    assert none_left(processes)


def test_supernode_that_leaves_is_an_error_that_names_the_client():
    def progress(stage: str, done: float) -> None:
        if done == 1.0 and not killed:  # the first round has finished
            runtime: Any = engine._running
            killed.append(runtime.processes.pids["supernode 1"])
            processes.extend(family(engine))
            os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    processes: list[psutil.Process] = []
    with Flower("deployment", clients_per_node=3, timeout_seconds=300, start_seconds=500) as engine:
        with pytest.raises(
            EngineError, match=r"one of the clients 3, 4 on supernode 1.*ended with exit status -9"
        ) as e:
            engine.run(rounds, start(), client_data(), progress=progress)
        run = engine.run(fedavg, start(), client_data())  # on new processes
    np.testing.assert_allclose(run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
    assert e.value.run.rounds == 1
    np.testing.assert_allclose(e.value.run.results[0], wb.jit(fedavg)(start(), client_data())[0], rtol=1e-5)
    assert none_left(processes)


def _two_rounds_of_two(w: Any, x: Any) -> Any:
    with wb.program(clients=2):
        mean = lambda w: wb.reduce_mean(wb.map_fn(lambda v, row: v * row, (wb.broadcast(w), x)))  # noqa: E731
        return jax.lax.fori_loop(0, 2, lambda _, w: mean(w), w)


def test_exported_app_runs_on_superlink_and_supernodes(tmp_path: Path):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    Flower.export(_two_rounds_of_two, tmp_path / "app", np.ones(4, np.float32), x)
    deployment = Deployment(2, port=0, start_seconds=500)
    try:
        for node in range(2):  # each SuperNode finds the data of one client
            (deployment.data / str(node)).rmdir()
            (tmp_path / "app" / "data" / str(node)).rename(deployment.data / str(node))
        deployment.start_nodes(lambda: None)
        folders = " ".join(f"{name}='{tmp_path / 'app' / name}'" for name in ("inputs", "results"))
        deployment.submit(tmp_path / "app", "--run-config", folders)
        reported = tmp_path / "app" / "results" / "run.json"
        deployment.processes.ended.clear()
        deployment.processes.wait(lambda: reported.exists() or None, "the results", lambda: None, 500)
    finally:
        deployment.close()
    assert json.loads(reported.read_text())["finished_rounds"] == 2
    # The mean row is [2, 3, 4, 5]; each round multiplies by it.
    assert np.load(reported.parent / "result.npy").tolist() == [4, 9, 16, 25]
