"""Beam transforms that read clients from any source into files, and write rows to any sink."""

# pyright: reportMissingImports=false

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import jax
import numpy as np
from jax import Array

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.engines._array_files import load_arrays, save_arrays
from workbench.engines._places import place, whole_file
from workbench.engines.beam._examples import PackedExamples
from workbench.engines.beam._worker import make_pipeline


def run_reading(folder: str, source: Foreign, struct: PyTree[Array], runner: object, flags: Sequence[str]) -> None:
    """Writes all clients of a source to one file each, and their ids and file names to `clients.json`."""
    if isinstance(source, PackedExamples):
        pipeline, pairs = source.clients(folder, runner, flags)
    else:
        pipeline, _ = make_pipeline(folder, runner, flags)
        pairs = pipeline | "read_from" >> source
    with pipeline:
        clients = pairs | "one file per client" >> beam.ParDo(_SaveClient(folder, struct))
        listed = clients | "list" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
        _ = listed | "write the list" >> beam.Map(_write_list, folder)


def run_writing(folder: str, sink: Foreign, batches: int, runner: object, flags: Sequence[str]) -> None:
    """Sends every client's rows from files to a sink as `{"client": id, name: row, …}`."""
    with make_pipeline(folder, runner, flags)[0] as pipeline:
        rows = pipeline | "batches" >> beam.Create(range(batches)) | "spread" >> beam.Reshuffle()
        _ = rows | "load" >> beam.FlatMap(_load_rows, folder) | "write_to" >> sink


class _SaveClient(beam.DoFn):
    """Checks one client's data and writes it to a file; returns its id and the file name."""

    def __init__(self, folder: str, struct: object) -> None:
        self.folder, self.struct = folder, struct

    def process(self, element: object) -> Iterator[tuple[Any, str]]:
        identity, leaves = check_client(element, self.struct)
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
        save_arrays(place(self.folder) / f"client-{name}.npz", leaves)
        yield identity, f"client-{name}.npz"


def check_client(element: object, struct: object) -> tuple[Any, list[np.ndarray]]:
    """Checks a client's id, and the shapes and dtypes of its leaves."""
    if not isinstance(element, tuple) or len(element) != 2 or not isinstance(element[0], str | int | np.integer):
        message = f"[source] an element of type {type(element).__name__} that is not a pair `(client_id, data)`"
        raise ValueError(message)
    identity = element[0] if isinstance(element[0], str) else int(element[0])
    leaves, structure = jax.tree.flatten(element[1])
    expected, template = jax.tree.flatten(struct)
    arrays = [np.asarray(leaf) for leaf in leaves]
    forms = [f"{x.dtype.name}{list(x.shape)}" for x in arrays]
    expected_forms = [f"{np.dtype(x.dtype).name}{list(x.shape)}" for x in expected]
    if structure != template or forms != expected_forms:
        message = (
            f"[source] client {identity!r} with data {structure} of {forms}, but the program reads {expected_forms}"
        )
        raise ValueError(message)
    return identity, arrays


def _write_list(clients: list[tuple[Any, str]], folder: str) -> None:
    ordered = sorted(clients, key=lambda client: (isinstance(client[0], str), client[0]))
    with whole_file(place(folder) / "clients.json") as file:
        file.write(json.dumps(ordered).encode())


def _load_rows(batch: int, folder: str) -> Iterator[dict[str, Any]]:
    spec = json.loads((place(folder) / f"rows-{batch}.json").read_text())
    columns = load_arrays(place(folder) / f"rows-{batch}.npz")
    for position, client in enumerate(spec["clients"]):
        rows = {name: column[position] for name, column in zip(spec["names"], columns, strict=True)}
        yield {"client": client, **rows}
