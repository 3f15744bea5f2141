"""`Replicator` runs code written for one replica on every replica of a mesh, in one program."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from workbench._types import PyTree
from workbench.errors import DataError, MeshError, PlacementError
from workbench.plan import jit
from workbench.primitives import check_mesh, map_fn, program
from workbench.replicate._context import InputContext, ReplicaContext
from workbench.replicate._optimizer import wrap_optimizer
from workbench.replicate._step import ReplicaStep


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


class ReplicaInputs:
    """Stacks the batches of the iterators that `input_fn` returned for this host's replicas."""

    def __init__(self, input_fn: Callable, num_replicas: int, replicas: Sequence[int] | None = None) -> None:
        self.name = getattr(input_fn, "__name__", type(input_fn).__name__)
        self.own = tuple(range(num_replicas)) if replicas is None else tuple(replicas)
        sources = {i: input_fn(InputContext(i, num_replicas)) for i in self.own}
        wrong = [i for i, source in sources.items() if not hasattr(source, "__iter__")]
        if wrong:
            message = (
                f"`{self.name}` returned an object of type {type(sources[wrong[0]]).__name__} for replicas {wrong}, "
                "which is not an iterator. Each replica reads its own batches, one per step: return an iterator of "
                "batches, or use a generator function."
            )
            raise DataError(message)
        self.sources: list[Iterator[Any]] = [iter(source) for source in sources.values()]

    def next_batch(self, step: int, steps: int) -> PyTree[Array]:
        """Stacks the batches of one step into numpy arrays `[replicas of this host, *shape]`.

        Raises:
            DataError: if a replica's iterator is exhausted, or its batch has a different structure, shape or dtype; the
                message names these replicas.
        """
        missing = object()
        batches = [next(source, missing) for source in self.sources]
        ended = [i for i, batch in zip(self.own, batches, strict=True) if batch is missing]
        if ended:
            message = (
                f"`{self.name}` had no batch for step {step} of {steps} on replicas {ended} of {len(batches)}. Every "
                "replica needs a batch in every step, otherwise the other replicas would wait for it: yield more "
                f"batches (repeat the data), give all replicas the same number of batches, or run {step} steps."
            )
            raise DataError(message)
        kinds = [_described(batch) for batch in batches]
        unlike = [place for place, kind in enumerate(kinds) if kind != kinds[0]]
        if unlike:
            replicas = [self.own[place] for place in unlike]
            message = (
                f"`{self.name}` returned batches that differ in form at step {step}: replica {self.own[0]} has "
                f"{kinds[0]}, but replicas {replicas} have {', '.join(kinds[place] for place in unlike[:3])}. All "
                "replicas run one program, so their batches must have the same structure, shapes and dtypes: pad the "
                "smaller ones, or drop the remainder."
            )
            raise DataError(message)
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *batches)


def _described(batch: PyTree[Array]) -> str:
    kinds = jax.tree.map(lambda x: f"{jax.numpy.result_type(x)}{list(jax.numpy.shape(x))}", batch)
    return str(kinds).replace("'", "")


class Replicator:
    """Runs code that is written for one replica on all replicas.

    A replica is a client of the placement `axis`. On a mesh, each replica has one position along that axis. The other
    axes are the replica's devices: inside `step_fn`, shard the model over them as you would without replicas. Without a
    mesh, one device computes all replicas, with the same results.

    Args:
        on: Mesh with the axis `axis`, whose type is Auto or Explicit.
        replicas: Number of replicas. Default: the size of the mesh axis. A larger number of replicas is distributed
            evenly over the positions, and the compiler then chooses the collectives.
        axis: Name of the replicas' mesh axis.

    Raises:
        MeshError: if the mesh has no such axis, or if the axis size does not divide the number of replicas.
        PlacementError: if there is neither a mesh nor a positive number of replicas.

    Example:
        >>> def step(ctx, batch, total):
        ...     return total + ctx.all_reduce(batch, "sum"), ()
        >>> replicator = Replicator(replicas=4)
        >>> total, _ = replicator.run(step, lambda ctx: iter([float(ctx.replica_id)] * 2), 0.0, 2)
        >>> float(total)  # two steps of 0 + 1 + 2 + 3
        12.0

    References:
        Buchlovsky et al., "TF-Replicator: Distributed Machine Learning for Researchers", 2019.
    """

    def __init__(self, on: Mesh | None = None, *, replicas: int | None = None, axis: str = "replicas") -> None:
        check_mesh("Replicator", on)
        positions = None if on is None else _positions(on, axis)
        count = replicas if replicas is not None else positions
        if count is None or not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            message = (
                f"`Replicator` was given replicas={replicas!r} and on={on!r}. The number of replicas is a positive "
                "int known before tracing: pass `replicas=8`, or a mesh whose axis has that size, such as "
                f"`workbench.make_mesh({axis}=8)`."
            )
            raise PlacementError(message)
        if positions is not None and count % positions:
            message = (
                f"`Replicator` was given {count} replicas for the mesh axis {axis!r} of size {positions}, which does "
                f"not divide {count}. Every position of the axis needs the same number of replicas: use a multiple of "
                f"{positions}, or a mesh whose axis {axis!r} divides {count}."
            )
            raise MeshError(message)
        self.mesh: Mesh | None = on
        self.num_replicas: int = int(count)
        self.axis: str = axis
        self.context: ReplicaContext = ReplicaContext(self.num_replicas, axis)

    def __repr__(self) -> str:
        return f"Replicator({self.axis}={self.num_replicas}, on={None if self.mesh is None else dict(self.mesh.shape)})"

    def step(self, step_fn: Callable, *, check_state: bool = True) -> Callable:
        """Creates a program of one step on all replicas, for `workbench.jit`, `jax.grad` and views.

        Args:
            step_fn: `step_fn(ctx, batch, state)` for one replica; returns `(state, metrics)`.
            check_state: Whether to check at trace time that the returned state is identical on all replicas. With
                False, the caller guarantees this.

        Returns:
            A function that takes the batches `[replicas, ...]` and the states `[replicas, ...]` (see `replicate`), and
            returns the new states and the metrics, `[replicas, ...]`. The function's only collectives are those that
            `step_fn` calls. Use the function under `jax.set_mesh(mesh)`.

        Raises:
            ProgramError: at trace time, if replicas would call different collectives, if the state may differ between
                replicas, or if `step_fn` raises or returns a different structure.
        """
        replica_step = ReplicaStep(step_fn, self.context, check_state)

        @program(placements={self.axis: self.num_replicas})
        @functools.wraps(step_fn)
        def replicated(batch: PyTree[Array], state: PyTree[Array]) -> PyTree[Array]:
            return map_fn(replica_step, (batch, state), over=self.axis)

        del replicated.__wrapped__  # its arguments have been replaced
        return replicated

    def replicate(self, state: PyTree[Array]) -> PyTree[Array]:
        """Copies a state to every replica (leaves `[replicas, ...]`); keeps the sharding over other mesh axes."""
        return copy_to_replicas(state, self.num_replicas, self.mesh, self.axis)

    def value(self, states: PyTree[Array]) -> PyTree[Array]:
        """Returns the common state of all replicas from a replicated state, without communication."""
        return first_rows(states, self.mesh, self.axis)

    def run(
        self, step_fn: Callable, input_fn: Callable, state: PyTree[Array], steps: int, *, check_state: bool = True
    ) -> tuple[Any, Any]:
        """Runs `steps` steps on all replicas; compiles once.

        With many hosts (`jax.distributed`, and a mesh of all hosts' devices), every host makes the same call. Each host
        calls `input_fn` for the replicas that have a device there.

        Args:
            step_fn: `step_fn(ctx, batch, state)` for one replica; returns `(state, metrics)`.
            input_fn: `input_fn(ctx)` for one replica; returns an iterator of its batches.
            state: Initial state of all replicas, a pytree of arrays.
            steps: Number of steps.
            check_state: As in `step`.

        Returns: The state after the last step, and the metrics as numpy arrays `[steps, replicas, ...]` (None if there
            were no steps).

        Raises:
            PlacementError: if `steps` is not an int of at least 0.
            ProgramError: as in `step`, in the first step.
            DataError: if a replica has no batch for a step, or a batch with a different structure, shape or dtype.
        """
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            message = (
                f"`run` was given steps={steps!r}. `steps` is the number of steps that all replicas take together, an "
                "int of at least 0: pass, for example, `steps=100`."
            )
            raise PlacementError(message)
        replicas = own_replicas(self.mesh, self.num_replicas, self.axis)
        inputs = ReplicaInputs(input_fn, self.num_replicas, replicas)
        metric_rows = []
        with contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
            states = self.replicate(state)
            call = jit(self.step(step_fn, check_state=check_state))
            for step in range(steps):
                batch = place_rows(inputs.next_batch(step, steps), self.mesh, self.axis, replicas, self.num_replicas)
                states, metrics = call(batch, states)
                # One step at a time: simulated devices deadlock when collectives of several steps run at once.
                metric_rows.append(read_rows(metrics))
                jax.block_until_ready(states)
            final = self.value(states)
        return final, (jax.tree.map(lambda *rows: np.stack(rows), *metric_rows) if metric_rows else None)

    def wrap_optimizer(
        self, optimizer: optax.GradientTransformation, *, accumulate: int = 1
    ) -> optax.GradientTransformationExtraArgs:
        """Calls `workbench.replicate.wrap_optimizer` for the replicas of this replicator."""
        return wrap_optimizer(self.context, optimizer, accumulate=accumulate)


def _positions(mesh: Mesh, axis: str) -> int:
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if types.get(axis, AxisType.Manual) is AxisType.Manual:
        message = (
            f"`Replicator` was given a mesh with the axes {dict(mesh.shape)}, but the axis of the replicas is "
            f"{axis!r}. Replicas are placed along one Auto or Explicit axis of the mesh: pass its name as `axis=`, or "
            f"create one with `workbench.make_mesh({axis}=8)`."
        )
        raise MeshError(message)
    return mesh.shape[axis]
