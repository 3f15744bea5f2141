"""The context of one replica: its number, the number of replicas, and collectives."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from workbench._types import PyTree
from workbench.errors import PlacementError, ProgramError


def take_from(x: jax.Array, source: int, axis: str) -> Array:
    """Broadcasts the value of replica `source` with one all-reduce."""
    dtype = x.dtype
    counted = x.astype(jnp.int8) if dtype == jnp.bool_ else x
    is_source = jax.lax.axis_index(axis) == source
    return jax.lax.psum(jnp.where(is_source, counted, jnp.zeros_like(counted)), axis).astype(dtype)


def permute(x: object, pairs: Sequence[tuple[int, int]], count: int, axis: str) -> PyTree[Array]:
    """`jax.lax.ppermute` for partial permutations, which JAX 0.10 does not support under `vmap`."""
    target_of = dict(pairs)
    silent = [i for i in range(count) if i not in target_of]
    deaf = [i for i in range(count) if i not in target_of.values()]
    target_of |= {i: i for i in silent if i in deaf}  # sending to itself costs nothing
    rest = zip([i for i in silent if i not in deaf], [i for i in deaf if i not in silent], strict=True)
    moved = jax.lax.ppermute(x, axis, sorted((target_of | dict(rest)).items()))
    if not deaf:
        return moved
    receives = jnp.asarray([i not in deaf for i in range(count)])[jax.lax.axis_index(axis)]
    return jnp.where(receives, moved, jnp.zeros_like(moved))


def extreme(x: object, axis: str, reduce: Callable) -> Array:
    """`jax.lax.pmin` or `pmax` with the derivative of the extreme value, shared among ties."""

    @jax.custom_jvp
    def call(value: object) -> PyTree[Array]:
        return reduce(value, axis)

    @call.defjvp
    def _jvp(primals: PyTree[Array], tangents: PyTree[Array]) -> tuple[Array, Array]:
        (value,), (tangent,) = primals, tangents
        result = call(value)
        holds = (value == result).astype(tangent.dtype)
        return result, jax.lax.psum(tangent * holds, axis) / jax.lax.psum(holds, axis)

    return call(x)


REDUCE: dict[str, Callable[[Any, str], Any]] = {
    "sum": jax.lax.psum,
    "mean": jax.lax.pmean,
    "min": lambda x, axis: extreme(x, axis, jax.lax.pmin),
    "max": lambda x, axis: extreme(x, axis, jax.lax.pmax),
    "first": lambda x, axis: take_from(x, 0, axis),
}


@dataclasses.dataclass(frozen=True, slots=True)
class InputContext:
    """The context that `input_fn` receives, for one replica. Both fields are Python ints."""

    replica_id: int
    num_replicas: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaContext:
    """The context that `step_fn` receives; its methods are the collectives between replicas.

    Each method costs one collective per array. Every replica must call the same methods in the same order. Values that
    may differ between replicas (batches, `replica_id` and values computed from them) must therefore not control whether
    a collective runs.
    """

    num_replicas: int
    axis: str

    @property
    def replica_id(self) -> jax.Array:
        """The number of this replica, a traced int32 scalar; do not use it in a Python `if`."""
        self._check_inside("replica_id")
        return jnp.asarray(jax.lax.axis_index(self.axis), jnp.int32)

    def all_reduce(
        self, tree: PyTree[Array], op: Literal["sum", "mean", "min", "max", "first"] = "sum"
    ) -> PyTree[Array]:
        """Combines all replicas' values; every replica receives the result. Costs one all-reduce per array.

        Args:
            tree: This replica's pytree of arrays.
            op: How to combine the values; "first" takes the values of replica 0. All have derivatives.

        Returns:
            The same pytree, identical on all replicas.

        Raises:
            PlacementError: for an unknown `op`, or if called outside `step_fn`.
            ProgramError: if a leaf is not an array.

        Example:
            >>> from workbench.replicate import Replicator
            >>> def step(ctx, batch, state):
            ...     return state, ctx.all_reduce(batch, "mean")
            >>> program = Replicator(replicas=2).step(step)
            >>> program(jnp.array([1.0, 3.0]), ())[1].tolist()
            [2.0, 2.0]
        """
        if op not in REDUCE:
            message = (
                f"`all_reduce` was given op={op!r}, which is not a way to combine replicas. Values of "
                f"{self.num_replicas} replicas can be combined by {', '.join(map(repr, REDUCE))}: use one of "
                "these, or `merge_call(fn, tree)` with a function of the values of all replicas."
            )
            raise PlacementError(message)
        return self._each("all_reduce", lambda x: REDUCE[op](x, self.axis), tree)

    def broadcast(self, tree: PyTree[Array], source: int = 0) -> PyTree[Array]:
        """Returns the values of replica `source` on every replica. Costs one all-reduce per array.

        Raises:
            PlacementError: if there is no replica `source`, or if called outside `step_fn`.
            ProgramError: if a leaf is not an array.
        """
        self._check_replicas("broadcast", "source", [source])
        return self._each("broadcast", lambda x: take_from(x, source, self.axis), tree)

    def all_gather(self, tree: PyTree[Array]) -> PyTree[Array]:
        """Returns the values of all replicas on every replica; each leaf is `[replicas, *shape]`.

        Costs one all-gather per array.

        Raises:
            PlacementError: outside `step_fn`.
            ProgramError: if a leaf is not an array.
        """
        return self._each("all_gather", lambda x: jax.lax.all_gather(x, self.axis), tree)

    def reduce_scatter(self, tree: PyTree[Array], op: Literal["sum", "mean"] = "sum") -> PyTree[Array]:
        """Combines all replicas' values; each replica receives its part along the leading axis.

        Args:
            tree: This replica's pytree of arrays `[n, ...]`; `n` is a multiple of the number of replicas.
            op: How to combine the values.

        Returns:
            The same pytree, each leaf `[n / replicas, ...]`: replica `i` receives the i-th part.

        Raises:
            PlacementError: for an unknown `op`, for arrays that cannot be split evenly, or if called outside `step_fn`.
            ProgramError: if a leaf is not an array.
        """
        if op not in ("sum", "mean"):
            message = (
                f"`reduce_scatter` was given op={op!r}. JAX's reduce-scatter (`jax.lax.psum_scatter`) only supports "
                'sums, so `op` must be "sum" or "mean": for other operations, use `all_reduce` and keep the part '
                "for `replica_id`."
            )
            raise PlacementError(message)
        self._check_parts("reduce_scatter", tree, 0)
        share = 1 if op == "sum" else self.num_replicas

        def scatter(x: object) -> PyTree[Array]:
            part = jax.lax.psum_scatter(x, self.axis, tiled=True)
            return part if share == 1 else part / jnp.asarray(share, part.dtype)

        return self._each("reduce_scatter", scatter, tree)

    def all_to_all(self, tree: PyTree[Array], split_axis: int = 0, concat_axis: int = 0) -> PyTree[Array]:
        """Sends part i of every array along `split_axis` to replica i; concatenates the received parts.

        Raises:
            PlacementError: for arrays that cannot be split into equal parts, or if called outside `step_fn`.
            ProgramError: if a leaf is not an array.
        """
        self._check_parts("all_to_all", tree, split_axis)
        return self._each(
            "all_to_all", lambda x: jax.lax.all_to_all(x, self.axis, split_axis, concat_axis, tiled=True), tree
        )

    def permute(self, tree: PyTree[Array], to: Mapping[int, int] | int) -> PyTree[Array]:
        """Sends values to other replicas; replicas without a sender receive zeros.

        Args:
            tree: This replica's pytree of arrays.
            to: Maps each sender to its receiver; alternatively, an int: the distance to the receiver in the ring of
                replicas.

        Raises:
            PlacementError: for unknown replicas or replicas that receive twice, or if called outside `step_fn`.
            ProgramError: if a leaf is not an array.
        """
        count = self.num_replicas
        pairs = [(i, (i + to) % count) for i in range(count)] if isinstance(to, int) else list(to.items())
        self._check_replicas("permute", "to", [replica for pair in pairs for replica in pair])
        receivers = [receiver for _, receiver in pairs]
        twice = sorted({r for r in receivers if receivers.count(r) > 1})
        if twice:
            message = (
                f"`permute` was given to={to!r}, where replicas {twice} receive from more than one sender. A "
                "permutation gives each replica at most one value: send to different receivers, or combine with "
                "`all_reduce`."
            )
            raise PlacementError(message)
        return self._each("permute", lambda x: permute(x, pairs, count, self.axis), tree)

    def merge_call(self, fn: Callable[[Any], Any], tree: PyTree[Array]) -> PyTree[Array]:
        """Calls `fn` with the values of all replicas; each leaf is `[replicas, *shape]`.

        Every replica receives the result. Costs one all-gather per array, and `fn` runs on every replica.

        Raises:
            PlacementError: outside `step_fn`.
            ProgramError: if a leaf is not an array.
        """
        return fn(self.all_gather(tree))

    def _each(self, operation: str, fn: Callable, tree: PyTree[Array]) -> PyTree[Array]:
        self._check_inside(operation)
        paths, structure = jax.tree_util.tree_flatten_with_path(tree)
        wrong = [f"tree{jax.tree_util.keystr(path)} = {leaf!r}"[:80] for path, leaf in paths if not _is_array(leaf)]
        if wrong:
            message = (
                f"`{operation}` was given {len(wrong)} non-array value{'s' * (len(wrong) != 1)}: "
                f"{'; '.join(wrong[:5])}. Only arrays and numbers can be sent between replicas: remove the other "
                "values from the pytree, and close over them."
            )
            raise ProgramError(message)
        with jax.named_scope(operation):
            return jax.tree.unflatten(structure, [fn(jnp.asarray(leaf)) for _, leaf in paths])

    def _check_inside(self, operation: str) -> None:
        try:
            jax.lax.axis_index(self.axis)
        except NameError:
            message = (
                f"`{operation}` of a replica context was used outside the replicas: the axis {self.axis!r} of its "
                f"{self.num_replicas} replicas is not open here. A context is valid only during the call of `step_fn`: "
                "use it inside `step_fn`, and run `step_fn` with `Replicator.run` or `Replicator.step`."
            )
            raise PlacementError(message) from None

    def _check_replicas(self, operation: str, argument: str, replicas: Sequence[Any]) -> None:
        wrong = [r for r in replicas if not isinstance(r, int) or not 0 <= r < self.num_replicas]
        if wrong:
            message = (
                f"`{operation}` was given replicas {wrong} in `{argument}`, but there are {self.num_replicas} "
                f"replicas. The number of a replica is a Python int from 0 to {self.num_replicas - 1}, known when the "
                "step is traced: use such numbers, or `all_gather` the values and choose from them."
            )
            raise PlacementError(message)

    def _check_parts(self, operation: str, tree: PyTree[Array], axis: int) -> None:
        count = self.num_replicas
        wrong = [
            f"tree{jax.tree_util.keystr(path)} of shape {tuple(jnp.shape(leaf))}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
            if _is_array(leaf) and (jnp.ndim(leaf) <= axis or jnp.shape(leaf)[axis] % count)
        ]
        if wrong:
            message = (
                f"`{operation}` was given {', '.join(wrong[:8])}, but axis {axis} is split into {count} equal parts, "
                f"one per replica. The size of this axis must be a multiple of {count}: pad the arrays, split them "
                "along another "
                "axis, or use `all_reduce`."
            )
            raise PlacementError(message)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, bool | int | float | complex) or hasattr(leaf, "dtype")
