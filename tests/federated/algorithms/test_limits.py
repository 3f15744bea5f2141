"""The last number that each argument accepts, and the next, which is refused."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from workbench.errors import ProgramError
from workbench.federated import algorithms
from workbench.federated.algorithms import SecureSession, plan_shuffle, secure_aggregation_cost
from workbench.federated.algorithms._byzantine import _check
from workbench.federated.algorithms._secure_noise import clip_in_units, noise_grid
from workbench.federated.algorithms._shamir import recover_secret, share_secret
from workbench.federated.algorithms._streaming import _check_fragments, _segments

TINY, ALMOST = 1e-12, 1 - 1e-12
COST: Any = {"clients": 4, "values": 10, "threshold": 3}
EPSILON: Any = {"noise_multiplier": 0.0, "rounds": 1, "participation": 0.5, "delta": 1e-5}
SECURE: Any = {"noise_multiplier": 0.0, "clients": 4, "threshold": 3, "bits": 16, "values": 10, "rounds": 1,
               "delta": 1e-5}  # fmt: skip
ROWS = jnp.ones((2, 3))
SHARES = share_secret(b"s" * 32, shares=4, threshold=3)


def grid(**options: Any) -> Any:
    return noise_grid(**{"clients": 4, "clip": 1.0, "bits": 16, "noise_multiplier": 0.0, "threshold": None, **options})


def adaptive(**options: Any) -> Any:
    return algorithms.adaptive_clip_mean(**{"noise_multiplier": 1.0, **options})


def base(clients: int) -> Any:
    return algorithms.fedlin(lambda w, x: ((w - x) ** 2).sum(), clients=clients, learning_rate=0.1)


def adapters(rank: int) -> Any:
    return algorithms.init_adapters({"w": jnp.ones((2, 2))}, rank, jax.random.key(0))


LIMITS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "share of a trimmed mean": (algorithms.trimmed_mean, [0.0, 0.4999], [-TINY, 0.5]),
    "fraction of the mean of top k": (algorithms.top_k_mean, [TINY, 1], [0, 1 + 1e-9]),
    "fraction of top k": (algorithms.top_k, [TINY, 1], [0, 1 + 1e-9]),
    "fraction of random k": (algorithms.random_k, [TINY, 1], [0, 1 + 1e-9]),
    "bits of the quantized mean": (algorithms.quantized_mean, [2, 16], [1, 17]),
    "bits of rounding": (algorithms.round_to_bits, [2, 16], [1, 17]),
    "rank of factors": (algorithms.low_rank, [1], [0]),
    "rank of PowerSGD": (algorithms.power_sgd_mean, [1], [0]),
    "rank of adapters": (adapters, [1], [0]),
    "clip of Gaussian noise": (lambda v: algorithms.gaussian_mean(v, 1.0), [TINY], [0.0, math.inf, math.nan]),
    "Gaussian noise": (lambda v: algorithms.gaussian_mean(1.0, v), [0.0], [-TINY]),
    "clip of tree noise": (lambda v: algorithms.ftrl_mean(v, 1.0, rounds=2), [TINY], [0.0, math.inf]),
    "tree noise": (lambda v: algorithms.ftrl_mean(1.0, v, rounds=2), [0.0], [-TINY]),
    "rounds of tree noise": (lambda v: algorithms.ftrl_mean(1.0, 1.0, rounds=v), [1], [0]),
    "noise of a tree's ε": (lambda v: algorithms.ftrl_epsilon(v, rounds=2, delta=0.1), [0.0], [-TINY]),
    "rounds of a tree's ε": (lambda v: algorithms.ftrl_epsilon(0.0, rounds=v, delta=0.1), [1], [0]),
    "δ of a tree's ε": (lambda v: algorithms.ftrl_epsilon(0.0, rounds=2, delta=v), [TINY, ALMOST], [0.0, 1.0]),
    "noise of ε": (lambda v: algorithms.epsilon(**EPSILON | {"noise_multiplier": v}), [0.0], [-TINY]),
    "rounds of ε": (lambda v: algorithms.epsilon(**EPSILON | {"rounds": v}), [0], [-1]),
    "participation of ε": (lambda v: algorithms.epsilon(**EPSILON | {"participation": v}), [TINY, 1], [0, 1 + 1e-9]),
    "δ of ε": (lambda v: algorithms.epsilon(**EPSILON | {"delta": v}), [TINY, ALMOST], [0.0, 1.0]),
    "noise of the adaptive clip": (lambda v: adaptive(noise_multiplier=v), [0.0], [-TINY]),
    "first adaptive clip": (lambda v: adaptive(first_clip=v), [TINY], [0.0]),
    "quantile of the adaptive clip": (lambda v: adaptive(quantile=v), [TINY, ALMOST], [0.0, 1.0]),
    "noise of the count": (lambda v: adaptive(count_noise=v), [0.0], [-TINY]),
    "learning rate of the clip": (lambda v: adaptive(learning_rate=v), [TINY], [0.0]),
    "clients of the cost": (lambda v: secure_aggregation_cost(v, 10), [2], [1, 0]),
    "threshold of the cost": (lambda v: secure_aggregation_cost(**COST | {"threshold": v}), [2, 4], [1, 5]),
    "neighbours of the cost": (lambda v: secure_aggregation_cost(**COST, neighbours=v), [1, 3], [0, 4]),
    "dropouts of the cost": (lambda v: secure_aggregation_cost(**COST, dropouts=v), [0, 3], [-1, 4]),
    "values of the cost": (lambda v: secure_aggregation_cost(**COST | {"values": v}), [1], [0]),
    "bits of the cost": (lambda v: secure_aggregation_cost(**COST, bits=v), [1], [0]),
    "clients of a grid": (lambda v: grid(clients=v), [2], [1]),
    "clip of a grid": (lambda v: grid(clip=v), [TINY], [0.0, math.inf]),
    "bits of a grid": (lambda v: grid(bits=v, clients=2), [1, 29], [0, 31]),
    "noise of a grid": (lambda v: grid(noise_multiplier=v, threshold=3), [0.0, 1.0], [-TINY, math.inf]),
    "threshold of a grid": (lambda v: grid(noise_multiplier=1.0, threshold=v), [1, 4], [0, 5, None]),
    "values of a secure ε": (lambda v: algorithms.secure_epsilon(**SECURE | {"values": v}), [1], [0]),
    "rounds of a secure ε": (lambda v: algorithms.secure_epsilon(**SECURE | {"rounds": v}), [0], [-1]),
    "δ of a secure ε": (lambda v: algorithms.secure_epsilon(**SECURE | {"delta": v}), [TINY, ALMOST], [0.0, 1.0]),
    "colluding clients": (lambda v: algorithms.secure_epsilon(**SECURE, colluding=v), [0, 2], [-1, 3]),
    "clients of a session": (lambda v: SecureSession(v, v), [2, 3], [1]),
    "threshold of a session of 4": (lambda v: SecureSession(4, v), [3, 4], [2, 5]),
    "threshold of a session of 5": (lambda v: SecureSession(5, v), [3, 5], [2, 6]),
    "shares of a secret": (lambda v: recover_secret({x: SHARES[x] for x in range(1, v + 1)}, threshold=3), [3, 4], [2]),
    "bins of a histogram": (lambda v: algorithms.histogram(ROWS, bins=v, low=0.0, high=1.0), [1], [0]),
    "lower end of a histogram": (lambda v: algorithms.histogram(ROWS, bins=2, low=v, high=1.0), [0.9], [1.0]),
    "quantile": (lambda v: algorithms.quantile(ROWS, v), [0, 1], [-TINY, 1 + 1e-9]),
    "cohort": (lambda v: algorithms.in_cohorts(base, clients=4, cohort=v), [1, 4], [0, 5]),
    "Byzantine clients": (lambda v: _check("krum", 5, v, 2 * v + 3, "2f + 3"), [0, 1], [-1, 2]),
    "fragments": (lambda v: _check_fragments({"a": 1.0, "b": 2.0}, v), [1, 2], [0, 3]),
    "delay of fragments": (lambda v: _segments(jnp.ones((1, 6)), 2, v), [0, 2], [-1, 3]),
    "steps of fragments": (lambda v: _segments(jnp.ones((1, v)), 2, 1), [4, 6], [2, 5]),
    "workers of a shuffle": (lambda v: plan_shuffle(12, v, 6), [2, 3], [1, 5]),
    "cached rows of a shuffle": (lambda v: plan_shuffle(12, 3, v), [4, 12], [3, 13]),
    "needed workers": (lambda v: algorithms.encode_blocks(jnp.ones((12, 2)), workers=4, needed=v), [1, 4], [0, 5]),
    "rows of blocks": (lambda v: algorithms.encode_blocks(jnp.ones((v, 2)), workers=4, needed=3), [3, 6], [4, 5]),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.usefixtures("little_optimized")
def test_numbers_at_a_limit_are_accepted_and_the_next_are_refused(name: str) -> None:
    call, accepted, refused = LIMITS[name]
    for value in accepted:
        call(value)
    for value in refused:
        with pytest.raises(ProgramError):
            call(value)


def test_costs_of_secure_aggregation_by_hand() -> None:
    # Each of 10 clients sends 2 keys of 32 bytes to 4 neighbours; one number of 40 bits is 8 bits longer than a float.
    cost = secure_aggregation_cost(10, 100, threshold=7, dropouts=3, bits=40, neighbours=4)
    assert [(r.upload_bytes, r.download_bytes, r.after_training) for r in cost.rounds] == [
        (2 * 32, 4 * 2 * 32, False), (4 * 82, 4 * 82, False),  # two shares of 33 bytes and a tag of 16 bytes
        (100 * 8 / 8, 4 * 4, False), (5 * 33, 0, True),
    ]  # fmt: skip
    assert cost.client_operations == 5 * 100  # four pairwise masks and an own mask
    assert cost.server_operations == (7 + 3 * 4) * 100  # own masks of 7 clients, and 4 masks of each lost client
    assert (cost.clients, cost.threshold, cost.dropouts, len(cost.references)) == (10, 7, 3, 2)
    few = secure_aggregation_cost(10, 100, dropouts=8, neighbours=4)
    assert few.threshold == 7  # two thirds, rounded up
    assert few.server_operations == (2 + 8 * 2) * 100  # only 2 clients stay
    assert len(secure_aggregation_cost(10, 100).references) == 1


def test_clip_has_the_deviation_of_all_noise_divided_by_the_multiplier() -> None:
    # Each of 9 clients adds noise of 2^3 units, together 3 · 8 units, which is twice the clip.
    assert clip_in_units(3, 2.0, 9) == 12
