"""Nobody's world changes: what belongs to the process is the same before and after each public call."""

import collections
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import pandas as pd
import pytest

import workbench as wb
from workbench.federated import algorithms

CLIENTS = 4


@wb.program(clients=CLIENTS)
def average(w, x):
    return wb.reduce_mean(wb.map_fn(lambda w, x: (w * x).sum(), (wb.broadcast(w), x)))


def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)


W, X = jnp.ones(3), jnp.ones((CLIENTS, 3))
A, B = jnp.ones((8, 4)), jnp.ones((4, 4))
ALGORITHM = algorithms.fedavg(lambda w, x: jnp.mean((w - x) ** 2), clients=CLIENTS, client_optimizer=optax.sgd(0.1))
BATCHES = jnp.ones((CLIENTS, 1, 3))
KEEPS = {
    "search": "the process that compiles, for the next search; it ends with this process",
    "epsilon": "filters for warnings that the import of dp-accounting adds",
}
"""Calls whose second use is compared, and what the first one keeps."""
MESH = jax.sharding.AbstractMesh((4, 2), ("data", "model"))


def rounds(**options):
    return wb.run_rounds(ALGORITHM.round, ALGORITHM.init(W), 2, data=BATCHES, progress=False, **options)


@pytest.fixture(scope="module")
def traced():
    return wb.trace(average)(W, X)


@pytest.fixture(scope="module")
def program_record(traced):
    return traced.inspect()


CALLS = {
    "trace": lambda r, f: wb.trace(average)(W, X),
    "jit": lambda r, f: wb.jit(average)(W, X),
    "grad": lambda r, f: jax.grad(average)(W, X),
    "inspect": lambda r, f: wb.inspect(step)(B, A),
    "inspect of a program": lambda r, f: wb.inspect(average)(W, X),
    "inspect of an array": lambda r, f: wb.inspect(W),
    "why": lambda r, f: wb.why(step)(B, A),
    "advise": lambda r, f: wb.advise(step)(B, A),
    "search": lambda r, f: wb.search(step, on=MESH)(B, A),
    "fit": lambda r, f: wb.search(step, on=["v5e:2x2"], compiled=False)(B, A),
    "measure": lambda r, f: wb.measure(average)(W, X),
    "run_rounds": lambda r, f: rounds(),
    "run_rounds with checkpoints": lambda r, f: rounds(checkpoint_dir=f / "checkpoints"),
    "watch_compilations": lambda r, f: explained(),
    "tap": lambda r, f: wb.trace(average)(W, X).tap(),
    "show": lambda r, f: wb.show(average)(W, X),
    "explore": lambda r, f: wb.explore(average)(W, X).close(),
    "explore a record": lambda r, f: wb.explore(r).close(),
    "export to a page": lambda r, f: wb.explore(r).to_html(f / "page.html"),
    "export": lambda r, f: wb.trace(average)(W, X).export().save(f / "average.wb"),
    "load": lambda r, f: wb.load(f / "average.wb"),
    "json": lambda r, f: type(r).from_json(r.to_json()),
    "text": lambda r, f: repr(r),
    "mimebundle": lambda r, f: r._repr_mimebundle_() if hasattr(r, "_repr_mimebundle_") else None,
    "make_mesh": lambda r, f: wb.make_mesh(clients=CLIENTS),
    "compare": lambda r, f: wb.compare(r, r),
    "list_targets": lambda r, f: wb.aot.list_targets(),
    "sequential engine": lambda r, f: wb.trace(average)(W, X).engine(wb.engines.Sequential()).run(),
    "executor engine": lambda r, f: executed(),
    "client data": lambda r, f: wb.data.dirichlet(np.arange(40) % 4, clients=4, alpha=1.0, seed=0),
    "population": lambda r, f: wb.population.Population(100, seed=0),
    "secure_mean": lambda r, f: algorithms.secure_mean(CLIENTS, clip=1.0),
    "epsilon": lambda r, f: algorithms.epsilon(1.0, rounds=2, participation=1.0, delta=1e-5),
    "run in a folder of runs": lambda r, f: rounds(log=f / "runs"),
    "run in the background": lambda r, f: rounds(background=True).wait(),
    "history as a table": lambda r, f: rounds().history.to_pandas(),
    "sweep": lambda r, f: wb.experiments.sweep(
        descent, {"lr": [0.1, 0.2]}, params=W, data=BATCHES, rounds=2, progress=False
    ),
    "wrong argument": lambda r, f: refused(lambda: wb.make_mesh(clients=-1, devices=7)),
    "wrong program": lambda r, f: refused(lambda: wb.trace(average)(W, jnp.ones((3, 3)))),
    "error in a client": lambda r, f: refused(lambda: wb.inspect(lambda x: x @ jnp.ones(7))(A)),
}


def descent(lr):
    return algorithms.fedavg(lambda w, x: jnp.mean((w - x) ** 2), clients=CLIENTS, client_optimizer=optax.sgd(lr))


def explained():
    with wb.watch_compilations(quiet=True):
        jax.jit(lambda x: x + 2)(A)


def executed():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return wb.trace(average)(W, X).engine(wb.engines.Executor(pool)).run()


def refused(call):
    with pytest.raises(Exception):  # noqa: B017, PT011
        call()


def world(folder: Path) -> dict[str, object]:
    """What a call could change for others."""
    gc.collect()
    loggers = {
        name: (each.level, each.disabled, each.propagate, [*map(id, each.handlers)], [*map(id, each.filters)])
        for name, each in [("", logging.root), *logging.root.manager.loggerDict.items()]
        if isinstance(each, logging.Logger)
    }
    mask = os.umask(0)
    os.umask(mask)
    return {
        "jax.config": dict(jax.config.values),
        "environment": dict(os.environ),
        "matplotlib": dict(mpl.rcParams),
        "pandas": {name: pd.get_option(name) for name in ("display.max_rows", "display.width", "display.precision")},
        "warnings": list(warnings.filters),
        "loggers": loggers,
        "random": random.getstate(),
        "numpy random": [str(part) for part in np.random.get_state()],  # noqa: NPY002
        "sys.path": list(sys.path),
        "hooks": (sys.excepthook, sys.displayhook, threading.excepthook, sys.gettrace(), sys.getprofile()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "recursion": sys.getrecursionlimit(),
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "threads": sorted(each.name for each in threading.enumerate()),
        "children": children(),
        "descriptors": descriptors(),
        "temporary files": sorted(each.name for each in folder.iterdir()),
        "umask": mask,
        "folder": Path.cwd(),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "mesh": jax.sharding.get_mesh(),
    }


def children():
    found = set()
    for each in Path("/proc/self/task").glob("*/children"):
        found |= set(each.read_text().split())
    return sorted(found)


def descriptors():
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        try:
            found[each.name] = str(each.readlink())
        except FileNotFoundError:  # that of the listing
            continue
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors and children are listed on Linux alone")
@pytest.mark.parametrize("name", CALLS)
def test_call_leaves_the_world_as_it_was(name, program_record, tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "world"
    folder.mkdir(exist_ok=True)
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    call = CALLS[name]
    if name in KEEPS:
        call(program_record, folder)
    before = world(temporary)
    call(program_record, folder)
    after = world(temporary)
    for logger in set(after["loggers"]) - set(before["loggers"]):  # of modules that the call imports
        assert logger.partition(".")[0] != "", logger
        del after["loggers"][logger]
    started = collections.Counter(after.pop("threads")) - collections.Counter(before.pop("threads"))
    assert started == {}  # a thread of an earlier test may end meanwhile
    assert {key: (before[key], after[key]) for key in before if before[key] != after[key]} == {}
