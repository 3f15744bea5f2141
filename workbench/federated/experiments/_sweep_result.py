"""Results of a sweep, as tables."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from workbench._types import AnyArray, PyTree
from workbench.errors import DataError, needs_library
from workbench.federated.experiments._space import Setting
from workbench.federated.experiments._sweep_store import Member, SweepStore
from workbench.measurement import History, Results
from workbench.records.live import RoundRecord
from workbench.render import display_object

if TYPE_CHECKING:
    import pandas as pd

CLIENT_STATISTICS = ("client_std", "client_min", "client_p10", "client_median", "client_p90", "client_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepGroup:
    """Trials that ran as one compiled program.

    Attributes:
        static: Hyperparameters that are constants of the program.
        traced: Names of hyperparameters that are arguments of the program.
        trials: Numbers of the trials.
        compile_seconds: Time for tracing and compiling in seconds, summed over all sizes.
        run_seconds: Time in calls of the compiled program, in seconds.
        memory_bytes: Memory of the arguments, results and temporaries of one call, in bytes per device, as the compiler
            reports it.
        notes: The reasons why floats are constants, or why trials could not run.
    """

    static: Setting
    traced: tuple[str, ...]
    trials: tuple[int, ...]
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    memory_bytes: int = 0
    notes: tuple[str, ...] = ()


class SweepResult(Results):
    """The finished rounds of all trials of a sweep.

    Attributes:
        settings: Hyperparameters of each trial, in the order of the trials' numbers.
        seeds: The seeds with which every trial runs.
        rounds: Number of rounds in a complete trial.
        status: "finished" or "interrupted"; `resume()` continues an interrupted sweep.
        groups: The compiled programs, with their measured times.
        seconds: Wall time of the sweep in this process.
    """

    def __init__(
        self,
        store: SweepStore,
        settings: list[Setting],
        seeds: tuple[int, ...],
        rounds: int,
        go_on: Callable[[], "SweepResult"],
        form_of: Callable[[int], Any],
        params_of: Callable[[int, int, Any], Any],
    ) -> None:
        self.settings: list[Setting] = settings
        self.seeds: tuple[int, ...] = seeds
        self.rounds: int = rounds
        self.status = "interrupted"
        self.groups: tuple[SweepGroup, ...] = ()
        self.seconds: float = 0.0
        self._store, self._go_on, self._form_of, self._params_of = store, go_on, form_of, params_of

    def __repr__(self) -> str:
        ends: dict[str, int] = {}
        for status, _, _ in self._store.members().values():
            ends[status] = ends.get(status, 0) + 1
        counts = ", ".join(f"{count} {status}" for status, count in ends.items()) or "none begun"
        return (
            f"<SweepResult {self.status}: {len(self.settings)} trials × {len(self.seeds)} seeds ({counts}), "
            f"{len(self.groups)} compiled programs, {self.seconds:.1f} s>"
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return display_object("SweepResult", repr(self)[1:-1], self.trials.to_dict("records"))

    def resume(self) -> "SweepResult":
        """Resumes an interrupted sweep and returns this result."""
        return self._go_on()

    def labels(self) -> list[str]:
        """The trials' labels: their hyperparameters, numbered if identical."""
        texts = [
            ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in setting.items())
            for setting in self.settings
        ]
        return [f"{label} #{n}" if texts.count(label) > 1 else label for n, label in enumerate(texts)]

    def histories(self) -> dict[str, dict[int, History]]:
        """Returns the history of every started run; see `workbench.measurement.Results`."""
        begun = self.trials.query("rounds > 0")
        pairs = list(zip(begun["trial"].tolist(), begun["seed"].tolist(), strict=True))
        return {
            label: {seed: self.history(t, seed) for t, seed in pairs if t == trial}
            for trial, label in enumerate(self.labels())
            if any(t == trial for t, _ in pairs)
        }

    def outcomes(self) -> dict[str, dict[int, tuple[str, str]]]:
        """Returns each run's status, and the reason for any early stop, keyed by trial label and seed."""
        table = self.trials
        rows = list(zip(table["trial"], table["seed"], table["status"], table["reason"], strict=True))
        labels = self.labels()
        return {
            name: {int(seed): (status, reason) for trial, seed, status, reason in rows if labels[trial] == name}
            for name in labels
        }

    def metric_names(self) -> list[str]:
        """Names of the metrics of all trials."""
        tables = [self.metrics(trial, seed) for trial in range(len(self.settings)) for seed in self.seeds]
        return list(dict.fromkeys(name for metrics in tables for name in metrics))

    @property
    def trials(self) -> "pd.DataFrame":
        """One row per trial and seed: hyperparameters, status, rounds, reason and missing metrics."""
        members = self._store.members()
        group = {trial: number for number, g in enumerate(self.groups) for trial in g.trials}
        names = {member: set(self._store.metrics(member)) for member in members}
        every = set().union(*names.values()) if names else set()
        rows = []
        for trial, setting in enumerate(self.settings):
            for seed in self.seeds:
                status, reason, rounds = members.get((trial, seed), ("waiting", "", 0))
                lacks = sorted(every - names.get((trial, seed), set())) if rounds else []
                rows.append(
                    {"trial": trial, "seed": seed, **setting, "status": status, "rounds": rounds}
                    | {"reason": reason, "missing": ", ".join(lacks), "group": group.get(trial, -1)}
                )
        return _pandas().DataFrame(rows)

    def metrics(self, trial: int, seed: int) -> dict[str, np.ndarray]:
        """Returns all metrics of one trial and seed, `[rounds]` or `[rounds, clients, ...]`."""
        return self._store.metrics(self._member(trial, seed))

    def history(self, trial: int, seed: int) -> History:
        """Returns one trial as a `run_rounds` history; seconds are NaN for scanned rounds."""
        metrics = self.metrics(trial, seed)
        rounds = max((len(values) for values in metrics.values()), default=0)
        return History(
            [
                RoundRecord(round=r, seconds=float("nan"), metrics={n: _nested(v[r]) for n, v in metrics.items()})
                for r in range(rounds)
            ]
        )

    def table(self) -> "pd.DataFrame":
        """One row per trial, seed, round and metric: the mean over clients, and statistics.

        Columns: `trial`, `seed`, the hyperparameters, `round`, `metric` and `value`. Metrics with one value per client
        also have `client_std`, `client_min`, `client_p10`, `client_median`, `client_p90` and `client_max`.
        """
        pd = _pandas()
        heads: list[dict[str, Any]] = []
        parts: list[dict[str, np.ndarray]] = []
        for trial, seed in sorted(self._store.members()):
            for name, values in self._store.metrics((trial, seed)).items():
                heads.append({"trial": trial, "seed": seed, **self.settings[trial], "metric": name})
                values = np.asarray(values, np.float64)
                parts.append({"round": np.arange(len(values)), **client_statistics(values)})
        if not parts:
            return pd.DataFrame(columns=["trial", "seed", "round", "metric", "value", *CLIENT_STATISTICS])
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        places = np.repeat(np.arange(len(parts)), [len(part["round"]) for part in parts])
        table = pd.DataFrame(heads).iloc[places].reset_index(drop=True)  # one frame: a frame per run takes seconds
        metric = table.pop("metric")
        return table.assign(round=columns.pop("round"), metric=metric, **columns)

    def final(self, metric: str) -> "pd.DataFrame":
        """One row per finished trial: hyperparameters, mean, standard deviation and number of seeds."""
        members, scores = self._store.members(), {}
        for trial, seed in sorted(members):
            values = self._store.metrics((trial, seed)).get(metric)
            if members[trial, seed][0] == "finished" and values is not None and len(values):
                scores.setdefault(trial, []).append(float(np.mean(values[-1])))
        if not scores:
            names = sorted({name for member in members for name in self._store.metrics(member)})
            message = (
                f"`final` received metric={metric!r}, which no finished trial has. The metrics are "
                f"{', '.join(map(repr, names)) or 'none yet'}: pass one of these metrics, or see in `.trials` why the "
                "trials ended."
            )
            raise DataError(message)
        rows = [
            {"trial": trial, **self.settings[trial], "mean": float(np.mean(values))}
            | {"std": float(np.std(values, ddof=1)) if len(values) > 1 else float("nan"), "seeds": len(values)}
            for trial, values in scores.items()
        ]
        return _pandas().DataFrame(rows)

    def best(self, metric: str, *, minimize: bool = True) -> Setting:
        """Returns the hyperparameters of the trial with the best final mean over seeds.

        Only trials with the largest number of finished seeds are candidates.
        """
        table = self.final(metric)
        table = table.query("seeds == seeds.max()")
        means = table["mean"].to_numpy()
        at = int(means.argmin() if minimize else means.argmax())
        return self.settings[int(table["trial"].to_numpy()[at])]

    def state(self, trial: int, seed: int) -> PyTree[Array]:
        """Returns the state of a trial after its last finished round, as numpy arrays."""
        member = self._member(trial, seed)
        leaves = self._store.state(member)
        if leaves is None:
            message = f"`state` received trial {trial} with seed {seed}, which never ran: see `.trials` for the reason."
            raise DataError(message)
        return unpack_state(leaves, self._form_of(trial))

    def params(self, trial: int, seed: int) -> PyTree[Array]:
        """Returns a trial's parameters: `params_of` applied to its state."""
        return self._params_of(trial, seed, self.state(trial, seed))

    def _member(self, trial: int, seed: int) -> Member:
        if 0 <= trial < len(self.settings) and seed in self.seeds:
            return trial, seed
        message = (
            f"`SweepResult` was asked for trial {trial} with seed {seed}, but it contains trials 0 to "
            f"{len(self.settings) - 1} and the seeds {list(self.seeds)}: pass one trial and one seed from these lists."
        )
        raise DataError(message)


def client_statistics(values: np.ndarray) -> dict[str, np.ndarray]:
    """Computes statistics over the clients per round; NaN for metrics without clients."""
    if values.ndim == 1:
        return {"value": values} | dict.fromkeys(CLIENT_STATISTICS, np.full(len(values), np.nan))
    rows = values.reshape(len(values), values.shape[1], -1).mean(axis=2)
    low, middle, high = np.quantile(rows, [0.1, 0.5, 0.9], axis=1)
    columns = (rows.std(axis=1), rows.min(axis=1), low, middle, high, rows.max(axis=1))
    return {"value": rows.mean(axis=1)} | dict(zip(CLIENT_STATISTICS, columns, strict=True))


def pack_state(state: PyTree[Array]) -> list[np.ndarray]:
    """Converts the leaves of a state to numpy arrays; PRNG keys become their key data."""
    return [np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for leaf in jax.tree.leaves(state)]


def unpack_state(leaves: list[np.ndarray], form: object) -> PyTree[Array]:
    """Restores a state that `pack_state` packed, with the structure and dtypes of `form`."""
    templates, structure = jax.tree.flatten(form)
    return structure.unflatten([_restored(leaf, like) for leaf, like in zip(leaves, templates, strict=True)])


def _restored(leaf: np.ndarray, like: AnyArray) -> AnyArray:
    if _is_key(like):
        return jax.random.wrap_key_data(jax.numpy.asarray(leaf), impl=jax.random.key_impl(like))
    # numpy's files do not support bfloat16; reading returns raw bytes.
    return leaf if leaf.dtype == like.dtype else leaf.view(like.dtype)


def _is_key(leaf: jax.Array | np.ndarray) -> bool:
    return hasattr(leaf, "dtype") and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _nested(values: object) -> float | tuple[Any, ...]:
    plain = np.asarray(values, np.float64).tolist()
    return _tuples(plain)


def _tuples(values: list | float) -> float | tuple[Any, ...]:
    return tuple(_tuples(item) for item in values) if isinstance(values, list) else values


def _pandas() -> ModuleType:
    with needs_library("pandas", needed_for="The tables of `sweep`"):
        import pandas as pd
    return pd
