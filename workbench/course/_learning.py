"""Exercises of notebooks 08 to 11, 16, 17 and 25: federated learning."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from workbench.course._grading import (
    called,
    exercise,
    expect_disclosed,
    expect_number,
    expect_values,
    number,
    plan_of,
    several,
    wrong,
)


@exercise("08.1", "a server step with momentum")
def server_momentum(answer: object) -> str:
    params, momentum = jnp.array([1.0, 2.0]), jnp.zeros(2)
    for update in (jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0])):
        params, momentum = several(called(answer, params, momentum, update), 2, "parameters, momentum")
    hint = "m ← 0.9 m + update, then params ← params − 0.5 m, where update is before minus after."
    expect_values(params, [1 - 0.5 * (1 + 1.9), 2 - 0.5 * 1], hint)
    return "the server remembers the directions of earlier rounds."


@exercise("08.2", "the mean by images and the mean by clients")
def two_means(answer: object) -> str:
    by_images, by_clients = several(answer, 2, "the mean weighted by images, the mean with equal weights")
    expect_number(by_images, 0.9, "The client whose update is 1 has 90 of the 100 images.", what="the mean by images")
    expect_number(by_clients, 0.5, "Both clients count equally.", what="the mean by clients")
    return "weights decide which clients the model fits best."


@exercise("08.3", "hold out a fifth of a client's images")
def hold_out(answer: object) -> str:
    for count in (50, 100, 500):  # 500: drawing with replacement repeats a row
        x, y = np.arange(float(count))[:, None], np.arange(count) % 10
        (train_x, train_y), (test_x, test_y) = several(called(answer, x, y), 2, "(x, y) to train, (x, y) to test")
        if set(np.ravel(train_x)) & set(np.ravel(test_x)):
            wrong("some images are in both splits, so the test would reward memorising them.")
        if len(train_x) + len(test_x) != count or len(test_x) != count // 5:
            wrong(
                f"of {count} images, {len(train_x)} are for training and {len(test_x)} for testing; expected "
                f"{count - count // 5} and {count // 5}."
            )
        splits = (train_x, train_y), (test_x, test_y)
        if any(list(np.ravel(rows).astype(int) % 10) != list(labels) for rows, labels in splits):
            wrong("images and labels no longer match: select both with the same rows.")
    x, equal = np.arange(50.0)[:, None], []
    for labels in (np.arange(50) % 10, np.repeat(np.arange(10), 5)):
        (_, (_, test)) = several(called(answer, x, labels), 2, "(x, y) to train, (x, y) to test")
        if len(set(np.ravel(test))) <= 2:
            wrong(
                f"the test images have only the labels {sorted(set(map(int, np.ravel(test))))}: choose rows at random."
            )
        equal.append(len(set(np.ravel(test))) == 10)
    if all(equal):
        wrong(
            "each test split has exactly one image of each label, so the labels determine the split. Choose the rows "
            "without reading `y`."
        )
    return "no image is in both splits, and the splits do not depend on the labels."


@exercise("09.1", "SCAFFOLD's new control variate")
def new_control(answer: object) -> str:
    result = called(
        answer, jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]), jnp.array([2.0, 2.0]), jnp.array([1.0, 3.0]), 5, 0.1
    )
    hint = "c_i⁺ = c_i − c + (x − y_i) / (K η), option II of the paper."
    expect_values(result, [0.5 + 1 / 0.5, -0.5 - 1 / 0.5], hint)
    return "it is the average gradient of the client's own steps, and needs no other pass over the data."


@exercise("09.2", "where FedProx converges")
def prox_rest(answer: object) -> str:
    a, b, w = np.array([1.0, 4.0, 9.0]), np.array([-1.0, 2.0, -2.0]), 0.0
    for _ in range(200):
        local = np.full(3, w)
        for _ in range(5):
            local -= 0.1 * (a * (local - b) + 5.0 * (local - w))
        w = float(local.mean())
    expect_number(answer, w, "Run FedProx with proximal=5 until the parameters stop changing (30 rounds).", rtol=0.02)
    return f"{w:.3f} is nearer to the optimum than FedAvg's result, but does not reach it."


@exercise("09.3", "the rate that halves FedAvg's distance from the optimum")
def half_the_drift(answer: object) -> str:
    a, b = np.array([1.0, 4.0, 9.0]), np.array([-1.0, 2.0, -2.0])

    def distance(rate: float) -> float:
        return float(np.average(b, weights=1 - (1 - rate * a) ** 5) - np.average(b, weights=a))

    rate = number(answer, "the learning rate")
    if not 0 < rate < 0.1:
        wrong(f"a smaller rate drifts less, so the answer is between 0 and 0.1; you gave {rate:g}.")
    share = distance(rate) / distance(0.1)
    if abs(share - 0.5) > 0.01:
        wrong(
            f"at rate {rate:g} the fixed point is {share:.2f} times as far from the optimum as at rate 0.1. Use p_i "
            "from the text above."
        )
    return "a smaller rate drifts less, and takes more rounds."


@exercise("10.1", "DiLoCo's outer step with Nesterov momentum")
def outer_step(answer: object) -> str:
    optimizer = optax.sgd(0.7, momentum=0.9, nesterov=True)
    params, momentum = jnp.array([1.0, -1.0]), jnp.zeros(2)
    expected, state = params, optimizer.init(params)
    for gradient in (jnp.array([0.2, 0.1]), jnp.array([0.4, -0.1])):
        params, momentum = several(called(answer, params, momentum, gradient), 2, "parameters, momentum")
        updates, state = optimizer.update(gradient, state)
        expected = optax.apply_updates(expected, updates)
    expect_values(params, expected, "m ← 0.9 m + g; Nesterov steps along g + 0.9 m with rate 0.7.")
    return "this is the outer optimizer of DiLoCo."


@exercise("10.2", "how far an absent data centre's AdamW state moves")
def absent_replica(answer: float | jax.Array) -> str:
    if not abs(number(answer, "your answer")) <= 1e-9:
        wrong("compare the absent replica's inner state before and after the round: with weight 0, it does not change.")
    return "an absent replica does not change its optimizer state."


@exercise("10.3", "a mean of updates that sends half the bytes")
def half_the_bytes(answer: Callable) -> str:
    random = np.random.default_rng(0)
    updates = {"layer": random.normal(size=(8, 32, 16)), "out": random.normal(size=(8, 16))}
    updates = {name: jnp.asarray(value, jnp.float32) for name, value in updates.items()}
    result = called(answer, updates)
    for name, rows in updates.items():
        if result[name].dtype != jnp.float32:
            wrong(f"the mean of {name!r} is {result[name].dtype}; return float32.")
        mean = np.asarray(rows).mean(0)
        expect_values(result[name], mean, "Average the rows.", atol=0.02 * float(np.abs(mean).max()))
    disclosed = expect_disclosed(plan_of(answer, updates, clients=8), 2 * (32 * 16 + 16) + 16)
    return f"a data centre discloses {disclosed:,} bytes for 528 values."


@exercise("11.1", "a momentum that stays between 0 and 1")
def bounded_momentum(answer: Callable) -> str:
    z = np.array([-8.0, *np.arange(-5, 5.5, 0.5), 8.0])
    momenta = np.array([float(called(answer, jnp.float32(v))) for v in z])
    if not ((momenta > 0) & (momenta < 1)).all():
        wrong(
            f"for z from −8 to 8 the momentum is between {momenta.min():.3g} and {momenta.max():.3g}. It has to stay "
            "above 0 and below 1."
        )
    if not (np.diff(momenta) > 0).all() or not float(jax.grad(lambda v: answer(v))(jnp.float32(0))) > 0:
        wrong("the function should increase everywhere, so that gradients can move the momentum.")
    low, high = (float(called(answer, jnp.float32(v))) for v in (-60, 60))
    if not 0 <= low < high <= 1:
        wrong(f"for z = −60 and z = 60 the momentum is {low:.3g} and {high:.3g}.")
    return "the momentum stays in range for every z."


@exercise("11.2", "the best client rates for one round and for five")
def horizons(answer: object) -> str:
    one, five = (float(v) for v in several(answer, 2, "best rate for one round, for five rounds"))
    if not one < five:
        wrong(
            "on this data the best rate for one round is smaller than the best rate for five; use a fine grid up to 8 "
            "with server rate 1."
        )
    if not (1.5 < one < 4.5 and 3 < five < 8 and one < 0.6 * five):
        wrong("make the grid finer, between 1 and 8, and compare the held-out losses.")
    return "a horizon of one round gives a biased choice."


@exercise("11.3", "the derivative of several steps with respect to the rate")
def slope_of_rate(answer: object) -> str:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.array([1.0, 3.0]) * (w - 2.0) ** 2) / 2

    # derived by hand: w_k = 2 + (1 - rate a)^k (w_0 - 2), so d loss / d rate = -k a² (w_0 - 2)² (1 - rate a)^(2k - 1)
    for steps in (1, 4):
        expected = sum(-steps * a * a * 4.0 * (1 - 0.1 * a) ** (2 * steps - 1) for a in (1.0, 3.0))
        result = called(answer, loss, jnp.zeros(2), jnp.float32(0.1), steps)
        expect_values(result, expected, "Differentiate the loss *after* all steps, through every one of them.")
    return "the derivative goes through every step."


@exercise("16.1", "the server's rule for a result that is late")
def mix_late_result(answer: object) -> str:
    old, result = {"w": np.array([1.0, 2.0]), "b": np.array(0.0)}, {"w": np.array([5.0, 0.0]), "b": np.array(2.0)}
    first_old, first_result = ({name: value.copy() for name, value in tree.items()} for tree in (old, result))
    hint = "share = mixing · (1 + late)^(−exponent); every array becomes (1 − share) · old + share · result."
    for late, mixing, exponent, share in ((0, 0.5, 0.5, 0.5), (3, 0.4, 0.5, 0.2), (1, 1.0, 1.0, 0.5), (8, 0.9, 0, 0.9)):
        mixture = called(answer, old, result, late, mixing, exponent)
        for name, value in first_old.items():
            expect_values(mixture[name], value + share * (first_result[name] - value), hint)
        if any((old[name] != first_old[name]).any() or (result[name] != first_result[name]).any() for name in old):
            wrong(
                "the values are right, but `mix` modified its arguments; clients may still train from the old "
                "parameters."
            )
    return (
        "a fresh result has the weight `mixing`, a late result has a smaller weight, and the old parameters are not "
        "modified."
    )


@exercise("16.2", "may a client begin its next round?")
def staleness_bound(answer: object) -> str:
    cases = (
        ({"a": 3, "b": 3}, "a", 0, True),
        ({"a": 4, "b": 3}, "a", 0, False),
        ({"a": 3, "b": 4}, "a", 0, True),
        ({"a": 5, "b": 4, "c": 3}, "a", 2, True),
        ({"a": 6, "b": 4, "c": 3}, "a", 2, False),
        ({"a": 6, "b": 5, "c": None}, "a", 1, True),
    )
    for finished, client, bound, expected in cases:
        if bool(called(answer, dict(finished), client, bound)) != expected:
            wrong(
                f"with {finished} finished and bound {bound}, {client!r} {'may begin' if expected else 'has to wait'}. "
                "How far is this client ahead of the slowest client that is still working?"
            )
    return "the rule waits for the slowest client that is still working, but never for a failed client."


@exercise("16.3", "the client toward which the asynchronous result is biased")
def leaning(answer: object) -> str:
    expect_number(answer, 5, "Which client is still training when all others have finished?")
    return "the result is nearest to the slow client, which works alone at the end."


@exercise("16.4", "the number of processes of the parameter-server program")
def processes(answer: object) -> str:
    expect_number(answer, 5, "Count the nodes: each becomes a process.")
    return "one process for the server, and one for each of the four workers."


@exercise("17.1", "importance weights of prioritised sampling")
def importance_weights(answer: object) -> str:
    for priorities, expected in (
        ([0.1, 0.2, 0.4], [1.0, 0.5, 0.25]),
        ([0.03, 0.02, 0.03, 0.1], [2 / 3, 1, 2 / 3, 0.2]),
    ):
        result = called(answer, np.array(priorities))
        hint = f"For {priorities} the weights are {np.round(expected, 3).tolist()}: P(i) w_i is the same for all items."
        expect_values(result, expected, hint)
    return "an item that is drawn twice as often counts half as much."


@exercise("17.2", "a draw by priority")
def draw_by_priority(answer: object) -> str:
    uniform = (np.arange(1000) + 0.5) / 1000
    for priorities, exponent in (([1.0, 3.0, 4.0], 1.0), ([1.0, 4.0, 9.0, 16.0], 0.5), ([0.2, 5.0, 0.1], 0.0)):
        powers = np.array(priorities) ** exponent
        expected = (uniform[:, None] > np.cumsum(powers / powers.sum())[:-1]).sum(1)
        draws = np.asarray(called(answer, np.array(priorities), exponent, uniform))
        shares = np.round(powers / powers.sum(), 3).tolist()
        if draws.shape != uniform.shape or not np.isin(draws, range(len(priorities))).all():
            wrong(
                f"`uniform` has {len(uniform)} numbers: return one index for each number, from 0 to "
                f"{len(priorities) - 1}."
            )
        if not np.array_equal(draws, expected):
            frequencies = [round(float(np.mean(draws == item)), 3) for item in range(len(priorities))]
            wrong(
                f"with the priorities {priorities} and exponent {exponent} the parts have the lengths {shares}, in "
                f"this order; your items receive the fractions {frequencies} of the numbers. Look up each number in "
                "the cumulative sums."
            )
    return "the length of an item's part is its probability."


@exercise("17.3", "when may a batch leave the table?")
def may_sample(answer: object) -> str:
    cases = (
        (63, 0, 32, 64, 4.0, False),
        (64, 0, 32, 64, 4.0, True),
        (64, 224, 32, 64, 4.0, True),
        (64, 225, 32, 64, 4.0, False),
        (127, 0, 32, 64, 0.25, False),
        (128, 0, 32, 64, 0.25, True),
        (64, 9_600, 32, 64, None, True),
        (63, 0, 32, 64, None, False),
    )
    for inserted, sampled, batch, min_size, limit, expected in cases:
        if bool(called(answer, inserted, sampled, batch, min_size, limit)) != expected:
            wrong(
                f"after {inserted} inserts and {sampled} samples, with min_size {min_size} and at most {limit} samples "
                f"per insert, a batch of {batch} {'may leave' if expected else 'has to wait'}. Count the items of this "
                "batch as well."
            )
    return "the learner waits for the actors when its batch would exceed the limit."


@exercise("17.4", "the exponent at which half of the draws are useful")
def exponent_of_half(answer: object) -> str:
    hint = "50 items of priority 1 should weigh as much as 950 items of 0.01: 50 = 950 · 0.01^α."
    expect_number(answer, math.log(19) / math.log(100), hint, rtol=0.005)
    return "the larger the exponent, the greedier the sampler."


@exercise("17.5", "mean and spread of a weighted draw")
def weighted_draw(answer: object) -> str:
    errors = np.array([1.0, 0.1, -0.4, 0.3])
    for exponent in (0.0, 0.6, 1.0):
        powers = np.abs(errors) ** exponent
        chance = powers / powers.sum()
        counted = errors / (4 * chance)
        mean, deviation = several(called(answer, np.abs(errors), exponent, errors), 2, "mean, standard deviation")
        expect_number(mean, 0.25, "The sum of P(i) w_i e_i is the mean error, for every exponent.", what="the mean")
        hint = "The square root of the sum of P(i) (w_i e_i - mean)²."
        expect_number(deviation, math.sqrt(chance @ (counted - 0.25) ** 2), hint, what="the standard deviation")
    return "the weights preserve the mean, and the priorities determine the spread."


@exercise("21.1", "a bootstrap interval of a mean")
def bootstrap_interval(answer: object) -> str:
    values = np.array([0.3, 0.1, 2.2, 0.15, 0.7, 0.05, 0.45, 1.1, 0.2])  # skewed: no symmetric interval is close
    low, high = np.mean([several(called(answer, values, seed), 2, "lower end, upper end") for seed in range(5)], axis=0)
    resampled = np.random.default_rng(0).choice(values, (100_000, 9)).mean(1)
    expected = np.quantile(resampled, [0.025, 0.975])
    expect_values(
        [low, high], expected, "Quantiles 0.025 and 0.975 of means of nine values drawn *with* replacement.", atol=0.04
    )
    return f"{low:.2f} to {high:.2f} around {values.mean():.2f}."


@exercise("21.2", "the p-value of a paired sign-flip test")
def test_of_signs(answer: object) -> str:
    for differences, flips in (
        ([1.0, 2.0, 3.0], 2),
        ([1.0, -1.0, 3.0], 6),
        ([10.0, -1.0, 2.0, -3.0], 12),  # 14 for signed ranks
        ([0.2, 0.1, 0.3, 0.4, 0.5, 0.1], 2),
    ):
        p_value = float(called(answer, np.array(differences)))
        hint = (
            f"Of the {2 ** len(differences)} combinations of sign flips of {differences}, {flips} have a mean at least "
            "as far from 0 as the observed mean."
        )
        expect_number(p_value, flips / 2 ** len(differences), hint, what="the p-value")
    return "all flips are equally likely if neither method is better."


@exercise("21.3", "p-values, corrected by Holm's method")
def holm(answer: object) -> str:
    hint = (
        "Sort the p-values and multiply them by n, n - 1, … 1. No result may be below the previous result or above 1. "
        "Return them in the given order."
    )
    for p_values, expected in (
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.7, 0.02], [0.7, 0.04]),
        ([0.6, 0.7, 0.001, 0.02], [1, 1, 0.004, 0.06]),
    ):
        expect_values(
            called(answer, np.array(p_values)), expected, f"Given {p_values}, the result is {expected}. {hint}"
        )
    return "the smallest p-value gets the largest factor, and each following p-value a smaller factor."


@exercise("25.1", "the gradient that a first-order MAML client sends")
def first_order(answer: object) -> str:
    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum((w * jnp.array([1.0, 2.0]) - 1) ** 4) + w[0] * w[1]

    def adapted(w: jax.Array, steps: int) -> jax.Array:
        for _ in range(steps):
            w = w - rate * jax.grad(loss)(w)
        return w

    w, rate = jnp.array([0.3, 0.2]), 0.05
    for steps in (1, 3):
        result = called(answer, loss, w, rate, steps)
        through = jax.grad(lambda v, steps=steps: loss(adapted(v, steps)))(w)
        if np.shape(result) == w.shape and np.allclose(result, through, rtol=1e-3):
            wrong(
                "this is the gradient of MAML, which differentiates through the steps: take the gradient after these "
                "steps."
            )
        hint = f"Take {steps} steps `w - rate * grad(loss)(w)`, then take the gradient of `loss` after these steps."
        expect_values(result, jax.grad(loss)(adapted(w, steps)), hint)
    return "this is the gradient at the adapted parameters, without a second derivative."


@exercise("25.2", "the fixed point of first-order MAML")
def rest(answer: object) -> str:
    optima, curvature, rate = np.array([-1.0, 2.0, 3.0]), np.array([1.0, 4.0, 6.0]), 0.1
    for steps in (0, 1, 2):
        result = called(answer, optima, curvature, rate, steps)
        expected, through = (
            float(np.average(optima, weights=curvature * (1 - rate * curvature) ** power))
            for power in (steps, 2 * steps)
        )
        if steps and np.allclose(result, through, rtol=1e-3):
            wrong("this is the fixed point of MAML: it has the factor (1 − η a) of each step twice.")
        hint = (
            f"After {steps} steps, (1 − η a)^{steps} of a client's distance from its optimum remains; the gradient "
            "there is this distance times a."
        )
        expect_number(result, expected, hint, what=f"the fixed point with {steps} local steps")
    return "this is a weighted mean of the clients' optima; steep clients count less with each local step."


@exercise("25.3", "the best mixture of a global and a local model")
def best_mixture(answer: object) -> str:
    for bias, deviation, count in ((2.0, 1.0, 1), (1.0, 2.0, 4), (0.5, 3.0, 10)):
        bias_squared, variance = bias**2, deviation**2 / count
        a, error = several(called(answer, bias, deviation, count), 2, "the mixture a, the expected squared error")
        hint = "The variance of the mean of n examples is deviation² / n: minimise (1 − a)² bias² + a² deviation² / n."
        expect_number(
            a,
            bias_squared / (bias_squared + variance),
            hint,
            what=f"the mixture a with {bias=}, {deviation=}, {count=}",
        )
        expect_number(error, bias_squared * variance / (bias_squared + variance), hint, what=f"the error with {bias=}")
    return "a = bias² / (bias² + variance)."


@exercise("25.4", "the total variation that IID clients have by chance")
def by_chance(answer: object) -> str:
    for counts, size in (((1, 1), 4), ((1, 1), 1), ((10, 20, 70), 20), ((40, 30, 10, 10, 10), 8)):
        shares = np.array(counts) / sum(counts)
        distances = [
            math.comb(size, k) * p**k * (1 - p) ** (size - k) * abs(k / size - p) / 2
            for p in shares
            for k in range(size + 1)
        ]
        hint = (
            f"With label counts {counts}, the mean for clients with {size} images is {sum(distances):.3f}: half of the "
            "sum over labels of |the client's fraction − the overall fraction|, averaged over many drawn clients."
        )
        expect_values(called(answer, np.array(counts), size), sum(distances), hint, atol=0.01)
    return "clients with few images differ even without heterogeneity."
