"""A large program to look at: a round of federated averaging of a transformer whose layers are unrolled."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

import workbench as wb


def transformer_round(layers: int, width: int = 64) -> tuple[Callable, tuple]:
    """The round of 64 clients, and the shapes of its arguments; each layer adds about 390 instructions."""
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}

    def layer(x, w):
        q, k, v = jnp.split(x @ w["qkv"], 3, axis=-1)
        x = x + jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)) @ v @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def loss_of(params, tokens):
        x = params["embed"][tokens[:, :-1]]
        for w in params["layers"]:
            x = layer(x, w)
        logits = jax.nn.log_softmax(x @ params["embed"].T)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

    @wb.program(clients=64)
    def transformer_round(params, data):
        def train(local, tokens):
            def step(local, batch):
                return jax.tree.map(lambda p, g: p - 0.1 * g, local, jax.grad(loss_of)(local, batch)), None

            return jax.tree.map(jnp.subtract, jax.lax.scan(step, local, tokens)[0], local)

        change = wb.map_fn(train, (wb.broadcast(params), data))
        return jax.tree.map(jnp.add, params, wb.reduce_mean(change))

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    params = {
        "embed": array(64, width),
        "layers": [{name: array(*shape) for name, shape in shapes.items()} for _ in range(layers)],
    }
    return transformer_round, (params, array(64, 2, 2, 33, dtype=jnp.int32))
