"""Random generators on the host from seeds or PRNG keys."""

from typing import Any

import numpy as np
from jax import Array

from workbench.errors import DataError

Key = Any  # an int or a JAX PRNG key; jax is not imported just for the type name


def generator(key: Key, *folded: int) -> np.random.Generator:
    """Creates a numpy generator that depends only on the key and the folded-in numbers."""
    return np.random.default_rng([*_words(key), *folded])


def _words(key: Key) -> list[int]:
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if key >= 0:
            return [int(key)]
    elif not isinstance(key, bool) and hasattr(key, "dtype"):
        return _words_of_array(key)
    raise DataError(_wrong(key))


def _words_of_array(key: Array) -> list[int]:
    import jax

    words = None
    if jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        words = jax.random.key_data(key)
    elif key.dtype == np.uint32 and key.ndim == 1:
        words = key
    if words is None:
        raise DataError(_wrong(key))
    try:
        return np.asarray(words).ravel().tolist()
    except jax.errors.TracerArrayConversionError:
        message = (
            "the key of a shuffle or a cohort is a tracer: it was created inside a transformed function. Data are "
            "prepared on the host before the program runs: shuffle and draw cohorts outside `jit`."
        )
        raise DataError(message) from None


def _wrong(key: object) -> str:
    return (
        f"the key of a shuffle or a cohort is {key!r}. A key must be a seed (an int of at least 0) or one JAX PRNG "
        "key: pass, for example, 0 or `jax.random.key(0)`."
    )
