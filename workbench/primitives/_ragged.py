"""`scan_ragged`: a local training loop for clients with different numbers of batches."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Shaped

from workbench._types import PyTree
from workbench.errors import ProgramError

State = TypeVar("State")
Output = TypeVar("Output")


def scan_ragged(
    step: Callable[[State, Any], tuple[State, Output]],
    state: State,
    batches: PyTree[Shaped[ArrayLike, " steps ..."]],
    mask: Bool[ArrayLike, " steps"] | int,
) -> tuple[State, Output]:
    """Runs `step` over the batches that `mask` marks as actual data; padding batches do not change the state.

    Clients with different numbers of batches are padded to the same number, so that one program trains them all. Each
    iteration of the `scan` is conditional (`jax.lax.cond`). With a chunk size of 1, a padding batch costs nothing.

    Args:
        step: `(state, batch) -> (state, output)`, as in `jax.lax.scan`.
        state: Pytree carried through the batches, such as the parameters and the optimizer's state.
        batches: Pytree of arrays `[steps, ...]`. Pad with copies of actual batches, because zeros can cause NaN
            gradients.
        mask: Marks the batches that are actual data: bools `[steps]`, or the number of leading batches with actual
            data.

    Returns: The final state, and the outputs of all steps, `[steps, ...]`; the outputs of padding batches are 0.

    Raises:
        ProgramError: if `mask` does not have one entry per batch.

    Example:
        >>> add = lambda total, x: (total + x, total)
        >>> total, before = scan_ragged(add, jnp.float32(0), jnp.array([1.0, 2.0, 9.0]), 2)
        >>> float(total), before.tolist()
        (3.0, [0.0, 1.0, 0.0])

    References:
        Ro, Suresh and Wu, "FedJAX: Federated learning simulation with JAX", 2021, section 3.
    """
    lengths = {jnp.shape(x)[0] if jnp.ndim(x) else None for x in jax.tree.leaves(batches)}
    present = jnp.asarray(mask)
    steps = next(iter(lengths)) if len(lengths) == 1 else None
    if present.ndim == 0 and steps is not None and not present.dtype == bool:
        present = jnp.arange(steps) < present
    if steps is None or present.shape != (steps,):
        message = (
            f"`scan_ragged` received batches with leading axes {sorted(map(str, lengths))} and a mask of shape "
            f"{present.shape}, dtype {present.dtype}. Every array of `batches` must have the same leading axis of "
            "steps. The mask is either one bool per step, or one int, the number of real batches. Stack the batches, "
            "and pass `jnp.arange(steps) < count`."
        )
        raise ProgramError(message)

    def iteration(state: State, x: tuple[Any, Any]) -> tuple[State, Output]:
        batch, is_real = x
        shapes = jax.eval_shape(step, state, batch)[1]

        def skip(state: State, batch: PyTree[Array]) -> tuple[State, Output]:
            return state, jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), shapes)

        return jax.lax.cond(is_real, step, skip, state, batch)

    return jax.lax.scan(iteration, state, (batches, present.astype(bool)))
