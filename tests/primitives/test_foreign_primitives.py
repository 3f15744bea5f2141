"""Primitives of Equinox, Lineax and Optimistix in clients: their parameters hide types of arrays in tree structures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from mapreduce_meshes import under

import workbench as wb


@jax.tree_util.register_pytree_node_class
class _Typed:
    """A node that keeps the type of its array as a static part, as Lineax's solver states do."""

    def __init__(self, struct: jax.ShapeDtypeStruct) -> None:
        self.struct = struct

    def tree_flatten(self) -> tuple[tuple[()], Any]:
        return (), [self.struct]

    @classmethod
    def tree_unflatten(cls, static: Any, _: Any) -> "_Typed":
        return cls(static[0])


guard_p = Primitive("nontraceable")
guard_p.def_impl(lambda x: x)
guard_p.def_abstract_eval(lambda x: x)


def _refuse(*_: Any) -> Any:
    message = "Detected batching"
    raise RuntimeError(message)


batching.primitive_batchers[guard_p] = _refuse
mlir.register_lowering(guard_p, mlir.lower_fun(lambda x: x, multiple_results=False))
solve_p = Primitive("linear_solve")


def _halve(x: Any, *, treedef: Any, static: Any, flatten: Any) -> Any:
    del static, flatten
    known = jax.tree.unflatten(treedef, ()).struct
    if jax.eval_shape(lambda: x) != known:
        message = "Vector and operator structures do not match"
        raise ValueError(message)
    return guard_p.bind(x / 2)


def _abstract(x: ShapedArray, **params: Any) -> ShapedArray:
    del params
    return x


def _batch(values: Any, axes: Any, **params: Any) -> Any:
    """As Equinox: `vmap` of the operation."""
    (x,), (axis,) = values, axes
    return batched_p.bind(jnp.moveaxis(x, axis, 0), prim=solve_p, params=tuple(params.items())), 0


def _halve_rows(x: Any, *, prim: Any, params: Any) -> Any:
    del prim
    known = jax.tree.unflatten(dict(params)["treedef"], ()).struct

    def halve(row: Any) -> Any:
        if jax.eval_shape(lambda: row) != known:
            message = "Vector and operator structures do not match"
            raise ValueError(message)
        return row / 2

    return jax.vmap(halve)(x)


batched_p = Primitive("vprim")
batched_p.def_impl(_halve_rows)
batched_p.def_abstract_eval(_abstract)
mlir.register_lowering(batched_p, mlir.lower_fun(_halve_rows, multiple_results=False))

solve_p.def_impl(_halve)
solve_p.def_abstract_eval(_abstract)
mlir.register_lowering(solve_p, mlir.lower_fun(_halve, multiple_results=False))
batching.primitive_batchers[solve_p] = _batch


def _client(x: Any) -> Any:
    treedef = jax.tree.structure(_Typed(jax.eval_shape(lambda: x)))
    return solve_p.bind(x, treedef=treedef, static=(), flatten=None)


@pytest.mark.parametrize("mesh", ["no mesh", "Auto"])
@pytest.mark.parametrize("options", [{}, {"chunk_size": 1}], ids=["default", "one by one"])
def test_primitives_that_hide_types_run_in_clients_on_meshes(mesh: str, options: Any) -> None:
    program = wb.program(clients=16)(lambda x: wb.reduce_mean(wb.map_fn(_client, x)))
    x = jnp.arange(32.0).reshape(16, 2)
    with under(mesh):
        np.testing.assert_allclose(wb.jit(program, **options)(x), x.mean(0) / 2)
