"""`listen`: receives the values that compiled programs emit, call by call."""

import collections
import contextlib
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from workbench import _jax_compat
from workbench._types import AnyArray
from workbench.errors import InspectionError, needs_library
from workbench.mesh import read_here
from workbench.plan._emissions import Emission
from workbench.primitives import take_dropped_emissions

if TYPE_CHECKING:
    import pandas as pd


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class Emitted:
    """The values of one call, in the order in which they were emitted."""

    emissions: tuple[Emission, ...]
    values: tuple[Any, ...]

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Emission, ...]]:
        return self.values, self.emissions

    @classmethod
    def tree_unflatten(cls, emissions: tuple[Emission, ...], values: Sequence[Any]) -> "Emitted":
        return cls(emissions, tuple(values))


@dataclasses.dataclass(frozen=True)
class CapturedValue:
    """One emitted array; `axes` names its leading axes, and `call` numbers the calls of `program`."""

    program: str
    call: int
    name: str
    axes: tuple[str, ...]
    value: AnyArray


class Captured:
    """Values emitted while listening, newest last; beyond `keep` values, the oldest are dropped."""

    def __init__(self, keep: int, client: int | None, on_value: Callable[[CapturedValue], None] | None) -> None:
        self._values: collections.deque[CapturedValue] = collections.deque(maxlen=keep)
        self._client, self._on_value = client, on_value
        self._calls: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []

    def __iter__(self) -> Iterator[CapturedValue]:
        return iter(tuple(self._values))

    def __len__(self) -> int:
        return len(self._values)

    @property
    def names(self) -> tuple[str, ...]:
        """Captured names, in the order in which they first appeared."""
        return tuple(dict.fromkeys(captured.name for captured in self))

    def latest(self, name: str) -> np.ndarray:
        """The newest value with this name."""
        for captured in reversed(tuple(self._values)):
            if captured.name == name:
                return read_here(captured.value)
        message = (
            f"`latest` was asked for {name!r}, but the captured names are {list(self.names)}. A program emits values "
            f'with `emit("{name}", value)`, and must be called through `workbench.jit` inside `listen`.'
        )
        raise InspectionError(message)

    def series(self, name: str) -> np.ndarray:
        """All values with this name, stacked by call: `[calls, *axes, *shape]`."""
        self.latest(name)
        rows = [read_here(captured.value) for captured in self if captured.name == name]
        return np.ma.stack(rows) if np.ma.isMaskedArray(rows[0]) else np.stack(rows)

    def to_pandas(self) -> "pd.DataFrame":
        """One row per number, with columns for program, call, name, axes and value."""
        with needs_library("pandas", needed_for="`to_pandas`"):
            import pandas as pd

        rows: list[dict[str, Any]] = []
        for captured in self:
            value = read_here(captured.value)
            elsewhere = np.ma.getmaskarray(value)
            for index in np.ndindex(*value.shape):
                if elsewhere[index]:  # the client is on another host
                    continue
                axes = dict(zip(captured.axes, index, strict=False))
                rows.append(
                    {
                        "program": captured.program,
                        "call": captured.call,
                        "name": captured.name,
                        **axes,
                        "value": value[index],
                    }
                )
        return pd.DataFrame(rows)

    def _receive(self, program: str, emitted: Emitted) -> None:
        call = self._calls[program]
        self._calls[program] += 1
        for emission, value in zip(emitted.emissions, emitted.values, strict=True):
            axes = emission.axes
            if self._client is not None and axes:
                position = next((i for i, axis in enumerate(axes) if not axis.startswith(("step", "round"))), None)
                if position is not None:
                    array = value if getattr(value, "is_fully_addressable", True) else read_here(value)
                    take = jax.numpy.take if array is value else np.ma.take
                    value = take(array, self._client, axis=position)
                    axes = axes[:position] + axes[position + 1 :]
            captured = CapturedValue(program, call, emission.name, axes, value)
            self._values.append(captured)
            if self._on_value is not None:
                try:
                    self._on_value(captured)
                except Exception as error:  # a listener must never stop training
                    self.errors.append(f"{captured.name}: {type(error).__name__}: {error}")


_LISTENERS: list[Captured] = []
_LOCK = threading.Lock()


def listeners() -> tuple[Captured, ...]:
    """Returns the active listeners."""
    return tuple(_LISTENERS)


def listens() -> bool:
    """Returns whether there is an active listener."""
    return bool(_LISTENERS)


def deliver(program: str, emissions: tuple[Emission, ...], values: tuple[Any, ...]) -> None:
    """Passes the values of one call, in order, to all listeners; does not wait for the devices."""
    emitted = Emitted(emissions, values)
    for captured in listeners():
        captured._receive(program, emitted)


@contextlib.contextmanager
def listen(
    *, keep: int = 10_000, client: int | None = None, on_value: Callable[[CapturedValue], None] | None = None
) -> Iterator[Captured]:
    """Receives values that compiled programs `emit` while the block runs, in all threads.

    The first call inside the block recompiles the program, because it now has more outputs. Without a listener, emitted
    values cost nothing.

    Args:
        keep: Maximum number of arrays to keep; older arrays are dropped.
        client: Keep only the values of this client.
        on_value: Called with every value when it arrives; exceptions that it raises are collected in `errors`.

    Returns:
        The captured values, updated live: `latest(name)`, `series(name)`, `to_pandas()`.

    Example:
        See `emit`.
    """
    captured = Captured(keep, client, on_value)
    with _LOCK:
        _LISTENERS.append(captured)
        _jax_compat.forget_direct_calls()
        take_dropped_emissions()
    try:
        yield captured
    finally:
        with _LOCK:
            _LISTENERS.remove(captured)
            _jax_compat.forget_direct_calls()
    dropped = take_dropped_emissions()
    if dropped and not captured._calls:
        warnings.warn(
            "`listen` received nothing, because a function compiled with `jax.jit` emits "
            f"{', '.join(map(repr, dropped))}. Only programs of `workbench.jit`, engines and `run_rounds` deliver "
            "emitted values. Compile the function with `workbench.jit`, or call it inside a function of "
            "`workbench.jit`.",
            stacklevel=3,
        )
