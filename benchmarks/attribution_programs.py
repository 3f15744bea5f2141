"""Programs from published libraries and tutorials, to check that each figure is attributed to a line.

Every maker returns a function and its arguments. The programs use the libraries' models, optimizers, samplers and
kernels. Lines that communicate have a mark (`# at: name`), so that tests can count collectives by hand.
"""

# pyright: reportMissingImports=false

import dataclasses
import functools
import importlib.util
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a program, on a mesh or on one device."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: Mesh | None = None


def make_mesh(*sizes: int, names: tuple[str, ...]) -> Mesh:
    """A mesh of the first devices with automatic axes."""
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def line_of(mark: str) -> int:
    """The line of this file with a mark."""
    with Path(__file__).open(encoding="utf-8") as file:
        marked = [number for number, text in enumerate(file, start=1) if text.rstrip().endswith(f"# at: {mark}")]
    assert len(marked) == 1, f"{mark!r} marks the lines {marked}"
    return marked[0]


def nnx_transformer() -> Call:
    """Flax NNX: two encoder blocks, AdamW, data parallel over four devices and tensor parallel over two."""
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(x)))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(64, 32, rngs=rngs)
            self.first, self.second = Block(32, rngs), Block(32, rngs)
            self.head = nnx.Linear(32, 64, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            return self.head(self.second(self.first(self.embed(tokens))))

    mesh = make_mesh(4, 2, names=("data", "model"))
    graph, params = nnx.split(Model(nnx.Rngs(0)))
    optimizer = optax.adamw(1e-3)

    def loss(params: Any, tokens: Any) -> Any:
        logits = nnx.merge(graph, params)(tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    def train_step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    placed = jax.device_put(params, jax.tree.map(lambda x: NamedSharding(mesh, _columns(x)), params))
    tokens = jax.device_put(jnp.zeros((8, 16), jnp.int32), NamedSharding(mesh, P("data")))
    return Call(train_step, (placed, optimizer.init(placed), tokens), mesh)


def linen_transformer() -> Call:
    """Flax linen: one decoder block with dropout off, SGD, fully sharded over eight devices."""
    import optax
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
            return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(4 * x.shape[-1])(x)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(64, 32)(tokens)
            for index in range(2):
                x = Block(name=f"layers_{index}")(x)
            return nn.Dense(64)(x)

    mesh, net, tokens = make_mesh(8, names=("fsdp",)), Net(), jnp.zeros((8, 16), jnp.int32)
    params = net.init(jax.random.key(0), tokens)

    def loss(params: Any, tokens: Any) -> Any:
        logits: Any = net.apply(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

    def train_step(params: Any, tokens: Any) -> Any:
        gradients = jax.grad(loss)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    placed = jax.device_put(params, jax.tree.map(lambda x: NamedSharding(mesh, _rows(x)), params))
    return Call(train_step, (placed, jax.device_put(tokens, NamedSharding(mesh, P("fsdp")))), mesh)


def linen_lstm() -> Call:
    """Flax linen: an LSTM over a sequence, and its gradient."""
    from flax import linen as nn

    model, x = nn.RNN(nn.OptimizedLSTMCell(16)), jnp.ones((4, 12, 8))
    params = model.init(jax.random.key(0), x)

    def loss(params: Any, x: Any) -> Any:
        outputs: Any = model.apply(params, x)
        return (outputs**2).mean()

    return Call(jax.grad(loss), (params, x))


def optax_loop() -> Call:
    """Optax: fifty steps of Adam with a cosine schedule and clipping, in one scan."""
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(1e-2, 50)))

    def loss(params: Any, x: Any) -> Any:
        return ((jnp.tanh(x @ params["w"]) @ params["v"]) ** 2).mean()

    def train(params: Any, x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            params, state = carry
            gradients = jax.grad(loss)(params, x)
            updates, state = optimizer.update(gradients, state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), length=50)[0][0]

    return Call(train, ({"w": jnp.ones((16, 32)), "v": jnp.ones((32, 4))}, jnp.ones((8, 16))))


def optax_lbfgs() -> Call:
    """Optax: L-BFGS with its line search, whose number of steps is unknown before it runs."""
    import optax

    solver = optax.lbfgs(memory_size=3)

    def rosenbrock(x: Any) -> Any:
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)

    def minimize(x: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            x, state = carry
            value, gradient = optax.value_and_grad_from_state(rosenbrock)(x, state=state)
            updates, state = solver.update(gradient, state, x, value=value, grad=gradient, value_fn=rosenbrock)
            return (optax.apply_updates(x, updates), state), value

        return jax.lax.scan(step, (x, solver.init(x)), length=5)[0][0]

    return Call(minimize, (jnp.zeros(64),))


def ring_attention() -> Call:
    """Ring attention over a sequence sharded over eight devices."""
    mesh = make_mesh(8, names=("ring",))
    turn = [(i, (i + 1) % 8) for i in range(8)]

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"))
    def attend(q: Any, k: Any, v: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            k, v, total, weight = carry
            scores = jnp.exp(q @ k.T / jnp.sqrt(q.shape[-1]).astype(q.dtype))
            total, weight = total + scores @ v, weight + scores.sum(axis=1)
            k = jax.lax.ppermute(k, "ring", turn)  # at: ring keys
            v = jax.lax.ppermute(v, "ring", turn)  # at: ring values
            return (k, v, total, weight), None

        start = k, v, jnp.zeros_like(q), jnp.zeros_like(q[:, 0])
        (_, _, total, weight), _ = jax.lax.scan(step, start, length=8)
        return total / weight[:, None]

    q, k, v = (jax.device_put(jnp.ones((64, 16)), NamedSharding(mesh, P("ring"))) for _ in range(3))
    return Call(attend, (q, k, v), mesh)


def pallas_interpret() -> Call:
    """A matrix product in a Pallas kernel with a grid, interpreted."""
    from jax.experimental import pallas as pl

    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] @ y[...]

    def product(x: Any, y: Any) -> Any:
        call = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((64, 64), x.dtype),
            grid=(4, 4),
            in_specs=[pl.BlockSpec((16, 32), lambda i, j: (i, 0)), pl.BlockSpec((32, 16), lambda i, j: (0, j))],
            out_specs=pl.BlockSpec((16, 16), lambda i, j: (i, j)),
            interpret=True,
        )
        return call(x, y)

    return Call(product, (jnp.ones((64, 32)), jnp.ones((32, 64))))


def scanned_layers() -> Call:
    """24 layers in one scan with rematerialisation, and their gradient."""

    def layer(x: Any, w: Any) -> Any:
        with jax.named_scope("mlp"):
            return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def loss(weights: Any, x: Any) -> Any:
        x, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return (x**2).mean()

    weights = {"up": jnp.ones((24, 16, 64)) * 0.01, "down": jnp.ones((24, 64, 16)) * 0.01}
    return Call(jax.grad(loss), (weights, jnp.ones((8, 16))))


def pipeline() -> Call:
    """Four stages of a pipeline, eight microbatches, activations passed on by `ppermute`."""
    mesh, stages, batches = make_mesh(4, names=("stages",)), 4, 8

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("stages"), P()), out_specs=P(), check_vma=False)
    def run(weights: Any, x: Any) -> Any:
        index = jax.lax.axis_index("stages")

        def step(state: Any, turn: Any) -> Any:
            fed = jnp.where(index == 0, x[jnp.minimum(turn, batches - 1)], state)
            done = jnp.tanh(fed @ weights[0])
            passed = jax.lax.ppermute(done, "stages", [(i, (i + 1) % stages) for i in range(stages)])  # at: pipeline
            return passed, done

        _, done = jax.lax.scan(step, jnp.zeros_like(x[0]), jnp.arange(batches + stages - 1))
        return jax.lax.psum(jnp.where(index == stages - 1, done[stages - 1 :], 0.0), "stages")  # at: pipeline result

    weights = jax.device_put(jnp.ones((4, 16, 16)), NamedSharding(mesh, P("stages")))
    return Call(run, (weights, jnp.ones((8, 4, 16))), mesh)


def mixture_of_experts() -> Call:
    """Eight experts on eight devices: tokens go to their expert and come back by `all_to_all`."""
    mesh = make_mesh(8, names=("experts",))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("experts"), out_specs=P("experts"))
    def layer(w: Any, x: Any) -> Any:
        chosen = jnp.argmax(x @ jnp.ones((16, 8)), axis=-1)
        slots = jax.nn.one_hot(chosen, 8, dtype=x.dtype)
        sent = jnp.einsum("te,td->etd", slots, x)
        sent = jax.lax.all_to_all(sent, "experts", 0, 0, tiled=True)  # at: tokens to experts
        done = jnp.tanh(sent.reshape(-1, 16) @ w[0]).reshape(8, -1, 16)
        back = jax.lax.all_to_all(done, "experts", 0, 0, tiled=True)  # at: tokens back
        return jnp.einsum("te,etd->td", slots, back)

    w, x = (jax.device_put(v, NamedSharding(mesh, P("experts"))) for v in (jnp.ones((8, 16, 16)), jnp.ones((64, 16))))
    return Call(layer, (w, x), mesh)


def mapreduce_round() -> Call:
    """A round of federated averaging over eight clients on eight devices."""
    import workbench as wb

    mesh = make_mesh(8, names=("clients",))

    @wb.program(clients=8)
    def averaging_round(w: Any, x: Any, y: Any) -> Any:
        def client(w: Any, x: Any, y: Any) -> Any:
            def step(w: Any, _: Any) -> Any:
                return w - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w), None

            return jax.lax.scan(step, w, length=3)[0]

        models = wb.map_fn(client, (wb.broadcast(w), x, y))  # at: clients train
        return wb.reduce_mean(models)  # at: mean of models

    place = functools.partial(jax.device_put, device=NamedSharding(mesh, P("clients")))
    return Call(averaging_round, (jnp.ones((8, 2)), place(jnp.ones((8, 4, 8))), place(jnp.ones((8, 4, 2)))), mesh)


def mapreduce_gradient() -> Call:
    """The derivative of the loss after a round with respect to the model before it."""
    call = mapreduce_round()

    def meta_loss(w: Any, x: Any, y: Any) -> Any:
        return (call.fn(w, x, y) ** 2).sum()

    return Call(jax.grad(meta_loss), call.args, call.mesh)


def mapreduce_nested() -> Call:
    """A mean over the pods of each pod's mean over its clients."""
    import workbench as wb

    mesh = make_mesh(2, 4, names=("pods", "clients"))

    @wb.program(placements={"pods": 2, "clients": 4})
    def nested_round(w: Any, x: Any) -> Any:
        def client(w: Any, x: Any) -> Any:
            return jnp.tanh(x @ w)

        def pod(w: Any, x: Any) -> Any:
            updates = wb.map_fn(client, (wb.broadcast(w, to="clients"), x), over="clients")  # at: a pod's clients
            return wb.reduce_mean(updates, over="clients")  # at: mean of a pod

        means = wb.map_fn(pod, (wb.broadcast(w, to="pods"), x), over="pods")  # at: pods
        return wb.reduce_mean(means, over="pods")  # at: mean of pods

    return Call(nested_round, (jnp.ones((8, 8)), jnp.ones((2, 4, 8, 8))), mesh)


def equinox_attention() -> Call:
    """Equinox: attention and an MLP, and their gradient."""
    import equinox as eqx

    keys = jax.random.split(jax.random.key(0))
    attention = eqx.nn.MultiheadAttention(2, 16, key=keys[0])
    mlp = eqx.nn.MLP(16, 16, 64, 2, key=keys[1])
    params, static = eqx.partition((attention, mlp), eqx.is_array)

    def loss(params: Any, x: Any) -> Any:
        attention, mlp = eqx.combine(params, static)
        return (jax.vmap(mlp)(x + attention(x, x, x)) ** 2).mean()

    return Call(jax.grad(loss), (params, jnp.ones((12, 16))))


def haiku_net() -> Call:
    """Haiku: a convolution, a GRU step and an MLP, and their gradient."""
    import haiku as hk

    def forward(x: Any) -> Any:
        x = hk.Conv2D(8, 3)(x)
        x = hk.LayerNorm(-1, create_scale=True, create_offset=True)(jax.nn.relu(x))
        core = hk.GRU(16)
        out, _ = core(x.reshape(x.shape[0], -1), core.initial_state(x.shape[0]))
        return hk.nets.MLP([32, 4])(out)

    net, x = hk.without_apply_rng(hk.transform(forward)), jnp.ones((2, 8, 8, 3))
    params = net.init(jax.random.key(0), x)

    def loss(params: Any, x: Any) -> Any:
        return (net.apply(params, x) ** 2).mean()

    return Call(jax.grad(loss), (params, x))


def keras_net() -> Call:
    """Keras 3 on JAX: a small functional model, and its gradient."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    inputs = keras.Input((16,))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    hidden = keras.layers.LayerNormalization()(hidden)
    model = keras.Model(inputs, keras.layers.Dense(4)(hidden))
    trainable = [variable.value for variable in model.trainable_variables]
    other = [variable.value for variable in model.non_trainable_variables]

    def loss(trainable: Any, x: Any) -> Any:
        y, _ = model.stateless_call(trainable, other, x)
        return (y**2).mean()

    return Call(jax.grad(loss), (trainable, jnp.ones((8, 16))))


def numpyro_svi() -> Call:
    """Numpyro: one step of variational inference for a logistic regression."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO())
    x, y = jnp.ones((32, 8)), jnp.ones(32)
    state = svi.init(jax.random.key(0), x, y)

    def update(state: Any, x: Any, y: Any) -> Any:
        return svi.update(state, x, y)

    return Call(update, (state, x, y))


def blackjax_nuts() -> Call:
    """Blackjax: one step of the No-U-Turn sampler, with loops of unknown length."""
    import blackjax

    def logdensity(x: Any) -> Any:
        return -0.5 * jnp.sum(x @ (x * jnp.arange(1.0, 17.0)))

    sampler = blackjax.nuts(logdensity, step_size=0.1, inverse_mass_matrix=jnp.ones(16))
    state = sampler.init(jnp.ones(16))

    def sample(key: Any, state: Any) -> Any:
        return sampler.step(key, state)[0]

    return Call(sample, (jax.random.key(0), state))


HERE: tuple[Callable[[], Call], ...] = (
    nnx_transformer, linen_transformer, linen_lstm, optax_loop, optax_lbfgs, ring_attention, pallas_interpret,
    scanned_layers, pipeline, mixture_of_experts, mapreduce_round, mapreduce_gradient,
)  # fmt: skip
ELSEWHERE: dict[Callable[[], Call], str] = {  # program -> the package that it needs
    equinox_attention: "equinox",
    haiku_net: "haiku",
    keras_net: "keras",
    numpyro_svi: "numpyro",
    blackjax_nuts: "blackjax",
}


def installed() -> list[Callable[[], Call]]:
    """The programs whose packages are installed."""
    others = [make for make, package in ELSEWHERE.items() if importlib.util.find_spec(package) is not None]
    return [*HERE, *others]


def summary_of(make: Callable[[], Call]) -> str:
    """Describes a program in one line."""
    return (inspect.getdoc(make) or make.__name__).splitlines()[0].rstrip(".")


def _columns(x: Any) -> P:
    return P(None, "model") if np.ndim(x) == 2 and np.shape(x)[1] % 2 == 0 else P()


def _rows(x: Any) -> P:
    return P("fsdp") if np.ndim(x) and np.shape(x)[0] % 8 == 0 else P()
