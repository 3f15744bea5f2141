"""The chunk size by measuring: what is chosen, kept, refused, and what a call with it gives."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import ProgramError
from workbench.plan import LoopForm, _tune, trace
from workbench.plan._tune import candidate_sizes
from workbench.records.program import PlanChoiceRecord

CLIENTS = 12


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(_tune, "_CHUNK_SIZES", (1, 4))  # each candidate is compiled
    return tmp_path / "plans"


@wb.program(clients=CLIENTS)
def mean_of_squares(w, x):
    return wb.reduce_mean(wb.map_fn(lambda w, row: (w @ row) ** 2, (wb.broadcast(w), x)))


def arguments():
    random = np.random.default_rng(0)
    return jnp.asarray(random.normal(size=8), jnp.float32), jnp.asarray(random.normal(size=(CLIENTS, 8)), jnp.float32)


def form(choice):
    return choice.chunk_size, choice.spread, choice.kept_bytes, choice.unroll


def test_choice_is_measured_among_all_candidates_and_gives_the_same_numbers():
    w, x = arguments()
    tuned = wb.jit(mean_of_squares, chunk_size="tune", tune_seconds=600)
    np.testing.assert_allclose(tuned(w, x), jnp.mean((x @ w) ** 2), rtol=1e-5)
    choice = tuned.plan_choice
    assert choice.source == "measured"
    sizes = candidate_sizes(trace(mean_of_squares, (w, x)).plan)
    assert [c.chunk_size for c in choice.candidates][: len(sizes)] == sizes
    fields = ("chunk_size", "spread", "kept_bytes", "unroll")
    assert [all(getattr(c, name) == getattr(choice, name) for name in fields) for c in choice.candidates].count(
        True
    ) == 1
    assert all(c.fastest_seconds <= c.median_seconds <= c.slowest_seconds for c in choice.candidates)
    assert PlanChoiceRecord.from_json(choice.to_json()) == choice


def test_choice_is_measured_once_per_program_shapes_and_process(cache):
    w, x = arguments()
    wb.jit(mean_of_squares, chunk_size="tune")(w, x)
    again = wb.jit(mean_of_squares, chunk_size="tune")
    again(w, x)
    assert again.plan_choice.source == "cache"
    again(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16))
    assert again.plan_choice.source == "measured"
    again(w, x)
    assert again.plan_choice.source == "cache"
    assert len(list(cache.iterdir())) == 2


def test_program_that_is_inspected_is_the_one_that_runs():
    w, x = arguments()
    tuned = wb.jit(mean_of_squares, chunk_size="tune")
    tuned(w, x)
    assert tuned.chunk_size == tuned.plan_choice.chunk_size
    assert tuned.lower(w, x).as_text() == wb.jit(mean_of_squares, chunk_size=tuned.chunk_size).lower(w, x).as_text()


def test_automatic_choice_is_what_was_measured_before(cache, monkeypatch):
    w, x = arguments()
    before = wb.trace(mean_of_squares)(w, x)
    assert before.plan_choice.source == "rule"
    assert before.plan.chunk_size == CLIENTS  # the rule computes these small clients together
    monkeypatch.setattr(_tune.Contest, "_run", lambda self, candidate: 1.0 if candidate.chunk_size == 4 else 2.0)
    wb.jit(mean_of_squares, chunk_size="tune", tune_seconds=600)(w, x)
    after = wb.trace(mean_of_squares)(w, x)
    assert (after.plan_choice.source, after.plan_choice.chunk_size, after.plan.chunk_size) == ("cache", 4, 4)
    assert after.inspect().plan.chunk_size == 4
    four = wb.jit(mean_of_squares, chunk_size=4).lower(w, x).as_text()
    assert wb.jit(mean_of_squares).lower(w, x).as_text() == four
    assert wb.jit(mean_of_squares).lower(w, x[:, ::2].repeat(2, 1)).as_text() == four
    assert wb.trace(mean_of_squares)(w.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).plan_choice.source == "rule"


def test_choice_for_other_shapes_is_not_shown():
    w, x = arguments()
    tuned = wb.jit(mean_of_squares, chunk_size="tune")
    tuned(w, x)
    assert wb.trace(tuned)(w, x).plan_choice == tuned.plan_choice
    assert wb.trace(tuned)(jnp.ones(16), jnp.ones((CLIENTS, 16))).plan_choice.source == "rule"


def test_candidate_that_cannot_be_computed_ends_nothing(monkeypatch):
    w, x = arguments()
    forms = _tune._loop_forms

    def with_one_that_fails(plan, ranked):
        return [_tune.Candidate("no size", LoopForm()), *forms(plan, ranked)]

    monkeypatch.setattr(_tune, "_loop_forms", with_one_that_fails)
    tuned = wb.jit(mean_of_squares, chunk_size="tune", tune_seconds=600)
    np.testing.assert_allclose(tuned(w, x), jnp.mean((x @ w) ** 2), rtol=1e-5)
    assert "no size" not in [c.chunk_size for c in tuned.plan_choice.candidates]


def test_several_processes_choose_by_the_rule_alone(monkeypatch):
    w, x = arguments()
    wb.jit(mean_of_squares, chunk_size="tune")(w, x)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert wb.trace(mean_of_squares)(w, x).plan_choice.source == "rule"
    tuned = wb.jit(mean_of_squares, chunk_size="tune")
    assert tuned.tune(w, x).source == "rule"


def gradient(w, x):
    return jax.grad(lambda w: mean_of_squares(w, x) ** 2)(w)


def test_forms_of_a_gradient_are_tried_and_a_saved_choice_makes_the_same_plan(monkeypatch):
    w, x = arguments()
    kept_apart = _tune.Candidate(4, LoopForm(kept_bytes=0, unroll=2))

    def seconds(self, candidate):
        return (
            2.0 - 0.5 * (candidate.chunk_size == 4) - 0.5 * (candidate.form.kept_bytes == 0) - (candidate == kept_apart)
        )

    monkeypatch.setattr(_tune.Contest, "_run", seconds)
    tuned = wb.jit(gradient, chunk_size="tune", tune_seconds=600)
    np.testing.assert_allclose(tuned(w, x), jax.jit(gradient)(w, x), rtol=1e-4)
    choice = tuned.plan_choice
    assert (choice.chunk_size, choice.kept_bytes, choice.unroll, choice.spread) == (4, 0, 2, "auto")
    assert "rows for the second pass recomputed, 2 chunks per iteration" in choice.why
    saved = wb.jit(gradient, plan=PlanChoiceRecord.from_json(choice.to_json()))
    assert saved.lower(w, x).as_text() == tuned.lower(w, x).as_text()
    assert wb.trace(saved)(w, x).plan_choice == choice
    np.testing.assert_allclose(saved(w, x), jax.jit(gradient)(w, x), rtol=1e-4)


def test_both_spreads_are_tried_on_a_mesh(mesh_of_four):
    w, x = arguments()
    with jax.set_mesh(mesh_of_four):
        tuned = wb.jit(mean_of_squares, chunk_size="tune", tune_seconds=600)
        np.testing.assert_allclose(tuned(w, x), jnp.mean((x @ w) ** 2), rtol=1e-5)
    assert {c.spread for c in tuned.plan_choice.candidates} == {"auto", "vmap"}


@pytest.fixture
def mesh_of_four():
    return wb.make_mesh(clients=4)


def test_shapes_alone_are_measured_on_made_up_numbers():
    w, x = arguments()
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in (w, x)]
    tuned = wb.jit(mean_of_squares, chunk_size="tune")
    choice = tuned.tune(*shapes)
    assert choice.source == "measured"
    tuned(w, x)
    assert tuned.plan_choice is choice


def test_made_up_numbers_have_the_sharding_of_their_shape(mesh_of_four):
    sharding = jax.NamedSharding(mesh_of_four, jax.P("clients"))
    made = _tune._made_up(jax.ShapeDtypeStruct((CLIENTS, 8), jnp.float32, sharding=sharding))
    assert (made.shape, made.sharding) == ((CLIENTS, 8), sharding)


def test_interrupted_tuning_keeps_the_best_so_far(monkeypatch, cache):
    w, x = arguments()
    runs = iter([2.0, 1.0, 2.0, 2.0, 1.5])  # the rule's choice, and two pairs with it

    def seconds(self, candidate):
        try:
            return next(runs)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(_tune.Contest, "_run", seconds)
    tuned = wb.jit(mean_of_squares, chunk_size="tune")
    with pytest.raises(KeyboardInterrupt):
        tuned(w, x)
    np.testing.assert_allclose(tuned(w, x), jnp.mean((x @ w) ** 2), rtol=1e-5)
    assert tuned.plan_choice.why.startswith("Stopped after 3 candidates.")
    assert not cache.exists()


@pytest.mark.parametrize(("kept_bytes", "most_bytes"), [(None, math.inf), (1000, 1000)])
def test_rows_of_a_saved_choice_take_its_bytes_or_any_number(kept_bytes, most_bytes):
    choice = PlanChoiceRecord(program="mean", chunk_size=4, kept_bytes=kept_bytes, source="given", why="by hand")
    assert wb.jit(mean_of_squares, plan=choice).form.kept_bytes == most_bytes


def test_plan_that_is_none_is_refused():
    with pytest.raises(ProgramError, match="pass only the plan"):
        wb.jit(mean_of_squares, plan=8)


def test_damaged_entry_is_measured_again(cache):
    w, x = arguments()
    wb.jit(mean_of_squares, chunk_size="tune")(w, x)
    (entry,) = cache.iterdir()
    entry.write_bytes(b"damaged")
    again = wb.jit(mean_of_squares, chunk_size="tune")
    again(w, x)
    assert again.plan_choice.source == "measured"


def test_program_that_prints_runs_once(capfd):
    @wb.program(clients=CLIENTS)
    def noisy(x):
        jax.debug.print("once")
        return wb.reduce_sum(x)

    tuned = wb.jit(noisy, chunk_size="tune")
    jax.block_until_ready(tuned(jnp.ones(CLIENTS)))
    jax.effects_barrier()
    assert tuned.plan_choice.source == "rule"
    assert capfd.readouterr().out.count("once") == 1


def test_program_without_clients_has_nothing_to_choose():
    tuned = wb.jit(lambda x: x * 2, chunk_size="tune")
    assert float(tuned(jnp.float32(2))) == 4.0
    assert tuned.plan_choice.source == "rule"


def test_donated_arguments_are_donated_by_the_call_alone():
    w, x = arguments()
    tuned = wb.jit(lambda w, x: (mean_of_squares(w, x), w + 1), chunk_size="tune", donate_argnums=0)
    _, following = tuned(w, x)
    assert w.is_deleted()
    tuned(following, x)


def test_static_arguments_are_values_while_candidates_are_found():
    w, x = arguments()

    def repeated(w, x, times):
        return sum(mean_of_squares(w, x) for _ in range(times))

    tuned = wb.jit(repeated, chunk_size="tune", static_argnums=2)
    np.testing.assert_allclose(tuned(w, x, 3), 3 * jnp.mean((x @ w) ** 2), rtol=1e-5)
    assert tuned.plan_choice.source == "measured"


def test_inside_a_gradient_the_rule_decides():
    w, x = arguments()
    tuned = wb.jit(mean_of_squares, chunk_size="tune")
    got = jax.grad(lambda w: tuned(w, x))(w)
    np.testing.assert_allclose(got, jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), rtol=1e-4)
    assert tuned.plan_choice is None


def test_time_that_is_no_time_is_refused():
    with pytest.raises(ProgramError, match="pass a positive number"):
        wb.jit(mean_of_squares, chunk_size="tune", tune_seconds=0)
