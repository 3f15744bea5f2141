"""A transformer's training step with one mistake at a time: it is the top finding; without mistakes there is none."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb

WIDTH, HIDDEN, HEADS, LENGTH, BATCH = 64, 256, 4, 16, 32
SPECS = {
    "q": P(None, "model"),
    "k": P(None, "model"),
    "v": P(None, "model"),
    "out": P("model"),
    "up": P(None, "model"),
    "down": P("model"),
}


@pytest.fixture(scope="module")
def mesh():
    mesh = wb.make_mesh(data=4, model=2)
    with jax.set_mesh(mesh):
        yield mesh


def parameters(mesh, specs):
    sizes = {name: (WIDTH, HEADS, WIDTH // HEADS) for name in "qkv"}
    sizes |= {"out": (HEADS, WIDTH // HEADS, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    return {
        name: jax.ShapeDtypeStruct(size, "float32", sharding=NamedSharding(mesh, specs[name]))
        for name, size in sizes.items()
    }


def block(w, x, constraint=None):
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, w[name]) for name in "qkv")
    x = x + jnp.einsum("bhst,bhtk,hkd->bsd", jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k)), v, w["out"])
    hidden = jax.nn.gelu(x @ w["up"])
    if constraint is not None:
        hidden = jax.lax.with_sharding_constraint(hidden, constraint)
    return x + hidden @ w["down"]


def step(w, x, constraint=None):
    gradient = jax.grad(lambda w: jnp.mean(block(w, x, constraint) ** 2))(w)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)


def advice(mesh, *, specs=SPECS, donated=(0,), constraint=None):
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), "float32", sharding=NamedSharding(mesh, P("data")))
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    fn = jax.jit(lambda w, x: step(w, x, constraint), out_shardings=shardings, donate_argnums=donated)
    return wb.advise(fn, verify=False)(parameters(mesh, specs), x)


def test_step_without_mistakes_has_no_finding(mesh):
    assert [finding.what for finding in advice(mesh).findings] == []


def test_transposed_spec_is_the_top_finding(mesh):
    found = advice(mesh, specs=SPECS | {"up": P("model", None)}).findings[0]
    assert found.rule == "spec on another dimension"
    assert found.leaves == ("w['up']",)


def test_wrong_constraint_is_the_top_finding_at_its_line(mesh):
    found = advice(mesh, constraint=NamedSharding(mesh, P(None, "data", "model"))).findings[0]
    assert found.rule == "costly constraint"
    assert found.sources[0].function.endswith("block")


def test_missing_donation_is_the_top_finding(mesh):
    assert advice(mesh, donated=()).findings[0].rule == "missing donation"


def test_gather_of_an_unchanged_value_inside_a_loop_is_the_top_finding(mesh):
    def repeated(w, x):
        def again(x, _):
            with_gather = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P()))
            return x + 0.1 * jnp.tanh(x @ with_gather), None

        return jax.lax.scan(again, x, None, length=6)[0]

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32", sharding=NamedSharding(mesh, P("model")))
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32", sharding=NamedSharding(mesh, P("data")))
    kept = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}  # XLA's CPU would move the gather out itself
    fn = jax.jit(repeated, donate_argnums=1, compiler_options=kept)
    assert wb.advise(fn, verify=False)(w, x).findings[0].rule in ("loop-invariant collective", "costly constraint")


def test_unbalanced_clients_are_the_top_finding():
    @wb.program(clients=8)
    def fedavg(w, data):
        def client(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

        return wb.reduce_mean(wb.map_fn(client, (wb.broadcast(w), data)))

    counts = [1, 1, 1, 1, 1, 1, 1, 64]
    w, data = jax.ShapeDtypeStruct((8, 8), "float32"), jax.ShapeDtypeStruct((8, 64, 8), "float32")
    unbalanced = wb.advise(fedavg, verify=False, examples_per_client=counts)(w, data)
    balanced = wb.advise(fedavg, verify=False, examples_per_client=[64] * 8)(w, data)
    assert unbalanced.findings[0].rule in ("padding", "unbalanced clients")
    assert not {"padding", "unbalanced clients"} & {finding.rule for finding in balanced.findings}


def test_wide_exchange_of_narrow_values_is_found(mesh):
    def total(x):
        return jax.lax.psum(x.astype("float32"), "data")

    x = jax.ShapeDtypeStruct((BATCH, 4096), "bfloat16", sharding=NamedSharding(mesh, P("data")))
    wide = jax.jit(jax.shard_map(total, mesh=mesh, in_specs=P("data"), out_specs=P()))
    [found] = [each for each in wb.advise(wide)(x).findings if each.rule.startswith("float32")]
    assert found.axes == ("data",)
    assert found.is_verified
    assert found.gain.after == found.gain.before / 2
