"""Who may use the servers of Beam's worker processes: only the user who started them, over the loopback interface."""

import concurrent.futures
import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from workbench.engines._same_user import can_identify_users

grpc: Any = pytest.importorskip("grpc", reason="the extra `beam` is not installed")


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that is started as Beam starts its servers."""
    from workbench.engines.beam._same_user import close_servers

    class Handler(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            if handler_call_details.method == "/one":
                return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: requests)

    monkeypatch.setattr(grpc, "server", grpc.server)
    close_servers()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("[::]:0")
    server.start()
    yield port
    server.stop(None).wait()


def answers(port: int) -> list[bytes]:
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        one = channel.unary_unary("/one")(b"1", timeout=60)
        return [one, *channel.stream_stream("/many")(iter([b"2", b"3"]), timeout=60)]


def test_same_user_is_answered(port: int):
    assert answers(port) == [b"1", b"2", b"3"]


def test_servers_listen_on_the_loopback_alone(port: int):
    own = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in own if address.port == port} == {"127.0.0.1"}


@pytest.mark.skipif(not can_identify_users(), reason="this system does not report users of connections")
@pytest.mark.parametrize("method", ["/one", "/many"])
def test_other_users_are_refused(port: int, method: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # the server's user
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        calls = {
            "/one": lambda: channel.unary_unary(method)(b"1", timeout=60),
            "/many": lambda: list(channel.stream_stream(method)(iter([b"1"]), timeout=60)),
        }
        with pytest.raises(grpc.RpcError) as refused:
            calls[method]()
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
