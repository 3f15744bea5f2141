"""Code that runs on Beam workers: transforms that compute batches, merge results, and read, pack and write clients."""

# pyright: reportMissingImports=false

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import jax
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from jax import Array

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.engines._clients import padded
from workbench.engines._places import load_arrays, place, save_arrays, whole_file
from workbench.engines._remote import Task, counted, groups_of, merged, run_task, token

CANCELLED = "cancelled"  # a file of this name in a pipeline's folder stops the pipeline before its next batch
MISSING, TEXT, CLIENT = "missing", "text", "client"  # kinds of values that are not numbers


@dataclasses.dataclass(frozen=True)
class BeamPass:
    """Description of a pass, stored in the pass's folder, with the kind of each stage output."""

    digest: str
    kept: int
    merges: tuple[str, ...]
    keyed: tuple[int, ...]  # for each partial result, the axis of its keys; -1 without keys
    filed: tuple[tuple[int, int], ...]  # rows that are read from client files: position, leaf
    size: int  # slots of a batch


class ComputeBatch(beam.DoFn):
    """Computes one batch of clients, with rows from a file and the server's values from the side input."""

    def __init__(self, folder: str, spec: BeamPass) -> None:
        self.folder, self.spec = folder, spec

    def setup(self) -> None:
        self.stage = (place(self.folder) / "stage").read_bytes()

    def process(self, batch: int, shared: list[np.ndarray]) -> Iterator[Any]:
        """Yields the partial results of a batch; writes its kept rows and its time to a file."""
        folder = place(self.folder)
        if (folder / CANCELLED).exists() or not folder.exists():
            message = "the pipeline was cancelled"
            raise RuntimeError(message)
        try:
            rows = self._rows(folder, batch)
            reply = run_task(Task(self.spec.digest, self.stage, [np.int32(batch), *rows, *shared]))
        except Exception as error:
            message = f"[batch {batch}] {type(error).__name__}: {error}"
            raise RuntimeError(message) from error
        row_outputs, partial = reply.outputs[: self.spec.kept], reply.outputs[self.spec.kept :]
        reported = json.dumps([reply.where, reply.seconds, reply.compile_seconds, sum(x.nbytes for x in reply.outputs)])
        save_arrays(folder / f"reply-{batch}.npz", [np.array(reported), *row_outputs])
        totals = [x for x, axis in zip(partial, self.spec.keyed, strict=True) if axis < 0]
        keyed: list[int] = []
        for number, key, values in groups_of(partial, self.spec.keyed):
            keyed.append(token(number, key, batch))
            yield beam.pvalue.TaggedOutput("by_key", ((number, key), [counted(keyed[-1:]), values]))
        if partial:
            yield [np.concatenate([counted([token(batch)]), counted(keyed)]), *totals]

    def _rows(self, folder: Path, batch: int) -> list[np.ndarray]:
        rows = load_arrays(folder / f"rows-{batch}.npz")
        if not self.spec.filed:
            return rows
        clients = [load_arrays(path) for path in json.loads((folder / f"files-{batch}.json").read_text())]
        slots = [*clients, *clients[:1] * (self.spec.size - len(clients))]
        for position, leaf in self.spec.filed:
            rows.insert(position, np.stack([client[leaf] for client in slots]))
        return rows


def _merge_partial(elements: Iterable[Any], merges: Sequence[str]) -> Any:
    """Merges lists of partial results pairwise, so that rounding errors grow with the logarithm of their number.

    The first item of a list counts batches.
    """
    queue = list(elements)
    while len(queue) > 1:
        pairs = [queue[i : i + 2] for i in range(0, len(queue), 2)]
        queue = [merged(merges, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return queue[0]


def _write_group(element: Any, folder: str) -> None:
    """Writes the sum for one key of a keyed reduction, and its batch counts."""
    (number, key), total = element
    save_arrays(f"{folder}/groups-{number}-{key}.npz", total)


def make_pipeline(
    folder: str, runner: object, flags: Sequence[str] | PipelineOptions, proto: Foreign = None
) -> tuple[beam.Pipeline, Any]:
    """Creates a pipeline, empty or from `proto`, with its temporary files in `folder`; returns it with its context.

    Otherwise, Beam would leave temporary files behind in IPython, and after every unfinished pipeline.
    """
    options = flags if isinstance(flags, PipelineOptions) else PipelineOptions(list(flags), save_main_session=False)
    if proto is None:
        pipeline, context = beam.Pipeline(runner=runner, options=options), None
    else:
        pipeline, context = beam.Pipeline.from_runner_api(proto, runner, options, return_context=True)
    work_folder = place(folder) / "beam"
    if not hasattr(work_folder, "fs"):
        Path(pipeline.local_tempdir).rmdir()
        work_folder.mkdir(exist_ok=True)
        pipeline.local_tempdir = str(work_folder)
    return pipeline, context


def run_pipeline(folder: str, batches: int, runner: object, flags: Sequence[str]) -> None:
    """Runs one pass as one pipeline.

    Every step has a label, so that Beam does not ask the notebook kernel for a label.
    """
    spec = BeamPass(**json.loads((place(folder) / "spec.json").read_text()))
    merges = [m for m, axis in zip(spec.merges, spec.keyed, strict=True) if axis < 0]
    with make_pipeline(folder, runner, flags)[0] as pipeline:
        server = pipeline | "server" >> beam.Create([f"{folder}/shared.npz"]) | "load" >> beam.Map(load_arrays)
        replies = (
            pipeline
            | "batches" >> beam.Create(range(batches))
            | "spread" >> beam.Reshuffle()
            | "clients"
            >> beam.ParDo(ComputeBatch(folder, spec), beam.pvalue.AsSingleton(server)).with_outputs(
                "by_key", main="partial"
            )
        )
        totals = replies.partial | "reduce" >> beam.CombineGlobally(_merge_partial, ["add", *merges]).without_defaults()
        _ = totals | "write totals" >> beam.Map(lambda total: save_arrays(f"{folder}/totals.npz", total))
        if any(axis >= 0 for axis in spec.keyed):
            groups = replies.by_key | "shuffle and reduce by key" >> beam.CombinePerKey(_merge_partial, ["add", "add"])
            _ = groups | "write groups" >> beam.Map(_write_group, folder)


@dataclasses.dataclass(frozen=True)
class ExampleRows:
    """A PCollection of rows, with the part of its pipeline that makes it; both can be sent to another process."""

    pipeline: bytes
    collection: str

    @classmethod
    def of(cls, collection: Foreign) -> "ExampleRows":
        """Copies the steps that make a PCollection; later steps, such as sinks, are left out."""
        proto, context = collection.pipeline.to_runner_api(return_context=True)
        parts, identifier = proto.components, context.pcollections.get_id(collection)
        steps = list(_steps(parts.transforms, proto.root_transform_ids[0]))
        makers = {
            output: name
            for name in steps
            for output in parts.transforms[name].outputs.values()
            if output not in parts.transforms[name].inputs.values()
        }
        needed, waiting = set(), [identifier]
        while waiting:
            if (name := makers[waiting.pop()]) not in needed:
                needed.add(name)
                waiting += parts.transforms[name].inputs.values()
        root = proto.root_transform_ids[0]
        for name in set(parts.transforms) - needed - {root}:
            del parts.transforms[name]
        for name in [name for name in parts.pcollections if makers.get(name) not in needed]:
            del parts.pcollections[name]
        del parts.transforms[root].subtransforms[:]
        parts.transforms[root].subtransforms.extend(name for name in steps if name in needed)
        return cls(proto.SerializeToString(), identifier)

    def rows(self, folder: str, runner: object, flags: Sequence[str]) -> tuple[beam.Pipeline, Any]:
        """Rebuilds the pipeline; returns it with the PCollection in a single window."""
        proto = beam_runner_api_pb2.Pipeline.FromString(self.pipeline)
        pipeline, context = make_pipeline(folder, runner, flags, proto)
        rows = context.pcollections.get_by_id(self.collection)
        return pipeline, rows | "clients_from: one window" >> beam.WindowInto(beam.window.GlobalWindows())


@dataclasses.dataclass(frozen=True)
class PackedExamples:
    """Settings for packing clients, with each column's dtype and shape, and the range of example counts."""

    examples: ExampleRows
    by: str
    columns: tuple[tuple[str, str, tuple[int, ...]], ...]
    order: str | None
    low: int
    high: float
    length: int

    def clients(self, folder: str, runner: object, flags: Sequence[str]) -> tuple[beam.Pipeline, Any]:
        """Returns a pipeline and its PCollection of (client, padded data) pairs."""
        pipeline, rows = self.examples.rows(folder, runner, flags)
        keyed = rows | "clients_from: encode" >> beam.Map(_encode, self)
        grouped = keyed | "clients_from: group" >> beam.GroupByKey()
        return pipeline, grouped | "clients_from: pack" >> beam.FlatMap(_pack, self)

    @property
    def record(self) -> np.dtype:
        return np.dtype([(f"c{i}", dtype, shape) for i, (_, dtype, shape) in enumerate(self.columns)])


Names = tuple[str, Sequence[str] | None, str | None]
"""The column of the clients' ids, the columns to read (None for all), and the column of the order."""


def run_counting(folder: str, examples: ExampleRows, names: Names, runner: object, flags: Sequence[str]) -> None:
    """Writes `table.json` with facts: the columns, the clients per number of examples, and the kinds of values."""
    pipeline, rows = examples.rows(folder, runner, flags)
    with pipeline:
        facts = rows | "clients_from: describe" >> beam.Map(_describe, names)
        client_facts = facts | "clients_from: describe clients" >> beam.CombinePerKey(_merge_facts)
        counted = client_facts | "clients_from: count" >> beam.Map(_client_facts)
        table_facts = counted | "clients_from: describe table" >> beam.CombineGlobally(_merge_facts)
        _ = table_facts | "clients_from: write" >> beam.Map(
            lambda facts: _write_json(list(facts.items()), f"{folder}/table.json")
        )


def _describe(element: Any, columns: Names) -> tuple[Any, Any]:
    """Returns the facts about one row, keyed by its client: fact → a client (or None), and its number of rows."""
    row, (by, names, order) = as_row(element), columns
    client, others = _id(row.get(by)), [name for name in row if name not in (by, order)]
    kinds = {name: kind_of(row.get(name)) for name in (others if names is None else names)}
    kinds[by] = CLIENT if client is not None else f"{MISSING} {type(row.get(by)).__name__}"
    if order is not None:
        kinds[order] = MISSING if row.get(order) is None else CLIENT
    facts = {("kind", name, kind): (client, 1) for name, kind in kinds.items()}
    return client, {("rows",): (None, 1), ("columns", *row): (None, 1), **facts}


def _merge_facts(parts: Iterable[Any]) -> Any:
    """Adds the numbers of one client; of several clients, keeps the first."""
    total: dict[tuple[str, ...], tuple[Any, int]] = {}
    for part in parts:
        for fact, entry in part.items():
            first = total.get(fact, (entry[0], 0))
            total[fact] = (first[0], first[1] + entry[1]) if first[0] == entry[0] else min(first, entry, key=str)
    return total


def _client_facts(element: tuple[Any, Any]) -> Any:
    facts = dict(element[1])
    _, rows = facts.pop(("rows",))
    return {**facts, ("examples", rows): (None, 1)}


def _write_json(value: object, path: str) -> None:
    with whole_file(place(path)) as file:
        file.write(json.dumps(value).encode())


def _encode(element: Any, packed: PackedExamples) -> tuple[Any, Any]:
    """Converts a row to its client, its place in the order, and the bytes of its columns."""
    row = as_row(element)
    client = _id(row.get(packed.by))
    try:
        values = np.array(tuple(row[name] for name, *_ in packed.columns), packed.record)
        return client, (row[packed.order] if packed.order else None, values.tobytes())
    except (KeyError, TypeError, ValueError) as error:
        message = f"[source] client {client!r} with a row that changed since it was counted: {error}"
        raise ValueError(message) from error


def _pack(element: Any, packed: PackedExamples) -> Iterator[Any]:
    """Yields the client with its ordered and padded columns, if its number of examples is in the range."""
    client, rows = element[0], list(element[1])
    if packed.low < len(rows) <= packed.high:
        if packed.order:
            rows.sort(key=lambda row: row[0])
        table = np.frombuffer(b"".join(data for _, data in rows), packed.record)
        columns = {name: table[f"c{i}"] for i, (name, *_) in enumerate(packed.columns)}
        yield client, padded(columns, packed.length)


def as_row(element: Foreign) -> dict[str, Any]:
    row = element._asdict() if hasattr(element, "_asdict") else element
    if not isinstance(row, dict):
        message = f"[source] an element of type {type(element).__name__}, which has no columns"
        raise ValueError(message)
    return row


def kind_of(value: object) -> str:
    """The dtype and shape of a value; `MISSING` for None, and `TEXT` for a value that is not numeric."""
    if value is None:
        return MISSING
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return TEXT
    return json.dumps([array.dtype.name, array.shape]) if array.dtype.kind in "biufc" else TEXT


def _id(value: object) -> int | str | None:
    if isinstance(value, str):
        return value
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


def _steps(transforms: Foreign, name: str) -> Iterator[str]:
    """Yields the steps without substeps, in the order of the pipeline."""
    inner = transforms[name].subtransforms
    if not inner:
        yield name
    for part in inner:
        yield from _steps(transforms, part)


def run_reading(folder: str, source: Foreign, struct: PyTree[Array], runner: object, flags: Sequence[str]) -> None:
    """Writes all clients of a source to one file each, and their ids and file names to `clients.json`."""
    if isinstance(source, PackedExamples):
        pipeline, pairs = source.clients(folder, runner, flags)
    else:
        pipeline, _ = make_pipeline(folder, runner, flags)
        pairs = pipeline | "read_from" >> source
    with pipeline:
        clients = pairs | "one file per client" >> beam.Map(_save_client, folder, struct)
        listed = clients | "list" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
        _ = listed | "write the list" >> beam.Map(_write_list, folder)


def run_writing(folder: str, sink: Foreign, batches: int, runner: object, flags: Sequence[str]) -> None:
    """Sends every client's rows from files to a sink as `{"client": id, name: row, …}`."""
    with make_pipeline(folder, runner, flags)[0] as pipeline:
        rows = pipeline | "batches" >> beam.Create(range(batches)) | "spread" >> beam.Reshuffle()
        _ = rows | "load" >> beam.FlatMap(_load_rows, folder) | "write_to" >> sink


def _save_client(element: Any, folder: str, struct: Any) -> tuple[Any, str]:
    """Checks one client's data and writes it to a file; returns its id and the file name."""
    identity, leaves = check_client(element, struct)
    name = f"client-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]}.npz"
    save_arrays(place(folder) / name, leaves)
    return identity, name


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
    _write_json(sorted(clients, key=lambda client: (isinstance(client[0], str), client[0])), f"{folder}/clients.json")


def _load_rows(batch: int, folder: str) -> Iterator[dict[str, Any]]:
    spec = json.loads((place(folder) / f"rows-{batch}.json").read_text())
    columns = load_arrays(place(folder) / f"rows-{batch}.npz")
    for position, client in enumerate(spec["clients"]):
        rows = {name: column[position] for name, column in zip(spec["names"], columns, strict=True)}
        yield {"client": client, **rows}
