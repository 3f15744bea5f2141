"""Coded matrix products: the results of any k of n workers are enough."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import gather_rows
from workbench.primitives import broadcast, map_fn, program


def encode_blocks(a: Float[Array, " rows k"], *, workers: int, needed: int) -> Float[Array, " workers block k"]:
    """Encodes the row blocks of a matrix, one mixture per worker.

    The code is maximum distance separable. The first `needed` workers receive the blocks themselves; the other workers
    receive random mixtures of all blocks. With probability one, the results of any `needed` workers determine the
    product.

    Args:
        a: A matrix of floats or complex numbers; its number of rows is a multiple of `needed`.
        workers: n, the number of workers.
        needed: k, the number of workers that suffice.

    Returns:
        One block for each worker, `[workers, rows / needed, columns]`. The dtype is at least float32, because decoding
        amplifies rounding errors.

    Raises:
        ProgramError: if `a` contains integers or booleans, if `needed` is larger than `workers`, or if the rows do not
            divide evenly.

    Example:
        >>> encode_blocks(jnp.eye(4), workers=3, needed=2).shape
        (3, 2, 4)

    References:
        Lee et al., "Speeding Up Distributed Machine Learning Using Codes", IEEE Trans. Inf. Theory 2018
        (arXiv 1512.02673), section III.
    """
    if not 1 <= needed <= workers or a.shape[0] % needed:
        message = (
            f"`encode_blocks` was given a matrix of {a.shape[0]} rows, workers={workers} and needed={needed}. The "
            "matrix is split into `needed` equal blocks, and the results of `needed` workers suffice. Pass a `needed` "
            f"from 1 to {workers} that divides the number of rows; if necessary, pad the matrix with rows of zeros."
        )
        raise ProgramError(message)
    a = _wide("encode_blocks", "a", a)
    blocks = a.reshape(needed, -1, a.shape[1])
    return jnp.einsum("wb,brk->wrk", jnp.asarray(_generator(workers, needed), a.dtype), blocks)


def coded_matmul(
    coded: Float[Array, " workers block k"], x: Float[Array, " k m"], finished: Bool[Array, " workers"], *, needed: int
) -> Float[Array, " rows m"]:
    """Computes A x from the workers that finished; the results of other workers are never read.

    Sends x to every worker and receives one block of the product from each.

    Args:
        coded: The workers' blocks, from `encode_blocks`.
        x: The matrix to multiply by.
        finished: Workers that answered in time. If more than `needed` workers answered, the first `needed` are used.
        needed: k, as in `encode_blocks`.

    Returns:
        The product, `[rows, m]`, at least float32. If fewer than `needed` finished, the product is NaN.

    Raises:
        ProgramError: if `coded` or `x` contains integers or booleans.

    Example:
        >>> a = jnp.arange(8.0).reshape(4, 2)
        >>> coded = encode_blocks(a, workers=3, needed=2)
        >>> product = coded_matmul(coded, jnp.ones((2, 1)), jnp.array([True, False, True]), needed=2)
        >>> bool(jnp.allclose(product, a.sum(1, keepdims=True), atol=1e-4))
        True

    References:
        Lee et al., arXiv 1512.02673, Algorithm 1 (coded matrix multiplication).
    """
    workers = coded.shape[0]
    coded, x = _wide("coded_matmul", "coded", coded), _wide("coded_matmul", "x", x)
    dtype = np.result_type(coded.dtype, x.dtype)
    coded, x = coded.astype(dtype), x.astype(dtype)
    with program(clients=workers):
        answers = map_fn(
            lambda block, x, in_time: jnp.where(in_time, block @ x, jnp.nan), (coded, broadcast(x), finished)
        )
        rows = gather_rows(answers, workers)
    return decode_blocks(rows, finished, needed=needed)


def decode_blocks(
    answers: Float[Array, " workers block m"], finished: Bool[Array, " workers"] | None = None, *, needed: int
) -> Float[Array, " rows m"]:
    """Decodes the full product from the answers of any `needed` workers.

    An engine with a quorum, such as `Executor(pool, clients_per_task=1, quorum=needed)`, can compute the answers of a
    program with one `map_fn`. The engine cancels the tasks of late workers, and leaves NaN in their rows.

    Args:
        answers: For each worker, the product of its block from `encode_blocks` with a matrix that all workers share.
        finished: Workers that answered; the first `needed` of them are used. Default: workers whose answers have no
            NaN.
        needed: k, as in `encode_blocks`.

    Returns:
        The product, `[rows, m]`, at least float32. If fewer than `needed` finished, the product is NaN.

    Raises:
        ProgramError: if `answers` contains integers or booleans.

    Example:
        >>> coded = encode_blocks(jnp.eye(4), workers=3, needed=2)
        >>> answers = (coded @ jnp.arange(4.0)[:, None]).at[0].set(jnp.nan)
        >>> bool(jnp.allclose(decode_blocks(answers, needed=2)[:, 0], jnp.arange(4.0), atol=1e-4))
        True

    References:
        Lee et al., arXiv 1512.02673, Algorithm 1.
    """
    answers = _wide("decode_blocks", "answers", answers)
    if finished is None:
        finished = ~jnp.isnan(answers).any(axis=(1, 2))
    # A stable sort puts the finished workers first, in the order of their numbers.
    chosen = jnp.argsort(~finished, stable=True)[:needed]
    mixtures = jnp.asarray(_generator(len(answers), needed), answers.dtype)[chosen]
    rows = jnp.where(finished[chosen][:, None, None], answers[chosen], jnp.nan)
    return jnp.linalg.solve(mixtures, rows.reshape(needed, -1)).reshape(-1, answers.shape[2])


def _wide(function: str, argument: str, value: Array) -> Array:
    """Casts a matrix to the code's precision; raises an error if its dtype is unsuitable."""
    value = jnp.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        message = (
            f"`{function}` was given `{argument}` of dtype {value.dtype}. The code multiplies blocks by random real "
            "factors, which integers and booleans cannot represent. Cast the matrix to float32: products below 2**24 "
            "are exact up to the rounding of the code."
        )
        raise ProgramError(message)
    return value if value.dtype.itemsize >= 4 else value.astype(jnp.float32)


def _generator(workers: int, needed: int) -> np.ndarray:
    mixtures = np.random.default_rng(0).normal(size=(workers - needed, needed)) / np.sqrt(needed)
    return np.concatenate([np.eye(needed), mixtures])


def expected_latency(workers: int, needed: int, *, rate: float = 1.0) -> float:
    """Computes the expected time until `needed` of `workers` finish, each doing 1 / `needed` of the work.

    One worker needs time 1 + Exp(`rate`) for the whole job, and proportionally less for a part of the job. Without
    a code all workers are needed: `expected_latency(n, n)`.

    Args:
        workers: n.
        needed: k.
        rate: μ, the rate of the exponential part; a small rate means heavy straggling.

    Returns:
        (1 + (Hₙ − Hₙ₋ₖ) / μ) / k, where Hₙ are the harmonic numbers; the unit is the minimum time for the whole job.

    Example:
        >>> round(expected_latency(2, 2), 4), round(expected_latency(2, 1), 4)  # both halves, or either whole
        (1.25, 1.5)

    References:
        Lee et al., arXiv 1512.02673, equations 9 to 12; the gain of the best k over k = n grows like log n.
    """
    harmonic = sum(1 / i for i in range(workers - needed + 1, workers + 1))
    return (1 + harmonic / rate) / needed


def best_needed(workers: int, *, rate: float = 1.0) -> int:
    """Finds the number k of needed workers that minimizes `expected_latency`.

    Example:
        >>> best_needed(100)  # for many workers (1 + 1 / W₋₁(−e⁻²)) n = 0.682 n
        69
    """
    needed = np.arange(1, workers + 1)
    harmonic = np.cumsum(1 / needed[::-1])  # of the fastest 1, 2, …, n workers
    return int(needed[np.argmin((1 + harmonic / rate) / needed)])


def simulate_latency(
    key: Key[Array, ""], workers: int, needed: int, *, rate: float = 1.0, trials: int = 1000
) -> Float[Array, " trials"]:
    """Draws random latencies whose mean is `expected_latency`.

    Example:
        >>> simulate_latency(jax.random.key(0), 10, 7, trials=5).shape
        (5,)
    """
    seconds = (1 + jax.random.exponential(key, (trials, workers)) / rate) / needed
    # With an array as index, JAX does not recompile for every `needed`.
    return jnp.sort(seconds, axis=1)[:, jnp.int32(needed - 1)]
