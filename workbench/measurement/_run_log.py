"""Logging of finished rounds: the tracker protocol, and the run folder."""

import contextlib
import hashlib
import importlib.metadata
import inspect
import json
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax import Array

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.errors import MeasureError
from workbench.measurement._history import line_of
from workbench.measurement._state_check import describe_state
from workbench.plan import Jitted
from workbench.records import write_whole
from workbench.records.live import RoundRecord

ABOUT, HISTORY, PROGRAM = "run.json", "history.jsonl", "program.pkl"
_VERSIONS = ("jax", "jaxlib", "numpy", "optax", "flax", "equinox", "dm-haiku", "mapreduce-workbench")


@runtime_checkable
class Tracker(Protocol):
    """Protocol of the trackers in `run_rounds(log=[…])`; a tracker that raises is removed, and a note is added."""

    def start(self, about: Mapping[str, Any], program: object) -> None:
        """Called before the first round and on resume, with provenance and data for a rerun."""
        ...

    def log(self, record: RoundRecord) -> None:
        """Called after every round."""
        ...

    def finish(self, status: str) -> None:
        """Called after the last round, with "finished", "stopped", "interrupted" or "failed"."""
        ...


class RunFolder:
    """Writes a run into a new folder: provenance, one line per round, and the program.

    Args:
        folder: The registry; the run's folder in it is named after the start time and the run's name.
        name: Name of the run.
        program: Whether to store the step, its first state, data and key (with cloudpickle), for `StoredRun.rerun`.

    Attributes:
        path: The folder of this run; available once the run has started.
    """

    def __init__(self, folder: str | Path, *, name: str = "", program: bool = True) -> None:
        self.folder: Path = Path(folder).expanduser()
        self.name: str = name
        self.path: Path | None = None
        self._keeps_program = program
        self._about: dict[str, Any] = {}

    def start(self, about: Mapping[str, Any], program: Mapping[str, Any]) -> None:
        """Creates the run's folder; a resumed run reuses its folder."""
        if self.path is None:
            name = self.name or about["name"]
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(about["started_unix_seconds"]))
            safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:60]
            self.path = self.folder / f"{stamp}-{safe}-{uuid.uuid4().hex[:6]}"
            self.path.mkdir(parents=True)
            self._about = {**about, "name": name, "rerun": self._keep(program)}
            for record in about["earlier"]:
                self.log(record)
        self._about |= {"status": "running"}
        self._write()

    def _keep(self, program: Mapping[str, Any]) -> str:
        assert self.path is not None
        if not self._keeps_program:
            return "the program was not kept (program=False)"
        if reason := program.get("cannot"):
            return reason
        try:
            import cloudpickle

            content = cloudpickle.dumps(program)
        except Exception as error:  # closures over files, locks, sockets, …
            return f"the program cannot be pickled ({type(error).__name__}: {str(error)[:200]})"
        write_whole(self.path / PROGRAM, content)
        return ""

    def log(self, record: RoundRecord) -> None:
        """Appends the round."""
        assert self.path is not None
        with (self.path / HISTORY).open("a", encoding="utf-8") as opened:
            opened.write(f"{line_of(record)}\n")

    def finish(self, status: str) -> None:
        """Writes the status."""
        self._about |= {"status": status, "ended_unix_seconds": time.time()}
        self._write()

    def _write(self) -> None:
        assert self.path is not None
        plain = {name: value for name, value in self._about.items() if name != "earlier"}
        write_whole(self.path / ABOUT, json.dumps(plain, indent=1))


def trackers_of(log: object) -> list[Tracker]:
    """Converts `log=` to trackers; a path becomes a `RunFolder`."""
    items = list(log) if isinstance(log, Sequence) and not isinstance(log, str) else [] if log is None else [log]
    trackers: list[Any] = [
        RunFolder(os.fspath(item)) if isinstance(item, str | os.PathLike) else item for item in items
    ]
    if wrong := [type(item).__name__ for item in trackers if not isinstance(item, Tracker)]:
        message = (
            f"`run_rounds` received log={', '.join(wrong)}. A tracker has the methods start, log and finish: pass one "
            "of `workbench.measurement` (RunFolder, TensorBoardLog, WandbLog, MlflowLog, TrackioLog), your own, or a "
            "folder."
        )
        raise MeasureError(message)
    return trackers


def describe_run(
    step: Callable, state: PyTree[Array], *, data: object, key: jax.Array | None, rounds: int, name: str
) -> dict[str, Any]:
    """Describes a run's provenance: code, versions, devices, seeds, hashes of data and state."""
    config: Foreign = jax.config  # its flags are attributes without stubs
    return {
        "name": name or _name(step),
        "rounds": rounds,
        "started_unix_seconds": time.time(),
        "code": _source(step),
        "code_sha256": _code_digest(step),
        "versions": installed_versions(),
        "devices": names_of_devices(),
        "mesh": dict(jax.sharding.get_mesh().shape),
        "key": None if key is None else np.asarray(jax.random.key_data(key)).tolist(),
        "data_sha256": data_hash(data),
        "state_sha256": _digest_of(describe_state(state)),
        "command": sys.argv[:1],
        "process": {"host": socket.gethostname(), "pid": os.getpid(), "index": jax.process_index()},
        "jax_config": {
            "enable_x64": bool(config.jax_enable_x64),
            "default_matmul_precision": config.jax_default_matmul_precision,
        },
    }


def data_hash(data: PyTree[Array]) -> str:
    """SHA-256 of a pytree's arrays or a function's code; empty for iterators."""
    if data is None:
        return ""
    if callable(data):
        return f"code {_code_digest(data)}"
    if hasattr(data, "__next__"):
        return ""
    return _digest_of(describe_state(data))


def _digest_of(plain: object) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def names_of_devices() -> list[str]:
    """Platform, number and kind of every attached device."""
    return [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that affect a run's numbers."""
    versions = {"python": platform.python_version()}
    for name in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _inner(step: Callable) -> Callable:
    inner = inspect.unwrap(step)
    return inner.fn if isinstance(inner, Jitted) else inner


def _name(step: Callable) -> str:
    return getattr(_inner(step), "__qualname__", type(step).__name__).replace(".<locals>", "")


def _source(step: Callable) -> str:
    try:
        return inspect.getsource(inspect.unwrap(_inner(step)))
    except (OSError, TypeError):
        return ""


def _code_digest(step: Callable) -> str:
    code = getattr(inspect.unwrap(_inner(step)), "__code__", None)
    if code is None:
        return ""
    return hashlib.sha256(code.co_code + repr((code.co_names, code.co_varnames)).encode()).hexdigest()
