"""Callbacks of clients in padded slots: the callbacks of an empty slot must not run."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr, JaxprEqn

from workbench import _jax_compat
from workbench.plan._interpreter import ControlFlow, Interpreter
from workbench.primitives import CALLBACKS, calls_back


def call_present(closed: ClosedJaxpr, present: Array, operands: Sequence[Any]) -> list[Any]:
    """The outputs of a client function whose callbacks run only if the bool `present` is true."""
    return _Present(present).run(closed, operands)


class _Present(Interpreter[Any]):
    def __init__(self, present: Array) -> None:
        self.present = present

    def enters(self, equation: JaxprEqn) -> bool:
        return any(map(calls_back, _jax_compat.inner_jaxprs(equation)))

    def body(self, flow: ControlFlow, closed: ClosedJaxpr, operands: Sequence[Any], part: str = "") -> list[Any]:
        return self.run(closed, operands)

    def bind(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        if equation.primitive.name not in CALLBACKS:
            return super().bind(equation, operands)
        with _jax_compat.source_of(equation):
            return _bind_callback(equation, self.present, operands)


def _bind_callback(equation: JaxprEqn, present: Array, operands: Sequence[Any]) -> list[Any]:
    params, primitive = equation.params, equation.primitive
    if primitive.name in ("debug_callback", "debug_print"):

        def report(present: jax.Array, *values: jax.Array) -> None:
            if np.any(present):
                primitive.impl(*values, **params)

        jax.debug.callback(report, present, *operands, partitioned=params["partitioned"])
        return []

    def call(present: jax.Array, *values: jax.Array) -> tuple[np.ndarray, ...]:
        if np.any(present):
            return tuple(params["callback"](*values))
        return tuple(np.zeros(aval.shape, aval.dtype) for aval in params["result_avals"])

    shapes = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in params["result_avals"])
    if primitive.name == "io_callback":
        return list(io_callback(call, shapes, present, *operands, sharding=params["sharding"]))
    method = params["vmap_method"]
    return list(jax.pure_callback(call, shapes, present, *operands, sharding=params["sharding"], vmap_method=method))
