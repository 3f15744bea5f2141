"""Checks the arguments of a call before JAX sees them, because JAX may raise obscure errors or abort."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.core import Tracer

from workbench.errors import ProgramError
from workbench.primitives import is_opaque

_DEEPEST = 500


def check_call(
    operation: str, fn: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], *, symbolic: bool = False
) -> None:
    """Rejects a call that cannot be traced."""
    name = getattr(fn, "__name__", type(fn).__name__)
    arguments = [
        *((f"argument {i}", x) for i, x in enumerate(args)),
        *((f"argument {k!r}", x) for k, x in kwargs.items()),
    ]
    for place, x in arguments:
        if problem := nesting_problem(x):
            message = (
                f"{operation} was given `{name}` and {place}, {problem}. A pytree is a finite tree of arrays: pass the "
                "arrays themselves, or dictionaries and lists of arrays."
            )
            raise ProgramError(message)
    _check_signature(operation, fn, name, args, kwargs)
    problems = [f"{place}{path}{fault}" for place, x in arguments for path, fault in _leaves(x, symbolic)]
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        message = (
            f"{operation} was given `{name}` and {shown}. Arguments must be existing arrays of known shapes. For a "
            "donated array, pass the array that the donating call returned, or a new array. For a symbolic shape, use "
            "numbers as dimensions: only `trace(fn)(...).export()` takes symbolic shapes."
        )
        raise ProgramError(message)
    if not hasattr(fn, "lower"):  # a jit may accept static arguments, and rejects others itself
        _refuse_opaque(operation, name, arguments)


def _refuse_opaque(operation: str, name: str, arguments: Sequence[tuple[str, Any]]) -> None:
    opaque = [
        f"{place}{jax.tree_util.keystr(path)}, an object of type {type(leaf).__name__}"
        for place, x in arguments
        for path, leaf in _leaves_with_path(x)
        if is_opaque(leaf)
    ]
    if opaque:
        message = (
            f"{operation} was given `{name}` and {'; '.join(opaque[:5])}. `jax.jit` rejects such arguments too: arrays "
            "inside such an object would become constants of the program, and an iterator is used up by the first "
            "trace. Register a dataclass with `jax.tree_util.register_dataclass`, convert an iterator to a list, or "
            "pass the argument's name in `static_argnames` of `jax.jit`."
        )
        raise ProgramError(message)


def _check_signature(operation: str, fn: Callable, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):  # a compiled function without a signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        named = f" and {', '.join(kwargs)} by name" if kwargs else ""
        message = (
            f"{operation} was given {len(args)} argument{'' if len(args) == 1 else 's'}{named} for "
            f"`{name}{signature}`: {error}. A call is traced with the function's own arguments: pass all of them after "
            "the function."
        )
        raise ProgramError(message) from error


def nesting_problem(x: object) -> str:
    """Returns the reason why a pytree cannot be flattened; "" if it can."""
    waiting: list[tuple[Any, int, bool]] = [(x, 1, True)]
    above: list[int] = []
    while waiting:
        now, depth, entering = waiting.pop()
        if not entering:
            above.pop()
            continue
        if not isinstance(now, dict | list | tuple):
            continue
        if id(now) in above:
            return f"which holds an object of type {type(now).__name__} that contains itself"
        if depth > _DEEPEST:
            return f"whose containers are nested more than {_DEEPEST} levels deep"
        above.append(id(now))
        waiting.append((now, depth, False))
        waiting.extend((item, depth + 1, True) for item in (now.values() if isinstance(now, dict) else now))
    return ""


def _leaves_with_path(x: object) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(x, is_leaf=lambda leaf: hasattr(leaf, "__next__"))  # JAX warns


def _leaves(x: object, symbolic: bool) -> Iterator[tuple[str, str]]:
    for path, leaf in _leaves_with_path(x):
        place = jax.tree_util.keystr(path)
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted():
            yield place, f" of shape {leaf.shape}, which was deleted or donated"
        shape = getattr(leaf, "shape", ())
        is_static = symbolic or not isinstance(shape, tuple) or all(map(_is_number, shape))
        if not is_static:
            yield place, f", which has the symbolic shape {shape}"


def _is_number(size: object) -> bool:
    return isinstance(size, int) or hasattr(size, "__index__")
