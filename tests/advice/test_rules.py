"""Each rule on a program with the mistake, and on the same program without it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb


def rules(advice):
    return [finding.rule for finding in advice.findings]


@pytest.fixture
def mesh():
    mesh = wb.make_mesh(data=4, model=2)
    with jax.set_mesh(mesh):
        yield mesh


def placed(mesh, value, *spec):
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def sgd(params, batch):
    def loss(w):
        return jnp.mean((jnp.tanh(batch @ w["up"]) @ w["down"] - batch) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def params(mesh, **specs):
    return {
        "up": placed(mesh, jnp.ones((256, 512)), *specs.get("up", ())),
        "down": placed(mesh, jnp.ones((512, 256)), *specs.get("down", ())),
    }


SHARDED = {"up": (None, "model"), "down": ("model", None)}


def test_missing_donation_is_found_and_its_gain_compiled(mesh):
    average = jax.jit(lambda old, new: jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new))
    advice = wb.advise(average)(params(mesh, **SHARDED), params(mesh, **SHARDED))
    found = next(f for f in advice.findings if f.rule == "missing donation")
    assert found.gain is not None
    assert found.gain.verified
    assert found.gain.after < found.gain.before


def test_donated_arguments_are_no_finding(mesh):
    args = params(mesh, **SHARDED), placed(mesh, jnp.ones((16, 256)), "data")
    assert "missing donation" not in rules(wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args))


def test_donation_that_the_compiler_cannot_use_is_left_out_once_it_was_compiled(mesh):
    args = params(mesh, **SHARDED), placed(mesh, jnp.ones((16, 256)), "data")  # XLA's CPU copies the old weights
    assert "missing donation" in rules(wb.advise(jax.jit(sgd), verify=False)(*args))
    gains = [f.gain for f in wb.advise(jax.jit(sgd))(*args).findings if f.rule == "missing donation"]
    assert all(gain.verified and gain.after < gain.before for gain in gains)


def test_large_replicated_parameters_are_named_with_a_spec_to_paste(mesh):
    args = params(mesh), placed(mesh, jnp.ones((16, 256)), "data")
    advice = wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args)
    found = [f for f in advice.findings if f.rule == "large replicated array"]
    assert {"up", "down"} <= {name for f in found for name in ("up", "down") if name in f.what}
    assert all("P(" in f.change for f in found)


def test_sharded_parameters_are_no_finding(mesh):
    args = params(mesh, up=("data", "model"), down=("model", "data")), placed(mesh, jnp.ones((16, 256)), "data")
    assert "large replicated array" not in rules(wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args))


def test_axis_that_nothing_uses_is_found(mesh):
    advice = wb.advise(jax.jit(lambda x: (x**2).sum()), verify=False)(placed(mesh, jnp.ones((16, 8)), "data"))
    assert ["model" in f.what for f in advice.findings if f.rule == "unused mesh axis"] == [True]


def test_used_axes_are_no_finding(mesh):
    x = placed(mesh, jnp.ones((16, 8)), "data", "model")
    assert "unused mesh axis" not in rules(wb.advise(jax.jit(lambda x: (x**2).sum()), verify=False)(x))


def iterate(w, x, steps=6):
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=steps)[0]


def test_gather_of_a_value_that_the_loop_never_changes_is_found(mesh):
    def gathers(w, x):
        def step(x, _):
            whole = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P()))
            return jnp.tanh(x @ whole), None

        return jax.lax.scan(step, x, None, length=6)[0]

    w, x = placed(mesh, jnp.ones((64, 64)), "model", None), placed(mesh, jnp.ones((16, 64)), "data")
    record = wb.inspect(jax.jit(gathers))(w, x)
    looped = [c for c in record.module.collectives if c.kind == "all-gather" and (c.executions or 1) > 1]
    if not looped:
        pytest.skip("this compiler moves the gather out of the loop by itself")
    assert "loop-invariant collective" in rules(wb.advise(jax.jit(gathers), verify=False)(w, x))


def test_gather_of_the_carried_value_is_no_finding(mesh):
    w, x = placed(mesh, jnp.ones((64, 64)), None, "model"), placed(mesh, jnp.ones((16, 64)), "data")
    assert "loop-invariant collective" not in rules(wb.advise(jax.jit(iterate), verify=False)(w, x))


def test_callback_in_a_loop_is_found():
    def talks(x):
        def step(x, _):
            jax.debug.callback(lambda value: None, x)
            return x + 1, None

        return jax.lax.scan(step, x, None, length=5)[0]

    assert rules(wb.advise(jax.jit(talks), verify=False)(jnp.float32(0))) == ["host inside a loop"]


def test_callback_outside_of_loops_is_no_finding():
    def talks(x):
        jax.debug.callback(lambda value: None, x)
        return jax.lax.scan(lambda x, _: (x + 1, None), x, None, length=5)[0]

    assert "host inside a loop" not in rules(wb.advise(jax.jit(talks), verify=False)(jnp.float32(0)))


def test_checkpointed_layers_are_reported_as_recomputation():
    def loss(ws, x):
        for w in ws:
            x = jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w))(x, w)
        return x.sum()

    ws, x = [jnp.ones((64, 64))] * 4, jnp.ones((32, 64))
    found = [f for f in wb.advise(jax.jit(jax.grad(loss)), verify=False)(ws, x).findings if f.rule == "recomputation"]
    assert len(found) == 1
    assert found[0].gain.before > found[0].gain.after


def test_clean_program_gives_nothing_found_and_what_was_checked():
    advice = wb.advise(jax.jit(lambda x: jnp.tanh(x).sum()), verify=False)(jnp.ones(8))
    assert advice.findings == ()
    assert len(advice.checked) > 8
    assert "nothing found" in str(advice)


def test_padding_of_clients_is_reported_with_its_share():
    @wb.program(clients=4)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: (row @ row.T).sum(), x))

    advice = wb.advise(total, verify=False, examples_per_client=[1, 1, 1, 16])(jnp.ones((4, 16, 8)))
    assert "padding" in rules(advice)


def test_a_planned_record_is_refused():
    record = wb.inspect(jax.jit(jnp.tanh), mesh=jax.sharding.AbstractMesh((4,), ("data",)))(jnp.ones(8))
    with pytest.raises(wb.errors.InspectionError, match="planned and not compiled"):
        wb.advice.advise_record(record)


def test_change_that_makes_another_program_is_not_called_verified():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    @nnx.jit
    def step(model, optimizer, x):
        loss, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return loss

    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    advice = wb.advise(step)(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), jnp.ones((32, 64)))
    found = next(f for f in advice.findings if f.rule == "missing donation")
    assert not found.gain.verified
    assert "could not be verified" in found.gain.how
