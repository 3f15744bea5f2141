"""One call of every public function that takes a while, with comparable answers, and a check of side effects.

The benchmarks `threads` and `interrupts` and the tests use both.
"""

import contextlib
import gc
import json
import logging
import os
import random
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
import pandas as pd

import workbench as wb
from workbench import launch
from workbench.federated import algorithms

RECORDED = Path(__file__).parents[1] / "tests" / "recorded"
CLIENTS = 4
W, X = jnp.ones(3), jnp.arange(12.0).reshape(CLIENTS, 3)
A, B = jnp.ones((8, 4)), jnp.ones((4, 4)) / 4
BATCHES = X[:, None]
MESH = jax.sharding.AbstractMesh((4, 2), ("data", "model"))


def average() -> Any:
    """A new program: no two calls share a cache of traces."""

    @wb.program(clients=CLIENTS)
    def average(w: Any, x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(lambda w, x: (w * x).sum(), (wb.broadcast(w), x)))

    return average


def step() -> Callable[..., Any]:
    """A new train step with an unnecessary checkpoint."""
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(layer(w, layer(w, x)) ** 2)

    return lambda w, x: w - 0.1 * jax.grad(loss)(w, x)


def descent(lr: float) -> algorithms.Algorithm:
    """Federated averaging of a quadratic."""
    return algorithms.fedavg(lambda w, x: jnp.mean((w - x) ** 2), clients=CLIENTS, client_optimizer=optax.sgd(lr))


def rounds(**options: Any) -> Any:
    """A finished run."""
    algorithm = descent(0.1)
    return wb.run_rounds(algorithm.round, algorithm.init(W), 3, data=BATCHES, progress=False, **options)


def of_run(run: Any) -> Any:
    """The state and the losses of a run."""
    return np.asarray(run.state.params).tolist(), run.history.summary()["loss"].tolist()


def facts(record: Any) -> Any:
    """A record without fields that depend on the clock."""
    return _without(json.loads(record.to_json()))


def _without(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without(value) for key, value in node.items() if not _is_of_one_call(key)}
    return [_without(each) for each in node] if isinstance(node, list) else node


def _is_of_one_call(key: str) -> bool:
    # Texts of modules and call trees hold the frames of whoever calls, as many as JAX keeps.
    return key.endswith("seconds") or key.startswith("seconds") or key in ("text", "stablehlo", "call_tree")


def _watched() -> Any:
    scaled = jax.jit(lambda x: x * 3)
    with wb.watch_compilations(quiet=True) as seen:
        for n in (1, 2, 3):
            scaled(np.ones(n, np.float32))
    return [(each.count, each.reasons) for each in seen.record.retraces]


def _looped() -> Any:
    """A watched loop, closed."""
    step = wb.watch(jax.jit(lambda w: (w - 0.1, (w**2).sum())), outputs={"loss": "1"}, show=False)
    w = W
    for _ in range(4):
        w, _ = step(w)
    step.close()
    return np.round([each.metrics["loss"] for each in step.record.history], 4).tolist()


def _monitored() -> Any:
    with wb.watch_devices(0.1) as monitor:
        return len(monitor.latest().devices)


def _profiled() -> Any:
    profile = wb.open_profile(RECORDED / "mi300x_conv_two_kernels.xplane.pb")
    return len(profile.operations), profile.devices[0].where


def _calibrated() -> Any:
    chip = wb.calibrate(kinds=("call",), seconds=0.2, progress=False, store=False)
    return sorted({rate.kind for rate in chip.rates})


class Total:
    """A service that adds."""

    def __init__(self) -> None:
        self.value: int = 0

    def add(self, number: int) -> int:
        """The sum so far."""
        self.value += number
        return self.value


def _launched() -> Any:
    program = launch.Program("sum")
    total = program.add_node(launch.ServiceNode(Total))
    program.add_node(launch.PyNode(lambda client: [client.add(n) for n in range(5)], total))
    with launch.launched_on_threads(program) as running:
        running.wait()
        return running.client(total).add(0), running.exit_codes


def _executed() -> Any:
    with ThreadPoolExecutor(2) as pool:
        return np.asarray(wb.trace(average())(W, X).engine(wb.engines.Executor(pool)).run().results).tolist()


def _refused(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")


def _closed(view: Any) -> Any:
    names = sorted(view.get_state())
    view.close()
    return names


def _explored(*args: Any) -> Any:
    return _closed(wb.explore(*args))


def _paged(record: Any, path: Path) -> bool:
    view: Any = wb.explore(record)
    view.to_html(path)
    view.close()
    return "</html>" in path.read_text("utf-8")


def _exported(path: Path) -> Any:
    wb.trace(average())(W, X).export().save(path)
    return np.asarray(wb.load(path)(W, X)).tolist()


def _sampled() -> Any:
    return repr(wb.data.dirichlet(np.arange(40) % 4, clients=4, alpha=1.0, seed=0))


def _swept() -> Any:
    result = wb.experiments.sweep(descent, {"lr": [0.1, 0.2]}, params=W, data=BATCHES, rounds=2, progress=False)
    return [np.asarray(result.metrics(trial, 0)["loss"]).tolist() for trial in range(2)]


def calls(folder: Path, record: Any) -> dict[str, Callable[[], Any]]:
    """Calls by name, each with a reproducible answer; they write only below `folder`.

    Args:
        folder: Folder for temporary files.
        record: The inspected program `average`.
    """

    def place(name: str) -> Path:
        return folder / f"{secrets.token_hex(8)}-{name}"

    return {
        "trace": lambda: facts(wb.trace(average())(W, X).plan),
        "run": lambda: np.asarray(average()(W, X)).tolist(),
        "jit": lambda: wb.jit(average())(W, X).tolist(),
        "grad": lambda: jax.grad(average())(W, X).tolist(),
        "inspect": lambda: facts(wb.inspect(step())(B, A)),
        "inspect a program": lambda: facts(wb.inspect(average())(W, X)),
        "inspect an array": lambda: str(wb.inspect(W)),
        "why": lambda: facts(wb.why(step())(B, A)),
        "advise": lambda: facts(wb.advise(step())(B, A)),
        "search": lambda: facts(wb.search(step(), on=MESH)(B, A)),
        "fit": lambda: facts(wb.search(step(), on=["v5e:2x2"], compiled=False)(B, A)),
        "measure": lambda: sorted({each.where for each in wb.measure(average(), rounds=1)(W, X).stages}),
        "run_rounds": lambda: of_run(rounds()),
        "run_rounds with checkpoints": lambda: of_run(rounds(checkpoint_dir=place("kept"))),
        "run_rounds in a folder": lambda: of_run(rounds(log=place("runs"))),
        "run_rounds in the background": lambda: of_run(rounds(background=True).wait()),
        "history as a table": lambda: list(rounds().history.to_pandas().columns),
        "sweep": _swept,
        "watch_compilations": _watched,
        "watch": _looped,
        "calibrate": _calibrated,
        "launch": _launched,
        "watch_devices": _monitored,
        "open_profile": _profiled,
        "playground": lambda: _closed(wb.playground(algorithm="FedAvg", clients=4, rounds=2)),
        "tap": lambda: repr(wb.trace(average())(W, X).tap()),
        "show": lambda: type(wb.show(average())(W, X)).__name__,
        "explore": lambda: _closed(wb.explore(average())(W, X)),
        "explore a record": lambda: _explored(record),
        "page": lambda: _paged(record, place("page.html")),
        "export and load": lambda: _exported(place("average.wb")),
        "json": lambda: type(record).from_json(record.to_json()) == record,
        "text": lambda: repr(record),
        "make_mesh": lambda: str(wb.make_mesh(clients=CLIENTS)),
        "compare": lambda: str(wb.compare(record, record)),
        "list_targets": lambda: len(wb.aot.list_targets()),
        "sequential engine": lambda: np.asarray(
            wb.trace(average())(W, X).engine(wb.engines.Sequential()).run().results
        ).tolist(),
        "executor engine": _executed,
        "client data": _sampled,
        "population": lambda: type(wb.population.Population(100, seed=0)).__name__,
        "secure_mean": lambda: type(algorithms.secure_mean(CLIENTS, clip=1.0)).__name__,
        "epsilon": lambda: algorithms.epsilon(1.0, rounds=2, participation=1.0, delta=1e-5),
        "wrong argument": lambda: _refused(lambda: wb.make_mesh(clients=-1)),
        "wrong program": lambda: _refused(lambda: wb.trace(average())(W, jnp.ones((3, 3)))),
        "error in a client": lambda: _refused(lambda: wb.inspect(lambda x: x @ jnp.ones(7))(A)),
    }


KEEPS = {
    "search": "the compiler process, kept for the next search; it ends with this process",
    "fit": "the same",
    "launch": "the thread that stops unreferenced programs",
    "epsilon": "warning filters from the import of dp-accounting",
}
"""Calls whose first use leaves something for the next one."""


def world(folder: Path) -> dict[str, Any]:
    """The process state that a call could change, including temporary files in `folder`."""
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
        "collector": (gc.isenabled(), gc.get_threshold()),
        "frozen objects": gc.get_freeze_count(),
        "threads": sorted(each.name for each in threading.enumerate()),
        "children": _children(),
        "descriptors": _descriptors(),
        "temporary files": sorted(each.name for each in folder.iterdir()),
        "umask": mask,
        "folder": Path.cwd(),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "mesh": jax.sharding.get_mesh(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The differing state, with both values; freed objects, ended threads and imports' loggers do not count."""
    found = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    if before["frozen objects"] > after["frozen objects"]:
        del found["frozen objects"]
    if "loggers" in found:
        both = before["loggers"].keys() & after["loggers"].keys()
        if all(before["loggers"][name] == after["loggers"][name] for name in both) and "" in both:
            del found["loggers"]
    if "threads" in found:
        left = list(after["threads"])
        for name in before["threads"]:
            if name in left:
                left.remove(name)
        if not left:
            del found["threads"]
    return found


def _children() -> list[str]:
    found: set[str] = set()
    for each in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            found |= set(each.read_text().split())
    return sorted(found)


def _descriptors() -> dict[str, str]:
    found = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found[each.name] = str(each.readlink())
    return found
