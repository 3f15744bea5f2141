"""The ClientApp: runs one stage on this node's data, and keeps values for later stages."""

# pyright: reportMissingImports=false

import os
import time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from .asks import NAME
from .data import column


def add_to(app: ClientApp) -> ClientApp:
    app.query(NAME)(answer)
    return app


def answer(message: Message, context: Context) -> Message:
    """Answers a request; exceptions are sent as text, so that the server can name this client."""
    try:
        values, reported = _answer(message.content, context)
    except Exception as error:
        values, reported = [], {"error": f"{type(error).__name__}: {error}"}
    arrays = ArrayRecord({str(i): Array(x) for i, x in enumerate(values)})
    return Message(RecordDict({"values": arrays, "reported": ConfigRecord(reported)}), reply_to=message)


def _answer(content: RecordDict, context: Context) -> tuple[list[np.ndarray], dict[str, Any]]:
    ask, payload = content["ask"], content["sent"]
    if not ask["digest"] and not ask["fetch"]:
        return [], {"error": "", "partition": int(context.node_config["partition-id"])}
    # Flower's deployment starts a process per message; a node that only reports its partition does not need JAX.
    from .stages import as_plain, as_typed, load_stage, stage_bytes

    store: dict[str, Array] = dict(context.state["held"].items()) if "held" in context.state else {}
    for name in ask["drop"]:
        store.pop(name, None)
    if ask["fetch"]:
        return [store[name].numpy() for name in ask["fetch"]], _reported(0.0, 0.0)
    stage = load_stage(ask["blob"] or stage_bytes(ask["digest"]))
    arrays = [payload[str(i)].numpy() for i in range(len(payload))]
    operands = [np.int32(ask["slot"]), *(_row(source, arrays, store, context) for source in ask["rows"])]
    operands += [arrays[i] for i in ask["shared"]]
    named = zip(["slot", *ask["names"]], operands, stage.inputs, strict=True)
    typed = [as_typed(x, aval, f"`{name}`") for name, x, aval in named]
    started = time.perf_counter()
    outputs = stage(typed)
    seconds = time.perf_counter() - started
    names = ask["kept"]
    store.update({name: Array(as_plain(x)) for name, x in zip(names, outputs, strict=False)})
    if store or "held" in context.state:
        context.state["held"] = ArrayRecord(store)
    return [as_plain(x) for x in outputs[len(names) :]], _reported(seconds, stage.compile_seconds)


def _row(source: str, arrays: list[np.ndarray], store: dict[str, Array], context: Context) -> np.ndarray:
    """Reads one operand for this node's clients, from the node's data, the kept rows or the sent rows."""
    kind, _, name = source.partition(":")
    if kind == "own":
        name, *iterations = name.split("/")
        return column(context, name)[tuple(int(iteration) for iteration in iterations)]
    return store[name].numpy() if kind == "held" else arrays[int(name)]


def _reported(seconds: float, compile_seconds: float) -> dict[str, Any]:
    return {"error": "", "where": f"process {os.getpid()}", "seconds": seconds, "compile_seconds": compile_seconds}


app = add_to(ClientApp())
