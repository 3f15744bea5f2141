"""Placements, nested ones on every kind of mesh, the meshes themselves and simulated devices."""

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import workbench as wb
from workbench.errors import MeshError, PlacementError
from workbench.primitives import Layout, find_layout

pytestmark = pytest.mark.usefixtures("little_optimized")
PODS, CLIENTS = 4, 6
A, E = AxisType.Auto, AxisType.Explicit
MESHES: dict[str, tuple[dict[str, int], Any] | None] = {
    "no mesh": None,
    "pods, Auto": ({"pods": 4}, A),
    "both, Auto": ({"pods": 4, "clients": 2}, A),
    "both, Explicit": ({"pods": 4, "clients": 2}, E),
    "clients, Explicit": ({"clients": 2}, E),
    "uneven, Auto": ({"pods": 2, "clients": 4}, A),
    "uneven, Explicit": ({"pods": 2, "clients": 4}, E),
    "mixed": ({"pods": 4, "clients": 2}, (A, E)),
    "neither": ({"model": 8}, E),
}


def _under(name: str) -> Any:
    import contextlib

    made = MESHES[name]
    return contextlib.nullcontext() if made is None else jax.set_mesh(wb.make_mesh(made[0], axis_types=made[1]))


@wb.program(placements={"pods": PODS, "clients": CLIENTS})
def nested(w: Any, x: Any) -> Any:
    to_pods = wb.broadcast(w, to="pods")
    to_clients = wb.broadcast(to_pods, at="pods", to="clients")
    rows = wb.map_fn(lambda v, row: jnp.tanh(v * row), (to_clients, x), over="clients")
    of_pods = wb.reduce_mean(rows, over="clients")

    def pod(value: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * value.sum(), wb.broadcast(value)))

    scaled = wb.map_fn(pod, of_pods, over="pods")
    weights = jnp.arange(1.0, PODS + 1)
    keys = np.arange(PODS * CLIENTS, dtype=np.int32).reshape(PODS, CLIENTS) % 3
    return {
        "mean": wb.reduce_weighted_mean(scaled, weights, over="pods"),
        "max of min": wb.reduce_max(wb.reduce_min(rows, over="clients"), over="pods"),
        "everywhere": wb.broadcast(w, to="clients"),
        "by key": wb.reduce_by_key(rows, keys, 3, over="clients"),
        "selected": wb.reduce_sum(wb.select(rows, np.array([3, 1]), over="clients"), over="pods"),
    }


def plain(w: Any, x: Any) -> Any:
    rows = jnp.tanh(w[None, None] * x)
    of_pods = rows.mean(1)
    scaled = CLIENTS * of_pods * of_pods.sum(-1, keepdims=True)
    weights = jnp.arange(1.0, PODS + 1)[:, None]
    keys = np.arange(PODS * CLIENTS).reshape(PODS, CLIENTS) % 3
    groups = jnp.asarray(keys[..., None] == np.arange(3)).astype(jnp.float32)
    return {
        "mean": (scaled * weights).sum(0) / weights.sum(),
        "max of min": rows.min(1).max(0),
        "everywhere": jnp.broadcast_to(w, (PODS, CLIENTS, 3)),
        "by key": jnp.einsum("pck,pcs->pks", groups, rows),
        "selected": rows[:, [3, 1]].sum(0),
    }


def _with_gradient(fn: Any) -> Any:
    def loss(w: Any, x: Any) -> Any:
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(fn(w, x)))

    return lambda w, x: (fn(w, x), jax.grad(loss, argnums=(0, 1))(w, x))


def _inputs() -> tuple[Any, Any]:
    return jnp.array([1.0, 2.0, -1.0]), jnp.arange(PODS * CLIENTS * 3.0).reshape(PODS, CLIENTS, 3) / 50


@pytest.mark.parametrize("how", [jax.jit, lambda fn: wb.jit(fn, chunk_size=2)], ids=["jax.jit", "2 at once"])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_nested_placements_equal_jnp_with_their_gradient(mesh: str, how: Any) -> None:
    expected = jax.jit(_with_gradient(plain))(*_inputs())
    with _under(mesh):
        got = how(_with_gradient(nested))(*_inputs())
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(jax.device_get(ours), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mesh", ["no mesh", "both, Auto", "both, Explicit"], ids=str)
def test_nested_placements_run_eagerly(mesh: str) -> None:
    with _under(mesh):
        got = nested(*_inputs())
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(plain(*_inputs())), strict=True):
        np.testing.assert_allclose(jax.device_get(ours), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [jax.jit, wb.jit], ids=["jax.jit", "wb.jit"])
def test_innermost_of_three_placements(how: Any) -> None:
    x = jnp.arange(24.0).reshape(2, 3, 4)

    def innermost(w: Any, x: Any) -> Any:
        return (
            wb.broadcast(w, to="clients"),
            wb.broadcast(x[:, 0, 0], at="regions", to="clients"),
            wb.broadcast(x[:, :, 0], at="pods", to="clients"),
            wb.map_fn(lambda row: 2 * row, x, over="clients"),
            wb.reduce_sum(x, over="clients"),
            wb.reduce_weighted_mean(x, jnp.ones_like(x), over="clients"),
            wb.reduce_by_key(x, jnp.zeros(x.shape, jnp.int32), 1, over="clients"),
            wb.select(x, np.array([3, 0]), over="clients"),
        )

    got = how(wb.program(placements={"regions": 2, "pods": 3, "clients": 4})(innermost))(jnp.float32(5), x)
    sent = (jnp.full(x.shape, 5.0), jnp.repeat(x[:, 0, 0], 12).reshape(x.shape), jnp.repeat(x[..., :1], 4, axis=2))
    expected = (*sent, 2 * x, x.sum(2), x.mean(2), x.sum(2, keepdims=True), x[..., jnp.array([3, 0])])
    jax.tree.map(np.testing.assert_allclose, got, expected)


@pytest.mark.parametrize(
    "fn",
    [wb.select, lambda x, keys: wb.reduce_by_key(x, keys, 3)],
    ids=["select", "reduce_by_key"],
)
def test_cohorts_and_keys_in_an_explicitly_sharded_batch(fn: Any) -> None:
    x, numbers = jnp.arange(6.0).reshape(3, 2), np.array([[0, 1, 2], [1, 2, 1], [2, 0, 0], [1, 1, 1]])
    program = wb.program(clients=3)(fn)
    with jax.set_mesh(wb.make_mesh(batch=4, axis_types=E)):
        sharded = jax.device_put(numbers, jax.P("batch"))
        got = jax.jit(jax.vmap(program, in_axes=(None, 0)))(x, sharded)
    assert got.sharding.spec[0] == "batch"
    np.testing.assert_allclose(got, np.stack([program(x, row) for row in numbers]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "`program` was given no placement."),
        ({"clients": 3, "placements": {"clients": 3}}, "both `clients=3` and `placements={'clients': 3}`"),
        ({"clients": 0}, "`program` was given placements {'clients': 0}. The size of a placement is its number"),
        ({"clients": True}, "placements {'clients': True}"),
        ({"clients": 2.0}, "placements {'clients': 2.0}"),
        ({"clients": 3, "axes": {"pods": "x"}}, "mesh axes for ['pods'], but its placements are ['clients']"),
    ],
    ids=["nothing", "twice", "nobody", "a bool", "a float", "axes of another"],
)
def test_program_rejects_placements_that_cannot_be(given: Any, said: str) -> None:
    with pytest.raises(PlacementError) as caught:
        wb.program(**given)
    assert said in str(caught.value)


def test_number_of_clients_may_come_from_numpy() -> None:
    assert wb.program(clients=np.int64(3)).placements[0].size == 3


@pytest.mark.parametrize(
    ("clients", "kind", "spread_over"),
    [(16, A, 8), (10, A, 8), (16, E, 8), (10, E, None)],
    ids=["Auto", "Auto, uneven", "Explicit", "Explicit, uneven"],
)
def test_layout_of_a_placement(clients: int, kind: Any, spread_over: int | None) -> None:
    (placement,) = wb.program(clients=clients).placements
    with jax.set_mesh(wb.make_mesh(clients=8, axis_types=kind)):
        layout = find_layout(placement)
        padded = find_layout(placement, uneven=True)
    assert (layout and layout.size) == spread_over
    assert isinstance(padded, Layout)


def test_placement_over_several_mesh_axes() -> None:
    spread = wb.program(clients=16, axes={"clients": ("x", "y")})
    with jax.set_mesh(wb.make_mesh(x=4, y=2)):
        rows = jax.jit(spread(wb.broadcast))(jnp.ones(3))
    assert rows.sharding.shard_shape(rows.shape) == (2, 3)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "`make_mesh` was given axes {}. Every mesh axis must have a name and a positive size"),
        ({"clients": 0}, "axes {'clients': 0}"),
        ({"clients": 16}, "asked for clients=16 = 16 devices, but there are 8 (cpu)"),
    ],
    ids=["nothing", "empty axis", "too many"],
)
def test_make_mesh_rejects_what_no_devices_can_hold(axes: Any, said: str) -> None:
    with pytest.raises(MeshError) as caught:
        wb.make_mesh(**axes)
    assert said in str(caught.value)


@pytest.mark.parametrize("look", ["inspect", "jit"])
def test_mesh_of_jax_with_a_name_that_ends_xla_is_refused(look: str) -> None:
    mesh = jax.make_mesh((4,), ("gerät",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    program = wb.program(clients=4)(lambda x: wb.reduce_sum(wb.map_fn(lambda row: row * 2, x)))
    x = jnp.ones(4)  # JAX itself would end the process here under that mesh
    with jax.set_mesh(mesh), pytest.raises(MeshError, match="aborts the process"):
        getattr(wb, look)(program)(x)


def test_make_mesh_takes_the_devices_it_needs() -> None:
    mesh = wb.make_mesh(clients=2, model=2)
    assert (dict(mesh.shape), mesh.devices.size) == ({"clients": 2, "model": 2}, 4)


def test_simulate_devices_after_jax_started_says_to_restart() -> None:
    wb.simulate_devices(len(jax.devices()))
    with pytest.raises(MeshError, match=r"`simulate_devices\(3\)` came too late: JAX has already started with 8"):
        wb.simulate_devices(3)
    with pytest.raises(MeshError, match="is a positive int"):
        wb.simulate_devices(0)


def test_simulated_devices_get_threads_enough_for_their_collectives() -> None:
    code = (
        "import os, workbench as wb; wb.simulate_devices(6)\n"
        "import jax; print(len(jax.devices()), os.environ['NPROC'] == os.environ['PJRT_NPROC'], os.environ['NPROC'])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("NPROC", "PJRT_NPROC", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    devices, same, threads = done.stdout.split()
    assert (devices, same) == ("6", "True")
    assert int(threads) >= 24  # four per device: with fewer, XLA's rendezvous starved
