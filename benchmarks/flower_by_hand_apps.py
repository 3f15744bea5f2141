"""The two apps of `benchmarks.flower_by_hand`."""

# pyright: reportMissingImports=false

import os
import sys
import time
from pathlib import Path

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from benchmarks.engines_round import start, train

client, server = ClientApp(), ServerApp()
train_one = jax.jit(train)


def _record(leaves: list[np.ndarray]) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({str(i): Array(np.asarray(x)) for i, x in enumerate(leaves)})})


def _leaves(message: Message) -> list[np.ndarray]:
    arrays = message.content["arrays"]
    return [arrays[str(i)].numpy() for i in range(len(arrays))]


@client.query()
def one_client(message: Message, context: Context) -> Message:
    path = Path(os.environ["BY_HAND_FOLDER"]) / f"{context.node_config['partition-id']}.npz"
    with np.load(path) as rows:
        x, y = rows["arr_0"], rows["arr_1"]
    w = jax.tree.unflatten(jax.tree.structure(start()), _leaves(message))
    return Message(_record(jax.tree.leaves(train_one(w, x, y))), reply_to=message)


@server.main()
def rounds(grid: Grid, context: Context) -> None:
    folder, count = Path(os.environ["BY_HAND_FOLDER"]), int(os.environ["BY_HAND_CLIENTS"])
    for _ in sys.stdin:
        while len(nodes := list(grid.get_node_ids())) < count:  # the first round may be asked for before all have come
            time.sleep(0.2)
        with np.load(folder / "w.npz") as file:
            w = [file[name] for name in file.files]
        messages = [Message(_record(w), dst_node_id=node, message_type="query") for node in nodes]
        deltas = [_leaves(reply) for reply in grid.send_and_receive(messages)]
        new = [v + np.sum(parts, axis=0) / len(nodes) for v, *parts in zip(w, *deltas, strict=True)]
        np.savez(folder / "new.npz", *new)
        print("done", flush=True)
