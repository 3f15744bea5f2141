"""The way between processes: who may call, and what happens when nobody answers."""

import multiprocessing
import os
import pickle
import secrets
import threading
from pathlib import Path

import launch_nodes as nodes
import numpy as np
import pytest

from workbench.errors import NodeError
from workbench.launch import Program, ServiceNode, _remote as remote, launch
from workbench.launch._client import CallQueue
from workbench.launch._pool import DaemonPool
from workbench.launch._processes import Processes, exit_text


@pytest.fixture
def served():
    """A running program with a service, and the engine that knows its address and key."""
    program = Program("door")
    counter = program.add_node(ServiceNode(nodes.Counter))
    engine = Processes()
    with launch(program, engine) as launched:
        assert launched.client(counter).add(1) == 1
        yield engine.addresses[0].host, engine.authkey


def test_a_caller_without_the_key_is_turned_away(served):
    address, authkey = served
    stranger = remote.RemoteHost(address, secrets.token_bytes(32))
    with pytest.raises(multiprocessing.AuthenticationError):
        stranger.ask("main/0", "add", remote.pickled(("add", (1,), {})))
    friend = remote.RemoteService(remote.RemoteHost(address, authkey), "main/0", ("add",))
    assert friend.call("add", (1,), {}) == 2


LARGE = np.arange(200_000, dtype=np.float64)


@pytest.mark.skipif(os.name != "posix", reason="arrays wait in no folder")
def test_large_arrays_travel_in_files_that_are_gone_when_they_were_read(served):
    address, authkey = served
    folder = Path(address).parent
    before = set(folder.iterdir())
    friend = remote.RemoteService(remote.RemoteHost(address, authkey), "main/0", ("echo",))
    sent = {
        "large": LARGE,
        "turned": np.asfortranarray(LARGE.reshape(400, 500)),
        "every second": LARGE[::2],
        "small": 1,
    }
    found = friend.call("echo", (sent,), {})
    for name, value in sent.items():
        np.testing.assert_array_equal(found[name], value)
    found["large"][0] = -1.0  # as a received array always could
    assert found["large"][0] == -1.0
    assert set(folder.iterdir()) == before


@pytest.mark.skipif(os.name != "posix", reason="arrays wait in no folder")
def test_only_large_arrays_are_in_files_and_their_bytes_are_read_from_there(tmp_path):
    assert len(remote.pickled(LARGE)) > LARGE.nbytes
    assert b"\x00" * 100 in remote.pickled(np.zeros(1000), tmp_path)
    assert not [*tmp_path.iterdir()]
    data = remote.pickled((LARGE, LARGE + 1), tmp_path)
    (waiting,) = tmp_path.iterdir()
    assert len(data) < 2**12
    assert waiting.stat().st_size >= 2 * LARGE.nbytes
    first, second = pickle.loads(data)
    np.testing.assert_array_equal(first + 1, second)
    assert not [*tmp_path.iterdir()]


def test_arrays_of_a_value_that_goes_by_value_in_the_end_are_written_once(tmp_path, monkeypatch):
    """The standard way fails at the function, after it has met two arrays."""
    monkeypatch.setattr("workbench.launch._pickling.parent_process", lambda: "of a spawned process")
    data = remote.pickled((LARGE, LARGE + 1, lambda: 7, LARGE + 2), tmp_path)
    (waiting,) = tmp_path.iterdir()
    assert waiting.stat().st_size < 3 * LARGE.nbytes + 2**10
    first, second, function, third = pickle.loads(data)
    assert function() == 7
    for added, found in enumerate((first, second, third)):
        np.testing.assert_array_equal(found, LARGE + added)


def test_arrays_go_through_the_connection_where_no_file_can_be_written(tmp_path):
    np.testing.assert_array_equal(pickle.loads(remote.pickled(LARGE, tmp_path / "missing")), LARGE)


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_sockets_and_logs_are_private_to_the_user(served):
    folder = Path(served[0]).parent
    assert folder.stat().st_mode & 0o077 == 0


def test_a_call_to_a_process_that_never_starts_gives_up_and_names_the_node(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.05)
    service = remote.RemoteService(remote.RemoteHost(str(tmp_path / "nobody"), b"key"), "main/0", ("add",))
    with pytest.raises(NodeError, match="`add` did not get an answer from node 'main/0': no connection within"):
        service.call("add", (), {})


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "ended with exit code 0"), (-9, "was killed by signal 9 (SIGKILL)"), (-250, "was killed by signal 250")],
    ids=["finished", "killed", "unknown signal"],
)
def test_exit_codes_are_reported_in_words(code, text):
    assert exit_text(code) == text


def test_a_pool_starts_no_more_threads_than_it_may_and_runs_everything():
    pool = DaemonPool(2, "pool")
    assert sorted(pool.map(abs, range(-50, 0))) == list(range(1, 51))
    assert pool._threads <= 2
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down and accepts no more calls"):
        pool.submit(abs, 1)


def test_a_pool_hands_exceptions_to_whoever_waits():
    assert isinstance(DaemonPool(1, "pool").submit(int, "x").exception(30), ValueError)


def test_a_closed_line_drops_the_calls_that_wait():
    class Slow:
        label, methods = "main/0", ("wait",)

        def __init__(self):
            self.go = threading.Event()

        def call(self, method, args, kwargs):
            return self.go.wait(30)

    slow = Slow()
    line = CallQueue(slow, 1)
    first, second = (line.submit("wait", (), {}) for _ in range(2))
    line.close()
    slow.go.set()
    assert second.cancelled()
    assert first.result(30)
