"""Lost batch axes, derived by hand from propagated values; arrays have 64 x 16 x 32 entries over data=4, model=2."""

import pytest

from tests.advice.hand_written import GATHER, compiled, line, mesh, value, with_module
from workbench.advice._batch_axis import CandidateLine, _Graph, code_in, lost_axes, lost_batch
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.sharding import WhyCauseRecord, WhyCollectiveRecord, WhyRecord

X = value("%x", "input", (64, 32), (("data",), ()), op_name="x")
W = value("%w", "input", (32, 32), ((), ()), op_name="w")
KEPT = value("%h", "tanh", (64, 32), (("data",), ()), ("%x",), at=3)
LOST = value("%y", "dot_general", (64, 32), ((), ()), ("%h", "%w"), at=4)
AFTER = value("%z", "sin", (64, 32), ((), ()), ("%y",), at=5)
NEW = value("%new", "output", (32, 32), ((), ()), ("%w",))  # the weights are the state
VALUES = X, W, KEPT, LOST, AFTER, NEW
SIZES = {"data": 4, "model": 2}


def graph(*values, sizes=None):
    return _Graph(values or VALUES, sizes or SIZES)


def test_work_of_a_value_on_one_device():
    work = graph().work
    assert work == {
        "%x": 0.0,
        "%w": 0.0,
        "%h": 64 * 32 / 4,
        "%y": pytest.approx(2 * (64 * 32 * 64 * 32 * 32 * 32) ** 0.5 / 4),  # 2 x rows x columns x summed, in 4 parts
        "%z": 64 * 32,
        "%new": 0.0,
    }
    product = 2 * 64 * 32 * 32
    assert work["%y"] == product / 4
    both = LOST.replace(spec=(("model",), ()))
    assert graph(X, W, KEPT, both).work["%y"] == product / 8
    assert graph(LOST).work["%y"] == 64 * 32  # no operand is known
    names = ("constant", "while", "while carry", "iota", "broadcast_in_dim", "output")
    assert {graph(AFTER.replace(operation=name)).work["%z"] for name in names} == {0.0}


def test_values_are_data_state_or_computed_from_them():
    table = graph()
    assert [v.name for v in table.state] == ["%w"]
    assert [v.name for v in table._data] == ["%x"]
    assert table._dependent == {"%x", "%h", "%y", "%z"}
    assert table._state_shapes == {(32, 32)}
    integers = graph(W.replace(dtype="i32"), NEW.replace(dtype="i32"))
    assert integers.state == []
    half = graph(W.replace(dtype="bf16"), NEW.replace(dtype="bf16"))
    assert [v.name for v in half.state] == ["%w"]
    scalar = graph(W.replace(shape=()), NEW.replace(shape=()))
    assert scalar.state == []
    carried = graph(W, value("%c", "while carry", (8,), ((),)), NEW)
    assert carried._dependent == {"%c"}


def test_values_inside_a_shard_map_and_after_the_backward_pass():
    inside = value("%m", "manual_computation input", (8,), ((),))
    table = graph(inside, value("%n", "add", (8,), ((),), ("%m",)), AFTER)
    assert table._manual == {"%m", "%n"}
    cotangent = value("%d", "add", (8,), ((),), op_name="transpose(jvp(f))/add")
    table = graph(cotangent, value("%e", "add", (8,), ((),), ("%d",)), AFTER)
    assert table._after_backward == {"%d", "%e"}


def test_sizes_of_batches():
    assert graph().batches("data") == {64}
    assert graph().batches("model") == set()
    micro = value("%r", "reshape", (4, 16, 32), (("data",), (), ()), ("%x",))
    assert graph(X, micro).batches("data") == {64, 16}
    assert graph(X, micro.replace(spec=((), ("data",), ()))).batches("data") == {64}
    assert graph(X, micro.replace(operation="add")).batches("data") == {64}
    assert graph(X, micro.replace(operands=("%w",))).batches("data") == {64}
    assert graph(X, micro.replace(shape=(4, 8, 32))).batches("data") == {64}
    assert graph(X, micro.replace(shape=(64, 1, 32))).batches("data") == {64}
    assert graph(X, micro.replace(shape=(32, 2, 32))).batches("data") == {64, 2}


@pytest.mark.parametrize(
    ("fields", "dimension"),
    [
        ({}, 0), ({"shape": (32, 64)}, 1), ({"shape": (2, 128, 32)}, 1),  # 128 rows contain two batches
        ({"spec": ((), ("data",))}, None), ({"spec": (("model",), ())}, None), ({"shape": (63, 32)}, None),
        ({"shape": (128, 32), "spec": (("model",), ())}, 0), ({"shape": ()}, None), ({"operation": "constant"}, None),
        ({"operation": "input"}, None), ({"operation": "output"}, None), ({"operation": "manual_computation"}, None),
        ({"operands": ("%w",)}, None), ({"shape": (96, 32)}, None), ({"shape": (64,), "spec": ((),)}, 0),
    ],
)  # fmt: skip
def test_dimension_that_lost_the_axis(fields, dimension):
    lost = LOST.replace(**fields)
    assert graph(X, W, KEPT, lost, NEW)._lost_dimension(lost, "data", {64}) == dimension


def test_dimension_must_divide():
    wide = graph(X, KEPT, LOST, sizes={"data": 128})
    assert wide._lost_dimension(LOST, "data", {64}) is None
    merged = LOST.replace(shape=(128, 32), spec=(("model",), ()))
    assert graph(X, KEPT, merged, sizes={"data": 4, "model": 64})._lost_dimension(merged, "data", {64}) is None
    unknown = LOST.replace(shape=(128, 32), spec=(("other",), ()))
    assert graph(X, KEPT, unknown)._lost_dimension(unknown, "data", {64}) == 0


def test_update_of_the_state_and_values_in_a_shard_map_lost_nothing():
    cotangent = value("%d", "add", (64, 32), ((), ()), ("%x",), op_name="transpose(jvp(f))/add")
    state = value("%s", "input", (64, 32), ((), ()))
    new = value("%o", "output", (64, 32), ((), ()))
    assert graph(X, state, cotangent, new)._lost_dimension(cotangent, "data", {64}) is None
    other = graph(X.replace(dtype="i32"), cotangent)
    assert other._lost_dimension(cotangent, "data", {64}) == 0
    manual = value("%m", "manual_computation input", (64, 32), ((), ()), ("%x",))
    assert graph(X, manual)._lost_dimension(manual, "data", {64}) is None


def candidates(*values, cause=None):
    return graph(*values).candidates("data", {64}, cause)


def test_lines_are_ordered_by_the_work_after_them_and_their_own():
    lines, repeated = candidates(X, W, KEPT, LOST, AFTER, NEW)
    product, elements, kept = 2 * 64 * 32 * 32 / 4, 64 * 32, 64 * 32 / 4
    assert repeated == (product + elements) / (product + elements + kept)
    assert [each.source.line for each in lines] == [4, 5]
    assert lines[0] == CandidateLine(
        line(4), {(64, 32): (("data",), ())},
        "Keep the batch sharded: constrain the value f32[64,32], as in "
        "`jax.lax.with_sharding_constraint(value, P('data'))`.",
    )  # fmt: skip
    assert code_in(lines[0].change) == "jax.lax.with_sharding_constraint(value, P('data'))"


def chain(count, shape=(64, 32)):
    """Products and sums in turn, each computed from the value before, one per line."""
    values = [LOST]
    for at in range(count):
        values.append(value(f"%{at}", "sin", shape, ((), ()), (values[-1].name,), at=10 + at))
    return values


def test_four_lines_are_tried():
    lines, _ = candidates(X, W, KEPT, *chain(6))
    assert [each.source.line for each in lines] == [4, 10, 11, 12]
    heavy = value("%heavy", "dot_general", (64, 512), ((), ()), ("%5", "%x"), at=30)
    lines, _ = candidates(X, W, KEPT, *chain(6), heavy)
    assert [each.source.line for each in lines] == [4, 30, 10, 11]  # by the work after it, by its own, and so on


def test_lines_with_the_axis_gradients_and_integers_are_not_constrained():
    same_line = KEPT.replace(source=line(4))
    lines, repeated = candidates(X, W, same_line, LOST, AFTER)
    assert [each.source.line for each in lines] == [5]
    assert repeated > 0.5
    for fields in ({"op_name": "transpose(f)/sin"}, {"dtype": "i32"}, {"source": None}):
        lines, _ = candidates(X, W, KEPT, LOST, AFTER.replace(**fields))
        assert [each.source.line for each in lines] == [4]
    in_backward = KEPT.replace(source=line(4), op_name="transpose(f)/tanh")
    assert [each.source.line for each in candidates(X, W, in_backward, LOST)[0]] == [4]
    assert [each.source.line for each in candidates(X, W, KEPT, LOST, AFTER.replace(dtype="bf16"))[0]] == [4, 5]
    assert candidates(NEW) == ((), 0.0)


def test_results_that_other_lines_read_are_constrained():
    inner = AFTER.replace(name="%inner", source=line(5), shape=(128, 64))
    outer = AFTER.replace(name="%outer", source=line(5), operands=("%inner",))
    reader = AFTER.replace(name="%reader", source=line(6), operands=("%outer",))
    lines, _ = candidates(X, W, KEPT, LOST, inner, outer, reader)
    by_line = {each.source.line: each.specs for each in lines}
    assert by_line[5] == {(64, 32): (("data",), ())}
    assert by_line[6] == {(64, 32): (("data",), ())}  # nobody reads it, so the last value of the line
    also = AFTER.replace(name="%also", source=line(7), operands=("%inner",))
    lines, _ = candidates(X, W, KEPT, LOST, inner, outer, reader, also)
    [both] = [each for each in lines if each.source.line == 5]
    assert both.specs == {(128, 64): (("data",), ()), (64, 32): (("data",), ())}
    assert "f32[128,64]" in both.change  # the largest
    sharded = LOST.replace(shape=(128, 32), spec=(("model",),))
    lines, _ = candidates(X, W, KEPT, sharded)
    assert lines[0].specs == {(128, 32): (("model", "data"), ())}


CAUSE = WhyCauseRecord(
    axis="data", sentence="Lost.", advice="", source=line(8), value="%y", spec=(("data",), ()), collectives=3
)


def test_line_of_the_cause_is_tried_first():
    lines, _ = candidates(X, W, KEPT, LOST, AFTER, cause=CAUSE)
    assert [each.source.line for each in lines] == [4, 4, 5]
    assert lines[0].specs == {(64, 32): (("data",), ())}
    moved = LOST.replace(source=None)
    lines, _ = candidates(X, W, KEPT, moved, AFTER, cause=CAUSE)
    assert lines[0].source == line(8)
    lines, _ = candidates(X, W, KEPT, LOST, AFTER, cause=CAUSE.replace(source=None))
    assert [each.source.line for each in lines] == [4, 5]


def test_cause_in_the_backward_pass_is_the_value_that_its_line_reads():
    cotangent = value("%d", "add", (64, 32), ((), ()), ("%z",), at=9, op_name="transpose(f)/add")
    reader = value("%q", "mul", (64, 32), ((), ()), ("%unknown", "%w", "%z"), at=9)
    cause = CAUSE.replace(value="%d")
    lines, _ = candidates(X, W, KEPT, LOST, AFTER, reader, cotangent, cause=cause)
    assert lines[0].source == line(5)
    assert "transpose" not in lines[0].change
    elsewhere = reader.replace(source=line(7))
    lines, _ = candidates(X, W, KEPT, LOST, AFTER, elsewhere, cotangent, cause=cause)
    assert lines[0].source == line(9)
    other_shape = cotangent.replace(shape=(64, 16))
    lines, _ = candidates(X, W, KEPT, LOST, AFTER, reader, other_shape, cause=cause)
    assert lines[0].specs == {(64, 16): (("data",), ())}
    weights = reader.replace(operands=("%w",), shape=(32, 32))
    square = cotangent.replace(shape=(32, 32))
    lines, _ = candidates(X, W, KEPT, LOST, weights, square, NEW, cause=cause)
    assert lines[0].source == line(9)


def program(*values, causes=(), axes=None, **fields):
    why = WhyRecord(name="", target="", causes=tuple(causes), collectives=fields.pop("collectives", ()))
    base = compiled(GATHER, propagation=values or VALUES, mesh=axes or mesh(), why=why, **fields)
    return with_module(base, flops=1000.0)


def test_axes_that_part_of_the_program_lost():
    [lost] = lost_axes(program())
    assert (lost.axis, lost.cause, len(lost.candidates)) == ("data", None, 2)
    [lost] = lost_axes(program(causes=[CAUSE]))
    assert (lost.axis, lost.cause, len(lost.candidates)) == ("data", CAUSE, 3)
    assert lost_axes(program(causes=[CAUSE.replace(source=None)]))[0].cause is None
    explicit = mesh().replace(axes=tuple(axis.replace(type="explicit") for axis in mesh().axes))
    assert lost_axes(program(axes=explicit)) == ()
    assert lost_axes(program(axes=mesh(data=1, model=2))) == ()
    assert lost_axes(program(X, W, KEPT)) == ()
    assert lost_axes(compiled()) == ()
    assert lost_axes(compiled(propagation=VALUES, mesh=None)) == ()
    assert lost_axes(program(X.replace(spec=((), ())), KEPT, LOST)) == ()


def test_least_repeated_work_is_a_tenth():
    def of(size):
        kept = value("%big", "tanh", (size, 32), (("data",), ()), ("%x",), at=3)
        return lost_axes(program(X, kept, value("%l", "sin", (64, 32), ((), ()), ("%x",), at=4)))

    assert len(of(64 * 36)) == 1  # 36 / 4 parts of 2,048 elements, next to 2,048
    assert of(64 * 40) == ()
    kept = value("%big", "tanh", (64 * 400, 32), (("data",), ()), ("%x",), at=3)
    caused = program(X, kept, value("%y", "sin", (64, 32), ((), ()), ("%x",), at=4), causes=[CAUSE])
    assert len(lost_axes(caused)) == 1


def test_axes_with_a_cause_come_first():
    both = X.replace(spec=(("data",), ("model",)))
    cause = CAUSE.replace(axis="model", spec=((), ("model",)))
    assert [lost.axis for lost in lost_axes(program(both, W, LOST.replace(operands=("%x",))))] == ["data", "model"]
    caused = program(both, W, LOST.replace(operands=("%x",)), causes=[cause])
    assert [lost.axis for lost in lost_axes(caused)] == ["model", "data"]


def test_finding_about_repeated_work():
    [finding] = lost_batch(program())
    [lost] = lost_axes(program())
    share = (32768 + 2048) / (32768 + 2048 + 512)  # of one device's work
    assert lost.repeated == share
    assert finding == FindingRecord(
        rule="activations without the batch axis",
        what="From line 4 of `layer` on, 4 devices along `data` compute the same values.",
        why="The batch is sharded over `data`, but these values are not. About 99 % of a device's planned work is "
        "repeated on the other devices.",
        change=lost.candidates[0].change,
        code="jax.lax.with_sharding_constraint(value, P('data'))",
        evidence=(),
        weight=share,
        axes=("data",),
        sources=(line(4),),
        gain=GainRecord(
            quantity="FLOPs", before=1000.0, after=1000.0 * (1 - share * 0.75), verified=False,
            how="planned work, not compiled with the constraint",
        ),
    )  # fmt: skip
    [unknown] = lost_batch(with_module(program(), flops=None))
    assert (unknown.gain.before, unknown.gain.after) == (0.0, 0.0)


WHY = WhyCollectiveRecord(
    kind="all-gather", axes=("data",), executions=1.0, payload_bytes=8192, reason="sum", sentence=""
)


def test_finding_about_a_cause():
    base = program(causes=[CAUSE])
    [only] = base.module.collectives
    gathers = [only.replace(name=f"g{at}", wire_bytes=float(1024 * at)) for at in range(1, 7)]
    why = base.why.replace(collectives=(*[WHY] * 5, WHY.replace(axes=("model",))))
    base = with_module(base, collectives=tuple(gathers))
    base.__dict__["why"] = why
    [finding] = lost_batch(base)
    assert finding == FindingRecord(
        rule="activations without the batch axis",
        what="The batch dimension is no longer sharded over `data` after line 8 of `layer`, which leads to 3 "
        "collectives over that axis.",
        why="Lost.",
        change=lost_axes(base)[0].candidates[0].change,
        code="jax.lax.with_sharding_constraint(value, P('data'))",
        evidence=tuple(f"g{at}: all-gather over data, 1 execution, one device sends {at} KiB" for at in (5, 4, 3, 2)),
        weight=finding.weight,
        instructions=("g1", "g2", "g3", "g4", "g5"),
        axes=("data",),
        sources=(line(4),),
        gain=GainRecord(
            quantity="bytes sent", before=21 * 1024.0, after=21 * 1024.0, verified=False,
            how="not compiled with the constraint",
        ),
    )  # fmt: skip
    assert finding.weight == (32768 + 2048) / (32768 + 2048 + 512)
    kept = value("%big", "tanh", (64 * 400, 32), (("data",), ()), ("%x",), at=3)
    rare = program(X, kept, value("%y", "sin", (64, 32), ((), ()), ("%x",), at=4), causes=[CAUSE])
    rare.__dict__["why"] = rare.why.replace(collectives=(WHY,))
    assert [f.weight for f in lost_batch(rare)] == [1.0]  # of the bytes sent


def test_code_in_a_sentence():
    assert code_in("Use `f(x)`, `name` and `g(y)`.") == "f(x)\ng(y)"
