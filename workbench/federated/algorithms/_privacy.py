"""Client-level differential privacy: clipped updates and Gaussian noise on the mean."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer

from workbench._types import PyTree
from workbench.errors import ProgramError, check_settings, needs_library
from workbench.federated.algorithms._aggregate import Aggregator, squared_norm, weighted_mean, wide
from workbench.federated.algorithms._types import ClientParams, Params, Weights
from workbench.primitives import emit, map_fn, reduce_sum


def gaussian_mean(
    clip: float,
    noise_multiplier: float | Array,
    *,
    expected: float | None = None,
    seed: int = 0,
    of: Aggregator | None = None,
) -> Aggregator:
    """Averages with client-level differential privacy (DP-FedAvg).

    No client changes the sum by more than `clip`. The server adds noise with standard deviation
    `noise_multiplier * clip` to each coordinate of the sum. `epsilon` computes the privacy guarantee. Emits "client
    norm", the norm before clipping. Sends as many bytes as `of`, the inner mean. All present clients have the same
    weight, because a client's weight would also be private information.

    Args:
        clip: The largest norm of one client's update, over all parameters together.
        noise_multiplier: z, the standard deviation of the noise divided by `clip`. 0 clips without noise. One compiled
            program serves all levels of a traced z; a negative traced z gives NaN instead of an error.
        expected: Mean number of clients in a round, qN. The sum is divided by this number and not by the actual number
            of clients, which is private. Default: all clients.
        seed: Seed for the noise in all rounds.
        of: The inner mean, such as `top_k_mean(0.1, memory=False)`. Default: a plain mean.

    Raises:
        ProgramError: if the clip is not positive, the multiplier is negative, or one client can contribute more than
            its own update to the inner mean. The guarantee does not apply in these cases.

    Example:
        >>> from workbench.primitives import program
        >>> with program(clients=2):
        ...     aggregator = gaussian_mean(clip=1.0, noise_multiplier=0.0)
        ...     update, _ = aggregator.combine(jnp.array([[3.0, 4.0], [0.0, 0.5]]), jnp.ones(2), aggregator.init(None))
        >>> [round(float(x), 2) for x in update]  # the first was 5 times too long
        [0.3, 0.65]

    References:
        McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018 (arXiv 1710.06963),
        Algorithm 1 with flat clipping and the fixed-denominator estimator.
    """
    inner = weighted_mean() if of is None else of
    _check_noise(clip, noise_multiplier, inner)

    def combine(update: ClientParams, weight: Weights, state: PyTree[Array]) -> tuple[Params, Any]:
        round, inner_state = state
        present = map_fn(lambda w: (w > 0).astype(w.dtype), (weight,))
        clipped = map_fn(lambda row: clip_to_norm(row, clip), (update,))
        mean, inner_state = inner.combine(clipped, present, inner_state)
        came, client_count = reduce_sum(present).astype(float), float(expected or weight.shape[0])
        z = noise_multiplier
        spread = (jnp.where(z >= 0, z, jnp.nan) if isinstance(z, Tracer) else z) * clip / client_count
        key = jax.random.fold_in(jax.random.key(seed), round)

        def noisy(x: jax.Array, number: int) -> jax.Array:
            noise = jax.random.normal(jax.random.fold_in(key, number), x.shape, x.dtype)
            return x * (came / client_count).astype(x.dtype) + jnp.asarray(spread, x.dtype) * noise

        leaves, structure = jax.tree.flatten(mean)
        noised = [noisy(leaf, number) for number, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, noised), (round + 1, inner_state)

    return Aggregator(f"Gaussian {inner.name}", lambda params: (jnp.int32(0), inner.init(params)), combine)


def _check_noise(clip: float, noise_multiplier: float | Array, inner: Aggregator) -> None:
    check_settings(
        "gaussian_mean",
        (
            clip > 0 and math.isfinite(clip),
            f"clip={clip}",
            "One client changes the sum by at most `clip`: pass a positive finite `clip`.",
        ),
        (
            isinstance(noise_multiplier, Tracer) or bool(noise_multiplier >= 0),
            f"noise_multiplier={noise_multiplier}",
            "The noise has a standard deviation of `noise_multiplier * clip`: pass a `noise_multiplier` of at least 0.",
        ),
    )
    if not inner.bounded:
        message = (
            f"`gaussian_mean` received of={inner.name!r}. With this aggregator, one client can contribute more than "
            "its clipped update, because the aggregator keeps state from earlier rounds, computes a scale from all "
            "clients, or compares their rows. The noise then gives no privacy: pass of=weighted_mean() or "
            "of=top_k_mean(..., memory=False)."
        )
        raise ProgramError(message)


def clip_to_norm(tree: PyTree[Array], limit: float | jax.Array) -> PyTree[Array]:
    """Scales a pytree down to norm `limit` if its norm is larger."""
    # The square root has no derivative at 0; an update of 0 is not scaled.
    total = squared_norm(tree)
    still = total == 0
    norm = jnp.where(still, jnp.zeros_like(total), jnp.sqrt(jnp.where(still, jnp.ones_like(total), total)))
    emit("client norm", norm)
    scale = limit / jnp.maximum(norm, jnp.full_like(norm, limit))

    def scaled(x: jax.Array) -> jax.Array:
        exact = wide(x)  # a scale in 16 bits may be too large
        return (exact * scale.astype(exact.dtype)).astype(x.dtype)

    return jax.tree.map(scaled, tree)


def epsilon(noise_multiplier: float, *, rounds: int, participation: float, delta: float) -> float:
    """Computes an upper bound on ε for (ε, δ)-differential privacy under `gaussian_mean`.

    The bound is computed by Google's `dp-accounting` (extra `privacy`), which composes privacy loss distributions
    numerically. Two data sets are neighbours if one has exactly one additional client.

    Args:
        noise_multiplier: z, as in `gaussian_mean`.
        rounds: Number of rounds.
        participation: q, the probability with which each client independently takes part in a round, as in
            `data.poisson_cohorts`. Fixed-size cohorts are a different mechanism.
        delta: δ; use a value below 1 / number of clients.

    Returns:
        ε, which is infinite without noise and 0 without rounds.

    Raises:
        ProgramError: if a number is out of range, or the accountant cannot compose the resulting privacy loss.
        MissingDependencyError: if `dp-accounting` is not installed.

    Example:
        >>> round(epsilon(1.0, rounds=100, participation=0.1, delta=1e-5), 1)
        7.0

    References:
        Koskela, Jälkö and Honkela, "Computing Tight Differential Privacy Guarantees Using FFT", AISTATS 2020
        (arXiv 1906.03049); Doroshenko et al., "Connect the Dots", PoPETs 2022 (arXiv 2207.04380).
    """
    check_settings(
        "epsilon",
        (noise_multiplier >= 0, f"noise_multiplier={noise_multiplier}", "`noise_multiplier` must be at least 0."),
        (rounds >= 0, f"rounds={rounds}", "`rounds` must be at least 0."),
        (
            0 < participation <= 1,
            f"participation={participation}",
            "`participation` is the probability that a client takes part in a round: pass a number above 0, up to 1.",
        ),
        (0 < delta < 1, f"delta={delta}", "`delta` is a probability: pass a number between 0 and 1, such as 1e-5."),
    )
    if noise_multiplier == 0 or rounds == 0:
        return 0.0 if rounds == 0 else math.inf
    with needs_library("dp-accounting", extra="privacy", needed_for="`epsilon`"):
        import dp_accounting  # takes half a second, and only this function needs it
        from dp_accounting.pld import PLDAccountant
    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if participation < 1:
        event = dp_accounting.PoissonSampledDpEvent(participation, event)
    step = 1e-4 if noise_multiplier >= 2 else 1e-3  # large losses: a coarse grid has enough digits
    try:
        return float(PLDAccountant(value_discretization_interval=step).compose(event, rounds).get_epsilon(delta))
    except (ValueError, OverflowError, RuntimeError, MemoryError) as error:
        message = (
            f"`epsilon` received noise_multiplier={noise_multiplier}, rounds={rounds}, participation={participation} "
            f"and delta={delta}, which the accountant cannot compose: {error}. The accountant discretises the privacy "
            "loss, which is too large here: use more noise, fewer rounds or lower participation."
        )
        raise ProgramError(message) from error
