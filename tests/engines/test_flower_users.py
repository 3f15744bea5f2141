"""Who may use the SuperLink of a deployment: only the user who started it."""

import asyncio
import importlib
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from flower_tests import needs_flower

from workbench.engines._same_user import can_identify_users, only_same_user, user_of
from workbench.engines.flower import _runtime
from workbench.errors import EngineError

needs_users = pytest.mark.skipif(not can_identify_users(), reason="this system does not report users of connections")
TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 5001 1
   1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 5002 1
   2: 0100007F:C351 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 0 3
   3: 0100007F:C352 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 0 3
"""
SERVER = ("127.0.0.1", 0x1F90)


def test_user_of_a_connection_is_read_from_the_kernels_table():
    assert user_of(("127.0.0.1", 0xC350), SERVER, TABLE) == 1000


@pytest.mark.parametrize("port", [0xC351, 0xC352, 0xC353], ids=["closed by its client", "orphaned", "unknown"])
def test_connection_without_a_process_has_no_user_although_the_table_says_root(port: int):
    assert user_of(("127.0.0.1", port), SERVER, TABLE) is None


@needs_users
def test_user_of_a_real_connection_is_this_user():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert user_of(client.getsockname(), server.getsockname(), Path("/proc/net/tcp").read_text()) == os.getuid()


def _status(table: str) -> int:
    """The status that a request of the first connection gets."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask() -> int:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "client": ["127.0.0.1", 0xC350], "server": list(SERVER)}
        await only_same_user(app, lambda: table)(scope, None, send)
        return sent[0]["status"]

    return asyncio.run(ask())


def test_request_of_the_same_user_is_answered():
    assert _status(TABLE.replace(" 1000 ", f" {os.getuid()} ")) == 200


def test_request_of_another_user_is_refused():
    assert _status(TABLE.replace(" 1000 ", f" {os.getuid() + 1} ")) == 403


def test_deployment_is_refused_where_users_cannot_be_identified(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_runtime._same_user, "can_identify_users", lambda: False)
    with pytest.raises(EngineError, match=r"does not authenticate users.*insecure=True"):
        _runtime.check_users()


@needs_flower
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_new_processes_have_more_than_30_seconds_to_ask_for_their_task(monkeypatch: pytest.MonkeyPatch):
    names = [f"flwr.supercore.corestate.{name}" for name in ("in_memory_corestate", "sql_corestate")]
    modules = [importlib.import_module(name) for name in names]
    for module in modules:
        monkeypatch.setattr(module, "HEARTBEAT_DEFAULT_INTERVAL", 30)
    _runtime._same_user._wait_for_tasks(240.0)
    assert [module.HEARTBEAT_DEFAULT_INTERVAL for module in modules] == [240.0, 240.0]


def test_ray_of_the_simulation_asks_for_a_token_of_its_own():
    """Ray listens on all interfaces."""
    made = [_runtime.FlowerSimulation(1, workers=1, ray_options={}, start_seconds=1.0) for _ in range(2)]
    for runtime in made:
        runtime.close()
    assert {runtime.processes.env["RAY_AUTH_MODE"] for runtime in made} == {"token"}
    tokens = {runtime.processes.env["RAY_AUTH_TOKEN"] for runtime in made}
    assert len(tokens) == 2
    assert all(len(token) == 64 for token in tokens)
