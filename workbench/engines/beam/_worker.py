"""Code that runs on Beam workers: loads rows from files, computes batches, merges partial results."""

# pyright: reportMissingImports=false

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from workbench.engines._array_files import load_arrays, save_arrays
from workbench.engines._places import place
from workbench.engines._remote import Task, counted, run_task, token

CANCELLED = "cancelled"  # a file of this name in a pipeline's folder stops the pipeline before its next batch
_MERGES = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


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
        """Reads the stage once per worker."""
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
        for number, (table, axis) in enumerate(zip(partial, self.spec.keyed, strict=True)):
            if axis >= 0:
                groups = np.moveaxis(table, axis, 0)
                for key in np.flatnonzero(groups.reshape(len(groups), -1).any(axis=1)):
                    keyed.append(token(number, int(key), batch))
                    yield beam.pvalue.TaggedOutput("by_key", ((number, int(key)), [counted(keyed[-1:]), groups[key]]))
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


class MergePartial(beam.CombineFn):
    """Merges lists of accumulators, each in its reduction's dtype; the first item of a list counts batches."""

    def __init__(self, merges: Sequence[str]) -> None:
        self.merges = ("add", *merges)

    def create_accumulator(self) -> list[np.ndarray] | None:
        """The empty accumulator."""
        return None

    def add_input(self, mutable_accumulator: list[np.ndarray] | None, element: list[np.ndarray]) -> list[np.ndarray]:
        """Adds one batch."""
        return element if mutable_accumulator is None else self._merged(mutable_accumulator, element)

    def merge_accumulators(self, accumulators: Iterable[list[np.ndarray] | None]) -> list[np.ndarray] | None:
        """Merges accumulators pairwise, so that rounding errors grow with the logarithm of the number merged."""
        queue = [x for x in accumulators if x is not None]
        while len(queue) > 1:
            queue = [
                self._merged(*queue[i : i + 2]) if i + 1 < len(queue) else queue[i] for i in range(0, len(queue), 2)
            ]
        return queue[0] if queue else None

    def extract_output(self, accumulator: list[np.ndarray] | None) -> list[np.ndarray] | None:
        """Returns the merged accumulator; the server finishes it."""
        return accumulator

    def _merged(self, a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(_MERGES[m](x, y)) for m, x, y in zip(self.merges, a, b, strict=True)]


class WriteTotals(beam.DoFn):
    """Writes the merged results to the place where the driver reads them. Beam checks the types of these methods."""

    def __init__(self, path: str) -> None:
        self.path = path

    def process(self, element: list[np.ndarray] | None) -> Iterator[int]:
        """Writes one list of arrays, or nothing if no batch returned a list."""
        if element is not None:
            save_arrays(f"{self.path}.npz", element)
        yield 0


class WriteGroup(beam.DoFn):
    """Writes the sum for one key of a keyed reduction, and its batch counts."""

    def __init__(self, path: str) -> None:
        self.path = path

    def process(self, element: tuple[tuple[int, int], list[np.ndarray]]) -> Iterator[int]:
        """Writes the reduction's index, the key, and the sum."""
        (number, key), total = element
        save_arrays(f"{self.path}-{number}-{key}.npz", total)
        yield 0


def _empty(runner: object, options: PipelineOptions) -> tuple[beam.Pipeline, None]:
    return beam.Pipeline(runner=runner, options=options), None


def make_pipeline(
    folder: str, runner: object, flags: Sequence[str] | PipelineOptions, make: Callable[..., Any] = _empty
) -> tuple[beam.Pipeline, Any]:
    """Creates a pipeline with its temporary files in `folder`; returns the result of `make`.

    Otherwise, Beam would leave temporary files behind in IPython, and after every unfinished pipeline.
    """
    options = flags if isinstance(flags, PipelineOptions) else PipelineOptions(list(flags), save_main_session=False)
    pipeline, context = make(runner, options)
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
        totals = replies.partial | "reduce" >> beam.CombineGlobally(MergePartial(merges)).without_defaults()
        _ = totals | "write totals" >> beam.ParDo(WriteTotals(f"{folder}/totals"))
        if any(axis >= 0 for axis in spec.keyed):
            groups = replies.by_key | "shuffle and reduce by key" >> beam.CombinePerKey(MergePartial(["add"]))
            _ = groups | "write groups" >> beam.ParDo(WriteGroup(f"{folder}/groups"))
