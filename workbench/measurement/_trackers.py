"""Adapters for common trackers; each imports its library when a run starts."""

# pyright: reportMissingImports=false

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench._open_types import Foreign
from workbench.errors import needs_library
from workbench.records.live import RoundRecord

_TEXTS = ("code_sha256", "data_sha256", "state_sha256")


def scalars_of(record: RoundRecord) -> dict[str, float]:
    """Numbers for a tracker: every metric, and for per-client metrics the mean, minimum and maximum.

    Example:
        >>> scalars_of(RoundRecord(round=0, seconds=0.5, metrics={"loss": (1.0, 3.0)}))
        {'loss': 2.0, 'loss.least': 1.0, 'loss.largest': 3.0, 'seconds': 0.5}
    """
    numbers: dict[str, float] = {}
    for name, values in record.metrics.items():
        array = np.asarray(values, np.float64)
        numbers[name] = float(array.mean())
        if array.ndim:
            numbers |= {f"{name}.least": float(array.min()), f"{name}.largest": float(array.max())}
    return numbers | {"seconds": record.seconds}


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """Values that can be stored in a tracker's parameter table."""
    parameters = {"rounds": about["rounds"], **{name: about[name] for name in _TEXTS}}
    parameters |= {f"version {name}": version for name, version in about["versions"].items()}
    return parameters | {"devices": ", ".join(about["devices"][:8]), "key": str(about["key"])}


class TensorBoardLog:
    """Writes events for TensorBoard (extra `tensorboard`).

    Args:
        folder: The log directory; the run is written to its subfolder `name`.
        name: Name of the run. Default: the step's name.
    """

    def __init__(self, folder: str | Path, *, name: str = "") -> None:
        self._folder, self._name = Path(folder), name
        self._writer: Foreign = None

    def start(self, about: Mapping[str, Any], program: object) -> None:
        """Opens the event file."""
        with needs_library("tensorboardX", extra="tensorboard", needed_for="`TensorBoardLog`"):
            from tensorboardX import SummaryWriter
        self._writer = SummaryWriter(str(self._folder / (self._name or about["name"])))
        self._writer.add_text("code", f"```python\n{about['code']}\n```")

    def log(self, record: RoundRecord) -> None:
        """Writes one scalar per metric, and a histogram of per-client metrics."""
        for name, value in scalars_of(record).items():
            self._writer.add_scalar(name, value, record.round, walltime=record.unix_seconds)
        for name, values in record.metrics.items():
            array = np.asarray(values, np.float64)
            if array.ndim and np.isfinite(array).all():
                self._writer.add_histogram(f"{name}.clients", array.ravel(), record.round)

    def finish(self, status: str) -> None:
        """Closes the event file."""
        self._writer.add_text("status", status)
        self._writer.close()


class WandbLog:
    """Logs to Weights & Biases (extra `wandb`).

    Args:
        project: Project of the runs.
        mode: "offline" writes files that `wandb sync` sends later; "online" needs an account.
        options: Additional arguments for `wandb.init`, such as `name`, `group`, `dir`.
    """

    def __init__(self, project: str, *, mode: str = "offline", **options: object) -> None:
        self._options = {"project": project, "mode": mode, **options}
        self._run: Foreign = None

    def start(self, about: Mapping[str, Any], program: object) -> None:
        """Begins a run."""
        with needs_library("wandb", extra="wandb", needed_for="`WandbLog`"):
            import wandb
        options = {"name": about["name"], **self._options}
        self._run = wandb.init(config=_plain(about) | {"code": about["code"]}, **options)

    def log(self, record: RoundRecord) -> None:
        """Logs one step."""
        self._run.log(scalars_of(record), step=record.round)

    def finish(self, status: str) -> None:
        """Ends the run."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=int(status == "failed"))


class MlflowLog:
    """Logs to MLflow (extra `mlflow`).

    Args:
        tracking_uri: A database such as `sqlite:///runs.db`, or a server. MLflow 3.17 rejects a folder (`file:///…`)
            unless `MLFLOW_ALLOW_FILE_STORE` is true.
        experiment: Experiment of the runs.
    """

    def __init__(self, tracking_uri: str, *, experiment: str = "workbench") -> None:
        self._uri, self._experiment = tracking_uri, experiment
        self._client: Foreign = None
        self._id = ""

    def start(self, about: Mapping[str, Any], program: object) -> None:
        """Creates the run in its experiment."""
        with needs_library("mlflow", extra="mlflow", needed_for="`MlflowLog`"):
            from mlflow.tracking import MlflowClient
        self._client = MlflowClient(tracking_uri=self._uri)
        match = self._client.get_experiment_by_name(self._experiment)
        path = self._uri.removeprefix("sqlite:///")  # next to a database; MLflow's default is the working directory
        place = None if path == self._uri else (Path(path).resolve().parent / "mlruns").as_uri()
        experiment = self._client.create_experiment(self._experiment, place) if match is None else match.experiment_id
        self._id = self._client.create_run(experiment, run_name=about["name"]).info.run_id
        for name, value in _plain(about).items():
            self._client.log_param(self._id, name, str(value)[:500])
        self._client.log_text(self._id, about["code"], "step.py")

    def log(self, record: RoundRecord) -> None:
        """Logs one value per metric."""
        stamp = None if record.unix_seconds is None else int(1000 * record.unix_seconds)
        for name, value in scalars_of(record).items():
            self._client.log_metric(self._id, name, value, timestamp=stamp, step=record.round)

    def finish(self, status: str) -> None:
        """Ends the run."""
        ends = {"finished": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, ends[status])


class TrackioLog:
    """Logs to trackio, on this computer (extra `trackio`).

    Args:
        project: Project of the runs.
        options: Additional arguments for `trackio.init`, such as `name`, `group`.
    """

    def __init__(self, project: str, **options: object) -> None:
        self._options = {"project": project, **options}
        self._run: Foreign = None

    def start(self, about: Mapping[str, Any], program: object) -> None:
        """Begins a run."""
        with needs_library("trackio", extra="trackio", needed_for="`TrackioLog`"):
            import trackio
        self._run = trackio.init(config=_plain(about), **{"name": about["name"], **self._options})

    def log(self, record: RoundRecord) -> None:
        """Logs one step."""
        self._run.log(scalars_of(record), step=record.round)

    def finish(self, status: str) -> None:
        """Ends the run."""
        with contextlib.suppress(AttributeError):
            self._run.config["status"] = status
        self._run.finish()
