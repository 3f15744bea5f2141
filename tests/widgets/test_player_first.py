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


def permuted(pairs, axis):
    """The program's only collective in the player: a permute over one axis of a mesh of 2 x 4."""
    mesh, rows = wb.make_mesh(pod=2, ring=4), jax.P(("pod", "ring"))
    send = jax.shard_map(lambda x: jax.lax.ppermute(x, axis, pairs), mesh=mesh, in_specs=rows, out_specs=rows)
    (collective,) = PlayerView(None, wb.inspect(jax.jit(send))(jnp.ones(64))).data["collectives"]
    return collective


@pytest.mark.parametrize(
    ("pairs", "axis", "devices", "messages", "groups"),
    [
        ([(0, 1), (1, 2), (2, 3), (3, 0)], "ring", [0, 1, 2, 3], [(0, 1), (1, 2), (2, 3), (3, 0)], 2),
        pytest.param([(0, 2), (1, 3), (2, 0), (3, 1)], "ring", [0, 2], [(0, 1), (1, 0)], 4, id="two steps on"),
        pytest.param([(3, 2), (2, 1), (1, 0)], "ring", [3, 2, 1, 0], [(0, 1), (1, 2), (2, 3)], 2, id="a chain"),
        pytest.param([(0, 1), (1, 0)], "pod", [0, 4], [(0, 1), (1, 0)], 4, id="other axis"),
    ],
)
def test_a_permute_has_the_messages_of_the_program(pairs, axis, devices, messages, groups) -> None:
    found = permuted(pairs, axis)
    assert found["devices"] == [f"cpu:{device}" for device in devices]
    assert sorted(map(tuple, found["pairs"])) == messages
    assert found["groups"] == groups
