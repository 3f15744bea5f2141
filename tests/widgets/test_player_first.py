"""The player opens on the collective that a caption describes."""

import jax
import jax.numpy as jnp
import pytest
from workbench_widgets import PlayerView

import workbench as wb


@pytest.fixture(scope="module")
def gradient():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    w, x = (
        jax.ShapeDtypeStruct(shape, "float32", sharding=jax.NamedSharding(mesh, jax.P("data")))
        for shape in ((64, 64), (32, 64))
    )
    return wb.inspect(jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).sum()), on=mesh)(w, x)


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
def test_player_opens_on_the_kind_that_is_asked_for(gradient, kind):
    collectives = PlayerView(None, gradient, first=kind).data["collectives"]
    assert collectives[0]["kind"] == kind
    assert {collective["kind"] for collective in collectives} == {"all-gather", "all-reduce"}
