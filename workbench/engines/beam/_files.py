"""The driver's side of Beam sources and sinks: files with clients and files with results."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench.engines._arguments import argument_of_source
from workbench.engines._array_files import load_arrays, save_arrays
from workbench.engines._clients import ClientReader
from workbench.engines._places import scratch_folder
from workbench.engines._run_recorder import brief
from workbench.errors import EngineError


class ClientFiles(ClientReader):
    """Clients that a Beam pipeline wrote to files; each worker reads its batches from them."""

    def __init__(self, folder: Path, struct: object) -> None:
        listed = json.loads((folder / "clients.json").read_text())
        self.ids = tuple(identity for identity, _ in listed)
        self.files = tuple(folder / name for _, name in listed)
        self._shape = jax.tree.structure(struct)
        super().__init__(self._read, clients=len(listed))

    def _read(self) -> Iterator[tuple[Any, Any]]:
        for identity, path in zip(self.ids, self.files, strict=True):
            yield identity, jax.tree.unflatten(self._shape, load_arrays(path))


@contextlib.contextmanager
def read_clients(
    args: Sequence[Any], folder: Foreign, pipeline: Callable[[str, Any], None], name: str
) -> Iterator[list[Any]]:
    """Reads the source for the argument that was passed as shapes; removes the files after the run."""
    position = argument_of_source("Beam", "source", args)
    with client_files(args[position], folder, pipeline, name) as reader:
        yield [reader if i == position else x for i, x in enumerate(args)]


@contextlib.contextmanager
def client_files(
    struct: Foreign, folder: Foreign, pipeline: Callable[[str, Any], None], name: str, source: str = "`read_from`"
) -> Iterator["ClientFiles"]:
    """Runs a pipeline that writes clients of the given shapes to files, which are removed afterwards."""
    clients = {x.shape[0] for x in jax.tree.leaves(struct)}
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), struct)
    with scratch_folder("clients-", folder) as at:
        try:
            pipeline(str(at), row)
            reader = ClientFiles(at, struct)
        except Exception as error:
            fact = re.search(r"\[source\] (.*)", str(error))
            message = (
                f"{source} returned {fact[1] if fact else 'an error'} on {name}{'' if fact else ': ' + brief(error)}. "
                "A source must return one pair `(client_id, data)` for each client, with ids of type str or int and "
                "data of the shapes that the program expects: append a `beam.Map` that converts the elements."
            )
            raise EngineError(message) from error
        if clients != {reader.clients} or len(set(reader.ids)) < reader.clients:
            message = (
                f"{source} returned {reader.clients} clients, {len(set(reader.ids))} of them distinct, but the program "
                f"has {' and '.join(map(str, sorted(clients)))}. Each client must be in the source exactly once: "
                "correct the source, or the shapes and `clients` of the program."
            )
            raise EngineError(message)
        yield reader


def save_rows(folder: Path, ids: Sequence[Any], rows: dict[str, Any], size: int) -> int:
    """Writes the rows of all clients to files of `size` clients each; returns the number of files."""
    starts = range(0, len(ids), size)
    for batch, start in enumerate(starts):
        some = slice(start, start + size)
        (folder / f"rows-{batch}.json").write_text(json.dumps({"clients": list(ids[some]), "names": list(rows)}))
        save_arrays(folder / f"rows-{batch}.npz", [np.asarray(x)[some] for x in rows.values()])
    return len(starts)
