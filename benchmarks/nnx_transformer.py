"""A train step as users write it: a Flax NNX transformer with its batch sharded over `data`, its layers over `model`.

Apart from the mesh, this file does not use the workbench. The documentation's pictures show the file.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import workbench as wb


def sharded(*axes: str | None) -> nnx.Initializer:
    return nnx.with_partitioning(nnx.initializers.lecun_normal(), axes)


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=width, decode=False, rngs=rngs)
        self.norm, self.norm_mlp = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, kernel_init=sharded(None, "model"), rngs=rngs)
        self.down = nnx.Linear(4 * width, width, kernel_init=sharded("model", None), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x))
        return x + self.down(jax.nn.gelu(self.up(self.norm_mlp(x))))


class Transformer(nnx.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, rngs: nnx.Rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(layers)])
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model: Transformer, tokens: jax.Array) -> jax.Array:
    logits = model(tokens)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@nnx.jit
def train_step(model: Transformer, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    loss, gradient = nnx.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, gradient)
    return loss


def call() -> tuple[jax.sharding.Mesh, tuple[Transformer, nnx.Optimizer, jax.Array]]:
    """The mesh, and the arguments of one call of `train_step`."""
    mesh = wb.make_mesh(data=4, model=2)
    with jax.set_mesh(mesh):
        model = Transformer(128, 64, 4, nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    tokens = jax.device_put(jnp.zeros((16, 32), jnp.int32), jax.NamedSharding(mesh, jax.P("data")))
    return mesh, (model, optimizer, tokens)
