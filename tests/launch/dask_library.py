"""Dask's library, or a skip that says why."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest


def import_distributed() -> Any:
    pytest.importorskip("distributed.client", reason="needs the extra `dask`")  # a folder can be called `distributed`
    return importlib.import_module("distributed")


@contextlib.contextmanager
def dask_cluster(
    workers: int, threads: int, *, processes: bool = False, direct: bool | None = None, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """A cluster on this machine, and a client of it; `direct`: the client connects to the workers themselves."""
    distributed = import_distributed()
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=processes,
            dashboard_address=":0",
            silence_logs=50,
            **options,
        ) as cluster,
        distributed.Client(cluster, direct_to_workers=direct) as client,
    ):
        yield cluster, client
