"""Guards host callbacks on a mesh: if one raised there, XLA would abort, because other devices wait."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun
from jax.typing import ArrayLike

from workbench import _jax_compat
from workbench._types import Aval, PyTree, type_of
from workbench.errors import EngineError
from workbench.primitives._rewriting import Rewriting

Results = TypeVar("Results")

CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})


@_jax_compat.once_per_jaxpr
def _calls_back(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    return any(e.primitive.name in CALLBACKS or any(map(_calls_back, _jax_compat.inner_jaxprs(e))) for e in jaxpr.eqns)


def calls_back(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    """Returns whether a jaxpr contains Python callbacks."""
    return _calls_back(jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr)


class CallbackErrors:
    """Collects the exceptions of a compiled program's callbacks until all devices have finished.

    A callback that raises on one device stops that device. The other devices wait for that device in their collective,
    and XLA aborts the process after 40 seconds. During `call`, such a callback returns NaN (0 for integers) instead.
    The exception is raised after the call, so no result contains these values. Outside `call`, the callback raises as
    in JAX.
    """

    def __init__(self, name: str, stage: str | None = None) -> None:
        self.name: str = name
        self.stage: str = name if stage is None else stage
        self.found: bool = False  # whether tracing showed callbacks
        self._running: list[None] = []
        self._raised: list[tuple[str, BaseException]] = []

    def call(self, run: Callable[..., Results], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Results:
        """Calls `run(*args, **kwargs)`; waits for the result if there are callbacks and several devices."""
        if jax.local_device_count() == 1:
            return run(*args, **kwargs)
        self._running.append(None)
        try:
            results = run(*args, **kwargs)
            if self.found:
                jax.block_until_ready(results)
                jax.effects_barrier()
        finally:
            self._running.pop()
            raised = list(self._raised)
            if not self._running:  # concurrent calls may also lack the callback's results
                self._raised.clear()
        if raised:
            raise self._error(raised) from raised[0][1]
        return results

    def guarded(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The same program with its callbacks guarded; unchanged without callbacks."""
        if not calls_back(closed):
            return closed
        self.found = True
        return _Guarding(self._callback).closed(closed)

    def guarding(self, fn: Callable) -> Callable:
        """A function to compile instead of `fn`, with its callbacks guarded."""

        @functools.wraps(fn)
        def guarded(*args: PyTree[Array]) -> PyTree[Array]:
            closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
            results = jaxpr_as_fun(self.guarded(closed))(*jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shape), results)

        return guarded

    def _callback(self, callback: Callable, results: Sequence[Aval], operands: Sequence[Aval]) -> Callable:
        named = getattr(_written(callback), "__name__", type(callback).__name__)

        has_keys = any(map(_is_key, results))

        def guarded(*values: Array) -> Sequence[ArrayLike]:
            if not (self._running and self._raised) or has_keys:  # otherwise the results have already been discarded
                try:
                    answer = callback(*values)
                    return answer if not results or has_keys else _checked(answer, results, _batch(values, operands))
                except Exception as error:
                    if not self._running or has_keys:
                        raise
                    self._raised.append((named, error))
            batch = _batch(values, operands)
            return tuple(np.full(batch + x.shape, _filler(x.dtype), x.dtype) for x in results)

        return guarded

    def _error(self, raised: list[tuple[str, BaseException]]) -> EngineError:
        name, error = raised[0]
        message = (
            f"`{self.name}` failed: its host callback `{name}` raised {type(error).__name__}: {str(error)[:500]}. "
            "On several devices a callback that raises would leave the other devices waiting, so the results were "
            "computed without it and discarded. Fix the callback, or let it return a value that reports the error; "
            "`engines.Sequential()` runs one client at a time, and its error names the client that fails."
        )
        return EngineError(message, stage=self.stage)


class _Guarding(Rewriting):
    """Replaces every callback in a program with `guard(callback, types of its results, types of its operands)`."""

    def __init__(self, guard: Callable[[Callable, Sequence[Aval], Sequence[Aval]], Callable]) -> None:
        super().__init__()
        self._guard = guard

    def inside(self, equation: JaxprEqn) -> JaxprEqn:
        return super().inside(equation) if any(map(_calls_back, _jax_compat.inner_jaxprs(equation))) else equation

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        params = equation.params
        if equation.primitive.name not in CALLBACKS or "callback" not in params:
            return equation
        operands = [type_of(v) for v in equation.invars]
        guarded = self._guard(params["callback"], params.get("result_avals", ()), operands)
        return _jax_compat.new_equation(equation, params={**params, "callback": guarded})


def _batch(values: Sequence[ArrayLike], operands: Sequence[Aval]) -> tuple[int, ...]:
    """The leading axes that `vmap` added to the traced operands of a vectorised callback."""
    pairs = zip(map(np.shape, values), operands, strict=True)
    arrays = [(shape, x) for shape, x in pairs if not _is_key(x)]
    return np.broadcast_shapes(*(shape[: len(shape) - len(x.shape)] for shape, x in arrays))


def _is_key(aval: Aval) -> bool:
    """Returns whether values of a type are stored with a different shape, such as random keys."""
    return bool(jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended))


def _checked(answer: Sequence[ArrayLike], results: Sequence[Aval], batch: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Checks the results of a callback as JAX does, because an error raised inside JAX would abort the process."""
    arrays = tuple(np.asarray(value) for value in answer)
    types, expected_types = [(x.shape, x.dtype) for x in arrays], [(batch + x.shape, x.dtype) for x in results]
    if types != expected_types:
        texts = [", ".join(f"{dtype}{list(shape)}" for shape, dtype in group) for group in (types, expected_types)]
        message = f"it returned {texts[0]} instead of {texts[1]}"
        raise ValueError(message)
    return arrays


def _written(callback: Callable) -> object:
    """The user's function inside JAX's wrapper."""
    inner = getattr(callback, "callback_func", None)
    if inner is not None:
        return inner
    return inspect.getclosurevars(callback).nonlocals.get("callback") if inspect.isfunction(callback) else callback


def _filler(dtype: np.dtype) -> float:
    return np.nan if jax.numpy.issubdtype(dtype, jax.numpy.inexact) else 0
