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


STORED = {name: P("data", *spec[1:]) if spec[0] is None else P(spec[0], "data") for name, spec in SPECS.items()}
# XLA's CPU compiler would move the gather out of the loop itself
KEPT = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}


def accumulated(mesh, *, gathers_inside):
    """The step with gradients added up over micro-batches; parameters are gathered over `data` for their use."""

    def gathered(w):
        used = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
        return jax.tree.map(jax.lax.with_sharding_constraint, w, used)

    def step(w, batches):
        given = w if gathers_inside else gathered(w)

        def add(total, x):
            used = gathered(given) if gathers_inside else given
            return jax.tree.map(jnp.add, total, jax.grad(lambda w: jnp.mean(block(w, x) ** 2))(used)), None

        gradient = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), batches)[0]
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

    batches = jax.ShapeDtypeStruct((4, BATCH, LENGTH, WIDTH), "float32", sharding=NamedSharding(mesh, P(None, "data")))
    results = {name: NamedSharding(mesh, spec) for name, spec in STORED.items()}
    fn = jax.jit(step, out_shardings=results, donate_argnums=0, compiler_options=KEPT)
    return wb.advise(fn, verify=False)(parameters(mesh, STORED), batches)


def test_gather_of_an_unchanged_value_inside_a_loop_is_the_top_finding(mesh):
    found = accumulated(mesh, gathers_inside=True).findings
    assert found[0].rule == "loop-invariant collective"
    assert found[0].axes == ("data",)
    assert "costly constraint" not in {each.rule for each in found}


def test_gather_before_the_loop_is_no_finding(mesh):
    assert [found.what for found in accumulated(mesh, gathers_inside=False).findings] == []


def fedavg_advice(mesh, examples):
    """A transformer's step as the work of a client, on clients of the given sizes."""

    @wb.program(clients=8)
    def fedavg(w, data):
        return wb.reduce_mean(wb.map_fn(step, (wb.broadcast(w), data)))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        w = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in parameters(mesh, SPECS).items()}
        data = jax.ShapeDtypeStruct((8, BATCH, LENGTH, WIDTH), "float32")
        fn = wb.jit(fedavg, donate_argnums=0)
        return wb.advise(fn, verify=False, examples_per_client=examples)(w, data).findings


def test_unbalanced_clients_are_the_top_finding(mesh):
    found = fedavg_advice(mesh, [1, 1, 1, 1, 1, 1, 1, BATCH])
    assert found[0].rule == "unbalanced clients"


def test_clients_of_equal_size_are_no_finding(mesh):
    assert "unbalanced clients" not in {found.rule for found in fedavg_advice(mesh, [BATCH] * 8)}


def summed_advice(mesh, sums):
    """The step in bfloat16, whose last product is summed in bfloat16 or in float32."""

    def last_product(w, x):
        hidden = jax.nn.gelu(x @ w["up"])
        return x + jnp.matmul(hidden, w["down"], preferred_element_type=sums).astype(x.dtype)

    def narrow_step(w, x):
        gradient = jax.grad(lambda w: jnp.mean(last_product(w, x).astype("float32") ** 2))(w)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

    w = {name: each for name, each in parameters(mesh, SPECS).items() if name in ("up", "down")}
    w = {name: each.update(dtype=jnp.bfloat16) for name, each in w.items()}
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), "bfloat16", sharding=NamedSharding(mesh, P("data")))
    shardings = {name: NamedSharding(mesh, SPECS[name]) for name in w}
    return wb.advise(jax.jit(narrow_step, out_shardings=shardings, donate_argnums=0))(w, x).findings


def test_wide_exchange_of_narrow_values_is_the_top_finding_and_verified(mesh):
    found = summed_advice(mesh, "float32")
    assert found[0].rule == "float32 collective of 16-bit values"
    assert found[0].is_verified


def test_narrow_exchange_is_no_finding(mesh):
    assert [found.what for found in summed_advice(mesh, None)] == []
