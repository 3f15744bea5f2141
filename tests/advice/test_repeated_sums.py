"""Sums over devices that a loop repeats: found, summed once, and left alone where a sum is needed in the loop."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.advice._accumulation import RULE
from workbench.advice._repeated_sums import operand_specs, repeated_sums, summed_once

STEPS, ROWS, WIDTH, HIDDEN = 4, 32, 16, 64
WEIGHT_BYTES = 2 * WIDTH * HIDDEN * 4
RING = 2 * 7 / 8  # share of its payload that one of eight devices sends in an all-reduce
MESH = wb.make_mesh(data=8)


def loss(w, x):
    return jnp.mean((jnp.tanh(x @ w["up"]) @ w["down"] - x) ** 2)


def zeros(w):
    return jax.tree.map(jnp.zeros_like, w)


def add(a, b):
    return jax.tree.map(jnp.add, a, b)


def update(w, g):
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, g)


def weights():
    up, down = jax.random.split(jax.random.key(0))
    return {"up": jax.random.normal(up, (WIDTH, HIDDEN)) / 4, "down": jax.random.normal(down, (HIDDEN, WIDTH)) / 8}


def arguments(mesh=MESH, *, ws=(), axis="data"):
    w = {name: jax.device_put(value, NamedSharding(mesh, P(*ws))) for name, value in weights().items()}
    xs = jax.random.normal(jax.random.key(1), (STEPS, ROWS, WIDTH))
    return w, jax.device_put(xs, NamedSharding(mesh, P(None, axis)))


def mapped(body, *, check_vma=False):
    """A step whose body runs in a `shard_map` over the batch."""
    return jax.shard_map(body, mesh=MESH, in_specs=(P(), P(None, "data")), out_specs=P(), check_vma=check_vma)


def summed_by_hand(w, xs):
    def body(total, x):
        return add(total, jax.lax.pmean(jax.grad(loss)(w, x), "data")), None

    return update(w, jax.lax.scan(body, zeros(w), xs)[0])


def summed_by_grad(w, xs):
    def body(total, x):
        return add(total, jax.tree.map(lambda g: g / 8, jax.grad(loss)(w, x))), None

    return update(w, jax.lax.scan(body, zeros(w), xs)[0])


def partitioned(w, xs):
    """As `jax.jit` compiles it: the partitioner sums over the batch."""
    return update(w, jax.lax.scan(lambda g, x: (add(g, jax.grad(loss)(w, x)), None), zeros(w), xs)[0])


def with_a_start(w, xs):
    return update(w, jax.lax.scan(lambda g, x: (add(g, jax.grad(loss)(w, x)), None), w, xs)[0])


def counted(w, xs):
    return update(w, jax.lax.fori_loop(0, STEPS, lambda i, g: add(g, jax.grad(loss)(w, xs[i])), zeros(w)))


def weighted(w, xs):
    def body(total, x):
        count = jnp.sum(x > 0).astype("float32")
        return jax.tree.map(lambda t, g: t + count * g, total, jax.grad(loss)(w, x)), None

    return update(w, jax.lax.scan(body, zeros(w), xs)[0])


def mixed(w, xs):
    """16-bit gradients that are added in 32 bits."""

    def body(total, x):
        narrow = jax.tree.map(lambda value: value.astype(jnp.bfloat16), w)
        gradient = jax.grad(loss)(narrow, x.astype(jnp.bfloat16))
        return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, gradient), None

    return update(w, jax.lax.scan(body, zeros(w), xs)[0])


def written_out(w, xs):
    total = zeros(w)
    for number in range(STEPS):
        total = add(total, jax.lax.pmean(jax.grad(loss)(w, xs[number]), "data"))
    return update(w, total)


def recurrent(w, xs):
    """The gradient of a weight that every time step uses: its terms are added by the backward scan."""

    def total(w):
        def cell(h, x):
            return jnp.tanh(h @ w["up"] @ w["down"] + x), None

        return jnp.mean(jax.lax.scan(cell, jnp.zeros((ROWS, WIDTH)), xs)[0] ** 2)

    return update(w, jax.grad(total)(w))


def layered(w, xs):
    """Layers in a scan: the gradients of the stacked weights are summed in an inner loop."""
    stacked = jax.tree.map(lambda value: jnp.stack([value] * 3), w)

    def deep(ws, x):
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w["up"]) @ w["down"], None))
        return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)

    return jax.lax.scan(lambda g, x: (add(g, jax.grad(deep)(stacked, x)), None), zeros(stacked), xs)[0]


def convolved(w, xs):
    """Gradients of a kernel and of an embedding."""
    ws = {"kernel": w["up"][:9].reshape(3, 3, 1, HIDDEN), "table": w["down"]}

    def total(ws, x):
        images = x.reshape(ROWS, 4, 4, 1)
        layout = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(images, ws["kernel"], (1, 1), "SAME", dimension_numbers=layout)
        rows = ws["table"][(x > 0).astype(int)]
        return jnp.mean(y**2) + jnp.mean(rows**2)

    return jax.lax.scan(lambda g, x: (add(g, jax.grad(total)(ws, x)), None), zeros(ws), xs)[0]


LOOPS = {
    "psum": mapped(summed_by_hand), "implicit psum": mapped(summed_by_grad, check_vma=True), "jit": partitioned,
    "start": with_a_start, "fori_loop": counted, "weights": weighted, "16 bits": mixed,
    "Python loop": mapped(written_out), "recurrent": recurrent, "layers": layered, "convolution": convolved,
}  # fmt: skip


def found(fn, *args):
    """The repeated sums of a program, its jaxpr and the specs of its operands."""
    specs = operand_specs(wb.inspect(jax.jit(fn), on=MESH)(*args).propagation)
    closed = jax.jit(fn).trace(*args).jaxpr
    return repeated_sums(closed, specs, MESH), closed, specs


@pytest.mark.parametrize("fn", LOOPS.values(), ids=LOOPS)
def test_program_that_sums_once_computes_the_same(fn):
    args = arguments()
    loops, closed, specs = found(fn, *args)
    assert {loop.axes for loop in loops} == {("data",)}
    assert {loop.times for loop in loops} == {STEPS}
    changed, count = summed_once(closed, [(loop.source.file, loop.source.line) for loop in loops], specs, MESH)
    assert count == sum(loop.arrays for loop in loops) == 2
    leaves = jax.tree.leaves(args)
    results = jax.jit(jaxpr_as_fun(changed))(*leaves)
    tolerance = 2e-2 if fn is mixed else 2e-5
    for expected, value in zip(jax.tree.leaves(jax.jit(fn)(*args)), results, strict=True):
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
    text = jax.jit(jaxpr_as_fun(changed)).lower(*leaves).compile().as_text()
    inside = [line for line in text.splitlines() if " all-reduce(" in line and "while/body" in line and "f32[" in line]
    assert inside == []


def clipped(w, xs):
    def body(total, x):
        gradient = jax.lax.pmean(jax.grad(loss)(w, x), "data")
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        return jax.tree.map(lambda t, g: t + g / jnp.maximum(norm, 1.0), total, gradient), None

    return jax.lax.scan(body, zeros(w), xs)[0]


def stepped(w, xs):
    """An optimizer step in the loop."""
    return jax.lax.scan(lambda w, x: (update(w, jax.lax.pmean(jax.grad(loss)(w, x), "data")), None), w, xs)[0]


def added_to_weights(w, xs):
    """Weights that grow by the gradient: the next iteration reads the sum."""
    return jax.lax.scan(lambda w, x: (add(w, jax.lax.pmean(jax.grad(loss)(w, x), "data")), None), w, xs)[0]


def logged(w, xs):
    """Every step's sum is also a result."""

    def body(total, x):
        gradient = jax.lax.pmean(jax.grad(loss)(w, x), "data")
        return add(total, gradient), gradient

    return jax.lax.scan(body, zeros(w), xs)


def watched(w, xs):
    """The accumulated sum is read in every step."""

    def body(total, x):
        total = add(total, jax.lax.pmean(jax.grad(loss)(w, x), "data"))
        return total, (total["up"].max(), total["down"].max())

    return jax.lax.scan(body, zeros(w), xs)


def in_another_carry(w, xs):
    def body(carry, x):
        total, _ = carry
        gradient = jax.lax.pmean(jax.grad(loss)(w, x), "data")
        return (add(total, gradient), gradient), None

    return jax.lax.scan(body, (zeros(w), zeros(w)), xs)[0]


def averaged(w, xs):
    """A moving average: older terms are scaled."""

    def body(mean, x):
        gradient = jax.lax.pmean(jax.grad(loss)(w, x), "data")
        return jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient), None

    return jax.lax.scan(body, zeros(w), xs)[0]


def squared(w, xs):
    def body(total, x):
        gradient = jax.lax.pmean(jax.grad(loss)(w, x), "data")
        return jax.tree.map(lambda t, g: t + g * g, total, gradient), None

    return jax.lax.scan(body, zeros(w), xs)[0]


def scaled_by_shards(w, xs):
    """Every device scales with its own factor, so the sum cannot wait."""

    def body(total, x):
        gradient = jax.lax.psum(jax.grad(loss)(w, x), "data")
        return jax.tree.map(lambda t, g: t + g * x.mean(), total, gradient), None

    return jax.lax.scan(body, zeros(w), xs)[0]


def summed_after(w, xs):
    total = jax.lax.scan(lambda g, x: (add(g, jax.grad(loss)(w, x)), None), zeros(w), xs)[0]
    return jax.lax.pmean(total, "data")


def layers_only(w, xs):
    """Sums of activations in a scan over layers, as in tensor parallelism: every layer needs them."""

    def layer(x, _):
        return x + jax.lax.psum(jnp.tanh(x @ w["up"]) @ w["down"], "data"), None

    return jax.lax.scan(layer, xs[0], None, length=STEPS)[0]


SILENT = {
    "clipped": clipped, "optimizer step": stepped, "weights": added_to_weights, "logged": logged, "watched": watched,
    "another carry": in_another_carry, "moving average": averaged, "squared": squared, "own factors": scaled_by_shards,
    "already once": summed_after, "layers": layers_only,
}  # fmt: skip


@pytest.mark.parametrize("fn", SILENT.values(), ids=SILENT)
def test_sums_that_every_iteration_needs_are_left_alone(fn):
    closed = jax.jit(mapped(fn)).trace(*arguments()).jaxpr
    assert repeated_sums(closed, {}, MESH) == []


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, xs: jax.lax.scan(lambda w, x: (update(w, jax.grad(loss)(w, x)), None), w, xs)[0],
        lambda w, xs: jax.lax.scan(lambda m, x: (jnp.maximum(m, (x * x).sum()), None), 0.0, xs)[0],
        lambda w, xs: jax.lax.scan(lambda g, x: (add(g, zeros(w)), None), w, xs)[0],
        lambda w, xs: jax.lax.scan(lambda t, x: (t + x, None), jnp.zeros_like(xs[0]), xs)[0],
        lambda w, xs: jax.lax.scan(lambda t, x: (t + jnp.sqrt((x * x).sum()), None), 0.0, xs)[0],
        lambda w, xs: jax.lax.scan(lambda t, x: (t + (x @ w["up"]).sum(1), None), jnp.zeros(ROWS), xs)[0],
    ],
    ids=["optimizer step", "maximum", "no sum", "sharded total", "norms", "sum within devices"],
)
def test_partitioned_loops_without_repeated_sums_are_left_alone(fn):
    assert found(fn, *arguments())[0] == []


def findings(fn, *args, mesh=None):
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        return [finding for finding in wb.advise(fn)(*args).findings if finding.rule == RULE]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("psum", "Add the values of each device, and call `jax.lax.psum` or `jax.lax.pmean` once, after the loop."),
        ("implicit psum", 'jax.lax.pcast(params, "data", to="varying")'),
        ("jit", 'Move the loop into `jax.shard_map` over "data"'),
        ("Python loop", "once, after the last addition."),
    ],
)
def test_finding_states_the_compiled_bytes_of_one_sum(name, change):
    [finding] = findings(jax.jit(LOOPS[name]), *arguments())
    assert change in finding.change
    assert finding.is_verified
    assert (finding.gain.before, finding.gain.after) == (STEPS * RING * WEIGHT_BYTES, RING * WEIGHT_BYTES)
    assert {row.quantity for row in finding.compared} >= {"peak bytes", "FLOPs"}
    assert finding.axes == ("data",)
    assert "2 arrays (8 KiB) over `data`" in finding.what


def test_values_of_clients_are_reduced_once():
    @wb.program(clients=8)
    def rounds(w, xs):
        def body(total, x):
            return add(total, wb.reduce_mean(wb.map_fn(jax.grad(loss), (wb.broadcast(w), x)))), None

        return update(w, jax.lax.scan(body, zeros(w), xs)[0])

    xs = jnp.ones((STEPS, 8, ROWS, WIDTH))
    [finding] = findings(rounds, weights(), xs, mesh=wb.make_mesh(clients=8))
    assert "wb.reduce_mean" in finding.change
    assert (finding.gain.before, finding.gain.after) == (STEPS * RING * WEIGHT_BYTES, RING * WEIGHT_BYTES)


def test_weights_that_are_sharded_over_another_axis_keep_their_sharding():
    mesh = wb.make_mesh(data=4, model=2)
    w, xs = arguments(mesh)
    w = {"up": jax.device_put(w["up"], NamedSharding(mesh, P(None, "model"))),
         "down": jax.device_put(w["down"], NamedSharding(mesh, P("model")))}  # fmt: skip
    [finding] = findings(jax.jit(partitioned), w, xs)
    gradients, activations = 2 * 3 / 4 * WEIGHT_BYTES / 2, ROWS / 4 * WIDTH * 4
    assert finding.gain.before == STEPS * (gradients + activations)
    assert finding.gain.after == gradients + STEPS * activations
