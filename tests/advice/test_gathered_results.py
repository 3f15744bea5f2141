"""Results that are gathered only to be returned, with bytes counted in the compiled text and the code pasted."""

import contextlib
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from tests.advice.hand_written import DATA, compiled
from workbench.advice._gathered_results import RULE, _gathers, _is_gathered

MESH = wb.make_mesh(data=4, model=2)
WHOLE = NamedSharding(MESH, P())
ACTIVATIONS = 64 * 512 * 4  # bytes of the gathered result of `forward`


def shape(*sizes, spec=()):
    return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def weights():
    return shape(256, 512, spec=(None, "model"))


def batch():
    return shape(64, 256, spec=("data",))


def forward(w, x):
    h = jnp.tanh(x @ w)
    return {"h": h, "mean": h.mean()}


def update(w, x):
    return w - x.T @ jnp.tanh(x @ w)


def zero_one(w, m, x):
    """A step whose weights are replicated between calls, and whose momentum is sharded."""
    g = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    m = 0.9 * m + jax.lax.with_sharding_constraint(g, P("data"))
    return w - 0.1 * m, m


def findings(fn, *args, mesh=MESH, **options):
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        advice = wb.advise(fn, **options)(*args)
    return [finding for finding in advice.findings if finding.rule == RULE]


def gathered_bytes(fn, *args):
    """Bytes that one device sends in all-gathers, from the text of the module that JAX compiles."""
    with jax.set_mesh(MESH):
        text = fn.lower(*args).compile().as_text()
    total = 0.0
    for sizes, axis in re.findall(r"= f32\[([\d,]+)\]\S* all-gather\(.*?replica_groups=mesh\[.*?\{'axis_(\d)'\}", text):
        devices = int(re.findall(r"replica_groups=mesh\[(.*?)\]", text)[0].split(",")[int(axis)].split("=")[1])
        total += 4 * math.prod(int(size) for size in sizes.split(",")) * (1 - 1 / devices)
    return total


def pasted(finding, fn, *args):
    """The function and its arguments after the finding's code."""
    names = {fn.__name__: fn, **dict(zip(fn.__wrapped__.__code__.co_varnames, args, strict=False))}
    with jax.set_mesh(MESH):
        exec(finding.code, names)
    return names[fn.__name__], [names[name] for name in fn.__wrapped__.__code__.co_varnames[: len(args)]]


def test_bytes_of_a_result_are_those_of_the_gathers_in_the_compiled_text():
    fn = jax.jit(forward, out_shardings=WHOLE)
    [finding] = findings(fn, weights(), batch())
    sent = ACTIVATIONS / 4 * (1 - 1 / 2) + ACTIVATIONS * (1 - 1 / 4)  # over `model`, then over `data`
    assert gathered_bytes(fn, weights(), batch()) == sent
    assert finding.size_bytes == sent
    assert finding.is_verified
    assert finding.gain.before - finding.gain.after == sent
    assert finding.what.startswith("`result['h']` is computed in shards")
    assert finding.change.startswith("Keep the computed sharding in `out_shardings`: `P('data', 'model')`.")


def test_pasted_code_removes_the_gathers_and_keeps_the_values():
    fn = jax.jit(forward, out_shardings=WHOLE)
    [finding] = findings(fn, weights(), batch())
    changed, args = pasted(finding, fn, weights(), batch())
    assert gathered_bytes(changed, *args) == 0
    with jax.set_mesh(MESH):
        results = changed(jnp.full((256, 512), 1e-3), jnp.ones((64, 256)))
        assert results["h"].sharding.spec == P("data", "model")
        assert jnp.allclose(results["h"], fn(jnp.full((256, 512), 1e-3), jnp.ones((64, 256)))["h"], rtol=1e-5)


def test_final_constraint_is_one_finding_whose_statement_has_the_computed_spec():
    def step(w, x):
        h = jnp.tanh(x @ w)
        return jax.lax.with_sharding_constraint(h, P())

    with jax.set_mesh(MESH):
        [finding] = wb.advise(jax.jit(step))(weights(), batch()).findings
    assert finding.rule == RULE
    assert finding.code == "return jax.lax.with_sharding_constraint(h, P('data', 'model'))"
    assert finding.gain.verified
    assert finding.gain.after == 0


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # the gathered result is larger
def test_result_of_a_sharded_argument_is_compiled_again_in_the_next_call():
    fn = jax.jit(update, out_shardings=WHOLE, donate_argnums=0)
    [finding] = findings(fn, weights(), batch())
    assert finding.gain.before - finding.gain.after == 256 * 512 * 4 / 2
    assert "receives `w` gathered instead of in shards" in finding.why
    assert "out_shardings=P(None, 'model'), donate_argnums=(0,)" in finding.code


def test_code_without_a_current_mesh_names_the_mesh():
    fn = jax.jit(update, out_shardings=WHOLE)
    [finding] = findings(fn, weights(), batch(), mesh=None)
    changed, args = pasted(finding, fn, weights(), batch())
    assert gathered_bytes(changed, *args) == 0


def test_result_that_replaces_a_replicated_argument_is_a_trade():
    args = shape(256, 512), shape(256, 512, spec=("data",)), batch()
    fn = jax.jit(zero_one, out_shardings=(WHOLE, None))
    [estimate] = findings(fn, *args, verify=False)
    assert estimate.change.startswith("A trade: keep shards between calls, as `P('data')`, for `w`")
    assert "may send as many bytes as now" in estimate.change
    assert estimate.specs == {"w": (("data",), ())}
    assert estimate.size_bytes == 256 * 512 * 4 * (1 - 1 / 4)
    assert estimate.gain.before - estimate.gain.after == 256 * 512 * 4 * (1 - 1 / 4)
    [finding] = findings(fn, *args)
    assert {row.quantity for row in finding.compared} >= {"peak bytes", "bytes sent"}
    assert finding.change.startswith("A trade: ") == bool(finding.costs)
    assert "may send as many" not in finding.change


def test_pasted_trade_places_the_argument_and_returns_it_in_the_same_sharding():
    args = shape(256, 512), shape(256, 512, spec=("data",)), batch()
    fn = jax.jit(zero_one, out_shardings=(WHOLE, None))
    [finding] = findings(fn, *args)
    arrays = [jax.device_put(jnp.ones(one.shape), one.sharding) for one in args]
    changed, (w, m, x) = pasted(finding, fn, *arrays)
    with jax.set_mesh(MESH):
        result, _ = changed(w, m, x)
    assert w.sharding.is_equivalent_to(NamedSharding(MESH, P("data")), 2)
    assert result.sharding.is_equivalent_to(w.sharding, 2)


def test_results_are_known_for_a_target():
    fn = jax.jit(forward, out_shardings=WHOLE)
    [finding] = findings(fn, weights(), batch(), on="v5e:2x4")
    assert finding.gain.verified
    assert finding.gain.before - finding.gain.after == finding.size_bytes


def used_in_a_product(w, x):
    h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P())
    return h, h @ w.T


def small(w, x):
    return jnp.tanh(x @ w)[:, :2]


NOT_GATHERED = {
    "no request": jax.jit(forward),
    "the computed sharding": jax.jit(update, out_shardings=NamedSharding(MESH, P(None, "model"))),
    "another dimension": jax.jit(update, out_shardings=NamedSharding(MESH, P("model"))),
    "a value that a product reads": jax.jit(used_in_a_product),
    "scalars": jax.jit(lambda w, x: (x @ w).mean(), out_shardings=WHOLE),
    "less than 4 KiB": jax.jit(small, out_shardings=WHOLE),
}


@pytest.mark.parametrize("fn", NOT_GATHERED.values(), ids=NOT_GATHERED)
def test_other_results_are_no_finding(fn):
    assert findings(fn, weights(), batch(), verify=False) == []


class State(NamedTuple):
    """A tree that has no literal."""

    w: jax.Array
    steps: jax.Array


def stepped(state, x):
    return State(update(state.w, x), state.steps + 1)


def test_code_is_by_path_if_the_tree_has_no_literal():
    fn = jax.jit(stepped, out_shardings=WHOLE)
    args = State(weights(), shape(8)), batch()
    [finding] = findings(fn, *args)
    changed, args = pasted(finding, fn, *args)
    assert "jax.eval_shape(stepped, state, x)" in finding.code
    assert gathered_bytes(changed, *args) == 0


def test_axes_that_a_result_loses():
    assert _is_gathered((("data",), ("model",)), ((), ("model",)))
    assert _is_gathered((("data", "model"), ()), (("data",), ()))
    assert not _is_gathered((("data", "model"), ()), (("model",), ()))
    assert not _is_gathered((("data",), ()), (("data",), ()))
    assert not _is_gathered((("data",), ()), ((), ("data",)))


def module(*lines):
    text = "\n".join(f"  {line}" for line in lines)
    return compiled(f"ENTRY %main (w: f32[16,128]) -> f32[64,128] {{\n  %w = f32[16,128] parameter(0)\n{text}\n}}\n")


GATHER = f"%gather = f32[64,128] all-gather(%w), {DATA}, dimensions={{0}}"
FLOWS = {
    "a copy of it": (["ROOT %copy = f32[64,128] copy(%gather)"], {0}),
    "in a tuple": (["ROOT %all = (f32[16,128], f32[64,128]) tuple(%w, %gather)"], {1}),
    "twice": (["ROOT %all = (f32[64,128], f32[64,128]) tuple(%gather, %gather)"], {0, 1}),
    "an elementwise function of it": (["ROOT %exp = f32[64,128] exponential(%gather)"], {0}),
    "a slice of it": (["ROOT %part = f32[8,128] slice(%gather), slice={[0:8], [0:128]}"], set()),
    "also read": (
        [
            "%norm = f32[64,64] dot(%gather, %gather), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
            "ROOT %all = (f32[64,128], f32[64,64]) tuple(%gather, %norm)",
        ],
        set(),
    ),
}


@pytest.mark.parametrize(("lines", "positions"), FLOWS.values(), ids=FLOWS)
def test_results_that_a_gather_serves(lines, positions):
    gathers = _gathers(module(GATHER, *lines), {0, 1})
    assert set(gathers) == positions
    assert all([c.name for c in group] == ["gather"] for group in gathers.values())


def test_gather_that_serves_another_result_as_well_is_left_out():
    program = module(GATHER, "ROOT %all = (f32[64,128], f32[64,128]) tuple(%gather, %gather)")
    assert _gathers(program, {0}) == {}
