"""Beam transforms that count and pack the clients of a PCollection with one row per example."""

# pyright: reportMissingImports=false

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2

from workbench._open_types import Foreign
from workbench.engines._clients import padded
from workbench.engines._places import place, whole_file
from workbench.engines.beam._worker import make_pipeline

MISSING, TEXT, CLIENT = "missing", "text", "client"  # kinds of values that are not numbers


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
        make = lambda runner, options: beam.Pipeline.from_runner_api(proto, runner, options, return_context=True)  # noqa: E731
        pipeline, context = make_pipeline(folder, runner, flags, make)
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
        keyed = rows | "clients_from: encode" >> beam.ParDo(_Encode(self))
        grouped = keyed | "clients_from: group" >> beam.GroupByKey()
        return pipeline, grouped | "clients_from: pack" >> beam.ParDo(_Pack(self))

    @property
    def record(self) -> np.dtype:
        """The dtype of one row."""
        return np.dtype([(f"c{i}", dtype, shape) for i, (_, dtype, shape) in enumerate(self.columns)])


def run_counting(
    folder: str,
    examples: ExampleRows,
    by: str,
    names: Sequence[str] | None,
    order: str | None,
    runner: object,
    flags: Sequence[str],
) -> None:
    """Writes `table.json` with the columns, the clients per number of examples, and the kinds of values per column."""
    pipeline, rows = examples.rows(folder, runner, flags)
    with pipeline:
        facts = rows | "clients_from: describe" >> beam.ParDo(_Describe(by, names, order))
        client_facts = facts | "clients_from: describe clients" >> beam.CombinePerKey(_MergeFacts())
        counted = client_facts | "clients_from: count" >> beam.Map(_client_facts)
        table_facts = counted | "clients_from: describe table" >> beam.CombineGlobally(_MergeFacts())
        _ = table_facts | "clients_from: write" >> beam.Map(_write_facts, folder)


class _Facts:
    """Facts about rows: column lists, kinds of values (with a client for each), and clients per number of examples."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: dict[tuple[str, ...], None] = {}
        self.kinds: dict[str, dict[str, tuple[Any, int]]] = {}  # column → kind → a client, and its number of rows
        self.counts: Counter[int] = Counter()

    def add(self, other: "_Facts") -> None:
        """Adds facts about other rows."""
        self.rows += other.rows
        self.columns |= other.columns
        self.counts += other.counts
        for name, kinds in other.kinds.items():
            clients = self.kinds.setdefault(name, {})
            for kind, (client, rows) in kinds.items():
                first, before = clients.get(kind, (client, 0))
                clients[kind] = (
                    (first, before + rows) if first == client else min((first, before), (client, rows), key=str)
                )


class _Describe(beam.DoFn):
    """Yields the facts about one row, keyed by its client."""

    def __init__(self, by: str, names: Sequence[str] | None, order: str | None) -> None:
        self.by, self.names, self.order = by, names, order

    def process(self, element: Any) -> Iterator[Any]:
        row, facts = as_row(element), _Facts()
        client = _id(row.get(self.by))
        facts.rows, facts.columns = 1, {tuple(row): None}
        names = [name for name in row if name not in (self.by, self.order)] if self.names is None else self.names
        kinds = {name: kind_of(row.get(name)) for name in names}
        kinds[self.by] = CLIENT if client is not None else f"{MISSING} {type(row.get(self.by)).__name__}"
        if self.order is not None:
            kinds[self.order] = MISSING if row.get(self.order) is None else CLIENT
        facts.kinds = {name: {kind: (client, 1)} for name, kind in kinds.items()}
        yield client, facts


class _MergeFacts(beam.CombineFn):
    """Merges facts about rows."""

    def create_accumulator(self) -> Any:
        """Returns the facts about an empty set of rows."""
        return _Facts()

    def add_input(self, mutable_accumulator: Any, element: Any) -> Any:
        """Adds the facts of one row."""
        mutable_accumulator.add(element)
        return mutable_accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Adds the facts of other workers."""
        total = _Facts()
        for accumulator in accumulators:
            total.add(accumulator)
        return total

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator


def _client_facts(element: tuple[Any, Any]) -> Any:
    facts = element[1]
    facts.counts = Counter({facts.rows: 1})
    return facts


def _write_facts(facts: Any, folder: str) -> None:
    with whole_file(place(folder) / "table.json") as file:
        file.write(json.dumps([list(facts.columns), list(facts.counts.items()), facts.kinds]).encode())


class _Encode(beam.DoFn):
    """Yields a row as its client, its place in the order, and the bytes of its columns."""

    def __init__(self, packed: PackedExamples) -> None:
        self.packed = packed

    def process(self, element: Any) -> Iterator[Any]:
        packed, row = self.packed, as_row(element)
        client = _id(row.get(packed.by))
        try:
            values = np.array(tuple(row[name] for name, *_ in packed.columns), packed.record)
            yield client, (row[packed.order] if packed.order else None, values.tobytes())
        except (KeyError, TypeError, ValueError) as error:
            message = f"[source] client {client!r} with a row that changed since it was counted: {error}"
            raise ValueError(message) from error


class _Pack(beam.DoFn):
    """Yields the client with its ordered and padded columns, if its number of examples is in the range."""

    def __init__(self, packed: PackedExamples) -> None:
        self.packed = packed

    def process(self, element: Any) -> Iterator[Any]:
        packed, (client, rows) = self.packed, (element[0], list(element[1]))
        if packed.low < len(rows) <= packed.high:
            if packed.order:
                rows.sort(key=lambda row: row[0])
            table = np.frombuffer(b"".join(data for _, data in rows), packed.record)
            columns = {name: table[f"c{i}"] for i, (name, *_) in enumerate(packed.columns)}
            yield client, padded(columns, packed.length)


def as_row(element: Foreign) -> dict[str, Any]:
    """Converts an element to a dictionary."""
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


def runner_and_options(pipeline: Foreign, default: str) -> tuple[object, PipelineOptions]:
    """The runner of a pipeline (`default` replaces Beam's direct runner), and the pipeline's options."""
    direct = "direct_runner" in type(pipeline.runner).__module__
    return default if direct else pipeline.runner, pipeline.options
