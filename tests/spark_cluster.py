"""A standalone Spark cluster of two workers on this machine, which can have different file systems."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark  # pyright: ignore[reportMissingImports]

HIDE = 'mount -t tmpfs none "$0" && exec "$@"'  # the first argument becomes an empty folder, for one process


def without(folder: Path) -> list[str]:
    """The start of a command for a process that sees an empty folder in this place."""
    return ["unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c", HIDE, str(folder)]


def why_no_namespaces(folder: Path) -> str:
    """Why processes cannot have different file systems here; "" if they can."""
    try:
        found = subprocess.run([*without(folder), "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return found.stderr.strip() if found.returncode else ""


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


@contextlib.contextmanager
def standalone(folder: Path, second: Sequence[str] = ()) -> Iterator[str]:
    """The address of a standalone cluster of two workers, which believe to be on two machines.

    `second` is the start of the second worker's command.
    """
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    master = f"spark://127.0.0.1:{free_port()}"
    port, common = master.rpartition(":")[2], {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOG_DIR": str(folder)}
    daemons: list[subprocess.Popen[bytes]] = []

    def daemon(kind: str, host: str, *arguments: str, start: Sequence[str] = ()) -> None:
        environment = {**os.environ, **common, "SPARK_LOCAL_IP": host, "SPARK_WORKER_DIR": str(folder / host)}
        name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        command = [*start, spark_class, name, "--host", host, "--webui-port", str(free_port()), *arguments]
        with (folder / f"{kind}-{host}").open("wb") as log:
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        daemon("Master", "127.0.0.1", "--port", port)
        daemon("Worker", "127.0.0.2", "--cores", "1", "--memory", "1g", master)
        daemon("Worker", "127.0.0.3", "--cores", "1", "--memory", "1g", master, start=second)
        yield master
    finally:
        for each in daemons:
            each.terminate()
        assert all(each.wait(60) is not None for each in daemons)


CONF = {  # short jobs: a JVM that compiles little starts in half the time
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.authenticate": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
