"""Exercises of notebook 31: low-rank adapters in a federation."""

import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np

from workbench.course._grading import called, exercise, expect_number, expect_values, primitives_of, several, wrong


@exercise("31.1", "the factor by which an adapter reduces the number of values")
def saved_numbers(answer: object) -> str:
    expect_number(answer, 128, "n · m values instead of r · (n + m).")
    return "a client sends 1/128 of the values."


@exercise("31.2", "the gap between the mean of products and the product of means")
def gap_of_factors(answer: object) -> str:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(5, 4, 2)), random.normal(size=(5, 2, 3))
    mean = (a @ b).mean(0)
    expected = np.linalg.norm(mean - a.mean(0) @ b.mean(0)) / np.linalg.norm(mean)
    hint = f"For five random clients the gap is {expected:.4g}: divide by the norm of the mean of the products."
    expect_number(called(answer, jnp.asarray(a), jnp.asarray(b)), float(expected), hint, what="the gap")
    equal = float(called(answer, jnp.asarray(np.repeat(a[:1], 5, 0)), jnp.asarray(b)))
    if abs(equal) > 1e-5:
        wrong(f"the gap is {equal:g} when all clients have the same `a`; it should be 0.")
    return "the gap is zero when all clients share one factor."


@exercise("31.3", "factors of the mean of products")
def exact_factors(answer: object) -> str:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(3, 7, 2)), random.normal(size=(3, 2, 9))
    wide, tall = several(called(answer, jnp.asarray(a), jnp.asarray(b)), 2, "the two factors")
    if np.shape(wide) != (7, 6) or np.shape(tall) != (6, 9):
        wrong(
            f"the factors have the shapes {np.shape(wide)} and {np.shape(tall)}. Three clients of rank 2 need rank 6: "
            "concatenate the factors."
        )
    hint = "Concatenate every `a` horizontally and every `b` vertically; divide one result by the number of clients."
    expect_values(np.asarray(wide) @ np.asarray(tall), (a @ b).mean(0), hint)
    try:
        traced = jax.make_jaxpr(lambda a, b: called(answer, a, b))(jnp.asarray(a), jnp.asarray(b))
        multiplies = "dot_general" in primitives_of(traced.jaxpr)
    except jax.errors.TracerArrayConversionError:  # an answer in NumPy, which reports its memory to tracemalloc
        multiplies = _numpy_bytes(answer, np.ones((2, 500, 1)), np.ones((2, 1, 500))) > 500 * 500
    if multiplies:
        wrong("the product is right, but the function multiplies matrices, so it may compute an n × m matrix.")
    return "the average is exact, but its rank is the number of clients times r."


def _numpy_bytes(function: object, *args: np.ndarray) -> int:
    """Peak memory of a call in bytes, counting NumPy's arrays but not JAX's."""
    is_tracing = tracemalloc.is_tracing()  # then the user traces memory, and continues after this call
    if not is_tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        called(function, *args)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not is_tracing:
            tracemalloc.stop()


@exercise("31.4", "values that the server sends to each client")
def numbers_down(answer: object) -> str:
    plain, exact = several(answer, 2, "number of values with plain averaging, number of values with exact aggregation")
    expect_number(plain, 32_768, "One pair of factors: r · (n + m).", what="the first number")
    expect_number(exact, 262_144, "Factors of all eight clients.", what="the second number")
    return "exact aggregation sends eight times as many values, but far fewer than the whole matrix has."
