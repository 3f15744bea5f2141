"""The cost of a choice, derived by hand from given figures of its plan and of its compiled program."""

import itertools
import threading
import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import workbench as wb
from tests.advice.hand_written import ADD, DATA, GATHER
from workbench.advice._search import _mesh as meshes, _program as module
from workbench.advice._search._groups import ArgumentLeaf, SpecGroup, group_leaves
from workbench.advice._search._program import Priced, SearchProgram, target_of
from workbench.advice._search._results import _Expression, read_jit
from workbench.advice._search._stand_in import as_accelerator, promoted_sums
from workbench.cost import collective_seconds, estimate_cost, known_chip, predict_operation
from workbench.errors import InspectionError, MeshError
from workbench.inspection import inspect_mesh, inspect_module
from workbench.records.advice import JitRecord, SearchRecord, ShardingChoiceRecord
from workbench.records.compiled import CostRecord, MemoryRecord, StageCostRecord

MESH = AbstractMesh((4, 2), ("data", "model"))
W, X = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32")
WHOLE, ROWS = ((), ()), (("data",), ())


def step(p, x):
    return {"w": p["w"] - 0.1 * (x.T @ (x @ p["w"]))}


def call_of(fn, *args):
    return wb.trace(fn)(*args)._call


class Trials:
    """Plans with given figures, and notes the attributes that it received."""

    def __init__(self, **figures):
        given = {"flops": 2e9, "traffic_bytes": 4e6, "peak_bytes": 900, "argument_bytes": 600, "collectives": []}
        self.trial = types.SimpleNamespace(inputs=[ROWS, WHOLE], **(given | figures))
        self.planned, self.written = [], []

    def plan(self, inputs, outputs, without=()):
        self.planned.append((inputs, outputs, without))
        return self.trial

    def text(self, inputs, outputs):
        self.written.append((inputs, outputs))
        return "the text"


def program(fn=step, args=None, trials=None, **options):
    given = SearchProgram(call_of(fn, *(args or ({"w": W}, X))), MESH, **({"chip": "v5e", "compiler": "cpu"} | options))
    given._trials = trials or Trials()
    return given


def collective(kind, payload, executions=1.0, axes=("data",), size=4):
    return types.SimpleNamespace(kind=kind, payload_bytes=payload, group_size=size, executions=executions, axes=axes)


V5E = known_chip("v5e")


def test_planned_cost_adds_collectives_to_the_longer_of_compute_and_memory():
    collectives = [
        collective("all-gather", 1000.0, 3.0), collective("all-reduce", 800.0), collective("reduce-scatter", 400.0),
        collective("all-gather", 100.0, axes=("data", "model"), size=8),
    ]  # fmt: skip
    planned = program(trials=Trials(collectives=collectives))
    priced = planned.plan((WHOLE, None))
    compute = predict_operation(2e9, 0.0, "float32", V5E, kind="matrix product").seconds
    memory = predict_operation(0.0, 4e6, "float32", V5E).seconds
    once = [collective_seconds(c.kind, c.payload_bytes, c.group_size, V5E) for c in collectives]
    assert priced == Priced(
        specs=(WHOLE, ROWS), seconds=max(compute, memory) + 3 * once[0] + once[1] + once[2] + once[3], peak_bytes=900,
        argument_bytes=600, fits=True, flops=2e9, traffic_seconds=memory, how="planned",
        sent={"data": 3 * 3 * 1000.0 + 1.5 * 800.0 + 0.75 * 400.0, "data+model": 700.0},
    )  # fmt: skip
    assert planned._trials.planned == [({1: WHOLE, 0: None}, {}, ())]
    assert planned.plan((WHOLE, None)) is priced
    assert planned.planned_count == 1
    assert planned.plan((WHOLE, None), without=(2,)) is not priced
    assert planned._trials.planned[1][2] == (2,)
    assert planned.planned_count == 2


def test_planned_time_is_unknown_if_that_of_a_collective_is(monkeypatch):
    monkeypatch.setattr(module, "collective_seconds", lambda *_: None)
    collectives = [collective("all-gather", 1000.0), collective("all-gather", 1000.0)]
    assert program(trials=Trials(collectives=collectives)).plan((WHOLE, WHOLE)).seconds is None


@pytest.mark.parametrize(("peak", "is_fitting"), [(1000, True), (1001, False)])
def test_program_fits_up_to_its_memory(peak, is_fitting):
    assert program(trials=Trials(peak_bytes=peak), memory_bytes=1000).plan((WHOLE, WHOLE)).fits is is_fitting


def test_memory_is_that_of_the_chip_or_of_the_target():
    assert program().memory_bytes == V5E.hbm_bytes
    target = target_of("v5e", 8)
    if target is not None:
        assert program(target=target).memory_bytes == target.available_bytes
    assert program(chip="tpu7x").memory_bytes == known_chip("tpu7x").hbm_bytes // 2  # two devices per chip


def test_open_group_takes_its_most_frequent_spec():
    group = SpecGroup("w", (8, 8), "float32", [0, 1, 2], 1)
    assert module._common([WHOLE, ROWS, ROWS], group, {"data": 4}) == ROWS
    assert module._common([ROWS, ROWS], SpecGroup("w", (6, 8), "float32", [0], 1), {"data": 4}) == WHOLE


def test_results_that_replace_arguments_are_requested():
    given = program()
    assert [group.pattern for group in given.groups] == ["x", "p['w']"]
    assert given._attributes((WHOLE, ROWS)) == ({1: WHOLE, 0: ROWS}, {0: ROWS})
    assert given._attributes((WHOLE, None)) == ({1: WHOLE, 0: None}, {})
    assert given.requested_results((WHOLE, ROWS)) == {}  # propagation chooses the same
    plans = iter([1, 2])
    given._trials.plan = lambda *_: next(plans)
    assert given.requested_results((WHOLE, ROWS)) == {0: ROWS}
    keys = program(lambda p, key: p, ({"w": W}, jax.random.key(0)))
    assert keys._attributes((WHOLE, ())) == ({0: WHOLE}, {0: WHOLE})


def test_given_specs_of_the_arguments():
    assert program().given is None
    sharded = jax.ShapeDtypeStruct((128, 64), "float32", sharding=NamedSharding(MESH, P("data")))
    given = program(args=({"w": W}, sharded))
    assert given.given == (ROWS, WHOLE)
    odd = jax.ShapeDtypeStruct((126, 64), "float32", sharding=NamedSharding(AbstractMesh((2,), ("data",)), P("data")))
    assert program(args=({"w": W}, odd)).given is None
    assert module._spec_of(sharded) == ROWS
    both = jax.ShapeDtypeStruct((8, 8, 8), "float32", sharding=NamedSharding(MESH, P(None, ("data", "model"))))
    assert module._spec_of(both) == ((), ("data", "model"), ())
    assert module._spec_of(W) is None
    assert [module._item_bytes(each) for each in (W, jax.random.key(0), jnp.zeros(1, "int8"))] == [4, 8, 1]


SECOND = DATA.replace("channel_id=1", "channel_id=2")
MODULE = f"""HloModule step, num_partitions=8
{ADD}
ENTRY %main (w: f32[16,128]) -> f32[64,128] {{
  %w = f32[16,128] parameter(0)
  %twice = f32[16,128] add(%w, %w)
  %total = f32[16,128] all-reduce(%twice), {DATA}, to_apply=%add
  ROOT %gather = f32[64,128] all-gather(%total), {SECOND}, dimensions={{0}}
}}
"""


def compiled_module(given):
    return inspect_module(MODULE, mesh=inspect_mesh(given.mesh), platform="cpu")


def rehearsed(monkeypatch, given, **memory):
    asked = []

    def compile_for_cpu(text, devices, **options):
        asked.append((text, devices, options))
        return MODULE, MemoryRecord(**memory)

    monkeypatch.setattr(module, "compile_for_cpu", compile_for_cpu)
    return given.rehearse((WHOLE, ROWS), cancel="stop", timeout_seconds=5.0), asked


def test_cost_of_a_choice_compiled_for_cpu_devices(monkeypatch):
    given = program(memory_bytes=1000, trials=Trials(traffic_bytes=4e9))
    priced, asked = rehearsed(monkeypatch, given, peak_bytes=1000, argument_bytes=7)
    cost = estimate_cost(compiled_module(given), None, chip=V5E, mesh=inspect_mesh(given.mesh), dtype="float32")
    assert priced == Priced(
        specs=(WHOLE, ROWS), seconds=cost.seconds, peak_bytes=1000, argument_bytes=7.0, fits=True, how="compiled",
        sent={"data": 1.5 * 8192 + 3 * 8192},
    )  # fmt: skip
    assert asked == [("the text", 8, {"progress": None, "cancel": "stop", "timeout_seconds": 5.0})]
    assert given.compiled_count == 1
    assert given._trials.written == [({1: WHOLE, 0: ROWS}, {0: ROWS})]
    large, _ = rehearsed(monkeypatch, program(memory_bytes=999), peak_bytes=1000)
    assert (large.fits, large.argument_bytes) == (False, None)
    unknown, _ = rehearsed(monkeypatch, program())
    assert (unknown.fits, unknown.peak_bytes) == (False, None)


def test_rehearsal_takes_the_smaller_peak(monkeypatch):
    given = program(memory_bytes=1000)
    given.target = types.SimpleNamespace(name="v5e:2x4", platform="tpu")
    priced, _ = rehearsed(monkeypatch, given, peak_bytes=1000)
    assert (priced.peak_bytes, priced.how, given.compiled_count) == (900, "rehearsed", 0)
    priced, _ = rehearsed(monkeypatch, given, peak_bytes=800)
    assert priced.peak_bytes == 800
    given._planned = {key: Priced(**{**each.__dict__, "peak_bytes": None}) for key, each in given._planned.items()}
    priced, _ = rehearsed(monkeypatch, given, peak_bytes=1000)
    assert priced.peak_bytes == 1000


def test_memory_traffic_of_a_rehearsal_is_limited_by_the_plan(monkeypatch):
    given = program(trials=Trials(traffic_bytes=0.0))
    given._planned[(WHOLE, ROWS), ()] = Priced((WHOLE, ROWS), 1.0, 1.0, 1.0, traffic_seconds=0.0)
    priced, _ = rehearsed(monkeypatch, given, peak_bytes=1)
    assert priced.counts_plan
    cost = estimate_cost(compiled_module(given), None, chip=V5E, mesh=inspect_mesh(given.mesh), dtype="float32")
    assert priced.seconds < cost.seconds


def stage(memory, compute=1.0, sent=(), **fields):
    given = {"collective_seconds": 0.5, "operation_seconds": 9.0} | fields
    return StageCostRecord(
        stage="0", kind="program", name="f", flops=0.0, accessed_bytes=0.0, collective_bytes=dict(sent),
        compute_seconds=compute, memory_seconds=memory, **given,
    )  # fmt: skip


def test_seconds_with_limited_traffic():
    cost = CostRecord(stages=(stage(4.0), stage(2.0)), seconds=19.0)
    assert module._seconds(cost, None) == module._seconds(cost, 6.0) == 19.0
    # half of the traffic takes 2 s and 1 s, at least as long as 1 s of compute, and collectives take 0.5 s each
    assert module._seconds(cost, 3.0) == pytest.approx(2.0 + 0.5 + 1.0 + 0.5)
    assert module._seconds(cost, 0.0) == pytest.approx(1.0 + 0.5 + 1.0 + 0.5)
    assert module._seconds(CostRecord(stages=(stage(4.0, None), stage(2.0)), seconds=None), 3.0) is None
    assert module._seconds(CostRecord(stages=(stage(None), stage(4.0)), seconds=None), 2.0) == 1.0 + 0.5 + 2.0 + 0.5


def test_bytes_sent_are_added_over_stages():
    first, second = stage(1.0, sent={"data": 3.0}), stage(1.0, sent={"data": 4.0, "model": 5.0})
    assert module._sent(CostRecord(stages=(first, second))) == {"data": 7.0, "model": 5.0}


def for_target(monkeypatch, hlo=MODULE, error="", **memory):
    given = program(memory_bytes=1000)
    given.target = types.SimpleNamespace(name="v5e:2x4", platform="tpu")
    compilation = types.SimpleNamespace(hlo=hlo, memory=MemoryRecord(**memory), error=error)
    monkeypatch.setattr(module, "compile_for_target", lambda *_, **__: compilation)
    return given.compile((WHOLE, ROWS)), given


def test_cost_of_a_choice_compiled_for_the_chip(monkeypatch):
    priced, given = for_target(monkeypatch, peak_bytes=1000, argument_bytes=5)
    on_tpu = inspect_module(MODULE, mesh=inspect_mesh(given.mesh), platform="tpu")
    cost = estimate_cost(on_tpu, None, chip=V5E, mesh=inspect_mesh(given.mesh), dtype="float32")
    assert priced == Priced((WHOLE, ROWS), cost.seconds, 1000, 5.0, {"data": 4.5 * 8192}, True, "compiled")
    assert given.compiled_count == 1
    assert given.where == "v5e:2x4"
    assert for_target(monkeypatch, peak_bytes=1001)[0].fits is False
    assert for_target(monkeypatch)[0].fits is False


def test_choice_that_the_compiler_of_the_chip_rejects(monkeypatch):
    error = "\n  " + "x" * 400 + "\nmore"
    for hlo, memory in (("", {"peak_bytes": 5}), (MODULE, {"peak_bytes": 5, "fits": False})):
        priced, _ = for_target(monkeypatch, hlo, error, **memory)
        assert priced == Priced((WHOLE, ROWS), None, 5, None, {}, False, "compiled", "x" * 300)
    assert for_target(monkeypatch, "")[0].note == ""


def test_program_without_a_target_is_compiled_for_cpu_devices(monkeypatch):
    given, asked = program(), []
    monkeypatch.setattr(given, "rehearse", lambda specs, **options: asked.append((specs, options)))
    given.compile((WHOLE, ROWS), timeout_seconds=3.0)
    assert asked == [((WHOLE, ROWS), {"progress": None, "cancel": None, "timeout_seconds": 3.0})]
    assert given.where == "cpu x 8"


def test_loop_of_unknown_length_counts_once():
    given = program()
    plain = compiled_module(given)
    assert given._counted(plain) is plain
    assert not given.counts_once
    first, *rest = plain.instructions
    known = given._counted(plain.replace(instructions=(first.replace(executions=None), *rest)))
    assert known.instructions[0].executions == 1.0
    assert [i.executions for i in known.instructions[1:]] == [i.executions for i in rest]
    assert given.counts_once
    sums, gathers = plain.collectives
    known = given._counted(plain.replace(collectives=(sums.replace(executions=None), gathers.replace(executions=3.0))))
    assert [c.executions for c in known.collectives] == [1.0, 3.0]


def test_chunk_size_of_a_variant_keeps_the_locks():
    given = program()
    given.groups[0].locked = ROWS
    variant = given.with_chunk_size(4)
    assert [group.locked for group in variant.groups] == [ROWS, None]
    assert variant.memory_bytes == given.memory_bytes
    assert given.chunk_rule(4) == 4
    assert given.chunk_rule(None) is None
    rule = given.chunk_rule("auto")
    assert rule.keywords == {"platform": "tpu", "memory_bytes": given.memory_bytes}
    assert program(chip="H100").chunk_rule("auto").keywords["platform"] == "cuda"


def test_products_decide_the_dtype():
    assert program().dtype == "float32"
    half = program(lambda p, x: x.astype("bfloat16") @ p["w"].astype("bfloat16"))
    assert half.dtype == "bfloat16"


def test_errors_of_a_search_explain_the_program():
    call = types.SimpleNamespace(name="f", mesh=None)
    error = ValueError("one line\nmore")
    why = module._not_lowered(call, error)
    assert why == "`search` was given `f`, which JAX does not lower for this mesh: one line"
    for words in ("this op would require devices", "x is different from the lowering platform"):
        assert "which calls back to the host" in module._not_lowered(call, ValueError(words))
    call.mesh = AbstractMesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Explicit,))
    assert "which was traced on explicit axes" in module._not_lowered(call, error)
    assert module._first_line("") == module._first_line("  \n ") == ""
    with pytest.raises(InspectionError, match=r"chip='cpu', whose peak FLOP/s are unknown\. .* use one of .*v5e"):
        program(chip="cpu")


def test_machine_of_a_chip_is_the_most_compact_one_of_that_size(monkeypatch):
    families = [
        types.SimpleNamespace(chip="v5p", installed=True, topologies=("2x2x1",)),
        types.SimpleNamespace(chip="v5e", installed=True, topologies=("1x1", "2x2", "2x4", "4x4", "1x8", "8x1")),
        types.SimpleNamespace(chip="v6e", installed=False, topologies=("2x4",)),
    ]
    monkeypatch.setattr(module, "list_targets", lambda: families)

    def machine(name):
        topology = name.partition(":")[2]
        first, second = map(int, topology.split("x"))
        return types.SimpleNamespace(topology=topology, devices=first * second)

    monkeypatch.setattr(module, "parse_target", machine)
    assert target_of("v5e", 8).topology == "2x4"
    assert target_of("v5e", 3) is None
    assert target_of("v6e", 8) is None
    assert module._is_installed(types.SimpleNamespace(chip="v5e"))
    assert not module._is_installed(types.SimpleNamespace(chip="v6e"))
    assert not module._is_installed(types.SimpleNamespace(chip="other"))


# Groups of arguments.


def grouped(*names, shapes=None, outputs=(), dtype="float32"):
    leaves = [ArgumentLeaf(name, (shapes or {}).get(name, (8, 4)), dtype, 4) for name in names]
    return group_leaves(leaves, [(path, (shapes or {}).get(path, (8, 4)), dtype) for path in outputs])


def lines(groups):
    return [(group.pattern, group.leaves, group.outputs) for group in groups]


def test_layers_and_optimizer_states_join_their_parameter():
    names = ["params['l'][0]['w']", "params['l'][1]['w']", "state.mu['l'][0]['w']", "state.mu['l'][1]['w']", "x"]
    outputs = ["result['l'][1]['w']", "result.mu['l'][0]['w']", "result"]
    [group, batch] = grouped(*names, outputs=outputs)
    assert (group.pattern, group.leaves, group.size_bytes) == ("params['l'][*]['w']", [0, 1, 2, 3], 4 * 8 * 4 * 4)
    assert group.outputs == [0, 1]
    assert (batch.pattern, batch.leaves, batch.outputs) == ("x", [4], [])
    assert (group.argument, batch.argument) == ("params", "x")


def test_parts_of_a_training_state_join_its_parameters():
    names = ["state.params['w']", "state.opt_state[0].mu['w']", "state.step"]
    groups = grouped(*names, outputs=["result.params['w']"])
    assert lines(groups) == [("state.params['w']", [0, 1], [0]), ("state.step", [2], [])]
    apart = grouped("a['w']", "b['w']")
    assert len(apart) == 2  # both have the whole path behind their arguments
    assert len(grouped("p['w']", "s.mu['w']", shapes={"s.mu['w']": (2,)})) == 2


def test_result_replaces_an_argument_of_its_dtype():
    leaves = [ArgumentLeaf("p['w']", (8,), "float32", 4)]
    for dtype, outputs in (("float32", [0]), ("bfloat16", [])):
        [group] = group_leaves(leaves, [("result['w']", (8,), dtype)])
        assert group.outputs == outputs
    assert group_leaves(leaves, [("result['w']", (4,), "float32")])[0].outputs == []


def test_layers_of_different_widths_have_patterns_of_their_own():
    names = [f"p['l_{at}']['w']" for at in range(4)]
    shapes = dict(zip(names, [(8, 4), (8, 4), (4, 4), (4, 8)], strict=True))
    groups = grouped(*names, shapes=shapes)
    by_leaves = {tuple(group.leaves): group for group in groups}
    assert by_leaves[2,].patterns == (names[2],)
    assert by_leaves[3,].patterns == (names[3],)
    assert by_leaves[0, 1].patterns == ("p['l_*']['w']",)
    assert all(group.is_exception for group in groups)
    grid = [f"p['a_{a}']['b_{b}']" for a, b in itertools.product(range(2), repeat=2)]
    first, second = [(8, 4)] * 3, [(2,)]
    groups = grouped(*grid, shapes=dict(zip(grid, first + second, strict=True)))
    assert groups[0].patterns == tuple(grid[:3])  # no pattern matches exactly these three
    assert groups[1].patterns == (grid[3],)
    column = grouped(*grid, shapes=dict(zip(grid, [(8, 4), (2,), (8, 4), (2,)], strict=True)))
    assert [group.patterns for group in column] == [("p['a_*']['b_0']",), ("p['a_*']['b_1']",)]
    assert not any(group.is_exception for group in grouped("a", "b"))


def test_groups_are_sorted_by_their_bytes():
    groups = grouped("small", "large", shapes={"small": (2,), "large": (9,)})
    assert [(group.pattern, group.size_bytes) for group in groups] == [("large", 36), ("small", 8)]
    record = groups[0].record([ArgumentLeaf(name, (1,), "float32", 4) for name in ("small", "large")])
    assert (record.pattern, record.leaves, record.size_bytes, record.locked) == ("large", ("large",), 36, False)
    groups[0].locked = ((),)
    assert groups[0].record([ArgumentLeaf("a", (1,), "float32", 4)] * 2).locked


# Results as an expression of arguments.


def expression(tree, leaves, *names):
    made = _Expression(leaves, names)
    return made.of(tree, itertools.count()), made.arguments, made.positions


def test_results_that_replace_arguments_as_an_expression():
    leaves = ["p['a']", "p['b']", "s", "q[0]"]
    both = {"a": 1, "b": 2}
    assert expression(both, leaves, ["p['a']"], ["p['b']"]) == ("%s", ["p"], [0, 1])
    assert expression((both, 3), leaves, ["p['a']"], ["p['b']"], []) == ("(%s, None)", ["p"], [0, 1])
    assert expression((both,), leaves, ["p['a']"], ["p['b']"]) == ("(%s,)", ["p"], [0, 1])
    assert expression([3, both], leaves, [], ["p['a']"], ["p['b']"]) == ("[None, %s]", ["p"], [1, 2])
    partly = expression({"a": 1, "c": 2}, leaves, ["p['a']"], [])
    assert partly == ("{'a': %s, 'c': None}", ["p['a']"], [0])
    assert expression({"50%": {"x": 1}, "z": 2}, leaves, [], ["s"]) == ("{'50%%': None, 'z': %s}", ["s"], [1])
    assert expression(3, leaves, ["s"]) == ("%s", ["s"], [0])
    assert expression(3, leaves, []) == ("None", [], [])


def jit_of(fn, *args, names, results=None):
    call = call_of(fn, *args)
    return read_jit(call, jax.eval_shape(fn, *args) if results is None else results, names)


def test_options_of_the_jit_are_kept():
    plain = jit_of(step, {"w": W}, X, names=[["p['w']"]])
    assert plain == (JitRecord(wrapper="jax.jit", results="%s", updated=("p",), options=""), frozenset({0}))
    donated = jax.jit(step, donate_argnums=(0,))
    record, positions = jit_of(donated, {"w": W}, X, names=[["p['w']"]])
    assert (record.options, positions) == ("donate_argnums=(0,)", {0})
    static = jax.jit(lambda w, x, n: w * n, static_argnums=2, static_argnames=("n",))
    call = call_of(static, W, X, 2)
    record, positions = read_jit(call, W, [[]])
    assert record.options.startswith("static_argnums=(2,)")
    assert (record.results, positions) == ("None", frozenset())


def wrapped(library, names=("model.w", "x")):
    """A call of a function that a library has wrapped, whose results after the first part are the user's."""
    fn = type("Wrapper", (), {"__module__": library})()
    return types.SimpleNamespace(
        fn=fn, args=(), names=names, donations={"donate_argnums": (0,)}, result_name={"[0][0]": "model.w"}.get
    )


def test_results_of_wrapped_functions_are_a_part_of_the_results():
    record, positions = read_jit(wrapped("equinox._jit"), ([1], (2, 3), [4]), [[], [], ["x"], []])
    assert record == JitRecord(wrapper="eqx.filter_jit", results="(None, %s)", updated=("x",), options="")
    assert positions == {2}
    record, positions = read_jit(wrapped("flax.nnx.transforms"), ([{"w": 1, "v": 2}, {}], 3, 4), [])
    assert record == JitRecord(
        wrapper="nnx.jit", results="(%s, None)", updated=("model",), options="donate_argnums=(0,)"
    )
    assert positions == {0, 1}
    record, positions = read_jit(wrapped("other"), (1, 2, 3), [["x"], [], []])
    assert (record.wrapper, record.results, positions) == ("jax.jit", "(%s, None, None)", {0})


# Modules of the CPU compiler.

SLICED = MODULE.replace(
    "  ROOT %gather = f32[64,128] all-gather(%total), "
    + DATA.replace("channel_id=1", "channel_id=2")
    + ", dimensions={0}",
    "  %view = f32[16,128] bitcast(%total)\n  %at = s32[] constant(0)\n"
    "  ROOT %part = f32[4,128] dynamic-slice(%view, %at, %at), dynamic_slice_sizes={4,128}",
)


def stood_in(text, **fields):
    given = inspect_module(text, mesh=inspect_mesh(MESH), platform="cpu")
    if fields:
        given = given.replace(collectives=(given.collectives[0].replace(**fields), *given.collectives[1:]))
    return as_accelerator(given).collectives[0]


def test_sums_that_are_sliced_are_reduce_scatters():
    before = inspect_module(SLICED, mesh=inspect_mesh(MESH), platform="cpu").collectives[0]
    assert stood_in(SLICED) == before.replace(kind="reduce-scatter", wire_bytes=1.5 * 8192 / 2)
    assert stood_in(SLICED, wire_bytes=None) == before.replace(kind="reduce-scatter", wire_bytes=None)
    assert stood_in(SLICED, kind="all-gather").kind == "all-gather"
    also = SLICED.replace("  %at =", "  %whole = f32[16,128] negate(%total)\n  %at =")
    assert stood_in(also).kind == "all-reduce"
    assert stood_in(MODULE).kind == "all-reduce"
    fused = SLICED.replace("%part", "%dynamic-slice_fusion").replace("dynamic-slice(", "dynamic-slice(")
    assert stood_in(fused).kind == "reduce-scatter"


def test_sums_of_16_bit_numbers_are_halved():
    text = MODULE.replace("%add", "%add.1_promoted")
    before = inspect_module(text, mesh=inspect_mesh(MESH), platform="cpu")
    assert promoted_sums(before) == {"total"}
    after = stood_in(text)
    assert (after.payload_bytes, after.wire_bytes, after.kind) == (4096, 1.5 * 4096, "all-reduce")
    assert stood_in(text, wire_bytes=None).wire_bytes is None
    assert promoted_sums(inspect_module(GATHERED, mesh=inspect_mesh(MESH), platform="cpu")) == set()


GATHERED = "HloModule step, num_partitions=8\n" + GATHER


# Machines.


def machine(name, devices, available=100):
    return types.SimpleNamespace(
        name=name, chip=name.partition(":")[0], devices=devices, chips=devices, available_bytes=available
    )


def best_of(name, seconds, peak, *, is_fitting, how="planned"):
    return ShardingChoiceRecord(
        name=name, mesh={"data": 1}, specs={"x": (("data",),)}, seconds=seconds, peak_bytes=peak, argument_bytes=1,
        fits=is_fitting, how=how, chunk_size=2, note="n",
    )  # fmt: skip


class OnMachine:
    """Searches whose best choice fits on machines of a number of devices; the options of all searches."""

    made = None

    def __init__(self, program, **options):
        self.program, self.options = program, options
        OnMachine.made.append(self)

    def run(self):
        return None

    def record(self):
        machine = self.program.machine
        choice = best_of("c", 1.0, 150, is_fitting=machine.devices >= OnMachine.fitting)
        return SearchRecord(
            name="f", chip=machine.chip, target="cpu", choices=(choice, choice), groups=(), planned_count=2,
            compiled_count=1, seconds_spent=1.0, ended="complete", arguments=("x",), notes=("first", "last"),
        )  # fmt: skip


def smallest(monkeypatch, machines, *, total=50, fitting=2, compiled=True, failing=(), cancel=None, target="t"):
    asked, OnMachine.made, OnMachine.fitting = [], [], fitting

    def made(call, mesh, chip, target):
        asked.append((target.name, dict(mesh.shape)))
        if target.name in failing:
            raise InspectionError("x" * 200 + "\nmore")
        return types.SimpleNamespace(groups=[types.SimpleNamespace(size_bytes=total)], machine=target, target=target_)

    target_ = target
    monkeypatch.setattr(meshes, "_slices", lambda name: machines)
    monkeypatch.setattr(meshes, "SearchProgram", made)
    monkeypatch.setattr(meshes, "Search", OnMachine)
    monkeypatch.setattr(meshes, "with_chunk_sizes", lambda searches, **_: list(searches))
    monkeypatch.setattr(meshes, "ranked", lambda searches, _: [(searches[0], None)])
    compilations = []
    monkeypatch.setattr(meshes, "compile_best", lambda searches, **options: compilations.append(options["count"]))
    result = meshes._smallest("call", "v5e", ("data", "model"), 8.0, compiled, None, cancel)
    return (*result, asked, compilations)


SIZES = [machine("v5e:1x1", 1), machine("v5e:2x1", 2), machine("v5e:2x2", 4)]


def test_smallest_slice_that_fits(monkeypatch):
    row, record, asked, compilations = smallest(monkeypatch, SIZES)
    assert asked == [("v5e:1x1", {"data": 1, "model": 1}), ("v5e:2x1", {"data": 2, "model": 1})]
    assert compilations == [1, 1]
    assert (row.chip, row.target, row.fits, row.chips, row.devices) == ("v5e", "v5e:2x1", True, 2, 2)
    assert (row.peak_bytes, row.available_bytes, row.seconds, row.chunk_size) == (150, 100, 1.0, 2)
    assert row.tried == ("v5e:1x1: a device needs 150 B, but has 100 B (planned)", "v5e:2x1")
    assert (row.specs, row.mesh, row.how, row.note) == ({"x": (("data",),)}, {"data": 1}, "planned", "n")
    assert (record.target, [each.name for each in record.choices]) == ("v5e:2x1", ["v5e:2x1"])
    assert [search.options["seconds"] for search in OnMachine.made] == [2.0, 2.0]
    assert not OnMachine.made[0].options["compiled"]
    assert smallest(monkeypatch, SIZES, compiled=False)[3] == []
    assert smallest(monkeypatch, SIZES, target=None)[3] == []


def test_slices_smaller_than_the_arguments_are_not_planned(monkeypatch):
    row, _, asked, _ = smallest(monkeypatch, SIZES, total=201)
    assert [name for name, _ in asked] == ["v5e:1x1", "v5e:2x2"]
    assert row.tried == (
        "v5e:1x1: the arguments alone need 201 B, but all its devices together have 100 B",
        "v5e:2x1: the arguments alone need 201 B, but all its devices together have 200 B",
        "v5e:2x2",
    )
    row, _, asked, _ = smallest(monkeypatch, SIZES, total=200)
    assert row.target == "v5e:2x1"
    row, _, asked, _ = smallest(monkeypatch, SIZES, total=1000, fitting=9)  # the largest is always planned
    assert (row.target, row.fits) == ("v5e:2x2", False)
    assert asked[-1][0] == "v5e:2x2"


def test_slice_that_cannot_be_planned(monkeypatch):
    row, record, _, _ = smallest(monkeypatch, SIZES, failing=("v5e:1x1", "v5e:2x1"))
    assert row.tried[0] == "v5e:1x1: " + "x" * 160
    assert row.target == "v5e:2x2"
    row, record, _, _ = smallest(monkeypatch, SIZES, failing=("v5e:1x1", "v5e:2x1", "v5e:2x2"))
    assert (record, row.target, row.fits, row.peak_bytes, row.note) == (
        None, "v5e:2x2", False, None, "could not be planned",
    )  # fmt: skip
    assert (row.chips, row.devices, len(row.tried)) == (4, 4, 3)


def test_four_slices_are_compiled(monkeypatch):
    many = [machine(f"v5e:{at}x1", at) for at in range(1, 9)]
    row, _, asked, compilations = smallest(monkeypatch, many, fitting=99)
    assert (len(asked), len(compilations), row.target) == (4, 4, "v5e:4x1")
    cancel = threading.Event()
    cancel.set()
    row, _, asked, _ = smallest(monkeypatch, many, fitting=99, cancel=cancel)
    assert (len(asked), row.target) == (1, "v5e:1x1")


def test_slices_of_several_families(monkeypatch):
    made = {}

    def given(call, name, names, seconds, compiled, progress, cancel):
        made[name] = (names, seconds)
        record = SearchRecord(
            name="f", chip=name, target=f"{name}:1x1", groups=(), planned_count=2, compiled_count=1,
            choices=(best_of(name, {"a": 3.0, "b": 2.0, "c": 1.0}[name], 1, is_fitting=name != "c"),),
            seconds_spent=1.0, ended="complete", arguments=(name,), notes=("n", f"last of {name}"),
        )  # fmt: skip
        return f"row {name}", None if name == "none" else record

    monkeypatch.setattr(meshes, "_smallest", given)
    monkeypatch.setattr(meshes, "_first_axes", lambda call: ("clients",))
    phases = []
    call = types.SimpleNamespace(name="f")
    record = meshes.search_slices(
        call, targets=["a", "b", "c"], seconds=6.0, progress=lambda phase, _: phases.append(phase)
    )
    assert made == dict.fromkeys("abc", (("clients",), 2.0))
    assert record.slices == ("row a", "row b", "row c")
    assert [choice.name for choice in record.choices] == ["b", "a", "c"]
    assert (record.chip, record.target, record.arguments) == ("b", "b:1x1", ("b",))
    assert (record.planned_count, record.compiled_count, record.ended) == (6, 3, "complete")
    assert record.notes == tuple(f"{name}:1x1: last of {name}" for name in "bac")
    assert phases == ["1 of 3 families", "2 of 3 families", "3 of 3 families"]
    cancel = threading.Event()
    cancel.set()
    stopped = meshes.search_slices(call, targets=["a"], cancel=cancel)
    assert (stopped.slices, stopped.choices, stopped.ended, stopped.chip) == ((), (), "stopped", "")


class OnMesh(OnMachine):
    def run(self):
        if self.program.sizes == (1, 4):
            raise InspectionError("p" * 400 + "\nmore")


def searched(monkeypatch, *, holds_clients=False, compiled=True, cancel=None, step=1.0, seconds=20.0, failing=False):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(meshes.time, "monotonic", lambda: clock.now)
    OnMachine.made, joined, phases, chunked = [], [], [], []

    def made(call, mesh, chip, **options):
        clock.now += step
        if failing:
            raise InspectionError("refused")
        return types.SimpleNamespace(sizes=tuple(mesh.shape.values()))

    monkeypatch.setattr(meshes, "SearchProgram", made)
    monkeypatch.setattr(meshes, "Search", OnMesh)
    monkeypatch.setattr(meshes, "lock_patterns", lambda program, lock: None)

    def with_chunks(searches, **options):
        chunked.append(options["until"])
        return list(searches)

    monkeypatch.setattr(meshes, "with_chunk_sizes", with_chunks)
    monkeypatch.setattr(meshes, "compile_best", lambda searches, **options: chunked.append(options["until"]))
    monkeypatch.setattr(meshes, "joined_record", lambda *given, **options: joined.append((given, options)))
    call = types.SimpleNamespace(name="f", holds_clients=holds_clients)
    meshes.search_meshes(
        call, target="v5e:2x2", axes=("a", "b"), seconds=seconds, compiled=compiled, cancel=cancel,
        progress=lambda *phase: phases.append(phase),
    )  # fmt: skip
    return [search.options["seconds"] for search in OnMachine.made], joined[0], phases, chunked


def test_meshes_share_half_of_the_time(monkeypatch):
    budgets, (given, options), phases, chunked = searched(monkeypatch)
    assert phases == [("mesh 4 x 1, 1 of 3", 0.0), ("mesh 2 x 2, 2 of 3", 1.0), ("mesh 1 x 4, 3 of 3", 2.0)]
    assert budgets == [10.0 / 3, 9.0 / 2, 8.0]
    assert chunked == [12.0, 20.0]
    assert (given[0], given[1], len(given[2]), given[3]) == ("f", "v5e:2x2", 2, 3.0)
    assert options == {"ended": "time", "notes": ["1 x 4: " + "p" * 200], "by_mesh": True, "full_count": 2, "shown": 4}
    budgets, _, _, chunked = searched(monkeypatch, compiled=False)
    assert (budgets[0], chunked) == (20.0 / 3, [20.0])
    budgets, _, _, _ = searched(monkeypatch, holds_clients=True)
    assert budgets[0] == pytest.approx(7.0 / 3)


def test_meshes_without_time_are_noted(monkeypatch):
    budgets, (_, options), _, _ = searched(monkeypatch, step=10.0)
    assert len(budgets) == 1  # one mesh is always searched
    assert options["notes"] == ["not tried for lack of time: 2 x 2, 1 x 4"]
    cancel = threading.Event()
    cancel.set()
    budgets, (_, options), _, _ = searched(monkeypatch, cancel=cancel)
    assert (len(budgets), options["ended"]) == (1, "stopped")
    with pytest.raises(MeshError, match="could not be planned on any of its meshes: 4 x 1: refused; 2 x 2: refused"):
        searched(monkeypatch, failing=True)
