"""Values that layers keep for the backward pass: found, and recomputed as `jax.checkpoint` recomputes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import workbench as wb
from workbench.advice._advise import _rank
from workbench.advice._remat import KEPT, Flat, kept_for_backward, rematerialised
from workbench.records.advice import FindingRecord, GainRecord

LAYERS, WIDTH, HIDDEN, ROWS = 4, 32, 256, 512


def layer(x, w):
    return x + jnp.tanh(jax.nn.gelu(x @ w["up"])) @ w["down"]


def scanned(body):
    def loss(ws, x):
        return (jax.lax.scan(lambda x, w: (body(x, w), None), x, ws)[0] ** 2).mean()

    return jax.jit(jax.grad(loss))


def written_out(body):
    def loss(ws, x):
        for number in range(LAYERS):
            x = body(x, {"up": ws["up"][number], "down": ws["down"][number]})
        return (x**2).mean()

    return jax.jit(jax.grad(loss))


def arguments():
    up, down, x = jax.random.split(jax.random.key(0), 3)
    ws = {"up": jax.random.normal(up, (LAYERS, WIDTH, HIDDEN)) / 8}
    ws["down"] = jax.random.normal(down, (LAYERS, HIDDEN, WIDTH)) / 16
    return ws, jax.random.normal(x, (ROWS, WIDTH))


def kept(advice):
    return [finding for finding in advice.findings if finding.rule == KEPT]


def test_kept_values_of_a_scan_are_a_compiled_finding_with_code():
    [finding] = kept(wb.advise(scanned(layer))(*arguments()))
    assert finding.is_verified
    assert finding.gain.after < 0.6 * finding.gain.before
    assert "jax.lax.scan(jax.checkpoint(body, prevent_cse=False" in finding.code
    assert finding.sources[0].function.endswith("loss")


@pytest.mark.parametrize("make", [scanned, written_out])
@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable])
def test_recomputed_program_has_the_same_results_and_the_flops_of_a_checkpoint(make, policy):
    args = arguments()
    closed = make(layer).trace(*args).jaxpr
    [loop] = kept_for_backward(closed)
    assert loop.copies == LAYERS
    changed, count = rematerialised(closed, [(loop.source.file, loop.source.line)], policy)
    assert count > 0
    fn = jax.jit(lambda *args: jaxpr_as_fun(changed)(*jax.tree.leaves(args)))
    for expected, value in zip(jax.tree.leaves(make(layer)(*args)), fn(*args), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
    by_hand = make(jax.checkpoint(layer, policy=policy, prevent_cse=make is written_out))
    flops = [f.lower(*args).compile().cost_analysis()["flops"] for f in (fn, by_hand)]
    assert flops[0] == pytest.approx(flops[1], rel=0.05)


def test_python_loop_on_a_cpu_is_an_estimate_that_names_the_layer():
    [finding] = kept(wb.advise(written_out(layer))(*arguments()))
    assert not finding.is_verified
    assert "recomputing the layers of a Python loop saves too little memory there" in finding.gain.how
    assert "Wrap `layer`" in finding.change
    assert finding.code == "layer = jax.checkpoint(layer)"


@pytest.mark.parametrize("make", [scanned, written_out])
def test_checkpointed_layers_keep_nothing(make):
    body = jax.checkpoint(layer, prevent_cse=make is written_out)
    assert kept_for_backward(make(body).trace(*arguments()).jaxpr) == []


def test_inference_keeps_nothing():
    forward = jax.jit(lambda ws, x: jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0])
    assert kept_for_backward(forward.trace(*arguments()).jaxpr) == []


def test_small_activations_are_no_finding():
    ws, x = arguments()
    assert kept(wb.advise(scanned(layer))(ws, x[:4])) == []


def test_recomputation_ranks_after_a_pure_gain_but_first_if_the_program_fits_only_with_it():
    peak = GainRecord(quantity="peak bytes", before=10.0, after=5.0, verified=True)
    trade = FindingRecord(rule=KEPT, what="", why="", change="", evidence=(), weight=1.0, gain=peak, compared=(peak,))
    pure = trade.replace(rule="missing donation", weight=0.1, compared=())
    assert sorted([trade, pure], key=_rank) == [pure, trade]
    assert sorted([pure, trade], key=lambda finding: _rank(finding, 7.0)) == [trade, pure]


def test_scan_of_linen_is_named_by_its_library():
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(HIDDEN)(x))), None

    stack = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)()
    x = jnp.ones((ROWS, WIDTH))
    params = jax.eval_shape(stack.init, jax.random.key(0), x, None)
    gradient = jax.jit(jax.grad(lambda params: stack.apply(params, x, None)[0].sum()))
    [loop] = kept_for_backward(gradient.trace(params).jaxpr)
    assert loop.library == "linen"


def test_lines_of_notebook_cells_are_not_temporary_files():
    code = "def loss(ws, x):\n    return (jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0] ** 2).mean()\n"
    cell = {"jax": jax, "layer": layer}
    exec(compile(code, "/tmp/ipykernel_77/123.py", "exec"), cell)
    advice = wb.advise(jax.jit(jax.grad(cell["loss"])))(*arguments())
    assert "notebook cell:2" in kept(advice)[0].evidence[0]
    assert "ipykernel" not in str(advice)


def test_calls_are_inlined_unless_they_place_arrays_or_have_a_derivative_of_their_own():
    placed = jax.sharding.NamedSharding(wb.make_mesh(x=8), jax.sharding.PartitionSpec("x"))
    calls = {
        "plain": (jax.jit(jnp.sin), True),
        "placed input": (jax.jit(jnp.sin, in_shardings=placed), False),
        "placed result": (jax.jit(jnp.sin, out_shardings=placed), False),
        "checkpoint": (jax.checkpoint(jnp.sin), False),
        "own derivative": (jax.nn.relu, False),
    }
    found = {name: Flat().enters(jax.make_jaxpr(call)(jnp.ones(8)).eqns[0]) for name, (call, _) in calls.items()}
    assert found == {name: inlined for name, (_, inlined) in calls.items()}
