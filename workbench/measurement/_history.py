"""The results of a run's rounds."""

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import jax
import numpy as np

from workbench.errors import DataError, MissingDependencyError, ProgramError, needs_library
from workbench.mesh import read_here
from workbench.records import write_whole
from workbench.records.live import ProblemRecord, RoundRecord
from workbench.render import display_object

if TYPE_CHECKING:
    import pandas as pd

_NAMED_CLIENTS = 10  # maximum number of clients named as non-finite, per metric and round


class History(Sequence[RoundRecord]):
    """The finished rounds in order, as a sequence of records that can be exported to tables and files.

    Example:
        >>> history = History([RoundRecord(round=0, seconds=0.5, metrics={"loss": (3.0, 1.0)})])
        >>> history.summary()["loss"].tolist()
        [2.0]
    """

    def __init__(self, rounds: Sequence[RoundRecord] = ()) -> None:
        self._rounds = tuple(rounds)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, index: slice) -> "History": ...
    def __getitem__(self, index: int | slice) -> "RoundRecord | History":
        selection = self._rounds[index]
        return selection if isinstance(selection, RoundRecord) else History(selection)

    def __len__(self) -> int:
        return len(self._rounds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._rounds == other._rounds

    def __hash__(self) -> int:
        return hash(tuple(record.round for record in self._rounds))

    def __repr__(self) -> str:
        return f"<History of {len(self)} rounds: {', '.join(self.metrics()) or 'no metrics'}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return display_object(
            "History", f"{len(self)} rounds: {', '.join(self.metrics()) or 'no metrics'}", self._one_number_each()
        )

    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics, in order of appearance."""
        return tuple(dict.fromkeys(name for record in self._rounds for name in record.metrics))

    def to_pandas(self) -> "pd.DataFrame":
        """Returns one row per number: round, metric, client and step (missing if not applicable), value."""
        rows = [
            (record.round, name, *place, value)
            for record in self._rounds
            for name, values in record.metrics.items()
            for place, value in _numbers(values)
        ]
        with needs_library("pandas", needed_for="`History.to_pandas`"):
            import pandas as pd

        table = pd.DataFrame(rows, columns=["round", "metric", "client", "step", "value"])
        return table.astype({"round": "int64", "client": "Int64", "step": "Int64", "value": "float64"})

    def summary(self) -> "pd.DataFrame":
        """Returns one row per round: its seconds, and each metric as one number (per-client metrics are averaged)."""
        with needs_library("pandas", needed_for="`History.to_pandas`"):
            import pandas as pd

        columns = ["round", "seconds", *self.metrics()]
        return pd.DataFrame(self._one_number_each(), columns=columns).set_index("round")

    def _one_number_each(self) -> list[dict[str, float]]:
        return [
            {"round": record.round, "seconds": record.seconds}
            | {name: float(np.mean(_array(values))) for name, values in record.metrics.items()}
            for record in self._rounds
        ]

    def to_json(self, path: str | Path | None = None) -> str:
        """Returns all rounds as JSON, and writes them to `path` if given; non-finite values are written as text."""
        text = f"[{', '.join(map(line_of, self._rounds))}]"
        if path is not None:
            write_whole(path, text)
        return text

    @classmethod
    def from_json(cls, text: str) -> "History":
        """Reads a history that `to_json` wrote.

        Raises:
            DataError: if the text is not a history.
        """
        try:
            return cls([round_of(plain) for plain in json.loads(text)])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            msg = (
                f"`History.from_json` received text that is not a history ({type(error).__name__}: {str(error)[:200]})."
                " Pass the complete and unchanged text that `History.to_json` wrote."
            )
            raise DataError(msg) from error

    def to_parquet(self, path: str | Path) -> None:
        """Writes the table of `to_pandas` to a Parquet file.

        Raises:
            MissingDependencyError: if `pyarrow` is not installed.
        """
        if importlib.util.find_spec("pyarrow") is None:
            raise MissingDependencyError("pyarrow", extra="data", needed_for="`History.to_parquet`")
        table = self.to_pandas()
        write_whole(path, lambda opened: table.to_parquet(opened, engine="pyarrow", index=False))


def read_metrics(
    metrics: object, *, round: int
) -> tuple[dict[str, float | tuple[Any, ...]], tuple[ProblemRecord, ...]]:
    """Converts a pytree of metrics to numbers by name, and lists non-finite metrics.

    Returns:
        Metrics by name, with nested names joined by a dot, and a list of problems. A metric has one problem for each of
        the first few clients whose value is not finite, and one problem for all remaining clients.
    """
    numbers: dict[str, float | tuple[Any, ...]] = {}
    problems: list[ProblemRecord] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(metrics):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
        if name in numbers:
            msg = (
                f"`run_rounds` received a step with two metrics named {name!r} in round {round}. Names of nested "
                "metrics are joined by dots, and one of the two metrics would be lost: rename one."
            )
            raise ProgramError(msg)
        values = _as_numbers(name, leaf, round)
        numbers[name] = _nested(values.tolist())
        problems += _not_finite(name, values, round)
    return numbers, tuple(problems)


def without_clients(record: RoundRecord) -> RoundRecord:
    """Averages the per-client metrics of a round."""
    return record.replace(metrics={name: float(np.mean(_array(values))) for name, values in record.metrics.items()})


def _as_numbers(name: str, leaf: object, round: int) -> np.ndarray:
    try:
        array = np.asarray(read_here(leaf))
        is_complex = np.iscomplexobj(array)
        values = np.asarray(np.real(array), np.float64)
    except (TypeError, ValueError) as error:
        msg = (
            f"`run_rounds` was given a step whose metric {name!r} of round {round} is an object of type "
            f"{type(leaf).__name__}. Metrics must be numbers or arrays of numbers: remove this value from the metrics, "
            "or keep the value in the state."
        )
        raise ProgramError(msg) from error
    if is_complex:
        msg = (
            f"`run_rounds` was given a step whose metric {name!r} of round {round} is complex. Metrics are real "
            "numbers: return the absolute value, or the real and the imaginary part as two metrics."
        )
        raise ProgramError(msg)
    return values


def _not_finite(name: str, values: np.ndarray, round: int) -> Iterator[ProblemRecord]:
    finite = np.ma.filled(np.isfinite(values), True)  # other hosts report their own values
    if finite.all():
        return
    if values.ndim == 0:
        yield _problem(name, float(values), round, None)
        return
    per_client = values.reshape(values.shape[0], -1)
    bad = np.flatnonzero(~finite.reshape(per_client.shape).all(axis=1))
    for client in bad[:_NAMED_CLIENTS]:
        row = per_client[client]
        yield _problem(name, float(row[~np.isfinite(row)][0]), round, int(client))
    if len(bad) > _NAMED_CLIENTS:
        more = len(bad) - _NAMED_CLIENTS
        yield ProblemRecord(round=round, metric=name, what=f"{name} is not finite for {more} more clients")


def _problem(name: str, value: float, round: int, client: int | None) -> ProblemRecord:
    owner = "" if client is None else f" of client {client}"
    return ProblemRecord(
        round=round, metric=name, client=client, value=str(value), what=f"{name}{owner} is {value} in round {round}"
    )


def _nested(values: list | float) -> float | tuple[Any, ...]:
    return tuple(_nested(item) for item in values) if isinstance(values, list) else values


def _array(values: object) -> np.ndarray:
    return np.asarray(values, np.float64)


def _numbers(values: float | tuple[Any, ...]) -> Iterator[tuple[tuple[int | None, int | None], float]]:
    """Yields ((client, step), value) for every number; additional dimensions are flattened into steps."""
    array = _array(values)
    if array.ndim == 0:
        yield (None, None), float(array)
    elif array.ndim == 1:
        yield from (((client, None), value) for client, value in enumerate(array.tolist()))
    else:
        for client, row in enumerate(array.reshape(array.shape[0], -1).tolist()):
            yield from (((client, step), value) for step, value in enumerate(row))


def _finite(plain: object) -> object:
    """Writes non-finite values as text that `float` reads, because JSON has no NaN."""
    if isinstance(plain, Mapping):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_finite(value) for value in plain]
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)
    return plain


def line_of(record: RoundRecord) -> str:
    """Writes one round as one line of JSON; non-finite values are written as text."""
    return json.dumps(_finite(record.to_dict()))


def round_of(plain: Mapping[str, Any]) -> RoundRecord:
    """Reads a round that `line_of` wrote."""

    def problem(fields: Mapping[str, Any]) -> ProblemRecord:
        return ProblemRecord(**{name: value for name, value in fields.items() if name != "record"})

    def values(item: list | float) -> float | tuple[Any, ...]:
        return tuple(values(part) for part in item) if isinstance(item, list) else float(item)

    return RoundRecord(
        round=plain["round"],
        seconds=plain["seconds"],
        unix_seconds=plain.get("unix_seconds"),
        metrics={name: values(item) for name, item in plain["metrics"].items()},
        problems=tuple(problem(fields) for fields in plain["problems"]),
    )
