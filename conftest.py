"""What the examples in docstrings may use without importing it, and the eight devices that they run on."""

import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "64")  # more threads than simulated devices: see workbench/mesh/_simulate.py

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True)
def _names_of_examples(doctest_namespace: dict[str, Any]) -> None:
    import jax.numpy as jnp
    import numpy as np

    import workbench
    from workbench import primitives

    doctest_namespace.update(jax=jax, jnp=jnp, np=np, wb=workbench)
    for name in (
        "program",
        "broadcast",
        "map_fn",
        "select",
        "sample",
        *(n for n in dir(primitives) if n.startswith("reduce_")),
    ):
        doctest_namespace[name] = getattr(primitives, name)
