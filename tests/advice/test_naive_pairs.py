"""One common sharding mistake in a program of each library: named by `why`, removed by the first advice.

The correct version of each program has no advice of this rule.
"""

import inspect

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn, nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb

keep = jax.lax.with_sharding_constraint


def auto(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def struct(mesh, shape, *spec, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def zeros(mesh, shape, *spec):
    return jax.device_put(jnp.zeros(shape), NamedSharding(mesh, P(*spec)))


def sgd(loss):
    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return jax.jit(step, donate_argnums=0)


class Layers(nn.Module):
    naive: bool

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            h = nn.gelu(nn.Dense(512, use_bias=False)(nn.LayerNorm()(x)))
            spec = P(None, "fsdp", "tensor") if self.naive else P("fsdp", None, "tensor")
            h = keep(h, spec)  # mistake
            x = x + nn.Dense(128, use_bias=False)(h)
        return x


def linen_constraint_on_another_dimension(naive):
    mesh = auto(fsdp=4, tensor=2)
    model = Layers(naive)
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((4, 64, 128)))
    specs = {(128, 512): P("fsdp", "tensor"), (512, 128): P("tensor", "fsdp")}
    params = jax.tree.map(lambda p: struct(mesh, p.shape, *specs.get(p.shape, P())), shapes)
    return mesh, sgd(lambda p, x: (model.apply(p, x) ** 2).mean()), (params, struct(mesh, (32, 64, 128), "fsdp"))


class Mlp(nnx.Module):
    def __init__(self, up, down):
        def linear(*sizes, spec):
            init = nnx.with_partitioning(nnx.initializers.lecun_normal(), spec)
            return nnx.Linear(*sizes, use_bias=False, rngs=nnx.Rngs(0), kernel_init=init)

        self.up, self.down = linear(128, 512, spec=up), linear(512, 128, spec=down)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(x)))


def nnx_swapped_specs(naive):
    mesh, specs = auto(data=4, tensor=2), [(None, "tensor"), ("tensor", None)]
    with jax.set_mesh(mesh):
        model = nnx.jit(lambda: Mlp(*specs[:: -1 if naive else 1]))()
        optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: (model(x) ** 2).mean())(model))

    return mesh, nnx.jit(step, donate_argnums=(0, 1)), (model, optimizer, zeros(mesh, (64, 128), "data"))


def equinox_merged_axis(naive):
    eqx = pytest.importorskip("equinox")
    mesh = auto(data=2, seq=4)

    def place(x):
        return jax.device_put(x, NamedSharding(mesh, P())) if eqx.is_array(x) else x

    model = jax.tree.map(place, eqx.nn.MLP(64, 64, 256, 1, key=jax.random.key(0)))

    @eqx.filter_jit(donate="all-except-first")
    def step(x, model):
        def loss(model):
            if naive:
                flat = x.reshape(-1, 64)  # mistake
                return (jax.vmap(model)(flat) ** 2).mean()
            return (jax.vmap(jax.vmap(model))(x) ** 2).mean()

        gradient = eqx.filter_grad(loss)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))

    return mesh, step, (zeros(mesh, (16, 512, 64), "data", "seq"), model)


def haiku_optimizer_state(naive):
    hk = pytest.importorskip("haiku")
    mesh, optimizer = auto(data=8), optax.adam(1e-3)
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([1024, 1024, 256])(x)))
    shapes = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((1, 256)))
    params = jax.tree.map(lambda p: struct(mesh, p.shape), shapes)
    spec = () if naive else ("data",)
    state = jax.tree.map(
        lambda p: struct(mesh, p.shape, *spec[: p.ndim], dtype=p.dtype), jax.eval_shape(optimizer.init, shapes)
    )

    def step(params, state, x):
        gradient = jax.grad(lambda p: (net.apply(p, x) ** 2).mean())(params)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state

    results = jax.tree.map(lambda p: p.sharding, (params, state))
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=results)
    return mesh, step, (params, state, struct(mesh, (64, 256), "data"))


def plain_experts(naive):
    mesh = auto(data=2, expert=4)
    spec = (None, "expert") if naive else ("expert",)
    params = {"up": struct(mesh, (8, 128, 512), *spec), "down": struct(mesh, (8, 512, 128), *spec)}

    def loss(p, x):
        h = jax.nn.gelu(jnp.einsum("ebd,edf->ebf", x, p["up"]))
        return (jnp.einsum("ebf,efd->ebd", h, p["down"]) ** 2).mean()  # mistake

    return mesh, sgd(loss), (params, struct(mesh, (8, 256, 128), "expert", "data"))


def plain_carry(naive):
    mesh = auto(data=8)
    params = {"w": struct(mesh, (256, 256)), "u": struct(mesh, (64, 256))}

    def loss(p, x):
        def cell(h, x):
            h = jnp.tanh(h @ p["w"] + x @ p["u"])
            if naive:
                h = keep(h, P())  # mistake
            return h, None

        return (jax.lax.scan(cell, jnp.zeros((x.shape[1], 256)), x)[0] ** 2).mean()

    return mesh, sgd(loss), (params, struct(mesh, (16, 512, 64), None, "data"))


def plain_table(naive):
    mesh = auto(data=4, model=2)
    params = {
        "table": struct(mesh, (65536, 32), *(() if naive else (None, ("data", "model")))),
        "w": struct(mesh, (32, 1)),
    }

    def loss(p, ids):
        return (jnp.tanh(p["table"][ids].mean(1)) @ p["w"]).mean()

    return mesh, sgd(loss), (params, struct(mesh, (256, 16), "data", dtype="int32"))


PAIRS = [  # the program, the rule of the first finding, the argument with the mistake, the figure, and the least saving
    (linen_constraint_on_another_dimension, "costly constraint", "", "bytes sent", 0.6),
    (nnx_swapped_specs, "spec on another dimension", "model.up.kernel", "bytes sent", 0.1),
    (equinox_merged_axis, "activations without the batch axis", "", "FLOPs", 0.7),
    (haiku_optimizer_state, "large replicated array", "state[0].mu['mlp/~/linear_1']['w']", "peak bytes", 0.3),
    (plain_experts, "spec on another dimension", "params['down']", "bytes sent", 0.6),
    (plain_carry, "costly constraint", "", "bytes sent", 0.6),
    (plain_table, "large replicated array", "params['table']", "peak bytes", 0.7),
]


def findings(make, naive):
    with jax.numpy_dtype_promotion("standard"):  # optax multiplies float32 by integers
        mesh, fn, args = make(naive)
        with jax.set_mesh(mesh):
            return wb.advise(fn)(*args).findings


@pytest.mark.slow
@pytest.mark.parametrize(("make", "rule", "leaf", "figure", "least"), PAIRS)
def test_mistake_is_removed_by_the_first_advice(make, rule, leaf, figure, least):
    first = findings(make, True)[0]
    assert (first.rule, first.is_verified, first.gain.quantity) == (rule, True, figure), str(first.gain.how)
    assert first.gain.saved_share > least
    assert not leaf or leaf in first.leaves


@pytest.mark.slow
@pytest.mark.parametrize(("make", "rule"), [pair[:2] for pair in PAIRS])
def test_correct_version_is_not_advised_to_send_or_compute_less(make, rule):
    claims = [f for f in findings(make, False) if f.gain is not None and f.gain.quantity in ("bytes sent", "FLOPs")]
    if make is plain_carry:  # a second mistake: the gradients of its weights are summed in every time step
        [repeated] = [f for f in claims if f.rule == "sum repeated in a loop"]
        sent, mean = 2 * 7 / 8 * (256 * 256 + 64 * 256) * 4, 2 * 7 / 8 * 4
        assert repeated.is_verified
        assert (repeated.gain.before, repeated.gain.after) == (16 * sent + mean, sent + mean)
        claims.remove(repeated)
    assert [f.what for f in claims if f.rule == rule or f.gain.saved_share > 0.02] == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [linen_constraint_on_another_dimension, plain_experts])
def test_first_cause_is_the_line_of_the_mistake(make):
    mesh, fn, args = make(True)
    with jax.set_mesh(mesh):
        cause = wb.why(fn)(*args).causes[0]
    code, start = inspect.getsourcelines(Layers if make is linen_constraint_on_another_dimension else make)
    assert cause.source.line == start + next(at for at, line in enumerate(code) if "# mistake" in line)


def layers(params, x):
    for number in range(4):
        x = x + jnp.tanh(jax.nn.gelu(x @ params["up"][number]) @ params["down"][number])
    return x


def test_a_function_that_contains_the_loop_is_not_called_repeatedly():
    params = {"up": jnp.ones((4, 64, 256)), "down": jnp.ones((4, 256, 64))}
    advice = wb.advise(sgd(lambda p, x: (layers(p, x) ** 2).mean()), verify=True)(params, jnp.ones((512, 64)))
    [finding] = [each for each in advice.findings if each.rule == "values kept for the backward pass"]
    assert finding.what.startswith("4 repetitions keep")
    assert "layers" not in finding.code.replace("layer = ", "").replace("(layer)", "")
