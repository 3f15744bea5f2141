"""Statistics of values that stay with their clients, as MapReduce programs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int32, Real

from workbench.errors import ProgramError, check_settings
from workbench.primitives import broadcast, map_fn, program, reduce_by_key, reduce_max, reduce_min, reduce_sum


def histogram(x: Real[Array, " clients *items"], *, bins: int, low: float, high: float) -> Int[Array, " bins"]:
    """Counts the values of all clients in bins of equal width.

    Every client sends one count per bin.

    Args:
        x: Values, one row per client.
        bins: Number of bins, at least 1.
        low: Lower edge of the first bin.
        high: Upper edge of the last bin, inclusive as in numpy. Values outside the range and NaN are not counted.

    Returns:
        The counts at the server, int32 `[bins]`.

    Raises:
        ProgramError: if `bins` is below 1, or `low` is not below `high`.

    Example:
        >>> histogram(jnp.array([[0.1, 0.9], [0.2, 0.3]]), bins=2, low=0.0, high=1.0).tolist()
        [3, 1]

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004.
    """
    check_settings(
        "histogram",
        (bins >= 1, f"bins={bins}", "Pass at least 1 bin."),
        (low < high, f"low={low} and high={high}", "Pass `low` below `high`."),
    )
    # Edges between the values of a narrow dtype would be rounded to these values.
    dtype = _wide(x.dtype)
    edges = jnp.linspace(low, high, bins + 1, dtype=dtype)

    def keys_of(row: Real[Array, " *items"]) -> Int[Array, " items"]:
        values = row.reshape(-1).astype(dtype)
        place = jnp.minimum(jnp.searchsorted(edges, values, side="right").astype(jnp.int32) - 1, bins - 1)
        inside = (values >= edges[0]) & (values <= edges[-1])
        return jnp.where(inside, place, bins)  # one additional group, for values outside all bins

    with program(clients=x.shape[0]):
        keys = map_fn(keys_of, (x,))
        return reduce_by_key(map_fn(jnp.ones_like, (keys,)), keys, bins + 1)[:bins]


def quantile(x: Real[Array, " clients *items"], q: float, *, rounds: int = 30) -> Real[Array, ""]:
    """Finds a quantile of the values of all clients by bisection.

    Clients send only the number of values that do not exceed a guess. In each round, every client receives and sends
    one number.

    Args:
        x: Values, one row per client, finite.
        q: The quantile, from 0 to 1; 0.5 is the median.
        rounds: Number of bisections; 30 bisections reach float32 precision.

    Returns: The smallest value v such that at least a share `q` of all values is at most v (numpy's "inverted_cdf").
        The error is at most the range of the values × 2^−rounds; integers and narrow floats are compared in float32.
        The gradient of the quantile is zero.

    Raises:
        ProgramError: if `q` is not between 0 and 1.

    Example:
        >>> round(float(quantile(jnp.array([[1.0, 7.0], [3.0, 5.0], [4.0, 9.0]]), 0.5)), 4)
        4.0

    References:
        Andrew et al., "Differentially Private Learning with Adaptive Clipping", NeurIPS 2021 (arXiv 1905.03871), who
        also find a quantile by counting, but with one gradient step per round instead of a bisection.
    """
    if not 0 <= q <= 1:
        message = (
            f"`quantile` was given q={q}. `q` is a fraction of the values: pass a number from 0 to 1, such as 0.5 for "
            "the median or 0.95 instead of 95."
        )
        raise ProgramError(message)
    # At least one value is at most the answer, so the 0-quantile is the minimum.
    rank = max(math.ceil(q * x.size * (1 - 1e-12)), 1)  # 0.1 × 30 is slightly above 3

    def count(at: jax.Array) -> jax.Array:
        return reduce_sum(map_fn(lambda row, at: (row <= at).sum(dtype=jnp.int32), (x, broadcast(at))))

    def halve(interval: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        low, high = interval
        guess = low + (high - low) / 2
        enough = count(guess) >= rank
        return (jnp.where(enough, low, guess), jnp.where(enough, guess, high)), None

    with program(clients=x.shape[0]):
        x, dtype = jax.lax.stop_gradient(x), x.dtype
        x = x.astype(_wide(dtype))  # a narrow dtype rounds the guesses
        low = reduce_min(map_fn(jnp.min, (x,)))
        high = reduce_max(map_fn(jnp.max, (x,)))
        (_, bound), _ = jax.lax.scan(halve, (low, high), None, length=rounds)
        answer = jnp.where(count(low) >= rank, low, bound)
        # The bound is slightly above the value.
        return (jnp.floor(answer) if jnp.issubdtype(dtype, jnp.integer) else answer).astype(dtype)


def _wide(dtype: np.dtype) -> np.dtype:
    """Returns a float dtype in which bins and guesses are exact enough."""
    is_wide = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 4
    return dtype if is_wide else jnp.dtype(jnp.float32)


def word_count(words: Int[Array, " clients *words"], vocabulary: int) -> Int[Array, " vocabulary"]:
    """Counts the occurrences of each word in the documents of all clients.

    Every client sends one count per word of the vocabulary.

    Args:
        words: Word indices, one row per client; numbers outside the vocabulary (-1 as padding) are not counted.
        vocabulary: Number of words in the vocabulary.

    Returns:
        The counts at the server, int32 `[vocabulary]`.

    Example:
        >>> word_count(jnp.array([[0, 2, 2], [2, 1, -1]]), 3).tolist()
        [1, 1, 3]

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004, section 2.1.
    """
    words = _int32(words)
    with program(clients=words.shape[0]):
        word_ids = map_fn(
            lambda row: jnp.where((row >= 0) & (row < vocabulary), row, jnp.full_like(row, vocabulary)), (words,)
        )
        return reduce_by_key(map_fn(jnp.ones_like, (word_ids,)), word_ids, vocabulary + 1)[:vocabulary]


def _int32(words: Int[Array, " clients *words"]) -> Int32[Array, " clients *words"]:
    """Converts word indices to int32, because the numbers of groups may not fit into the dtype of stored tokens."""
    outside = words > jnp.iinfo(jnp.int32).max if jnp.iinfo(words.dtype).max > jnp.iinfo(jnp.int32).max else False
    return jnp.where(outside, jnp.int32(-1), words.astype(jnp.int32))


def inverted_index(words: Int[Array, " clients *words"], vocabulary: int) -> Int[Array, " vocabulary clients"]:
    """Builds an inverted index: the documents that contain each word, with term frequencies.

    Every client is a document, and emits the pair (word, document) as one key. Every client sends one count for each
    pair of vocabulary word and document.

    Args:
        words: Word indices, one row per document; numbers outside the vocabulary (-1 as padding) are not indexed.
        vocabulary: Number of words in the vocabulary.

    Returns:
        Term frequencies at the server, int32 `[vocabulary, documents]`; the non-zero columns of a row are the posting
        list for that word.

    Example:
        >>> index = inverted_index(jnp.array([[0, 2, 2], [2, 1, -1]]), 3)
        >>> {word: jnp.flatnonzero(index[word]).tolist() for word in range(3)}
        {0: [0], 1: [1], 2: [0, 1]}

    References:
        Dean and Ghemawat, "MapReduce", OSDI 2004, section 2.3.
    """
    words, documents = _int32(words), words.shape[0]

    def keys_of(row: Int[Array, " *words"], document: Int[Array, ""]) -> Int[Array, " *words"]:
        mask = (row >= 0) & (row < vocabulary)
        return jnp.where(mask, row * documents + document, jnp.full_like(row, vocabulary * documents))

    with program(clients=documents):
        keys = map_fn(keys_of, (words, jnp.arange(documents, dtype=words.dtype)))
        ones = map_fn(jnp.ones_like, (keys,))
        return reduce_by_key(ones, keys, vocabulary * documents + 1)[:-1].reshape(vocabulary, documents)
