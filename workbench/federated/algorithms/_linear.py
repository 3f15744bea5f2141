"""Power iteration and Newton's method on data that stay with the clients."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from workbench._types import PyTree
from workbench.federated.algorithms._algorithm import Algorithm, Loss
from workbench.federated.algorithms._local import split_weight
from workbench.federated.algorithms._types import ClientBatches, Metrics
from workbench.primitives import broadcast, map_fn, program, reduce_sum, reduce_weighted_mean


def power_iteration(*, clients: int) -> Algorithm:
    """Finds the first principal direction of rows that are spread over clients.

    In a round, every client receives one vector and sends one vector; the sum of the sent vectors is Σ Aᵢᵀ (Aᵢ v).

    Args:
        clients: Number of clients with rows.

    Returns:
        The algorithm. The state is a unit vector `[features]`. A round takes rows `[clients, rows, features]` and
        returns the metric `eigenvalue`, the Rayleigh quotient of Σ AᵢᵀAᵢ at the vector before the round.

    Example:
        >>> algorithm = power_iteration(clients=2)
        >>> v, metrics = algorithm.round(algorithm.init(jnp.array([1.0, 0.0])), jnp.array([[[3.0, 0.0]], [[0.0, 1.0]]]))
        >>> v.tolist(), float(metrics["eigenvalue"])
        ([1.0, 0.0], 9.0)

    References:
        Golub and Van Loan, "Matrix Computations", section 7.3.1.
    """

    @program(clients=clients)
    def power_round(v: object, rows: PyTree[Array]) -> tuple[Any, Metrics]:
        image = reduce_sum(map_fn(lambda v, a: a.T @ (a @ v), (broadcast(v), rows)))
        return image / jnp.linalg.norm(image), {"eigenvalue": v @ image}

    return Algorithm(
        name="power iteration", init=lambda v: v / jnp.linalg.norm(v), round=power_round, params_of=lambda v: v
    )


def newton(loss: Loss, *, clients: int, ridge: float = 0.0) -> Algorithm:
    """Runs Newton's method on the clients' mean loss, by differentiating the program.

    In a round, every client receives the parameters and sends a gradient and a Hessian `[features, features]`.
    Gradients and Hessians are summed because the derivative of `broadcast` is a reduction.

    Args:
        loss: `loss(params, batch)`, a scalar that is twice differentiable.
        clients: Number of clients.
        ridge: Strength of an added `ridge/2 ‖w‖²`, which keeps the Hessian invertible.

    Returns:
        The algorithm. The state is the parameters, which are a vector `[features]` or a pytree of `features` numbers,
        such as a small model. A round takes one batch per client, with leaves `[clients, ...]`. An optional entry
        `weight` contains the clients' weights. The round returns the metrics `loss` and `gradient_norm`, both at the
        parameters before the round.

    Example:
        >>> algorithm = newton(lambda w, x: ((w - x) ** 2).sum(), clients=2)
        >>> w, _ = algorithm.round(algorithm.init(jnp.zeros(1)), jnp.array([[1.0], [3.0]]))
        >>> w.tolist()  # one step solves a quadratic
        [2.0]

    References:
        Chu et al., NIPS 2006, section 4; derivatives: Rush et al., "Federated Automatic Differentiation",
        arXiv 2301.07806.
    """

    def newton_round(params: PyTree[Array], client_batches: ClientBatches) -> tuple[Any, Metrics]:
        w, unravel = ravel_pytree(params)

        @program(clients=clients)
        def mean_loss(w: Float[Array, " features"], client_batches: ClientBatches) -> Float[Array, ""]:
            batches, weight = split_weight(client_batches, clients)
            losses = map_fn(lambda w, batch: loss(unravel(w), batch), (broadcast(w), batches))
            return reduce_weighted_mean(losses, weight) + ridge / 2 * (w @ w)

        value, gradient = jax.value_and_grad(mean_loss)(w, client_batches)
        hessian = jax.hessian(mean_loss)(w, client_batches)
        metrics = {"loss": value, "gradient_norm": jnp.sqrt(gradient @ gradient)}
        return unravel(w - jnp.linalg.solve(hessian, gradient)), metrics

    return Algorithm(name="Newton", init=lambda w: w, round=newton_round, params_of=lambda w: w)
