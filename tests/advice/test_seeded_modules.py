"""A transformer's training step as Flax NNX and Equinox modules, with one mistake at a time: it is the top finding."""

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

    def advice(self, fn, x):
        return wb.advise(fn, verify=False)(self.model, x).findings

    def pure(self):
        """The parameters as a pytree, and the block as a function of them."""
        graph, state = self.nnx.split(self.model)
        return state, lambda state, x: block(self.nnx.merge(graph, state), x)


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

    def advice(self, fn, x):
        return wb.advise(fn, verify=False)(x, self.model).findings

    def pure(self):
        """The parameters as a pytree, and the block as a function of them."""
        parameters, rest = self.eqx.partition(self.model, self.eqx.is_array)
        return parameters, lambda parameters, x: block(self.eqx.combine(parameters, rest), x)


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
    found = made.advice(made.step(constraint=NamedSharding(mesh, P(None, "data", "model"))), x)[0]
    assert found.rule == "costly constraint"
    assert found.sources[0].function.endswith("block")


@KINDS
def test_missing_donation_is_the_top_finding(mesh, kind):
    made, x = prepared(kind, mesh)
    assert made.advice(made.step(donated=False), x)[0].rule == "missing donation"


@KINDS
def test_wide_sum_of_narrow_values_is_the_top_finding(mesh, kind):
    made, x = prepared(kind, mesh, dtype="bfloat16")
    narrow, wide = made.advice(made.step(), x), made.advice(made.step(sums="float32"), x)
    rule = "float32 collective of 16-bit values"
    assert rule not in {finding.rule for finding in narrow}
    assert wide[0].rule == rule


STORED = {name: P("data", *spec[1:]) if spec[0] is None else P(spec[0], "data") for name, spec in SPECS.items()}
# XLA's CPU compiler would move the gather out of the loop itself
KEPT = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}


@KINDS
@pytest.mark.parametrize("gathers_inside", [True, False])
def test_gather_inside_of_a_loop_is_the_top_finding_and_before_the_loop_none(mesh, kind, gathers_inside):
    made, x = prepared(kind, mesh, STORED)
    parameters, apply = made.pure()
    stored = jax.tree.map(lambda array: array.sharding, parameters)
    uses = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    used = jax.tree.unflatten(jax.tree.structure(parameters), _in_order(parameters, uses))

    def gathered(w):
        return jax.tree.map(jax.lax.with_sharding_constraint, w, used)

    def step(w, batches):
        given = w if gathers_inside else gathered(w)

        def add(total, x):
            here = gathered(given) if gathers_inside else given
            return jax.tree.map(jnp.add, total, jax.grad(lambda w: jnp.mean(apply(w, x) ** 2))(here)), None

        gradient = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, w), batches)[0]
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

    batches = jax.device_put(jnp.zeros((4, *x.shape)), NamedSharding(mesh, P(None, "data")))
    fn = jax.jit(step, out_shardings=stored, donate_argnums=0, compiler_options=KEPT)
    found = [each.rule for each in wb.advise(fn, verify=False)(parameters, batches).findings]
    assert found[:1] == (["loop-invariant collective"] if gathers_inside else [])


def _in_order(parameters, values):
    """A value per parameter, by the parameter's name in its module."""
    first = [path[0] for path, _ in jax.tree_util.tree_flatten_with_path(parameters)[0]]
    return [values[key.name if hasattr(key, "name") else key.key] for key in first]


@KINDS
@pytest.mark.parametrize("examples", [[1, 1, 1, 1, 1, 1, 1, BATCH], [BATCH] * 8])
def test_unbalanced_clients_are_the_top_finding_and_equal_ones_none(mesh, kind, examples):
    made, _ = prepared(kind, mesh)
    parameters, apply = made.pure()

    @wb.program(clients=8)
    def fedavg(w, data):
        def client(w, x):
            gradient = jax.grad(lambda w: jnp.mean(apply(w, x) ** 2))(w)
            return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

        return wb.reduce_mean(wb.map_fn(client, (wb.broadcast(w), data)))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        w = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), parameters)
        data = jax.ShapeDtypeStruct((8, BATCH, LENGTH, WIDTH), "float32")
        fn = wb.jit(fedavg, donate_argnums=0)
        found = [each.rule for each in wb.advise(fn, verify=False, examples_per_client=examples)(w, data).findings]
    if examples[0] == 1:
        assert found[0] == "unbalanced clients"
    else:
        assert "unbalanced clients" not in found
