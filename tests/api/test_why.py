"""`why`: reasons derived by hand for small programs, with the argument or constraint that each axis came from."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench import render
from workbench.errors import InspectionError
from workbench.records.sharding import WhyCollectiveRecord, WhyRecord


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture
def shape(mesh):
    return lambda dims, *spec: jax.ShapeDtypeStruct(dims, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


def line_of(fn, text):
    """The line of the file on which a function's source holds `text`."""
    import inspect

    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def two_layers(x, up, down):
    """A product whose summed dimension is sharded over the model axis."""
    hidden = jnp.tanh(x @ up)
    return hidden @ down  # the sum


def test_sum_over_a_sharded_dimension_names_both_operands_and_their_arguments(shape):
    found = wb.why(two_layers)(shape((64, 32), "data"), shape((32, 16), None, "model"), shape((16, 8), "model"))
    (collective,) = found.collectives
    assert (collective.kind, collective.axes, collective.reason) == ("all-reduce", ("model",), "sum")
    assert collective.source is not None
    assert collective.source.line == line_of(two_layers, "# the sum")
    assert [(operand.spec, operand.origins["model"]) for operand in collective.operands] == [
        ((("data",), ("model",)), "argument `up`"),
        ((("model",), ()), "the argument itself"),
    ]


def test_chain_leads_through_every_operation_back_to_the_argument(shape):
    found = wb.why(two_layers)(shape((64, 32), "data"), shape((32, 16), None, "model"), shape((16, 8), "model"))
    chain = found.collectives[0].operands[0].chains["model"]
    assert [next(word for word in ("tanh", "dot_general", "up", "program") if word in step) for step in chain] == [
        "tanh",
        "tanh",
        "dot_general",
        "program",
    ]
    assert chain[1] in render.text(found, details=True)
    assert chain[1] not in render.text(found)


def loss_and_gradient(params, x):
    """Two sums over the batch, of 4 bytes and of 2 KiB, which the compiler combines."""
    return jax.value_and_grad(lambda params: (jnp.tanh(x @ params["w"]) ** 2).mean())(params)


def test_combined_collective_is_explained_by_its_largest_part(shape):
    found = wb.why(loss_and_gradient)({"w": shape((32, 16))}, shape((64, 32), "data"))
    (collective,) = found.collectives
    assert collective.payload_bytes == 4 + 32 * 16 * 4
    assert collective.operation == "dot_general"
    assert collective.sentence.endswith("The compiler combined 2 exchanges into one.")  # of one line


def constrained(x, mesh):
    """A constraint that asks for a whole array."""
    return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P()))  # asks


def helper(x, weights):
    return x @ weights  # the helper's sum


def two_calls(x, first, second):
    x = jnp.tanh(helper(x, first))  # first call
    return helper(x, second)  # second call


def test_a_collective_in_a_shared_helper_is_named_with_the_line_that_calls_the_helper(shape):
    weights = shape((32, 32), "model")
    found = wb.why(two_calls)(shape((64, 32), "data", "model"), weights, weights)
    lines = [line_of(two_calls, f"# {name} call") for name in ("first", "second")]
    assert [[caller.line for caller in each.callers] for each in found.collectives] == [[line] for line in lines]
    assert {each.source and each.source.line for each in found.collectives} == {line_of(helper, "# the helper's sum")}
    headlines = [line for line in str(found).splitlines() if "all-reduce over model" in line]
    assert [headline.rpartition(", called at ")[2] for headline in headlines] == [
        f"test_why.py:{line}" for line in lines
    ]


def test_constraint_that_undoes_a_sharding_is_named_with_its_line(shape, mesh):
    found = wb.why(lambda x: constrained(x, mesh))(shape((64, 32), "data"))
    (collective,) = found.collectives
    assert (collective.kind, collective.reason) == ("all-gather", "constraint")
    assert collective.source is not None
    assert collective.source.line == line_of(constrained, "# asks")
    assert "requests P()" in collective.sentence
    assert "arrives as P('data')" in collective.sentence
    assert collective.sentence.endswith("The compiler applies it before `multiply`.")


def looped(x, mesh, spec):
    def body(h, _):
        return jax.lax.with_sharding_constraint(jnp.tanh(h), NamedSharding(mesh, spec)), None

    return jax.lax.scan(body, jnp.sin(x), None, length=3)[0]


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("data", "The loop does not keep the sharding of the result of `sine`"),
        (None, "The loop starts with a value that is not sharded over `data`"),
    ],
)
def test_reason_of_a_carry_is_the_value_with_which_the_loop_starts(shape, mesh, start, reason):
    found = wb.why(lambda x: looped(x, mesh, P("model")))(shape((256, 256), start))
    (carry,) = [array for array in found.arrays if "that the loop" in array.name]
    assert carry.sentence.startswith(reason)
    assert "`data`" in carry.sentence


CASES = {
    "gradient of data parallelism": (jax.grad(lambda w, x: (jnp.tanh(x @ w) ** 2).mean()), [(32, 16)], "sum"),
    "roll": (lambda w, x: jnp.roll(x, 1), [(32, 16)], "whole dimension"),
    "sort": (lambda w, x: jnp.sort(x, axis=0), [(32, 16)], "whole dimension"),
    "cumulative sum": (lambda w, x: jnp.cumsum(x, axis=0), [(32, 16)], "whole dimension"),
    "mean over rows": (lambda w, x: x.mean(0), [(32, 16)], "sum"),
}


@pytest.mark.parametrize(("fn", "shapes", "reason"), CASES.values(), ids=CASES.keys())
def test_reason_of_an_operation_over_sharded_rows(fn, shapes, reason, shape):
    found = wb.why(fn)(shape(shapes[0]), shape((64, 32), "data"))
    assert {collective.reason for collective in found.collectives} == {reason}
    assert all(collective.axes == ("data",) for collective in found.collectives)
    origins = {o.origins.get("data") for c in found.collectives for o in c.operands} - {None}
    assert origins <= {"argument `x`", "the argument itself"}


def test_operands_that_disagree_are_both_named(shape):
    found = wb.why(lambda x, y: x + y)(shape((64, 32), "data"), shape((64, 32), None, "data"))
    (collective,) = found.collectives
    assert collective.reason == "disagreement"
    assert "argument `x`" in collective.sentence
    assert "argument `y`" in collective.sentence


def test_exchange_that_the_program_writes_is_reported_as_its_own(shape, mesh):
    total = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
    assert wb.why(total)(shape((64, 32), "data")).collectives[0].reason == "program"


def test_large_argument_without_a_sharding_is_named_first(shape):
    big, x = shape((1024, 512)), shape((64, 1024), "data")
    found = wb.why(lambda w, x: x @ w)(big, x)
    array = found.arrays[0]
    assert (array.shape, array.copies, array.size_bytes) == ((1024, 512), 8, 4 * 1024 * 512)
    assert "argument `w`" in array.name
    assert array.sentence.startswith("The argument is unsharded, and no operation propagated `data` or `model` to it")


def test_neighbours_with_the_same_reason_are_reported_once():
    one = WhyCollectiveRecord(
        kind="all-gather",
        axes=("data",),
        executions=1,
        payload_bytes=24,
        reason="whole dimension",
        sentence="It needs all.",
    )
    other = one.replace(sentence="It needs more.")
    text = render.text(WhyRecord(name="f", target="cpu x 8", collectives=(one, one.replace(payload_bytes=12), other)))
    assert text.splitlines()[1:] == [
        "1–2. all-gather over data, 24 B, 12 B per device",
        "   It needs all.",
        "3. all-gather over data, 24 B per device",
        "   It needs more.",
    ]


def test_program_without_a_mesh_has_nothing_to_explain():
    assert wb.why(lambda x: x * 2)(jnp.ones(3)).collectives == ()


def test_planned_collectives_of_an_abstract_mesh_are_explained():
    mesh = jax.sharding.AbstractMesh((1024, 8), ("data", "model"))
    rows = jax.ShapeDtypeStruct((4096, 8), "float32", sharding=NamedSharding(mesh, P("data")))
    found = wb.why(lambda x: x.sum(0), on=mesh)(rows)
    assert [collective.reason for collective in found.collectives] == ["sum"]
    assert any("nothing was compiled" in note for note in found.notes)


def test_lowered_program_and_record_are_explained(shape):
    args = (shape((64, 32), "data"), shape((32, 16), None, "model"), shape((16, 8), "model"))
    lowered = jax.jit(two_layers).lower(*args)
    assert wb.why(lowered).collectives[0].reason == "sum"
    assert wb.why(wb.inspect(two_layers)(*args)).collectives[0].reason == "sum"
    compiled: Any = wb.why(lowered.compile())
    assert compiled.collectives[0].reason == "unknown"
    assert any("its collectives cannot be explained" in note for note in compiled.notes)


def test_array_is_no_program():
    with pytest.raises(InspectionError, match="which is not a program: its record has type ShardingRecord"):
        wb.why(jnp.ones(3))


@pytest.fixture(scope="module")
def library():
    """Layers in site-packages, behind more calls than JAX keeps in a location."""
    code = """
import jax, jax.numpy as jnp
def call(step, depth, *values):
    return call(step, depth - 1, *values) if depth else step(*values)
def layers(weights, h, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x + h
def unroll(weights, h, xs):
    return jax.lax.scan(lambda h, x: (call(layers, 12, weights, h, x), None), h, xs)[0]
"""
    names: dict[str, Any] = {}
    exec(compile(code, str(Path(jax.__file__).parents[1] / "layers.py"), "exec"), names)
    return names["unroll"]


def test_sum_in_the_loop_of_a_library_is_explained_without_a_line(library, mesh):
    def loss(weights, h, xs):
        return jnp.sum(library(weights, h, xs) ** 2)

    weights, h = [jnp.ones((16, 16))] * 2, jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("data")))
    xs = jax.device_put(jnp.ones((4, 8, 16)), NamedSharding(mesh, P(None, "data")))
    why = wb.why(jax.grad(loss))(weights, h, xs)
    (summed,) = (each for each in why.collectives if each.payload_bytes == 2 * 16 * 16 * 4)
    assert (summed.kind, summed.axes, summed.executions, summed.reason) == ("all-reduce", ("data",), 4, "sum")
    assert summed.operation == "dot_general"


def test_sum_of_gradients_of_mapped_layers_is_no_request_of_the_program(mesh):
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    def layer(w, x):
        return jnp.einsum("bd,df->bf", x, w)

    def loss(weights, x):
        for w in weights:
            x = layer(w, x)
        return jnp.sum(x**2)

    def step(weights, xs):
        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, x)), None

        return jax.lax.scan(add, weights, xs)[0]

    xs = jax.device_put(jnp.ones((4, 8, 16)), NamedSharding(mesh, P(None, "data")))
    why = wb.why(step)([jnp.ones((16, 16))] * 2, xs)
    (summed,) = (each for each in why.collectives if each.payload_bytes == 2 * 16 * 16 * 4)
    assert "Differentiation inside `shard_map` adds this exchange" in summed.sentence


def test_sum_of_a_program_combined_with_a_larger_sum_of_gradients_is_named_second(mesh):
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=(P(), P()))
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        return jax.lax.psum(loss, "data"), gradient

    why = wb.why(step)(jnp.ones(4), jnp.ones((16, 4)))
    line = step.__wrapped__.__code__.co_firstlineno + 3
    (combined,) = why.collectives  # the gradient has 4 numbers, the loss has 1
    assert combined.payload_bytes == 4 * 4 + 4
    assert combined.sentence.startswith("Differentiation inside `shard_map` adds this exchange")
    assert combined.sentence.endswith(f"combined 2 exchanges into one; the other is at test_why.py:{line}.")
