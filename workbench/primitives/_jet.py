"""Rules for `jax.experimental.jet`: Taylor series of MapReduce programs are MapReduce programs."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.jet import jet, jet_rules
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from workbench._types import Param
from workbench.primitives._by_key import by_key_p
from workbench.primitives._cohort import place_p, select_p
from workbench.primitives._extreme import max_p, mean_over_holders, min_p
from workbench.primitives._layout import Layout
from workbench.primitives._linear import broadcast_p, mean_p, sum_p
from workbench.primitives._map import bind_map, map_p
from workbench.primitives._placement import Placement

Terms = Sequence[Sequence[Array]]


def _of_clients(
    primals: Sequence[Array],
    series: Terms,
    *,
    jaxpr: ClosedJaxpr,
    placement: Placement,
    layout: Layout | None,
    name: str,
) -> tuple[list[Array], list[list[Array]]]:
    order = len(series[0])
    moving = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def client(*rows: Array) -> list[Array]:
        values, terms = list(rows[: len(primals)]), rows[len(primals) :]

        def along(*moved: Array) -> list[Array]:
            for i, x in zip(moving, moved, strict=True):
                values[i] = x
            return jaxpr_as_fun(jaxpr)(*values)

        client_series = [terms[n * order : (n + 1) * order] for n in range(len(moving))]
        results = jet(along, [values[i] for i in moving], client_series, factorial_scaled=False)
        return jax.tree.leaves(results)

    operands = [*primals, *(term for i in moving for term in series[i])]
    count = len(jaxpr.out_avals)
    values = bind_map(client, operands, placement, layout, name=name)
    return values[:count], [values[count + n * order : count + (n + 1) * order] for n in range(count)]


def _linear(
    primitive: Primitive, primals: Sequence[Array], series: Terms, **params: Param
) -> tuple[Array, list[Array]]:
    x, *rest = primals  # keys and client numbers have no higher-order terms
    return primitive.bind(x, *rest, **params), [primitive.bind(term, *rest, **params) for term in series[0]]


def _extreme(
    primitive: Primitive, primals: Sequence[Array], series: Terms, *, placement: Placement, layout: Layout | None
) -> tuple[Array, list[Array]]:
    (x,), (terms,) = primals, series
    extreme, mean = mean_over_holders(primitive, x, placement, layout)
    return extreme, [mean(term) for term in terms]


jet_rules[map_p] = _of_clients
for _primitive in (broadcast_p, sum_p, mean_p, by_key_p, select_p, place_p):
    jet_rules[_primitive] = functools.partial(_linear, _primitive)
for _primitive in (max_p, min_p):
    jet_rules[_primitive] = functools.partial(_extreme, _primitive)
