"""The steps of a search, on programs whose figures are given: what is planned, compiled, ranked and noted."""

import itertools
import threading
import types

import pytest

from workbench.advice._search._groups import SpecGroup, candidates, fits, pattern_argument
from workbench.advice._search._program import Priced
from workbench.advice._search._search import UNCOMPARED, Search, _joined, _subsets, pareto
from workbench.errors import EngineError, InspectionError
from workbench.records.advice import JitRecord, ShardingChoiceRecord

AXES = {"data": 4, "model": 2}
D, M, DM = ("data",), ("model",), ("data", "model")


class Program(types.SimpleNamespace):
    """A program whose seconds and peaks are given by specs; by default 1 s, 100 B and arguments of 10 B."""

    def __init__(self, *groups, axes=None, given=None, target=None, room=1000, seconds=None, peaks=None, **fields):
        leaves = [types.SimpleNamespace(name=group.pattern) for group in groups]
        super().__init__(
            groups=list(groups), axes=axes or AXES, given=given, target=target, memory_bytes=room,
            leaves=leaves, mesh=types.SimpleNamespace(size=8), chip=types.SimpleNamespace(name="v5e"), where="here",
            call=types.SimpleNamespace(name="f"), chunk_size=None, counts_once=False, planned_count=7,
            compiled_count=3, jit=JitRecord(), calls=[], rehearsed=[], compiled=[], failing=set(), **fields,
        )  # fmt: skip
        self.seconds, self.peaks = seconds or {}, peaks or {}
        self.by_compiler = {}  # seconds on CPU devices, and for the chip

    def priced(self, specs, seconds, how):
        peak = self.peaks.get(specs, 100.0)
        is_fitting = None if peak is None else peak <= self.memory_bytes
        return Priced(specs, seconds, peak, 10.0, {"data": 5.0}, fits=is_fitting, how=how)

    def plan(self, assignment):
        self.calls.append(assignment)
        pairs = zip(assignment, self.groups, strict=True)
        specs = tuple(((),) * len(group.shape) if spec is None else spec for spec, group in pairs)
        if specs in self.failing:
            raise InspectionError("p" * 400 + "\nmore")
        return self.priced(specs, self.seconds.get(specs, 1.0), "planned")

    def rehearse(self, specs, **options):
        self.rehearsed.append((specs, options["timeout_seconds"]))
        if specs in self.failing:
            raise EngineError("c" * 400 + "\nmore")
        seconds = self.by_compiler.get(("cpu", specs), self.seconds.get(specs, 1.0))
        return self.priced(specs, seconds, "compiled" if self.target is None else "rehearsed")

    def compile(self, specs, **options):
        self.compiled.append((specs, options["timeout_seconds"]))
        seconds = self.by_compiler.get(("chip", specs), self.seconds.get(specs, 1.0))
        return self.priced(specs, seconds, "compiled")

    def requested_results(self, specs):
        return {0: specs[0]} if any(map(any, specs)) else {}


def group(name, *shape, outputs=(), size=None, **fields):
    size = 4 * sum(shape[:1]) if size is None else size
    return SpecGroup(name, shape, "float32", [], size, outputs=list(outputs), **fields)


def three(**fields):
    return Program(group("w", 8, 8, outputs=[0]), group("x", 8, 4), group("s"), **fields)


def searching(program, **options):
    return Search(program, **({"seconds": 1e6} | options))


W0, X0, S = ((), ()), ((), ()), ()


def x(*axes):
    return (axes, ())


def opened_and_closed(w, batch):
    """An assignment with open specs is planned again with the specs that propagation chose."""
    return [(w, batch, None), (W0 if w is None else w, batch, S)]


def test_seeds_of_a_training_step():
    program = three()
    searching(program)._seed()
    expected = [(W0, X0, S), (W0, x(*DM), S)]
    for axes in (DM, D, M):
        expected += [(W0, x(*axes), S), *opened_and_closed(None, x(*axes)), ((axes, ()), x(*axes), S)]
        expected += [((DM, ()), x(*axes), S)]
    for axes in (DM, D, M):
        expected += opened_and_closed(None, x(*axes))
    for axes, other in ((D, M), (M, D)):  # one axis for the batch, the other one for the weights
        for w in ((other, ()), ((), other)):
            expected += opened_and_closed(w, x(*axes))
    assert program.calls == expected


def test_seeds_on_one_axis():
    program = three(axes={"data": 4, "one": 1})
    search = searching(program)
    search._seed()
    expected = [(W0, X0, S), (W0, x(*D), S), (W0, x(*D), S), *opened_and_closed(None, x(*D))]
    expected += [((D, ()), x(*D), S)] * 2 + opened_and_closed(None, x(*D))
    for w, batch in [((D, ()), None), (((), D), None), (None, (D, ())), (None, ((), D))]:
        expected += [(w, batch, None), (w or W0, batch or X0, S)]
    assert program.calls == expected
    assert search._names == {(W0, X0, S): "replicated", (W0, x(*D), S): "data parallel over data"}


def test_seeds_on_one_device():
    program = three(axes={"one": 1})
    search = searching(program)
    search._seed()
    assert search._names == {(W0, X0, S): "one device"}
    assert program.calls == [(W0, X0, S)] * 2


def test_given_specs_are_the_first_seed_unless_specs_are_locked():
    program = three(given=((D, ()), X0, S))
    search = searching(program)
    search._seed()
    assert program.calls[0] == ((D, ()), X0, S)
    assert search._names[(D, ()), X0, S] == "as given"
    program.groups[0].locked = ((), M)
    program.calls.clear()
    searching(program)._seed()
    assert all(call[0] == ((), M) for call in program.calls)
    assert program.calls[0] == (((), M), X0, S)


def test_batches_are_the_arguments_that_are_not_returned():
    def names(*groups):
        return [each.pattern for each in searching(Program(*groups))._data_groups()]

    assert names(group("w", 8, outputs=[0]), group("x", 8), group("y", 8), group("s")) == ["x", "y"]
    assert names(group("p['w']", 8, outputs=[0]), group("p['b']", 8), group("x", 8)) == ["x"]
    assert names(group("w", 8, size=90), group("x", 8), group("y", 8)) == ["x", "y"]
    assert names(group("p[0]", 8, size=50), group("p[1]", 8, size=50), group("x", 8, size=90)) == ["x"]
    assert names(group("w", 8)) == ["w"]  # all of the only argument
    assert names() == []


def test_batches_of_an_indivisible_size_stay_replicated():
    program = Program(group("w", 8, 8, outputs=[0]), group("x", 6, 4), group("y", 8), group("z", 4, locked=(M,)))
    search = searching(program)
    assert search._sharded_data(program.groups[1:], D) == (W0, X0, (D,), (M,))
    assert search._sharded_data(program.groups[1:], M) == (W0, x(*M), (M,), (M,))
    assert search._sharded_data([], M)[:3] == (W0, X0, ((),))
    assert search._opened((W0, X0, (D,), (M,)), keep=program.groups[1:2]) == (None, X0, None, (M,))


def test_parameters_are_sharded_on_their_largest_divisible_dimension():
    program = Program(
        group("x", 8, 4),
        group("odd", 6, 3),
        group("lock", 8, locked=((),)),
        group("small", 8, size=0),
        group("w", 8, 16),
    )
    specs = searching(program)._fully_sharded((X0, W0, ((),), ((),), W0), [program.groups[0]], D)
    assert specs == (X0, W0, ((),), ((),), ((), D))


def test_small_arguments_are_left_to_propagation():
    large, small, tiny = group("l", 8, size=9979), group("s", 8, size=20), group("t", 8, size=1)
    search = searching(Program(large, small, tiny))
    assert [search._is_small(each) for each in (large, small, tiny, group("n", size=10**9))] == [
        False, False, True, True,
    ]  # fmt: skip


def test_subsets_are_largest_first():
    assert list(_subsets("abc")) == [*map(tuple, ("abc", "ab", "ac", "bc", "a", "b", "c"))]
    assert list(_subsets(())) == []


def vector(*sizes, **fields):
    return Program(*[group(name, size) for name, size in zip("wxy", sizes, strict=False)], axes={"data": 2}, **fields)


R, A = ((),), (("data",),)


def test_a_step_tries_every_change_of_one_group_and_then_the_best_combination():
    program = vector(4, 4, 3)
    program.seconds = {(A, R, R): 0.8, (R, A, R): 0.7, (A, A, R): 0.5}
    search = searching(program)
    search._try((R, R, R), "start")
    program.calls.clear()
    assert search._step((R, R, R)) == (A, A, R)
    assert program.calls == [(A, R, R), (R, A, R), (A, A, R)]
    program.calls.clear()
    assert search._step((A, A, R)) is None  # each change is slower, and no combination is better
    assert program.calls == [(R, A, R), (A, R, R)]


def test_a_step_leaves_locked_and_small_groups():
    program = vector(4, 4)
    program.groups[1].locked = R
    search = searching(program)
    search._try((R, R), "start")
    search._step((R, R))
    assert program.calls[1:] == [(A, R)]
    program = vector(4, 4)
    program.groups[1].size_bytes = 0
    search = searching(program)
    search._try((R, R), "start")
    search._step((R, R))
    assert program.calls[1:] == [(A, R)]


def test_descent_starts_from_the_three_best_choices():
    program = vector(4, 4)
    program.seconds = {(A, R): 0.9, (R, A): 0.8, (A, A): 0.1}
    search = searching(program)
    search._try((R, R), "start")
    starts = []
    search._step = lambda current: starts.append(current) or ((A, A) if current == (R, R) else None)
    search._descend()
    assert starts == [(R, R), (A, A)]
    for specs in ((A, R), (R, A), (A, A)):
        search._try(specs, "")
    starts.clear()
    search._descend()
    assert starts == [(A, A), (R, A), (A, R)]


def test_rank_is_the_fit_then_seconds_then_a_thousandth_of_the_memory_share():
    program = vector(4, room=1000)
    search = searching(program)
    priced = Priced((R,), 2.0, 500.0, 0.0, fits=True)
    assert search._rank(priced) == (False, pytest.approx(2.0 * 1.0005))
    too_large = Priced((R,), 2.0, 1500.0, 0.0, fits=False)
    assert search._rank(too_large) == (True, pytest.approx(0.5 * 1.0015))
    assert search._rank(Priced((R,), None, 500.0, 0.0, fits=True)) == (False, float("inf"))
    assert search._rank(Priced((R,), 2.0, None, 0.0)) == (False, 2.0)
    assert search._rank(Priced((R,), 2.0, 1000.0, 0.0, fits=False)) == (True, pytest.approx(2.002))


def test_failing_plan_is_noted():
    program = vector(4)
    program.failing = {(A,)}
    search = searching(program)
    assert search._try((A,), "a") is None
    assert search._notes == ["p" * 300]
    assert not search.is_planned((A,))


def test_better_choices_are_reported():
    program = vector(4, 4)
    program.seconds = {(R, R): 1.0, (A, R): 0.9, (R, A): 0.95, (A, A): 0.5}
    records = []
    search = searching(program, found=records.append)
    for specs in ((R, R), (R, R), (A, R), (R, A), (A, A)):
        search._try(specs, "")
    assert [record.best.seconds for record in records] == [1.0, 0.9, 0.5]


def test_first_name_of_a_choice_stays():
    search = searching(vector(4))
    for name in ("", "first", "second"):
        search._try((R,), name)
    assert search.names_of([(R,), (A,)]) == {(R,): "first"}
    search._try((A,), "")
    assert search.names_of([(R,), (A,)]) == {(R,): "first", (A,): "found"}


def test_record_of_a_planned_search():
    program = vector(8, 8)
    program.groups[1].is_exception = True
    program.groups[0].patterns = ("w[0]", "w[1]")
    program.leaves = [types.SimpleNamespace(name=name) for name in ("p['a']", "p['b']", "q")]
    program.seconds = {(R, R): 3.0, (A, R): 2.0, (R, A): 1.0}
    program.peaks = {(A, R): None}
    search = searching(program)
    for specs, name in (((R, R), "start"), ((A, R), ""), ((R, A), "")):
        search._try(specs, name)
    record = search.record()
    assert record.arguments == ("p", "q")
    assert [choice.name for choice in record.choices] == ["found 1", "found 2", "start"]
    assert record.choices[0] == ShardingChoiceRecord(
        name="found 1", mesh={"data": 2}, specs={"x": A}, seconds=1.0, peak_bytes=100, argument_bytes=10,
        sent_bytes={"data": 5.0}, fits=True, how="planned", pareto=True,
    )  # fmt: skip
    assert record.choices[1].specs == {"w[0]": A, "w[1]": A, "x": R}
    assert (record.choices[1].peak_bytes, record.choices[1].pareto, record.choices[2].pareto) == (None, False, False)
    assert (record.name, record.chip, record.target, record.ended) == ("f", "v5e", "here", "complete")
    assert (record.planned_count, record.compiled_count) == (7, 3)
    assert record.notes == (UNCOMPARED,)
    assert 0 <= record.seconds_spent < 600
    unknown = Priced((R, R), 1.0, None, None)
    assert search._choice("n", unknown).argument_bytes is None


def many(count, **fields):
    """A program of one array with a spec for each of a number of seconds; every spec but the first is a `found` one."""
    program = vector(8, **fields)
    search = searching(program)
    listed = [((f"a{at}",),) for at in range(count)]
    for at, specs in enumerate(listed):
        search._plans[specs,] = program.priced((specs,), 1.0 + at, "planned")
    return search, [(specs,) for specs in listed]


def test_twelve_choices_are_shown_and_all_named_ones():
    search, listed = many(20)
    assert len(search.record().choices) == 12
    search._names = {specs: f"n{at}" for at, specs in enumerate(listed[5:20])}
    names = [choice.name for choice in search.record().choices]
    assert names == ["found 1", "found 2", *[f"n{at}" for at in range(15)]]
    search._names = {listed[19]: "last"}
    assert [choice.name for choice in search.record().choices] == [*[f"found {at}" for at in range(1, 12)], "last"]
    search._compiled = {listed[18]: search._plans[listed[18]], listed[17]: search._plans[listed[17]]}
    choices = search.record().choices
    assert [choice.seconds for choice in choices] == [18.0, 19.0, *map(float, range(1, 10)), 20.0]
    assert search.chosen == listed[17]


def test_chosen_specs_are_the_first_choice():
    search, listed = many(3)
    assert search.chosen == listed[0]


def test_choices_compiled_for_cpu_devices_come_before_planned_ones():
    search, listed = many(4, target="v5e:2x4")
    search._rehearsed = {listed[2]: search.program.priced(listed[2], 9.0, "rehearsed")}
    assert [choice.seconds for choice in search.record().choices] == [9.0, 1.0, 2.0, 4.0]
    assert search.is_rehearsed(listed[2])
    assert not search.is_rehearsed(listed[1])
    assert not search.is_compiled(listed[2])


def test_results_are_requested_once_for_compiled_choices():
    search, listed = many(2)
    asked = []
    search.program.requested_results = lambda specs: asked.append(specs) or {3: specs[0]}
    search._compiled = {listed[0]: search.program.priced(listed[0], 1.0, "compiled")}
    assert [choice.results for choice in search.record().choices] == [{"3": listed[0][0]}, {}]
    search.record()
    assert asked == [listed[0]]


def test_notes_state_how_the_figures_were_made():
    search, listed = many(3, target="v5e:2x4")
    search._plans[listed[0]] = search.program.priced(listed[0], 1.0, "planned")
    search.program.peaks[listed[0]] = 80.0
    search._rehearsed = {listed[0]: search.program.priced(listed[0], 1.0, "rehearsed")}
    search._notes = ["one", "one"]
    search.program.counts_once = True
    assert search.record().notes == (
        "one",
        "rehearsed: compiled for CPU devices to save time, with the cost on v5e predicted from that program",
        "loops of unknown length count once, so seconds and bytes sent are lower bounds",
        "planned peaks: 1.25 × the compiled peak of the same choice",
    )
    search.program.peaks[listed[1]] = 200.0
    compiled = search.program.priced(listed[1], 1.0, "compiled")
    search._compiled = {listed[1]: Priced(**{**compiled.__dict__, "counts_plan": True})}
    notes = search._how_notes()
    assert notes[-1] == "planned peaks: 0.50 to 1.25 × the compiled peaks of the same 2 choices"
    assert not any("traffic is capped" in note for note in notes)  # that choice was compiled for the chip
    search._rehearsed |= search._compiled
    assert search._how_notes()[1].endswith(
        "fuses less, so memory traffic is capped at the traffic of the plan; `inspect` counts all of it"
    )
    search._compiled = search._rehearsed = {listed[2]: search.program.priced(listed[2], 1.0, "compiled")}
    search._plans[listed[2]] = Priced(listed[2], 1.0, None, 0.0)
    assert search._memory_note() == UNCOMPARED


def choice(seconds, peak, how="planned", **fields):
    given = {"name": "c", "mesh": {}, "specs": {}, "argument_bytes": 0}
    return ShardingChoiceRecord(seconds=seconds, peak_bytes=peak, how=how, **(given | fields))


def test_pareto_front_by_all_pairs():
    points = [(1.0, 9), (2.0, 5), (2.0, 5), (3.0, 5), (2.0, 6), (9.0, 1), (1.0, 10), (None, 0), (0.0, None)]
    front = pareto([choice(*point) for point in points])
    known = [(s, p) for s, p in points if s is not None and p is not None]
    beaten = {q for p, q in itertools.permutations(known, 2) if p != q and p[0] <= q[0] and p[1] <= q[1]}
    assert front == {points.index(point) for point in known if point not in beaten} == {0, 1, 5}
    compiled = [choice(*point, how="compiled" if at == 3 else "planned") for at, point in enumerate(points)]
    assert pareto(compiled) == {3}


@pytest.mark.parametrize(
    ("choices", "size", "is_noted"),
    [
        ([choice(1.0, 1)], 8, True), ([choice(1.0, 1)], 2, True), ([choice(1.0, 1)], 1, False), ([], 8, False),
        ([choice(1.0, 1, specs={"x": A}), choice(2.0, 1)], 8, False),
        ([choice(1.0, 1, specs={"x": R}), choice(1.0, 1, specs={"x": A})], 8, True),
        ([choice(1.0, 1), choice(0.9, 1)], 8, False), ([choice(None, 1), choice(0.9, 1)], 8, True),
        ([choice(1.0, 1), choice(None, 1)], 8, True),
    ],
)  # fmt: skip
def test_mesh_without_a_gain_is_noted(choices, size, is_noted):
    program = vector(4)
    program.mesh.size = size
    notes = searching(program)._gain_notes(choices)
    assert (
        notes
        == [
            "the mesh brings no gain: replicating all arguments, so that every device computes the same result, is at "
            "least as fast as sharding them"
        ]
        * is_noted
    )


def test_difference_counts_the_bytes_that_are_sharded_differently():
    search = searching(Program(group("w", 8, size=5), group("x", 8, size=7)))
    assert [search._difference((R, R), other) for other in ((R, R), (A, R), (R, A), (A, A))] == [0, 5, 7, 12]


class Time:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr("workbench.advice._search._search.time", types.SimpleNamespace(monotonic=lambda: self.now))


def test_planning_ends_at_its_share_of_the_time(monkeypatch):
    clock = Time(monkeypatch)
    for compiled, end in ((True, 104.5), (False, 110.0)):
        clock.now = 100.0
        search = searching(vector(4, 4), seconds=10.0, compiled=compiled)
        clock.now = end + 0.1
        search._try((R, R), "")  # one choice is always planned
        search.consider({(A, R): "late"})
        assert not search.is_planned((A, R))
        assert search._ended == "time"
        clock.now = end
        search.consider({(A, R): "in time"})
        assert search.is_planned((A, R))
    assert search.record().seconds_spent == 10.0


def test_stop_ends_planning():
    cancel = threading.Event()
    search = searching(vector(4), cancel=cancel)
    search._try((R,), "")
    cancel.set()
    search.consider({(A,): "late"})
    assert (search.is_planned((A,)), search._ended) == (False, "stopped")


def test_progress_states_the_phase_and_the_seconds(monkeypatch):
    clock, phases = Time(monkeypatch), []
    program = vector(4)
    search = searching(program, progress=lambda *phase: phases.append(phase))
    clock.now += 2
    search._try((R,), "")
    search._until = 200.0
    search._explore(200.0)
    assert phases[0] == ("planned 7 choices", 2.0)
    compilations = [phase for phase, _ in phases if phase.startswith("compiling")]
    assert compilations[:2] == [f"compiling choice {number} for CPU devices" for number in (1, 2)]


def test_failed_compilations_are_noted(monkeypatch):
    clock = Time(monkeypatch)
    program = vector(4, 4)
    program.failing = {(A, R)}
    search = searching(program)
    search.rehearse((A, R))
    assert (search._notes, search._ended, search.is_rehearsed((A, R))) == (["c" * 300], "complete", True)
    program.compile = program.rehearse
    search.compile((A, R), timeout_seconds=5.0)
    assert search._notes == ["c" * 300] * 2
    start = clock.now
    clock.now += 4.9
    search._note_failure((R, R), EngineError("broken"), start, 5.0)
    assert (search._notes[-1], search._ended) == ("broken", "complete")
    clock.now = start + 5.0
    search._note_failure((R, R), EngineError("late"), start, 5.0)
    assert (search._notes[-1], search._ended) == ("broken", "time")


def explored(program, seconds=1e6, **options):
    search = searching(program, seconds=seconds, **options)
    search._seed()
    search._explore(search._began + seconds)
    return search


def test_first_compilation_has_no_limit_and_the_others_the_time_that_is_left(monkeypatch):
    clock = Time(monkeypatch)
    program = vector(4)
    original = program.rehearse

    def slow(specs, **options):
        clock.now += 6.0
        return original(specs, **options)

    program.rehearse = slow
    search = explored(program, 10.0)
    assert [timeout for _, timeout in program.rehearsed] == [None, 4.0]
    assert search._ended == "time" or len(program.rehearsed) == 2
    program = three()
    original = program.rehearse
    program.rehearse = slow
    search = explored(program, 5.5)
    assert (len(program.rehearsed), search._ended) == (1, "time")
    program.rehearsed.clear()
    search = explored(program, 6.5)
    assert [timeout for _, timeout in program.rehearsed] == [None, 1.0]  # at least a second


def test_two_best_the_batch_and_named_choices_are_compiled_first():
    program = vector(4, 4)
    program.groups[0].outputs = [0]  # the batch is x
    program.seconds = {(A, A): 0.1, (A, R): 0.2, (R, A): 0.9}
    explored(program)
    assert [specs for specs, _ in program.rehearsed][:4] == [(A, A), (A, R), (R, A), (R, R)]


def test_promising_choices_are_nearly_as_fast_as_the_best():
    search, listed = many(10)
    assert search._promising((True, float("inf"))) == listed[0]
    search._compiled = {listed[0]: search._plans[listed[0]]}
    search._compiled[listed[5]] = search._plans[listed[5]]
    search._compiled[listed[6]] = search._plans[listed[6]]  # three are compiled, so the best as planned is next
    assert search._promising((False, 2.0)) == listed[1]
    assert search._promising((False, 1.61)) == listed[1]  # 2.0 < 1.25 * 1.61
    assert search._promising((False, 1.6)) is None


def test_third_choice_is_the_most_different_of_the_near_ones():
    program = Program(group("w", 8, size=5), group("x", 8, size=7), axes={"data": 2})
    program.seconds = {(R, R): 1.0, (A, R): 1.1, (R, A): 1.9, (A, A): 2.3}
    search = searching(program)
    for specs in program.seconds:
        search._try(specs, "")
    search._failed = {(R, R)}
    search._compiled = {(B, B): program.priced((B, B), 1.0, "compiled")}
    search._plans.pop((B, B), None)
    assert len(search._tried) % 3 == 2
    # each differs from (B, B) by 12 bytes, and from (R, R) by 5, 7 and 12; the last is more than twice as slow
    assert search._promising((False, 2.0)) == (R, A)
    program.seconds[A, A] = 2.2
    search._plans[A, A] = program.priced((A, A), 2.2, "planned")
    assert search._promising((False, 2.0)) == (A, A)


B = (("other",),)


def test_second_choice_is_the_best_as_corrected():
    program = Program(group("w", 8, size=5), group("x", 8, size=7), axes={"data": 2})
    program.seconds = {(R, R): 1.0, (A, R): 1.1, (R, A): 1.2}
    search = searching(program)
    for specs in program.seconds:
        search._try(specs, "")
    search._compiled = {(R, R): program.priced((R, R), 3.0, "compiled")}
    for at in range(3):
        search._failed.add((B, (str(at),)))
    assert len(search._tried) % 3 == 1
    assert search._promising((False, 9.0)) == (A, R)
    assert search._corrected((A, R)) == (False, pytest.approx(1.1 * 3.0 * 1.0001))
    search._compiled[R, A] = program.priced((R, A), 0.6, "compiled")
    search._plans[A, A] = program.priced((A, A), 1.5, "planned")
    assert search._corrected((A, A))[1] == pytest.approx(1.5 * 0.5 * 1.0001)  # as (R, A), which shards x as well
    search._compiled[R, A] = program.priced((R, A), None, "compiled")
    assert search._corrected((A, A))[1] == pytest.approx(1.5 * 1.0001)


def test_changes_around_a_good_choice_are_planned():
    program = vector(4, 4)
    search = searching(program)
    search._try((A, R), "")
    program.calls.clear()
    search._step = lambda _: None
    search._plan_around((A, R))
    assert program.calls == [(A, A)]
    program.groups[1].locked = R
    program.calls.clear()
    search._plan_around((A, R))
    assert program.calls == []
    third = vector(4, 4, 4)
    search = searching(third)
    search._try((A, R, R), "")
    third.calls.clear()
    search._step = lambda _: None
    search._plan_around((A, R, R))
    assert third.calls == [(A, A, None), (A, A, R), (A, None, A), (A, R, A)]
    third.groups[2].size_bytes = 0
    third.calls.clear()
    search._plan_around((A, R, R))
    assert third.calls == [(A, A, None), (A, A, R)]


def for_chip(planned, rehearsed=None, compiled=None, peaks=None, names=(), failed=()):
    """The next choice for the chip's compiler, of choices with these seconds; the memory is 1,000 B."""
    program = vector(8, target="v5e:2x4")
    specs = {name: (((name,),),) for name in planned}
    program.peaks = {specs[name]: peak for name, peak in (peaks or {}).items()}
    search = searching(program)
    for name, seconds in planned.items():
        search._plans[specs[name]] = program.priced(specs[name], seconds, "planned")
    for name, seconds in (rehearsed or {}).items():
        search._rehearsed[specs[name]] = program.priced(specs[name], seconds, "rehearsed")
    for name, seconds in (compiled or {}).items():
        search._compiled[specs[name]] = program.priced(specs[name], seconds, "compiled")
    search._names = {specs[name]: name for name in names}
    search._failed = {specs[name] for name in failed}
    chosen = search._next_for_chip()
    return None if chosen is None else chosen[0][0][0]


PLANNED = {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"planned": PLANNED, "rehearsed": {"b": 5.0, "c": 4.0}}, "c"),
        ({"planned": PLANNED}, "a"),
        ({"planned": PLANNED, "failed": "a"}, "b"),
        ({"planned": PLANNED, "failed": "abc"}, None),
        ({"planned": PLANNED, "compiled": {"a": 2.0}}, "b"),
        ({"planned": PLANNED, "compiled": {"a": 1.61}}, "b"),  # 2.0 < 1.25 * 1.61
        ({"planned": PLANNED, "compiled": {"a": 1.59}}, None),
        ({"planned": PLANNED, "compiled": {"a": 1.59}, "names": "c"}, "c"),
        ({"planned": PLANNED, "compiled": {"a": 2.9}, "rehearsed": {"c": 3.6}}, "c"),
        ({"planned": PLANNED, "compiled": {"a": 2.8}, "rehearsed": {"c": 3.6}}, "b"),
        ({"planned": PLANNED, "compiled": {"a": 1.9}, "rehearsed": {"c": 3.6}}, None),  # 2.0 is not faster
        ({"planned": PLANNED, "compiled": {"a": 9.0}, "peaks": {"c": 2000.0}}, "c"),  # it may fit after all
        ({"planned": PLANNED, "compiled": {"a": 9.0}, "peaks": {"c": 2001.0}}, "b"),
        ({"planned": PLANNED, "compiled": {"a": 2.99}, "peaks": {"c": 2000.0}}, "b"),
        ({"planned": PLANNED, "compiled": {"a": 9.0}, "peaks": {"a": 1001.0, "c": 2000.0}}, "b"),
    ],
)
def test_next_choice_for_the_compiler_of_the_chip(given, expected):
    assert for_chip(**given) == expected


def test_choice_may_fit_if_its_estimate_is_below_twice_the_memory():
    search, [specs] = many(1)

    def may_fit(**fields):
        given = {"specs": specs, "seconds": 1.0, "peak_bytes": 1500.0, "argument_bytes": 1000.0, "fits": False} | fields
        search._plans[specs] = Priced(**given)
        return search._may_fit(specs)

    assert may_fit()
    assert may_fit(peak_bytes=2000.0)
    assert may_fit(peak_bytes=None, argument_bytes=None)
    assert not may_fit(peak_bytes=2001.0)
    assert not may_fit(argument_bytes=1001.0)
    assert not may_fit(fits=True)
    assert not may_fit(fits=None)


def test_time_of_the_chip_compiler_ends_the_search(monkeypatch):
    clock = Time(monkeypatch)
    program = three(target="v5e:2x4")
    original = program.compile

    def slow(specs, **options):
        clock.now += 4.0
        return original(specs, **options)

    program.compile = slow
    phases, records = [], []
    search = searching(program, seconds=10.0, progress=lambda phase, _: phases.append(phase), found=records.append)
    search._seed()
    records.clear()
    rehearsed_until = []
    search._explore = rehearsed_until.append
    clock.now += 1.0
    search._compile_best()
    assert rehearsed_until == [105.5]  # half of the nine seconds that are left
    assert [timeout for _, timeout in program.compiled] == [9.0, 5.0]
    assert search._ended == "time"
    assert [phase for phase in phases if "for here" in phase] == [
        "compiling choice 1 for here",
        "compiling choice 2 for here",
    ]
    assert len(records) == 2
    short = searching(program, seconds=2.5)
    short._seed()
    short._explore = rehearsed_until.append
    clock.now += 2.0
    program.compiled.clear()
    short._compile_best()
    assert [timeout for _, timeout in program.compiled] == [1.0]


def test_five_choices_are_compiled_for_the_chip():
    program = three(target="v5e:2x4")
    search = searching(program)
    search._seed()
    search._explore = lambda until: None
    search._compile_best()
    assert len(program.compiled) == 5
    assert not any("did not finish" in note for note in search._notes)


def test_compiler_of_the_chip_that_never_finishes_is_noted():
    program = three(target="v5e:2x4")

    def broken(specs, **options):
        raise EngineError("broken")

    program.compile = broken
    search = searching(program)
    search._seed()
    search._explore = lambda until: None
    search._compile_best()
    assert search._notes[-1] == (
        "the compiler for here did not finish in time: pass a larger `seconds=`, or use the CPU compiler's figures"
    )
    empty = searching(three(target="v5e:2x4"))
    empty._explore = lambda until: None
    empty._compile_best()
    assert empty._notes == []


def test_combination_of_changes():
    base = Priced((), 10.0, 100.0, 0.0)

    def option(group, name, seconds, peak):
        return group, name, Priced((), seconds, peak, 0.0)

    assert _joined(base, [], 1000) == []
    assert _joined(base, [option(0, "a", None, 0.0)], 1000) == []
    assert _joined(Priced((), None, 0.0, 0.0), [option(0, "a", 1.0, 0.0)], 1000) == []
    two = [
        option(0, "a", 9.0, 100.0),
        option(0, "b", 8.0, 100.0),
        option(3, "c", 9.0, 100.0),
        option(5, "d", 11.0, 0.0),
    ]
    assert _joined(base, two, 1000) == [(0, "b"), (3, "c")]
    memory = [option(0, "a", 9.0, 700.0), option(1, "b", 9.5, 500.0)]  # one fits: 600 B of 900 B, or 400 B
    assert _joined(base, memory, 1000) == [(0, "a")]
    too_large = Priced((), 10.0, 2000.0, 0.0)
    smaller = [option(0, "a", 11.0, 1500.0), option(1, "b", 12.0, 1800.0)]
    assert _joined(too_large, smaller, 1000) == [(0, "a"), (1, "b")]  # as small as possible
    equal = [option(0, "large", 9.0, 500.0), option(0, "small", 9.0, 400.0)]
    assert _joined(base, equal, 1000) == [(0, "small")]
    assert _joined(Priced((), 10.0, None, 0.0), [option(0, "a", 9.0, None)], 10) == [(0, "a")]


def test_specs_of_a_shape():
    assert candidates((8, 6), {"data": 4, "model": 2, "one": 1}) == [
        W0, (M, ()), ((), M), (D, ()), (DM, ()), (D, M),
    ]  # fmt: skip
    assert len(candidates((64,) * 5, {"a": 2, "b": 2, "c": 2})) == 81
    assert candidates((), {"data": 2}) == [()]
    assert fits(W0, (8, 8), AXES)
    assert not fits(W0, (8,), AXES)
    assert not fits((D, D), (8, 8), AXES)
    assert not fits((("other",), ()), (8, 8), AXES)
    assert fits((DM, ()), (8, 8), AXES)
    assert not fits((DM, ()), (4, 8), AXES)
    assert pattern_argument("state.params['w']") == "state"
