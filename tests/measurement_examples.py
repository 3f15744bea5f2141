"""A device that can vanish, and runs of rounds that several tests measure."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

quiet: dict[str, Any] = {"progress": False}


class FakeDevice:
    """An accelerator with a memory of its own that can be pulled out."""

    platform, device_kind, local_hardware_id, process_index = "gpu", "Fake 9000", 0, 0

    def __init__(self, number=0, stats=None):
        self.id = number
        self.stats = stats
        self.gone = False

    def memory_stats(self):
        if self.gone:
            raise RuntimeError("device lost")
        return self.stats


def count(state, round):
    return state + 1, {"loss": 10.0 - state}


def bits(state):
    """Every leaf as raw bytes, typed keys by their words: equal bits, not nearly equal numbers."""
    plain = [
        jax.random.key_data(leaf) if jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(state)
    ]
    return [np.asarray(leaf).tobytes() for leaf in plain]
