"""Replicated states: one row per replica, on that replica's devices."""

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from workbench._types import PyTree


def own_replicas(mesh: Mesh | None, replicas: int, axis: str) -> tuple[int, ...]:
    """Returns the replicas with a device in this process (with one host, all replicas)."""
    if mesh is None:
        return tuple(range(replicas))
    places = NamedSharding(mesh, P(axis)).addressable_devices_indices_map((replicas,)).values()
    return tuple(sorted({replica for place in places if place for replica in range(replicas)[place[0]]}))


def place_rows(tree: PyTree[Array], mesh: Mesh | None, axis: str, own: tuple[int, ...], replicas: int) -> PyTree[Array]:
    """Assembles arrays `[replicas, ...]` from the rows `[own, ...]` of this process's replicas."""
    if mesh is None:
        return jax.tree.map(jax.numpy.asarray, tree)
    sharding = NamedSharding(mesh, P(axis))
    if len(own) == replicas:
        return jax.device_put(tree, sharding)
    row_of = {replica: row for row, replica in enumerate(own)}

    def place(x: Array) -> PyTree[Array]:
        def rows(index: tuple[slice, ...] | None) -> Array:
            assert index is not None
            return x[[row_of[replica] for replica in range(replicas)[index[0]]]]

        return jax.make_array_from_callback((replicas, *x.shape[1:]), sharding, rows)

    return jax.tree.map(place, tree)


def read_rows(tree: PyTree[Array]) -> PyTree[Array]:
    """Returns the rows of all replicas as numpy arrays, on every host."""

    def read(x: object) -> np.ndarray:
        if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(read, tree)


def copy_to_replicas(tree: PyTree[Array], replicas: int, mesh: Mesh | None, axis: str) -> PyTree[Array]:
    """Copies every array to each replica; keeps the array's sharding over other mesh axes."""

    def copy(x: Array) -> Array:
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            data = copy(jax.random.key_data(x))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
        if mesh is None:
            return jax.numpy.broadcast_to(x[None], (replicas, *x.shape))
        sharding = getattr(x, "sharding", None)
        spec = sharding.spec if isinstance(sharding, NamedSharding) and sharding.mesh == mesh else P()
        spec = P(*(None if entry == axis else entry for entry in spec))
        rows = np.broadcast_to(np.asarray(x)[None], (replicas, *x.shape))
        return jax.make_array_from_callback(rows.shape, NamedSharding(mesh, P(axis, *spec)), lambda index: rows[index])

    return jax.tree.map(lambda x: copy(x if isinstance(x, jax.Array) else jax.numpy.asarray(x)), tree)


def first_rows(tree: PyTree[Array], mesh: Mesh | None, axis: str) -> PyTree[Array]:
    """Returns the common value of all rows, without communication."""

    def first(rows: PyTree[Array]) -> PyTree[Array]:
        return jax.tree.map(lambda x: x[0], rows)

    if mesh is None:
        return first(tree)
    first_row = jax.shard_map(first, mesh=mesh, in_specs=P(axis), out_specs=P(), axis_names={axis}, check_vma=False)
    return jax.jit(first_row)(tree)
