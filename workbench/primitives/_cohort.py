"""`sample` draws a cohort, and `select` selects its rows, for rounds with only some of the clients."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Int32, Integer, Key, Shaped, UInt32

from workbench import _jax_compat
from workbench._types import Aval, Param, PyTree
from workbench.errors import PlacementError
from workbench.primitives._checks import as_arrays, check_clients
from workbench.primitives._layout import Layout, align, find_layout, gather, pad_rows, spread
from workbench.primitives._linear import rows_of, typed
from workbench.primitives._map import map_fn
from workbench.primitives._placement import Placement, resolve

select_p: Primitive = Primitive("select")
place_p: Primitive = Primitive("place")


def select(
    tree: PyTree[Shaped[ArrayLike, " clients *shape"]],
    indices: Integer[ArrayLike, " cohort"],
    *,
    over: str | None = None,
) -> PyTree[Shaped[Array, " cohort *shape"]]:
    """Selects the rows of some clients, which form a cohort.

    Sends the selected rows to the devices that compute the cohort. Run the cohort's round in a program of the cohort's
    size: `with program(clients=len(indices)): …`. Concrete indices are read once to check their range.

    Args:
        tree: Pytree of arrays `[clients, *shape]`.
        indices: Client indices, ints `[cohort]`; clients may be repeated.
        over: Name of the placement; needed only if there are several placements. Clients of an inner placement are
            selected within each outer client. `indices` then contains either one list for all outer clients,
            `[cohort]`, or one row per outer client, `[outer, cohort]`.

    Returns:
        The same pytree, each leaf `[cohort, *shape]`. The gradient with respect to `tree` has a row for every client;
        rows of clients that are not selected are 0.

    Raises:
        PlacementError: if a leaf does not have one row per client, or if concrete indices are out of range. Traced
            indices are clamped to the first or last client.

    Example:
        >>> with program(clients=4):
        ...     select(jnp.array([10, 11, 12, 13]), jnp.array([3, 0])).tolist()
        [13, 10]

    References:
        McMahan et al., AISTATS 2017, Algorithm 1: S_t, the random set of clients of a round.
    """
    placement, outer = resolve("select", over)
    chosen = _checked_indices(indices, placement, len(outer))
    if outer:
        if chosen.ndim == 1:
            return map_fn(lambda rows: select(rows, chosen, over=placement.name), _one(tree), over=outer[0].name)
        return map_fn(
            lambda rows, numbers: select(rows, numbers, over=placement.name), (tree, chosen), over=outer[0].name
        )
    leaves, structure = as_arrays("select", "tree", tree)
    check_clients("select", "tree", structure.hidden(leaves), placement)
    layout = find_layout(placement)
    cohort = Placement(f"cohort of {placement.name}", chosen.shape[0], placement.mesh_axes)
    return structure.unflatten([_bind_select(x, chosen, placement, layout, cohort) for x in leaves])


def _one(tree: PyTree[Array]) -> tuple[Any]:
    return (tree,)


def _checked_indices(indices: object, placement: Placement, outer: int) -> jax.Array:
    indices = indices if isinstance(indices, jax.Array) else jnp.asarray(indices)
    if not jnp.issubdtype(indices.dtype, jnp.integer) or not 1 <= indices.ndim <= 1 + outer or 0 in indices.shape:
        message = (
            f"`select` was given `indices` of shape {indices.shape} and dtype {indices.dtype}. A cohort is a list of "
            f'one or more client numbers of "{placement.name}", ints of shape (cohort,): draw it with '
            "`sample(key, size)`, or convert a mask to numbers with `jnp.flatnonzero(mask, size=…)`."
        )
        raise PlacementError(message)
    if isinstance(indices, Tracer) or not getattr(indices, "is_fully_addressable", True):
        return indices
    numbers = np.asarray(indices)
    outside = np.argwhere((numbers < 0) | (numbers >= placement.size))
    if len(outside):
        listed = ", ".join(f"indices{[int(i) for i in at]} = {int(numbers[tuple(at)])}" for at in outside[:5])
        more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
        message = (
            f'`select` was given {listed}{more}, but the placement "{placement.name}" has {placement.size} clients. '
            f"Clients are numbered from 0 to {placement.size - 1}: correct these indices, or draw them with "
            "`sample(key, size)`."
        )
        raise PlacementError(message)
    return indices


def sample(
    key: Key[Array, ""] | UInt32[ArrayLike, " 2"],
    size: int,
    *,
    over: str | None = None,
    form: Literal["index", "mask"] = "index",
    weights: Shaped[ArrayLike, " clients"] | None = None,
) -> Int32[Array, " cohort"] | Bool[Array, " clients"]:
    """Draws `size` distinct clients at random.

    Computed at the server, without communication.

    Args:
        key: A PRNG key: `jax.random.key(seed)` or a raw key.
        size: Number of clients to draw, at most the number of clients.
        over: Name of the placement; needed only if there are several placements. Clients of an inner placement are
            drawn separately within each outer client.
        form: "index" for `select`, "mask" for the `where=` of a reduction.
        weights: Relative probability that each client is drawn next, `[clients]`, non-negative. Default: equal. A
            client with weight 0 is drawn only if no other client is left.

    Returns: With "index", the clients' indices, int32 `[size]`, in the order drawn; with "mask", bools `[clients]`, of
        which `size` are true. For an inner placement, one such row per outer client.

    Raises:
        PlacementError: if `size` is not between 1 and the number of clients, if `form` is unknown, or if `weights` is
            not one number per client.

    Example:
        >>> with program(clients=10):
        ...     cohort = sample(jax.random.key(0), 3)
        >>> cohort.shape, len(set(cohort.tolist()))
        ((3,), 3)

    References:
        Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Inf. Proc. Letters 2006.
    """
    placement, outer = resolve("sample", over)
    if outer:
        keys = jax.random.split(key, outer[0].size)
        return map_fn(
            lambda k, *w: sample(k, size, over=placement.name, form=form, weights=w[0] if w else None),
            (keys,) if weights is None else (keys, weights),
            over=outer[0].name,
        )
    _check_sample(size, form, placement)
    with jax.named_scope(f"wb.sample[{placement.name}]"):
        drawn = jax.random.choice(key, placement.size, (size,), replace=False, p=_chances(weights, placement)).astype(
            jnp.int32
        )
        if form == "index":
            return drawn
        return jnp.zeros(placement.size, bool).at[drawn].set(True)


def _check_sample(size: int, form: str, placement: Placement) -> None:
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size <= placement.size:
        message = (
            f'`sample` was given size={size!r}, but the placement "{placement.name}" has {placement.size} clients. A '
            "cohort is drawn without replacement, and its size must be known before tracing: pass an int from 1 "
            f"to {placement.size}."
        )
        raise PlacementError(message)
    if form not in ("index", "mask"):
        message = (
            f"`sample` was given form={form!r}. A cohort is a list of client numbers or a mask over all clients: pass "
            'form="index" for `select`, or form="mask" for the `where=` of a reduction.'
        )
        raise PlacementError(message)


def _chances(weights: ArrayLike | None, placement: Placement) -> jax.Array | None:
    if weights is None:
        return None
    weights = jnp.asarray(weights)
    if weights.shape != (placement.size,):
        message = (
            f'`sample` was given `weights` of shape {weights.shape}, but the placement "{placement.name}" has '
            f"{placement.size} clients. Each client needs exactly one weight: pass a vector of shape "
            f"({placement.size},), or omit `weights` to draw all clients with equal probability."
        )
        raise PlacementError(message)
    return weights if jnp.issubdtype(weights.dtype, jnp.floating) else weights.astype(jnp.result_type(float))


def _bind_select(
    x: jax.Array, indices: jax.Array, placement: Placement, layout: Layout | None, cohort: Placement
) -> jax.Array:
    cohort_layout = find_layout(cohort, None if layout is None else layout.mesh)
    params = {"placement": placement, "layout": layout, "cohort": cohort, "cohort_layout": cohort_layout}
    return _bind(select_p, x, indices, batch_dims=0, **params)


def _bind(primitive: Primitive, x: jax.Array, indices: jax.Array, **params: Param) -> jax.Array:
    with jax.named_scope(f"wb.{primitive.name}[{params['placement'].name}]"):
        x = typed(x, params["layout" if primitive is select_p else "cohort_layout"])
        batch = range(1, 1 + params["batch_dims"])
        return primitive.bind(align(x, indices, batch), align(indices, x, batch), **params)


def _select(
    x: jax.Array, indices: jax.Array, *, placement: Placement, layout: Layout, cohort_layout: Layout, **params: int
) -> jax.Array:
    def take(rows: jax.Array, numbers: jax.Array) -> jax.Array:
        return jnp.take(rows, _clipped(numbers, placement), axis=0, mode="clip")

    return spread(_over_batch(take, params["batch_dims"])(gather(x, layout), indices), cohort_layout)


def _place(
    x: jax.Array, indices: jax.Array, *, placement: Placement, layout: Layout, cohort_layout: Layout, **params: int
) -> jax.Array:
    def put(rows: jax.Array, numbers: jax.Array) -> jax.Array:
        nothing = jnp.zeros((placement.size, *rows.shape[1:]), rows.dtype)
        return nothing.at[_clipped(numbers, placement)].add(rows)

    if cohort_layout is not None and x.shape[0] % cohort_layout.size:
        # On a mesh with another axis, XLA adds the padding of uneven shards to the first row (jaxlib 0.10 to 0.12).
        x, indices = spread(pad_rows(x, cohort_layout), cohort_layout), pad_rows(indices, cohort_layout)
    return spread(_over_batch(put, params["batch_dims"])(gather(x, cohort_layout), indices), layout)


def _clipped(indices: jax.Array, placement: Placement) -> jax.Array:
    return jnp.clip(indices, 0, placement.size - 1)


def _over_batch(fn: Callable, batch_dims: int) -> Callable:
    for _ in range(batch_dims):
        fn = jax.vmap(fn, in_axes=1, out_axes=1)
    return fn


def _select_type(x: Aval, indices: Aval, *, cohort: Placement, cohort_layout: Layout | None, **_: object) -> Aval:
    return rows_of(_jax_compat.drop_leading_axis(x), cohort, cohort_layout)


def _place_type(x: Aval, indices: Aval, *, placement: Placement, layout: Layout | None, **_: object) -> Aval:
    return rows_of(_jax_compat.drop_leading_axis(x), placement, layout)


def _jvp(
    primitive: Primitive, primals: Sequence[jax.Array], tangents: Sequence[jax.Array | ad.Zero], **params: Param
) -> tuple[jax.Array, jax.Array | ad.Zero]:
    (x, indices), (slope, _) = primals, tangents
    rows = _bind(primitive, x, indices, **params)
    if isinstance(slope, ad.Zero):
        return rows, _jax_compat.zero_tangent(rows)
    return rows, _bind(primitive, slope, indices, **params)


# The transpose of taking rows adds them back to their clients; the transpose of adding rows takes them.
def _transpose(
    other: Primitive, cotangent: jax.Array | ad.Zero, x: ad.UndefinedPrimal, indices: jax.Array, **params: Param
) -> list[jax.Array | ad.Zero | None]:
    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(x.aval), None]
    return [_bind(other, cotangent, indices, **params), None]


def _batch(
    primitive: Primitive, operands: Sequence[jax.Array], axes: Sequence[int | None], *, batch_dims: int, **params: Param
) -> tuple[jax.Array, int]:
    (x, indices), (x_axis, indices_axis) = operands, axes
    if indices_axis is None:  # the indices are the same, so the batch becomes one more axis of the rows
        assert x_axis is not None
        position = 1 + batch_dims
        return _bind(primitive, jnp.moveaxis(x, x_axis, position), indices, batch_dims=batch_dims, **params), position
    indices = jnp.moveaxis(indices, indices_axis, 1)
    size = indices.shape[1]
    if x_axis is None:
        x, x_axis = jnp.broadcast_to(x[:, None], (x.shape[0], size, *x.shape[1:])), 1
    return _bind(primitive, jnp.moveaxis(x, x_axis, 1), indices, batch_dims=batch_dims + 1, **params), 1


for _primitive, _other, _rule, _type in (
    (select_p, place_p, _select, _select_type),
    (place_p, select_p, _place, _place_type),
):
    _primitive.def_impl(_rule)
    _primitive.def_abstract_eval(_type)
    mlir.register_lowering(_primitive, mlir.lower_fun(_rule, multiple_results=False))
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _primitive)
    ad.primitive_transposes[_primitive] = functools.partial(_transpose, _other)
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
