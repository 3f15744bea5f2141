"""Exercises of notebooks 26 and 27: MapReduce, and convergence with sampled clients."""

import jax.numpy as jnp
import numpy as np

from workbench.course._grading import (
    called,
    exercise,
    expect_disclosed,
    expect_number,
    expect_values,
    plan_of,
    several,
    stages,
    wrong,
)


@exercise("26.1", "word count with a combiner")
def combined_count(answer: object) -> str:
    words = np.random.default_rng(0).integers(0, 16, (8, 40))
    hint = "Each worker counts its own 40 words; the server adds the counts."
    expect_values(called(answer, jnp.asarray(words)), np.bincount(words.ravel(), minlength=16), hint)
    plan = plan_of(answer, jnp.asarray(words), clients=8)
    used = [stage.operation for stage in stages(plan, "reduce")]
    if "reduce_by_key" in used:
        wrong("the counts are right, but every pair goes to the shuffle: sum on the worker, then use `wb.reduce_sum`.")
    size = expect_disclosed(plan, 64)
    return f"a worker discloses {size} bytes, however many words it has."


@exercise("26.2", "bytes without and with a combiner")
def bytes_of_pairs(answer: object) -> str:
    without, combined = several(answer, 2, "bytes without a combiner, bytes with one")
    expect_number(
        without, 80_000, "A pair of 8 bytes for each occurrence of a word.", what="the number without a combiner"
    )
    expect_number(combined, 5_600, "A pair of 8 bytes for each distinct word.", what="the number with a combiner")
    return "the combiner sends about a fourteenth of the bytes."


@exercise("26.3", "the second largest value of eight workers")
def second_largest(answer: object) -> str:
    fine = np.random.default_rng(1).normal(0, 1000, 8).astype("float32").tolist()  # cannot be packed into 8 bytes
    for values in ([3.0, -1.0, 7.0, 2.0, 5.0, 0.0, 6.5, 4.0], [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0], fine):
        hint = "Broadcast the largest; then take the maximum of the remaining values."
        expect_values(called(answer, jnp.array(values)), sorted(values)[-2], hint)
    plan = plan_of(answer, jnp.arange(8.0), clients=8)
    expect_disclosed(plan, 8)
    return "two maxima and eight bytes suffice for any number of workers."


@exercise("27.1", "the error floor of averaging over sampled clients")
def sampling_floor(answer: object) -> str:
    for wishes, m, rate in (([0.0, 1.0, 5.0], 1, 0.5), ([1.0, 2.0, 3.0, 4.0, 9.0], 2, 0.1), ([1.0, 4.0], 2, 0.2)):
        n = len(wishes)
        expected = float(rate / (2 - rate) * np.var(wishes) / m * (n - m) / (n - 1))
        hint = (
            f"For b = {wishes}, m = {m} and rate {rate} the floor is {expected:.4g}: the second term of the theorem, "
            "where the series is 1 / (1 − ρ)."
        )
        expect_number(called(answer, np.array(wishes), m, rate), expected, hint, what="the floor")
    return "the floor is rate / (2 − rate) times the variance of the sample's mean."


@exercise("27.2", "number of sampled clients that halves the error floor")
def halved_floor(answer: object) -> str:
    expect_number(answer, 19, "The factor (n − m) / (m (n − 1)) should be half of its value at m = 10.")
    return "fewer than twice as many clients are enough, because no client is drawn twice."


@exercise("27.3", "an unbiased mean over clients that participate with unequal probabilities")
def unbiased_mean(answer: object) -> str:
    updates, p = np.array([[1.0, 2.0], [4.0, -2.0], [10.0, 6.0]]), np.array([0.5, 0.25, 0.8])
    total = np.zeros(2)
    for mask in np.ndindex(2, 2, 2):
        present = np.array(mask, float)
        chance = np.prod(np.where(present == 1, p, 1 - p))
        result = np.asarray(called(answer, jnp.asarray(updates), jnp.asarray(present), jnp.asarray(p)))
        if result.shape != (2,):
            wrong(f"the estimate has shape {result.shape}; expected (2,): one two-element mean over all clients.")
        total += chance * np.nan_to_num(result)
    hint = "Over all eight cases, weighted by probability, the estimates should average to the mean of all rows."
    expect_values(total, updates.mean(0), hint)
    return "over all cases, the estimates average to the mean of all clients."
