"""The engine's ServerApp: forwards requests to the nodes, and returns their replies.

The engine's process is the parent of this process; they communicate over a local connection with a private key. When
the engine exits, the connection closes and the ServerApp stops.
"""

# pyright: reportMissingImports=false

import os
from multiprocessing.connection import Client

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from workbench.engines.flower._app.asks import NodeFailure
from workbench.engines.flower._app.nodes import ask_nodes, find_nodes

app = ServerApp()


@app.main()
def serve(grid: Grid, context: Context) -> None:
    del context
    settings = os.environ
    key = bytes.fromhex(settings["WORKBENCH_FLOWER_KEY"])
    with Client(settings["WORKBENCH_FLOWER_ADDRESS"], authkey=key) as engine:
        try:
            count, patience = int(settings["WORKBENCH_FLOWER_NODES"]), float(settings["WORKBENCH_FLOWER_PATIENCE"])
            nodes = find_nodes(grid, count, patience)
        except RuntimeError as error:
            engine.send((0, None, str(error)))
            return
        engine.send((0, [], ""))
        late: dict[int, str] = {}
        while True:
            try:
                number, asks, seconds, enough = engine.recv()
            except EOFError:
                return
            try:
                engine.send((number, ask_nodes(grid, nodes, asks, seconds, enough=enough, late=late), ""))
            except NodeFailure as error:
                engine.send((number, (error.slot, error.worker_lost), str(error)))
            except Exception as error:
                engine.send((number, None, f"{type(error).__name__}: {error}"))
