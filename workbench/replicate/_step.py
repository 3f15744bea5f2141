"""One replica's step as a function of arrays: traced, checked and computed."""

from collections.abc import Callable

import jax
from jax import Array
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from workbench._types import PyTree
from workbench.errors import ProgramError, WorkbenchError
from workbench.replicate._context import ReplicaContext
from workbench.replicate._order import Uneven, read_order


class ReplicaStep:
    """Checks that all replicas call the same collectives, then calls `step_fn`."""

    def __init__(self, step_fn: Callable, ctx: ReplicaContext, check_state: bool) -> None:
        self.step_fn, self.ctx, self.check_state = step_fn, ctx, check_state
        self.__name__ = getattr(step_fn, "__name__", type(step_fn).__name__)

    def __call__(self, batch: PyTree[Array], state: PyTree[Array]) -> PyTree[Array]:
        closed, shapes = self._trace(batch, state)
        leaves, in_tree = jax.tree.flatten((batch, state))
        batch_leaves = jax.tree.structure(batch).num_leaves
        self._check_result(shapes, state)
        varies = [position < batch_leaves for position in range(len(leaves))]
        reading = read_order(closed, varies, self.ctx.axis)
        if reading.uneven:
            raise ProgramError(_uneven_message(self.__name__, self.ctx.num_replicas, reading.uneven))
        if self.check_state:
            self._check_equal(shapes[0], reading.varies)
        assert in_tree is not None
        return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(closed)(*leaves))

    def _trace(self, batch: PyTree[Array], state: PyTree[Array]) -> tuple[ClosedJaxpr, PyTree[Array]]:
        def call(batch: PyTree[Array], state: PyTree[Array]) -> PyTree[Array]:
            return self.step_fn(self.ctx, batch, state)

        try:
            return jax.make_jaxpr(call, return_shape=True)(batch, state)
        except WorkbenchError:
            raise
        except jax.errors.ConcretizationTypeError as error:
            message = (
                f"`{self.__name__}` was traced once for all {self.ctx.num_replicas} replicas and asked in Python for "
                f"the value of an array: {str(error).splitlines()[0]} Batches, the state and `replica_id` have no "
                "values yet while a step is traced, and a Python branch on them would give replicas different "
                "collectives. Choose between values with `jnp.where`, between computations without collectives with "
                "`jax.lax.cond`, and use Python branches only on values that are the same for all replicas, such as "
                "`ctx.num_replicas`."
            )
            raise ProgramError(message) from error

    def _check_result(self, shapes: object, state: PyTree[Array]) -> None:
        if not isinstance(shapes, tuple) or len(shapes) != 2:
            kind = f"an object of type {type(shapes).__name__}"
            form = f"a tuple of {len(shapes)}" if isinstance(shapes, tuple) else kind
            message = (
                f"`{self.__name__}` returned {form}. A step returns the new state, identical on all replicas, and "
                "its replica's metrics: return `(state, metrics)`, with `()` for no metrics."
            )
            raise ProgramError(message)
        before = _described(state)
        after = _described(shapes[0])
        wrong = [
            f"state{path}: {before.get(path, 'absent')} before, {after.get(path, 'absent')} after"
            for path in dict.fromkeys([*before, *after])
            if before.get(path) != after.get(path)
        ]
        if wrong or jax.tree.structure(state) != jax.tree.structure(shapes[0]):
            listed = (
                "; ".join(wrong[:6]) or f"{jax.tree.structure(state)} before, {jax.tree.structure(shapes[0])} after"
            )
            message = (
                f"`{self.__name__}` returned a state whose form differs from its input: {listed}. The state of one "
                "step is the input of the next step, so structure, shapes and dtypes must not change: keep them, and "
                "put other values into the metrics."
            )
            raise ProgramError(message)

    def _check_equal(self, state: PyTree[Array], varies: tuple[bool, ...]) -> None:
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
        wrong = [
            f"state{jax.tree_util.keystr(path)}"
            for path, differs in zip(paths, varies[: len(paths)], strict=True)
            if differs
        ]
        if wrong:
            message = (
                f"`{self.__name__}` returned a state that may differ between the {self.ctx.num_replicas} replicas: "
                f"{', '.join(wrong[:8])} depend on the batch or the `replica_id` of one replica. The state must be "
                "identical on all replicas: apply `ctx.all_reduce` to the gradients or statistics that determine it, "
                "return values of single replicas as metrics, or skip this check with `check_state=False`."
            )
            raise ProgramError(message)


def _described(tree: PyTree[Array]) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{jax.numpy.result_type(leaf)}{list(jax.numpy.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _uneven_message(name: str, replicas: int, uneven: tuple[Uneven, ...]) -> str:
    def text(problem: Uneven) -> str:
        if problem.kind == "cond":
            branches = " | ".join(problem.collectives)
            return f"`cond`{problem.place}, whose branches call: {branches}"
        return (
            f"`while_loop`{problem.place}, whose iterations call: {problem.collectives[0]} | {problem.collectives[1]}"
        )

    return (
        f"`{name}` lets each of its {replicas} replicas decide independently whether a collective runs: "
        f"{'; '.join(map(text, uneven))}. The condition depends on the batch or the `replica_id` of one replica, so "
        "replicas would call different collectives, wait for each other forever (a deadlock) or mix up values. All "
        "replicas must call the same collectives in the same order: move the collective out of the branch and choose "
        "with `jnp.where`, or `all_reduce` the condition first."
    )
