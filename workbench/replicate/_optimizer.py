"""An optimizer that averages the gradients of all replicas."""

import jax
import optax
from jax import Array

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.replicate._context import ReplicaContext


def wrap_optimizer(
    ctx: ReplicaContext, optimizer: optax.GradientTransformation, *, accumulate: int = 1
) -> optax.GradientTransformationExtraArgs:
    """Averages gradients over all replicas and `accumulate` calls, then applies `optimizer`.

    Each call costs one all-reduce per gradient array. Gradients are averaged over replicas before they are accumulated,
    so that the optimizer's state stays identical on all replicas. To communicate once per update, split the batch
    inside `step_fn`: average the gradients of its parts with `jax.lax.scan`, then call `update` once.

    Args:
        ctx: The `ctx` that `step_fn` receives, or the `context` of a `Replicator`.
        optimizer: Any optax optimizer.
        accumulate: Number of calls per update; the other calls return zero updates.

    Returns: An optax optimizer; its `init` works anywhere, but its `update` works only inside `step_fn`.

    Raises:
        ProgramError: if `accumulate` is not a positive int.

    Example:
        >>> from workbench.replicate import Replicator
        >>> def step(ctx, gradient, w):
        ...     optimizer = wrap_optimizer(ctx, optax.sgd(0.1))
        ...     updates, _ = optimizer.update(gradient, optimizer.init(w))
        ...     return w + updates, ()
        >>> Replicator(replicas=2).step(step)(jnp.array([1.0, 3.0]), jnp.zeros(2))[0]
        Array([-0.2, -0.2], dtype=float32)

    References:
        `optax.MultiSteps`; TF-Replicator (2019), section 4: `wrap_optimizer`.
    """
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        message = (
            f"`wrap_optimizer` was given accumulate={accumulate!r}. `accumulate` is the number of steps per update, a "
            "positive int known before tracing: pass 1 to update in every step, or for example 4 to update in every "
            "fourth step."
        )
        raise ProgramError(message)
    inner = optax.with_extra_args_support(optimizer)
    if accumulate > 1:
        inner = optax.MultiSteps(inner, every_k_schedule=accumulate).gradient_transformation()

    def update(
        updates: PyTree[Array], state: PyTree[Array], params: PyTree[Array] = None, **extra: PyTree[Array]
    ) -> PyTree[Array]:
        return inner.update(ctx.all_reduce(updates, "mean"), state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, jax.named_call(update, name="wrap_optimizer"))
