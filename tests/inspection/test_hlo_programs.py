"""FLOPs and loops of programs compiled here, against counts worked out by hand."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import InspectionError
from workbench.inspection import inspect_mesh, inspect_module

X, W = jnp.ones((8, 16)), jnp.ones((16, 16))
STEP = 2 * 8 * 16 * 16  # one `X @ W`


def module_of(fn, *args, mesh=None):
    return inspect_module(jax.jit(fn).lower(*args).compile(), mesh=mesh)


def scan_in_scan(x, w):
    def outer(carry, _):
        return jax.lax.scan(lambda c, _: (c @ w, None), carry, None, length=3)[0], None

    return jax.lax.scan(outer, x, None, length=5)[0]


def rematerialised(x, w):
    return jax.lax.scan(jax.checkpoint(lambda c, _: (jnp.tanh(c @ w), None)), x, None, length=7)[0].sum()


def convolved(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")


def convolved_loss(x, k):
    return (convolved(x, k) ** 2).sum()


IMAGES, KERNEL = jnp.ones((2, 4, 9, 9)), jnp.ones((6, 4, 3, 3))
# "same" 3 × 3 on 9 × 9: 25 of 27 taps along each dimension meet the image
CONVOLUTION = 2 * 2 * 4 * 6 * 25 * 25

LAYERS, TOKENS, WIDTH, HEADS, HIDDEN = 3, 8, 16, 2, 64


def transformer(x, weights):
    """A stack of attention and feed-forward blocks, scanned over layers."""

    def block(x, layer):
        queries, keys, values = (
            (x @ layer[name]).reshape(TOKENS, HEADS, WIDTH // HEADS) for name in ("query", "key", "value")
        )
        scores = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", queries, keys))
        mixed = jnp.einsum("hqk,khd->qhd", scores, values).reshape(TOKENS, WIDTH)
        x = x + mixed @ layer["out"]
        return x + jax.nn.relu(x @ layer["up"]) @ layer["down"], None

    return jax.lax.scan(block, x, weights)[0]


WEIGHTS = {name: jnp.ones((LAYERS, WIDTH, WIDTH)) for name in ("query", "key", "value", "out")} | {
    "up": jnp.ones((LAYERS, WIDTH, HIDDEN)),
    "down": jnp.ones((LAYERS, HIDDEN, WIDTH)),
}
TRANSFORMER = LAYERS * (
    4 * 2 * TOKENS * WIDTH * WIDTH  # query, key, value, out
    + 2 * 2 * HEADS * TOKENS * TOKENS * (WIDTH // HEADS)  # scores and mixing
    + 2 * 2 * TOKENS * WIDTH * HIDDEN  # up and down
)


@pytest.mark.parametrize(
    ("fn", "args", "flops"),
    [
        pytest.param(jnp.dot, (X, W), STEP, id="dot"),
        pytest.param(lambda x, w: jnp.tensordot(x[0], w[0], 0), (X, W), 0, id="outer product is elementwise"),
        pytest.param(lambda x: (x * x).sum(), (X,), 0, id="no matrix product"),
        pytest.param(scan_in_scan, (X, W), 3 * 5 * STEP, id="scan in scan"),
        pytest.param(rematerialised, (X, W), 7 * STEP, id="scan of remat"),
        # forward, forward again, and one product each for the gradients of x and w
        pytest.param(jax.grad(rematerialised, argnums=(0, 1)), (X, W), 7 * 4 * STEP, id="gradient of remat"),
        pytest.param(
            lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
            (jnp.ones((4, 8, 16)), jnp.ones((4, 16, 5))),
            2 * 4 * 8 * 16 * 5,
            id="batched dots",
        ),
        pytest.param(
            jax.vmap(jax.vmap(jnp.dot, (0, None)), (0, None)),
            (jnp.ones((3, 8, 16)), W),
            3 * STEP,
            id="vmapped twice",
        ),
        pytest.param(convolved, (IMAGES, KERNEL), CONVOLUTION, id="convolution"),
        # the gradients of images and of kernel multiply every pair that the forward pass did, once each; the loss needs
        # the forward pass
        pytest.param(
            jax.grad(convolved_loss, argnums=(0, 1)), (IMAGES, KERNEL), 3 * CONVOLUTION, id="gradient of convolution"
        ),
        pytest.param(
            lambda x, k: jax.lax.conv_general_dilated(x, k, (2, 2), "VALID", feature_group_count=2),
            (IMAGES, jnp.ones((6, 2, 3, 3))),
            2 * 2 * 2 * 6 * 4 * 4 * 9,  # 4 × 4 positions of 9 taps, 2 features in per group
            id="strided grouped convolution",
        ),
        pytest.param(transformer, (X, WEIGHTS), TRANSFORMER, id="transformer"),
        pytest.param(
            jax.grad(lambda w, x: transformer(x, w).sum()),
            (WEIGHTS, X),
            # each product has two in its gradient; the first layer's input needs no gradient, but the scan computes it
            3 * TRANSFORMER,
            id="gradient of transformer",
        ),
        pytest.param(
            lambda x, w: jax.lax.fori_loop(2, 9, lambda _, c: c @ w, x), (X, W), 7 * STEP, id="loop from 2 to 9"
        ),
        pytest.param(
            lambda x, w: jax.lax.cond(x.sum() > 0, lambda: x @ w @ w @ w, lambda: x @ w),
            (X, W),
            3 * STEP,
            id="the larger branch",
        ),
        pytest.param(lambda x, w: jax.lax.map(lambda row: row @ w, x), (X, W), STEP, id="map of vector products"),
    ],
)
def test_flops_of_compiled_programs_are_exact(fn, args, flops):
    module = module_of(fn, *args)
    assert module.flops == flops
    assert sum(i.flops * (i.executions or 0) for i in module.instructions) == flops


def test_flops_of_a_sharded_product_are_those_of_one_device():
    mesh = jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("clients", None)))
    w = jax.device_put(W, NamedSharding(mesh, P(None, "model")))
    assert module_of(jnp.dot, x, w).flops == STEP / 8


def test_loop_of_unknown_length_makes_costs_unknown_and_says_so():
    module = module_of(lambda x, w: jax.lax.while_loop(lambda c: c.sum() < 1e9, lambda c: c @ w, x), X, W)
    assert module.flops is None
    assert module.accessed_bytes is None
    assert any("length of loop" in note for note in module.notes)
    (product,) = [i for i in module.instructions if i.flops]
    assert (product.flops, product.executions) == (STEP, None)


def test_branches_not_counted_are_reported_as_left_out():
    module = module_of(lambda x, w: jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x @ w), X, W)
    assert any("branches" in note for note in module.notes)


def test_custom_calls_without_a_formula_are_named():
    assert any("lapack" in note and "not counted" in note for note in module_of(jnp.linalg.cholesky, W).notes)


def test_bytes_of_an_elementwise_program_are_its_input_and_output():
    assert module_of(lambda x: jnp.exp(x) * 2 + 1, X).accessed_bytes == 2 * X.nbytes


def test_bytes_of_a_row_taken_in_a_loop_are_those_of_the_row():
    table = jnp.ones((64, 1024))

    def total(table):
        return jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(1024), table)[0]

    # 64 turns read one row and the carry and write the carry, besides a few scalars and the first carry
    assert module_of(total, table).accessed_bytes == pytest.approx(64 * 3 * 1024 * 4, rel=0.1)


def test_memory_holds_the_compilers_totals_and_knows_whether_it_fits():
    compiled = jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(X, W).compile()
    memory = inspect_module(compiled, available_bytes=10**9).memory
    assert memory.argument_bytes == X.nbytes + W.nbytes
    assert memory.output_bytes == X.nbytes
    assert memory.fits is True
    assert inspect_module(compiled, available_bytes=100).memory.fits is False


def test_timeline_peaks_where_three_large_values_are_alive():
    big = jnp.ones((256, 256))

    def chain(x):
        first = jnp.dot(x, x)
        second = jnp.dot(first, x)
        return jnp.dot(first, second)

    # argument, both products and the result while the last product is computed
    memory = module_of(chain, big).memory
    assert max(live for _, live in memory.timeline) == 4 * big.nbytes
    assert {buffer.size_bytes for buffer in memory.largest} == {big.nbytes}


def test_equal_buffers_have_the_same_order_in_every_reading():
    def summed(w, xs):
        return jax.lax.scan(lambda total, x: (total + x.T @ jnp.tanh(x @ w), None), jnp.zeros_like(w), xs)[0]

    text = jax.jit(summed).lower(jnp.ones((64, 64)), jnp.ones((4, 32, 64))).compile().as_text()
    named = [tuple(each.name for each in wb.inspect(text).module.memory.largest) for _ in range(16)]
    assert len(set(named)) == 1


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        pytest.param(jax.grad(rematerialised, argnums=(0, 1)), (jnp.ones((64, 128)), jnp.ones((128, 128))), id="remat"),
        pytest.param(lambda x: jnp.tanh(x @ x) @ x, (jnp.ones((256, 256)),), id="in place"),
        pytest.param(scan_in_scan, (jnp.ones((64, 128)), jnp.ones((128, 128))), id="scan in scan"),
    ],
)
def test_reconstructed_timeline_peaks_near_the_compilers_peak(fn, args):
    memory = module_of(fn, *args).memory
    assert max(live for _, live in memory.timeline) == pytest.approx(memory.peak_bytes, rel=0.1)


def test_platform_of_a_compiled_program_is_that_of_its_devices():
    assert module_of(jnp.dot, X, W).platform == "cpu"


def test_source_is_the_users_line():
    module = module_of(lambda x, w: jnp.sin(x @ w), X, W)
    (line,) = {i.source for i in module.instructions if "sin" in i.op_name}
    assert line is not None
    assert Path(line.file) == Path(__file__)
    assert "jnp.sin(x @ w)" in Path(__file__).read_text().splitlines()[line.line - 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(3, r"was given an object of type int, which is not a compiled program", id="number"),
        pytest.param("", "no text", id="empty text"),
        pytest.param("module @jit_f {\n  func.func public @main()\n}", "StableHLO", id="StableHLO"),
        pytest.param("hello", "line 1, 'hello', is not a line of HLO", id="prose"),
    ],
)
def test_what_is_no_program_is_refused(given, message):
    with pytest.raises(InspectionError, match=message):
        inspect_module(given)


def test_lowered_but_not_compiled_program_is_refused():
    with pytest.raises(InspectionError, match="not a compiled program"):
        inspect_module(jax.jit(jnp.dot).lower(X, W))


def test_module_of_another_mesh_leaves_axes_unnamed():
    small = jax.make_mesh((2,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    large = jax.make_mesh((8,), ("clients",), axis_types=(AxisType.Auto,))
    x = jax.device_put(X, NamedSharding(large, P("clients")))
    (collective,) = module_of(lambda x: x.sum(0), x, mesh=inspect_mesh(small)).collectives
    assert collective.axes == ()
    assert "compiled for 8 devices, but the mesh has 2" in collective.notes[0]


def test_elementwise_flops_of_instructions_stages_and_tree_agree():
    @wb.program(clients=4)
    def program(w, x):
        return wb.reduce_sum(wb.map_fn(lambda w, x: jnp.tanh(x @ w) * 2.0, (wb.broadcast(w), x)))

    record = wb.inspect(program)(jnp.ones((8, 3)), jnp.ones((4, 5, 8)))
    assert record.module is not None
    assert record.module.call_tree is not None
    assert record.cost is not None
    # 4 clients: a tanh and a product per element of [5, 3]; then the sum of 4 such arrays, one addition per element.
    assert record.module.elementwise_flops == 4 * 15 * 2 + 4 * 15
    assert record.module.call_tree.root.total.flops_elementwise == record.module.elementwise_flops
    assert sum(stage.elementwise_flops or 0.0 for stage in record.cost.stages) == record.module.elementwise_flops
    (clients,) = [stage for stage in record.plan.stages if stage.kind == "clients"]
    assert clients.elementwise_flops_per_client == 15 * 2
    assert clients.elementwise_flops == 4 * 15 * 2
    for text in (str(record.plan), str(record.cost), str(record.module)):
        assert "elementwise" in text


def test_elementwise_flops_count_every_iteration_of_a_loop():
    def program(x):
        return jax.lax.fori_loop(0, 7, lambda _, x: jnp.sin(x) + 1.0, x)

    module = inspect_module(jax.jit(program).lower(jnp.ones(10)).compile())
    # Of each iteration: a sine and a sum per element, and one addition to the counter.
    assert module.elementwise_flops == pytest.approx(7 * (10 * 2 + 1), abs=7 * 2)


def test_buffers_of_conversions_that_the_compiler_inserts_are_named_after_the_operation_that_needs_them():
    def loss(layers, x):
        for number, w in enumerate(layers):
            with jax.named_scope(f"layer_{number}"):
                x = jnp.tanh(x @ w)  # CPUs compute this in float32, and keep the converted values
        return x.astype("float32").sum()

    layers = [jnp.ones((256, 256), "bfloat16") for _ in range(3)]
    module = wb.inspect(jax.grad(loss))(layers, jnp.ones((512, 256), "bfloat16")).module
    without = set(re.findall(r"%?([\w.\-]+) = [^\n]*?(?:fusion|convert|copy)\([^\n]*", module.text)) - set(
        re.findall(r"%?([\w.\-]+) = [^\n]*op_name=", module.text)
    )
    inserted = [buffer for buffer in module.memory.largest if buffer.name in without]
    assert inserted
    assert all("layer_" in buffer.op_name for buffer in inserted)
