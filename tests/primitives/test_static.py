"""Pytrees with leaves that are no arrays, arrays that are gone, and names that XLA cannot read."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mapreduce_meshes import under

import workbench as wb
from workbench.errors import MeshError, ProgramError

HOWS = pytest.mark.parametrize("how", [lambda fn: fn, jax.jit, wb.jit], ids=["eager", "jax.jit", "wb.jit"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
    """A module in the manner of Equinox: its activation is a leaf."""

    weight: Any
    activation: Any

    def __call__(self, x: Any) -> Any:
        return self.activation(self.weight @ x)


def _train(layer: Layer, x: Any) -> Layer:
    slope = jax.grad(lambda w: jnp.sum(Layer(w, layer.activation)(x) ** 2))(layer.weight)
    return Layer(layer.weight - 0.1 * slope, layer.activation)


def _data() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    weight = random.normal(size=(3, 2)).astype(np.float32)
    return jnp.asarray(weight), jnp.asarray(random.normal(size=(8, 2)).astype(np.float32))


@pytest.mark.parametrize("mesh", ["no mesh", "Auto", "Explicit"], ids=str)
def test_module_with_a_function_leaf_goes_through_every_primitive(mesh: str) -> None:
    weight, x = _data()
    expected = jax.vmap(lambda row: _train(Layer(weight, jnp.tanh), row).weight)(x).mean(0)

    @wb.program(clients=8)
    def program(layer: Layer, x: Any) -> Layer:
        return wb.reduce_mean(wb.map_fn(_train, (wb.broadcast(layer), x)))

    with under(mesh):
        for how in (program, wb.jit(program)):
            got = how(Layer(weight, jnp.tanh), x)
            assert got.activation is jnp.tanh
            np.testing.assert_allclose(jax.device_get(got.weight), expected, rtol=1e-5)


def test_jit_compiles_again_for_another_static_leaf() -> None:
    weight, x = _data()
    apply = wb.jit(lambda layer, x: layer(x))
    for activation in (jnp.tanh, jax.nn.relu, jnp.tanh):
        np.testing.assert_allclose(apply(Layer(weight, activation), x[0]), activation(weight @ x[0]), rtol=1e-6)


def test_flax_modules_are_arguments_of_programs() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    _, x = _data()
    program = wb.program(clients=8)(lambda m, x: wb.reduce_mean(wb.map_fn(lambda m, row: m(row), (wb.broadcast(m), x))))
    np.testing.assert_allclose(wb.jit(program)(model, x), jax.vmap(model)(x).mean(0), rtol=1e-5, atol=1e-6)


def test_equinox_modules_are_arguments_of_programs() -> None:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    _, x = _data()
    program = wb.program(clients=8)(lambda m, x: wb.reduce_mean(wb.map_fn(lambda m, row: m(row), (wb.broadcast(m), x))))
    np.testing.assert_allclose(wb.jit(program)(model, x), jax.vmap(model)(x).mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        wb.jit(lambda x: x + 1),
        wb.program(clients=3)(lambda x: wb.reduce_sum(x)),
        wb.program(clients=3)(lambda x: wb.broadcast(x)),
        wb.program(clients=3)(lambda x: wb.map_fn(jnp.sin, x)),
    ],
    ids=["jit", "reduce_sum", "broadcast", "map_fn"],
)
def test_deleted_array_is_refused_before_jax_reads_it(call: Callable[[Any], Any]) -> None:
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(ProgramError, match=r"received 1 array\(s\) whose memory has been freed.*of shape \(3,\)"):
        call(gone)


@pytest.mark.parametrize("name", ["geräte", "a\\b", "a\nb", "🙂"], ids=ascii)
def test_axis_name_that_ends_xla_is_refused(name: str) -> None:
    with pytest.raises(MeshError, match="ASCII letters"):
        wb.make_mesh({name: 2})
    with pytest.raises(MeshError, match="ASCII letters"):
        wb.program(placements={name: 2})
    with pytest.raises(MeshError, match="ASCII letters"):
        wb.program(clients=2, axes={"clients": name})


def test_mistyped_axis_of_an_explicit_mesh_warns() -> None:
    program = wb.program(clients=8, axes={"clients": "cleints"})(lambda x: wb.reduce_sum(wb.broadcast(x)))
    with (
        jax.set_mesh(wb.make_mesh(clients=8, axis_types=jax.sharding.AxisType.Explicit)),
        pytest.warns(UserWarning, match='did you mean "clients"'),
    ):
        program(jnp.ones(2))


def test_callbacks_of_padding_slots_do_not_run() -> None:
    for mesh, chunk_size in (("no mesh", 3), ("Auto", 1), ("Auto", "auto")):
        received: list[int] = []

        def client(i: Any, received: list[int] = received) -> Any:
            jax.debug.callback(lambda j: received.append(int(j)), i)
            return i * 2

        program = wb.program(clients=13)(lambda i, client=client: wb.reduce_sum(wb.map_fn(client, i)))
        with under(mesh):
            total = wb.jit(program, chunk_size=chunk_size)(jnp.arange(13))
            jax.effects_barrier()
        assert sorted(received) == list(range(13))
        assert int(total) == 156


@HOWS
@pytest.mark.parametrize("mesh", ["no mesh", "Auto"], ids=str)
def test_refs_live_inside_of_a_client(mesh: str, how: Any) -> None:
    def client(row: Any) -> Any:
        ref = jax.new_ref(row)
        ref[...] = ref[...] * 2
        return ref[...]

    with under(mesh):
        got = how(wb.program(clients=8)(lambda x: wb.map_fn(client, x)))(jnp.ones((8, 2)))
    np.testing.assert_array_equal(jax.device_get(got), np.full((8, 2), 2.0, np.float32))


@HOWS
def test_constant_as_scan_input_on_explicit_axes(how: Any) -> None:
    def client(row: Any) -> Any:
        return jax.lax.scan(lambda v, c: (v * c, None), row, np.float32([1, 2, 3]))[0]

    with under("Explicit"):
        got = how(wb.program(clients=8)(lambda x: wb.map_fn(client, x)))(jnp.ones((8, 2)))
    np.testing.assert_array_equal(jax.device_get(got), np.full((8, 2), 6.0, np.float32))


def test_error_of_a_traced_condition_names_the_function_and_its_line() -> None:
    def choose(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        wb.jit(choose)(jnp.ones(2))
    assert "map_fn" not in str(caught.value)
    assert "choose at " in str(caught.value)
