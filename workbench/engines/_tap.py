"""`tap`: the values that one client computes."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn

from workbench import _jax_compat
from workbench._open_types import Option
from workbench._types import PyTree
from workbench.engines._client_loop import Pass
from workbench.engines._clients import Batch
from workbench.engines._engine import Engine
from workbench.engines._expressions import is_opaque, named_values
from workbench.engines._interpreter import PlanInterpreter, RunContext
from workbench.engines._run_recorder import RunRecorder
from workbench.engines._sequential import TracedClient, interpret_client
from workbench.engines._stage import is_key
from workbench.errors import InspectionError
from workbench.plan import PlannedCall, source_line, trace
from workbench.primitives import take_dropped_emissions
from workbench.records.live import TappedValueRecord, TapRecord

_TOGETHER = 256  # number of other clients that are computed together
_EMIT = "emit"


def tap(
    fn: Callable,
    *args: object,
    client: int | tuple[int, ...] = 0,
    most_values: int = 10_000,
    most_bytes: int = 64 << 20,
    only: str | tuple[str, ...] | None = None,
) -> TapRecord:
    """Runs a program once and returns every named value that one client computes.

    All other clients are computed at full speed; the tapped client runs operation by operation, outside `jit`. A value
    is named after the variable that it is assigned to, or else after its source expression. An emitted value has its
    `emit` name. The function works for derivatives of programs, for loops over rounds and for loops inside a client,
    and it distinguishes the iterations of loops. Unused values are not computed, so they do not appear. The cost is one
    evaluation of the program's plan in this process.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or the result of `jit`.
        *args: Arguments of `fn`.
        client: Number of the client; for a client inside a client, the numbers of the outer and the inner client, such
            as `(2, 0)`.
        most_values: Maximum number of values to keep, counted from the first value.
        most_bytes: Maximum total size of arrays to keep, in bytes; for later arrays, only statistics are kept.
        only: Keep only values computed in these files, given as the end of a path or as a pattern, such as `"train.py"`
            or `"src/*"`. Values computed in other files, such as an optimizer library's, are left out; inputs and
            emitted values are kept.

    Returns:
        The values in order, each with its stage, round, step, source line and number of non-finite elements;
        `first_nonfinite` is the first value with a NaN or infinity. Show it with `show`, or through treescope.

    Raises:
        InspectionError: if the program has no client with this number.
        ProgramError: if `fn` is not a function.
        EngineError: if a stage fails; the error's `stage` and `client` identify the place.

    Example:
        >>> import workbench as wb
        >>> @wb.program(clients=4)
        ... def total(x):
        ...     def square(row):
        ...         doubled = 2 * row
        ...         return doubled**2
        ...     return wb.reduce_sum(wb.map_fn(square, x))
        >>> record = tap(total, np.arange(4, dtype=np.float32), client=3)
        >>> float(record.find("doubled")[0].value), float(record.results)
        (6.0, 56.0)
    """
    numbers = (client,) if isinstance(client, int | np.integer) else tuple(client)
    files = (only,) if isinstance(only, str) else tuple(only or ())
    engine = _Tap(tuple(map(int, numbers)), most_values, most_bytes, files)
    run = engine.run(fn, *args)
    if not engine.reached:
        message = (
            f"`tap` was given client={client!r}, but {run.name} has {engine.known()}. Clients are numbered from 0; a "
            "client inside another client has two numbers: pass the number of one of these clients, such as `client=0`."
        )
        raise InspectionError(message)
    return TapRecord(
        name=run.name,
        client=engine.client,
        stages=engine.stages,
        values=tuple(engine.values),
        notes=(*run.notes, *engine.notes()),
        results=run.results,
    )


class _Tap(Engine):
    """Computes the results of all clients, and records the values of one client."""

    name: str = "tap"

    def __init__(self, client: tuple[int, ...], most_values: int, most_bytes: int, files: tuple[str, ...] = ()) -> None:
        self.files, self.elsewhere = files, Counter[str]()
        self.client, self.most_values, self.most_bytes = client, most_values, most_bytes
        self.values: list[TappedValueRecord] = []
        self.stages: dict[str, str] = {}
        self.reached = False
        self.left_out = self.kept_bytes = self.without_array = 0
        self._sizes: dict[str, int] = {}
        self._passes: Counter[int] = Counter()
        self._seen: dict[tuple[str, int], int] = {}
        self._place: tuple[Any, ...] = ()
        self._here: dict[str, np.ndarray] = {}

    def _planned(self, fn: Callable, shapes: PyTree[Array], listened: bool) -> tuple[PlannedCall, PlanInterpreter]:
        """Evaluates the unmodified plan, whose emitted values the tap reads itself; no listener receives them."""
        traced = trace(fn, shapes)
        return traced, PlanInterpreter(traced.plan, "", RunContext(self._compute, RunRecorder(traced.plan.name)))

    def _compute(self, work: Pass) -> None:
        size = min(work.clients, _TOGETHER)
        compiled, chosen = work.compiled(size), self.client[0]
        self._sizes[work.phase.placement.name] = work.clients
        for batch in work.batches(size):
            try:
                outputs = jax.block_until_ready(compiled(*work.operands(batch)))
            except Exception as error:
                raise work.failed(batch, error, "this process") from error
            first = batch.index * size
            if first <= chosen < first + len(batch.clients):
                self._trace(work, batch, chosen - first)
            work.add(batch, outputs, seconds=0.0, where="this process")

    def _trace(self, work: Pass, batch: Batch, row: int) -> None:
        tapped = _TappedClient(work, batch.clients[row], self, round=self._passes[id(work.phase)])
        self._passes[id(work.phase)] += 1
        alone = Batch(batch.index, batch.clients[row : row + 1], [rows[row : row + 1] for rows in batch.rows])
        interpret_client(work, alone, tapped)

    def is_first(self, stage: str, round: int, phase: int) -> bool:
        """Returns whether this pass is the first to compute a stage in this round; only the first is recorded."""
        return self._seen.setdefault((stage, round), phase) == phase

    def take(self, value: Array, **described: Option) -> None:
        self.reached = True
        source = None if described["operation"] == _EMIT else described["source"]
        if self.files and source is not None and not any(map(PurePath(source.file).match, self.files)):
            self.elsewhere[source.file] += 1
            return
        array = np.asarray(jax.random.key_data(value) if is_key(value.dtype) else value)
        if self._is_known(array, described):
            return
        if len(self.values) >= self.most_values:
            self.left_out += 1
            return
        is_kept = self.kept_bytes + array.nbytes <= self.most_bytes
        self.kept_bytes += array.nbytes if is_kept else 0
        self.without_array += not is_kept
        self.values.append(
            TappedValueRecord(
                shape=tuple(value.shape),
                dtype=str(value.dtype),
                value=array if is_kept else None,
                **_figures(array),
                **described,
            )
        )

    def _is_known(self, array: np.ndarray, described: dict[str, Any]) -> bool:
        """Returns whether an emitted value was just recorded as a variable of the same name."""
        place = tuple(described[key] for key in ("stage", "round", "steps", "client"))
        if place != self._place:
            self._place, self._here = place, {}
        before = self._here.get(described["name"])
        self._here[described["name"]] = array
        if before is None or described["operation"] != _EMIT or array.dtype.kind == "V":
            return False
        return np.array_equal(before, array, equal_nan=array.dtype.kind in "fc")

    def known(self) -> str:
        listed = [f"{size} clients of {name!r}" for name, size in self._sizes.items()]
        return " and ".join(listed) or "no clients that can be run separately"

    def notes(self) -> list[str]:
        notes = []
        if self.elsewhere:
            named = ", ".join(f"{PurePath(file).name} ({count})" for file, count in self.elsewhere.most_common(4))
            more = f" and {len(self.elsewhere) - 4} more files" if len(self.elsewhere) > 4 else ""
            files = " or ".join(map(repr, self.files))
            notes.append(f"{self.elsewhere.total()} values from lines outside {files} are omitted: {named}{more}.")
        if self.left_out:
            notes.append(f"{self.left_out} later values are omitted (most_values={self.most_values}).")
        if self.without_array:
            notes.append(f"For {self.without_array} values, only statistics are kept (most_bytes={self.most_bytes}).")
        return notes


class _TappedClient(TracedClient):
    """Debugging interpreter that passes every named value to the tap."""

    def __init__(self, work: Pass, client: int | str, owner: _Tap, *, round: int) -> None:
        super().__init__(work.stage, work.name, client, None, False)
        self.owner, self.round, self.phase = owner, round, id(work.phase)
        self.chain: tuple[int, ...] = owner.client[:1]
        self._names: dict[int, dict[int, tuple[str | None, ...]]] = {}
        self._current: dict[int, tuple[str | None, ...]] = {}
        self._quiet = 0
        self._repeated = self._at_entry = False

    def enter(self, stage: str, name: str) -> None:
        super().enter(stage, name)
        self.owner.stages[stage] = name
        self._repeated = not self.owner.is_first(stage, self.round, self.phase)
        self._at_entry = not self._repeated

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        jaxpr = closed.jaxpr
        if id(jaxpr) not in self._names:
            self._names[id(jaxpr)] = named_values(jaxpr)
        if self._at_entry:
            self._at_entry = False
            names = _jax_compat.argument_names(closed)
            for place, value in enumerate(inputs):
                self._take(None, names[place] or f"input {place}", value)
        around, self._current = self._current, self._names[id(jaxpr)]
        try:
            record = super().run(closed, inputs)
            take_dropped_emissions()  # a tap records emitted values itself and does not deliver them to listeners
            return record
        finally:
            self._current = around

    def equation(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        opaque = is_opaque(equation)
        self._quiet += opaque
        try:
            results = super().equation(equation, operands)
        finally:
            self._quiet -= opaque
        if self._quiet or self._repeated or not self._is_wanted:
            return results
        if equation.primitive.name == _EMIT:
            self._take(equation, equation.params["name"], operands[0])
        for name, value in zip(self._current[id(equation)], results, strict=True):
            if name is not None:
                self._take(equation, name, value)
        return results

    @property
    def _is_wanted(self) -> bool:
        path = self.owner.client
        return self.chain == path[: len(self.chain)] or self.chain[: len(path)] == path

    def _take(self, equation: JaxprEqn | None, name: str, value: jax.Array) -> None:
        self.owner.take(
            value,
            stage=self.stage,
            name=name,
            operation="input" if equation is None else equation.primitive.name,
            round=self.round,
            steps=self.steps,
            client=str(self.client),
            source=None if equation is None else source_line(equation),
        )

    def inner(self, name: str, client: str) -> TracedClient:
        interpreter: _TappedClient = object.__new__(type(self))
        interpreter.__dict__.update(self.__dict__)
        interpreter.name, interpreter.client, interpreter._current = name, client, {}
        interpreter.chain = (*self.chain, int(client.rpartition("/")[2]))
        return interpreter


def _figures(array: np.ndarray) -> dict[str, Any]:
    try:
        numbers = np.asarray(array, np.float64).ravel()
    except (TypeError, ValueError):  # complex numbers and some other dtypes have no order
        return {}
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return {"nonfinite": int(numbers.size)}
    return {
        "least": float(finite.min()),
        "mean": float(finite.mean()),
        "most": float(finite.max()),
        "nonfinite": int(numbers.size - finite.size),
    }
