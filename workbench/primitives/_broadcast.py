"""`broadcast`: a value at the server becomes one row per client."""

import functools
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from workbench import _jax_compat
from workbench.errors import PlacementError
from workbench.mesh import Layout, Placement, find_layout, resolve, reveal, spread
from workbench.primitives._checks import as_arrays

broadcast_p = Primitive("broadcast")


def broadcast(x: Any, *, to: str | None = None, at: str | None = None, mesh: Any = None) -> Any:
    """Sends a value from the server to every client.

    Moves the bytes of `x` once to every client (under a mesh: once to every device that holds some).

    Args:
        x: Pytree of arrays `[*shape]`, at the server.
        to: Name of the placement that receives it; needed only where there are several. A placement inside others
            is reached through these: with `{"pods": 4, "clients": 16}`, `to="clients"` gives `[4, 16, *shape]`.
        at: Name of an outer placement where `x` already is: `broadcast(x, at="pods", to="clients")` sends the value
            of each pod, `[4, *shape]`, to the clients of that pod.
        mesh: Mesh to spread the clients over, instead of the one of `jax.set_mesh`.

    Returns:
        The same pytree, each leaf `[clients, *shape]`.

    Raises:
        PlacementError: outside of a program, or for an unknown or ambiguous placement.
        ProgramError: if a leaf is not an array.

    Example:
        >>> with program(clients=3):
        ...     broadcast(jnp.float32(2)).tolist()
        [2.0, 2.0, 2.0]

    References:
        DrJAX (2024), section 3; its transpose is `reduce_sum` (arXiv 2301.07806).
    """
    from workbench.primitives._map import map_fn  # map_fn broadcasts what a client function closes over

    placement, outer = resolve("broadcast", to)
    if at is not None and at not in [p.name for p in outer]:
        message = (
            f'`broadcast` was given at="{at}" and to="{placement.name}", but "{at}" is not outside of '
            f'"{placement.name}" here. '
            "A value can only go from an outer placement to an inner one: the outer placements are "
            f"{[p.name for p in outer]}; leave `at` out to send a value of the server."
        )
        raise PlacementError(message)
    if outer:
        rest_at = None if at == outer[0].name else at
        start = x if at is not None else broadcast(x, to=outer[0].name, mesh=mesh)
        inner = [p.name for p in outer[1:]]
        return map_fn(
            lambda row: broadcast(row, to=placement.name, at=rest_at if rest_at in inner else None, mesh=mesh),
            (start,),
            over=outer[0].name,
        )
    leaves, structure = as_arrays("broadcast", "x", x)
    layout = find_layout(placement, mesh)
    return structure.unflatten([bind_broadcast(reveal(leaf, layout), placement, layout) for leaf in leaves])


def bind_broadcast(x: Any, placement: Placement, layout: Layout | None) -> Any:
    """Binds one array."""
    with jax.named_scope(f"wb.broadcast[{placement.name}]"):
        return broadcast_p.bind(x, placement=placement, layout=layout)


def rows_of(aval: Any, placement: Placement, layout: Layout | None) -> Any:
    """The type of one row per client of something of type `aval`."""
    if layout is None:
        return _jax_compat.add_leading_axis(aval, placement.size, None)
    return _jax_compat.add_leading_axis(aval, placement.size, layout.explicit_axes, layout.mesh)


def typed(x: Any, layout: Layout | None) -> Any:
    """`x` with the explicit type of its layout; under Auto axes and without a mesh nothing changes."""
    if layout is None or not layout.explicit:
        return x
    spec = jax.typeof(x).sharding.spec
    return x if len(spec) and spec[0] == layout.entry else spread(x, layout)


def _evaluate(x: Any, *, placement: Placement, layout: Layout | None) -> Any:
    x = x if isinstance(x, jax.Array) else jax.numpy.asarray(x)
    return spread(jax.numpy.broadcast_to(x[None], (placement.size, *x.shape)), layout)


@broadcast_p.def_impl
def _now(x: Any, *, placement: Placement, layout: Layout | None) -> Any:
    if layout is not None:
        return _evaluate(x, placement=placement, layout=layout)
    return _compiled(x, placement)


@functools.partial(jax.jit, static_argnums=1)
def _compiled(x: Any, placement: Placement) -> Any:
    return _evaluate(x, placement=placement, layout=None)


@broadcast_p.def_abstract_eval
def _type(x: Any, *, placement: Placement, layout: Layout | None) -> Any:
    return rows_of(x, placement, layout)


mlir.register_lowering(broadcast_p, mlir.lower_fun(_evaluate, multiple_results=False))


# The transpose of sending one value to all is adding up what comes back from all.
def _transpose(cotangent: Any, x: Any, *, placement: Placement, layout: Layout | None) -> list[Any]:
    from workbench.primitives._reduce import bind_sum  # each is the other's transpose

    if isinstance(cotangent, ad.Zero):
        return [_jax_compat.zero_cotangent(x.aval)]
    return [bind_sum(cotangent, placement, layout)]


ad.deflinear2(broadcast_p, _transpose)


def _batch(operands: Any, axes: Any, *, placement: Placement, layout: Layout | None) -> tuple[Any, int]:
    (x,), (axis,) = operands, axes
    return bind_broadcast(x, placement, layout), axis + 1


batching.primitive_batchers[broadcast_p] = _batch
