"""`reduce_by_key`: the shuffle of MapReduce. The values of all clients are summed in groups given by an integer key."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Integer, Shaped

from workbench import _jax_compat
from workbench._types import Aval, Param, PyTree
from workbench.errors import PlacementError
from workbench.primitives._checks import as_arrays, check_clients
from workbench.primitives._layout import Layout, align, find_layout, pad_rows, spread
from workbench.primitives._linear import accumulator_of, bind_broadcast, sum_dtype, typed
from workbench.primitives._map import bind_map, map_fn
from workbench.primitives._placement import Placement, resolve
from workbench.primitives._present import present_of

by_key_p: Primitive = Primitive("reduce_by_key")


def reduce_by_key(
    values: PyTree[Shaped[ArrayLike, " clients ..."]],
    keys: Integer[ArrayLike, " clients *items"],
    num_keys: int,
    *,
    op: Literal["sum", "mean"] = "sum",
    over: str | None = None,
    accumulator: DTypeLike | None = None,
) -> PyTree[Shaped[Array, " num_keys *shape"]]:
    """Groups the values of all clients by an integer key, and sums or averages each group.

    Costs one all-reduce of `[num_keys, *shape]` per leaf if the clients are spread over a mesh; a mean needs one more
    all-reduce to count the group sizes. Concrete keys are read once to check their range.

    Args:
        values: Pytree of arrays `[clients, *items, *shape]`.
        keys: The group of each item, ints `[clients, *items]`, from 0 to `num_keys - 1`. With `[clients]`, each
            client's whole value goes to one group.
        num_keys: Number of groups.
        op: "sum" or "mean".
        over: Name of the placement; needed only if there are several placements.
        accumulator: Dtype of the accumulator. Default: float32 for narrower floats, otherwise the dtype of the result.

    Returns:
        The same pytree at the server, each leaf `[num_keys, *shape]`, with dtypes as in `reduce_sum` and `reduce_mean`.
        The sum or mean of an empty group is 0. Traced keys that are out of range belong to no group: their items and
        gradients are dropped.

    Raises:
        PlacementError: if `values` or `keys` does not have one row per client, if their shapes do not match, or if
            concrete keys are out of range.

    Example:
        >>> with program(clients=3):
        ...     reduce_by_key(jnp.array([1.0, 2.0, 4.0]), jnp.array([1, 0, 1]), 2).tolist()
        [2.0, 5.0]

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004. The transpose of the primitive passes each group's cotangent back to
        the group's items.
    """
    placement, outer = resolve("reduce_by_key", over)
    if op not in ("sum", "mean"):
        message = (
            f'`reduce_by_key` was given op={op!r}. A group is summed or averaged: pass op="sum" or op="mean"; '
            "for other reductions, use `map_fn` on the clients first."
        )
        raise PlacementError(message)
    if outer:
        return map_fn(
            lambda rows, groups: reduce_by_key(
                rows, groups, num_keys, op=op, over=placement.name, accumulator=accumulator
            ),
            (values, keys),
            over=outer[0].name,
        )
    leaves, structure = as_arrays("reduce_by_key", "values", values)
    check_clients("reduce_by_key", "values", structure.hidden(leaves), placement)
    keys = _checked_keys(keys, num_keys, leaves, placement)
    if (present := present_of(placement, leaves)) is not None:
        group = lambda key, here: jnp.where(here, _group_numbers(key, num_keys), num_keys)  # noqa: E731
        keys = jnp.asarray(map_fn(group, (keys, present), over=placement.name))
    layout = find_layout(placement)
    if op == "mean":
        leaves = [x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.result_type(float)) for x in leaves]
    sums = [bind_by_key(x, keys, placement, layout, num_keys=num_keys, accumulator=accumulator) for x in leaves]
    if op == "mean" and leaves:
        (ones,) = bind_map(lambda k: [jnp.ones(k.shape, jnp.int32)], [keys], placement, layout, name="count")
        counts = bind_by_key(ones, keys, placement, layout, num_keys=num_keys)
        sums = [_divide(total, counts) for total in sums]
    return structure.unflatten(sums)


def _divide(total: jax.Array, counts: jax.Array) -> jax.Array:
    divisor = jnp.maximum(counts, 1).astype(total.dtype)
    return total / divisor.reshape(divisor.shape + (1,) * (total.ndim - 1))


def _checked_keys(keys: object, num_keys: int, leaves: list[Any], placement: Placement) -> jax.Array:
    if not isinstance(num_keys, int | np.integer) or isinstance(num_keys, bool) or num_keys < 1:
        message = (
            f"`reduce_by_key` was given num_keys={num_keys!r}. The number of groups fixes the shape of the result, so "
            "it is a positive int that is known before tracing: count the groups first, and pass that number."
        )
        raise PlacementError(message)
    keys = keys if isinstance(keys, jax.Array) else jnp.asarray(keys)
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        message = (
            f"`reduce_by_key` was given `keys` of dtype {keys.dtype}. A key is the number of a group, an integer from "
            f"0 to {num_keys - 1}: convert the keys with `keys.astype(int)`, or number groups with `jnp.searchsorted`."
        )
        raise PlacementError(message)
    check_clients("reduce_by_key", "keys", keys, placement)
    wrong = [tuple(x.shape) for x in leaves if x.shape[: keys.ndim] != keys.shape]
    if wrong:
        message = (
            f"`reduce_by_key` was given `keys` of shape {keys.shape} for `values` of shape "
            f"{', '.join(map(str, wrong))}. Every item has one key, so the shape of `keys` must be a prefix of the "
            "shape of `values`: pass one key per client, or one per item of every client."
        )
        raise PlacementError(message)
    _check_range(keys, num_keys)
    return keys


def _check_range(keys: object, num_keys: int) -> None:
    if isinstance(keys, Tracer) or not getattr(keys, "is_fully_addressable", True):
        return
    numbers = np.asarray(keys)
    outside = np.argwhere((numbers < 0) | (numbers >= num_keys))
    if not len(outside):
        return
    listed = ", ".join(f"keys{[int(i) for i in at]} = {int(numbers[tuple(at)])}" for at in outside[:5])
    more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
    message = (
        f"`reduce_by_key` was given {listed}{more}, but num_keys={num_keys}. A key is the number of a group, from 0 to "
        f"{num_keys - 1}. Either raise `num_keys` to {int(numbers.max()) + 1} or more, or mask the items that belong "
        "to no group: give them the value 0 and any key in range."
    )
    raise PlacementError(message)


def bind_by_key(
    values: jax.Array,
    keys: jax.Array,
    placement: Placement,
    layout: Layout | None,
    *,
    num_keys: int,
    accumulator: DTypeLike | None = None,
    batch_dims: int = 0,
) -> jax.Array:
    """Binds the keyed sums of one array; values and keys share `batch_dims` axes after the client axis."""
    dtype = sum_dtype(values.dtype)
    values = values if values.dtype == dtype else values.astype(dtype)
    values, keys = typed(values, layout), typed(keys, layout)
    batch = range(1, 1 + batch_dims)
    values, keys = align(values, keys, batch), align(keys, values, batch)
    with jax.named_scope(f"wb.reduce_by_key[{placement.name}]"):
        return by_key_p.bind(
            values,
            keys,
            placement=placement,
            layout=layout,
            num_keys=int(num_keys),
            accumulator=accumulator_of(dtype, accumulator),
            batch_dims=batch_dims,
        )


def sum_by_key(
    values: jax.Array,
    keys: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_keys: int,
    accumulator: DTypeLike,
    batch_dims: int,
) -> jax.Array:
    """Sums the rows of the given clients by key, in the dtype `accumulator`; `mask` marks the present clients."""
    if mask is not None:
        keys = group_rows(keys, mask, num_keys)

    def grouped(rows: jax.Array, groups: jax.Array) -> jax.Array:
        flat = _group_numbers(groups, num_keys).reshape(groups.size)
        shape = rows.shape[groups.ndim :]
        zeros = jnp.zeros((num_keys, *shape), accumulator)
        return zeros.at[flat].add(rows.astype(accumulator).reshape(groups.size, *shape), mode="drop")

    for _ in range(batch_dims):
        grouped = jax.vmap(grouped, in_axes=1)
    return grouped(values, keys)


def _group_numbers(keys: jax.Array, num_keys: int) -> jax.Array:
    """Converts keys to a dtype that can represent `num_keys` itself, the key that means no group."""
    wide = keys.astype(jnp.int32) if jnp.iinfo(keys.dtype).bits <= 32 else keys
    return jnp.where((wide < 0) | (wide >= num_keys), jnp.full_like(wide, num_keys), wide)


def _evaluate(
    values: jax.Array,
    keys: jax.Array,
    *,
    placement: Placement,
    layout: Layout | None,
    num_keys: int,
    accumulator: DTypeLike,
    batch_dims: int,
) -> jax.Array:
    some = functools.partial(sum_by_key, num_keys=num_keys, accumulator=accumulator, batch_dims=batch_dims)
    if layout is None:
        return some(values, keys).astype(values.dtype)
    if placement.size % layout.size:
        # On a mesh with another axis, XLA adds the padding of uneven shards to the first group (jaxlib 0.10 to 0.12).
        keys = pad_rows(_group_numbers(keys, num_keys), layout, num_keys)
        values = pad_rows(values, layout)
    values, keys = spread(values, layout), spread(keys, layout)
    # A scatter over all devices would gather all rows first, so each device sums its own clients.
    total = jax.shard_map(
        lambda rows, groups: jax.lax.psum(some(rows, groups), layout.axes),
        mesh=layout.mesh if jax.sharding.get_abstract_mesh().empty else None,
        in_specs=P(layout.entry),
        out_specs=P(),
        axis_names=set(layout.axes),
        check_vma=False,
    )
    return total(values, keys).astype(values.dtype)


_STATIC = ("placement", "layout", "num_keys", "accumulator", "batch_dims")
by_key_p.def_impl(jax.jit(_evaluate, static_argnames=_STATIC))
mlir.register_lowering(by_key_p, mlir.lower_fun(_evaluate, multiple_results=False))


@by_key_p.def_abstract_eval
def _type(values: Aval, keys: Aval, *, num_keys: int, batch_dims: int, **_: object) -> Aval:
    front, item_axes = 1 + batch_dims, keys.ndim - 1 - batch_dims
    shape = (*values.shape[1:front], num_keys, *values.shape[front + item_axes :])
    sharding = values.sharding
    if not sharding.mesh.empty:
        spec = (*sharding.spec, *(None,) * (values.ndim - len(sharding.spec)))
        sharding = NamedSharding(sharding.mesh, P(*spec[1:front], None, *spec[front + item_axes :]))
        return values.update(shape=shape, sharding=sharding)
    return ShapedArray(shape, values.dtype)


def _jvp(primals: PyTree[Array], tangents: PyTree[Array], **params: object) -> tuple[Any, Any]:
    (values, keys), (slope, _) = primals, tangents
    total = _bind(values, keys, params)
    if isinstance(slope, ad.Zero):
        return total, _jax_compat.zero_tangent(total)
    return total, _bind(slope, keys, params)


def _bind(values: jax.Array, keys: jax.Array, params: dict[str, Any]) -> jax.Array:
    return bind_by_key(values, keys, **params)


ad.primitive_jvps[by_key_p] = _jvp


# The transpose of summing groups: every item receives its group's cotangent, or 0 if it has no group.
def _transpose(
    cotangent: jax.Array,
    values: jax.Array,
    keys: jax.Array,
    *,
    placement: Placement,
    layout: Layout | None,
    num_keys: int,
    accumulator: DTypeLike,
    batch_dims: int,
) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(values.aval), None]

    def back(groups: jax.Array, pulled: jax.Array) -> jax.Array:
        numbers = _group_numbers(groups, num_keys)
        inside = numbers < num_keys
        gathered = jnp.take(pulled, jnp.where(inside, numbers, jnp.zeros_like(numbers)), axis=0, mode="clip")
        return jnp.where(
            inside.reshape(inside.shape + (1,) * (gathered.ndim - inside.ndim)), gathered, jnp.zeros_like(gathered)
        )

    for _ in range(batch_dims):
        back = jax.vmap(back)
    at_clients = bind_broadcast(cotangent, placement, layout)
    (rows,) = bind_map(lambda k, ct: [back(k, ct)], [keys, at_clients], placement, layout, name="take by key")
    return [rows, None]


ad.primitive_transposes[by_key_p] = _transpose


def _batch(operands: PyTree[Array], axes: Sequence[int | None], *, batch_dims: int, **params: Param) -> tuple[Any, int]:
    values, keys = operands
    values_axis, keys_axis = axes
    size = keys.shape[keys_axis] if values_axis is None else values.shape[values_axis]
    if keys_axis is None:  # the groups are the same, so the batch becomes one more axis of the values
        end = keys.ndim
        total = bind_by_key(jnp.moveaxis(values, values_axis or 0, end), keys, batch_dims=batch_dims, **params)
        return total, batch_dims + 1
    if values_axis is None:
        placement, layout = params["placement"], params["layout"]
        (values,) = bind_map(
            lambda row: [jnp.broadcast_to(row[None], (size, *row.shape))], [values], placement, layout, name="repeat"
        )
        values_axis = 1
    values, keys = jnp.moveaxis(values, values_axis, 1), jnp.moveaxis(keys, keys_axis, 1)
    return bind_by_key(values, keys, batch_dims=batch_dims + 1, **params), 0


batching.primitive_batchers[by_key_p] = _batch


def group_rows(keys: jax.Array, mask: jax.Array | None, num_keys: int) -> jax.Array:
    """Keys of the rows; absent clients get a key that belongs to no group."""
    if mask is None:
        return keys
    numbers = _group_numbers(keys, num_keys)
    return jnp.where(mask.reshape(mask.shape + (1,) * (keys.ndim - 1)), numbers, jnp.full_like(numbers, num_keys))
