"""The contest of tuning with given times: candidates, runs, margins and words, derived by hand."""

import itertools
import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.plan import LoopForm, _tune, choose_loop, trace
from workbench.plan._choices import choice_record, load_choice, store_choice
from workbench.plan._loop_form import KEPT_BYTES
from workbench.plan._tune import Candidate, Contest, candidate_sizes

RULE = Candidate("auto", LoopForm())


def s(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@wb.program(clients=48)
def mean(x: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(lambda row: row + 1, x))


def contest(timed: dict[Candidate, list[tuple[float, float]]] | None = None, form: LoopForm = RULE.form) -> Contest:
    made = Contest(types.SimpleNamespace(fn=mean, options={}), form, (s(48),), {}, seconds=100.0)  # type: ignore[arg-type]
    made._timed.update(timed or {})
    return made


@pytest.fixture(autouse=True)
def compiles_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(_tune, "Jitted", lambda *_: lambda *_: ())
    monkeypatch.setattr(_tune, "choose_chunk_size", lambda phase, share: min(share, 6))


def running(monkeypatch: pytest.MonkeyPatch, seconds: Any) -> list[Candidate]:
    """Gives each run its seconds; returns the candidates that ran, in order."""
    ran: list[Candidate] = []

    def run(self: Contest, candidate: Candidate) -> float:
        ran.append(candidate)
        return seconds(candidate)

    monkeypatch.setattr(Contest, "_run", run)
    return ran


# ---- candidates


@pytest.mark.parametrize(
    ("clients", "row", "sizes"),
    [
        # sizes below the clients of a device, without the rule's 6; all together comes third
        (1, 1, ["auto"]), (2, 1, ["auto", 1, None]), (3, 1, ["auto", 1, 2, None]), (7, 1, ["auto", 1, 4, None, 2]),
        (8, 1, ["auto", 1, 4, None, 2]), (9, 1, ["auto", 1, 8, None, 4, 2]),
        (64, 1, ["auto", 1, 8, None, 4, 16, 2, 32]), (65, 1, ["auto", 1, 8, None, 4, 16, 2, 32, 64]),
        # a client of 2 · 128 MiB: only 8 clients fit in 2 GiB; of 4 GiB, a single one
        (9, 2**25, ["auto", 1, 8, 4, 2]), (8, 2**25, ["auto", 1, 4, None, 2]), (9, 2**25 + 1, ["auto", 1, 4, 2]),
        (9, 2**29, ["auto", 1]),
    ],
)  # fmt: skip
def test_chunk_sizes_to_try(clients: int, row: int, sizes: list[Any]) -> None:
    program = wb.program(clients=clients)(lambda x: wb.reduce_sum(wb.map_fn(lambda row: row + 1, x)))
    assert candidate_sizes(trace(program, (s(clients, row),)).plan) == sizes


def test_the_size_of_the_rule_is_not_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tune, "choose_chunk_size", lambda phase, share: 4)
    assert candidate_sizes(trace(mean, (s(48),)).plan) == ["auto", 1, 8, None, 16, 2, 32]
    assert candidate_sizes(trace(lambda x: x + 1, (s(3),)).plan) == ["auto"]


@wb.program(clients=8)
def two_passes(x: Any) -> Any:
    rows = wb.map_fn(lambda a: 2 * a, x)
    return wb.reduce_sum(wb.map_fn(lambda r, m: r - m, (rows, wb.broadcast(wb.reduce_mean(rows)))))


@pytest.mark.parametrize(
    ("columns", "form", "kept"),
    [
        (1, LoopForm(), 0), (2**21, LoopForm(), 0), (2**21 + 1, LoopForm(), math.inf), (2**26, LoopForm(), math.inf),
        (2**26 + 1, LoopForm(), None), (1, LoopForm(kept_bytes=0), None),
    ],
)  # fmt: skip
def test_waiting_rows_are_tried_the_other_way(columns: int, form: LoopForm, kept: float | None) -> None:
    """8 rows of 4 bytes a column: 2**21 columns are 64 MiB, and 2**26 are 2 GiB."""
    ranked = [Candidate(size, form) for size in (4, None, 1, 2)]
    found = _tune._waiting_forms(trace(two_passes, (s(8, columns),)).plan, ranked)
    expected = [] if kept is None else [Candidate(size, LoopForm(kept_bytes=kept)) for size in (4, 1)]
    assert found == expected


def test_without_waiting_rows_there_is_no_other_way() -> None:
    assert _tune._waiting_forms(trace(mean, (s(48),)).plan, [RULE]) == []


@pytest.mark.parametrize(
    ("size", "unrolls"), [(1, [2, 4]), (9, [2, 4]), (10, [2]), (16, [2]), (17, []), (None, []), ("auto", [2, 4])]
)
def test_chunks_of_an_iteration_are_fewer_than_all_chunks(size: Any, unrolls: list[int]) -> None:
    """48 clients; the rule takes 6 together."""
    found = _tune._loop_forms(trace(mean, (s(48),)).plan, [Candidate(size, LoopForm()), RULE])
    assert found == [Candidate(size, LoopForm(unroll=count)) for count in unrolls]


def test_both_spreads_are_tried_on_a_mesh_alone() -> None:
    one, other = jax.sharding.AbstractMesh((4,), ("clients",)), jax.sharding.AbstractMesh((4,), ("model",))
    spreads = []
    for mesh in (one, other):
        with jax.sharding.use_abstract_mesh(mesh):
            plan = trace(mean, (s(48),)).plan
            spreads += [[c.form.spread for c in _tune._loop_forms(plan, [Candidate(None, LoopForm(spread))])]
                        for spread in ("auto", "vmap")]  # fmt: skip
    assert spreads == [["vmap"], [], [], []]


# ---- runs


def test_every_candidate_has_three_runs_but_slow_ones_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: dict[Any, float] = {"auto": 1.0, 1: 1.99, 2: 2.0, 3: 2.01, 4: 1.5}
    ran = running(monkeypatch, lambda candidate: seconds[candidate.chunk_size])
    made = contest()
    made._enter(Candidate(size, LoopForm()) for size in seconds)
    runs = {candidate.chunk_size: len(timed) for candidate, timed in made._timed.items()}
    # each run is next to a run of the rule's choice, which was first alone
    assert runs == {"auto": 1 + 3 + 3 + 1 + 3, 1: 3, 2: 3, 3: 1, 4: 3}
    assert len(ran) == 1 + 2 * 10
    assert [made._ratio(candidate) for candidate in made._timed] == [1.0, 1.99, 2.0, 2.01, 1.5]
    assert [candidate.chunk_size for candidate in ran[:9]] == ["auto", 1, "auto", 2, "auto", 3, "auto", 4, "auto"]


def test_the_order_of_a_pair_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = running(monkeypatch, lambda candidate: 1.0 if candidate is RULE else 0.5)
    made = contest({RULE: [(1.0, 1.0)]})
    for _ in range(3):
        made._pair(Candidate(1, LoopForm()))
    sizes = [candidate.chunk_size for candidate in ran]
    assert sizes == [1, "auto", "auto", 1, 1, "auto"]
    assert made._timed[Candidate(1, LoopForm())] == [(0.5, 0.5)] * 3
    assert made._timed[RULE] == [(1.0, 1.0)] * 4


def test_candidates_near_the_best_run_six_more_times_and_only_these_count(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = {
        Candidate(size, LoopForm()): [(ratio, ratio)] * 3
        for size, ratio in (("auto", 1.0), (1, 0.9), (2, 1.03), (3, 1.04), (4, 0.95), (5, 0.96), (6, 0.97))
    }
    ran = running(monkeypatch, lambda candidate: 1.0 if candidate.chunk_size == "auto" else 2.0)
    made = contest({RULE: timed.pop(RULE), **timed})
    made._last_runs()
    # within 15 % of 0.9 are 1, 4, 5, 6 and 2; the best four run
    assert {candidate.chunk_size for candidate in ran} == {"auto", 1, 4, 5, 6}
    assert [ran.count(Candidate(size, LoopForm())) for size in (1, 4, 5, 6)] == [6] * 4
    assert {size: len(made._timed[Candidate(size, LoopForm())]) for size in (1, 2, 3, 4)} == {1: 6, 2: 3, 3: 3, 4: 6}
    assert made._ratio(Candidate(1, LoopForm())) == 2.0
    others = [candidate.chunk_size for candidate in ran if candidate.chunk_size != "auto"]
    assert others[:8] == [6, 5, 4, 1, 1, 4, 5, 6]


def test_late_runs_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0.0, 10.0)  # of 100 s
    monkeypatch.setattr(_tune, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    ran = running(monkeypatch, lambda candidate: 1.0)
    made = contest()
    made._enter(Candidate(size, LoopForm()) for size in ("auto", *range(1, 50)))
    # the first two candidates enter in any case, the others while at most 70 s have passed
    assert len(made._timed) == 2 + 7
    assert all(len(timed) == 1 for candidate, timed in made._timed.items() if candidate != RULE)
    assert len(ran) == 1 + 2 * 8


@pytest.mark.parametrize(("passed", "share", "late"), [(70.0, 0.7, False), (70.1, 0.7, True), (100.0, 1.0, False),
                                                       (100.1, 1.0, True)])  # fmt: skip
def test_time_is_up(monkeypatch: pytest.MonkeyPatch, passed: float, share: float, late: bool) -> None:
    now = iter([5.0, 5.0 + passed])
    monkeypatch.setattr(_tune, "time", types.SimpleNamespace(monotonic=lambda: next(now)))
    assert contest()._late(share) is late


def test_a_run_repeats_short_calls_for_20_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 1.008, 1.016, 1.024, 9.0])
    monkeypatch.setattr(_tune, "time", types.SimpleNamespace(perf_counter=lambda: next(now), monotonic=lambda: 0.0))
    calls: list[int] = []
    made = contest()
    made._jitted[RULE] = lambda *_: calls.append(1)  # type: ignore[assignment]
    assert made._run(RULE) == pytest.approx(0.024 / 3)
    assert len(calls) == 3


def test_a_candidate_that_fails_is_dropped_and_the_rule_never(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(candidate: Candidate) -> float:
        if candidate.chunk_size in failed:
            raise MemoryError
        return 1.0

    failed: tuple[Any, ...] = (2,)
    running(monkeypatch, failing)
    made = contest()
    made._enter(Candidate(size, LoopForm()) for size in ("auto", 1, 2, 3))
    assert [candidate.chunk_size for candidate in made._timed] == ["auto", 1, 3]
    failed = ("auto",)
    with pytest.raises(MemoryError):
        contest()._enter([RULE])


# ---- the winner


@pytest.mark.parametrize(
    ("runs", "ratio", "wins"),
    [(6, 0.969, True), (5, 0.969, True), (5, 0.97, False), (4, 0.94, False), (4, 0.929, True), (3, 0.93, False),
     (3, 0.929, True), (2, 0.8, False), (2, 0.799, True), (1, 0.799, True)],
)  # fmt: skip
def test_with_fewer_runs_a_larger_margin_is_needed(runs: int, ratio: float, wins: bool) -> None:
    other = Candidate(4, LoopForm(unroll=2))
    choice = contest({RULE: [(0.0022345, 1.0)] * 7, other: [(0.0012345, ratio)] * runs})._winner()
    assert (choice.chunk_size, choice.unroll) == ((4, 2) if wins else ("auto", 1))
    if wins:
        assert choice.why == (
            f"4 clients together, 2 chunks per iteration took 1.23 ms, median of {runs} runs: {ratio:.2f} of the time "
            "of the rule's choice, in paired runs."
        )
    else:
        assert choice.why == (
            "The rule's choice took 2.23 ms, median of 7 runs; none of the 1 other candidates was faster by more than "
            "the measurement noise."
        )
    assert (choice.source, choice.program, len(choice.candidates)) == ("measured", "mean", 2)


def test_seconds_of_the_winner_are_milliseconds_with_three_digits() -> None:
    assert "took 600 ms, median of 1 runs" in contest({RULE: [(0.6, 1.0)]})._winner().why


def test_the_best_of_the_sure_candidates_wins_and_each_has_its_record() -> None:
    timed = {RULE: [(1.0, 1.0)] * 3}
    ratios = (1, 0.7, 1), (2, 0.75, 5), (4, 0.71, 5)
    timed |= {Candidate(size, LoopForm()): [(1.0, ratio)] * runs for size, ratio, runs in ratios}
    timed[Candidate(None, LoopForm(kept_bytes=math.inf))] = [(3.0, 0.5), (1.0, 2.0), (2.5, 1.5)]
    choice = contest(timed)._winner()
    assert choice.chunk_size == 1
    last = choice.candidates[-1]
    assert (last.chunk_size, last.kept_bytes, last.runs, last.ratio) == (None, None, 3, 1.5)
    assert (last.median_seconds, last.fastest_seconds, last.slowest_seconds) == (2.5, 1.0, 3.0)


def test_best_so_far_needs_two_candidates() -> None:
    assert contest()._timed == {}
    assert contest().best_so_far() is None
    assert contest({RULE: [(1.0, 1.0)]}).best_so_far() is None
    choice = contest({RULE: [(1.0, 1.0)], Candidate(1, LoopForm()): [(0.5, 0.5)]}).best_so_far()
    assert choice is not None
    assert choice.chunk_size == 1
    assert choice.why.startswith("Stopped after 2 candidates. One client at a time took 500 ms")


@pytest.mark.parametrize(
    ("size", "form", "words"),
    [
        ("auto", LoopForm(), "The rule's chunks"), (None, LoopForm(), "All clients of a device together"),
        (1, LoopForm(), "One client at a time"), (2, LoopForm(unroll=4), "2 clients together, 4 chunks per iteration"),
        (2, LoopForm("vmap"), '2 clients together, spread by "vmap"'),
        (2, LoopForm(kept_bytes=0), "2 clients together, rows for the second pass recomputed"),
        (2, LoopForm("vmap", math.inf, 2),
         '2 clients together, rows for the second pass kept, 2 chunks per iteration, spread by "vmap"'),
    ],
)  # fmt: skip
def test_a_candidate_in_words(size: Any, form: LoopForm, words: str) -> None:
    assert _tune._in_words(Candidate(size, form), LoopForm()) == words
    assert LoopForm().kept_bytes == KEPT_BYTES == 64 * 2**20


def test_choices_by_the_rule_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def choice(fn: Any, *shapes: Any) -> Any:
        program: Any = types.SimpleNamespace(fn=fn, options={})
        return Contest(program, RULE.form, shapes, {}, seconds=1.0).choose()

    one = choice(lambda x: x + 1, s(3))
    assert (one.source, one.chunk_size) == ("rule", "auto")
    assert one.why == "There is only one way to process the clients on these devices."

    @wb.program(clients=8)
    def noisy(x: Any) -> Any:
        jax.debug.print("x")
        return wb.reduce_sum(x)

    assert choice(noisy, s(8)).why == (
        "Tuning would repeat the program's side effects (callbacks, printing or writing)."
    )
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert choice(mean, s(48)).why == ("Several processes run the program, and could choose differently and deadlock.")


def test_a_stored_choice_is_loaded_for_the_same_program_and_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(fn: Any, *shapes: Any) -> Any:
        return trace(fn, shapes).plan

    @wb.program(clients=48)
    def other(x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(lambda row: row + 2, x))

    form, measured = LoopForm(), choice_record(4, LoopForm(), program="mean", source="measured", why="Fastest.")
    assert load_choice(of(mean, s(48)), form) is None
    store_choice(of(mean, s(48)), form, measured)
    loaded = load_choice(of(mean, s(48)), form)
    assert loaded == measured.replace(source="cache", why="Measured before by this user on the same devices: Fastest.")
    assert load_choice(of(other, s(48)), form) is None
    assert load_choice(of(mean, s(48, 2)), form) is None
    assert load_choice(of(mean, s(48)), LoopForm("vmap")) is None
    chosen = [choose_loop(of(mean, s(48)), size, form, program="p") for size in ("auto", 3)]
    assert [(c.program, c.source, c.chunk_size) for c in chosen] == [("p", "cache", 4), ("p", "given", 3)]
    assert choose_loop(of(other, s(48)), "auto", form, program="p").source == "rule"
    monkeypatch.setattr(jax, "process_count", lambda: 2)  # disks may differ
    assert load_choice(of(mean, s(48)), form) is None


# ---- arguments


def test_made_up_numbers_are_random_or_valid_labels() -> None:
    numbers = _tune._made_up(s(3, dtype="bfloat16"))
    assert jnp.array_equal(numbers, jax.random.normal(jax.random.key(0), (3,), "bfloat16"))
    assert jnp.array_equal(_tune._made_up(s(2, dtype="int32")), jnp.zeros(2, "int32"))
    keys = _tune._made_up(s(2, dtype=jax.random.key(0).dtype))  # type: ignore[arg-type]
    assert jnp.array_equal(jax.random.key_data(keys), jax.random.key_data(jax.random.split(jax.random.key(0), (2,))))
    assert _tune._made_up(5) == 5


def test_calls_are_told_apart_by_shapes_structure_and_other_leaves() -> None:
    x = jnp.ones(3)
    calls = [((leaf,), {}) for leaf in (x, s(2), s(3, dtype="int32"), 5, 6, "5", [x])]
    keys = [_tune._shapes(args, kwargs) for args, kwargs in (*calls, ((), {"x": x}))]
    assert len(set(keys)) == len(keys)
    assert _tune._shapes((x + 1,), {}) == keys[0]
