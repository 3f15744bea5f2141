"""`workbench engines`: where a program can run, and what each engine needs."""

import importlib.util
import json
from typing import NamedTuple


class EngineEntry(NamedTuple):
    """An engine: what it runs on, the module that it needs and the extra that brings it."""

    name: str
    runs_on: str
    module: str = ""
    extra: str = ""


ENGINES = (
    EngineEntry("wb.jit", "the devices of `jax.set_mesh`"),
    EngineEntry("engines.Mesh", "a mesh of devices, with a record of the run"),
    EngineEntry("engines.Sequential", "this process, one client after another: the reference, and the debugger"),
    EngineEntry("engines.Executor", "any `concurrent.futures` executor: threads, processes"),
    EngineEntry("engines.Executor(loky)", "processes that survive crashes", "loky", "loky"),
    EngineEntry("engines.Executor(Client)", "a Dask cluster", "distributed", "dask"),
    EngineEntry("engines.Beam", "Apache Beam runners", "apache_beam", "beam"),
    EngineEntry("engines.Flower", "Flower simulations and deployments", "flwr", "flower"),
    EngineEntry("distributed.start_hosts", "several hosts from one notebook", "ipyparallel", "hosts"),
    EngineEntry("launch.RayEngine", "services on Ray", "ray", "ray"),
)


def list_engines(*, as_json: bool = False) -> int:
    """Prints one line per engine: whether its library is here, and else the line that installs it."""
    rows = [_row(engine) for engine in ENGINES]
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(str(row["engine"])) for row in rows)
    for row in rows:
        state = "ready" if row["installed"] else row["install"]
        print(f"{row['engine']:{width}}  {row['runs_on']}  [{state}]")
    return 0


def _row(engine: EngineEntry) -> dict[str, str | bool]:
    installed = not engine.module or _is_installed(engine.module)
    install = "" if installed else f'pip install "mapreduce-workbench[{engine.extra}]"'
    return {"engine": engine.name, "runs_on": engine.runs_on, "installed": installed, "install": install}


def _is_installed(module: str) -> bool:
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None  # a folder of that name in the current one has no origin
