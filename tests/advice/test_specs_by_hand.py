"""Rules that plan other shardings, with a planner whose figures are given."""

import types

import pytest

from tests.advice.hand_written import GATHER, changed, compiled, leaf, line, mesh, value, with_module
from workbench.advice._module import Compiled
from workbench.advice._search._groups import SpecGroup, fits
from workbench.advice._search._program import Priced
from workbench.advice._specs import costly_constraint, misplaced_spec, partly_sharded
from workbench.errors import InspectionError
from workbench.records.advice import FindingRecord, GainRecord
from workbench.records.sharding import WhyCollectiveRecord, WhyOperandRecord, WhyRecord

ROWS, COLUMNS, WHOLE = (("data",), ()), ((), ("data",)), ((), ())


class Planner:
    """Plans bytes, seconds and FLOPs from a table of specs; (8192 bytes, 1 s, 100 FLOPs) if a spec is not listed."""

    def __init__(self, shapes, table, *, outputs=(), without=None):
        self.leaves = [types.SimpleNamespace(name=name) for name in shapes]
        self.groups = [
            SpecGroup(name, shape, "float32", [at], 4 * shape[0] * shape[-1], outputs=[0] if name in outputs else [])
            for at, (name, shape) in enumerate(shapes.items())
        ]
        self.table, self.without, self.planned = table, without or {}, []

    def plan(self, specs, *, without=()):
        self.planned.append((specs, without))
        figures = self.without.get(without) if without else self.table.get(specs, (8192.0, 1.0, 100.0))
        if figures is None:
            raise InspectionError("Shardy rejects the program")
        sent, seconds, flops = figures
        return Priced(specs, seconds, 0.0, 0.0, {"data": sent / 2, "model": sent / 2}, flops=flops)

    def allows(self, spec, shape):
        return fits(spec, shape, {"data": 4, "model": 2})


def program(planner, *specs, copies=2, **fields):
    leaves = [
        leaf(group.pattern, group.shape, spec, copies=copies, parts=4)
        for group, spec in zip(planner.groups, specs, strict=True)
    ]
    base = compiled(GATHER, **({"inputs": leaves} | fields))
    copy = Compiled(base.record, base.module, planner)
    copy.__dict__["why"] = base.why
    return copy


SHAPES = {"w": (64, 64), "x": (64, 64)}
MOVED = FindingRecord(
    rule="spec on another dimension",
    what="`w` is sharded as `P('data')`; with `P(None, 'data')`, the program would send fewer bytes.",
    why="Operations that read the array either need parts from other devices, or produce partial sums, which devices "
    "must add. The number of bytes depends on the sharded dimension.",
    change="Shard `w` as `P(None, 'data')`.",
    specs={"w": COLUMNS},
    evidence=("planned: one device sends 8 KiB per call now, and 2 KiB after the change",),
    weight=0.875,
    leaves=("w",),
    axes=("data",),
    size_bytes=8192.0,
    gain=GainRecord(quantity="bytes sent", before=8192.0, after=2048.0, verified=False, how="planned, not compiled"),
)


def test_spec_on_another_dimension():
    planner = Planner(SHAPES, {(COLUMNS, WHOLE): (2048.0, 1.0, 100.0)})
    assert list(misplaced_spec(program(planner, ROWS, WHOLE))) == [MOVED]
    [finding] = misplaced_spec(program(planner, (("data",),), ()))  # shorter specs are the same
    assert finding == MOVED
    unknown = changed(program(planner, ROWS, WHOLE), executions=None)
    again = Compiled(unknown.record, unknown.module, planner)
    [finding] = misplaced_spec(again)
    assert finding.evidence == ("planned: one device sends 75 % fewer bytes; the length of a loop is unknown",)


@pytest.mark.parametrize(
    ("figures", "count"),
    [
        ((0.9 * 8192, 1.0, 100.0), 1), ((0.9 * 8192 + 1, 1.0, 100.0), 0), ((2048.0, 9.0, 105.0), 1),
        ((2048.0, 1.0, 106.0), 0), ((2048.0, 1.0, None), 1), (None, 0),
    ],
)  # fmt: skip
def test_spec_must_send_at_most_nine_tenths_and_repeat_no_work(figures, count):
    planner = Planner(SHAPES, {(COLUMNS, WHOLE): figures})
    assert len(list(misplaced_spec(program(planner, ROWS, WHOLE)))) == count


def test_little_traffic_is_not_planned_with_other_specs():
    for sent, count in ((4096.0, 1), (4095.0, 0)):
        planner = Planner(SHAPES, {(ROWS, WHOLE): (sent, 1.0, 100.0), (COLUMNS, WHOLE): (0.0, 1.0, 100.0)})
        assert len(list(misplaced_spec(program(planner, ROWS, WHOLE)))) == count
    planner = Planner(SHAPES, {(ROWS, WHOLE): None, (COLUMNS, WHOLE): (0.0, 1.0, 100.0)})
    assert list(misplaced_spec(program(planner, ROWS, WHOLE))) == []
    assert list(misplaced_spec(compiled())) == []
    assert list(misplaced_spec(program(planner, ROWS, WHOLE, inputs=None))) == []
    assert list(misplaced_spec(program(planner, ROWS, WHOLE, inputs=[leaf("w", (64, 64), ROWS)]))) == []


def test_spec_that_does_not_divide_counts_as_replicated():
    planner = Planner({"w": (63, 64), "x": (64, 64)}, {})
    list(misplaced_spec(program(planner, ROWS, WHOLE)))
    assert planner.planned == [((WHOLE, WHOLE), ())]


def test_only_the_state_of_a_step_is_moved():
    table = {(COLUMNS, ROWS): (2048.0, 1.0, 100.0), (ROWS, COLUMNS): (1024.0, 1.0, 100.0)}
    outputs = [leaf("w", (64, 64))]
    wide = {"w": (64, 64), "x": (64, 32)}
    findings = misplaced_spec(program(Planner(wide, table), ROWS, ROWS, outputs=outputs))
    assert [f.leaves for f in findings] == [("w",)]
    by_planner = misplaced_spec(program(Planner(wide, table, outputs=["w"]), ROWS, ROWS))
    assert [f.leaves for f in by_planner] == [("w",)]
    half = misplaced_spec(program(Planner({"w": (64, 64), "x": (32, 128)}, table, outputs=["w"]), ROWS, ROWS))
    assert [f.leaves for f in half] == [("w",), ("x",)]  # half of the bytes are no state
    other = misplaced_spec(program(Planner(wide, table), ROWS, ROWS, outputs=[leaf("w", (64, 64), dtype="bfloat16")]))
    assert [f.leaves for f in other] == [("w",), ("x",)]


def test_pair_of_specs_is_tried_if_no_single_spec_helps():
    table = {(COLUMNS, COLUMNS): (2048.0, 1.0, 100.0)}
    pair = {"up": (64, 128), "down": (128, 64)}
    [finding] = misplaced_spec(program(Planner(pair, table), ROWS, ROWS))
    assert finding == MOVED.replace(
        what="`up` is sharded as `P('data')` and `down` is sharded as `P('data')`; with `P(None, 'data')` and "
        "`P(None, 'data')`, the program would send fewer bytes.",
        change="Shard `up` as `P(None, 'data')` and `down` as `P(None, 'data')`.",
        specs={"up": COLUMNS, "down": COLUMNS}, leaves=("up", "down"), axes=("data", "data"),
    )  # fmt: skip
    assert list(misplaced_spec(program(Planner({"up": (64, 128), "down": (64, 128)}, table), ROWS, ROWS))) == []
    single = table | {(COLUMNS, ROWS): (4096.0, 1.0, 100.0)}
    assert [f.leaves for f in misplaced_spec(program(Planner(pair, single), ROWS, ROWS))] == [("up",)]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [((4, 64, 128), (4, 128, 64), 1), ((4, 64, 128), (2, 128, 64), 0), ((4, 64, 128), (4, 64, 128), 0),
     ((4, 64, 128), (128, 64, 4), 0)],
)  # fmt: skip
def test_weights_of_two_products_in_a_row_differ_in_the_order_of_their_last_dimensions(first, second, count):
    rows, columns = ((), ("data",), ()), ((), (), ("data",))
    planner = Planner({"up": first, "down": second}, {(columns, columns): (2048.0, 1.0, 100.0)})
    assert len(list(misplaced_spec(program(planner, rows, rows)))) == count


def test_best_permutation_is_advised():
    rows, columns, depth = (("data",), (), ()), ((), ("data",), ()), ((), (), ("data",))
    table = {(columns,): (2048.0, 1.0, 100.0), (depth,): (1024.0, 1.0, 100.0)}
    [finding] = misplaced_spec(program(Planner({"w": (64, 64, 64)}, table), rows))
    assert finding.specs == {"w": depth}
    table[depth,] = (1024.0, 1.0, 200.0)
    [finding] = misplaced_spec(program(Planner({"w": (64, 64, 64)}, table), rows))
    assert finding.specs == {"w": columns}


def test_twelve_arguments_are_planned():
    shapes = {f"w{at}": (64, 64) for at in range(13)}
    planner = Planner(shapes, {})
    assert list(misplaced_spec(program(planner, *[ROWS] * 13))) == []
    assert len(planner.planned) == 1 + 12 + 66  # the base, single specs and pairs
    planner = Planner(shapes, {})
    list(partly_sharded(program(planner, *[ROWS] * 13)))
    assert len(planner.planned) == 1  # each argument is less than a tenth
    nine = {f"w{at}": (256, 256) for at in range(9)}
    planner = Planner(nine, {})
    assert len(list(partly_sharded(program(planner, *[ROWS] * 9)))) == 9


BOTH = (("data",), ("model",))
PARTLY = FindingRecord(
    rule="partly sharded array",
    what="`w` (256 KiB) is stored in parts of 64 KiB, each on 2 devices.",
    why="The spec `P('data')` omits `model`. According to the plan, adding this axis does not increase the bytes sent.",
    change="Shard `w` over `model` as well, as `P('data', 'model')`.",
    evidence=(
        "50 % of one device's argument bytes",
        "planned: one device sends 8 KiB per call now, and 8 KiB after the change",
    ),
    weight=0.25,
    specs={"w": BOTH},
    leaves=("w",),
    axes=("model",),
    size_bytes=65536.0,
)
LARGE = {"w": (256, 256), "x": (256, 256)}


def test_parts_of_a_group_are_those_of_its_parameter():
    planner = Planner({"w": (256, 256), "m": (256, 256)}, {})
    planner.groups = [SpecGroup("w", (256, 256), "float32", [0, 1], 1)]
    leaves = leaf("w", (256, 256), ROWS, copies=2, parts=4), leaf("m", (256, 256), ROWS, copies=2, parts=8)
    [finding] = partly_sharded(program(planner, ROWS, inputs=leaves))
    assert finding.what == (
        "`w` and 1 similar arguments (512 KiB together) are stored in parts of 64 KiB, each on 2 devices."
    )
    assert (finding.specs, finding.size_bytes, finding.weight) == ({"w": BOTH, "m": BOTH}, 98304.0, 0.5)


def test_partly_sharded_array():
    assert list(partly_sharded(program(Planner(LARGE, {}), ROWS, WHOLE))) == [PARTLY]
    for figures in ((8193.0, 1.0, 100.0), (8192.0, 1.1, 100.0), None):
        assert list(partly_sharded(program(Planner(LARGE, {(BOTH, WHOLE): figures}), ROWS, WHOLE))) == []
    faster = Planner(LARGE, {(BOTH, WHOLE): (0.0, 0.5, 100.0)})
    assert [f.evidence[1] for f in partly_sharded(program(faster, ROWS, WHOLE))] == [
        "planned: one device sends 8 KiB per call now, and 0 B after the change"
    ]
    unknown = Planner(LARGE, {(BOTH, WHOLE): (0.0, None, 100.0), (ROWS, WHOLE): (0.0, None, 100.0)})
    [finding] = partly_sharded(changed(program(unknown, ROWS, WHOLE), executions=None))
    assert finding.evidence[1] == "planned: one device sends 0 % fewer bytes; the length of a loop is unknown"


@pytest.mark.parametrize(
    "given",
    [
        lambda: program(Planner(LARGE, {}), WHOLE, WHOLE), lambda: program(Planner(LARGE, {}), ROWS, WHOLE, copies=1),
        lambda: program(Planner({"w": (256, 252)}, {}), ROWS), lambda: program(Planner(LARGE, {}), BOTH, WHOLE),
        lambda: program(Planner(LARGE, {}), ROWS, WHOLE, mesh=None),
        lambda: program(Planner({"w": (256, 257)}, {}), ROWS, mesh=mesh(data=4, model=1)), compiled,
    ],
    ids=["replicated", "one copy", "small", "fully sharded", "no mesh", "axis of one device", "no planner"],
)  # fmt: skip
def test_other_arrays_are_not_partly_sharded(given):
    assert list(partly_sharded(given())) == []


KEEP = value("%c", "sharding_constraint", (64, 64), COLUMNS, ("%y",), at=3, op_name="jit(f)/keep")
COSTLY = FindingRecord(
    rule="costly constraint",
    what="The constraint `P(None, 'data')` on a value with shape [64, 64] makes the program send more bytes.",
    why="The value is computed in one sharding, but the constraint requests another sharding, so devices exchange the "
    "value.",
    change="Remove the constraint, or request the sharding in which the value is computed.",
    evidence=("planned: one device sends 8 KiB per call now, and 2 KiB after the change", "%c: jit(f)/keep"),
    weight=0.875,
    sources=(line(3),),
    axes=("data",),
    size_bytes=6144.0,
    gain=GainRecord(
        quantity="bytes sent", before=8192.0, after=2048.0, verified=False,
        how="without the constraint; not compiled, because the constraint is inside the program",
    ),
)  # fmt: skip


def constrained(without, *values, table=None, **fields):
    planner = Planner(SHAPES, table or {}, without=without)
    return program(planner, ROWS, WHOLE, propagation=[KEEP, *values], **fields)


def test_costly_constraint():
    assert list(costly_constraint(constrained({(0,): (2048.0, 1.0, 100.0)}))) == [COSTLY]
    again = KEEP.replace(name="%d")  # the derivative repeats the constraint
    assert list(costly_constraint(constrained({(0, 2): (2048.0, 1.0, 100.0)}, KEEP.replace(source=line(4)), again)))
    unknown = {(ROWS, WHOLE): (8192.0, None, 100.0)}
    assert len(list(costly_constraint(constrained({(0,): (2048.0, None, 100.0)}, table=unknown)))) == 1
    nowhere = KEEP.replace(source=None)
    planner = Planner(SHAPES, {}, without={(0,): (2048.0, 1.0, 100.0), (1,): (8192.0, 2.0, 100.0)})
    both = program(planner, ROWS, WHOLE, propagation=[nowhere, nowhere])
    assert [f.sources for f in costly_constraint(both)] == [()]
    many = [KEEP.replace(source=line(at)) for at in range(13)]
    planner = Planner(SHAPES, {}, without={(at,): (2048.0, 1.0, 100.0) for at in range(13)})
    assert len(list(costly_constraint(program(planner, ROWS, WHOLE, propagation=many)))) == 12


@pytest.mark.parametrize(
    ("figures", "count"),
    [
        ((0.89 * 8192, 1.0, 100.0), 1), ((0.9 * 8192, 1.0, 100.0), 0), ((2048.0, 1.1, 100.0), 0),
        ((2048.0, None, 100.0), 1), (None, 0),
    ],
)  # fmt: skip
def test_constraint_must_save_more_than_a_tenth_without_being_faster(figures, count):
    assert len(list(costly_constraint(constrained({(0,): figures})))) == count


LITTLE = {(ROWS, WHOLE): (4095.0, 1.0, 100.0)}
UNCHANGED = {(0,): (4095.0, 1.0, 100.0)}
WHY = WhyCollectiveRecord(
    kind="all-gather", axes=("data",), executions=1.0, payload_bytes=8192, reason="constraint", sentence="",
    operands=(WhyOperandRecord(name="y", value="%y", shape=(64, 64), dtype="f32", spec=ROWS),),
)  # fmt: skip


def explained(without, table=None, **reason):
    why = WhyRecord(name="", target="", collectives=(WHY.replace(**reason),))
    return constrained(without, table=table, why=why)


def test_constraint_that_the_next_value_undoes_is_explained_by_the_compiled_collectives():
    expected = COSTLY.replace(
        evidence=("one device sends 24 KiB of 24 KiB for this constraint", "%c: jit(f)/keep"), weight=1.0,
        size_bytes=24576.0, gain=COSTLY.gain.replace(before=24576.0, after=0.0),
    )  # fmt: skip
    assert list(costly_constraint(explained(UNCHANGED, LITTLE))) == [expected]
    assert list(costly_constraint(explained({(0,): (8192.0, 1.0, 100.0)}))) == [expected]
    other = WHY.operands[0].replace(value="%other")
    for given in (
        explained({(0,): (8192.0, 2.0, 100.0)}), explained(UNCHANGED, LITTLE, reason="sum"),
        explained(UNCHANGED, LITTLE, operands=(other,)),
    ):  # fmt: skip
        assert list(costly_constraint(given)) == []
    quiet = with_module(explained(UNCHANGED, LITTLE), collectives=())
    assert list(costly_constraint(quiet)) == []
    for sent, count in ((4096.0, 1), (4095.0, 0)):
        base = changed(explained(UNCHANGED, LITTLE), wire_bytes=sent)
        assert len(list(costly_constraint(base))) == count


def test_constraint_needs_a_plan_and_a_propagation():
    assert list(costly_constraint(compiled())) == []
    assert list(costly_constraint(program(Planner(SHAPES, {}), ROWS, WHOLE))) == []
    other = program(Planner(SHAPES, {}), ROWS, WHOLE, propagation=[KEEP.replace(operation="add")])
    assert list(costly_constraint(other)) == []
