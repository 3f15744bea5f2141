"""The playground: federated learning experiments without writing code, with code to copy."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from workbench import render
from workbench.render import GLOSSARY
from workbench.render.units import bytes_text
from workbench_widgets._run import RunDigest, run_state
from workbench_widgets._run_controller import OVER, RunController
from workbench_widgets.states import ClientDrift, PlaygroundRun

MOST_KEPT = 8  # maximum number of earlier runs in the comparison

# name, label, description; range of a slider, and whether its steps are factors
_FIELDS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("algorithm", "algorithm", "Local training and server update.", {"choices": "ALGORITHMS"}),
    ("clients", "clients", "Number of clients with data.", {"low": 4, "high": 256, "factor": 2}),
    ("alpha", "label skew (α)", "Dirichlet α: 0.05 gives each client one or two digits; the largest value is IID.",
     {"low": 0.05, "high": 12.8, "factor": 2, "last": "none"}),
    ("participation", "participation", "Probability that a client is selected in a round.",
     {"low": 0.05, "high": 1.0, "step": 0.05}),
    ("local_steps", "local steps", "Local steps of 16 examples per round.",
     {"low": 1, "high": 64, "factor": 2}),
    ("learning_rate", "client learning rate", "Learning rate of the clients.",
     {"low": 0.0125, "high": 3.2, "factor": 2}),
    ("server_learning_rate", "server learning rate", "Learning rate of the server; about 0.03 for FedAdam.",
     {"low": 0.015625, "high": 4.0, "factor": 2}),
    ("dropout", "dropout", "Probability that a selected client drops out.",
     {"low": 0.0, "high": 0.95, "step": 0.05}),
    ("noise", "privacy noise (z)", "Standard deviation of the noise on the sum, divided by the maximum norm; 0 adds "
    "no noise. ε measures the privacy.",
     {"low": 0.0, "high": 4.0, "step": 0.1}),
    ("clip", "privacy clip", "Maximum norm of a client's update; used only with noise.",
     {"low": 0.0625, "high": 16.0, "factor": 2}),
    ("compression", "compression", "Send only the largest entries of an update, or a few bits per entry.",
     {"choices": "COMPRESSIONS"}),
    ("rounds", "rounds", "Number of rounds.", {"low": 5, "high": 320, "factor": 2}),
    ("seed", "seed", "Seed of all random choices.", {"low": 0, "high": 20, "step": 1}),
)  # fmt: skip


class Experiments(Protocol):
    """Interface of the playground's experiments (`workbench.experiments`); views do not import JAX."""

    ALGORITHMS: Sequence[str]
    COMPRESSIONS: Sequence[str]
    Settings: Callable[..., Any]
    Experiment: Callable[[Any], Any]
    write_code: Callable[[Any], str]
    count_labels: Callable[[Any], Any]


class Playground(RunController):
    """An experiment on real handwritten digits: choose settings, run, compare, and copy the code.

    Args:
        experiments: The package `workbench.federated.experiments`, which creates settings, experiments and code.
        settings: Initial settings.

    Attributes:
        experiment: The most recently started experiment.
    """

    view_name = "playground"
    requests: ClassVar[dict[str, str]] = RunController.requests | {
        "start": "start",
        "code": "code",
        "forget": "forget",
        "holdings": "holdings",
        "drift": "drift",
    }

    def __init__(self, experiments: Experiments, settings: Any = None) -> None:
        self._experiments = experiments
        self.experiment: Any = None
        self._digest = RunDigest()
        self._earlier: list[PlaygroundRun] = []
        self._number = 0
        values = dataclasses.asdict(settings or experiments.Settings())
        values["alpha"] = min(values["alpha"], 12.8)
        data = {
            "fields": [
                {"name": name, "label": label, "help": text, **form}
                | ({"choices": list(getattr(experiments, form["choices"]))} if "choices" in form else {})
                for name, label, text, form in _FIELDS
            ],
            "usual": values,
            "run": run_state(None),
            "glossary": GLOSSARY,
        }
        super().__init__(data=data, label="A playground for federated learning on handwritten digits")

    def start(self, **chosen: object) -> None:
        """Starts an experiment in the background.

        Args:
            **chosen: Settings; omitted settings keep their defaults.

        Raises:
            RuntimeError: if an experiment is running.
            ProgramError: for invalid settings.
        """
        if self.followed is not None and self.followed.status not in OVER:
            message = (
                f"`start` was called while an experiment is {self.followed.status}. The playground runs one experiment "
                "at a time: stop the experiment, or wait until it has finished."
            )
            raise RuntimeError(message)
        experiment = self._experiments.Experiment(self._settings(chosen))
        self._keep()
        self.experiment, self._digest = experiment, RunDigest()
        self._number += 1
        if self._leave is not None:
            self._leave()
        self.follow(experiment.run)
        self.refresh()
        experiment.run.start(background=True)

    def code(self, **chosen: object) -> str:
        """The notebook cell that contains the code for these settings."""
        return self._experiments.write_code(self._settings(chosen))

    def holdings(self, clients: int, alpha: float, seed: int) -> list[list[int]]:
        """Counts the examples of each digit per client: `[clients][digits]`."""
        chosen = self._settings({"clients": clients, "alpha": alpha, "seed": seed})
        return [list(map(int, row)) for row in self._experiments.count_labels(chosen)]

    def drift(self, round: int) -> ClientDrift:
        """The clients' paths in one round of the most recently started experiment."""
        if self.experiment is None:
            message = "`drift` was called before an experiment ran, but needs the state of a round: press Run first."
            raise RuntimeError(message)
        drift = self.experiment.drift(round)
        return {
            "round": drift.round,
            "clients": list(drift.clients),
            "steps": list(drift.steps),
            "paths": [[(x, y) for x, y in path] for path in drift.paths.tolist()],
            "mean": [(x, y) for x, y in drift.mean.tolist()],
            "shares": (drift.shares[0], drift.shares[1]),
            "apart": drift.apart.tolist(),
            "moved": drift.moved,
        }

    def forget(self, number: int) -> None:
        """Removes an earlier experiment from the comparison."""
        self._earlier = [experiment for experiment in self._earlier if experiment["number"] != number]
        self.refresh()

    def refresh(self) -> None:
        """Sends the experiment's state if a page shows the view."""
        if self.is_open and self.experiment is not None:
            run = {f"run/{name}": value for name, value in self._digest.state(self.experiment.run).items()}
            rounds = list(self.experiment.drift_rounds)
            self.update_live(
                **run, reported=self._reported(), runs=[*self._earlier, self._summary()], drift_rounds=rounds
            )

    def static_picture(self) -> bytes | None:
        return None if self.experiment is None else render.rounds_png(self.experiment.run.history)

    def text(self) -> str:
        if self.experiment is None:
            return f"{self.label}: nothing has run."
        run = self.experiment.run
        rounds = render.describe(run.history, rounds=run.rounds)
        return f"{self.label}: {_name(self.experiment.settings)}, {run.status}: {rounds}"

    def _settings(self, chosen: dict[str, Any]) -> Any:
        alpha = chosen.get("alpha")
        no_heterogeneity = {"alpha": float("inf")} if alpha is not None and alpha > 12 else {}
        return self._experiments.Settings(**{**chosen, **no_heterogeneity})

    def _keep(self) -> None:
        if self.experiment is not None and len(self.experiment.run.history):
            self._earlier = [*self._earlier, self._summary()][-MOST_KEPT:]

    def _summary(self) -> PlaygroundRun:
        assert self.experiment is not None
        history = self.experiment.run.history
        accuracies = [_number(record.metrics["test accuracy"]) for record in history]
        return {
            "number": self._number,
            "name": _name(self.experiment.settings),
            "group": _name(dataclasses.replace(self.experiment.settings, seed=self._experiments.Settings().seed)),
            "accuracies": accuracies,
            "sent": _number(history[-1].metrics["sent up (MiB)"]) * 2**20 if accuracies else 0.0,
        }

    def _reported(self) -> list[str]:
        assert self.experiment is not None
        experiment = self.experiment
        down, up = bytes_text(experiment.sent_down_bytes), bytes_text(experiment.sent_up_bytes)
        reported = [f"A selected client receives {down} and sends {up} in a round."]
        if experiment.settings.noise and experiment.run.status == "finished":
            try:
                epsilon = experiment.epsilon()
            except ImportError as error:
                return [*reported, str(error)]
            reported.append(
                f"With this noise, training has client-level (ε = {epsilon:.3g}, δ = 1e-5)-differential privacy."
            )
        return reported

    def close(self) -> None:
        """Closes the view and stops its experiment."""
        experiment = getattr(self, "experiment", None)  # ipywidgets also closes widgets that failed to start
        if experiment is not None:
            experiment.run.stop()
        super().close()


def _number(value: float | str) -> float:
    return float(value)


def _name(settings: Any) -> str:
    changed = {name: value for name, value in settings.changed().items() if name != "algorithm"}
    labels = {name: label.split(" (")[0] for name, label, _, _ in _FIELDS}
    if changed.pop("alpha", None) == float("inf"):
        changed["labels"] = "IID"
    elif settings.alpha != type(settings)().alpha:
        changed["alpha"] = settings.alpha
    parts = [f"{labels[name]} {value:g}" if not isinstance(value, str) else value for name, value in changed.items()]
    return ", ".join([settings.algorithm, *parts])
