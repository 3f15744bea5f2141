"""A transformer's training step with one mistake at a time: it is the top finding; without mistakes there is none.

The step is a Flax NNX and an Equinox module; loops and clients take its parameters as a dictionary.
"""

import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb

WIDTH, HIDDEN, HEADS, LENGTH, BATCH = 64, 256, 4, 16, 32
SIZES = {name: (WIDTH, HEADS, WIDTH // HEADS) for name in "qkv"}
SIZES |= {"out": (HEADS, WIDTH // HEADS, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
COLUMNS, ROWS = P(None, "model"), P("model")
SPECS = {"q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "out": ROWS, "up": COLUMNS, "down": ROWS}


@pytest.fixture(scope="module")
def mesh():
    mesh = wb.make_mesh(data=4, model=2)
    with jax.set_mesh(mesh):
        yield mesh


def block(w, x, constraint=None, sums=None):
    """Attention and two products; `w` is a module with the parameters as attributes."""
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, each[...]) for each in (w.q, w.k, w.v))
    scores = jax.nn.softmax(jnp.einsum("bhsk,bhtk->bhst", q, k))
    x = x + jnp.einsum("bhst,bhtk,hkd->bsd", scores, v, w.out[...])
    hidden = jax.nn.gelu(x @ w.up[...])
    if constraint is not None:
        hidden = jax.lax.with_sharding_constraint(hidden, constraint)
    return x + jnp.matmul(hidden, w.down[...], preferred_element_type=sums).astype(x.dtype)


def loss(w, x, **options):
    return jnp.mean(block(w, x, **options).astype("float32") ** 2)


class Nnx:
    """The step as Flax's documentation writes it."""

    def __init__(self, arrays):
        nnx = pytest.importorskip("flax.nnx")
        self.nnx = nnx

        class Block(nnx.Module):
            def __init__(self):
                for name, array in arrays.items():
                    setattr(self, name, nnx.Param(array))

        self.model = Block()

    def step(self, donated=True, **options):
        nnx = self.nnx

        def step(model, x):
            gradient = nnx.grad(lambda model: loss(model, x, **options))(model)
            nnx.update(model, jax.tree.map(lambda w, g: w - 0.1 * g, nnx.state(model), gradient))

        return nnx.jit(step, donate_argnums=0 if donated else ())

    def advice(self, fn, x, verify=False):
        return wb.advise(fn, verify=verify)(self.model, x).findings


class Equinox:
    """The step as Equinox's documentation writes it."""

    def __init__(self, arrays):
        eqx = pytest.importorskip("equinox")
        self.eqx = eqx

        class Block(eqx.Module):
            q: jax.Array
            k: jax.Array
            v: jax.Array
            out: jax.Array
            up: jax.Array
            down: jax.Array

        self.model = Block(**arrays)

    def step(self, donated=True, **options):
        def step(x, model):
            gradient = self.eqx.filter_grad(lambda model: loss(model, x, **options))(model)
            return jax.tree.map(lambda w, g: w - 0.1 * g, model, gradient)

        return self.eqx.filter_jit(step, donate="all-except-first" if donated else "none")

    def advice(self, fn, x, verify=False):
        return wb.advise(fn, verify=verify)(x, self.model).findings


def prepared(kind, mesh, specs=SPECS, dtype="float32"):
    places = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    arrays = {name: jax.device_put(jnp.full(size, 0.01, dtype), places[name]) for name, size in SIZES.items()}
    made = kind(arrays)
    return made, jax.device_put(jnp.zeros((BATCH, LENGTH, WIDTH), dtype), NamedSharding(mesh, P("data")))


KINDS = pytest.mark.parametrize("kind", [Nnx, Equinox])


@KINDS
def test_step_without_mistakes_has_no_finding(mesh, kind):
    made, x = prepared(kind, mesh)
    assert [finding.what for finding in made.advice(made.step(), x)] == []


@KINDS
def test_transposed_spec_is_the_top_finding(mesh, kind):
    made, x = prepared(kind, mesh, SPECS | {"up": P("model", None)})
    found = made.advice(made.step(), x)[0]
    assert found.rule == "spec on another dimension"
    assert "up" in found.leaves[0]


@KINDS
def test_wrong_constraint_is_the_top_finding_at_its_line(mesh, kind):
    made, x = prepared(kind, mesh)
    found = made.advice(made.step(constraint=NamedSharding(mesh, P(None, "data", "model"))), x, verify=True)[0]
    assert found.rule == "costly constraint"
    assert found.sources[0].function.endswith("block")
    assert found.is_verified
    assert found.gain.after < found.gain.before


@KINDS
def test_missing_donation_is_the_top_finding(mesh, kind):
    made, x = prepared(kind, mesh)
    assert made.advice(made.step(donated=False), x)[0].rule == "missing donation"


@KINDS
def test_wide_sum_of_narrow_values_is_the_top_finding(mesh, kind):
    made, x = prepared(kind, mesh, dtype="bfloat16")
    narrow, wide = made.advice(made.step(), x), made.advice(made.step(sums="float32"), x, verify=True)
    rule = "float32 collective of 16-bit values"
    assert rule not in {finding.rule for finding in narrow}
    assert wide[0].rule == rule
    assert wide[0].is_verified


def parameters(mesh, specs):
    return {
        name: jax.ShapeDtypeStruct(size, "float32", sharding=NamedSharding(mesh, specs[name]))
        for name, size in SIZES.items()
    }


def gradient(w, x):
    return jax.grad(lambda w: jnp.mean(block(types.SimpleNamespace(**w), x) ** 2))(w)


def updated(w, gradient):
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)


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
            return jax.tree.map(jnp.add, total, gradient(used, x)), None

        return updated(w, jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), batches)[0])

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
        return wb.reduce_mean(wb.map_fn(lambda w, x: updated(w, gradient(w, x)), (wb.broadcast(w), data)))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        w = {name: jax.ShapeDtypeStruct(each.shape, each.dtype) for name, each in parameters(mesh, SPECS).items()}
        data = jax.ShapeDtypeStruct((8, BATCH, LENGTH, WIDTH), "float32")
        fn = wb.jit(fedavg, donate_argnums=0)
        return wb.advise(fn, verify=False, examples_per_client=(examples, BATCH))(w, data).findings


def test_unbalanced_clients_are_the_top_finding(mesh):
    found = fedavg_advice(mesh, [1, 1, 1, 1, 1, 1, 1, BATCH])
    assert found[0].rule == "unbalanced clients"


def test_clients_of_equal_size_are_no_finding(mesh):
    assert "unbalanced clients" not in {found.rule for found in fedavg_advice(mesh, [BATCH] * 8)}
