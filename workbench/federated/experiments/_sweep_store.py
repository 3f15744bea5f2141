"""The file of a sweep, with one transaction per program call."""

import io
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import DataError, MeasureError

NAME = "sweep.sqlite"
Member = tuple[int, int]  # trial, seed

_TABLES = """
create table if not exists about (name text primary key, value text);
create table if not exists members (trial int, seed int, status text, reason text, rounds int, state blob,
                                    primary key (trial, seed));
create table if not exists metrics (trial int, seed int, first int, count int, arrays blob,
                                    primary key (trial, seed, first));
"""


class SweepStore:
    """States and metrics of all trials, in a folder or in memory."""

    def __init__(self, directory: str | Path | None) -> None:
        self.path: Path | None = None if directory is None else Path(directory).expanduser() / NAME
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = (
                    f"`sweep` received directory={str(directory)!r}, which cannot be created ({type(error).__name__}: "
                    f"{error.strerror}). A sweep keeps its trials in a separate folder: pass the path of a new, "
                    "writable folder."
                )
                raise DataError(message) from error
        self._base = sqlite3.connect(":memory:" if self.path is None else self.path, timeout=0.5)
        self._directory = directory
        try:
            self._base.executescript(_TABLES)
        except sqlite3.OperationalError as error:
            self._base.close()
            raise self._in_use(error) from error
        except sqlite3.DatabaseError as error:
            self._base.close()
            message = (
                f"`sweep` received directory={str(directory)!r}, whose {NAME} is not a file of a sweep ({error}). Only "
                "`sweep` writes this file: restore it, or pass another folder."
            )
            raise DataError(message) from error

    def lock(self) -> None:
        """Locks the file against other sweeps until `release` or until this process exits."""
        try:
            self._base.execute("pragma locking_mode = exclusive")
            self._base.execute("begin exclusive")
            self._base.commit()
        except sqlite3.OperationalError as error:
            raise self._in_use(error) from error

    def release(self) -> None:
        """Unlocks the file for other sweeps."""
        self._base.execute("pragma locking_mode = normal")
        self._base.execute("select count(*) from about").fetchall()  # SQLite releases its lock at the next access

    def _in_use(self, error: Exception) -> MeasureError:
        return MeasureError(
            f"`sweep` received directory={str(self._directory)!r}, whose {NAME} cannot be opened ({error}). Only one "
            "sweep can write to a folder at a time: wait for the other sweep, or pass another folder."
        )

    def close(self) -> None:
        self._base.close()

    def about(self) -> dict[str, Any]:
        """Returns the stored description of the sweep; empty for a new file."""
        rows = self._base.execute("select name, value from about").fetchall()
        return {name: json.loads(value) for name, value in rows}

    def describe(self, about: Mapping[str, Any]) -> None:
        """Writes the sweep's description."""
        with self._base:
            self._base.executemany(
                "insert or replace into about values (?, ?)", [(name, json.dumps(v)) for name, v in about.items()]
            )

    def members(self) -> dict[Member, tuple[str, str, int]]:
        """Returns the status, reason and finished rounds for every started trial and seed."""
        rows = self._base.execute("select trial, seed, status, reason, rounds from members").fetchall()
        return {(trial, seed): (status, reason, rounds) for trial, seed, status, reason, rounds in rows}

    def state(self, member: Member) -> list[np.ndarray] | None:
        """Returns the leaves of the state after the last finished round."""
        row = self._base.execute("select state from members where trial = ? and seed = ?", member).fetchone()
        return None if row is None or row[0] is None else list(_arrays(row[0]).values())

    def metrics(self, member: Member) -> dict[str, np.ndarray]:
        """Returns all metrics `[rounds, ...]`, with NaN for rounds without the metric."""
        rows = self._base.execute(
            "select count, arrays from metrics where trial = ? and seed = ? order by first", member
        ).fetchall()
        parts = [(count, _arrays(blob)) for count, blob in rows]
        names = dict.fromkeys(name for _, arrays in parts for name in arrays)
        arrays = {}
        for name in names:
            shape = next(arrays[name].shape[1:] for _, arrays in parts if name in arrays)
            arrays[name] = np.concatenate(
                [arrays.get(name, np.full((count, *shape), np.nan)) for count, arrays in parts]
            )
        return arrays

    def write(
        self, rows: Sequence[tuple[Member, str, str, int, Sequence[np.ndarray] | None, int, Mapping[str, np.ndarray]]]
    ) -> None:
        """Writes rows in one transaction; `first` is the first new round of a row."""
        with self._base:
            for member, status, reason, rounds, state, first, metrics in rows:
                blob = None if state is None else _blob({str(i): leaf for i, leaf in enumerate(state)})
                self._base.execute(
                    "insert or replace into members values (?, ?, ?, ?, ?, ?)", (*member, status, reason, rounds, blob)
                )
                if metrics and rounds > first:
                    self._base.execute(
                        "insert or replace into metrics values (?, ?, ?, ?, ?)",
                        (*member, first, rounds - first, _blob(metrics)),
                    )

    def end(self, ended: Mapping[Member, tuple[str, str]], *, decided: str = "") -> None:
        """Ends trials' runs (started or not) and stores the key `decided`, in one transaction."""
        with self._base:
            for member, (status, reason) in ended.items():
                self._base.execute("insert or ignore into members values (?, ?, '', '', 0, null)", member)
                self._base.execute(
                    "update members set status = ?, reason = ? where trial = ? and seed = ?", (status, reason, *member)
                )
            if decided:
                self._base.execute("insert or replace into about values (?, 'true')", (decided,))


def _blob(arrays: Mapping[str, np.ndarray]) -> bytes:
    out = io.BytesIO()
    named: dict[str, Any] = {f"{i:06d} {name}": np.asarray(value) for i, (name, value) in enumerate(arrays.items())}
    np.savez(out, **named)
    return out.getvalue()


def _arrays(blob: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as opened:
        return {name.split(" ", 1)[1]: opened[name] for name in sorted(opened.files)}
