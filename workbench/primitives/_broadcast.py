"""`broadcast`: a value at the server becomes one row per client."""

from jax.sharding import AbstractMesh, Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Shaped

from workbench._types import PyTree
from workbench.errors import PlacementError
from workbench.primitives._checks import as_arrays
from workbench.primitives._layout import check_mesh, find_layout, reveal
from workbench.primitives._linear import bind_broadcast
from workbench.primitives._map import map_fn
from workbench.primitives._placement import resolve


def broadcast(
    x: PyTree[Shaped[ArrayLike, " *shape"]],
    *,
    to: str | None = None,
    at: str | None = None,
    on: Mesh | AbstractMesh | None = None,
) -> PyTree[Shaped[Array, " clients *shape"]]:
    """Sends a value from the server to every client.

    Sends the bytes of `x` once to every client or, with a mesh, once to every device that has clients.

    Args:
        x: Pytree of arrays `[*shape]`, at the server.
        to: Name of the placement that receives the value; needed only if there are several placements. A nested
            placement is reached through its outer placements: with `{"pods": 4, "clients": 16}`, `to="clients"` returns
            `[4, 16, *shape]`.
        at: Name of an outer placement that already holds `x`: `broadcast(x, at="pods", to="clients")` sends each pod's
            value, `[4, *shape]`, to the clients of that pod.
        on: Mesh to spread the clients over, instead of the mesh set by `jax.set_mesh`.

    Returns:
        The same pytree, each leaf `[clients, *shape]`.

    Raises:
        PlacementError: outside a program, or for an unknown or ambiguous placement.
        ProgramError: if a leaf is not an array.

    Example:
        >>> with program(clients=3):
        ...     broadcast(jnp.float32(2)).tolist()
        [2.0, 2.0, 2.0]

    References:
        DrJAX (2024), section 3; arXiv 2301.07806 (the transpose is `reduce_sum`).
    """
    placement, outer = resolve("broadcast", to)
    if at is not None and at not in [p.name for p in outer]:
        message = (
            f'`broadcast` was given at="{at}" and to="{placement.name}", but "{at}" is not outside "{placement.name}" '
            f"here. A value can only go from an outer placement to an inner one: the outer placements are "
            f"{[p.name for p in outer]}; omit `at` to send a server value."
        )
        raise PlacementError(message)
    if outer:
        rest_at = None if at == outer[0].name else at
        start = x if at is not None else broadcast(x, to=outer[0].name, on=on)
        return map_fn(
            lambda row: broadcast(row, to=placement.name, at=rest_at, on=on),
            (start,),
            over=outer[0].name,
        )
    leaves, structure = as_arrays("broadcast", "x", x)
    check_mesh("broadcast", on)
    layout = find_layout(placement, on)
    return structure.unflatten([bind_broadcast(reveal(leaf, layout), placement, layout) for leaf in leaves])
