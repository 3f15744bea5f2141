"""Two processes with four devices each: every program of the engines' contract, what the views see, and what fails."""

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from engine_contract import CASES, Case, start

import workbench as wb
from workbench.distributed import Hosts, start_hosts
from workbench.errors import EngineError, MeshError, MissingDependencyError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
TESTS = str(Path(__file__).parent.parent)
LONG = 120.0  # seconds after which something is broken; nothing here waits so long on purpose


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    pytest.importorskip("ipyparallel", reason="the extra `hosts` is not installed")
    with start_hosts(2, 4) as started:
        yield started
        processes = [*started.processes, *started._children()]
    assert not psutil.wait_procs(processes, timeout=LONG)[1], "a host is left over"


def _cases(tests: str) -> list[Any]:
    """Runs on a host: the results of every case, flat, those of other hosts' clients NaN."""
    import sys

    import jax
    import numpy

    import workbench as wb
    from workbench.mesh import read_here

    sys.path.insert(0, tests)
    import engine_contract

    engine = wb.engines.MeshEngine(wb.make_mesh(clients=8))
    found = []
    for case in engine_contract.CASES:
        run = engine.run(case.fn, engine_contract.start(), case.data())
        found.append([numpy.ma.filled(read_here(x), numpy.nan) for x in jax.tree.leaves(run.results)])
    return found


@pytest.fixture(scope="module")
def results(hosts: Hosts) -> list[Any]:
    return hosts.run(_cases, TESTS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_results_are_those_of_one_process(results: list[Any], number: int) -> None:
    import jax

    case: Case = CASES[number]
    expected = jax.tree.leaves(wb.jit(case.fn)(start(), case.data()))
    for leaf, whole in enumerate(expected):
        parts = [host[number][leaf] for host in results]
        known = [~np.isnan(part) for part in parts]
        assert np.logical_or(*known).all(), "a row that no host has"
        for part, is_known in zip(parts, known, strict=True):
            np.testing.assert_allclose(part[is_known], np.asarray(whole)[is_known], rtol=1e-5, atol=1e-5)


def _watched() -> dict[str, Any]:
    """Runs on a host: watches a training step whose rows lie on both hosts."""
    import jax
    import numpy as np

    import workbench as wb
    from workbench.distributed import from_local_clients

    @jax.jit
    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        return w - 0.1 * gradient, loss

    step = wb.watch(step, show=False)
    mesh = wb.make_mesh(clients=8)
    with jax.set_mesh(mesh):
        rows = from_local_clients(np.arange(8.0, dtype=np.float32).reshape(4, 2) / 8 + jax.process_index())
        w = jax.device_put(np.ones((2, 3), np.float32), jax.NamedSharding(mesh, jax.P()))
        for _ in range(4):
            w, _ = step(w, rows)
    step.close()
    record = step.record
    losses = [each.metrics["loss"] for each in record.history]
    return {"losses": losses, "flops": record.flops, "collectives": record.collectives, "notes": record.notes}


def test_a_watched_step_has_the_losses_of_all_hosts_on_each(hosts: Hosts) -> None:
    rows = np.arange(8.0).reshape(4, 2) / 8
    x, w, expected = np.concatenate([rows, rows + 1]), np.ones((2, 3)), []
    for _ in range(4):
        expected.append(np.mean((x @ w) ** 2))
        w = w - 0.1 * 2 * x.T @ (x @ w) / (3 * len(x))
    for found in hosts.run(_watched):
        assert found["losses"] == pytest.approx(expected, rel=1e-5)
        assert found["flops"] > 0
        assert found["collectives"] > 0, found["notes"]


def _looked_at() -> dict[str, Any]:
    """Runs on a host: shows, inspects, listens to and measures a program whose clients lie on both hosts."""
    import contextlib
    import io

    import jax
    import numpy as np

    import workbench as wb
    from workbench.distributed import from_local_clients, synchronized

    host = jax.process_index()

    @wb.program(clients=8)
    def total(w: Any, x: Any) -> Any:
        def client(w: Any, row: Any) -> Any:
            wb.emit("square", (row**2).sum())
            return w * row

        return wb.reduce_sum(wb.map_fn(client, (wb.broadcast(w), x)))

    said = io.StringIO()
    with jax.set_mesh(wb.make_mesh(clients=8)), contextlib.redirect_stdout(said):
        rows = from_local_clients(np.arange(4.0, dtype=np.float32).reshape(4, 1) + 4 * host)
        wb.show(rows)
        wb.show(total)(np.float32(2), rows)
        step = synchronized(wb.jit(total))
        with wb.listen() as received:
            result = step(np.float32(2), rows)
        run = wb.measure(total, rounds=2)(np.float32(2), rows)
        history = wb.run_rounds(
            lambda w, _: (w, {"row": rows[:, 0], "total": step(w, rows)}), np.float32(2), 2, progress=False
        ).history.to_pandas()
        finished = [float(step(np.float32(1), rows)[0]) for _ in range(50)]
    return {
        "result": float(result[0]),
        "heard": received.to_pandas()[["clients", "value"]].to_numpy(),
        "run": run.replace(results=None),
        "said": said.getvalue(),
        "history": history,
        "finished": finished,
    }


@pytest.fixture(scope="module")
def seen(hosts: Hosts, results: list[Any]) -> list[dict[str, Any]]:
    return hosts.run(_looked_at)


def test_every_host_gets_the_sum_of_all_clients(seen: list[dict[str, Any]]) -> None:
    assert [host["result"] for host in seen] == [56.0, 56.0]
    assert seen[0]["finished"] == seen[1]["finished"] == [28.0] * 50


def test_every_host_hears_its_own_clients(seen: list[dict[str, Any]]) -> None:
    assert seen[0]["heard"].tolist() == [[i, i**2] for i in range(4)]
    assert seen[1]["heard"].tolist() == [[i, i**2] for i in range(4, 8)]


def test_views_are_shown_as_text(seen: list[dict[str, Any]]) -> None:
    for host in seen:
        assert "this process addresses 4 of its 8 devices" in host["said"]
        assert "8 devices (cpu), 2 hosts" in host["said"]


def test_measured_runs_become_one_record_of_eight_devices(seen: list[dict[str, Any]]) -> None:
    from workbench.distributed._merge import merge_runs

    run = merge_runs([host["run"] for host in seen])
    assert len({event.where for event in run.events}) == 8
    assert run.joined_events is not None
    assert run.joined_events >= 0.98


def test_history_leaves_out_what_other_hosts_hold(seen: list[dict[str, Any]]) -> None:
    history = seen[1]["history"]
    rows = history[(history.metric == "row") & (history["round"] == 0)].dropna(subset=["value"])
    assert rows.value.tolist() == [4.0, 5.0, 6.0, 7.0]


def _connections(process):
    try:
        return process.net_connections(kind="tcp")
    except (psutil.Error, FileNotFoundError):  # it ended since it was listed
        return []


def test_coordinator_listens_on_the_loopback_alone(hosts: Hosts):
    listening = [
        connection.laddr.ip
        for process in [*hosts.processes, *hosts._children()]
        for connection in _connections(process)
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert {
        address for address in listening if not ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
    } == set()


def test_coordinator_is_in_a_folder_that_other_users_cannot_enter(hosts: Hosts):
    """JAX's coordinator has no authentication: everyone who reaches it can join."""
    paths = [str(connection.laddr) for connection in hosts.processes[0].net_connections(kind="unix")]
    sockets = [Path(path) for path in paths if path.endswith("/jax")]
    assert sockets
    assert {path.parent.stat().st_mode & 0o777 for path in sockets} == {0o700}


def test_host_that_raises_is_named_and_the_hosts_go_on(hosts: Hosts, seen: Any) -> None:
    def fail() -> None:
        import jax

        if jax.process_index() == 1:
            message = "no such client"
            raise ValueError(message)

    with pytest.raises(EngineError, match=r"host 1 raised ValueError: no such client") as caught:
        hosts.run(fail)
    assert caught.value.stage == "host 1"
    assert hosts.run(os.getpid) == [process.pid for process in hosts.processes]


def test_a_step_that_one_host_leaves_out_ends_with_an_error(hosts: Hosts) -> None:
    """The last test of these hosts: they end with it."""

    def alone() -> float:
        import jax
        import numpy as np

        import workbench as wb
        from workbench.distributed import synchronized

        with jax.set_mesh(wb.make_mesh(clients=8)):
            step = synchronized(wb.jit(wb.program(clients=8)(wb.reduce_sum)), timeout_seconds=3.0)
            return float(step(np.ones(8, np.float32))) if jax.process_index() == 0 else 0.0

    with pytest.raises(EngineError, match=r"host 0 (raised EngineError: a step did not end within 3 s|raised \w+)"):
        hosts.run(alone, timeout_seconds=LONG)
    hosts.stop()
    with pytest.raises(EngineError, match="after they had ended"):
        hosts.run(os.getpid)


def test_hosts_end_with_the_process_that_started_them() -> None:
    pytest.importorskip("ipyparallel", reason="the extra `hosts` is not installed")
    code = (
        "import time; from workbench.distributed import start_hosts\n"
        "hosts = start_hosts(1, 2)\n"
        "print(*[p.pid for p in hosts._children()], flush=True)\n"
        "time.sleep(300)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    started = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
    driver.send_signal(signal.SIGKILL)
    driver.wait(LONG)
    driver.stdout.close()
    assert len(started) >= 2
    assert not psutil.wait_procs(started, timeout=LONG)[1]


def test_port_that_is_in_use_is_reported() -> None:
    pytest.importorskip("ipyparallel", reason="the extra `hosts` is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MeshError, match=rf"port={port}, but another program is already listening"):
            start_hosts(port=port)


def test_impossible_numbers_are_reported() -> None:
    with pytest.raises(MeshError, match=r"hosts=0 and devices=4"):
        start_hosts(0)


def test_missing_ipyparallel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(MissingDependencyError, match=r"mapreduce-workbench\[hosts\]"):
        start_hosts()


def test_host_that_ended_while_nothing_ran_is_an_error_of_the_next_call():
    pytest.importorskip("ipyparallel", reason="the extra `hosts` is not installed")
    with start_hosts(2, 1) as started:
        started.processes[1].kill()
        deadline = time.monotonic() + LONG
        while len(started) == 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        with pytest.raises(EngineError, match=r"host .* of 2 ended while no step was running.*call `start_hosts`"):
            started.run(os.getpid)
