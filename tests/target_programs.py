"""Programs that are compiled for absent hardware: a local-SGD round, a transformer step, one that does not fit."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

from workbench.aot import fit_axes, lower_for_target, parse_target, target_mesh

STEPS, BATCH, WIDTH = 4, 32, 512
CLIENTS_PER_SHARD = 2


def mesh_for(target, model=2, *, force=False):
    """A `clients` x `model` mesh over all devices of a target."""
    record = parse_target(target, force=force)
    axes = fit_axes(record, {"clients": 1, "model": model})
    return target_mesh(record, tuple(axes.values()), tuple(axes))


def mesh_for_sixteen(target):
    """The same with at most 16 places for clients, so that no client is cut: what is left goes to `model`."""
    devices = parse_target(target).devices
    return mesh_for(target, model=max(2, devices // 16))


def struct(mesh, shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh.abstract, P(*spec)))


def local_sgd_round(params, data):
    """Four SGD steps of a two-layer network at every client, then the mean over clients."""

    def train(x):
        def step(params, _):
            def loss(params):
                return jnp.mean((jax.nn.relu(x @ params["a"]) @ params["b"]) ** 2)

            gradient = jax.grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), None

        return jax.lax.scan(step, params, None, length=STEPS)[0]

    with jax.named_scope("wb:1:clients"):
        trained = jax.vmap(train)(data)
    with jax.named_scope("wb:2:reduce"):
        return jax.tree.map(lambda p: p.mean(0), trained)


def lowered_round(mesh):
    """StableHLO of the round with two clients per shard of the clients axis.

    Flops per device of the five matmuls (two forward, one for each weight, one for the hidden layer backwards):
    4 steps x 5 matmuls x 2 clients x 2 x 32 x 512 x 512 / model = 335,544,320 on a model axis of 2.
    """
    clients = mesh.axes["clients"] * CLIENTS_PER_SHARD
    params = {"a": struct(mesh, (WIDTH, WIDTH), None, "model"), "b": struct(mesh, (WIDTH, WIDTH), "model", None)}
    return lower_for_target(local_sgd_round, (params, struct(mesh, (clients, BATCH, WIDTH), "clients")), mesh)


LAYERS, HEADS, MODEL, HIDDEN, TOKENS, CLIENTS = 12, 16, 128, 256, 64, 16


def transformer_step(params, tokens):
    """One SGD step of a 12-layer transformer at each of 16 clients, the mean of the gradients at the server."""

    def layer(x, weights):
        def heads(name):
            return (x @ weights[name]).reshape(TOKENS, HEADS, MODEL // HEADS)

        scores = jnp.einsum("qhd,khd->hqk", heads("q"), heads("k"))
        mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), heads("v")).reshape(TOKENS, MODEL)
        x = x + mixed @ weights["o"]
        return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"], None

    def loss(params, x):
        return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    with jax.named_scope("wb:1:clients"):
        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, tokens)
    with jax.named_scope("wb:2:reduce"):
        return jax.tree.map(lambda p, g: p - 0.1 * g.mean(0), params, gradients)


def transformer_flops(mesh):
    """Matmul flops of one device by hand, all 16 heads and both feed-forward halves cut along `model`.

    One layer and token: q, k, v and o are 4 x 2 M^2, the feed-forward part 2 x 2 M H, the two products with all
    tokens 2 x 2 T M. Backwards every matmul becomes two.
    """
    forward = TOKENS * (8 * MODEL**2 + 4 * MODEL * HIDDEN + 4 * TOKENS * MODEL)
    return CLIENTS * LAYERS * 3 * forward / mesh.target.devices


def lowered_transformer(mesh):
    """StableHLO of the transformer step."""
    shapes = {"q": (MODEL, MODEL), "k": (MODEL, MODEL), "v": (MODEL, MODEL), "up": (MODEL, HIDDEN)}
    params = {name: struct(mesh, (LAYERS, *shape), None, None, "model") for name, shape in shapes.items()}
    params |= {
        name: struct(mesh, (LAYERS, rows, MODEL), None, "model") for name, rows in (("o", MODEL), ("down", HIDDEN))
    }
    return lower_for_target(transformer_step, (params, struct(mesh, (CLIENTS, TOKENS, MODEL), "clients")), mesh)


def too_large(w, x):
    with jax.named_scope("wb:1:clients"):
        for _ in range(6):
            x = jnp.tanh(x @ w)
    return x.sum()


def lowered_too_large(mesh, rows):
    """The gradient of six layers over `rows` rows of 8192 floats per shard: 4 GiB per kept layer at 131072 rows."""
    w = struct(mesh, (8192, 8192), None, "model")
    return lower_for_target(
        jax.grad(too_large), (w, struct(mesh, (mesh.axes["clients"] * rows, 8192), "clients")), mesh
    )
