"""Training loops in the style of public repositories, in each of which one line may watch the step.

A loop receives `watch`, which returns its function or `wb.watch` of the function. It returns the losses of its steps.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

Watched = Callable[[Callable[..., Any]], Any]
Loop = Callable[[Watched], list[float]]
LOOPS: dict[str, tuple[Loop, str]] = {}  # the loop, and the library that it needs besides those of the tests
STEPS = 3


def loop(library: str = "jax") -> Callable[[Loop], Loop]:
    def add(run: Loop) -> Loop:
        LOOPS[run.__name__] = run, library
        return run

    return add


def images():
    return jax.random.normal(jax.random.key(0), (8, 8, 8, 1)), jnp.arange(8) % 4


def tokens():
    return jax.random.randint(jax.random.key(1), (8, 7), 0, 11)


def token_loss(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()


@loop()
def flax_mnist(watch):
    """Gradients and their use are two compiled functions."""
    import flax.linen as nn
    from flax.training import train_state

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.avg_pool(nn.relu(nn.Conv(4, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(4)(x.reshape(x.shape[0], -1))

    @jax.jit
    def apply_model(state, images, labels):
        def loss_fn(params):
            logits = state.apply_fn({"params": params}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        return grads, loss, jnp.mean(jnp.argmax(logits, -1) == labels)

    @jax.jit
    def update_model(state, grads):
        return state.apply_gradients(grads=grads)

    apply_model = watch(apply_model)
    x, y = images()
    model = CNN()
    params = model.init(jax.random.key(0), x)["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1, 0.9))
    losses = []
    for _ in range(STEPS):
        grads, loss, _ = apply_model(state, x, y)
        state = update_model(state, grads)
        losses.append(float(loss))
    return losses


@loop()
def flax_lm1b(watch):
    """A partial, a schedule, a donated state, a dictionary of metrics, and shardings on a mesh."""
    import flax.linen as nn
    from flax.training import train_state

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            h = nn.Embed(11, 8)(x)
            attention = nn.SelfAttention(2, deterministic=not train, dropout_rate=0.1)
            return nn.Dense(11)(h + attention(h, nn.make_causal_mask(x)))

    def train_step(state, batch, dropout_rng, learning_rate_fn):
        dropout_rng = jax.random.fold_in(dropout_rng, state.step)

        def loss_fn(params):
            logits = state.apply_fn({"params": params}, batch[:, :-1], train=True, rngs={"dropout": dropout_rng})
            return token_loss(logits, batch)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), {"loss": loss, "learning_rate": learning_rate_fn(state.step)}

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    model, schedule = Decoder(), optax.linear_schedule(0.1, 0.0, 10)
    params = model.init(jax.random.key(0), tokens()[:, :-1], train=False)["params"]
    state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(schedule))
    state = jax.device_put(state, whole)
    p_train_step = jax.jit(
        functools.partial(train_step, learning_rate_fn=schedule), donate_argnums=0, in_shardings=(whole, rows, whole)
    )
    p_train_step = watch(p_train_step)
    losses = []
    for _ in range(STEPS):
        state, metrics = p_train_step(state, jax.device_put(tokens(), rows), jax.random.key(3))
        losses.append(float(metrics["loss"]))
    return losses


@loop("equinox")
def equinox_mlp(watch):
    """A model with functions among its leaves, filtered by the library's own `jit`."""
    import equinox as eqx

    model = eqx.nn.MLP(4, "scalar", 8, 2, key=jax.random.key(0))
    optim = optax.adam(1e-2)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))
    x = jax.random.normal(jax.random.key(1), (16, 4))

    @eqx.filter_jit
    def make_step(model, x, y, opt_state):
        def compute_loss(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        loss, grads = eqx.filter_value_and_grad(compute_loss)(model)
        updates, opt_state = optim.update(grads, opt_state)
        return loss, eqx.apply_updates(model, updates), opt_state

    make_step = watch(make_step)
    losses = []
    for _ in range(STEPS):
        loss, model, opt_state = make_step(model, x, x.sum(-1), opt_state)
        losses.append(loss.item())
    return losses


@loop("haiku")
def haiku_mnist(watch):
    """A named tuple as the state, and evaluation between the steps."""
    import haiku as hk

    class TrainingState(NamedTuple):
        params: Any
        avg_params: Any
        opt_state: Any

    network = hk.without_apply_rng(hk.transform(lambda x: hk.Sequential([hk.Flatten(), hk.nets.MLP([8, 4])])(x)))
    optimizer = optax.adam(1e-2)
    x, y = images()

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()

    @jax.jit
    def evaluate(params):
        return jnp.mean(jnp.argmax(network.apply(params, x), -1) == y)

    @jax.jit
    def update(state, x, y):
        value, grads = jax.value_and_grad(loss)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return TrainingState(params, optax.incremental_update(params, state.avg_params, 0.1), opt_state), value

    update = watch(update)
    params = network.init(jax.random.key(0), x)
    state, losses = TrainingState(params, params, optimizer.init(params)), []
    for _ in range(STEPS):
        state, value = update(state, x, y)
        evaluate(state.avg_params)
        losses.append(float(value))
    return losses


@loop()
def gpt_pmap(watch):
    """A replicated, donated state under `pmap`, whose loss has one number per device."""

    def forward(params, x):
        h = params["embed"][x]
        scores = jnp.where(jnp.tril(jnp.ones((x.shape[-1],) * 2, bool)), h @ h.swapaxes(-1, -2), -1e9)
        return (h + jax.nn.softmax(scores) @ h) @ params["head"]

    optimizer = optax.adamw(1e-2)

    @functools.partial(jax.pmap, axis_name="batch", donate_argnums=0)
    def train_step(state, batch):
        params, opt_state = state
        loss, grads = jax.value_and_grad(lambda p: token_loss(forward(p, batch[:, :-1]), batch))(params)
        loss, grads = jax.lax.pmean((loss, grads), "batch")
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    train_step = watch(train_step)

    @functools.partial(jax.pmap, axis_name="batch")  # with another name, JAX compiles the second step again
    def init(keys):
        params = {"embed": jax.random.normal(keys, (11, 8)), "head": jnp.zeros((8, 11))}
        return params, optimizer.init(params)

    state = init(jnp.stack([jax.random.key(0)] * 8))
    losses = []
    for _ in range(STEPS):
        state, loss = train_step(state, tokens().reshape(8, 1, -1))
        losses.append(float(loss[0]))
    return losses


@loop()
def nanodo_fsdp(watch):
    """A registered dataclass as the state, sharded over all devices by its own output shardings."""

    @functools.partial(jax.tree_util.register_dataclass, data_fields=["params", "opt_state", "step"], meta_fields=[])
    @dataclasses.dataclass
    class State:
        params: Any
        opt_state: Any
        step: Any

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def init():
        shapes = {"embed": (11, 16), "up": (16, 32), "head": (32, 11)}
        params = {name: 0.1 * jax.random.normal(jax.random.key(0), shape) for name, shape in shapes.items()}
        return State(params, optimizer.init(params), jnp.zeros((), jnp.int32))

    def sharded(x):
        axis = next((axis for axis, size in enumerate(x.shape) if size % 8 == 0), None)
        return NamedSharding(mesh, P(*(None,) * axis, "data") if axis is not None else P())

    shardings = jax.tree.map(sharded, jax.eval_shape(init))
    rows = NamedSharding(mesh, P("data"))

    def step(state, batch):
        def loss_fn(params):
            h = jax.nn.relu(params["embed"][batch[:, :-1]] @ params["up"])
            return token_loss(h @ params["head"], batch)

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        metrics = {"train_loss": loss, "gnorm": optax.global_norm(grads)}
        return State(optax.apply_updates(state.params, updates), opt_state, state.step + 1), metrics

    step = jax.jit(step, donate_argnums=0, in_shardings=(shardings, rows), out_shardings=(shardings, None))
    step = watch(step)
    state, losses = jax.jit(init, out_shardings=shardings)(), []
    for _ in range(STEPS):
        state, metrics = step(state, jax.device_put(tokens(), rows))
        losses.append(float(metrics["train_loss"]))
    return losses


@loop()
def reinforce(watch):
    """An agent whose compiled update is an attribute, between steps of an environment on the host."""

    class Agent:
        def __init__(self):
            self.update = watch(jax.jit(self._update))
            self.act = jax.jit(lambda w, seen, key: jax.random.categorical(key, seen @ w))

        def _update(self, w, seen, action, reward):
            def loss_fn(w):
                return -reward * jax.nn.log_softmax(seen @ w)[action]

            loss, gradient = jax.value_and_grad(loss_fn)(w)
            return w - 0.5 * gradient, {"loss": loss, "reward": reward}

    agent, w, seen, losses = Agent(), jnp.zeros((4, 3)), jnp.arange(4.0), []
    for key in jax.random.split(jax.random.key(0), STEPS):
        action = agent.act(w, seen, key)
        reward = jnp.float32(1.0 if int(action) == 1 else 0.5)  # the environment
        w, metrics = agent.update(w, seen, action, reward)
        losses.append(float(metrics["loss"]))
    return losses


@loop("drjax")
def drjax_local_sgd(watch):
    """Another library's primitives: local SGD of eight clients and the mean of their models."""
    import drjax

    @drjax.program(placements={"clients": 8})
    def local_sgd(model, data):
        def train(model, batches):
            def step(w, x):
                loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(w)
                return w - 0.1 * gradient, loss

            return jax.lax.scan(step, model, batches)

        models, losses = drjax.map_fn(train, (drjax.broadcast(model), data))
        return drjax.reduce_mean(models), drjax.reduce_mean(losses.mean(-1))

    round_fn = watch(jax.jit(local_sgd))
    model, data, losses = jnp.zeros(3), jax.random.normal(jax.random.key(0), (8, 2, 4, 3)), []
    for _ in range(STEPS):
        model, loss = round_fn(model, data)
        losses.append(float(loss))
    return losses


@loop("keras")
def keras_fit(watch):
    """Keras compiles its own step: the function that `fit` calls is watched."""
    import keras

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x = jax.random.normal(jax.random.key(0), (8, 4))
    model.make_train_function()
    model.train_function = watch(model.train_function)
    return model.fit(x, x.sum(-1, keepdims=True), batch_size=8, epochs=STEPS, shuffle=False, verbose=0).history["loss"]
