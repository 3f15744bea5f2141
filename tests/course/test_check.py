"""Grades: right answers pass, wrong ones are refused with a hint, and communication counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import workbench as wb
from workbench import course
from workbench.errors import CourseError, WrongAnswerError


def test_right_answer_gives_a_true_grade():
    grade = course.check("12.3", (13, 2))
    assert grade
    assert (grade.exercise, grade.right) == ("12.3", True)
    assert repr(grade).startswith("✓ 12.3: Right")


def test_open_answer_gives_a_false_grade():
    grade = course.check("12.3", ...)
    assert not grade
    assert "bits per number" in grade.message


def test_wrong_answer_is_an_assertion_error_with_a_hint():
    with pytest.raises(AssertionError, match=r"12\.3 is not right yet: the count per word is 3\. How many times"):
        course.check("12.3", (13, 3))


def test_unknown_exercise_is_refused_with_ids_that_exist():
    with pytest.raises(CourseError, match=r"received the exercise '12\.33'.*12\.3"):
        course.check("12.33", 1)


def test_error_of_a_students_function_is_the_cause():
    with pytest.raises(WrongAnswerError, match="failed: division by zero") as caught:
        course.check("00.1", lambda tree: 1 / 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# The right value is derived by hand in the second column; the third is what a student would plausibly say.
NUMBERS = [
    ("06.1", 481, 240),
    ("08.2", (0.9, 0.5), (0.5, 0.9)),
    ("09.2", -0.457, -0.242),
    ("10.2", 0.0, 0.3),
    ("12.4", 15, 16),
    ("13.4", (5, 0), (5, 5)),
    ("13.3", 7, 10),
    ("14.1", 3 * 512**2 / 64, 6 * 512**2 / 64),
    ("14.3", 32, 16),
    ("16.3", 5, 0),
    ("16.4", 5, 4),
    ("17.4", np.log(19) / np.log(100), 0.6),
    ("04.2", P("clients", None, None), P(None, None, "clients")),
    ("18.2", 5, 0),
    ("18.3", 2564, 2560),
    ("20.2", 1.2e10, 2.4e10),
    ("20.3", 30_070, 30),
    ("22.3", 201326592, 2 * 2**30 * 3 / 4),
    ("23.1", 1.75e9, 7e9 * 4 / 64),
    ("23.2", 63, 62),
    ("24.3", 10_000, 1_000),
    ("00.4", (8, 12, 5), (32, 24, 5)),
    ("01.1", (False, False), (True, False)),
    ("05.1", {"all-reduce", "all-gather"}, {"all-reduce"}),
    ("05.2", 1, 2),
    ("14.2", "broadcast", "reduce_sum"),
]


@pytest.mark.parametrize(("name", "right", "mistaken"), NUMBERS, ids=[row[0] for row in NUMBERS])
def test_answer_by_hand_is_right_and_the_usual_mistake_is_not(name, right, mistaken):
    assert course.check(name, right)
    with pytest.raises(WrongAnswerError):
        course.check(name, mistaken)


@wb.program(clients=64)
def sends_the_data(w, x, y):
    rows, targets = wb.reduce_by_key((x, y), jnp.arange(64), 64)
    gradient = jax.vmap(jax.grad(lambda w, x, y: jnp.mean((x @ w - y) ** 2)), (None, 0, 0))(w, rows, targets)
    return w - 0.1 * gradient.mean(0)


def test_right_values_that_disclose_the_data_are_refused():
    with pytest.raises(WrongAnswerError, match=r"a client discloses .* may disclose at most 4,096"):
        course.check("01.3", sends_the_data)


@wb.program(clients=4)
def three_reductions(x):
    mean = wb.reduce_sum(x) / 4
    squares = wb.reduce_sum(wb.map_fn(lambda row: row**2, x)) / 4
    return squares - mean * wb.reduce_sum(x) / 4


def test_right_values_with_too_many_stages_are_refused():
    with pytest.raises(WrongAnswerError, match="3 reductions; two are enough"):
        course.check("02.1", three_reductions)


def test_mean_of_the_means_of_unequal_pods_is_refused():
    @wb.program(placements={"pods": 4, "clients": 3})
    def of_means(x, present):
        return wb.reduce_mean(wb.reduce_mean(x, where=present, over="clients"), over="pods")

    with pytest.raises(WrongAnswerError, match="Pods with few clients count less"):
        course.check("02.3", of_means)


def test_pods_that_send_every_client_are_refused():
    @wb.program(placements={"pods": 4, "clients": 3})
    def of_rows(x, present):
        return wb.reduce_sum(x * present, over="pods").sum() / wb.reduce_sum(present, over="pods").sum()

    with pytest.raises(WrongAnswerError, match=r"discloses 24 bytes .* at most 8"):
        course.check("02.3", of_rows)


def test_share_that_the_server_computes_is_refused():
    @wb.program(clients=4)
    def at_the_server(x):
        squares = wb.map_fn(lambda own: own**2, x)
        return wb.reduce_max(squares) / wb.reduce_sum(squares)

    with pytest.raises(WrongAnswerError, match="the server divides"):
        course.check("02.4", at_the_server)


def test_specs_are_graded_by_their_compiled_collectives():
    right = {"up": P(None, "model"), "down": P("model", None)}
    assert course.check("23.3", right)
    with pytest.raises(WrongAnswerError, match="all-gather"):
        course.check("23.3", {"up": P(None, "model"), "down": P(None, "model")})


def test_ring_that_sends_whole_rows_is_refused():
    def whole_rows(x):
        total, moving = x, x
        for _ in range(7):
            moving = jax.lax.ppermute(moving, "ring", [(i, (i + 1) % 8) for i in range(8)])
            total = total + moving
        return total

    with pytest.raises(WrongAnswerError, match="a device sends 1,792 bytes; a ring needs 448"):
        course.check("22.1", whole_rows)


def test_stale_updates_are_scaled_each_by_its_own_factor():
    def scaled(updates, staleness):
        return (updates / jnp.sqrt(1.0 + staleness)[:, None]).mean(0)

    assert course.check("20.1", scaled)
    with pytest.raises(WrongAnswerError, match="values differ"):
        course.check("20.1", lambda updates, staleness: updates.mean(0))


def test_client_that_waits_for_a_failed_one_is_refused():
    def waits_for_all(finished, client, bound):
        return finished[client] - min(rounds or 0 for rounds in finished.values()) <= bound

    with pytest.raises(WrongAnswerError, match="'a' may begin"):
        course.check("16.2", waits_for_all)


def test_weights_of_what_is_drawn_more_often_are_smaller():
    with pytest.raises(WrongAnswerError, match=r"\[1\.0, 0\.5, 0\.25\]"):
        course.check("17.1", lambda probabilities: probabilities / probabilities.max())


def test_draw_in_proportion_to_the_priorities_without_exponent_is_refused():
    def proportional(priorities, exponent, uniform):
        return np.searchsorted(np.cumsum(priorities), uniform * np.sum(priorities), side="right")

    with pytest.raises(WrongAnswerError, match=r"\[0\.1, 0\.2, 0\.3, 0\.4\]"):
        course.check("17.2", proportional)


def test_rate_limit_that_forgets_the_next_batch_is_refused():
    def after_the_batch(inserted, sampled, batch, min_size, limit):
        return inserted >= min_size and (limit is None or sampled <= limit * inserted)

    with pytest.raises(WrongAnswerError, match=r"after 64 inserts and 225 samples.*has to wait"):
        course.check("17.3", after_the_batch)


def test_spread_of_unweighted_errors_is_refused():
    with pytest.raises(WrongAnswerError, match="the standard deviation is"):
        course.check("17.5", lambda priorities, exponent, errors: (errors.mean(), errors.std() / 2))


def test_mean_of_the_means_of_unequal_tasks_is_refused():
    def partial(function, w, batch):
        updates, losses = zip(*(function(w, x, y) for x, y in batch), strict=True)
        return sum(updates) / len(batch), sum(losses) / len(batch)

    def combine(partials):
        return [sum(each) / len(partials) for each in zip(*partials, strict=True)]

    with pytest.raises(WrongAnswerError, match="The tasks have 3, 3, 1 clients"):
        course.check("18.1", (partial, combine))


def test_correction_that_multiplies_every_p_value_alike_is_refused():
    with pytest.raises(WrongAnswerError, match=r"\[0\.03, 0\.06, 0\.06\]"):
        course.check("21.3", lambda p_values: np.minimum(1, len(p_values) * p_values))


def test_image_from_a_unit_without_gradient_is_refused():
    with pytest.raises(WrongAnswerError, match="values differ"):
        course.check("24.1", lambda grad_w, grad_b: grad_w[:, 0] / grad_b[0])


def test_masks_that_do_not_cancel_are_refused():
    with pytest.raises(WrongAnswerError, match="is not 0"):
        course.check("24.2", lambda key, clients, size: jax.random.bits(key, (clients, size), jnp.uint32))


def test_variance_of_one_replica_is_not_that_of_the_batch():
    def with_mean_of_variances(mean_over_replicas, x):
        return (x - mean_over_replicas(x.mean(0))[None]) / jnp.sqrt(mean_over_replicas(x.var(0)) + 1e-5)[None]

    with pytest.raises(WrongAnswerError, match="misses how far"):
        course.check("15.1", with_mean_of_variances)


def test_collective_that_some_replicas_skip_is_refused():
    def careless(ctx, batch, state):
        x, y = batch
        return state, jax.lax.cond(y[0] == 0, lambda v: ctx.all_reduce(v), lambda v: v, x.sum())

    with pytest.raises(WrongAnswerError, match="a deadlock"):
        course.check("15.2", careless)


def test_running_mean_without_scan_is_refused():
    with pytest.raises(WrongAnswerError, match=r"no `scan`"):
        course.check("00.2", lambda x: jnp.cumsum(x) / jnp.arange(1.0, 5.0))


def test_hold_out_that_reuses_rows_is_refused():
    with pytest.raises(WrongAnswerError, match="in both parts"):
        course.check("08.3", lambda x, y: ((x, y), (x[:10], y[:10])))


def test_trimmed_mean_that_sends_rows_is_refused():
    @wb.program(clients=8)
    def rows(x):
        found = jnp.sort(wb.reduce_by_key(x, jnp.arange(8), 8))
        return found[1:-1].mean()

    with pytest.raises(WrongAnswerError, match="a client discloses 32 bytes"):
        course.check("12.5", rows)


def test_decoder_that_reads_late_answers_is_refused():
    def least_squares(generator, answers, finished):
        return np.einsum("bw,wrc->brc", np.linalg.pinv(generator), answers)

    with pytest.raises(WrongAnswerError, match="a late answer was used"):
        course.check("13.1", least_squares)


def test_messages_that_serve_one_worker_each_are_refused():
    def one_row_each(lists):
        return [{worker: row} for worker, rows in lists.items() for row in rows]

    with pytest.raises(WrongAnswerError, match=r"there are 6 messages .* 3 are enough"):
        course.check("13.2", one_row_each)


def test_product_with_a_whole_hessian_is_refused():
    with pytest.raises(WrongAnswerError, match="a client discloses 144 bytes"):
        course.check("03.2", lambda F, w, v: jax.hessian(F)(w) @ v)


def test_product_that_gathers_rows_of_blocks_is_refused():
    def gathered(a, b):
        row = jax.lax.all_gather(a, "cols", axis=1, tiled=True)
        return row @ jax.lax.all_gather(b, "rows", axis=0, tiled=True)

    with pytest.raises(WrongAnswerError, match="it gathers a whole row"):
        course.check("14.4", gathered)


def test_gathered_spectrum_is_refused():
    with pytest.raises(WrongAnswerError, match="there is all-gather"):
        course.check("19.2", lambda x: jnp.abs(jnp.fft.fft(x)) ** 2)


def test_mean_before_deviation_is_refused():
    with pytest.raises(WrongAnswerError, match="2 collectives follow one another"):
        course.check("19.3", lambda x: (x - x.mean()) / x.std())


def test_mean_that_is_rounded_after_it_was_sent_is_refused():
    @wb.program(clients=8)
    def rounded_too_late(updates):
        return jax.tree.map(lambda mean: jnp.round(mean * 4095).astype(jnp.float32) / 4095, wb.reduce_mean(updates))

    with pytest.raises(WrongAnswerError, match=r"discloses 2,112 bytes .* at most 1,072"):
        course.check("10.3", rounded_too_late)


def test_half_of_the_rate_does_not_halve_the_drift():
    with pytest.raises(WrongAnswerError, match="times as far away"):
        course.check("09.3", 0.05)


def test_derivative_of_the_last_step_alone_is_refused():
    def last_step(loss, w, rate, steps):
        for _ in range(steps - 1):
            w = w - rate * jax.grad(loss)(w)
        return jax.grad(lambda r: loss(w - r * jax.grad(loss)(w)))(rate)

    with pytest.raises(WrongAnswerError, match="through every one of them"):
        course.check("11.3", last_step)


def test_interval_of_the_values_is_no_interval_of_their_mean():
    with pytest.raises(WrongAnswerError, match="with"):
        course.check("21.1", lambda values, seed: np.quantile(values, [0.025, 0.975]))


def test_one_sided_test_of_signs_is_refused():
    def one_sided(differences):
        signs = np.array(np.meshgrid(*[(1, -1)] * len(differences))).reshape(len(differences), -1).T
        return np.mean((signs * differences).mean(1) >= np.mean(differences) - 1e-12)

    with pytest.raises(WrongAnswerError, match=r"the p-value is 0\.125"):
        course.check("21.2", one_sided)


def test_gradient_through_the_steps_is_not_first_order():
    def through(loss, w, rate, steps):
        def after(v):
            for _ in range(steps):
                v = v - rate * jax.grad(loss)(v)
            return loss(v)

        return jax.grad(after)(w)

    with pytest.raises(WrongAnswerError, match="differentiates through the steps"):
        course.check("25.1", through)


def test_rest_of_maml_is_not_that_of_first_order_maml():
    def of_maml(wanted, curvature, rate, steps):
        return np.average(wanted, weights=curvature * (1 - rate * curvature) ** (2 * steps))

    with pytest.raises(WrongAnswerError, match="where MAML comes to rest"):
        course.check("25.2", of_maml)


def test_mixture_with_the_noise_of_one_example_is_refused():
    def of_one(bias, deviation, count):
        a = bias**2 / (bias**2 + deviation**2)
        return a, (1 - a) ** 2 * bias**2 + a**2 * deviation**2

    with pytest.raises(WrongAnswerError, match=r"a with bias 1\.0, deviation=2\.0, count=4 is 0\.2"):
        course.check("25.3", of_one)


def test_sum_of_differences_without_its_half_is_refused():
    def twice(counts, size):
        shares = counts / counts.sum()
        return np.abs(np.random.default_rng(0).multinomial(size, shares, 5_000) / size - shares).sum(1).mean()

    with pytest.raises(WrongAnswerError, match=r"a client of 4 has 0\.188"):
        course.check("25.4", twice)


def test_exercises_lists_ids_in_order():
    names = list(course.exercises())
    assert names == sorted(names)
    assert np.all([len(task) < 120 for task in course.exercises().values()])


EXERCISES = sorted(course.exercises())
NO_ANSWERS = {
    "None": None,
    "a function without a return": lambda *args: None,
    "a word": "nonsense",
    "a number": 3.7,
    "two Nones": (None, None),
    "a function that fails": lambda *args: {}["no such key"],
    "a function that returns its first argument": lambda first=None, *rest: first,
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_what_is_no_answer_is_refused_with_a_sentence(exercise):
    for name, answer in NO_ANSWERS.items():
        with pytest.raises(WrongAnswerError, match=rf"^{exercise} is not right yet: ") as caught:
            course.check(exercise, answer)
        assert "Traceback" not in str(caught.value), name


def plain_round(w, x, y):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.einsum("cnd,d->cn", x, w) - y) ** 2))(w)


# Right values, computed by the server from the raw data of all clients.
PLAIN = {
    "01.3": plain_round,
    "02.1": jnp.var,
    "02.2": lambda x, threshold: jnp.mean(x > threshold),
    "02.3": lambda x, present: (x * present).sum() / present.sum(),
    "02.4": lambda x: jnp.max(x**2) / jnp.sum(x**2),
    "03.1": lambda x: jnp.max(x**2),
    "03.3": lambda w, x: (2 * x * (x @ w)[:, None]).mean(0),
    "10.3": lambda updates: jax.tree.map(lambda x: x.mean(0), updates),
    "12.5": lambda x: jnp.sort(x)[1:-1].mean(),
}


@pytest.mark.parametrize("exercise", PLAIN)
def test_no_program_no_credit(exercise):
    with jax.numpy_rank_promotion("allow"), pytest.raises(WrongAnswerError, match="no program over"):
        course.check(exercise, PLAIN[exercise])


@pytest.mark.parametrize("exercise", ["02.1", "02.2", "12.5", "03.1"])
def test_a_program_whose_server_reads_the_raw_data_gets_no_credit(exercise):
    clients = 8 if exercise == "12.5" else 4

    def wrapped(*args):
        with wb.program(clients=clients):
            return PLAIN[exercise](*args) + 0 * wb.reduce_sum(jnp.ones(clients))

    with (
        jax.numpy_rank_promotion("allow"),
        pytest.raises(WrongAnswerError, match="reads the clients' own data"),
    ):
        course.check(exercise, wrapped)


def constant_masks(key, clients, size):
    rows = jnp.ones((clients, size), jnp.uint32) * jnp.arange(1, clients + 1, dtype=jnp.uint32)[:, None]
    return rows.at[-1].set(-rows[:-1].sum(0, dtype=jnp.uint32))


def every_fifth(x, y):
    rest = np.arange(len(x)) % 5 > 0
    return (x[rest], y[rest]), (x[~rest], y[~rest])


def masks_of_a_dealer(key, clients, size):
    rows = jax.random.bits(key, (clients, size), jnp.uint32)
    return rows.at[-1].set(-rows[:-1].sum(0, dtype=jnp.uint32))


@pytest.mark.parametrize(
    ("exercise", "answer", "fact"),
    [
        ("01.1", (None, None), "should be True or False"),
        ("08.3", lambda x, y: ((x[:40], y[:40]), (x[40:], y[40:])), "labels"),
        (
            "08.3",
            lambda x, y: ((np.delete(x, slice(0, 50, 5), 0), np.delete(y, slice(0, 50, 5))), (x[::5], y[::5])),
            "labels",
        ),
        ("11.2", (4.4, 4.5), "finer"),
        ("24.2", constant_masks, "repeats words"),
        ("24.2", masks_of_a_dealer, "64 random words|80 random words"),
        ("11.1", lambda z: 1 / (1 + np.exp(-np.asarray(z))), "jax.numpy"),
    ],
)
def test_answers_that_only_look_right_are_refused(exercise, answer, fact):
    with pytest.raises(WrongAnswerError, match=fact):
        course.check(exercise, answer)


def test_words_for_no_are_an_answer():
    assert course.check("01.1", ("no", "No"))
