"""Interpreter for an exported plan: runs server stages locally, client stages on nodes, and loops in Python."""

import itertools
import json
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .asks import Ask, NodeReply, ToDrop
from .stages import as_typed, load_stage, stage_bytes

AskAll = Callable[[Sequence[Ask]], list[NodeReply]]


class Own:
    """An input stored only on the nodes; `iterations` contains the loop index of each leading axis."""

    def __init__(self, name: str, iterations: tuple[int, ...] = ()) -> None:
        self.name: str = name
        self.iterations: tuple[int, ...] = iterations

    def __getitem__(self, iteration: int) -> "Own":
        return Own(self.name, (*self.iterations, iteration))

    @property
    def source(self) -> str:
        return "/".join([f"own:{self.name}", *map(str, self.iterations)])


class HeldRows:
    def __init__(self, name: str, op: dict[str, Any], index: int, forget: Callable[[str], Any]) -> None:
        self.name: str = name
        self.aval = op["kept_avals"][index]
        self.clients = op["clients"]
        weakref.finalize(self, forget, name)

    @property
    def source(self) -> str:
        return f"held:{self.name}"


class Stack(list[Any]):
    """Values from a loop's iterations; some values are stored on nodes."""


class FlowerProgram:
    """The plan of this project; `run` returns its results."""

    def __init__(self, folder: Path, inputs: dict[str, np.ndarray], ask: AskAll) -> None:
        self.described = json.loads((folder / "program.json").read_text())
        self.ask: AskAll = ask
        self.inputs: dict[str, np.ndarray] = inputs
        self.log: list[dict[str, Any]] = []
        self.finished_rounds, self.carried, self._loops = 0, [], 0
        self._names = itertools.count()
        self._dropped: list[str] = []
        self._to_drop = ToDrop()

    def run(self) -> dict[str, np.ndarray]:
        """Returns the results keyed by name, after fetching the rows that they contain."""
        described = self.described
        inputs = [Own(x["name"]) if x["own"] else self._given(x) for x in described["inputs"]]
        results = self._here(self._block(described["body"], inputs))
        return dict(zip(described["results"], map(np.asarray, results), strict=True))

    def _given(self, described: dict[str, Any]) -> np.ndarray:
        name = described["name"]
        if name not in self.inputs:
            message = f"the server has no value for its input `{name}`: the folder `inputs` has no {name}.npy"
            raise RuntimeError(message)
        return as_typed(self.inputs[name], _aval(described), f"`{name}`")

    def _block(self, block: dict[str, Any], inputs: Sequence[Any]) -> list[Any]:
        values = dict(zip(block["inputs"], inputs, strict=True))
        values.update((i, self._given(described)) for i, described in block["constants"])
        for op in block["ops"]:
            outputs = _OPERATIONS[op["op"]](self, op, [values[i] for i in op["in"]])
            values.update(zip(op["out"], outputs, strict=True))
        return [values[i] for i in block["outputs"]]

    def _server(self, op: dict[str, Any], operands: list[Any]) -> list[Any]:
        return load_stage(stage_bytes(op["digest"]))(self._here(operands))

    def _clients(self, op: dict[str, Any], operands: list[Any]) -> list[Any]:
        rows, shared = operands[: op["rows"]], self._here(operands[op["rows"] :])
        rows = [x if isinstance(x, Own | HeldRows) else self._here([x])[0] for x in rows]
        row_names = [f"r{next(self._names)}" for _ in op["kept_avals"]]
        asks = [self._ask_of(op, slot, rows, shared, row_names) for slot in range(op["clients"])]
        started = time.perf_counter()
        replies = self.ask(asks)
        self._note(op, replies, time.perf_counter() - started)
        totals = _typed(replies[0].values, op["partial_avals"])
        merge, finish = (load_stage(stage_bytes(op[name])) if op[name] else None for name in ("merge", "finish"))
        for reply in replies[1:]:
            totals = merge([*totals, *_typed(reply.values, op["partial_avals"])]) if merge else []
        held_rows = [HeldRows(name, op, i, self._dropped.append) for i, name in enumerate(row_names)]
        return [*held_rows, *(finish(totals) if finish else [])]

    def _ask_of(self, op: dict[str, Any], slot: int, rows: list[Any], shared: list[Any], row_names: list[str]) -> Ask:
        self._to_drop.forget(self._dropped, self.described["nodes"])
        payload, sources = [], []
        for x in rows:
            sources.append(x.source if isinstance(x, Own | HeldRows) else f"sent:{len(payload)}")
            if not isinstance(x, Own | HeldRows):
                payload.append(x[slot : slot + 1])
        numbers = list(range(len(payload), len(payload) + len(shared)))
        drop = self._to_drop.pop(slot, [])
        ask = Ask(op["digest"], rows=sources, names=op["names"], shared=numbers, kept=row_names, drop=drop, slot=slot)
        ask.sent = [*payload, *shared]
        return ask

    def _note(self, op: dict[str, Any], replies: Sequence[NodeReply], seconds: float) -> None:
        facts = {name: op[name] for name in ("stage", "name", "clients", "leaves")}
        self.log.append({**facts, "seconds": seconds, "nodes": [dict(reply.reported) for reply in replies]})
        print(f"stage {op['stage']} ({op['name']}): {op['clients']} nodes in {seconds:.2f} s", flush=True)

    def _scan(self, op: dict[str, Any], operands: list[Any]) -> list[Any]:
        consts, carries = op["consts"], op["carries"]
        fixed, carry, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]
        iterations = []
        for iteration in reversed(range(op["length"])) if op["reverse"] else range(op["length"]):
            results = self._iterate(op["body"], [*fixed, *carry, *(x[iteration] for x in xs)], carries)
            carry = results[:carries]
            iterations.append(results[carries:])
        iterations = iterations[::-1] if op["reverse"] else iterations
        return [*carry, *(_stacked([ys[i] for ys in iterations], aval) for i, aval in enumerate(op["stacked_avals"]))]

    def _while(self, op: dict[str, Any], operands: list[Any]) -> list[Any]:
        first, second = op["conditions"], op["conditions"] + op["bodies"]
        for_condition, for_body, carry = operands[:first], operands[first:second], operands[second:]
        while bool(self._here(self._block(op["condition"], [*for_condition, *carry]))[0]):
            carry = self._iterate(op["body"], [*for_body, *carry], len(carry))
        return carry

    def _cond(self, op: dict[str, Any], operands: list[Any]) -> list[Any]:
        (index,) = self._here(operands[:1])
        branches = op["branches"]
        return self._block(branches[min(max(int(index), 0), len(branches) - 1)], operands[1:])

    def _iterate(self, body: dict[str, Any], operands: list[Any], carries: int) -> list[Any]:
        """Runs one loop iteration; the outermost carry is kept in case a later iteration fails."""
        self._loops += 1
        try:
            results = self._block(body, operands)
        finally:
            self._loops -= 1
        if self._loops == 0:
            self.finished_rounds += 1
            self.carried = [x for x in results[:carries] if isinstance(x, np.ndarray)]
        return results

    def _here(self, values: Sequence[Any]) -> list[Any]:
        """Fetches, in one request, all rows stored on the nodes."""
        rows_by_name: dict[str, HeldRows] = {}
        for x in values:
            rows_by_name.update((y.name, y) for y in (x if isinstance(x, Stack) else [x]) if isinstance(y, HeldRows))
            if isinstance(x, Own):
                message = f"a server stage reads the clients' input `{x.name}`, which only the nodes have"
                raise RuntimeError(message)
        if not rows_by_name:
            return [np.stack(x) if isinstance(x, Stack) else x for x in values]
        nodes = max(rows.clients for rows in rows_by_name.values())
        asks = [
            Ask(fetch=[h.name for h in rows_by_name.values() if slot < h.clients], slot=slot) for slot in range(nodes)
        ]
        streams = [iter(reply.values) for reply in self.ask(asks)]
        arrays = {
            name: _typed([np.concatenate([next(streams[slot]) for slot in range(rows.clients)])], [rows.aval])[0]
            for name, rows in rows_by_name.items()
        }

        def here(x: "np.ndarray | HeldRows | Stack") -> np.ndarray:
            if isinstance(x, Stack):
                return np.stack([here(y) for y in x])
            return arrays[x.name] if isinstance(x, HeldRows) else x

        return [here(x) for x in values]


_OPERATIONS: dict[str, Callable[[FlowerProgram, dict[str, Any], list[Any]], list[Any]]] = {
    "server": FlowerProgram._server,
    "clients": FlowerProgram._clients,
    "scan": FlowerProgram._scan,
    "while": FlowerProgram._while,
    "cond": FlowerProgram._cond,
}


def _aval(described: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(shape=tuple(described["shape"]), dtype=np.dtype(described["dtype"]))


def _typed(values: Sequence[np.ndarray], avals: Sequence[dict[str, Any]]) -> list[np.ndarray]:
    return [as_typed(x, _aval(a), "a reply") for x, a in zip(values, avals, strict=True)]


def _stacked(values: list[Any], described: dict[str, Any]) -> "np.ndarray | Stack":
    if not values:
        return np.zeros((0, *described["shape"]), np.dtype(described["dtype"]))
    return Stack(values) if any(isinstance(x, HeldRows | Own | Stack) for x in values) else np.stack(values)
