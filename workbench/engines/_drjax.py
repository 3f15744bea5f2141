"""Imports DrJAX programs so that plans contain their client functions."""

import contextvars
import functools
import threading
from collections.abc import Callable
from types import ModuleType

from workbench import primitives
from workbench._open_types import Foreign
from workbench._types import Argument
from workbench.errors import MissingDependencyError, ProgramError
from workbench.plan import Jitted

_FUNCTIONS = ("broadcast", "map_fn", "reduce_mean", "reduce_sum", "reduce_weighted_mean")
_LOCK = threading.Lock()


class _Importing:
    """One call of an imported function, with the number of DrJAX programs that it has entered."""

    programs = 0


_importing: contextvars.ContextVar[_Importing | None] = contextvars.ContextVar("importing from DrJAX", default=None)


def from_drjax(fn: Callable) -> Callable:
    """Imports a DrJAX program for use with every engine, `workbench.jit`, `plan` and `inspect`.

    DrJAX inlines its map, so the jaxpr no longer contains the per-client function. Tracing the jaxpr again for one
    client would silently produce wrong gradients. `from_drjax` traces the unchanged function and binds each of DrJAX's
    five operations to the matching workbench primitive; files that import DrJAX need not be edited.

    Args:
        fn: A `drjax.program`, a function that calls DrJAX programs, or a derivative of either. If `fn` is jitted, it is
            traced without that `jit`. Inside `fn`, no DrJAX program may be jitted separately.

    Returns:
        A function with the same arguments and results. Operations on placed values outside `map_fn` run at the server,
        on the rows of all clients.

    Raises:
        MissingDependencyError: if DrJAX is not installed.
        ProgramError: if `fn` is not a function; when the result is called, also if `fn` enters no DrJAX program.

    Example:
        >>> import drjax
        >>> import workbench as wb
        >>> @drjax.program(placements={"clients": 3})
        ... def mean_square(x):
        ...     return drjax.reduce_mean(drjax.map_fn(lambda row: row**2, x))
        >>> [stage.kind for stage in wb.trace(from_drjax(mean_square))(np.ones(3, np.float32)).plan.stages]
        ['clients', 'reduce']

    Source: Rush et al., "DrJAX: Scalable and Differentiable MapReduce Primitives in JAX", arXiv 2403.07128.
    """
    if not callable(fn):
        message = (
            f"`from_drjax` was given {fn!r} (type {type(fn).__name__}). `from_drjax` imports a function that calls "
            "DrJAX programs: pass the decorated function itself, then call the returned function with its arguments."
        )
        raise ProgramError(message)
    _install()
    plain = _without_jit(fn)

    @functools.wraps(plain)
    def imported(*args: object, **kwargs: object) -> Argument:
        call = _Importing()
        token = _importing.set(call)
        try:
            result = plain(*args, **kwargs)
        finally:
            _importing.reset(token)
        if not call.programs:
            name = getattr(plain, "__name__", type(plain).__name__)
            message = (
                f"`{name}` entered no DrJAX program while it was traced. Either it calls no DrJAX program, or a "
                "`jax.jit` inside it had already traced the DrJAX programs: pass functions decorated with "
                "`drjax.program`, and compile the whole function with `workbench.jit(from_drjax(fn))` instead."
            )
            raise ProgramError(message)
        return result

    return imported


def _without_jit(fn: Foreign) -> Callable:  # the return type of `jax.jit` does not declare `__wrapped__`
    """Unwraps `jax.jit`, because its cache contains traces bound to DrJAX's operations."""
    while isinstance(fn, Jitted) or (hasattr(fn, "lower") and hasattr(fn, "__wrapped__")):
        fn = fn.fn if isinstance(fn, Jitted) else fn.__wrapped__
    return fn


def _install() -> None:
    """Patches DrJAX once; calls that do not ask for workbench primitives are unchanged."""
    try:
        from drjax._src import api  # noqa: PLC2701 - its operations are bound nowhere else; versions are pinned
    except ImportError as missing:
        raise MissingDependencyError("drjax", extra="drjax", needed_for="`workbench.engines.from_drjax`") from missing
    with _LOCK:
        if getattr(api._replace_api, "binds_workbench", False):
            return
        original = api._replace_api

        @functools.wraps(original)
        def bind(module: ModuleType, placed: Foreign, primitive_functions: object, *, placement: str) -> ModuleType:
            call = _importing.get()
            if call is None:
                return original(module, placed, primitive_functions, placement=placement)
            call.programs += 1
            for name in _FUNCTIONS:
                setattr(module, name, _inside(getattr(primitives, name), dict(placed._placements_to_n_elements)))
            return module

        bind.binds_workbench = True  # pyright: ignore[reportAttributeAccessIssue]
        api._replace_api = bind


def _inside(operation: Callable, placements: dict[str, int]) -> Callable:
    @functools.wraps(operation)
    def call(*args: object, **kwargs: object) -> Argument:
        with primitives.program(placements=placements):
            return operation(*args, **kwargs)

    return call
