"""Client data that is distributed over hosts."""

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workbench._types import PyTree
from workbench.errors import MeshError
from workbench.primitives import check_mesh


def from_local_clients(rows: PyTree[Array], on: Mesh | None = None, *, axis: str = "clients") -> PyTree[Array]:
    """Assembles global arrays from the rows of each host's clients, without communication.

    Args:
        rows: A pytree of arrays `[clients of this host, ...]`. Every host must have the same number of clients. The
            result orders the clients by `jax.process_index()`.
        on: The mesh of all hosts' devices. Default: the mesh set by `jax.set_mesh`.
        axis: The clients' mesh axis.

    Returns:
        The same pytree with arrays `[clients of all hosts, ...]`, sharded over `axis`.

    Raises:
        MeshError: if there is no mesh, the mesh has no such axis, or a host's clients do not divide evenly among its
            devices.

    Example:
        >>> rows = from_local_clients(np.ones((8, 3), np.float32), wb.make_mesh(clients=8))
        >>> rows.shape, len(rows.addressable_shards)
        ((8, 3), 8)
    """
    check_mesh("from_local_clients", on)
    mesh = jax.sharding.get_mesh() if on is None else on
    if mesh.empty or axis not in mesh.shape:
        message = (
            f"`from_local_clients` cannot spread clients over the mesh axis {axis!r}, because the mesh has the axes "
            f"{list(mesh.shape)}. Every host's clients are placed on its own devices along that axis: pass `on=` or "
            "`axis=`, or call it under `jax.set_mesh(mesh)`."
        )
        raise MeshError(message)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    hosts = jax.process_count()
    shares = mesh.shape[axis] // hosts
    uneven = sorted({len(leaf) for leaf in jax.tree.leaves(rows) if len(leaf) % max(shares, 1)})
    if mesh.shape[axis] % hosts or uneven:
        message = (
            f"`from_local_clients` was given {uneven or 'some'} clients on host {jax.process_index()} of {hosts}, but "
            f"the mesh axis {axis!r} has {mesh.shape[axis]} devices. Every host's clients must divide evenly among its "
            "devices: pad the clients (see `workbench.federated.data`), or choose a mesh axis whose size "
            "divides the number of clients."
        )
        raise MeshError(message)

    def place(leaf: object) -> jax.Array:
        local = np.asarray(leaf)
        return jax.make_array_from_process_local_data(sharding, local, (len(local) * hosts, *local.shape[1:]))

    return jax.tree.map(place, rows)
