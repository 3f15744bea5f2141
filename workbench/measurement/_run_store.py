"""Reads, lists and reruns stored runs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.measurement._history import History, round_of
from workbench.measurement._run_log import ABOUT, HISTORY, PROGRAM, installed_versions, names_of_devices

if TYPE_CHECKING:
    import pandas as pd


R = TypeVar("R")  # type of the run that `rerun` returns


class _HasHistory(Protocol):
    """A run, finished or stored."""

    @property
    def history(self) -> History:
        """The finished rounds."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredRun(Generic[R]):
    """A run stored in a folder.

    Attributes:
        path: Folder of the run.
        about: Provenance: `name`, `code`, `versions`, `devices`, `key`, `data_sha256`, `state_sha256`, `status`, …
        history: The finished rounds; a truncated last line written by a killed process is omitted.
        make_run: `run_rounds`, which `rerun` calls.
    """

    path: Path
    about: Mapping[str, Any]
    history: History = field(repr=False)
    make_run: Callable[..., R] = field(repr=False, compare=False)

    @property
    def status(self) -> str:
        """Outcome of the run; it is also "running" if the run's process was killed."""
        return self.about["status"]

    def rerun(self, *, progress: bool = False) -> R:
        """Runs the stored program again in this process: same step, first state, data and key.

        Loads a pickle, which runs code: use only with folders that you trust.

        Raises:
            DataError: if the program was not stored; the message states the reason.
        """
        file = self.path / PROGRAM
        if not file.exists():
            message = (
                f"`rerun` was called on {self.path.name!r}, which has no program: "
                f"{self.about.get('rerun') or 'it was removed'}. Run the code in `about['code']` again, with the data "
                "whose hash is `about['data_sha256']`."
            )
            raise DataError(message)
        import cloudpickle

        entries = cloudpickle.loads(file.read_bytes())
        names = ("step", "state", "rounds")
        settings = {name: value for name, value in entries.items() if name not in (*names, "cannot")}
        return self.make_run(*(entries[name] for name in names), progress=progress, **settings)

    def differences(self, run: _HasHistory) -> list[str]:
        """Describes how `run`, a rerun in this process, differs: in versions, devices, and the exact values of metrics.

        Returns: One clause per difference, and at most one for metrics; empty if nothing differs.
        """
        versions = installed_versions()
        texts = [
            f"{name} was {old} and is now {versions.get(name, 'not installed')}"
            for name, old in self.about["versions"].items()
            if old != versions.get(name)
        ]
        if self.about["devices"] != names_of_devices():
            texts.append(
                f"the run had {len(self.about['devices'])} devices ({self.about['devices'][0]}), and now has others"
            )
        if len(run.history) != len(self.history):
            texts.append(f"{len(self.history)} rounds had finished, and {len(run.history)} have now")
        for old, new in zip(self.history, run.history, strict=False):
            for name in sorted(set(old.metrics) | set(new.metrics)):
                if not _same(old.metrics.get(name), new.metrics.get(name)):
                    return [*texts, f"{name} differs from round {old.round} onwards"]
        return texts


def _same(old: object, new: object) -> bool:
    if old is None or new is None:
        return old is new
    return np.array_equal(np.asarray(old, np.float64), np.asarray(new, np.float64), equal_nan=True)


def load_run(path: str | Path, make_run: Callable[..., R]) -> StoredRun[R]:
    """Reads a run from a folder that `log=` wrote."""
    place = Path(path).expanduser()
    try:
        about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        history = place / HISTORY
        lines = history.read_text(encoding="utf-8").split("\n") if history.exists() else []
        rounds = [round_of(json.loads(line)) for line in lines[:-1]]  # a complete last line ends with a line break
        assert isinstance(about["status"], str)
    except (OSError, ValueError, KeyError, TypeError, AssertionError, RecursionError) as error:
        message = (
            f"`Run.load` received {str(place)!r}, which does not contain a run ({type(error).__name__}: "
            f"{str(error)[:200]}). A run is a folder with {ABOUT} and {HISTORY}, written by `run_rounds(log=…)`. "
            "`workbench runs list` shows the runs in a registry."
        )
        raise DataError(message) from error
    return StoredRun(path=place, about=about, history=History(rounds), make_run=make_run)


def _no_run(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError  # a table does not rerun anything


def _stored_runs(folder: str | Path) -> list[StoredRun[NoReturn]]:
    """Lists all runs in a registry, in start order."""
    place = Path(folder).expanduser()
    runs = [load_run(file.parent, _no_run) for file in sorted(place.glob(f"*/{ABOUT}"))]
    return sorted(runs, key=lambda run: run.about["started_unix_seconds"])


def list_runs(folder: str | Path) -> "pd.DataFrame":
    """Returns one row per run: `run`, `name`, `status`, `rounds`, `seconds`, and the last value of every metric.

    The column `process` contains the host and the id of the process that wrote the run. The column is empty for runs of
    earlier versions.

    Example:
        >>> len(list_runs("no-such-folder"))
        0
    """
    with needs_library("pandas", needed_for="`list_runs`"):
        import pandas as pd
    rows = []
    for run in _stored_runs(folder):
        last = run.history[-1].metrics if len(run.history) else {}
        row = {"run": run.path.name, "name": run.about["name"], "status": run.status, "rounds": len(run.history)}
        row |= {"seconds": sum(record.seconds for record in run.history), "code": run.about["code_sha256"][:8]}
        row["process"] = "{host}:{pid}".format(**process) if (process := run.about.get("process")) else ""
        rows.append(row | {name: float(np.mean(np.asarray(values))) for name, values in last.items()})
    return pd.DataFrame(
        rows, columns=None if rows else ["run", "name", "status", "rounds", "seconds", "code", "process"]
    )
