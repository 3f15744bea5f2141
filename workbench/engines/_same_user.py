"""Identifies the user at the other end of a loopback connection, and starts a Flower program for one user only.

`python THIS_FILE flower-superlink ARGUMENTS` starts the program.

Without accounts, Flower lets anyone who reaches the port submit an app, which then runs as the user who started the
SuperLink. On the loopback interface, the kernel knows which user opened a connection; this module looks up the user for
each request.
"""

# pyright: reportMissingImports=false

import contextlib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from workbench._open_types import Foreign

ASGI = Callable[[Mapping[str, Any], Any, Any], Awaitable[Any]]
_ESTABLISHED = "01"


def can_identify_users() -> bool:
    """Returns whether this system reports which user opened a loopback connection."""
    return Path("/proc/net/tcp").is_file()


def user_of(client: tuple[str, int], server: tuple[str, int], table: str) -> int | None:
    """Finds the user of the process at the client's end of a connection, or None if no process owns this end any more.

    The kernel writes user 0, as for root, for an end without a process.
    """
    addresses = _written(*client), _written(*server)
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and (fields[1], fields[2]) == addresses and fields[3] == _ESTABLISHED and fields[9] != "0":
            return int(fields[7])
    return None


def only_same_user(app: ASGI, read_table: Callable[[], str] = Path("/proc/net/tcp").read_text) -> ASGI:
    """Wraps an ASGI app to reject connections of other users with status 403."""

    async def guarded(scope: Mapping[str, Any], receive: object, send: Callable) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        client, server = scope.get("client"), scope.get("server")
        user = user_of(tuple(client), tuple(server), read_table()) if client and server else None
        if user == os.getuid():
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Only the user who started this may use it."})
        else:
            await send({"type": "websocket.close", "code": 1008})

    return guarded


def main() -> None:
    """Runs the program named by the first argument, and guards all its servers."""
    import uvicorn

    load = uvicorn.Config.load

    def load_guarded(self: Foreign) -> None:
        load(self)
        self.loaded_app = only_same_user(self.loaded_app)

    uvicorn.Config.load = load_guarded
    _wait_for_tasks(float(os.environ.get("WORKBENCH_FLOWER_PATIENCE", 240)))
    name = sys.argv[1]
    (program,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    sys.argv = [name, *sys.argv[2:]]
    sys.exit(program.load()())


def _wait_for_tasks(seconds: float) -> None:
    """Gives new processes more than Flower's 30 s to request their tasks, because a busy machine needs longer."""
    for name in ("in_memory_corestate", "sql_corestate"):
        with contextlib.suppress(ImportError):  # an unsupported version of Flower
            module: Any = importlib.import_module(f"flwr.supercore.corestate.{name}")
            module.HEARTBEAT_DEFAULT_INTERVAL = max(seconds, module.HEARTBEAT_DEFAULT_INTERVAL)


def _written(host: str, port: int) -> str:
    """Formats an address as in `/proc/net/tcp`, with its bytes in the byte order of this machine."""
    number = int.from_bytes(bytes(map(int, host.split("."))), sys.byteorder)
    return f"{number:08X}:{port:04X}"


if __name__ == "__main__":
    main()
