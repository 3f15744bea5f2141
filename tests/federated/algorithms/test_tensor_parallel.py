"""Tensor-parallel layers: equal to the plain layer, forward and backward, and exactly the papers' communication."""

import functools
import math
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench import algorithms
from workbench.errors import MeshError, ProgramError

TOKENS, SEQUENCE, FEATURES, HIDDEN, HEADS = 32, 4, 16, 48, 4
KINDS: list[tuple[Any, dict[str, int]]] = [
    ("1d", {"cols": 4}),
    ("2d", {"rows": 2, "cols": 2}),
    ("2.5d", {"layers": 2, "rows": 2, "cols": 2}),
    ("2.5d", {"layers": 4, "rows": 1, "cols": 1}),
    ("3d", {"layers": 2, "rows": 2, "cols": 2}),
]
IDS = ["1d", "2d", "2.5d", "2.5d of layers alone", "3d"]
every_kind = pytest.mark.parametrize(("kind", "axes"), KINDS, ids=IDS)


def mesh_of(axes: dict[str, int]) -> Any:
    devices = jax.devices()[: math.prod(axes.values())]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), devices=devices, axis_types=(AxisType.Auto,) * len(axes))


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape).astype(np.float32)) / shape[0] ** 0.5 for shape in shapes]


def plain_norm(x: Any, scale: Any, offset: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale[None] + offset[None]


def plain_attention(x: Any, qkv: Any, out: Any) -> Any:
    size = FEATURES // HEADS
    q, k, v = jnp.moveaxis((x @ qkv).reshape(-1, SEQUENCE, HEADS, 3, size), 3, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / size**0.5
    seen = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
    weights = jax.nn.softmax(jnp.where(seen[None, None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ out


LAYERS: dict[str, tuple[Any, Any, list[tuple[int, ...]]]] = {
    "linear": (
        lambda t: t.linear,
        lambda x, w, b: x @ w + b[None],
        [(TOKENS, FEATURES), (FEATURES, HIDDEN), (HIDDEN,)],
    ),
    "second linear": (
        lambda t: lambda x, w, b: t.linear(x, w, b, second=True),
        lambda x, w, b: x @ w + b[None],
        [(TOKENS, HIDDEN), (HIDDEN, FEATURES), (FEATURES,)],
    ),
    "layer norm": (lambda t: t.layer_norm, plain_norm, [(TOKENS, FEATURES), (FEATURES,), (FEATURES,)]),
    "mlp": (
        lambda t: t.mlp,
        lambda x, v, w: jax.nn.gelu(x @ v) @ w,
        [(TOKENS, FEATURES), (FEATURES, HIDDEN), (HIDDEN, FEATURES)],
    ),
    "attention": (
        lambda t: lambda x, v, w: t.attention(x, v, w, heads=HEADS, sequence=SEQUENCE),
        plain_attention,
        [(TOKENS, FEATURES), (FEATURES, 3 * FEATURES), (FEATURES, FEATURES)],
    ),
}


def result_and_slopes(layer: Any) -> Any:
    return jax.jit(lambda *a: (layer(*a), jax.grad(lambda *a: jnp.sum(jnp.sin(layer(*a))), argnums=(0, 1, 2))(*a)))


@functools.cache
def plain_result_and_slopes(layer: str) -> Any:
    _, plain, shapes = LAYERS[layer]
    return result_and_slopes(plain)(*arrays(*shapes))


@pytest.mark.usefixtures("little_optimized")
@pytest.mark.parametrize("layer", LAYERS)
@every_kind
def test_layers_and_their_gradients_are_those_of_the_plain_layer(kind: Any, axes: Any, layer: str) -> None:
    split, _, shapes = LAYERS[layer]
    with jax.set_mesh(mesh_of(axes)):
        result, slopes = result_and_slopes(split(algorithms.tensor_parallel(kind)))(*arrays(*shapes))
    expected, expected_slopes = plain_result_and_slopes(layer)
    np.testing.assert_allclose(result, expected, atol=2e-5)
    for slope, wanted in zip(slopes, expected_slopes, strict=True):
        np.testing.assert_allclose(slope, wanted, atol=1e-4)


def test_layer_norm_of_bfloat16_with_a_large_mean_keeps_its_digits() -> None:
    x = (jax.random.normal(jax.random.key(0), (TOKENS, FEATURES)) + 100).astype(jnp.bfloat16)
    scale, offset = jnp.ones(FEATURES, jnp.bfloat16), jnp.zeros(FEATURES, jnp.bfloat16)
    with jax.set_mesh(mesh_of({"layers": 2, "rows": 2, "cols": 2})):
        result = jax.jit(algorithms.tensor_parallel("2.5d").layer_norm)(x, scale, offset)
    wanted = plain_norm(x.astype(jnp.float32), scale.astype(jnp.float32), offset.astype(jnp.float32))
    np.testing.assert_allclose(result.astype(jnp.float32), wanted, atol=0.02)


def placed(mesh: Any, layout: Any, *, second: bool) -> list[Any]:
    inputs, outputs = (HIDDEN, FEATURES) if second else (FEATURES, HIDDEN)
    x, w = arrays((TOKENS, inputs), (inputs, outputs))
    specs = layout.activations(second=second), layout.weights(second=second)
    return [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip((x, w), specs, strict=True)]


def sent_numbers(fn: Any, args: Any) -> tuple[float, Counter]:
    """Numbers of float32 that each device sends, and the collectives by kind and axes."""
    module = wb.inspect(fn)(*args).module
    assert module is not None
    sent = sum((c.wire_bytes or 0) * (c.executions or 0) for c in module.collectives) / 4
    return sent, Counter((c.kind, tuple(c.axes)) for c in module.collectives)


@pytest.mark.parametrize("second", [False, True])
@every_kind
def test_a_product_sends_what_the_papers_say(kind: Any, axes: Any, second: bool) -> None:
    """Counted by hand, for ring algorithms; see the docstring of `words`."""
    mesh, layout = mesh_of(axes), algorithms.tensor_parallel(kind)
    inputs, outputs = (HIDDEN, FEATURES) if second else (FEATURES, HIDDEN)
    p, d = axes["cols"], axes.get("layers", 1)
    if kind == "1d":
        forward = 2 * (p - 1) / p * TOKENS * outputs if second else 0
        backward = 0 if second else 2 * (p - 1) / p * TOKENS * inputs
    elif kind == "3d":
        a, b, c = TOKENS * inputs / p**3, inputs * outputs / p**3, TOKENS * outputs / p**3
        forward, backward = (p - 1) * (a + b + c), (p - 1) * (2 * a + 2 * b + c)
    else:
        a, b = TOKENS * inputs / (d * p * p), inputs * outputs / (p * p)
        forward, backward = (p - 1) * (a + b), 2 * (p - 1) * (a + b) + 2 * (d - 1) / d * b

    def product(x: Any, w: Any) -> Any:
        return layout.linear(x, w, second=second)

    def slopes(x: Any, w: Any, pulled: Any) -> Any:
        return jax.vjp(product, x, w)[1](pulled)

    with jax.set_mesh(mesh):
        x, w = placed(mesh, layout, second=second)
        pulled = jax.device_put(jnp.ones((TOKENS, outputs)), NamedSharding(mesh, layout.activations(second=not second)))
        sent, kinds = sent_numbers(product, (x, w))
        sent_back, _ = sent_numbers(slopes, (x, w, pulled))
    assert sent == forward
    assert sent_back == backward  # the gradients need the forward pass's inputs, and not its result
    if kind == "2.5d":
        assert not any("layers" in names for _, names in kinds)  # no sum over layers in the forward pass
    if kind != "1d":
        devices = tuple(axes.values())
        counted = layout.words(TOKENS, inputs, outputs, devices=devices)
        assert (counted["forward"], counted["backward"]) == (forward, backward)


@every_kind
def test_results_have_the_layout_that_the_next_layer_takes(kind: Any, axes: Any) -> None:
    layout, mesh = algorithms.tensor_parallel(kind), mesh_of(axes)
    with jax.set_mesh(mesh):
        hidden = jax.jit(layout.linear)(*placed(mesh, layout, second=False))
        x, v, w = arrays(*LAYERS["mlp"][2])
        narrowed = jax.jit(layout.mlp)(x, v, w)
    wanted = [(hidden, layout.activations(second=True)), (narrowed, layout.activations())]
    for array, spec in wanted:
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), array.ndim)


def test_the_words_of_a_line_are_the_mean_of_both_products() -> None:
    counted = algorithms.tensor_parallel("1d").words(8, 4, 16, devices=(4,))
    assert counted == {"forward": 96, "backward": 24, "total": 120}


@pytest.mark.parametrize(
    ("kind", "axes"),
    [("2d", {"rows": 2, "cols": 4}), ("3d", {"layers": 4, "rows": 1, "cols": 1}), ("2.5d", {"cols": 2})],
)
def test_meshes_of_another_shape_are_errors(kind: Any, axes: Any) -> None:
    with jax.set_mesh(mesh_of(axes)), pytest.raises(MeshError, match=r"found the mesh axes .*cols=") as raised:
        algorithms.tensor_parallel(kind).linear(jnp.ones((8, 8)), jnp.ones((8, 8)))
    assert f'tensor_parallel("{kind}").linear' in str(raised.value)


def test_sizes_that_do_not_divide_are_named() -> None:
    layout = algorithms.tensor_parallel("2.5d")
    with jax.set_mesh(mesh_of({"layers": 2, "rows": 2, "cols": 2})):
        with pytest.raises(ProgramError, match=r"tokens=6 by 4, w.shape\[1\]=5 by 2"):
            layout.linear(jnp.ones((6, 4)), jnp.ones((4, 5)))
        with pytest.raises(ProgramError, match="heads=3 by 2"):
            layout.attention(jnp.ones((16, 12)), jnp.ones((12, 36)), jnp.ones((12, 12)), heads=3, sequence=4)
    with pytest.raises(ProgramError, match=r"kind='4d'.*'2.5d'"):
        algorithms.tensor_parallel("4d")  # pyright: ignore[reportArgumentType]


def test_specs_name_every_device_once() -> None:
    assert algorithms.tensor_parallel("3d").weights(second=True) == P("rows", ("cols", "layers"))
