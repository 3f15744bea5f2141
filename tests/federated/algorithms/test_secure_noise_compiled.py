"""The compiled noise of `secure_mean`: its file compiles as users do, unlike that of its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.federated.algorithms import SecureSession
from workbench.federated.algorithms._discrete_gaussian import discrete_gaussian
from workbench.primitives import program

CLIENTS = 5


def test_noise_runs_without_agreement_of_devices_on_each_draw() -> None:
    pytest.importorskip("cryptography", reason="needs the extra `secure-aggregation`")
    mesh = jax.make_mesh((CLIENTS,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,))
    masks = SecureSession(CLIENTS, 3).masks(np.ones(CLIENTS, bool))
    with jax.set_mesh(mesh):
        text = jax.jit(program(clients=CLIENTS)(lambda s: wb.map_fn(lambda k: discrete_gaussian(k, 9, 4), (s,)))).lower(
            jnp.asarray(masks.noise)
        ).compile().as_text()  # fmt: skip
    # The loop of the steps has a fixed length; the one for what is left asks once more per step, almost never.
    assert text.count('known_trip_count":{"n":"544"}') >= 1
