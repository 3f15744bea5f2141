"""Excerpts of public programs, written anew: layers, training steps and operations with the shardings of their guides.

Each function returns a mesh, a function and its arguments, as shapes where a run is not needed.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

Example = tuple[Mesh | None, Callable[..., Any], tuple[Any, ...]]
PROGRAMS: dict[str, Callable[[], Example]] = {}


def program(make: Callable[[], Example]) -> Callable[[], Example]:
    PROGRAMS[make.__name__] = make
    return make


def mesh_with(**axes: int) -> Mesh:
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def array(mesh: Mesh, shape: tuple[int, ...], *spec: Any, dtype: Any = "float32") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


@program
def fsdp_grad():
    m = mesh_with(data=8)

    def f(w1, w2, x):
        def loss(w):
            h = jax.nn.relu(x @ w[0])
            return ((h @ w[1]) ** 2).mean()

        return jax.grad(loss)((w1, w2))

    return m, f, (array(m, (256, 1024), "data"), array(m, (1024, 256), "data"), array(m, (64, 256), "data"))


@program
def megatron_grad():
    m = mesh_with(data=2, model=4)

    def f(w1, w2, x):
        def loss(w):
            h = jax.nn.relu(x @ w[0])
            return ((h @ w[1]) ** 2).mean()

        return jax.grad(loss)((w1, w2))

    return m, f, (array(m, (256, 1024), None, "model"), array(m, (1024, 256), "model"), array(m, (64, 256), "data"))


@program
def hsdp():
    m = mesh_with(replica=2, fsdp=4)

    def f(w, x):
        def loss(w):
            h = x
            for i in range(2):
                h = jnp.tanh(h @ w[i]["up"]) @ w[i]["down"]
            return (h**2).mean()

        return jax.grad(loss)(w)

    return (
        m,
        f,
        (
            [{"up": array(m, (128, 512), "fsdp"), "down": array(m, (512, 128), "fsdp")} for _ in range(2)],
            array(m, (64, 128), ("replica", "fsdp")),
        ),
    )


class Attn(nnx.Module):
    def __init__(s, d, h, rngs, P1, P2):
        s.h = h
        s.qkv = nnx.Linear(
            d, 3 * d, use_bias=False, rngs=rngs, kernel_init=nnx.with_partitioning(nnx.initializers.lecun_normal(), P1)
        )
        s.o = nnx.Linear(
            d, d, use_bias=False, rngs=rngs, kernel_init=nnx.with_partitioning(nnx.initializers.lecun_normal(), P2)
        )

    def __call__(s, x):
        b, t, d = x.shape
        q, k, v = jnp.split(s.qkv(x).reshape(b, t, s.h, -1), 3, -1)
        a = jnp.einsum("bthd,bshd->bhts", q, k) / 8
        a = jnp.where(jnp.tril(jnp.ones((t, t), bool)), a, -1e9)
        a = jax.nn.softmax(a)
        return s.o(jnp.einsum("bhts,bshd->bthd", a, v).reshape(b, t, d))


class Mlp(nnx.Module):
    def __init__(s, d, rngs, P1, P2):
        s.up = nnx.Linear(d, 4 * d, rngs=rngs, kernel_init=nnx.with_partitioning(nnx.initializers.lecun_normal(), P1))
        s.down = nnx.Linear(4 * d, d, rngs=rngs, kernel_init=nnx.with_partitioning(nnx.initializers.lecun_normal(), P2))

    def __call__(s, x):
        return s.down(jax.nn.gelu(s.up(x)))


class Block(nnx.Module):
    def __init__(s, d, h, rngs):
        s.n1 = nnx.LayerNorm(d, rngs=rngs)
        s.n2 = nnx.LayerNorm(d, rngs=rngs)
        s.attn = Attn(d, h, rngs, ("fsdp", "tensor"), ("tensor", "fsdp"))
        s.mlp = Mlp(d, rngs, ("fsdp", "tensor"), ("tensor", "fsdp"))

    def __call__(s, x):
        x = x + s.attn(s.n1(x))
        return x + s.mlp(s.n2(x))


class GPT(nnx.Module):
    def __init__(s, layers, d, h, vocab, rngs, fix=False):
        s.fix = fix
        s.embed = nnx.Embed(
            vocab, d, rngs=rngs, embedding_init=nnx.with_partitioning(nnx.initializers.normal(), ("tensor", "fsdp"))
        )
        s.pos = nnx.Param(jnp.zeros((64, d)))
        s.blocks = nnx.List([Block(d, h, rngs) for _ in range(layers)])
        s.head = nnx.Linear(
            d,
            vocab,
            use_bias=False,
            rngs=rngs,
            kernel_init=nnx.with_partitioning(nnx.initializers.lecun_normal(), ("fsdp", "tensor")),
        )

    def __call__(s, t):
        x = s.embed(t) + s.pos[...][: t.shape[1]]
        if s.fix:
            x = jax.lax.with_sharding_constraint(x, P("fsdp"))
        for b in s.blocks:
            x = b(x)
        return s.head(x)


def gpt(fix, layers=4):
    m = mesh_with(fsdp=4, tensor=2)
    with jax.set_mesh(m):

        @nnx.jit
        def make():
            model = GPT(layers, 128, 8, 512, nnx.Rngs(0), fix)
            return model

        model = make()
        opt = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

        @nnx.jit
        def step(model, opt, tokens):
            def loss(model):
                logits = model(tokens[:, :-1])
                return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

            value, g = nnx.value_and_grad(loss)(model)
            opt.update(model, g)
            return value

        t = jax.device_put(jnp.zeros((16, 33), jnp.int32), NamedSharding(m, P("fsdp")))
    return m, step, (model, opt, t)


@program
def nnx_gpt_lost():
    return gpt(False)


@program
def nnx_gpt_fixed():
    return gpt(True)


@program
def sum_with_a_transpose():
    m = mesh_with(x=8)

    def f(x, y):
        return x + y.T

    return m, f, (array(m, (64, 64), "x"), array(m, (64, 64), "x"))


@program
def out_shardings():
    m = mesh_with(x=8)

    def f(x):
        return jnp.sin(x)

    return m, jax.jit(f, out_shardings=NamedSharding(m, P())), (array(m, (64, 64), "x"),)


@program
def out_shardings2():
    m = mesh_with(x=8)

    def f(x, w):
        return {"y": jnp.sin(x @ w)}

    return m, jax.jit(f, out_shardings=NamedSharding(m, P(None, "x"))), (array(m, (64, 64), "x"), array(m, (64, 64)))


@program
def top_k():
    m = mesh_with(x=8)

    def f(x):
        return jax.lax.top_k(x, 4)

    return m, f, (array(m, (32, 64), None, "x"),)


@program
def pmean_tree():
    m = mesh_with(data=8)

    def step(params, batch):
        def local(params, x):
            g = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)
            return jax.lax.pmean(g, "data")

        return jax.shard_map(local, mesh=m, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)(params, batch)

    return m, step, ({"a": array(m, (64, 128)), "b": array(m, (128, 32))}, array(m, (64, 64), "data"))


@program
def pmean_tree_vma():
    m = mesh_with(data=8)

    def step(params, batch):
        def local(params, x):
            params = jax.tree.map(lambda p: jax.lax.pcast(p, "data", to="varying"), params)
            g = jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)
            return jax.lax.pmean(g, "data")

        return jax.shard_map(local, mesh=m, in_specs=(P(), P("data")), out_specs=P())(params, batch)

    return m, step, ({"a": array(m, (64, 128)), "b": array(m, (128, 32))}, array(m, (64, 64), "data"))


@program
def auto_psum_grad():
    m = mesh_with(data=8)

    def step(params, batch):
        def local(params, x):
            return jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)

        return jax.shard_map(local, mesh=m, in_specs=(P(), P("data")), out_specs=P())(params, batch)

    return m, step, ({"a": array(m, (64, 128)), "b": array(m, (128, 32))}, array(m, (64, 64), "data"))


@program
def pipeline():
    m = mesh_with(stage=8)
    n = 8

    def run(w, x):
        def local(w, x):
            w = w[0]
            idx = jax.lax.axis_index("stage")
            state = jnp.zeros_like(x[0])
            outs = jnp.zeros_like(x)

            def tick(c, i):
                state, outs = c
                inp = jnp.where(idx == 0, x[jnp.minimum(i, x.shape[0] - 1)], state)
                y = jnp.tanh(inp @ w)
                outs = jnp.where((idx == n - 1) & (i >= n - 1), outs.at[jnp.maximum(i - n + 1, 0)].set(y), outs)
                state = jax.lax.ppermute(y, "stage", [(j, (j + 1) % n) for j in range(n)])
                return (state, outs), None

            (state, outs), _ = jax.lax.scan(tick, (state, outs), jnp.arange(x.shape[0] + n - 1))
            return jax.lax.psum(jnp.where(idx == n - 1, outs, 0), "stage")

        return jax.shard_map(local, mesh=m, in_specs=(P("stage"), P()), out_specs=P(), check_vma=False)(w, x)

    def loss(w, x):
        return (run(w, x) ** 2).mean()

    return m, jax.value_and_grad(loss), (array(m, (8, 32, 32), "stage"), array(m, (4, 16, 32)))


@program
def llama_like():
    m = mesh_with(data=2, model=4)

    def rms(x, g):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g

    def layer(x, w):
        b, t, d = x.shape
        h = rms(x, w["n1"])
        q = (h @ w["q"]).reshape(b, t, 8, -1)
        k = (h @ w["k"]).reshape(b, t, 8, -1)
        v = (h @ w["v"]).reshape(b, t, 8, -1)
        a = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        x = x + jnp.einsum("bhts,bshd->bthd", a, v).reshape(b, t, d) @ w["o"]
        h = rms(x, w["n2"])
        return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]

    def loss(p, t):
        x = p["embed"][t[:, :-1]]
        x, _ = jax.lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, p["layers"])
        lg = rms(x, p["nf"]) @ p["embed"].T
        return -jnp.take_along_axis(jax.nn.log_softmax(lg), t[:, 1:, None], -1).mean()

    def step(p, t):
        value, g = jax.value_and_grad(loss)(p, t)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, p, g), value

    d, L = 64, 4

    def s(shape, *spec):
        return array(m, shape, *spec)

    p = {
        "embed": s((256, d), "model"),
        "nf": s((d,)),
        "layers": {
            "n1": s((L, d)),
            "n2": s((L, d)),
            **{k: s((L, d, d), None, "data", "model") for k in "qkv"},
            "o": s((L, d, d), None, "model", "data"),
            "gate": s((L, d, 4 * d), None, "data", "model"),
            "up": s((L, d, 4 * d), None, "data", "model"),
            "down": s((L, 4 * d, d), None, "model", "data"),
        },
    }
    return m, step, (p, array(m, (16, 33), "data", dtype="int32"))


@program
def moe_expert():
    m = mesh_with(expert=8)

    def f(x, gate, w1, w2):
        probs = jax.nn.softmax(x @ gate)
        idx = jnp.argmax(probs, -1)
        oh = jax.nn.one_hot(idx, 8)
        pos = jnp.cumsum(oh, 0) * oh
        disp = jax.nn.one_hot((pos.sum(-1) - 1).astype(int), 32)[:, None, :] * oh[:, :, None]
        xe = jnp.einsum("tec,td->ecd", disp, x)
        xe = jax.lax.with_sharding_constraint(xe, P("expert"))
        h = jax.nn.relu(jnp.einsum("ecd,edf->ecf", xe, w1))
        ye = jnp.einsum("ecf,efd->ecd", h, w2)
        return jnp.einsum("tec,ecd->td", disp * probs[:, :, None], ye)

    return (
        m,
        f,
        (
            array(m, (128, 64), "expert"),
            array(m, (64, 8)),
            array(m, (8, 64, 128), "expert"),
            array(m, (8, 128, 64), "expert"),
        ),
    )


@program
def moe_a2a():
    m = mesh_with(expert=8)

    def f(x, w):
        def local(x, w):
            x = jax.lax.all_to_all(x, "expert", 1, 0, tiled=True)
            y = jnp.tanh(x @ w[0])
            return jax.lax.all_to_all(y, "expert", 0, 1, tiled=True)

        return jax.shard_map(local, mesh=m, in_specs=(P("expert"), P("expert")), out_specs=P("expert"))(x, w)

    return m, f, (array(m, (64, 16, 32), "expert"), array(m, (8, 32, 32), "expert"))


@program
def sequence():
    m = mesh_with(data=2, seq=4)

    def f(x, wq, wk, wv, wo):
        q, k, v = x @ wq, x @ wk, x @ wv
        a = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k))
        o = jnp.einsum("bts,bsd->btd", a, v) @ wo
        return jax.lax.with_sharding_constraint(o, P("data", "seq"))

    return m, f, (array(m, (8, 64, 32), "data", "seq"), *[array(m, (32, 32)) for _ in range(4)])


@program
def megatron_sp():
    m = mesh_with(data=2, model=4)
    C = jax.lax.with_sharding_constraint

    def f(x, w1, w2):
        x = C(x, P("data", "model"))
        h = jax.nn.gelu(x @ w1)
        h = C(h, P("data", None, "model"))
        y = h @ w2
        return C(y, P("data", "model"))

    return (
        m,
        f,
        (array(m, (8, 64, 32), "data", "model"), array(m, (32, 128), None, "model"), array(m, (128, 32), "model")),
    )


@program
def conv_halo():
    m = mesh_with(x=8)

    def f(x, k):
        return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    return m, f, (array(m, (4, 64, 64, 8), None, "x"), array(m, (3, 3, 8, 8)))


@program
def linen_dp():
    m = mesh_with(data=8)

    class M(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(128)(x))
            x = nn.LayerNorm()(x)
            return nn.Dense(10)(x)

    model = M()
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 32)))
    params = jax.tree.map(lambda p: array(m, p.shape), params)

    def step(params, x, y):
        def loss(params):
            logits: Any = model.apply(params, x)
            return -(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10)).sum(-1).mean()

        value, g = jax.value_and_grad(loss)(params)
        gn = jnp.sqrt(sum(jnp.sum(a * a) for a in jax.tree.leaves(g)))
        return jax.tree.map(lambda p, g: p - 0.1 * g / gn, params, g), value

    return m, step, (params, array(m, (64, 32), "data"), array(m, (64,), "data", dtype="int32"))


@program
def batchnorm():
    m = mesh_with(data=8)

    def f(x, w):
        y = x @ w
        mu = y.mean(0)
        var = ((y - mu) ** 2).mean(0)
        return (y - mu) / jnp.sqrt(var + 1e-5)

    return m, f, (array(m, (64, 32), "data"), array(m, (32, 16)))


@program
def dropout():
    m = mesh_with(data=8)

    def f(x, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.where(mask, x, 0).sum(), jax.random.permutation(key, x)

    return m, f, (array(m, (64, 32), "data"), jax.random.key(0))


@program
def carry_mismatch():
    m = mesh_with(x=8)

    def f(x, w):
        def body(c, _):
            return jax.lax.with_sharding_constraint(jnp.tanh(c @ w), P(None, "x")), None

        return jax.lax.scan(body, x, length=4)[0]

    return m, f, (array(m, (64, 64), "x"), array(m, (64, 64)))


@program
def explicit_fsdp():
    m = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))

    def f(w1, w2, x):
        def loss(w):
            h = jax.nn.relu(x @ jax.sharding.reshard(w[0], P()))
            return ((h @ jax.sharding.reshard(w[1], P())) ** 2).mean()

        return jax.grad(loss)((w1, w2))

    return m, f, (array(m, (256, 1024), "data"), array(m, (1024, 256), "data"), array(m, (64, 256), "data"))


@program
def explicit_megatron():
    m = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    def f(w1, w2, x):
        def loss(w):
            h = jax.nn.relu(x @ w[0])
            y = jnp.einsum("bf,fd->bd", h, w[1], out_sharding=P("data"))
            return (y**2).mean()

        return jax.grad(loss)((w1, w2))

    return m, f, (array(m, (256, 1024), None, "model"), array(m, (1024, 256), "model"), array(m, (64, 256), "data"))


@program
def scatter_add():
    m = mesh_with(x=8)

    def f(table, idx, upd):
        return table.at[idx].add(upd)

    return m, f, (array(m, (64, 16)), array(m, (32,), "x", dtype="int32"), array(m, (32, 16), "x"))


@program
def segsum():
    m = mesh_with(x=8)

    def f(nodes, src, dst, we):
        msg = nodes[src] @ we
        return jax.ops.segment_sum(msg, dst, 64)

    return (
        m,
        f,
        (
            array(m, (64, 16), "x"),
            array(m, (256,), "x", dtype="int32"),
            array(m, (256,), "x", dtype="int32"),
            array(m, (16, 16)),
        ),
    )


@program
def concatenation():
    m = mesh_with(x=8)

    def f(a, b):
        return jnp.concatenate([a, b], 0)

    return m, f, (array(m, (64, 16), "x"), array(m, (64, 16), "x"))


@program
def fourier():
    m = mesh_with(x=8)

    def f(a):
        return jnp.fft.fft2(a).real

    return m, f, (array(m, (64, 64), "x"),)


@program
def mapped_over_devices():
    m = None
    f = jax.pmap(
        lambda w, x: jax.lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "i"), axis_name="i", in_axes=(None, 0)
    )
    return m, f, (jnp.ones((16, 16)), jnp.ones((8, 4, 16)))


@program
def slice_shift():
    m = mesh_with(x=8)

    def f(x):
        return x[1:] - x[:-1]

    return m, f, (array(m, (64, 16), "x"),)


@program
def extremes():
    m = mesh_with(x=8)

    def f(x):
        return jnp.argmax(x, 0), jnp.max(x, 0), jax.nn.softmax(x, axis=0)

    return m, f, (array(m, (64, 16), "x"),)


@program
def factorisations():
    m = mesh_with(x=8)

    def f(x):
        return jnp.linalg.cholesky(x), jnp.linalg.svd(x)[1]

    return m, f, (array(m, (16, 32, 32), None, "x"),)


@program
def eqx_like():
    m = mesh_with(data=8)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Linear:
        weight: object
        bias: object

        def __call__(self, x):
            return self.weight @ x + self.bias

    def loss(model, x, y):
        def one(x):
            for layer in model[:-1]:
                x = jax.nn.relu(layer(x))
            return model[-1](x)

        return jnp.mean((jax.vmap(one)(x) - y) ** 2)

    def step(model, x, y):
        value, g = jax.value_and_grad(loss)(model, x, y)
        return jax.tree.map(lambda a, b: a - b, model, g), value

    model = [Linear(array(m, (64, 64), "data"), array(m, (64,))) for _ in range(3)]
    return m, step, (model, array(m, (64, 64), "data"), array(m, (64, 64), "data"))


@program
def adapters():
    """Low-rank adapters on frozen weights that are sharded over the batch's axis, after HuggingFace's PEFT."""
    m = mesh_with(data=8)

    def f(adapters, frozen, x):
        def loss(adapters):
            h = x
            for w, (down, up) in zip(frozen, adapters, strict=True):
                h = jnp.tanh(h @ w + (h @ down) @ up)
            return (h**2).mean()

        return jax.grad(loss)(adapters)

    frozen = [array(m, (128, 128), "data") for _ in range(2)]
    return m, f, ([(array(m, (128, 8)), array(m, (8, 128))) for _ in range(2)], frozen, array(m, (64, 128), "data"))


@program
def accumulated_gradients():
    """Gradients of micro-batches added in a scan, as `optax.MultiSteps` users write them."""
    m = mesh_with(data=8)

    def f(w, batches):
        def add(total, x):
            gradient = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
            return total + gradient, None

        return jax.lax.scan(add, jnp.zeros_like(w), batches)[0] / batches.shape[0]

    return m, f, (array(m, (64, 64)), array(m, (4, 32, 64), None, "data"))


@program
def k_means():
    """One step of Lloyd's algorithm over sharded points."""
    m = mesh_with(data=8)

    def f(centres, x):
        nearest = jnp.argmin(((x[:, None] - centres[None]) ** 2).sum(-1), 1)
        sums = jax.ops.segment_sum(x, nearest, centres.shape[0])
        counts = jax.ops.segment_sum(jnp.ones(x.shape[0]), nearest, centres.shape[0])
        return sums / jnp.maximum(counts, 1)[:, None]

    return m, f, (array(m, (16, 32)), array(m, (256, 32), "data"))


@program
def ring_attention():
    """Keys and values pass round a ring, after Liu et al. (2023)."""
    m = mesh_with(seq=8)

    def local(q, k, v):
        size = jax.lax.axis_size("seq")
        ring = [(i, (i + 1) % size) for i in range(size)]

        def turn(carry, _):
            k, v, top, norm = carry
            weights = jnp.exp(q @ k.T / 8)
            k, v = (jax.lax.ppermute(x, "seq", ring) for x in (k, v))
            return (k, v, top + weights @ v, norm + weights.sum(1, keepdims=True)), None

        start = k, v, jnp.zeros_like(q), jnp.zeros_like(q[:, :1])
        _, _, top, norm = jax.lax.scan(turn, start, length=size)[0]
        return top / norm

    f = jax.shard_map(local, in_specs=P("seq"), out_specs=P("seq"))
    x = array(m, (64, 32), "seq")
    return m, lambda q, k, v: f(q, k, v), (x, x, x)


@program
def patches():
    """Patches of images through a strided convolution and one attention head, after the vision transformer."""
    m = mesh_with(data=8)

    def f(kernel, qkv, images):
        x = jax.lax.conv_general_dilated(images, kernel, (4, 4), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        q, k, v = jnp.split(x @ qkv, 3, -1)
        y = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k)) @ v
        return (y**2).mean()

    return m, jax.grad(f), (array(m, (4, 4, 3, 32)), array(m, (32, 96)), array(m, (16, 16, 16, 3), "data"))


@program
def contrastive():
    """CLIP's loss: each image against all texts of the global batch."""
    m = mesh_with(data=8)

    def f(w, images, texts):
        a, b = images @ w[0], texts @ w[1]
        a, b = (x / jnp.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (a, b))
        logits = a @ b.T
        own = jnp.diagonal(logits)
        return (jax.nn.logsumexp(logits, 1) + jax.nn.logsumexp(logits, 0) - 2 * own).mean()

    x = array(m, (64, 32), "data")
    return m, jax.grad(f), ([array(m, (32, 16)), array(m, (32, 16))], x, x)


@program
def replay_buffer():
    """Q-learning from a buffer over devices: rows by random numbers, and priorities written back."""
    m = mesh_with(data=8)

    def f(w, buffer, rows):
        batch = jax.tree.map(lambda x: x[rows], buffer)

        def loss(w):
            q = jnp.take_along_axis(batch["seen"] @ w, batch["action"][:, None], 1)[:, 0]
            error = q - jax.lax.stop_gradient(batch["reward"] + 0.9 * (batch["next"] @ w).max(-1))
            return (error**2).mean(), error

        (_, error), g = jax.value_and_grad(loss, has_aux=True)(w)
        return w - 0.1 * g, buffer["priority"].at[rows].set(jnp.abs(error))

    seen, column = array(m, (1024, 8), "data"), array(m, (1024,), "data")
    action = array(m, (1024,), "data", dtype="int32")
    buffer = {"seen": seen, "next": seen, "reward": column, "action": action, "priority": column}
    return m, f, (array(m, (8, 4)), buffer, array(m, (64,), dtype="int32"))


@program
def recommender():
    """Tables by rows and batch over one axis (DLRM): the indices are gathered, not the tables."""
    m = mesh_with(d=8)

    def f(tables, w, indices):
        def loss(tables):
            rows = [table[i] for table, i in zip(tables, indices, strict=True)]
            return jnp.logaddexp(0, jnp.concatenate(rows, 1) @ w).mean()

        return jax.grad(loss)(tables)

    tables = [array(m, (512, 16), "d") for _ in range(2)]
    return m, f, (tables, array(m, (32, 1)), [array(m, (64,), "d", dtype="int32") for _ in range(2)])


@program
def orthogonal_updates():
    """Muon: Newton-Schulz steps on parameters that are cut as the batch is."""
    m = mesh_with(fsdp=8)

    def f(w, x):
        def loss(w):
            return ((jnp.tanh(x @ w["up"]) @ w["down"]) ** 2).mean()

        def orthogonal(g):
            y = g / jnp.linalg.norm(g)
            return 1.5 * y - 0.5 * y @ y.T @ y

        return jax.tree.map(lambda w, g: w - 0.1 * orthogonal(g), w, jax.grad(loss)(w))

    return m, f, ({"up": array(m, (64, 128), "fsdp"), "down": array(m, (128, 64), "fsdp")}, array(m, (64, 64), "fsdp"))


@program
def shifted_windows():
    """Attention in windows of an image whose rows are over devices (Swin), shifted by a roll."""
    m = mesh_with(row=8)

    def f(w, x):
        x = jnp.roll(x, (-2, -2), (1, 2))
        x = x.reshape(2, 8, 4, 8, 4, 8).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 8)
        return jax.nn.softmax(x @ w @ x.transpose(0, 2, 1)) @ x

    return m, f, (array(m, (8, 8)), array(m, (2, 32, 32, 8), None, "row"))


@program
def graph_attention():
    """Softmax over incoming edges by `segment_max` and `segment_sum`, edges over devices."""
    m = mesh_with(edge=8)

    def f(w, x, source, target):
        h = x @ w
        score = jax.nn.leaky_relu(h[source, 0] + h[target, 1])
        top = jax.ops.segment_max(score, target, len(x))
        e = jnp.exp(score - top[target])
        total = jax.ops.segment_sum(e, target, len(x))
        return jax.ops.segment_sum((e / total[target])[:, None] * h[source], target, len(x))

    edges = array(m, (1024,), "edge", dtype="int32")
    return m, f, (array(m, (16, 32)), array(m, (128, 16)), edges, edges)


@program
def host_callbacks():
    """A step size from the host, and a loss that is printed."""
    m = mesh_with(data=8)

    def f(w, x):
        loss, g = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        jax.debug.print("loss {}", loss)
        rate = jax.pure_callback(lambda _: np.float32(0.1), jax.ShapeDtypeStruct((), "float32"), loss)
        return w - rate * g

    return m, f, (array(m, (32, 8)), array(m, (64, 32), "data"))


@program
def local_steps():
    """DiLoCo: steps inside `shard_map`, then the mean of the differences over pods."""
    m = mesh_with(pod=2, data=4)

    def local(w, xs):
        def step(v, x):
            return v - 0.1 * jax.grad(lambda v: ((jnp.tanh(x @ v) - x) ** 2).mean())(v), None

        end, _ = jax.lax.scan(step, jax.lax.pcast(w, "pod", to="varying"), xs[0])
        return jax.lax.pmean(w - end, "pod")

    f = jax.shard_map(local, in_specs=(P(), P("pod", None, "data")), out_specs=P())
    return m, lambda w, xs: w - 0.7 * f(w, xs), (array(m, (16, 16)), array(m, (2, 5, 32, 16), "pod", None, "data"))


@program
def explicit_ulysses():
    """Attention by heads in a sequence over devices, by `reshard` on an explicit axis."""
    m = jax.make_mesh((8,), ("sp",), axis_types=(AxisType.Explicit,))

    def f(w, x):
        qkv = jnp.einsum("btd,dnhk->nbthk", x, w)
        q, k, v = jax.sharding.reshard(qkv, P(None, None, None, "sp"))
        a = jax.nn.softmax(jnp.einsum("bthk,bshk->bhts", q, k))
        return jax.sharding.reshard(jnp.einsum("bhts,bshk->bthk", a, v), P(None, "sp"))

    return m, f, (array(m, (32, 3, 8, 8)), array(m, (2, 64, 32), None, "sp"))


@program
def adaptive_steps():
    """A neural ODE whose step size follows the error over the batch, in a loop of unknown length."""
    m = mesh_with(data=8)

    def f(w, y):
        def body(state):
            t, h, y = state
            slope = jnp.tanh(y @ w)
            later = y + h / 2 * (slope + jnp.tanh((y + h * slope) @ w))
            error = jnp.sqrt(jnp.mean((later - y - h * slope) ** 2))
            return t + h, h * jnp.clip(0.9 / error, 0.2, 5.0), later

        return jax.lax.while_loop(lambda state: state[0] < 1.0, body, (jnp.float32(0), jnp.float32(0.1), y))[2]

    return m, f, (array(m, (16, 16)), array(m, (64, 16), "data"))


@program
def noisy_images():
    """A diffusion step: a time per image, noise, and the loss of its prediction."""
    m = mesh_with(data=8)

    def f(w, images, key):
        kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 100))
        time = jax.random.randint(jax.random.fold_in(key, 0), (len(images),), 0, 100)
        noise = jax.random.normal(key, images.shape)
        a = kept[time][:, None]
        x = jnp.sqrt(a) * images + jnp.sqrt(1 - a) * noise
        return jax.grad(lambda w: ((x @ w - noise) ** 2).mean())(w)

    return m, f, (array(m, (64, 64)), array(m, (64, 64), "data"), array(m, (2,), dtype="uint32"))


@program
def dropless_experts():
    """Tokens sorted by expert: `top_k`, `sort` and lookups of a batch over devices."""
    m = mesh_with(data=8)

    def f(x, gate):
        weight, expert = jax.lax.top_k(jax.nn.softmax(x @ gate), 2)
        order = jnp.argsort(expert.reshape(-1))
        y = jnp.take(x, order // 2, axis=0)
        back = jnp.zeros_like(y).at[order].set(jnp.sin(y))
        return (back.reshape(len(x), 2, -1) * weight[..., None]).sum(1)

    return m, f, (array(m, (64, 32), "data"), array(m, (32, 8)))


@program
def gaussian_process():
    """The marginal likelihood of a Gaussian process whose points are over devices."""
    m = mesh_with(row=8)

    def f(scale, x, y):
        def loss(scale):
            distance = ((x[:, None] - x[None]) ** 2).sum(-1)
            factor = jnp.linalg.cholesky(jnp.exp(-distance / scale) + 0.01 * jnp.eye(len(x)))
            return y @ jax.scipy.linalg.cho_solve((factor, True), y) + jnp.log(jnp.diagonal(factor)).sum()

        return jax.value_and_grad(loss)(scale)

    return m, f, (array(m, ()), array(m, (64, 3), "row"), array(m, (64,), "row"))


@program
def retention():
    """RetNet in chunks: a state per head is carried over chunks of the sequence; heads over `model`."""
    m = mesh_with(data=2, model=4)

    def f(w, x):
        def heads(w):
            y = jnp.einsum("btd,dhk->bhtk", x, w)
            return y.reshape(*y.shape[:2], 8, 8, y.shape[-1])  # chunks of the sequence

        q, k, v = (heads(w[name]) for name in "qkv")
        decay = 1 - 2.0 ** (-5 - jnp.arange(8.0))
        i = jnp.arange(8.0)
        inner = jnp.where(i[:, None] >= i, decay[:, None, None] ** (i[:, None] - i), 0)
        cross, last = decay[:, None] ** (i + 1), decay[:, None] ** (7 - i)

        def chunk(state, qkv):
            q, k, v = qkv
            y = jnp.einsum("bhtk,bhsk->bhts", q, k) * inner @ v
            y += jnp.einsum("bhtk,bhkv->bhtv", q * cross[..., None], state)
            state = state * decay[:, None, None] ** 8 + jnp.einsum("bhtk,bhtv->bhkv", k * last[..., None], v)
            return state, y

        b = x.shape[0]
        start = jnp.zeros((b, 8, q.shape[-1], v.shape[-1]))
        _, y = jax.lax.scan(chunk, start, jax.tree.map(lambda a: jnp.moveaxis(a, 2, 0), (q, k, v)))
        y = jnp.moveaxis(y, 0, 2).reshape(b, 8, 64, -1)
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-6)
        return jnp.einsum("bhtk,hkd->btd", y, w["o"])

    w = {name: array(m, (64, 8, 8), None, "model") for name in "qkv"} | {"o": array(m, (8, 8, 64), "model")}
    return m, f, (w, array(m, (4, 64, 64), "data"))


@program
def selective_scan():
    """Mamba: an input-dependent recurrence by `associative_scan`, channels over `model`, with its gradient."""
    m = mesh_with(data=2, model=4)

    def f(w, x):
        def loss(w):
            u = jax.nn.silu(x @ w["in"])
            gate = jax.nn.silu(x @ w["gate"])
            b, c = jnp.split(u @ w["bc"], 2, -1)
            step = jax.nn.softplus(u * w["step"])
            a = jnp.exp(step[..., None] * -jnp.exp(w["a"]))
            bu = (step * u)[..., None] * b[..., None, :]

            def join(left, right):
                return left[0] * right[0], right[0] * left[1] + right[1]

            _, h = jax.lax.associative_scan(join, (a, bu), axis=1)
            y = (h * c[..., None, :]).sum(-1) + u * w["skip"]
            return (((y * gate) @ w["out"]) ** 2).mean()

        return jax.grad(loss)(w)

    w = {
        "in": array(m, (32, 64), None, "model"),
        "gate": array(m, (32, 64), None, "model"),
        "bc": array(m, (64, 16), "model"),
        "step": array(m, (64,), "model"),
        "a": array(m, (64, 8), "model"),
        "skip": array(m, (64,), "model"),
        "out": array(m, (64, 32), "model"),
    }
    return m, f, (w, array(m, (4, 32, 32), "data"))


@program
def ppo():
    """PPO as in PureJaxRL: advantages by a reversed scan, then epochs of shuffled minibatches."""
    m = mesh_with(env=8)

    def value_and_logits(w, seen):
        h = jnp.tanh(seen @ w["body"])
        return (h @ w["value"])[..., 0], jax.nn.log_softmax(h @ w["policy"])

    def f(w, rollout, key):
        values, logits = value_and_logits(w, rollout["seen"])

        def back(carry, x):
            gae, after = carry
            reward, done, value = x
            delta = reward + 0.99 * after * (1 - done) - value
            gae = delta + 0.99 * 0.95 * (1 - done) * gae
            return (gae, value), gae

        zero = jnp.zeros_like(values[0])
        _, gae = jax.lax.scan(back, (zero, zero), (rollout["reward"], rollout["done"], values), reverse=True)
        old = jnp.take_along_axis(logits, rollout["action"][..., None], -1)[..., 0]
        flat = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]), (rollout["seen"], rollout["action"], old, gae, gae + values)
        )

        def loss(w, batch):
            seen, action, old, gae, target = batch
            value, logits = value_and_logits(w, seen)
            ratio = jnp.exp(jnp.take_along_axis(logits, action[:, None], 1)[:, 0] - old)
            gae = (gae - gae.mean()) / (gae.std() + 1e-8)
            actor = -jnp.minimum(ratio * gae, jnp.clip(ratio, 0.8, 1.2) * gae).mean()
            return actor + 0.5 * ((value - target) ** 2).mean() + 0.01 * (jnp.exp(logits) * logits).sum(-1).mean()

        def epoch(w, key):
            order = jax.random.permutation(key, len(flat[0]))
            shuffled = jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), flat)

            def minibatch(w, batch):
                g = jax.grad(loss)(w, batch)
                return jax.tree.map(lambda w, g: w - 1e-3 * g, w, g), None

            return jax.lax.scan(minibatch, w, shuffled)

        return jax.lax.scan(epoch, w, jax.random.split(key, 2))[0]

    def each(dtype="float32", *more):
        return array(m, (16, 32, *more), None, "env", dtype=dtype)

    rollout = {"seen": each("float32", 8), "reward": each(), "done": each(), "action": each("int32")}
    w = {"body": array(m, (8, 32)), "value": array(m, (32, 1)), "policy": array(m, (32, 4))}
    return m, f, (w, rollout, array(m, (2,), dtype="uint32"))


@program
def nnx_vae():
    """Flax's VAE example in NNX, parameters over the batch's axis, random numbers from `nnx.Rngs`."""
    m = mesh_with(data=8)

    class VAE(nnx.Module):
        def __init__(self, rngs):
            part = functools.partial(nnx.with_partitioning, nnx.initializers.lecun_normal())
            self.encode = nnx.Linear(64, 128, kernel_init=part(("data", None)), rngs=rngs)
            self.moments = nnx.Linear(128, 32, kernel_init=part(("data", None)), rngs=rngs)
            self.decode = nnx.Linear(16, 128, kernel_init=part((None, "data")), rngs=rngs)
            self.pixels = nnx.Linear(128, 64, kernel_init=part(("data", None)), rngs=rngs)
            self.rngs = rngs

        def __call__(self, x):
            mean, log_std = jnp.split(self.moments(nnx.relu(self.encode(x))), 2, -1)
            z = mean + jnp.exp(log_std) * jax.random.normal(self.rngs.noise(), mean.shape)
            return self.pixels(nnx.relu(self.decode(z))), mean, log_std

    with jax.set_mesh(m):

        @nnx.jit
        def make():
            return VAE(nnx.Rngs(0, noise=1))

        model = make()
        opt = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

        @nnx.jit
        def step(model, opt, x):
            def loss(model):
                logits, mean, log_std = model(x)
                kl = -0.5 * (1 + 2 * log_std - mean**2 - jnp.exp(2 * log_std)).sum(-1)
                return (optax.sigmoid_binary_cross_entropy(logits, x).sum(-1) + kl).mean()

            value, g = nnx.value_and_grad(loss)(model)
            opt.update(model, g)
            return value

        x = jax.device_put(jnp.zeros((64, 64)), NamedSharding(m, P("data")))
    return m, step, (model, opt, x)


@program
def decode():
    """Greedy decoding with a cache of keys and values, heads over `model`, in a loop that ends at a word."""
    m = mesh_with(data=2, model=4)

    def f(w, cache, token):
        def one(state):
            at, token, cache, done, out = state
            x = w["embed"][token]
            new = []
            for layer, (ks, vs) in zip(w["layers"], cache, strict=True):
                q, k, v = (jnp.einsum("bd,dhk->bhk", x, layer[name]) for name in "qkv")
                ks = jax.lax.dynamic_update_slice(ks, k[:, None], (0, at, 0, 0))
                vs = jax.lax.dynamic_update_slice(vs, v[:, None], (0, at, 0, 0))
                score = jnp.where(jnp.arange(ks.shape[1]) <= at, jnp.einsum("bhk,bthk->bht", q, ks), -1e9)
                x += jnp.einsum("bht,bthk,hkd->bd", jax.nn.softmax(score), vs, layer["o"])
                x += jax.nn.gelu(x @ layer["up"]) @ layer["down"]
                new.append((ks, vs))
            token = jnp.argmax(x @ w["embed"].T, -1)
            return at + 1, token, new, done | (token == 0), out.at[:, at].set(token)

        def going(state):
            return (state[0] < 16) & ~state[3].all()

        b = token.shape[0]
        out = jnp.zeros((b, 16), "int32")
        return jax.lax.while_loop(going, one, (jnp.int32(0), token, cache, jnp.zeros(b, bool), out))[-1]

    layer = {name: array(m, (32, 8, 4), None, "model") for name in "qkv"} | {
        "o": array(m, (8, 4, 32), "model"),
        "up": array(m, (32, 128), None, "model"),
        "down": array(m, (128, 32), "model"),
    }
    kv = array(m, (4, 16, 8, 4), "data", None, "model")
    w = {"embed": array(m, (64, 32), "model"), "layers": [layer, layer]}
    return m, f, (w, [(kv, kv), (kv, kv)], array(m, (4,), "data", dtype="int32"))


@program
def shampoo():
    """Shampoo: statistics of both sides of each gradient, their roots by `eigh`, parameters over the batch's axis."""
    m = mesh_with(fsdp=8)

    def root(a):
        values, vectors = jnp.linalg.eigh(a + 1e-4 * jnp.eye(len(a)))
        return (vectors * values**-0.25) @ vectors.T

    def step(state, x):
        def loss(w):
            h = x
            for layer in w:
                h = jnp.tanh(h @ layer)
            return (h**2).mean()

        g = jax.grad(loss)(state["w"])
        left = [0.95 * a + g @ g.T for a, g in zip(state["left"], g, strict=True)]
        right = [0.95 * a + g.T @ g for a, g in zip(state["right"], g, strict=True)]
        w = [w - 0.1 * root(a) @ g @ root(b) for w, a, g, b in zip(state["w"], left, g, right, strict=True)]
        return {"w": w, "left": left, "right": right}

    s = array(m, (64, 64), "fsdp")
    return m, step, ({"w": [s, s], "left": [s, s], "right": [s, s]}, array(m, (64, 64), "fsdp"))


@program
def zero_one():
    """ZeRO-1: weights on every device, Adam's moments over the batch's axis, updates constrained as the moments."""
    m = mesh_with(data=8)

    def step(w, mu, nu, x):
        g = jax.grad(lambda w: ((jnp.tanh(x @ w["up"]) @ w["down"]) ** 2).mean())(w)
        g = jax.tree.map(lambda g: jax.lax.with_sharding_constraint(g, P("data")), g)
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, g)
        nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, nu, g)
        update = jax.tree.map(lambda m, n: 1e-3 * m / (jnp.sqrt(n) + 1e-8), mu, nu)
        update = jax.tree.map(lambda u: jax.lax.with_sharding_constraint(u, P()), update)
        return jax.tree.map(jnp.subtract, w, update), mu, nu

    w = {"up": array(m, (64, 256)), "down": array(m, (256, 64))}
    moments = {"up": array(m, (64, 256), "data"), "down": array(m, (256, 64), "data")}
    return m, step, (w, moments, moments, array(m, (64, 64), "data"))


@program
def column_tables():
    """DLRM: each device has some columns of every table; `all_to_all` turns columns of all rows into rows."""
    m = mesh_with(d=8)

    def step(tables, w, dense, indices):
        def local(tables, w, dense, indices):
            indices = jax.lax.all_gather(indices, "d", axis=1, tiled=True)
            columns = jax.vmap(lambda table, i: table[i])(tables, indices)
            rows = jax.lax.all_to_all(columns, "d", 1, 2, tiled=True)
            x = jnp.concatenate([dense[None], rows])
            pairs = jnp.einsum("fbk,gbk->bfg", x, x).reshape(x.shape[1], -1)
            loss = jnp.logaddexp(0, pairs @ w).mean()
            return jax.lax.pmean(loss, "d")

        f = jax.shard_map(local, in_specs=(P(None, None, "d"), P(), P("d"), P(None, "d")), out_specs=P())
        g = jax.grad(lambda t, w: f(t, w, dense, indices), (0, 1))(tables, w)
        return jax.tree.map(lambda p, g: p - 0.1 * g, (tables, w), g)

    return (
        m,
        step,
        (
            array(m, (3, 128, 16), None, None, "d"),
            array(m, (16, 1)),
            array(m, (64, 16), "d"),
            array(m, (3, 64), None, "d", dtype="int32"),
        ),
    )


@program
def pmap_mnist():
    """Flax's MNIST under `pmap`: replicated parameters, gradients and metrics by `pmean`, donated state."""

    class CNN(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.avg_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), strides=(2, 2))
            x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
            return nn.Dense(10)(x)

    model, opt = CNN(), optax.sgd(0.1, momentum=0.9)

    @functools.partial(jax.pmap, axis_name="batch", donate_argnums=(0, 1))
    def train_step(params, opt_state, images, labels):
        def loss(params):
            logits: Any = model.apply(params, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

        (value, logits), g = jax.value_and_grad(loss, has_aux=True)(params)
        g = jax.lax.pmean(g, "batch")
        updates, opt_state = opt.update(g, opt_state, params)
        metrics = jax.lax.pmean({"loss": value, "accuracy": (logits.argmax(-1) == labels).mean()}, "batch")
        return optax.apply_updates(params, updates), opt_state, metrics

    params = model.init(jax.random.key(0), jnp.ones((1, 8, 8, 1)))
    params, state = (jax.tree.map(lambda x: jnp.stack([x] * 8), t) for t in (params, opt.init(params)))
    return None, train_step, (params, state, jnp.ones((8, 4, 8, 8, 1)), jnp.zeros((8, 4), "int32"))


@program
def beam_search():
    """One step of beam search: the best continuations over a sharded vocabulary, and beams in a new order."""
    m = mesh_with(data=2, model=4)

    def f(w, cache, scores, x):
        logits = jax.nn.log_softmax(jnp.einsum("bnd,dv->bnv", x, w)) + scores[..., None]
        best, at = jax.lax.top_k(logits.reshape(len(x), -1), 4)
        beam, word = at // w.shape[1], at % w.shape[1]
        cache = jnp.take_along_axis(cache, beam[..., None, None], 1)
        return best, word, cache.at[:, :, 0].set(w.T[word])

    return (
        m,
        f,
        (
            array(m, (16, 128), None, "model"),
            array(m, (8, 4, 8, 16), "data"),
            array(m, (8, 4), "data"),
            array(m, (8, 4, 16), "data"),
        ),
    )


@program
def vocabulary_loss():
    """Megatron's cross entropy: the largest logit, the sum and the label's logit, each by one exchange."""
    m = mesh_with(data=2, model=4)

    def local(w, x, labels):
        logits = x @ w
        top = jax.lax.pmax(jax.lax.stop_gradient(logits.max(-1)), "model")
        total = jax.lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "model")
        at = labels - jax.lax.axis_index("model") * w.shape[1]
        inside = (at >= 0) & (at < w.shape[1])
        own = jnp.take_along_axis(logits, jnp.clip(at, 0, w.shape[1] - 1)[:, None], 1)[:, 0]
        own = jax.lax.psum(jnp.where(inside, own, 0), "model")
        return jax.lax.pmean((jnp.log(total) + top - own).mean(), "data")

    f = jax.shard_map(local, in_specs=(P(None, "model"), P("data"), P("data")), out_specs=P())
    args = array(m, (32, 256), None, "model"), array(m, (64, 32), "data"), array(m, (64,), "data", dtype="int32")
    return m, jax.grad(lambda w, x, y: f(w, x, y), (0, 1)), args
