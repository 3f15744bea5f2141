"""Access to the rules by which primitives report errors to `jax.experimental.checkify`.

Written against JAX 0.10 to 0.12, whose table of rules is not public.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import checkify
from jax.extend.core import ClosedJaxpr, Primitive

from workbench._open_types import Foreign

_checkify: Foreign = checkify  # its functions take different arguments in JAX 0.12
Error = checkify.Error

_CONTEXT = 1 if jax.__version_info__ >= (0, 12) else 0  # JAX 0.12 passes a counter of error codes first


@dataclasses.dataclass(frozen=True)
class Checking:
    """The state of `checkify` at one equation: the error so far, and the kinds of errors to check for."""

    context: tuple[Any, ...]
    error: Error
    enabled: frozenset[type]

    def inside(self, jaxpr: ClosedJaxpr, operands: Sequence[Any]) -> tuple[Error, list[Any]]:
        """Runs a jaxpr with checks; the error covers only the jaxpr."""
        return _checkify.checkify_jaxpr(*self.context, jaxpr, self.enabled, _checkify.init_error, *operands)

    def nan(self, primitive: Primitive, results: Foreign) -> Error:
        """Returns the error so far or, if there is none, an error for NaNs in the results of `primitive`."""
        return _checkify.check_nans(primitive, *self.context, self.error, self.enabled, results)

    def out_of_range(self, name: str, indices: jax.Array, shape: tuple[int, ...], error: Error | None = None) -> Error:
        """Returns the error so far or, if there is none, an error for an index outside the leading axis of `shape`."""
        error = self.error if error is None else error
        if _checkify.OOBError not in self.enabled:
            return error
        outside = jnp.ravel((indices < 0) | (indices >= shape[0]))
        first = jnp.ravel(indices)[jnp.argmax(outside)].astype(np.int32)
        payload = jnp.stack([first, jnp.int32(0), jnp.int32(shape[0])])
        failure = _checkify.OOBError(_checkify.get_traceback(), name, shape, payload)
        return _checkify.assert_func(*self.context, error, jnp.any(outside), failure)


def no_error() -> Error:
    """The error value that represents no failure."""
    return _checkify.init_error


def register_checks(primitive: Primitive, rule: Callable[..., tuple[Error, Any]]) -> None:
    """Registers `rule(checking, *operands, **params) -> (error, results)` for equations of `primitive`."""

    def called(*args: Foreign, **params: Foreign) -> tuple[Error, Any]:
        context, (error, enabled, *operands) = args[:_CONTEXT], args[_CONTEXT:]
        return rule(Checking(context, error, enabled), *operands, **params)

    _checkify.error_checks[primitive] = called


def kinds_of(error: Error) -> list[tuple[Any, Any, Any, list[Any]]]:
    """Every error that a program can have: its kind, whether it happened, its code and its payload."""
    return [(kind, error._pred[kind], error._code[kind], list(error._payload[kind])) for kind in error._pred]


def metadata_at_client(error: Foreign, placement: str) -> dict[int, Any]:
    """The descriptions of an error, by code, for one client of a placement; payloads end with the client's number."""
    return {code: _described(tree, placement) for code, tree in error._metadata.items()}


def add_at_client(
    error: Error,
    kind: Foreign,
    happened: jax.Array,
    code: jax.Array,
    payload: Sequence[Any],
    metadata: Mapping[int, Any],
) -> Error:
    """Returns the error so far or else a client's error; `payload` ends with the client number as int32."""
    shapes = (*kind.shape_dtypes, jax.ShapeDtypeStruct((), np.int32))
    wider = dataclasses.replace(kind, shape_dtypes=shapes)
    return _checkify.update_error(error, happened, code, dict(metadata), list(payload), wider)


def _described(tree: Foreign, placement: str) -> Foreign:
    exception = jax.tree.unflatten(tree, [0] * tree.num_leaves)
    return jax.tree.structure(_class_at_client(type(exception))(exception, 0, placement))


def _from_parts(cls: Foreign, placement: str, children: Sequence[Any]) -> Foreign:
    return cls(*children, placement)


@functools.cache
def _class_at_client(kind: type) -> Callable[..., Any]:
    """An exception of the same class that also names the client, so that callers can handle it as before."""

    def start(self: Foreign, exception: Foreign, client: Foreign, placement: str) -> None:
        self.exception, self.client, self.placement = exception, client, placement
        self.traceback_info = getattr(exception, "traceback_info", None)

    members = {
        "__init__": start,
        "__str__": lambda self: f'client {int(self.client)} of "{self.placement}": {self.exception}',
        "tree_flatten": lambda self: ((self.exception, self.client), self.placement),
        "tree_unflatten": classmethod(_from_parts),
        "get_effect_type": lambda self: self.exception.get_effect_type(),
    }
    subclass: Foreign = type(kind.__name__, (kind,), members)
    return subclass
