"""Rules for `jax.experimental.checkify`: reports errors inside clients, and names the client.

The checks are themselves a MapReduce: a map that returns every client's error, and reductions that select the first
error.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive

from workbench import _jax_compat
from workbench._jax_compat.checks import (
    Checking,
    Error,
    add_at_client,
    kinds_of,
    metadata_at_client,
    no_error,
    register_checks,
)
from workbench._types import Param
from workbench.primitives._by_key import by_key_p
from workbench.primitives._cohort import place_p, select_p
from workbench.primitives._extreme import min_p
from workbench.primitives._layout import Layout
from workbench.primitives._linear import bind_broadcast, bind_reduction, bind_sum, mean_p, sum_p
from workbench.primitives._map import bind_map, map_p
from workbench.primitives._placement import Placement


def _check_clients(
    checking: Checking, *operands: Array, jaxpr: ClosedJaxpr, placement: Placement, layout: Layout | None, name: str
) -> tuple[Error, list[Array]]:
    named = _jax_compat.argument_names(jaxpr)
    return _map_checked(
        checking, lambda *rows: checking.inside(jaxpr, rows), operands, placement, layout, name=name, arguments=named
    )


def _map_checked(
    checking: Checking,
    client: Callable[..., tuple[Error, list[Array]]],
    operands: Sequence[Array],
    placement: Placement,
    layout: Layout | None,
    *,
    name: str,
    arguments: Sequence[str] = (),
) -> tuple[Error, list[Array]]:
    """Maps a one-client function that returns its error together with its results."""
    traced: list[tuple[Error, int]] = []

    def flat(*rows: Array) -> list[Array]:
        error, results = client(*rows)
        traced.append((error, len(results)))
        return [*results, *map(jnp.asarray, jax.tree.leaves(error))]

    values = bind_map(flat, operands, placement, layout, name=name, arguments=arguments)
    error, count = traced[-1]
    errors = jax.tree.unflatten(jax.tree.structure(error), values[count:])
    total, metadata = checking.error, metadata_at_client(errors, placement.name)
    for kind, happened, code, payload in kinds_of(errors):
        failed, first_code, first = _first_failure(happened, code, payload, placement, layout)
        total = add_at_client(total, kind, failed, first_code, first, metadata)
    return total, values[:count]


def _first_failure(
    happened: Array, code: Array, payload: Sequence[Array], placement: Placement, layout: Layout | None
) -> tuple[Array, Array, list[Array]]:
    """The first error in the program, at the client with the lowest number, as in plain JAX."""
    none, size = jnp.iinfo(code.dtype).max, placement.size
    over = functools.partial(bind_map, placement=placement, layout=layout, name="check")
    numbers = jnp.arange(size, dtype=jnp.int32)
    (codes,) = over(lambda bad, c: [jnp.where(bad, c, jnp.full_like(c, none))], [happened, code])
    first_code = bind_reduction(min_p, codes, placement, layout)
    at_clients = bind_broadcast(first_code, placement, layout)
    (holders,) = over(
        lambda bad, c, first, i: [jnp.where(bad & (c == first), i, jnp.full_like(i, size))],
        [happened, code, at_clients, numbers],
    )
    client = bind_reduction(min_p, holders, placement, layout)

    def select_row(i: Array, first: Array, *values: Array) -> list[Array]:
        return [jnp.where(i == first, x, jnp.zeros_like(x)) for x in values]

    rows = over(select_row, [numbers, bind_broadcast(client, placement, layout), *payload]) if payload else []
    first = [bind_sum(row, placement, layout).astype(x.dtype) for row, x in zip(rows, payload, strict=True)]
    failed = client < size
    return failed, jnp.where(failed, first_code, jnp.full_like(first_code, -1)), [*first, client]


def _check_reduction(primitive: Primitive, checking: Checking, x: Array, **params: Param) -> tuple[Error, Array]:
    total = primitive.bind(x, **params)
    return checking.nan(primitive, total), total


def _check_by_key(checking: Checking, values: Array, keys: Array, **params: Param) -> tuple[Error, Array]:
    total = by_key_p.bind(values, keys, **params)

    def client(groups: Array) -> tuple[Error, list[Array]]:
        return checking.out_of_range(by_key_p.name, groups, (params["num_keys"],), no_error()), []

    error, _ = _map_checked(checking, client, [keys], params["placement"], params["layout"], name="check keys")
    return Checking(checking.context, error, checking.enabled).nan(by_key_p, total), total


def _check_cohort(
    primitive: Primitive, checking: Checking, x: Array, indices: Array, **params: Param
) -> tuple[Error, Array]:
    rows = primitive.bind(x, indices, **params)
    return checking.out_of_range(primitive.name, indices, (params["placement"].size,)), rows


register_checks(map_p, _check_clients)
register_checks(by_key_p, _check_by_key)
for _primitive in (sum_p, mean_p):
    register_checks(_primitive, functools.partial(_check_reduction, _primitive))
for _primitive in (select_p, place_p):
    register_checks(_primitive, functools.partial(_check_cohort, _primitive))
