"""Checkpoints of finished rounds, written with orbax, and the history file next to them."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax import Array

from workbench._open_types import Foreign
from workbench._processes import SharedChange
from workbench._types import PyTree
from workbench.errors import DataError, MeasureError, needs_library
from workbench.measurement._history import History, line_of, round_of
from workbench.measurement._state_check import changed_leaves, describe_state, misfits
from workbench.records.live import RoundRecord

NAME = "history.jsonl"


class HistoryFile:
    """Appends rounds to the file; length and digest identify the part that belongs to a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.rounds = 0
        self._bytes = 0
        self._digest = hashlib.sha256()

    def append(self, rounds: Sequence[RoundRecord], finished: int) -> dict[str, Any]:
        """Appends missing rounds; a failed write does not damage rounds that belong to earlier checkpoints.

        Returns: The number of rounds, and for their part of the file, the length in bytes and the SHA-256; pass all
            three to `read`.
        """
        new = "".join(f"{line_of(record)}\n" for record in rounds[self.rounds : finished]).encode()
        with self.path.open("r+b" if self.path.exists() else "w+b") as opened:
            opened.truncate(self._bytes)  # remove the rest of an interrupted write or of another checkpoint
            opened.seek(self._bytes)
            opened.write(new)
            opened.flush()
            os.fsync(opened.fileno())
        self._digest.update(new)
        self._bytes += len(new)
        self.rounds = finished
        return {"rounds": self.rounds, "bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def read(self, about: Mapping[str, Any]) -> History:
        """Reads a checkpoint's rounds, without later rounds in the file."""
        with self.path.open("rb") as opened:
            content = opened.read(about["bytes"])
        digest = hashlib.sha256(content)
        if len(content) != about["bytes"] or digest.hexdigest() != about["sha256"]:
            msg = f"the history in {NAME} was truncated or changed"
            raise DataError(msg)
        rounds = [round_of(json.loads(line)) for line in content.splitlines()]
        if len(rounds) != about["rounds"]:
            msg = f"{NAME} has {len(rounds)} rounds, but {about['rounds']} were written"
            raise DataError(msg)
        self.rounds, self._bytes, self._digest = len(rounds), len(content), digest
        return History(rounds)


_LOCK = "run.lock"


def load_checkpoint(directory: str | Path, like: object, *, round: int | None = None) -> tuple[int, Any, History]:
    """Reads a checkpoint of a run that was started with `checkpoint_dir`.

    Args:
        directory: The `checkpoint_dir` of the run.
        like: A state with the same structure, shapes, dtypes and shardings, such as the initial state. Typed PRNG keys
            and optax states keep their types.
        round: Number of finished rounds in the checkpoint; None means the newest readable checkpoint.

    Returns: The number of finished rounds, the state after these rounds (bitwise identical), and their history.

    Raises:
        DataError: if there is no such checkpoint, or no checkpoint matches `like`.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> run = wb.Run(lambda state, round: (state + 1, {}), jnp.zeros(()), 3, checkpoint_dir=folder, progress=False)
        >>> _ = run.start()
        >>> finished, state, history = load_checkpoint(folder, jnp.zeros(()))
        >>> finished, float(state)
        (3, 3.0)
    """
    with Checkpoints(directory, read_only=True) as checkpoints:
        return checkpoints.load(like, round=round)


def _log_of_python() -> Callable[[], None]:
    """Adds Python's default handler to a root logger without handlers.

    Without a root handler, orbax's log messages would call `logging.basicConfig`, and a later `basicConfig` call by the
    user would have no effect.
    """
    if logging.root.handlers or logging.lastResort is None:
        return lambda: None
    handler = logging.lastResort
    logging.root.addHandler(handler)
    return lambda: logging.root.removeHandler(handler)


_UNCONFIGURED_LOG = SharedChange(_log_of_python)


class Checkpoints:
    """A folder with the last `keep` checkpoints; every write is atomic."""

    def __init__(self, directory: str | Path, *, keep: int | None = None, read_only: bool = False) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self._keep = keep
        self._read_only = read_only  # does not remove files that another process may be writing
        self._manager: Foreign = None
        self._lock: int | None = None
        self._history = HistoryFile(self.directory)
        self.program = ""  # program of the last checkpoint that was read

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_UNCONFIGURED_LOG
    def close(self) -> None:
        """Releases the folder."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.close()

    @_UNCONFIGURED_LOG
    def rounds(self) -> list[int]:
        """The numbers of finished rounds for which there is a checkpoint."""
        return sorted(self._open().all_steps()) if self.directory.is_dir() else []

    @_UNCONFIGURED_LOG
    def save(self, finished: int, state: PyTree[Array], rounds: Sequence[RoundRecord], *, program: str = "") -> None:
        """Writes the state after `finished` rounds; if writing fails, older checkpoints stay readable.

        Copies the state to the host once to compute its digest, and writes only the new rounds of the history.
        """
        ocp = _orbax()

        manager = self._open()
        about = {"leaves": describe_state(_rooted(state)), "program": program}
        about["history"] = self._history.append(rounds, finished)
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(_without_scalars(_rooted(state))), history=ocp.args.JsonSave(about)
        )
        try:
            if finished in manager.all_steps():  # it was unreadable; otherwise the run would have resumed from it
                manager.delete(finished)
            try:
                manager.save(finished, args=arguments, force=True)
            except FileNotFoundError:  # orbax's threads were still removing an earlier failed write of this step
                self._manager = None
                self._open().save(finished, args=arguments, force=True)
        except BaseException:
            self._manager = None  # after a failure, the manager may treat the unfinished checkpoint as finished
            raise

    @_UNCONFIGURED_LOG
    def load(self, like: object, *, round: int | None = None) -> tuple[int, Any, History]:
        """Returns the number of finished rounds, the state and the history; see `load_checkpoint`."""
        _orbax()
        steps = self.rounds()
        candidates = steps[::-1] if round is None else [step for step in steps if step == round]
        problems = []
        for finished in candidates:
            try:
                return finished, *self._read(finished, like)
            except Exception as error:  # orbax raises many errors for damaged checkpoints; an older one may be readable
                text = (str(error).splitlines() or [""])[0][:200]
                problems.append(f"{finished} ({type(error).__name__}: {text})")
        msg = (
            f"`load_checkpoint` was asked for {'the newest round' if round is None else f'round {round}'} in "
            f"{str(self.directory)!r}, which has rounds {steps or 'none'}"
            + (f"; these cannot be read into the given state: {', '.join(problems)}" if problems else "")
            + ". A checkpoint is read into a state with its original structure, shapes and dtypes: pass the initial "
            "state of that run as `like=`, or a different folder or round."
        )
        raise DataError(msg)

    @_UNCONFIGURED_LOG
    def lock(self) -> None:
        """Locks the folder against other runs until `close`, or until this process exits or is killed."""
        if self._lock is not None or os.name != "posix":
            return
        import fcntl

        self.directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                return  # a file system without locks
            msg = (
                f"`Run` was given checkpoint_dir={str(self.directory)!r}, where another run is writing. Two runs in "
                "one folder would overwrite each other's states: wait for the other run, or pass another folder."
            )
            raise MeasureError(msg) from error
        self._lock = descriptor
        if self._manager is not None:
            self._manager.reload()  # another run may have written since orbax read the folder

    def _read(self, finished: int, like: object) -> tuple[Any, History]:
        ocp = _orbax()

        manager = self._open()
        about = manager.restore(finished, args=ocp.args.Composite(history=ocp.args.JsonRestore()))["history"]
        if wrong := misfits(_rooted(like), about["leaves"]):
            raise DataError("; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""))
        history = self._history.read(about["history"])
        if len(history) != finished:
            msg = f"it has the history of {len(history)} rounds"
            raise DataError(msg)
        template = ocp.args.StandardRestore(jax.tree.map(_template, _without_scalars(_rooted(like))))
        state = manager.restore(finished, args=ocp.args.Composite(state=template))["state"]
        if changed := changed_leaves(state, about["leaves"]):
            msg = f"the bits of {', '.join(changed[:5])} differ from the written bits"
            raise DataError(msg)
        self.program = about.get("program", "")
        return jax.tree.map(_as_it_was, _rooted(like), state)["state"], history

    def _open(self) -> Foreign:
        if self._manager is None:
            ocp = _orbax()

            options = ocp.CheckpointManagerOptions(
                max_to_keep=self._keep,
                enable_async_checkpointing=False,
                cleanup_tmp_directories=not self._read_only,
                create=not self._read_only,
            )
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager


def _orbax() -> ModuleType:
    with needs_library("orbax-checkpoint", extra="checkpoints", needed_for="`checkpoint_dir=`"):
        import orbax.checkpoint as ocp  # takes half a second, only in runs with checkpoints
    return ocp


def _rooted(state: PyTree[Array]) -> Mapping[str, Any]:
    """Wraps the state in a container, because orbax needs a container at the root and a state may be a single array."""
    return {"state": state}


def _without_scalars(state: PyTree[Array]) -> PyTree[Array]:
    """Converts NumPy scalars to arrays, because orbax writes scalars but cannot read them back."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, np.generic) else leaf, state)


def _as_it_was(like: object, leaf: object) -> object:
    return leaf[()] if isinstance(like, np.generic) and isinstance(leaf, np.ndarray) else leaf


def _template(leaf: object) -> object:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return leaf
