"""`emit`: sends a value out of a running program under any transformation; free if nobody listens."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike
from jaxtyping import Shaped

from workbench import _jax_compat
from workbench._open_types import Foreign
from workbench._types import Aval, PyTree
from workbench.errors import ProgramError
from workbench.primitives._static import is_array

emit_p: Primitive = Primitive("emit")
emit_p.multiple_results = True


def emit(name: str, value: Shaped[ArrayLike, " ..."]) -> None:
    """Sends `value` to the program's listeners, with the numbers of its client, round and step.

    Costs nothing without a listener: the value is not computed. Works in `workbench.jit`, engines and `run_rounds`, and
    also under map_fn, scan, cond, grad, sharding and nested `jax.jit`. A function that is compiled only with `jax.jit`
    delivers nothing, and `listen` warns about this. JAX drops values inside a `while_loop`, because the number of
    iterations is unknown, and inside a `scan` that is differentiated as a whole. Values from a `value_and_grad` inside
    the loop are delivered.

    Args:
        name: Name of the value: "loss", "update norm", …
        value: An array or number of any shape.

    Raises:
        ProgramError: if `name` is not a string, or if `value` is not an array.

    Example:
        >>> import workbench as wb
        >>> @wb.jit
        ... @wb.program(clients=2)
        ... def total(x):
        ...     def square(row):
        ...         wb.emit("square", row**2)
        ...         return row**2
        ...     return wb.reduce_sum(wb.map_fn(square, x))
        >>> with wb.listen() as captured:
        ...     _ = total(jnp.array([2.0, 3.0]))
        >>> captured.latest("square").tolist()
        [4.0, 9.0]
    """
    if not isinstance(name, str) or not is_array(value):
        message = (
            f"`emit` was given name={name!r} and a value of type {type(value).__name__}. An emission is one array with "
            'a name, as in `emit("loss", loss)`: for a pytree, call `emit` once for each of its arrays.'
        )
        raise ProgramError(message)
    emit_p.bind(jax.numpy.asarray(value), name=name)


@emit_p.def_impl
def _evaluate(value: object, *, name: str) -> list[Any]:
    return []


@emit_p.def_effectful_abstract_eval
def _type(value: object, *, name: str) -> tuple[list[Aval], set[object]]:
    return [], {_jax_compat.EMIT_EFFECT}


_dropped: set[str] = set()  # names in programs that plain JAX compiled


def take_dropped_emissions() -> list[str]:
    """Returns names emitted without a listener, in programs that plain JAX compiled since the last call."""
    names = sorted(_dropped)
    _dropped.clear()
    return names


def _lower(context: Foreign, value: object, *, name: str) -> list[Any]:
    _dropped.add(name)
    return []


mlir.register_lowering(emit_p, _lower)


def _jvp(primals: PyTree[Array], tangents: PyTree[Array], *, name: str) -> tuple[list[Any], list[Any]]:
    return emit_p.bind(*primals, name=name), []


def _batch(operands: Sequence[jax.Array], axes: Sequence[int], *, name: str) -> tuple[list[Any], list[Any]]:
    (value,), (axis,) = operands, axes
    return emit_p.bind(jax.numpy.moveaxis(value, axis, 0), name=name), []


ad.primitive_jvps[emit_p] = _jvp
batching.primitive_batchers[emit_p] = _batch
