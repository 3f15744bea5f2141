"""Client data stored on the workers of a Dask or Ray cluster."""

# pyright: reportMissingImports=false

import dataclasses
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from workbench._open_types import Foreign
from workbench._processes import remove_with_this_process
from workbench._types import PyTreeDef
from workbench.engines._array_files import load_arrays, save_arrays
from workbench.engines._clients import ClientReader, as_avals
from workbench.engines._remote import Slice, fingerprint, remove_values


@dataclasses.dataclass(frozen=True)
class HeldPart:
    """A part of the clients, stored on one worker: ids, leaves `[clients, ...]`, and a checksum of both."""

    ids: tuple[Any, ...]
    leaves: list[np.ndarray]
    mark: int

    @classmethod
    def of(cls, clients: Sequence[tuple[Any, Any]]) -> "HeldPart":
        """Packs some clients with their data into a part."""
        ids = tuple(x.item() if isinstance(x, np.generic) else x for x, _ in clients)
        rows = zip(*(jax.tree.leaves(data) for _, data in clients), strict=True)
        leaves = [np.stack(x) for x in rows]
        return cls(ids, leaves, fingerprint(leaves, ids))


class _Label(NamedTuple):
    """A part's ids, checksum and shapes, for the driver."""

    ids: tuple[Any, ...]
    mark: int
    avals: tuple[Any, ...]


def label_of(part: HeldPart) -> _Label:
    """Returns a part's ids and checksum, and the shapes of one client's data."""
    return _Label(part.ids, part.mark, as_avals(part.leaves, rows=True))


class Cluster(NamedTuple):
    """A cluster that stores parts: the owner of its references, and functions that start tasks and gather results."""

    owner: Foreign  # a Dask client, the module `ray`, or None for Dask's own scheduler
    start: Callable[..., Any]  # fn, *arguments, which may be references → a reference
    gather: Callable[[Sequence[Any]], list[Any]]
    store: Callable[[Sequence[Any]], list[Any]] = list  # references to parts → references that are not computed again


def cluster_of_dask() -> Cluster:
    """The cluster of the current `distributed.Client`, or else Dask's own scheduler."""
    try:
        from distributed import get_client  # pyright: ignore[reportAttributeAccessIssue]

        client = get_client()
    except (ImportError, ValueError):
        files = _PartFiles()
        return Cluster(None, files.start, files.gather, files.store)
    return Cluster(client, client.submit, client.gather)


class _PartFiles:
    """Parts that Dask's own scheduler packs into files; their temporary folder is removed with this object."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="workbench-clients-")
        remove_with_this_process(Path(self.folder))
        weakref.finalize(self, remove_values, self.folder)

    def start(self, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Creates a task that runs when its result is gathered."""
        import dask

        return dask.delayed(fn, pure=False)(*arguments)

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        """Computes tasks together."""
        import dask

        return list(dask.compute(*tasks))

    def store(self, parts: Sequence[Any]) -> list[Any]:
        """Writes parts to files; returns tasks that read them."""
        names = [f"{self.folder}/{uuid.uuid4().hex}.npz" for _ in parts]
        stubs = self.gather([self.start(_save, part, name) for part, name in zip(parts, names, strict=True)])
        return [self.start(_load, stub, name) for stub, name in zip(stubs, names, strict=True)]


def _save(part: HeldPart, path: str) -> HeldPart:
    save_arrays(path, part.leaves)
    return dataclasses.replace(part, leaves=[])


def _load(part: HeldPart, path: str) -> HeldPart:
    return dataclasses.replace(part, leaves=load_arrays(path))


def cluster_of_ray() -> Cluster:
    """The cluster that Ray is connected to."""
    import ray

    return Cluster(ray, lambda fn, *arguments: ray.remote(fn).remote(*arguments), lambda refs: ray.get(list(refs)))


class HeldClients(ClientReader):
    """Clients stored in parts on a cluster; engines outside the cluster read one part at a time in this process."""

    def __init__(self, cluster: Cluster, parts: Sequence[Any], labels: Sequence[_Label], structure: PyTreeDef) -> None:
        full = [(part, label) for part, label in zip(parts, labels, strict=True) if label.ids]
        self.cluster, self.parts, self.labels = cluster, [x for x, _ in full], [x for _, x in full]
        self.ids = tuple(identity for label in self.labels for identity in label.ids)
        self.clients, self.structure, self.avals = len(self.ids), structure, self.labels[0].avals
        self._ends = np.cumsum([len(label.ids) for label in self.labels])

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Reads the clients in this process."""
        for reference in self.parts:
            (part,) = self.cluster.gather([reference])
            for identity, *leaves in zip(part.ids, *part.leaves, strict=True):
                yield identity, jax.tree.unflatten(self.structure, leaves)

    def slices(self, start: int, stop: int) -> tuple[list[Any], tuple[Slice, ...]]:
        """Finds the parts with the clients from `start` to `stop`, and the slice of each part."""
        parts, slices = [], []
        for number in range(int(np.searchsorted(self._ends, start, "right")), len(self.parts)):
            first = int(self._ends[number]) - len(self.labels[number].ids)
            if first >= stop:
                break
            parts.append(self.parts[number])
            end = min(stop, int(self._ends[number])) - first
            slices.append(Slice(max(start - first, 0), end, self.labels[number].mark))
        return parts, tuple(slices)
