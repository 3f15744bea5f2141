"""Workers of engines need the libraries of requirements-worker.lock, and nothing of a notebook, a plot or a table."""

import concurrent.futures
import importlib.metadata
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import workbench as wb
from workbench.engines import Executor

ROOT = Path(__file__).parents[2]
SYSTEMS = ["pyarrow", "pyspark", "apache-beam", "distributed", "ray", "loky", "universal-pathlib"]  # bring their own
MODULES = [
    "workbench",
    "workbench.engines._remote",
    "workbench.engines._tables",
    "workbench.engines.spark._worker",
    "workbench.engines.beam._worker",
    "workbench.launch._dask_worker",
    "workbench.launch._ray_worker",
]
CHILD = """
import importlib, json, pickle, sys

blocked, modules, systems, path = json.loads(sys.argv[1])
blocked, before = set(blocked), set(sys.modules)

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
imported = []
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in systems:
            raise
    else:
        imported.append(name)
from workbench.engines._remote import run_task
with open(path, "rb") as file:
    reply = run_task(*pickle.load(file))
print(json.dumps([imported, [x.tolist() for x in reply.outputs], sorted(blocked & (sys.modules.keys() - before))]))
"""


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9][\w.-]*)==", (ROOT / name).read_text(), flags=re.MULTILINE))


def with_requirements(names: list[str]) -> set[str]:
    """Installed distributions with all that they require."""
    reached, waiting = set(), [*names]
    while waiting:
        name = canonicalize_name(waiting.pop())
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in reached:
            reached.add(name)
            found = map(Requirement, lines)
            waiting += [x.name for x in found if x.marker is None or x.marker.evaluate({"extra": ""})]
    return reached


class Recorder(concurrent.futures.Executor):
    """Keeps the first task, and computes it here."""

    _max_workers = 1
    task: Any = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        self.task = self.task or args
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(fn(*args))
        return future


def test_a_worker_imports_and_computes_with_the_locked_libraries_alone(tmp_path: Path):
    @wb.program(clients=4)
    def total(w: Any, x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda w, x: w * x, (wb.broadcast(w), x)))

    pool = Recorder()
    expected = float(
        Executor(pool, clients_per_task=4).run(total, np.float32(2), np.arange(4, dtype=np.float32)).results
    )
    (tmp_path / "task").write_bytes(pickle.dumps(pool.task))
    owners = importlib.metadata.packages_distributions()
    kept = {canonicalize_name(name) for name in locked("requirements-worker.lock")} | with_requirements(SYSTEMS)
    others = {canonicalize_name(name) for name in locked("requirements.lock")} - kept
    blocked = [module for module, names in owners.items() if {canonicalize_name(x) for x in names} <= others]
    assert {"jupyterlab", "ipywidgets", "anywidget", "treescope", "optax", "matplotlib"} <= set(blocked)
    systems = ["pyarrow", "pyspark", "apache_beam", "distributed", "dask", "ray"]
    given = json.dumps([blocked, MODULES, systems, str(tmp_path / "task")])
    command = [sys.executable, "-c", CHILD, given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    imported, outputs, loaded = json.loads(done.stdout.splitlines()[-1])
    assert {"workbench", *(f"workbench.engines.{name}" for name in ("_remote", "_tables"))} <= set(imported)
    assert [expected] == outputs[-1:] == [12.0]
    assert loaded == []


@pytest.mark.parametrize("name", ["jupyterlab", "ipywidgets", "matplotlib", "pandas", "treescope", "anywidget"])
def test_the_lock_for_workers_has_no_library_of_the_front_end(name: str):
    assert name in locked("requirements.lock")
    assert name not in locked("requirements-worker.lock")
