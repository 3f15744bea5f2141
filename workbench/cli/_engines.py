"""`workbench engines`: lists engines with their requirements, the lines that start them, and their tests."""

import importlib.util
import json
import os
import shutil
import textwrap
from pathlib import Path
from typing import NamedTuple


class EngineEntry(NamedTuple):
    """An engine: its platform, the line that starts it, its tested set-ups, and its requirements."""

    name: str
    runs_on: str
    start: str
    tried: str
    module: str = ""
    extra: str = ""
    program: str = ""  # that pip cannot install


ENGINES = (
    EngineEntry(
        "wb.jit",
        "the devices of `jax.set_mesh`",
        "wb.jit(fn)(*args)",
        "CPU devices, simulated meshes, two processes; compiled for TPUs and GPUs that are not attached",
    ),
    EngineEntry(
        "engines.MeshEngine",
        "a mesh of devices, with a record of the run",
        "wb.engines.MeshEngine(mesh).run(fn, *args)",
        "as wb.jit",
    ),
    EngineEntry(
        "engines.Sequential",
        "this process, one client after another: the reference, and the debugger",
        "wb.engines.Sequential(debug=True).run(fn, *args)",
        "everywhere",
    ),
    EngineEntry(
        "engines.Executor",
        "any `concurrent.futures` executor: threads, processes",
        "wb.engines.Executor(concurrent.futures.ThreadPoolExecutor(2)).run(fn, *args)",
        "threads",
    ),
    EngineEntry(
        "engines.Executor(loky)",
        "processes that survive crashes",
        "wb.engines.Executor(loky.get_reusable_executor(2)).run(fn, *args)",
        "processes on this machine, including killed processes",
        "loky",
        "loky",
    ),
    EngineEntry(
        "engines.Executor(Client)",
        "a Dask cluster",
        "wb.engines.Executor(distributed.Client().get_executor()).run(fn, *args)",
        "a local cluster; not several machines",
        "distributed",
        "dask",
    ),
    EngineEntry(
        "engines.Ray",
        "the Ray cluster that `ray.init` connected to",
        "ray.init(); wb.engines.Ray().run(fn, *args)",
        "a local cluster, including killed workers, raylets and drivers; not several machines",
        "ray",
        "ray",
    ),
    EngineEntry(
        "engines.Spark",
        "Apache Spark",
        'wb.engines.Spark("local[2]").run(fn, *args)',
        "local, local-cluster and standalone, including killed executors and drivers; not YARN, Kubernetes, Databricks",
        "pyspark",
        "spark",
        "java",
    ),
    EngineEntry(
        "engines.Beam",
        "Apache Beam runners",
        "wb.engines.Beam().run(fn, *args)",
        "FnApiRunner, several processes (including killed ones), and the embedded job server; not Prism, Flink, "
        "Dataflow",
        "apache_beam",
        "beam",
    ),
    EngineEntry(
        "engines.Flower",
        "Flower simulations and deployments",
        "wb.engines.Flower().run(fn, *args)",
        "a simulation, and a deployment on the loopback interface; not several machines",
        "flwr",
        "flower",
    ),
    EngineEntry(
        "distributed.start_hosts",
        "several hosts from one notebook",
        "wb.distributed.start_hosts(2, devices=4)",
        "processes of this machine; not TPU pods",
        "ipyparallel",
        "hosts",
    ),
    EngineEntry(
        "launch.RayEngine",
        "services on Ray",
        "ray.init(); wb.launch.launch(program, wb.launch.RayEngine())",
        "a local cluster",
        "ray",
        "ray",
    ),
)


def list_engines(*, as_json: bool = False) -> int:
    """Prints each engine's state, the line that starts or installs it, and its tests."""
    rows = [_row(engine) for engine in ENGINES]
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        print(f"{row['engine']}: {row['runs_on']}  [{'ready' if row['installed'] else 'not installed'}]")
        print(f"    {row['start']}" if row["installed"] else f"    {row['install']}")
        print(textwrap.indent(f"tried: {row['tried']}", "    "))
    return 0


def _row(engine: EngineEntry) -> dict[str, str | bool]:
    install = ""
    if engine.module and not _is_installed(engine.module):
        install = f'pip install "mapreduce-workbench[{engine.extra}]"'
    elif engine.program and not _is_on_the_path(engine.program):
        install = "apt install openjdk-17-jre-headless"
    return {
        "engine": engine.name,
        "runs_on": engine.runs_on,
        "installed": not install,
        "install": install,
        "start": engine.start,
        "tried": engine.tried,
    }


def _is_installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # a folder of this name in the working folder has no origin


def _is_on_the_path(program: str) -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(program, path=str(Path(home) / "bin") if home else None) is not None
