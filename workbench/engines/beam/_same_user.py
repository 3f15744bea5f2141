"""Closes the servers of Beam's local runners to other users of this machine.

Beam 2.77 starts the gRPC servers of its worker processes on all network interfaces and without authentication. A client
of these servers can read the pickled functions of a pipeline, and send pickled objects. A child process of the engine
therefore listens on the loopback interface only, and accepts only connections of its own user.
"""

# pyright: reportMissingImports=false, reportMissingModuleSource=false

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench._open_types import Foreign
from workbench.engines._same_user import can_identify_users, user_of

_HOST = "127.0.0.1"
_IPV4_IN_IPV6 = "0000000000000000FFFF0000"  # the start of such an address in the kernel's table


def close_servers() -> None:
    """Guards all gRPC servers that this process starts from now on."""
    import grpc

    new_server = grpc.server

    def server(*args: Foreign, interceptors: Sequence[Foreign] | None = None, **kwargs: Foreign) -> Foreign:
        ports: list[int] = []
        guards: list[Any] = [_OnlySameUser(ports)] if can_identify_users() else []
        grpc_server: Any = new_server(*args, interceptors=[*guards, *(interceptors or ())], **kwargs)
        add = grpc_server.add_insecure_port

        def add_insecure_port(address: str) -> int:
            ports.append(add(f"{_HOST}:{address.rpartition(':')[2]}"))
            return ports[-1]

        grpc_server.add_insecure_port = add_insecure_port
        return grpc_server

    grpc.server = server


class _OnlySameUser:
    """A gRPC interceptor that rejects calls of other users; `ports` are those of the server."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports

    def intercept_service(self, continuation: Callable, handler_call_details: Foreign) -> Foreign:
        import grpc

        handler = continuation(handler_call_details)
        if handler is None:
            return None
        kind = "_".join(
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        )
        call = getattr(handler, kind)

        def guarded(request: Foreign, context: Foreign) -> Foreign:
            if self._user(context.peer()) != os.getuid():
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "Only the user who started this may use it.")
            return call(request, context)

        new_handler = getattr(grpc, f"{kind}_rpc_method_handler")
        return new_handler(guarded, handler.request_deserializer, handler.response_serializer)

    def _user(self, peer: str) -> int | None:
        """The user at the client's end, such as "ipv4:127.0.0.1:40000"."""
        host, _, port = peer.removeprefix("ipv4:").rpartition(":")
        if host != _HOST:
            return None
        # gRPC's sockets are IPv6 sockets with IPv4 addresses.
        tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
        table = "".join(table.read_text() for table in tables if table.is_file()).replace(_IPV4_IN_IPV6, "")
        users = [user_of((host, int(port)), (_HOST, server_port), table) for server_port in self.ports]
        return next((user for user in users if user is not None), None)
