"""Flower's two runtimes in child processes: the simulation, and SuperLink with SuperNodes."""

import contextlib
import json
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, TypeVar

from workbench._processes import SupervisedProcesses, is_removed, remove_with_this_process
from workbench.engines import _same_user
from workbench.engines.flower._app.asks import Ask, NodeFailure, NodeReply
from workbench.errors import EngineError

Result = TypeVar("Result")

_LOG = logging.getLogger("workbench.engines")
_PATIENCE_SECONDS = 240.0  # time limit for starting a runtime; Ray alone took 15 to 60 s on two busy cores


class ProcessEndedError(EngineError):
    """A required process has exited; `process` is its name."""

    def __init__(self, message: str, process: str) -> None:
        super().__init__(message)
        self.process = process


class FlowerProcesses(SupervisedProcesses):
    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        super().__init__(folder, env, log=_LOG, system="Flower")

    def wait(
        self,
        ready: Callable[[], Result | None],
        task: str,
        check: Callable[[], Any],
        seconds: float = _PATIENCE_SECONDS,
        pause: Callable[[float], Any] = time.sleep,
    ) -> Result:
        """Waits until `ready` returns a value, polling ten times a second; `check` may raise.

        `pause` waits between two polls; it may return early when a result is available.
        """
        until = time.monotonic() + seconds
        while (result := ready()) is None:
            check()
            for name, status in list(self.ended.items()):
                message = (
                    f"Flower's {name} ended with exit status {status} while the engine waited for {task}. The run "
                    f"needs this process; its last output: {self.log(name)!r}. Run again; on a busy machine increase "
                    "`start_seconds`, or use fewer `workers`."
                )
                raise ProcessEndedError(message, name)
            if time.monotonic() > until:
                name = next(reversed(self.pids), "")
                message = (
                    f"the engine waited {seconds:.0f} s for {task}. Flower's processes are running but not ready; last "
                    f"output of {name}: {self.log(name)!r}. Increase `start_seconds` on a busy machine, and check that "
                    "nothing is blocking connections to 127.0.0.1."
                )
                raise EngineError(message)
            pause(0.1)
        return result


class Runtime:
    """Running nodes; each node reads the folder `<its partition>/` in `data`."""

    def __init__(self, nodes: int, start_seconds: float = _PATIENCE_SECONDS) -> None:
        self.nodes, self.start_seconds = nodes, start_seconds
        self.folder = Path(tempfile.mkdtemp(prefix="workbench-flower-"))
        remove_with_this_process(self.folder)
        self.data = self.folder / "data"
        for node in range(nodes):
            (self.data / str(node)).mkdir(parents=True)
        key = secrets.token_bytes(32)
        self._listener = Listener(authkey=key)
        self._accepted: Future[Connection] = Future()
        self._engine: Connection | None = None
        self._number, self._key = 0, key
        threading.Thread(target=self._accept, daemon=True).start()
        self.processes = FlowerProcesses(self.folder, self._environment())

    def _environment(self) -> dict[str, str]:
        return {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_HOME": str(self.folder / "home"),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray opens its folders to all users. Its socket paths are 68 characters longer than the folder, and may
            # have at most 107.
            **({"RAY_TMPDIR": str(self.folder)} if len(str(self.folder)) <= 39 else {}),
            "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
            # Flower starts its own programs by name.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "WORKBENCH_FLOWER_ADDRESS": str(self._listener.address),
            "WORKBENCH_FLOWER_KEY": self._key.hex(),
            "WORKBENCH_FLOWER_NODES": str(self.nodes),
            "WORKBENCH_FLOWER_PATIENCE": str(self.start_seconds),
            "WORKBENCH_FLOWER_DATA": str(self.data),
        }

    def start(self, check: Callable[[], Any]) -> None:
        raise NotImplementedError

    def _connect(self, check: Callable[[], Any]) -> None:
        arrived = lambda: self._accepted.result() if self._accepted.done() else None  # noqa: E731
        self._engine = self.processes.wait(arrived, "its ServerApp", check, self.start_seconds)
        _, ready, error = self._receive(0, check, self.start_seconds + 90)
        if ready is None:
            message = (
                f"Flower's runtime started, but its nodes are not ready: {error}. Every client needs a node that "
                f"answers: increase `start_seconds` on a busy machine. {self._last_words()}"
            )
            raise EngineError(message)

    def ask(
        self,
        asks: Sequence[Ask],
        seconds: float,
        check: Callable[[], Any],
        enough: tuple[int, float | None] | None = None,
        /,
    ) -> list[NodeReply]:
        """Returns the replies of the nodes, in request order; see `ask_nodes`."""
        assert self._engine is not None
        self._number += 1
        with contextlib.suppress(OSError):  # the process has exited; reported below with its log
            self._engine.send((self._number, list(asks), seconds, enough))
        _, answer, error = self._receive(self._number, check, seconds + 60)
        if isinstance(answer, list):
            return answer
        if answer is None:
            message = (
                f"Flower's ServerApp failed: {error}. The ServerApp only forwards messages, so the error is in Flower: "
                f"run again. {self._last_words()}"
            )
            raise EngineError(message)
        slot, worker_lost = answer
        raise NodeFailure(slot, error, worker_lost=worker_lost)

    def _receive(self, number: int, check: Callable[[], Result], seconds: float) -> Result:
        """Waits for the answer with this number; older answers belong to cancelled runs."""
        engine = self._engine
        assert engine is not None

        def ready() -> "Result | None":
            try:
                while engine.poll():
                    if (answer := engine.recv())[0] == number:
                        return answer
            except (EOFError, OSError):
                message = (
                    "Flower's ServerApp closed its connection while the engine waited for the nodes. The ServerApp is "
                    f"needed for the whole run: run again; the engine will start a new ServerApp. {self._last_words()}"
                )
                self.processes.ended.setdefault("serverapp", 1)
                raise EngineError(message) from None
            return None

        def pause(most: float) -> None:
            with contextlib.suppress(EOFError, OSError):  # `ready` says it
                engine.poll(most)

        return self.processes.wait(ready, "the nodes", check, seconds, pause)

    def _last_words(self) -> str:
        reported = "; ".join(f"{name}: {self.processes.log(name, 300)!r}" for name in self.processes.pids)
        return f" Last output of its processes: {reported}"

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        else:
            with contextlib.suppress(OSError, EOFError):  # releases the waiting thread
                Client(self._listener.address, authkey=self._key).close()
        self.processes.close()
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        is_removed(self.folder)

    def _accept(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._accepted.set_result(self._listener.accept())


class FlowerSimulation(Runtime):
    """Virtual nodes in the worker processes of a Ray cluster that requires a token."""

    def __init__(
        self, nodes: int, start_seconds: float, *, workers: int, ray_options: Mapping[str, Any] | None
    ) -> None:
        super().__init__(nodes, start_seconds)
        self.workers, self.ray_options = workers, dict(ray_options or {})

    def _environment(self) -> dict[str, str]:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return {**super()._environment(), **token}  # passed only in process environments, never on a command line

    def start(self, check: Callable[[], Any]) -> None:
        settings = json.dumps([self.nodes, self.workers, self.ray_options, self.start_seconds])
        self.processes.start("simulation", [sys.executable, "-m", "workbench.engines.flower._simulation", settings])
        self._connect(check)


class Deployment(Runtime):
    """A SuperLink, and a SuperNode for each node, on the loopback interface; each message starts a process."""

    def __init__(self, nodes: int, start_seconds: float, *, port: int, insecure: bool = False) -> None:
        if not insecure:
            check_users()
        super().__init__(nodes, start_seconds)
        self.port, self.insecure = port or free_port(), insecure

    def ask(self, *request: Any) -> list[NodeReply]:
        """Sends requests to the nodes; detects the exit of a SuperNode without waiting for Flower's heartbeats."""
        try:
            return super().ask(*request)
        except ProcessEndedError as error:
            kind, _, slot = error.process.partition(" ")
            if kind != "supernode":
                raise
            raise NodeFailure(int(slot), f"left: {error}", worker_lost=True) from error

    def start(self, check: Callable[[], Any]) -> None:
        """Starts the SuperLink, the SuperNodes, and the app that communicates with the engine."""
        self.start_nodes(check)
        project = self.folder / "bridge"
        write_bridge(project)
        self.submit(project)
        self._connect(check)

    def start_nodes(self, check: Callable[[], Any]) -> None:
        check_port(self.port)
        link = f"--insecure --disable-runtime-dependency-installation --host 127.0.0.1 --port {self.port}"
        self.processes.start("superlink", [*self._server("flower-superlink"), *link.split()])
        self.processes.wait(lambda: True if _answers(self.port) else None, "the SuperLink", check, self.start_seconds)
        for node in range(self.nodes):
            node_config = f'partition-id={node} num-partitions={self.nodes} data="{self.data / str(node)}"'
            flags = ["--insecure", "--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
            home = {"FLWR_HOME": str(self.folder / f"home-{node}")}
            argv = [*self._server("flower-supernode"), *flags, "--node-config", node_config]
            self.processes.start(f"supernode {node}", argv, home)

    def _server(self, name: str) -> list[str]:
        """The SuperLink's command; only this user can use the SuperLink, unless `insecure` is set."""
        if self.insecure:
            return [_program(name)]
        return [sys.executable, "-P", _same_user.__file__, name]  # started by path, without importing JAX

    def submit(self, project: Path, *flags: str) -> None:
        """Submits a Flower app to the SuperLink, like `flwr run`."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.processes.start("flwr run", [_program("flwr"), "run", str(project), "here", "--stream", *flags])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def check_port(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        message = (
            f"`Flower` was given port={port} for its SuperLink, but it cannot listen on 127.0.0.1:{port}: {error}. "
            "Only one process can listen on a port: pass another port, omit `port` to use a free port, or end the "
            "other process (perhaps a SuperLink that `flwr run` left behind)."
        )
        raise EngineError(message) from error


def check_users() -> None:
    """Checks that a SuperLink can reject this machine's other users."""
    if _same_user.can_identify_users():
        return
    message = (
        f"`Flower` was given runtime='deployment' on {sys.platform}, where a server cannot determine which user opened "
        "a connection (on Linux, /proc/net/tcp shows the user). Flower's SuperLink does not authenticate users: every "
        "user of this machine could submit an app that runs as you. Use runtime='simulation', or pass insecure=True "
        "on a machine that nobody else uses."
    )
    raise EngineError(message)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _program(name: str) -> str:
    """A Flower command in this Python environment."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


def write_bridge(project: Path) -> None:
    """Writes the Flower app whose ServerApp is the engine's bridge."""
    package = project / "workbench_bridge"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name, module in (("server", "_bridge"), ("client", "_app.client")):
        # Flower expects an assignment, not an import.
        text = f"from workbench.engines.flower.{module} import app as made\n\napp = made\n"
        (package / f"{name}.py").write_text(text)
    (project / "pyproject.toml").write_text(project_file("workbench-bridge", "workbench_bridge", {}))


def project_file(name: str, package: str, config: Mapping[str, Any]) -> str:
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
    template = (Path(__file__).parent / "_project" / "pyproject.toml.txt").read_text()
    return template.format(name=name, package=package, settings=settings)
