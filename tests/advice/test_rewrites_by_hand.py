"""Rewritten programs, equation by equation, and the values that layers keep, counted by hand."""

import collections
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from workbench._jax_compat import inner_jaxprs
from workbench.advice._narrow import narrowed
from workbench.advice._remat import (
    _below,
    _is_in_loop,
    _is_private,
    _library,
    _main_path,
    kept_for_backward,
    rematerialised,
)
from workbench.advice._rewrite import unconstrained, with_constraints, with_own_shards, with_written_gathers

pytestmark = pytest.mark.usefixtures("little_optimized")


def equations(closed):
    """All equations, with those of inner jaxprs."""
    waiting, listed = [closed.jaxpr], []
    while waiting:
        jaxpr = waiting.pop()
        for equation in jaxpr.eqns:
            listed.append(equation)
            waiting += [getattr(inner, "jaxpr", inner) for inner in inner_jaxprs(equation)]
    return listed


def counted(closed):
    return collections.Counter(equation.primitive.name for equation in equations(closed))


def assert_same(closed, changed, *args, rtol=1e-4):
    """Asserts that both programs have the same results."""
    results = [jax.jit(jaxpr_as_fun(each))(*args) for each in (closed, changed)]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(np.asarray(other, "float32"), np.asarray(one, "float32"), rtol=rtol, atol=1e-6)


def line_of(fn, code):
    lines, start = inspect.getsourcelines(fn)
    return __file__, start + next(at for at, text in enumerate(lines) if code in text)


# Layers of 64 rows and 4 columns of float32, which are 1,024 bytes; a weight is 64 bytes.


def layer(x, w):
    h = x @ w
    return jnp.tanh(jnp.sin(h))


def in_scan(ws, x):
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0].sum()


def in_loop(ws, x):
    for at in range(3):
        x = layer(x, ws[at])
    return x.sum()


def inline(ws, x):
    for at in range(3):
        x = jnp.tanh(jnp.sin(x @ ws[at]))
    return x


def calling(ws, x):
    return inline(ws, x).sum()


WS = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4)), "float32")
X = jnp.asarray(np.random.default_rng(1).normal(size=(64, 4)), "float32")


def gradient(fn, *args):
    return jax.jit(jax.grad(fn)).trace(*(args or (WS, X))).jaxpr


def at_line(fn, code, column=None):
    return f"{__file__}:{line_of(fn, code)[1]}"


def test_scan_keeps_a_cosine_and_the_results_of_tanh():
    [loop] = kept_for_backward(gradient(in_scan))
    # of the four stacked values, the carry of an iteration is needed to compute the others again
    assert loop.size_bytes == 3 * 3 * 1024
    assert (loop.copies, loop.is_scan, loop.library, loop.function) == (3, True, "jax", "in_scan.<locals>.<lambda>")
    assert (loop.source.file, loop.source.line) == line_of(in_scan, "jax.lax.scan")
    place = at_line(layer, "jnp.tanh")
    assert loop.values == (f"2 of float32[64, 4] at {place}", f"1 of float32[64, 4] at {place}")


def test_python_loop_keeps_a_cosine_and_a_difference():
    [loop] = kept_for_backward(gradient(in_loop))
    # the results of tanh are inputs of the next layer; the first weight is needed only to compute its layer again
    assert loop.size_bytes == 3 * 2 * 1024 - 64
    assert (loop.copies, loop.is_scan, loop.library, loop.function) == (3, False, "jax", "layer")
    assert (loop.source.file, loop.source.line) == line_of(in_loop, "layer(x")
    assert loop.source.function == "in_loop"
    place = at_line(layer, "jnp.tanh")
    assert loop.values == (f"1 of float32[64, 4] at {place}",) * 2


def doubled(ws, x):
    return 2 * in_loop(ws, x)


def test_layer_is_found_at_the_innermost_line_that_calls_it():
    [loop] = kept_for_backward(gradient(doubled))
    assert (loop.source.function, loop.function) == ("in_loop", "layer")
    assert (loop.source.file, loop.source.line) == line_of(in_loop, "layer(x")


def test_code_that_a_loop_repeats_is_no_function():
    [loop] = kept_for_backward(gradient(calling))
    assert loop.function == ""
    assert (loop.source.file, loop.source.line) == line_of(inline, "jnp.tanh")


def test_loops_are_sorted_by_their_bytes():
    def both(ws, x):
        return in_scan(ws, x) + in_scan(jnp.concatenate([ws, ws]), x)

    assert [loop.copies for loop in kept_for_backward(gradient(both))] == [6, 3]


def test_scan_without_a_gradient_and_checkpointed_scan_keep_nothing():
    assert kept_for_backward(jax.make_jaxpr(in_scan)(WS, X)) == []
    checkpointed = jax.checkpoint(layer, prevent_cse=False)
    fn = lambda ws, x: jax.lax.scan(lambda x, w: (checkpointed(x, w), None), x, ws)[0].sum()  # noqa: E731
    assert kept_for_backward(gradient(fn)) == []


@pytest.mark.parametrize(
    ("fn", "code", "count", "products"), [(in_scan, "jax.lax.scan", 1, 1 + 1 + 2), (in_loop, "layer(x", 3, 3 + 3 + 5)]
)
def test_layers_are_computed_again(fn, code, count, products):
    closed = gradient(fn)
    changed, number = rematerialised(closed, [line_of(fn, code)], None)
    assert number == count
    assert counted(changed)["dot_general"] == products  # forward, again, and backward; no gradient of the first input
    again = [e for e in equations(changed) if "rematted_computation" in str(e.source_info.name_stack)]
    assert collections.Counter(e.primitive.name for e in again)["dot_general"] == count
    assert_same(closed, changed, WS, X)
    assert rematerialised(closed, [line_of(layer, "jnp.tanh")], None)[1] == 0


@pytest.mark.parametrize("policy", [jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.everything_saveable])
@pytest.mark.parametrize(("fn", "code"), [(in_scan, "jax.lax.scan"), (in_loop, "layer(x")])
def test_policy_keeps_products(policy, fn, code):
    closed = gradient(fn)
    changed, _ = rematerialised(closed, [line_of(fn, code)], policy)
    assert counted(changed)["dot_general"] == counted(closed)["dot_general"]
    assert_same(closed, changed, WS, X)


def test_scan_with_constants_outputs_and_a_reverse_is_computed_again():
    def outputs(ws, x):
        scale = x.sum(0)

        def body(carry, w):
            h = jnp.sin(carry @ w) * scale
            return jnp.tanh(h), h.sum()

        last, sums = jax.lax.scan(body, x, ws, reverse=True, unroll=1)
        return last.sum() + sums.sum()

    with jax.numpy_rank_promotion("allow"):
        closed = gradient(outputs)
        changed, count = rematerialised(closed, [line_of(outputs, "jax.lax.scan")], None)
    assert count == 1
    assert_same(closed, changed, WS, X)


def frame(number, name="f", file="model.py"):
    return file, number, 0, number, 0, name


A, B, C, D = map(frame, range(1, 5))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([((A, B, C), 90), ((A, B, D), 10)], (A, B, C)),
        ([((A, B, C), 89), ((A, B, D), 11)], (A, B)),
        ([((A, B), 50), ((A, C), 50)], (A,)),
        ([((A, B), 1), ((A, B, C), 99)], (A, B, C)),
        ([((A,), 50), ((B,), 50)], ()),
        ([], ()),
        ([((A, B), 95), ((C, B), 5)], (A, B)),
    ],
)
def test_main_path_leads_to_nine_tenths_of_the_bytes(sizes, expected):
    assert _main_path(sizes) == expected


def test_calls_below_another_path():
    assert _below((A, B, C), (A, D)) == (B, C)
    assert _below((A, B), (A, B)) == ()
    assert _below((A, B), ()) == (A, B)
    assert _below((A, B, C), (A, D, C)) == (B, C)
    assert _below((frame(1, "g"), B), (A, B)) == (frame(1, "g"), B)


@pytest.mark.parametrize(
    ("files", "library"),
    [
        (["a.py"], "jax"), ([], "jax"), (["a.py", "/x/flax/linen/m.py"], "linen"), (["/x/flax/core/lift.py"], "linen"),
        (["C:\\flax\\nnx\\m.py"], "nnx"), (["/x/equinox/nn.py"], "equinox"), (["/x/equinox_models.py"], "jax"),
    ],
)  # fmt: skip
def test_library_of_a_layer(files, library):
    assert _library([frame(1, file=file) for file in files]) == library


def test_lines_inside_python_loops(monkeypatch):
    code = (
        "x = 0", "for a in b:", "    x = a", "y = 1", "z = [", "    1 for _ in b", "]", "while y:", "    y = 0",
        "w = (", " 1 for q in b)",
    )  # fmt: skip
    monkeypatch.setattr("workbench.advice._remat.read_source_lines", lambda file: code if file == "model.py" else ())
    assert [number for number in range(1, 12) if _is_in_loop(frame(number))] == [2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert not _is_in_loop(frame(2, file="missing.py"))
    monkeypatch.setattr("workbench.advice._remat.read_source_lines", lambda _: ("for a in b:",))
    assert not _is_in_loop(frame(1))


def test_private_values_are_read_by_the_backward_pass_alone():
    closed = jax.make_jaxpr(jax.grad(in_loop))(WS, X)
    listed = closed.jaxpr.eqns
    backward = [at for at, e in enumerate(listed) if "transpose(" in str(e.source_info.name_stack)]
    forward = [at for at in range(len(listed)) if at not in backward]
    here, later = range(3), backward[-1]
    assert _is_private([1, later], here, listed)
    assert not _is_private([1], here, listed)
    assert not _is_private([later, forward[-1]], here, listed)
    assert not _is_private([later, len(listed)], here, listed)  # a result of the program


# Constraints.

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
ROWS = (("data",), ())


def keep(x, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def two(x):
    y = keep(jnp.sin(x), "data")
    return keep(y * 2, "model")


def test_constraints_on_lines_are_removed():
    closed = jax.make_jaxpr(two)(jnp.ones((8, 8)))
    changed, count = unconstrained(closed, [line_of(two, "jnp.sin")])
    assert count == 1
    left = [e for e in equations(changed) if e.primitive.name == "sharding_constraint"]
    assert [tuple(e.params["sharding"].spec) for e in left] == [("model",)]
    assert unconstrained(closed, ())[1] == 2
    assert unconstrained(closed, [("other.py", 1)])[1] == 0
    assert_same(closed, changed, jnp.ones((8, 8)))
    inside = jax.jit(lambda x: jax.lax.scan(lambda x, _: (two(x), None), x, None, length=2)[0])
    assert unconstrained(jax.make_jaxpr(inside)(jnp.ones((8, 8))), ())[1] == 2


def steps(x, n):
    y = jnp.sin(x)
    z = jnp.cos(y[:, :4])
    return z.sum() + (n + n).sum()


def constraints_of(closed):
    return [
        (e.invars[0].aval.shape, tuple(e.params["sharding"].spec))
        for e in equations(closed)
        if e.primitive.name == "sharding_constraint"
    ]


def test_values_of_a_line_are_constrained():
    args = jnp.ones((8, 8)), jnp.ones((8, 8), "int32")
    with jax.numpy_dtype_promotion("standard"):
        closed = jax.make_jaxpr(steps)(*args)
    both = {(8, 8): ROWS, (8, 4): ((), ("data", "model"))}
    for code, expected in (("jnp.sin", (8, 8)), ("jnp.cos", (8, 4))):
        changed, count = with_constraints(closed, [line_of(steps, code)], MESH, {expected: both[expected]})
        assert constraints_of(changed)[0] == (
            expected,
            ("data", None) if expected == (8, 8) else (None, ("data", "model")),
        )
        assert count == len(constraints_of(changed))
        assert_same(closed, changed, *args)
    changed, count = with_constraints(closed, [line_of(steps, "n + n")], MESH, {(8, 8): ROWS})
    assert (count, constraints_of(changed)) == (0, [])  # integers are not constrained
    assert with_constraints(closed, [line_of(steps, "jnp.sin")], MESH, {(9, 9): ROWS})[1] == 0


def loss(w):
    y = jnp.sin(w)
    return (y**2).sum()


def test_cotangents_are_constrained_and_not_counted():
    closed = jax.make_jaxpr(jax.grad(loss))(jnp.ones((8, 8)))
    changed, count = with_constraints(closed, [line_of(loss, "jnp.sin")], MESH, {(8, 8): ROWS})
    forward = [e for e in equations(changed) if e.primitive.name in ("jit", "pjit")]
    transposed = ["transpose(" in str(e.source_info.name_stack) for e in forward]
    assert count == transposed.count(False) > 0
    assert any(transposed)
    assert_same(closed, changed, jnp.ones((8, 8)))


def normal(key):
    x = jax.random.normal(key, (8, 8))
    return x + 1


def test_result_of_a_call_is_constrained_as_a_whole():
    closed = jax.make_jaxpr(normal)(jax.random.key(0))
    changed, count = with_constraints(closed, [line_of(normal, "random.normal")], MESH, {(8, 8): ROWS})
    assert count == 1
    assert len(constraints_of(changed)) == 1


def spectra(x):
    return jnp.fft.fft(x)


def factors(x):
    return jnp.linalg.cholesky(x)


FACTORS = {
    "fft": (spectra, (8, 4, 4), "complex64", 2),
    "cholesky": (factors, (8, 4, 4), "float32", 1),
    "eigh": (lambda x: jax.lax.linalg.eigh(x), (8, 4, 4), "float32", 1),
    "lu": (lambda x: jax.lax.linalg.lu(x), (8, 4, 4), "float32", 1),
    "qr": (lambda x: jax.lax.linalg.qr(x), (8, 4, 4), "float32", 1),
    "svd": (lambda x: jax.lax.linalg.svd(x), (8, 4, 4), "float32", 1),
    "top_k": (lambda x: jax.lax.top_k(x, 2), (8, 4, 4), "float32", 2),
    "triangular_solve": (
        lambda x: jax.lax.linalg.triangular_solve(x, x, left_side=True), (8, 4, 4), "float32", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTORS)
def test_batch_of_an_operation_is_mapped(name):
    fn, shape, dtype, batch = FACTORS[name]
    closed = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct(shape, dtype))
    for dim in range(3):
        spec = tuple(("data",) if at == dim else () for at in range(3))
        changed, count = with_own_shards(closed, (), MESH, {shape: spec})
        mapped = [e for e in equations(changed) if e.primitive.name == "shard_map"]
        assert (count, len(mapped)) == ((1, 1) if dim < batch else (0, 0)), (name, dim)
        for equation in mapped:
            specs = {tuple(each) for each in (*equation.params["in_specs"], *equation.params["out_specs"])}
            assert specs == {tuple("data" if at == dim else None for at in range(batch))}
    assert with_own_shards(closed, (), MESH, {(9,): (("data",),)})[1] == 0
    if name in ("qr", "top_k", "triangular_solve"):  # the others are in functions of JAX, without a line of their own
        assert with_own_shards(closed, [("other.py", 1)], MESH, {shape: (("data",), (), ())})[1] == 0


def test_other_operations_are_not_mapped():
    closed = jax.make_jaxpr(jnp.sin)(jnp.ones((8, 8)))
    assert with_own_shards(closed, (), MESH, {(8, 8): ROWS})[1] == 0


def gathered(w, x):
    def inner(w, x):
        whole = keep(w)
        return jnp.sin(x @ whole)

    return jax.checkpoint(inner)(keep(w, "data"), x).sum()


def test_recomputed_constraints_are_written_as_gathers():
    args = jnp.ones((8, 4)), jnp.ones((2, 8))
    closed = jax.make_jaxpr(jax.grad(gathered, argnums=(0, 1)))(*args)
    lines = [line_of(gathered, "keep(w)\n")]
    changed, count = with_written_gathers(closed, lines, MESH, {(8, 4): (("data",), ("model",))})
    assert count == 1
    gathers = [e for e in equations(changed) if e.primitive.name.startswith("all_gather")]
    assert [(e.params["axis_name"], e.params["all_gather_dimension"], e.params["tiled"]) for e in gathers] == [
        (("data",), 0, True), (("model",), 1, True),
    ]  # fmt: skip
    assert_same(closed, changed, *args)
    for given in ({(4, 8): ROWS}, {}):
        assert with_written_gathers(closed, lines, MESH, given)[1] == 0
    assert with_written_gathers(closed, [("other.py", 1)], MESH, {(8, 4): ROWS})[1] == 0
    plain = jax.make_jaxpr(lambda w: keep(w))(args[0])
    assert with_written_gathers(plain, (), MESH, {(8, 4): ROWS})[1] == 0


# Casts.


def dtypes(closed, name):
    return [str(e.outvars[0].aval.dtype) for e in equations(closed) if e.primitive.name == name]


def narrow(fn, *args):
    closed = jax.make_jaxpr(fn)(*args)
    changed, count = narrowed(closed)
    assert [v.aval.dtype for v in changed.jaxpr.outvars] == [v.aval.dtype for v in closed.jaxpr.outvars]
    assert_same(closed, changed, *args, rtol=0.05)
    return changed, count


HALF = jnp.asarray(np.random.default_rng(2).uniform(1, 2, size=(4, 8)), "bfloat16")
FULL = jnp.asarray(HALF, "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cast_before_a_sum_is_moved_behind_it(dtype):
    changed, count = narrow(lambda x: x.astype("float32").T.reshape(4, 8).sum(0), HALF.astype(dtype))
    assert (count, dtypes(changed, "reduce_sum")) == (1, [dtype])


def test_cast_after_a_sum_is_moved_before_it():
    changed, count = narrow(lambda x: x.sum(0).astype("bfloat16"), FULL)
    assert (count, dtypes(changed, "reduce_sum")) == (1, ["bfloat16"])
    twice, count = narrow(lambda x: [x.sum(0).astype("bfloat16")] * 2, FULL)
    assert (count, dtypes(twice, "reduce_sum")) == (1, ["bfloat16"])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(0),
        lambda x: (x.sum(0) * 2).astype("bfloat16"),
        lambda x: [(s := x.sum(0)), s.astype("bfloat16")],  # the sum is a result as well
        lambda x: [(s := x.sum(0)).astype("bfloat16"), s.astype("float16")],
        lambda x: [(s := x.sum(0)).astype("bfloat16"), jnp.sin(s)],
        lambda x: x.sum(0).astype("int32"),
        lambda x: jnp.sin(x).astype("bfloat16"),
    ],
)
def test_other_sums_stay_wide(fn):
    closed = jax.make_jaxpr(fn)(FULL)
    assert narrowed(closed)[1] == 0


def test_sums_of_integers_stay():
    assert narrowed(jax.make_jaxpr(lambda x: x.sum(0))(jnp.ones((4, 8), "int32")))[1] == 0


def test_product_is_narrowed_if_operands_and_users_are_16_bit():
    def product(x, y):
        return jnp.einsum("ab,cb->ac", x, y, preferred_element_type="float32").astype("bfloat16")

    changed, count = narrow(product, HALF, HALF)
    assert (count, dtypes(changed, "dot_general")) == (1, ["bfloat16"])
    [equation] = [e for e in equations(changed) if e.primitive.name == "dot_general"]
    assert equation.params["preferred_element_type"] == jnp.bfloat16
    widened, count = narrow(lambda x, y: product(x.astype("float32"), y.astype("float32")), HALF, HALF)
    assert (count, dtypes(widened, "dot_general")) == (1, ["bfloat16"])
    assert [str(v.aval.dtype) for e in equations(widened) if e.primitive.name == "dot_general" for v in e.invars] == [
        "bfloat16", "bfloat16",
    ]  # fmt: skip
    assert narrowed(jax.make_jaxpr(product)(FULL, FULL))[1] == 0
    mixed = jax.make_jaxpr(lambda x, y: product(x.astype("float32"), y))(HALF, FULL)
    assert narrowed(mixed)[1] == 0
    wide = jax.make_jaxpr(lambda x, y: jnp.einsum("ab,cb->ac", x, y, preferred_element_type="float32"))(HALF, HALF)
    assert narrowed(wide)[1] == 0


def test_conversion_back_reads_the_16_bit_value():
    changed, count = narrow(lambda x: x.astype("float32").sum(0).astype("bfloat16"), HALF)
    assert (count, dtypes(changed, "reduce_sum")) == (1, ["bfloat16"])
    last = [e for e in equations(changed) if e.primitive.name == "convert_element_type"][-1]
    assert str(last.invars[0].aval.dtype) == "bfloat16"
    other = jax.make_jaxpr(lambda x: x.astype("float32").sum(0).astype("float16"))(HALF)
    last = [e for e in equations(narrowed(other)[0]) if e.primitive.name == "convert_element_type"][-1]
    assert str(last.invars[0].aval.dtype) == "float32"
