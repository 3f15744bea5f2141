"""Searches that are joined: chunk sizes, meshes, slices and runs, with searches whose figures are given."""

import itertools
import threading
import types
from typing import ClassVar

import jax
import pytest
from jax.sharding import AbstractMesh

import workbench as wb
from workbench.advice._search import _chunked as chunked, _mesh as meshes, _question as question, _run as run
from workbench.advice._search._chunked import (
    chunk_candidates,
    chunk_penalty,
    compile_best,
    joined_record,
    mesh_text,
    ranked,
    usual_chunk,
    with_chunk_sizes,
)
from workbench.advice._search._groups import SpecGroup, fits
from workbench.advice._search._mesh import mesh_shapes
from workbench.advice._search._search import UNCOMPARED
from workbench.advice._search._suggest import _chunked, _matches, _measured, lock_patterns, search_shardings
from workbench.aot import parse_target
from workbench.cost import error_bar, known_chip
from workbench.errors import EngineError, InspectionError, MeshError, ProgramError
from workbench.records.advice import SearchRecord, ShardingChoiceRecord, SpecGroupRecord

A, B, C, D = ((("a",),),), ((("b",),),), ((("c",),),), ((("d",),),)


class Call:
    name, fn, holds_clients, chunk_size = "f", None, True, "auto"


class Searched:
    """A search whose choices have ranks; `compile` and `rehearse` are noted."""

    def __init__(self, ranks, chunk=None, usual=8, everything=16, target=None, clients=True, **fields):
        self.ranks, self.rehearsed, self.compiled = dict(ranks), list(fields.pop("rehearsed", [])), []
        call = types.SimpleNamespace(holds_clients=clients, sizes={"auto": usual, 2**30: everything})
        self.program = types.SimpleNamespace(
            chunk_size=chunk, target=target, where="v5e:2x4", mesh=None, call=call, chunk_rule=lambda size: size,
            with_chunk_size=lambda size: types.SimpleNamespace(chunk_size=size),
        )  # fmt: skip
        self.fields = fields

    def best(self, count):
        return sorted(self.ranks, key=self.ranks.__getitem__)[:count]

    def rank_of(self, specs):
        return self.ranks[specs]

    def names_of(self, choices):
        return {specs: f"name {specs[0][0][0]}" for specs in choices}

    def is_rehearsed(self, specs):
        return specs in self.rehearsed

    def is_compiled(self, specs):
        return specs in self.compiled

    def rehearse(self, specs):
        self.rehearsed.append(specs)

    def compile(self, specs):
        self.compiled.append(specs)

    def record(self):
        return SearchRecord(
            **{
                "name": "f", "chip": "v5e", "target": "here", "groups": (), "planned_count": 3, "compiled_count": 0,
                "seconds_spent": 1.0, "ended": "complete", "choices": (),
            }
            | self.fields
        )  # fmt: skip


@pytest.fixture(autouse=True)
def planned_chunks(monkeypatch):
    """Chunk sizes come from the program: all clients for a large size, and the usual size for "auto"."""

    def plan(call, mesh):
        sizes = call.sizes
        return types.SimpleNamespace(chunk_size=sizes.get(call.chunk_size))

    monkeypatch.setattr(chunked, "plan_call", plan)


def ranks(*seconds, specs=(A, B, C, D)):
    return {each: (False, second) for each, second in zip(specs, seconds, strict=False)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"chunk": 4, "usual": 8, "everything": 16}, [1, 2, 4, 8, 16]),
        ({"chunk": None, "usual": None, "everything": 16}, [1, 2, 4, 8, 16]),
        ({"chunk": 1, "usual": 1, "everything": 1}, [1]),
        ({"chunk": 2, "usual": 2, "everything": 2}, [1, 2]),
        ({"chunk": 1024, "usual": 1024, "everything": 1024}, [1, 8, 32, 256, 1024]),
        ({"everything": None}, []),
        ({"clients": False}, []),
    ],
)
def test_chunk_sizes_to_try(given, expected):
    program = Searched({}, **given).program
    sizes = chunk_candidates(program)
    if given.get("everything") == 1024:  # from 1 to 1024: the middle by ratio, and then the middles of both halves
        assert len(sizes) == 5
        assert sizes[0] == 1
        assert sizes[-1] == 1024
        assert 32 in sizes
        ratios = sorted(b / a for a, b in itertools.pairwise(sizes))
        assert ratios[-1] <= 8
    else:
        assert sizes == expected


@pytest.mark.parametrize(
    ("chunk", "usual", "penalty"),
    [
        (8, 8, 1.0),
        (4, 8, 1.002),
        (16, 8, 1.002),
        (1, 1024, 1.02),
        (1, 2048, 1.02),
        (None, 8, 1.0),
        (8, None, 1.0),
        (0, 8, 1.0),
    ],
)
def test_penalty_of_an_unusual_chunk_size(chunk, usual, penalty):
    assert chunk_penalty(chunk, usual) == pytest.approx(penalty, abs=1e-12)


def test_usual_chunk_is_that_of_the_chip():
    assert usual_chunk(Searched({}, usual=8).program) == 8
    assert usual_chunk(Searched({}, clients=False).program) is None


def test_choices_are_ranked_by_fit_seconds_and_chunk_size():
    fits_not = {A: (True, 0.1), B: (False, 3.0)}
    other = Searched(ranks(1.01, 1.02, specs=(C, D)), chunk=1, usual=1024)
    first = Searched(fits_not | {C: (False, 1.025)}, chunk=1024, usual=1024)
    names = [(search is first, specs) for search, specs in ranked([first, other])]
    assert names == [(True, C), (False, C), (False, D), (True, B), (True, A)]
    assert len(ranked([Searched(ranks(1, 2, 3, 4))])) == 4
    assert [specs for _, specs in ranked([Searched(ranks(1, 2, 3, 4))], 2)] == [A, B]
    five = Searched({((str(at),),): (False, at) for at in range(6)})
    assert len(ranked([five])) == 4


class Variant:
    made: ClassVar[list] = []

    def __init__(self, program, *, seconds, compiled, cancel):
        self.program, self.seconds, self.compiled, self.considered = program, seconds, compiled, None
        if program.chunk_size == 4:
            raise InspectionError("r" * 400 + "\nmore")
        Variant.made.append(self)

    def consider(self, choices):
        self.considered = choices

    def best(self, count):
        return [A] * count if self.program.chunk_size != 2 else []


def test_other_chunk_sizes_are_searched_with_the_best_specs(monkeypatch):
    monkeypatch.setattr(chunked, "Search", Variant)
    monkeypatch.setattr(chunked.time, "monotonic", lambda: 5.0)
    monkeypatch.setattr(Variant, "made", [])
    phases, notes = [], []
    near, far = Searched(ranks(1.0, 2.0), chunk=8), Searched(ranks(1.5, 9.0, specs=(C, D)), chunk=8)
    idle = Searched(ranks(50.0), chunk=8)
    found = with_chunk_sizes([idle, near, far], best=3, until=7.0, progress=phases.append, notes=notes, cancel=None)
    assert found[:3] == [idle, near, far]
    by_specs = [(each.program.chunk_size, [*each.considered.values()]) for each in found[3:]]
    assert by_specs == [(size, names) for names in (["name a", "name b"], ["name c"]) for size in (1, 16)]
    assert {(each.seconds, each.compiled) for each in Variant.made} == {(2.0, False)}
    assert set(notes) == {"chunk_size=4: " + "r" * 200}
    assert phases[:4] == ["chunks of 1 clients", "chunks of 2 clients", "chunks of 4 clients", "chunks of 16 clients"]


def test_chunk_sizes_without_time_are_noted(monkeypatch):
    monkeypatch.setattr(chunked, "Search", Variant)
    monkeypatch.setattr(chunked.time, "monotonic", lambda: 5.0)
    monkeypatch.setattr(Variant, "made", [])
    cancel = threading.Event()
    for until in (5.0, 9.0):
        if until == 9.0:
            cancel.set()
        notes = []
        search = Searched(ranks(1.0), chunk=8)
        assert with_chunk_sizes([search], best=1, until=until, progress=print, notes=notes, cancel=cancel) == [search]
        assert notes == [f"not tried for lack of time: chunk_size={size}" for size in (1, 2, 4, 16)]
    assert Variant.made == []


def compiled_choices(monkeypatch, searches, *, until=100.0, step=1.0, cancel=None, count=2):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(chunked.time, "monotonic", lambda: clock.now)
    phases = []

    def progress(phase):
        phases.append(phase)
        clock.now += step

    compile_best(searches, count=count, until=until, progress=progress, cancel=cancel)
    return phases


def test_best_choices_of_all_searches_are_compiled_for_cpu_devices(monkeypatch):
    first, second = Searched(ranks(1.0, 3.0)), Searched(ranks(2.0, specs=(C,)))
    phases = compiled_choices(monkeypatch, [first, second])
    assert phases == ["compiling choice 1 for CPU devices", "compiling choice 2 for CPU devices"]
    assert (first.rehearsed, second.rehearsed, first.compiled) == ([A], [C], [])
    changing = Searched(ranks(1.0, 2.0, 3.0, 4.0))
    original = changing.rehearse

    def slower(specs):  # every compiled choice turns out to be slow, so the next one is compiled
        original(specs)
        changing.ranks[specs] = (False, 100.0)

    changing.rehearse = slower
    assert len(compiled_choices(monkeypatch, [changing], count=1)) == 4


def test_sixteen_choices_are_compiled_at_most(monkeypatch):
    search = Searched({((str(at),),): (False, at) for at in range(40)})
    search.is_rehearsed = lambda specs: False
    assert len(compiled_choices(monkeypatch, [search])) == 16


def test_best_choices_are_compiled_for_the_chip(monkeypatch):
    search = Searched(ranks(1.0, 2.0, 3.0), target="v5e", rehearsed=[A, B])
    phases = compiled_choices(monkeypatch, [search])
    assert phases == [f"compiling choice {at} of 2 for v5e:2x4" for at in (1, 2)]
    assert search.compiled == [A, B]
    assert compiled_choices(monkeypatch, [search]) == []


def test_compilation_ends_with_the_time_but_one_choice_is_compiled(monkeypatch):
    search = Searched(ranks(1.0, 2.0, 3.0), target="v5e")
    compiled_choices(monkeypatch, [search], until=10.0, step=6.0, count=3)
    assert (search.rehearsed, search.compiled) == ([A], [A])  # half of the time is for CPU devices
    search = Searched(ranks(1.0, 2.0, 3.0), target="v5e")
    compiled_choices(monkeypatch, [search], until=10.0, step=5.0, count=3)
    assert (search.rehearsed, search.compiled) == ([A, B], [A])
    search = Searched(ranks(1.0, 2.0, 3.0))
    compiled_choices(monkeypatch, [search], until=10.0, step=6.0, count=3)
    assert search.rehearsed == [A, B]
    cancel = threading.Event()
    cancel.set()
    stopped = Searched(ranks(1.0), target="v5e")
    compiled_choices(monkeypatch, [stopped], cancel=cancel)
    assert (stopped.rehearsed, stopped.compiled) == ([], [])


def choice(name, seconds, peak=100, **fields):
    given = {"mesh": {"data": 4, "model": 2}, "specs": {}, "argument_bytes": 0, "fits": True}
    return ShardingChoiceRecord(name=name, seconds=seconds, peak_bytes=peak, **(given | fields))


def joined(*searches, **options):
    given = {"ended": "time", "notes": ["n"], "by_mesh": False, "full_count": 1, "shown": 2} | options
    return joined_record("g", "there", searches, 9.0, **given)


def test_record_of_several_searches():
    first = Searched(
        {}, chunk=8, choices=(choice("a", 3.0, 10), choice("b", 2.0, 20), choice("c", 0.5)), notes=(UNCOMPARED, "x")
    )
    second = Searched(
        {}, chunk=1, compiled_count=2, notes=("x", "planned peaks: 1"),
        choices=(choice("d", 9.0, how="compiled"), choice("e", 8.0, how="rehearsed", peak=5), choice("h", 0.1)),
    )  # fmt: skip
    third = Searched({}, chunk=2, choices=(choice("i", 1.0, fits=False), choice("j", 0.1)))
    record = joined(first, second, third)
    assert [each.name for each in record.choices] == ["d", "e", "b", "a", "i"]
    assert [each.name for each in record.choices if each.pareto] == ["d"]  # the only compiled choice
    assert (record.name, record.target, record.seconds_spent, record.ended) == ("g", "there", 9.0, "time")
    assert (record.planned_count, record.compiled_count) == (9, 2)
    assert record.notes == ("n", "x", "planned peaks: 1")
    assert joined(first).notes == ("n", UNCOMPARED, "x")
    assert [each.name for each in joined(first, by_mesh=True).choices] == ["4 x 2: b", "4 x 2: a"]
    assert [each.pareto for each in joined(first).choices] == [True, True]


def test_unusual_chunk_sizes_lose_ties():
    equal = Searched({}, usual=1024, choices=(choice("one", 1.0, chunk_size=1), choice("usual", 1.01, chunk_size=1024)))
    assert [each.name for each in joined(equal).choices] == ["usual", "one"]
    unknown = Searched({}, choices=(choice("u", None), choice("k", 5.0)))
    assert [each.name for each in joined(unknown).choices] == ["k", "u"]


def test_meshes_in_words_and_their_shapes():
    assert mesh_text((4, 2)) == "4 x 2"
    assert list(mesh_shapes(4, 2)) == [(4, 1), (2, 2), (1, 4)]
    assert list(mesh_shapes(6, 1)) == [(6,)]
    assert len(list(mesh_shapes(8, 3))) == 10
    assert list(mesh_shapes(1, 2)) == [(1, 1)]


# Locks and measured choices.


def locking(*groups):
    leaves = [types.SimpleNamespace(name=name) for each in groups for name in each[1]]
    listed, start = [], 0
    for pattern, names, shape in groups:
        listed.append(SpecGroup(pattern, shape, "float32", list(range(start, start + len(names))), 1))
        start += len(names)
    return types.SimpleNamespace(groups=listed, leaves=leaves, axes={"data": 4, "model": 2})


def test_specs_are_locked_by_pattern_argument_leaf_or_wildcard():
    program = locking(
        ("p['l'][*]['w']", ["p['l'][0]['w']", "p['l'][1]['w']"], (8, 8)),
        ("p['b']", ["p['b']"], (8,)),
        ("x", ["x"], (8, 4)),
    )
    first, bias, batch = program.groups
    matches = {
        "p['l'][*]['w']": [first], "p": [first, bias], "p['l'][1]['w']": [first], "p['b']": [bias],
        "p['*']": [first, bias], "x": [batch], "*": [first, bias, batch], "*['w']": [first],
        "y": [], "p['l'][2]['w']": [],
    }  # fmt: skip
    for pattern, expected in matches.items():
        assert [group for group in program.groups if _matches(pattern, group, program)] == expected, pattern
    bias.locked = ((),)
    lock_patterns(program, {"p['l'][*]['w']": (None, ("data", "model")), "x": ("data",)})
    assert [group.locked for group in program.groups] == [((), ("data", "model")), ((),), (("data",), ())]


def test_locks_that_do_not_fit_are_all_reported():
    program = locking(("weights", ["weights"], (8, 8)), ("x", ["x"], (6, 4)))
    with pytest.raises(MeshError) as error:
        lock_patterns(program, {"weigths": (), "q": (), "x": ("data",)})
    assert str(error.value) == (
        "`search` was given a `lock` that does not fit: 'weigths' matches no argument (near: weights); 'q' matches no "
        "argument (near: none); x [6, 4] cannot be sharded as ('data',). The mesh is data=4 x model=2; use the "
        "patterns that the search prints (`*` matches any text), and axes whose sizes divide the dimensions."
    )
    assert [group.locked for group in program.groups] == [None, None]
    assert not fits((("data",), ()), (6, 4), program.axes)


GROUPS = (
    SpecGroupRecord(pattern="w", shape=(8,), dtype="float32", leaves=("w[0]", "w[1]"), size_bytes=64),
    SpecGroupRecord(pattern="x", shape=(8,), dtype="float32", leaves=("x",), size_bytes=32),
)


def found(*choices, **fields):
    return SearchRecord(
        name="f", chip="v5e", target="here", choices=choices, groups=GROUPS, planned_count=1, compiled_count=0,
        seconds_spent=1.0, ended="complete", **fields,
    )  # fmt: skip


def test_best_choices_are_run_and_sorted(monkeypatch):
    asked, call = [], types.SimpleNamespace(chunk_size="auto")
    monkeypatch.setattr("workbench.advice._search._suggest.with_specs", lambda *given: asked.append(given))
    walls = [[3.0, 4.0, 5.0], [1.0, 2.0, 3.0], [2.0, 2.5, 3.5]]
    monkeypatch.setattr("workbench.advice._search._suggest.run_interleaved", lambda *_: walls)
    choices = (
        choice("a", 1.0, specs={"w": (("data",),)}), choice("large", 1.5, fits=False), choice("b", 2.0, chunk_size=4),
        choice("c", 3.0, fits=None), choice("d", 4.0),
    )  # fmt: skip
    record = _measured(found(*choices, notes=("n",)), call, "mesh", None)  # pyright: ignore[reportArgumentType]
    assert [(each.name, each.measured_seconds, each.measured_interval) for each in record.choices] == [
        ("b", 2.0, (1.0, 3.0)), ("c", 2.5, (2.0, 3.5)), ("a", 4.0, (3.0, 5.0)),
        ("large", None, None), ("d", None, None),
    ]  # fmt: skip
    assert record.notes == (
        "n",
        "the best 3 choices were run, with 3 interleaved calls each; the measured medians have 95 % intervals",
    )
    sharded, whole = (("data",),), ()
    assert asked[0] == (call, "mesh", {"w[0]": sharded, "w[1]": sharded, "x": whole}, "auto")
    assert asked[1] == (call, "mesh", {"w[0]": whole, "w[1]": whole, "x": whole}, 4)


def test_reason_why_choices_were_not_run(monkeypatch):
    def broken(*_):
        raise EngineError("x" * 400)

    monkeypatch.setattr("workbench.advice._search._suggest.with_specs", broken)
    record = _measured(found(choice("a", 1.0)), types.SimpleNamespace(chunk_size=1), None, None)  # pyright: ignore
    assert record == found(choice("a", 1.0), notes=("the best choices were not run: " + "x" * 300,))


# Runs.


def programs(monkeypatch, *seconds, free=None):
    """Programs that take these seconds; the calls in their order."""
    order = []

    def caller(program):
        def call(samples):
            order.append(program)
            samples.append(seconds[program])

        return call

    monkeypatch.setattr(run, "_caller", caller)
    monkeypatch.setattr(run, "_require_memory", lambda programs: None)
    return list(range(len(seconds))), order


@pytest.mark.parametrize(
    ("seconds", "count"), [((0.2, 0.3), 8), ((0.001, 0.001), 40), ((0.0625, 0.0625), 16), ((1.0,), 8), ((0.125,), 16)]
)
def test_programs_run_in_turn_for_two_seconds(monkeypatch, seconds, count):
    listed, order = programs(monkeypatch, *seconds)
    walls = run.run_interleaved(listed)
    assert [len(samples) for samples in walls] == [count] * len(seconds)
    assert walls[0] == [seconds[0]] * count  # without the first call
    if len(listed) == 2:
        assert order == [0, 1] + [0, 1, 1, 0] * (count // 2)


def test_stop_before_the_first_run_is_an_error(monkeypatch):
    listed, _ = programs(monkeypatch, 0.1)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(EngineError, match="The measurement was stopped"):
        run.run_interleaved(listed, cancel)


def test_shapes_run_as_zeros_and_keys(monkeypatch):
    monkeypatch.setattr(run, "caller_of", lambda compiled, args, module, kwargs: (args, kwargs))
    monkeypatch.setattr(run, "inspect_module", lambda compiled: None)
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(0), (3, 2))
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (key, keys)]
    array = jax.numpy.ones(2)
    args, kwargs = run._caller(run.Runnable(None, (jax.ShapeDtypeStruct((2,), "int8"), *shapes, array), {"k": 1.5}))
    assert (args[0].dtype, args[0].tolist()) == ("int8", [0, 0])
    assert bool((jax.random.key_data(args[1]) == jax.random.key_data(key)).all())
    assert bool((jax.random.key_data(args[2]) == jax.random.key_data(keys)).all())
    assert args[3] is array
    assert kwargs == {"k": 1.5}


class Executable:
    def __init__(self, arguments, outputs, temporary):
        device = jax.devices()[0]
        self.input_shardings = [jax.sharding.SingleDeviceSharding(device)]
        self.memory = None if arguments is None else types.SimpleNamespace(
            argument_size_in_bytes=arguments, output_size_in_bytes=outputs, temp_size_in_bytes=temporary
        )  # fmt: skip

    def memory_analysis(self):
        return self.memory


def test_memory_for_all_arguments_and_one_run_is_required(monkeypatch):
    mib = 2**20
    monkeypatch.setattr(run, "free_bytes", lambda devices: 10 * mib)
    listed = [run.Runnable(Executable(2 * mib, mib, mib), ()), run.Runnable(Executable(3 * mib, 2 * mib, 3 * mib), ())]
    run._require_memory(listed)  # 2 + 3 for arguments, and 2 + 3 for the second run
    listed[0] = run.Runnable(Executable(2 * mib + 1, 0, 0), ())
    with pytest.raises(EngineError, match=r"needs 10 MiB on each device, but only 10 MiB are free"):
        run._require_memory(listed)
    run._require_memory([run.Runnable(Executable(None, 0, 0), ()), *listed])
    monkeypatch.setattr(run, "free_bytes", lambda devices: None)
    run._require_memory(listed)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5.0], (5, 5, 5)), ([1.0, 2.0], (1.5, 1, 2)), ([4.0, 1.0, 3.0, 2.0], (2.5, 1, 4)), (list(range(11)), (5, 1, 9))],
)
def test_median_and_its_interval(values, expected):
    assert run.median_interval(values) == expected


# One search.


def record_of(*rows, target="v5e:2x4", how="compiled", chip="v5e"):
    slices = [types.SimpleNamespace(chip=name, how=made) for name, made in rows]
    return types.SimpleNamespace(slices=slices, chip=chip, target=target, best=types.SimpleNamespace(how=how))


def test_error_bar_of_a_search():
    v5e, v5p = (error_bar(known_chip(name), "training step") for name in ("v5e", "v5p"))
    unknown = f"{error_bar(None, 'training step')}: not compiled for the chip"
    assert question._error_bar(record_of()) == v5e
    assert question._error_bar(record_of(how="rehearsed")) == unknown
    assert question._error_bar(record_of(target="cpu x 8")) == unknown
    assert question._error_bar(record_of(("v5e", "compiled"), ("v5p", "compiled"))) == f"v5e: {v5e}; v5p: {v5p}"
    assert question._error_bar(record_of(("v5e", "compiled"), ("v5p", "planned"))) == v5e
    assert question._error_bar(record_of(("v5p", "planned"))) == unknown


def asked(monkeypatch, on, **options):
    """The kind of search that `on` asks for, and its options."""
    calls = []
    for name in ("search_shardings", "search_meshes", "search_slices"):
        monkeypatch.setattr(
            question, name, lambda call, _name=name, **given: calls.append((_name, given)) or found(choice("a", 1.0))
        )
    question.search_call(Call(), on=on, **options)  # pyright: ignore[reportArgumentType]
    return calls[0]


def test_kind_of_a_search(monkeypatch):
    mesh = AbstractMesh((2,), ("data",))
    name, given = asked(monkeypatch, (mesh, "v5e"), seconds=3.0, compiled=False, memory_bytes=5, lock={"x": ()})
    assert (name, given["mesh"], given["chip"], given["seconds"]) == ("search_shardings", mesh, "v5e", 3.0)
    assert (given["compiled"], given["memory_bytes"], given["lock"], given["measure"]) == (False, 5, {"x": ()}, False)
    assert given["target"] is None
    assert "seconds" not in asked(monkeypatch, mesh)[1]
    assert asked(monkeypatch, None)[0] == "search_shardings"
    name, given = asked(monkeypatch, "v5e:2x2", axes=("a", "b"), lock={}, compiler="cpu")
    assert (name, given["target"], given["axes"], given["compiler"]) == ("search_meshes", "v5e:2x2", ("a", "b"), "cpu")
    name, given = asked(monkeypatch, ["v5e", "v5p"], axes=("a",))
    assert (name, given["targets"], given["axes"]) == ("search_slices", ["v5e", "v5p"], ("a",))
    assert asked(monkeypatch, "v5e")[1]["targets"] == ["v5e"]


@pytest.mark.parametrize(
    ("on", "options", "refused"),
    [
        (AbstractMesh((2,), ("data",)), {"axes": ("a",)}, "`axes`, which a search for shardings on one mesh"),
        ("v5e:2x2", {"found": print}, "`found`, which a search for meshes of one target"),
        ("v5e:2x2", {"measure": True}, "`measure`, which"),
        ("v5e", {"lock": {}, "compiler": "cpu"}, "`lock`, `compiler`, which a search for slices of chip families"),
        ("v5e", {"memory_bytes": 1, "found": print, "measure": True}, "`memory_bytes`, `found`, `measure`, which"),
    ],
)
def test_options_that_a_search_does_not_use_are_refused(monkeypatch, on, options, refused):
    with pytest.raises(ProgramError, match=refused):
        asked(monkeypatch, on, **options)


def test_mesh_of_a_search_must_have_several_devices():
    call = wb.trace(lambda x: x)(jax.ShapeDtypeStruct((4,), "float32"))._call
    one = AbstractMesh((1,), ("data",))
    with pytest.raises(MeshError, match="without a mesh of several devices"):
        search_shardings(call, mesh=one)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MeshError, match="without a mesh of several devices"):
        search_shardings(call)  # pyright: ignore[reportArgumentType]
    target = parse_target("v5e:2x2")
    with pytest.raises(MeshError, match="a mesh of 2 devices and the target v5e:2x2, which has 4 devices"):
        search_shardings(call, mesh=AbstractMesh((2,), ("data",)), target=target)  # pyright: ignore


class Found:
    """A search that returns a record; the options with which it was made."""

    made: ClassVar[list] = []

    def __init__(self, program, **options):
        Found.made.append(options)

    def run(self):
        return found(choice("a", 1.0), notes=("n",))


@pytest.mark.parametrize(("clients", "seconds"), [(False, 10.0), (True, 6.0)])
def test_specs_take_three_fifths_of_the_time_if_chunk_sizes_are_searched(monkeypatch, clients, seconds):
    module = "workbench.advice._search._suggest"
    monkeypatch.setattr(f"{module}.SearchProgram", lambda *given, **options: locking(("x", ["x"], (8, 4))))
    monkeypatch.setattr(f"{module}.Search", Found)
    monkeypatch.setattr(Found, "made", [])
    monkeypatch.setattr(f"{module}._chunked", lambda search, record, until, **_: record.replace(ended="time"))
    call = types.SimpleNamespace(name="f", holds_clients=clients, mesh=None, leaves=())
    record = search_shardings(call, mesh=AbstractMesh((2,), ("data",)), seconds=10.0)  # pyright: ignore
    assert [options["seconds"] for options in Found.made] == [seconds]
    assert Found.made[0]["compiled"]
    assert record.ended == ("time" if clients else "complete")
    assert record.notes == ("no chip was named: seconds are predicted for a v5e", "n")
    named = search_shardings(call, mesh=AbstractMesh((2,), ("data",)), chip="v5p")  # pyright: ignore
    assert named.notes == ("n",)


def test_families_are_tried_from_small_to_large():
    names = [machine.name for machine in meshes._slices("v5e:2x4")]
    assert names == ["v5e:1x1", "v5e:2x2", "v5e:2x4"]
    devices = [machine.devices for machine in meshes._slices("v5e")]
    assert devices == sorted(set(devices))
    assert devices[-1] > 8
    with pytest.raises(MeshError, match="v99"):
        meshes._slices("v99")


def test_axes_of_a_search_for_meshes(monkeypatch):
    placements = []
    monkeypatch.setattr(meshes, "plan_call", lambda call: types.SimpleNamespace(placements=placements))
    call = types.SimpleNamespace(mesh=None)
    assert meshes._axes_of(call, None) == ("data", "model")  # pyright: ignore[reportArgumentType]
    assert meshes._axes_of(call, ["a"]) == ("a",)  # pyright: ignore[reportArgumentType]
    placements.append(types.SimpleNamespace(name="clients"))
    assert meshes._axes_of(call, None) == ("clients", "model")  # pyright: ignore[reportArgumentType]
    call.mesh = AbstractMesh((2, 4), ("x", "y"))
    assert meshes._axes_of(call, None) == ("x", "y")  # pyright: ignore[reportArgumentType]


def test_reasons_why_a_slice_is_too_small():
    machine = types.SimpleNamespace(name="v5e:2x2", devices=4, available_bytes=2**30)
    assert meshes._too_small(machine, 5 * 2**30) == (  # pyright: ignore[reportArgumentType]
        "v5e:2x2: the arguments alone need 5 GiB, but all its devices together have 4 GiB"
    )
    reasons = [
        (choice("a", 1.0, peak=2 * 2**30, note="n"), "v5e:2x2: a device needs 2 GiB, but has 1 GiB (planned)"),
        (choice("a", 1.0, peak=None, how="compiled"), "v5e:2x2: a device needs more than 1 GiB (compiled)"),
        (choice("a", 1.0, peak=None, note="why"), "v5e:2x2: a device needs more than 1 GiB (planned): why"),
    ]  # fmt: skip
    for each, expected in reasons:
        assert meshes._too_full(machine, each) == expected  # pyright: ignore[reportArgumentType]


def with_chunks(monkeypatch, *, notes=(), compiled=True, stopped=False, ended="complete"):
    """The arguments of the joined record, and those of the compilations."""
    seen, phases = {}, []

    def extended(searches, **given):
        given["progress"]("chunks")
        given["notes"].extend(notes)
        seen["chunks"] = given
        return [*searches, "more"]

    module = "workbench.advice._search._suggest"
    monkeypatch.setattr(f"{module}.time", types.SimpleNamespace(monotonic=lambda: 7.0))
    monkeypatch.setattr(f"{module}.with_chunk_sizes", extended)
    monkeypatch.setattr(f"{module}.compile_best", lambda searches, **given: seen.update(compiled=(searches, given)))
    monkeypatch.setattr(f"{module}.joined_record", lambda *given, **options: (given, options))
    cancel = threading.Event()
    if stopped:
        cancel.set()
    record = found(choice("a", 1.0), choice("b", 2.0)).replace(ended=ended, seconds_spent=2.0)
    options = {"compiled": compiled, "progress": lambda *phase: phases.append(phase), "cancel": cancel}
    joined = _chunked("search", record, 30.0, **options)  # pyright: ignore[reportArgumentType]
    return joined, seen, phases


def test_chunk_sizes_of_the_three_best_choices_are_searched(monkeypatch):
    (given, options), seen, phases = with_chunks(monkeypatch)
    assert (seen["chunks"]["best"], seen["chunks"]["until"]) == (3, 30.0)
    searches, compilation = seen["compiled"]
    assert (searches, compilation["count"], compilation["until"]) == (["search", "more"], 3, 30.0)
    assert phases == [("chunks", 2.0)]
    assert given == ("f", "here", ["search", "more"], 2.0)
    assert options == {"ended": "complete", "notes": [], "by_mesh": False, "full_count": 1, "shown": 2}
    assert "compiled" not in with_chunks(monkeypatch, compiled=False)[1]
    ends = [with_chunks(monkeypatch, **given)[0][1]["ended"] for given in (
        {"notes": ["n"]}, {"stopped": True}, {"stopped": True, "notes": ["n"]}, {"ended": "time"})]  # fmt: skip
    assert ends == ["time", "stopped", "stopped", "time"]
