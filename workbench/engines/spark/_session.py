"""Spark sessions that the engine starts, on the loopback interface and without leftover JVMs."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from workbench._open_types import Foreign
from workbench._processes import is_removed, remove_with_this_process
from workbench.errors import EngineError, MissingDependencyError

_LEAST_JAVA = 17
_NEEDED_FOR = "`workbench.engines.Spark`"
_log = logging.getLogger("workbench.engines")


def check_libraries() -> None:
    for library in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(library) is None:
            raise MissingDependencyError(library, extra="spark", needed_for=_NEEDED_FOR)
    java = _java()
    version = _java_version(java) if java is not None else None
    if version is None or version < _LEAST_JAVA:
        problem = "there is no `java` in JAVA_HOME or on the path" if java is None else f"`{java}` is Java {version}"
        fact = f"{problem}. Spark 4 runs on Java {_LEAST_JAVA} or later, which pip cannot install"
        install = f"`apt install openjdk-{_LEAST_JAVA}-jre-headless`, or the equivalent package of your system"
        library = f"Java {_LEAST_JAVA}"
        raise MissingDependencyError(library, needed_for=_NEEDED_FOR, install=install, fact=fact)


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


@functools.lru_cache(maxsize=4)
def _java_version(java: str) -> int | None:
    try:
        report = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', report)
    return int(match[1]) if match else None


@dataclasses.dataclass
class Started:
    """A session that an engine started, and the number of engines that use it."""

    session: Foreign
    master: str
    settings: dict[str, str]
    log: Path
    application: str
    users: int = 1


_started: Started | None = None
_lock = threading.RLock()


def start(master: str, conf: Mapping[str, str]) -> Started:
    """Returns a session for the given master; engines with the same settings share the session."""
    global _started
    with _lock:
        if _started is not None and alive(_started):
            if (_started.master, _started.settings) == (master, dict(conf)):
                _started.users += 1
                return _started
            raise EngineError(_other_session(master, _started.master))
        if _started is not None:
            _end(_started)
        from pyspark import SparkContext

        active = SparkContext._active_spark_context
        if active is not None:
            raise EngineError(_other_session(master, str(active.master)))
        _started = _start(master, conf)
        return _started


def stop(started: Started) -> None:
    with _lock:
        started.users -= 1
        if started.users == 0:
            _end(started)


def alive(started: Started) -> bool:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return gateway is not None and started.session._sc._jsc is not None and gateway.proc.poll() is None


def _other_session(master: str, running: str) -> str:
    return (
        f"`Spark` was asked to start a session for {master!r}, but a session for {running!r} is already running in "
        "this process. A process has one JVM with one Spark context: close that engine (`engine.close()`) or stop "
        "that session first, or pass the running session: `Spark(session)`."
    )


def _start(master: str, conf: Mapping[str, str]) -> Started:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    here = master.startswith("local")
    folder = Path(tempfile.mkdtemp(prefix="workbench-spark-"))
    remove_with_this_process(folder)
    log = folder / "log"
    launch = SparkConf(loadDefaults=False)
    launch.set("spark.driver.memory", "1g")
    for name, value in conf.items():
        if name.startswith(("spark.driver.", "spark.jars")):  # options that a JVM accepts only at startup
            launch.set(name, value)
    settings = {**_settings(master, folder, here=here), **conf}
    sigint = signal.getsignal(signal.SIGINT)
    try:
        # PySpark 4.3 warns about pandas 3, although no plan uses pandas.
        with _environment(here), log.open("wb") as output, warnings.catch_warnings(action="ignore"):
            gateway = launch_gateway(launch, {"stdout": output, "stderr": output})
            spark_conf = SparkConf(loadDefaults=False).setMaster(master).setAppName("workbench")
            for name, value in settings.items():  # set after the launch, so that no secret is on a command line
                spark_conf.set(name, value)
            context = SparkContext(conf=spark_conf, gateway=gateway)
            session = SparkSession(context)
    except Exception as error:
        text = log.read_text(errors="replace")[-600:] if log.exists() else ""
        _end_jvm()
        shutil.rmtree(folder, ignore_errors=True)
        is_removed(folder)
        first = " ".join(str(error).split())[:300]
        message = (
            f"Spark could not start with master {master!r}: {type(error).__name__}: {first}. Its log ends with: "
            f"{' '.join(text.split())!r}. "
            'The first job needs a driver JVM and, on a cluster, executors: try `Spark("local[2]")`, and check the '
            "settings in `conf`."
        )
        raise EngineError(message) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, sigint)  # PySpark's handler cancels all jobs of all sessions, permanently
    atexit.register(_end_at_exit)
    return Started(session, master, dict(conf), log, context.applicationId)


def _settings(master: str, folder: Path, *, here: bool) -> dict[str, str]:
    """Default settings of a session; the user's settings take precedence."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "spark.python.worker.reuse": "true",
        "spark.authenticate": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
    }
    if jax.default_backend() == "cpu":
        settings["spark.executorEnv.JAX_PLATFORMS"] = "cpu"
    if here:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
        }
    if not re.fullmatch(r"local(\[[^]]*\])?", master):  # with one JVM, Spark generates its own secret
        settings["spark.authenticate.secret"] = secrets.token_hex(32)
    return settings


@contextlib.contextmanager
def _environment(here: bool) -> Iterator[None]:
    """Sets the JVM's environment: this Python executable for the workers, and only the loopback interface."""
    # Spark's scripts use a different Python variable, so they do not find an environment that is not activated.
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if here:
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before:
            del os.environ[name]
        os.environ.update(before)


def _end(started: Started) -> None:
    global _started
    work = _work_folder(started)
    with warnings.catch_warnings(action="ignore"):  # about a JVM that has already exited
        stopping = threading.Thread(target=_stop_quietly, args=(started.session,), daemon=True)
        stopping.start()
        stopping.join(20)
    _end_jvm()
    for folder in (started.log.parent, work):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            is_removed(folder)
    if _started is started:
        _started = None


def _work_folder(started: Started) -> Path | None:
    """Log folder of a local cluster's workers, inside Spark's own folder; Spark does not remove it."""
    from pyspark import find_spark_home

    if not started.master.startswith("local-cluster"):
        return None
    return Path(find_spark_home._find_spark_home()) / "work" / started.application


def _stop_quietly(session: object) -> None:
    with contextlib.suppress(Exception):  # the JVM may have exited
        session.stop()


def _end_jvm() -> None:
    """Terminates the JVM, which `SparkSession.stop` would keep running until this process exits."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    process = getattr(gateway, "proc", None)
    if context is not None and getattr(context, "_accumulatorServer", None) is not None:
        context._accumulatorServer.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
    if process is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()  # the JVM exits when its stdin closes
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        _log.warning("Spark's JVM (process %d) did not exit within 20 s and was killed", process.pid)
        process.kill()
        process.wait(timeout=20)


def _end_at_exit() -> None:
    if _started is not None:
        _end(_started)
