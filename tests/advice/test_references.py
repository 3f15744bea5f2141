"""Findings about programs with references (`jax.new_ref`) among their arguments, beside a state in arrays."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb

SIZE = 128 * 256 * 4  # bytes of one weight


@pytest.fixture(scope="module")
def mesh():
    mesh = wb.make_mesh(data=8)
    with jax.set_mesh(mesh):
        yield mesh


def put(value, *spec):
    return jax.device_put(value, NamedSharding(jax.sharding.get_mesh(), P(*spec)))


def weights():
    return {"up": put(jnp.ones((128, 256))), "down": put(jnp.ones((256, 128)))}


def mean_square(params, x):
    return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - x) ** 2)


def averaged(average, params, update):
    """A server's step, which updates a moving average of the weights in place."""
    params = jax.tree.map(lambda w, u: w + 0.5 * u, params, update)
    for name, w in params.items():
        average[name][...] = 0.9 * average[name][...] + 0.1 * w
    return params


def donations(fn, *args, **options):
    return [f for f in wb.advise(fn, **options)(*args).findings if f.rule == "missing donation"]


def test_state_beside_references_is_not_donated(mesh):
    average, update = jax.tree.map(jax.new_ref, weights()), weights()
    [finding] = donations(jax.jit(averaged), average, weights(), update)
    assert finding.code == "averaged = jax.jit(averaged, donate_argnums=1)"
    assert finding.leaves == ("params['down']", "params['up']")
    assert finding.size_bytes == 2 * SIZE
    assert finding.evidence[1].startswith("aliased now: 0 B")  # not the references, which JAX updates in place
    assert finding.is_verified
    assert finding.gain.before - finding.gain.after == 2 * SIZE


def test_donated_state_beside_references_is_no_finding(mesh):
    average, update = jax.tree.map(jax.new_ref, weights()), weights()
    assert donations(jax.jit(averaged, donate_argnums=1), average, weights(), update, verify=False) == []


def test_state_that_is_all_references_is_no_finding(mesh):
    @jax.jit
    def step(params, x):
        gradients = jax.grad(mean_square)({name: ref[...] for name, ref in params.items()}, x)
        for name, ref in params.items():
            ref[...] -= 0.1 * gradients[name]
        return gradients["up"].sum()

    assert donations(step, jax.tree.map(jax.new_ref, weights()), put(jnp.ones((64, 128)), "data"), verify=False) == []


def test_reference_that_is_only_read_replaces_no_result(mesh):
    def scaled(scale, x):
        return scale[...] * 2.0 + x.sum()

    [finding] = donations(jax.jit(lambda w, s: w * s[...]), put(jnp.ones((512, 64))), jax.new_ref(jnp.ones((512, 64))))
    assert finding.leaves == ("w",)
    assert donations(jax.jit(scaled), jax.new_ref(jnp.ones((512, 64))), jnp.ones(8), verify=False) == []


def test_argument_with_arrays_and_references_cannot_be_donated(mesh):
    optimizer = optax.sgd(0.1, momentum=0.9)

    def step(state, x):
        gradients = jax.grad(mean_square)(state["params"], x)
        updates, trace = optimizer.update(gradients, state["trace"])
        state["seen"][...] += x.shape[0]
        return {"params": optax.apply_updates(state["params"], updates), "trace": trace}

    params, x = weights(), put(jnp.ones((64, 128)), "data")
    state = {"params": params, "trace": optimizer.init(params), "seen": jax.new_ref(jnp.zeros((), "int32"))}
    with pytest.raises(jax.errors.JaxRuntimeError, match="already aliased"):
        jax.jit(step, donate_argnums=0).lower(state, x).compile()
    [finding] = donations(jax.jit(step), state, x)
    assert finding.size_bytes == 4 * SIZE
    assert (finding.code, finding.gain) == ("", None)
    assert "JAX cannot donate `state`, because it also contains references" in finding.change


def test_results_of_a_program_with_references_are_its_own_results(mesh):
    average, update = jax.tree.map(jax.new_ref, weights()), weights()
    record = wb.inspect(jax.jit(averaged))(average, weights(), update)
    assert [(leaf.path, leaf.shape) for leaf in record.outputs.leaves] == [
        ("result['down']", (256, 128)),
        ("result['up']", (128, 256)),
    ]


def test_spec_of_a_reference_is_compiled(mesh):
    average = jax.tree.map(jax.new_ref, weights())
    traced = wb.trace(jax.jit(averaged))(average, weights(), weights())
    changed = traced.what_if({"average['up']": P("data")})
    assert changed.after.inputs.leaves[1].bytes_per_device == SIZE / 8


def test_step_with_references_is_run_with_its_state_donated(mesh):
    average, update = jax.tree.map(jax.new_ref, weights()), weights()
    [finding] = donations(jax.jit(averaged), average, weights(), update, measure=True)
    assert finding.run_gain is not None
