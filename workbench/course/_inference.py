"""Exercises of notebook 29: the bytes that inference reads and stores, and a softmax computed in parts."""

import jax
import jax.numpy as jnp
import numpy as np

from workbench.course._grading import called, exercise, expect_number, expect_values, several

_CACHE = 2 * 32 * 8 * 128 * 8192 * 16 * 2  # bytes


@exercise("29.1", "bytes of a KV cache")
def bytes_of_a_cache(answer: object) -> str:
    hint = "Multiply 2 (keys and values), layers, heads, head size, tokens, sequences and 2 bytes per value."
    expect_number(answer, _CACHE, hint, rtol=5e-3)
    return "the cache takes 17.2 GB, more than the weights."


@exercise("29.2", "bytes of cache on each of 32 chips")
def bytes_on_each_chip(answer: object) -> str:
    heads, both = several(answer, 2, "bytes with heads sharded, bytes with positions sharded too")
    hint = "Sharding the eight heads divides the cache by eight; chips with the same heads store copies."
    expect_number(heads, _CACHE / 8, hint, what="the first number", rtol=5e-3)
    expect_number(both, _CACHE / 32, "Two axes of 8 and 4 divide it by 32.", what="the second number", rtol=5e-3)
    return "sharding a second dimension leaves one copy instead of four."


@exercise("29.3", "attention over all positions, combined from each device's partial result")
def merged_attention(answer: object) -> str:
    for largest in (1.0, 1000.0):
        random = np.random.default_rng(0)
        scores, values = jnp.asarray(random.normal(size=(4, 5)) * largest), jnp.asarray(random.normal(size=(4, 5, 3)))
        m = scores.max(1)
        weight = jnp.exp(scores - m[:, None])
        result = called(answer, m, weight.sum(1), jnp.einsum("ns,nsd->nd", weight, values))
        expected = jax.nn.softmax(scores.ravel()) @ values.reshape(20, 3)
        hint = "Multiply each partial result by exp(m_k − the largest m), including the partial sums of weights."
        expect_values(result, expected, hint)
    return "the result is exact for any scores, and each device sends only three small partial results."


@exercise("29.4", "the minimum milliseconds per token")
def least_milliseconds(answer: object) -> str:
    hint = "Divide the bytes of weights and cache by the bandwidth of all 16 chips; give milliseconds."
    expect_number(answer, (16.06e9 + _CACHE) / (16 * 819e9) * 1e3, hint, rtol=5e-3)
    return "reading takes this long, no matter how fast the arithmetic units are."
