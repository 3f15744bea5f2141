"""Clients from Beam sources and PCollections, which the workers of a pipeline write to files."""

# pyright: reportMissingImports=false

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench.engines._clients import COUNT, ClientReader
from workbench.engines._places import load_arrays, save_arrays, scratch_folder
from workbench.engines._table_engine import TableReader, check_clients, source_fact
from workbench.errors import EngineError, ProgramError

IN_PROCESS = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


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
def client_files(
    struct: Foreign, folder: Foreign, pipeline: Callable[[str, Any], None], name: str, source: str = "`read_from`"
) -> Iterator["ClientFiles"]:
    """Runs a pipeline that writes clients of the given shapes to files, which are removed afterwards."""
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), struct)
    with scratch_folder("clients-", folder) as at:
        try:
            pipeline(str(at), row)
            reader = ClientFiles(at, struct)
        except Exception as error:
            message = (
                f"{source} returned {source_fact(error, name)}. A source must return one pair `(client_id, data)` for "
                "each client, with ids of type str or int and data of the shapes that the program expects: append a "
                "`beam.Map` that converts the elements."
            )
            raise EngineError(message) from error
        check_clients(source, reader.clients, len(set(reader.ids)), struct)
        yield reader


def save_rows(folder: Path, ids: Sequence[Any], rows: Mapping[str, Any], size: int) -> int:
    """Writes the rows of all clients to files of `size` clients each; returns the number of files."""
    starts = range(0, len(ids), size)
    for batch, start in enumerate(starts):
        some = slice(start, start + size)
        (folder / f"rows-{batch}.json").write_text(json.dumps({"clients": list(ids[some]), "names": list(rows)}))
        save_arrays(folder / f"rows-{batch}.npz", [np.asarray(x)[some] for x in rows.values()])
    return len(starts)


@dataclasses.dataclass(frozen=True)
class BeamTable:
    """Facts about a PCollection of examples, from one run of its pipeline."""

    examples: Foreign
    runner: object
    options: Foreign
    known: list[str]
    uneven: list[list[str]]  # rows with other columns
    counts: np.ndarray[Any, Any]  # number of examples of each client
    kinds: dict[str, dict[str, tuple[Any, int]]]  # column → kind → a client, and its number of rows

    def wrong_ids(self, by: str, order: str | None) -> str:
        """Describes rows whose client id or place in the order is unusable; returns "" if there are none."""
        ids = sorted(kind.partition(" ")[2] for kind in self.kinds.get(by, {}) if kind != "client")
        if ids:
            return f"values of type {', '.join(ids)} in column {by!r}"
        late = self.kinds.get(order or "", {}).get("missing")
        return f"missing values in column {order!r} of client {late[0]!r}" if late else ""

    def wrong_value(self, name: str) -> tuple[object, int] | None:
        """Finds a client with a faulty column, and its number of missing values (0 if its values are unsuitable)."""
        kinds = self.kinds[name]
        if "missing" in kinds:
            return kinds["missing"]
        shapes = {str(json.loads(kind)[1]) for kind in kinds if kind != "text"}
        if "text" not in kinds and len(shapes) == 1:
            return None
        client, _ = kinds.get("text") or max(kinds.values(), key=lambda entry: str(entry[0]))
        return client, 0

    def reader(
        self, by: str, names: Sequence[str], order: str | None, low: int, high: float, length: int, clients: int
    ) -> "BeamExamples":
        from workbench.engines.beam._worker import PackedExamples

        columns = []
        for name in names:
            kinds = [json.loads(kind) for kind in self.kinds[name]]
            dtype = jax.dtypes.canonicalize_dtype(np.result_type(*(np.dtype(kind) for kind, _ in kinds)))
            columns.append((name, dtype.name, tuple(kinds[0][1])))
        packed = PackedExamples(self.examples, by, tuple(columns), order, low, high, length)
        return BeamExamples(packed, self.runner, self.options, clients)


def count_examples(collection: Foreign, by: str, names: Sequence[str] | None, order: str | None) -> BeamTable:
    """Counts the examples of each client, on the workers of the PCollection's pipeline."""
    from workbench.engines.beam import _here
    from workbench.engines.beam._worker import ExampleRows

    runner, options = collection.pipeline.runner, collection.pipeline.options
    runner = IN_PROCESS if "direct_runner" in type(runner).__module__ else runner
    try:
        if not collection.is_bounded:
            message = "[source] an unbounded PCollection"
            raise ValueError(message)
        examples = ExampleRows.of(collection)
        with scratch_folder("clients-", None) as folder:
            _here.run("run_counting", (str(folder), examples, (by, names, order)), runner, options, lambda: None)
            facts = json.loads((folder / "table.json").read_text())
    except Exception as error:
        message = (
            f"`clients_from` was given a PCollection, and found {source_fact(error)}. "
            "Elements must be dictionaries, named tuples or `beam.Row`s with one example each, in a bounded "
            "PCollection: append a `beam.Map` that converts the elements, or correct the earlier steps."
        )
        raise ProgramError(message) from error
    columns = [some for (label, *some), _ in facts if label == "columns"]
    counts = [(some[0], clients) for (label, *some), (_, clients) in facts if label == "examples"]
    kinds: dict[str, dict[str, tuple[Any, int]]] = {}
    for (_, name, kind), entry in (fact for fact in facts if fact[0][0] == "kind"):
        kinds.setdefault(name, {})[kind] = entry
    labels = list(dict.fromkeys(name for some in columns for name in some))
    uneven = [some for some in columns if set(some) != set(labels)] if names is None else []
    sizes = np.repeat([size for size, _ in counts], [clients for _, clients in counts]).astype(int)
    return BeamTable(examples, runner, options, labels, uneven, sizes, kinds)


class BeamExamples(TableReader):
    """Clients of a PCollection with one row per example; `Beam` groups and packs them on the workers."""

    engine, table = "Beam", "PCollection"

    def __init__(self, packed: Foreign, runner: object, options: Foreign, clients: int) -> None:
        self.packed, self.runner, self.options, self.clients = packed, runner, options, clients
        struct = {name: jax.ShapeDtypeStruct((packed.length, *shape), dtype) for name, dtype, shape in packed.columns}
        struct[COUNT] = jax.ShapeDtypeStruct((), np.int32)
        self.structure, self.avals = jax.tree.structure(struct), tuple(jax.tree.leaves(struct))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Packs the clients on the pipeline's workers, and reads them one by one in this process."""
        from workbench.engines.beam import _here

        def pipeline(folder: str, struct: object) -> None:
            _here.run("run_reading", (folder, self.packed, struct), self.runner, self.options, lambda: None)

        with client_files(self.struct, None, pipeline, "beam", "`clients_from`") as reader:
            yield from reader
