import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_contract import client_data, fedavg, per_client, rounds, start

import workbench as wb


def _reported(fn: Any, *args: Any) -> list[tuple[str, tuple[int, ...], int]]:
    return [(left.kind, left.shape, left.size_bytes) for left in wb.trace(fn)(*args).plan.disclosed]


def test_reductions_let_shares_leave_and_no_rows():
    assert _reported(fedavg, start(), client_data()) == [("partial result", (3,), 12), ("partial result", (), 4)]


def test_same_values_leave_in_every_iteration_of_a_loop():
    leaves = wb.trace(rounds)(start(), client_data()).plan.disclosed
    assert [(left.shape, left.kind) for left in leaves] == [((3,), "partial result"), ((), "partial result")]
    assert all(left.stage.startswith("0.") for left in leaves)  # inside of the loop, which is stage 0


def test_rows_leave_that_the_caller_gets():
    assert _reported(per_client, start(), client_data()) == [("row", (3,), 12), ("row", (), 4)]


def test_state_that_clients_carry_through_a_loop_stays():
    def counted(x: Any) -> Any:
        @wb.program(clients=4)
        def one(carry: Any) -> Any:
            total, state = carry
            state = wb.map_fn(lambda s, row: s + row, (state, x))
            return total + wb.reduce_sum(state), state

        return jax.lax.fori_loop(0, 3, lambda _, carry: one(carry), (jnp.float32(0), jnp.zeros(4)))[0]

    assert _reported(counted, np.ones(4, np.float32)) == [("partial result", (), 4)]


def test_state_that_is_returned_after_a_loop_leaves():
    def counted(x: Any) -> Any:
        @wb.program(clients=4)
        def one(state: Any) -> Any:
            return wb.map_fn(lambda s, row: s + row, (state, x))

        return jax.lax.fori_loop(0, 3, lambda _, state: one(state), jnp.zeros(4))

    assert _reported(counted, np.ones(4, np.float32)) == [("row", (), 4)]


def test_data_that_the_server_reads_leave():
    @wb.program(clients=4)
    def peek(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, x)) + jnp.sort(x)[0]

    assert sorted(_reported(peek, np.ones(4, np.float32))) == [("partial result", (), 4), ("row", (), 4)]


def _stays(fn: Any, *args: Any) -> list[tuple[str, tuple[int, ...], int]]:
    return [(value.name, value.shape, value.size_bytes) for value in wb.trace(fn)(*args).plan.kept_local]


def test_examples_of_a_client_stay():
    # Of each of 5 clients: 4 examples of 3 features, and their labels, in float32.
    assert [kind[1:] for kind in _stays(fedavg, start(), client_data())] == [((4, 3), 48), ((4,), 16)]


@pytest.mark.parametrize("form", ["alone", "in a loop", "converted", "returned"])
def test_weights_whose_sum_leaves_do_not_stay(form: str):
    @wb.program(clients=4)
    def weighted(total: Any, data: Any, weight: Any) -> Any:
        rows, same = wb.map_fn(lambda row, n: (row.sum(), n), (data, weight))
        weight = same if form == "returned" else weight.astype("float32")
        return total + wb.reduce_weighted_mean(rows, weight)

    def of_all(data: Any, weight: Any) -> Any:
        iterations = 2 if form == "in a loop" else 1
        return jax.lax.fori_loop(0, iterations, lambda _, total: weighted(total, data, weight), jnp.float32(0))

    weight = np.ones(4, np.int32 if form == "converted" else np.float32)
    program = of_all if form == "in a loop" else lambda *args: weighted(jnp.float32(0), *args)
    kept = _stays(program, np.ones((4, 3), np.float32), weight)
    assert [kind[1:] for kind in kept] == [((3,), 12)]


def test_examples_stay_that_only_the_iterations_of_a_loop_read():
    assert _stays(rounds, start(), client_data()) == _stays(fedavg, start(), client_data())


def test_data_with_rows_for_every_iteration_stay_without_their_axis_of_clients():
    @wb.program(clients=4)
    def one(total: Any, x: Any) -> Any:
        return total + wb.reduce_sum(wb.map_fn(jnp.sum, x)), None

    def over(xs: Any) -> Any:
        return jax.lax.scan(one, jnp.float32(0), xs)[0]

    assert [kind[1:] for kind in _stays(over, np.ones((3, 4, 2), np.float32))] == [((3, 2), 24)]


def test_data_stay_that_a_branch_or_a_while_loop_gives_to_clients():
    @wb.program(clients=4)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(jnp.sum, x))

    def sometimes(flag: Any, x: Any) -> Any:
        return jax.lax.cond(flag, total, lambda _: jnp.float32(0), x)

    def until(limit: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda v: v < limit, lambda v: v + total(x), jnp.float32(0))

    x = np.ones((4, 2), np.float32)
    assert [kind[1:] for kind in _stays(sometimes, np.bool_(True), x)] == [((2,), 8)]
    assert [kind[1:] for kind in _stays(until, np.float32(1), x)] == [((2,), 8)]


def test_data_that_a_loop_without_iterations_returns_do_not_stay():
    @wb.program(clients=4)
    def doubled(x: Any, times: Any) -> Any:
        def step(carry: Any) -> Any:
            return carry[0] + 1, wb.map_fn(lambda row: row * 2, carry[1])

        return jax.lax.while_loop(lambda carry: carry[0] < times, step, (0, x))[1]

    plan = wb.trace(doubled)(np.ones((4, 2), np.float32), 0).plan
    assert ("x", "row") in [(value.name, value.kind) for value in plan.disclosed]
    assert not plan.kept_local


def test_data_that_the_server_reads_do_not_stay_and_are_named():
    @wb.program(clients=4)
    def peek(examples: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, examples)) + jnp.sort(examples)[0]

    plan = wb.trace(peek)(np.ones(4, np.float32)).plan
    assert plan.kept_local == ()
    assert [left.name for left in plan.disclosed if left.kind == "row"] == [plan.inputs[0].name]


SELECTED = {
    "select": lambda loss: jnp.where(jnp.arange(4) == 1, loss, 0),
    "compare": lambda loss: jnp.where(loss > 1, loss, 0.0),
    "compiled": jax.jit(lambda loss: jnp.where(jnp.arange(4) == 1, loss, 0) / 2),
    "activation": jax.nn.relu,
}


@pytest.mark.parametrize("case", SELECTED)
def test_elementwise_calls_on_rows_are_work_of_the_clients(case: str):
    @wb.program(clients=4)
    def masked(x: Any) -> Any:
        return wb.reduce_sum(SELECTED[case](wb.map_fn(jnp.sum, x)))

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert _reported(masked, x) == [("partial result", (), 4)]
    with jax.set_mesh(jax.make_mesh((2,), ("clients",), axis_types=(jax.sharding.AxisType.Explicit,))):
        assert _reported(masked, x) == [("partial result", (), 4)]
    want = SELECTED[case](x.sum(1)).sum()
    np.testing.assert_allclose(wb.jit(masked)(x), want)
    np.testing.assert_allclose(wb.engines.Sequential().run(masked, x).results, want)


def _alone(reduced: Any, *args: Any) -> list[str]:
    """Whose value alone the reductions hold of a program over four clients' rows of 3 numbers."""
    program = wb.program(clients=4)(reduced)
    with jax.numpy_dtype_promotion("standard"):  # masks are multiplied as users do it
        found = wb.trace(program)(np.ones((4, 3), np.float32), *args).plan.disclosed
    return [each.single_client for each in found if each.kind == "partial result"]


ROW_MASK = np.array([False, True, False, False])
ONE_CLIENT = {
    "product with a comparison": (lambda x: wb.reduce_sum(x * (jnp.arange(4) == 2)[:, None]), "client 2"),
    "of one number per client": (lambda x: wb.reduce_sum(x[:, 0] * (jnp.arange(4) == 2)), "client 2"),
    "selection": (lambda x: wb.reduce_sum(jnp.where((jnp.arange(4) == 1)[:, None], x, 0)), "client 1"),
    "mean": (lambda x: wb.reduce_mean(jnp.where((jnp.arange(4) == 1)[:, None], x, 0.0)), "client 1"),
    "weights": (lambda x: wb.reduce_sum(x[:, 0] * jax.nn.one_hot(3, 4)), "client 3"),
    "constant": (lambda x: wb.reduce_sum(x * jnp.asarray(ROW_MASK)[:, None]), "client 1"),
    "in the client's function": (
        lambda x: wb.reduce_sum(wb.map_fn(lambda r, i: jnp.where(i == 3, r, 0), (x, jnp.arange(4)))),
        "client 3",
    ),
    "work after the mask": (
        lambda x: wb.reduce_sum(wb.map_fn(lambda r, i: -(r * (i == 0)) / 2, (x, np.arange(4)))),
        "client 0",
    ),
    "number of the caller": (lambda x, i: wb.reduce_sum(x[:, 0] * (jnp.arange(4) == i)), "one client"),
    "number that is broadcast": (
        lambda x, i: wb.reduce_sum(wb.map_fn(lambda r, n, i: r * (n == i), (x, jnp.arange(4), wb.broadcast(i)))),
        "one client",
    ),
}
ONE_CLIENT |= {
    "selection of the others": (lambda x: wb.reduce_sum(jnp.where((jnp.arange(4) != 2)[:, None], 0, x)), "client 2"),
    "negation": (lambda x: wb.reduce_sum(jnp.where(~(jnp.arange(4) == 1)[:, None], 0.0, x)), "client 1"),
    "selection by one-hot": (lambda x: wb.reduce_sum(jnp.where(jax.nn.one_hot(1, 4) > 0, x[:, 0], 0)), "client 1"),
    "one-hot that equals one": (lambda x: wb.reduce_sum(x[:, 0] * (jax.nn.one_hot(3, 4) == 1)), "client 3"),
    "the last": (lambda x: wb.reduce_sum(jnp.where(jnp.arange(4) >= 3, x[:, 0], 0)), "client 3"),
    "between two": (lambda x: wb.reduce_sum(x[:, 0] * ((jnp.arange(4) > 0) & (jnp.arange(4) < 2))), "client 1"),
    "one-hot of the caller": (
        lambda x, i: wb.reduce_sum(jnp.where(jax.nn.one_hot(i, 4) > 0, x[:, 0], 0)),
        "one client",
    ),
}
ALL_CLIENTS = {
    "comparison that zero passes": lambda x: wb.reduce_sum(jnp.where(jax.nn.one_hot(1, 4) >= 0, x[:, 0], 0)),
    "the last two": lambda x: wb.reduce_sum(jnp.where(jnp.arange(4) >= 2, x[:, 0], 0)),
    "no mask": lambda x: wb.reduce_sum(x),
    "some clients": lambda x: wb.reduce_sum(x * (jnp.arange(4) < 2)[:, None]),
    "two clients": lambda x: wb.reduce_sum(x * np.array([1.0, 0, 1, 0], np.float32)[:, None]),
    "mask of numbers in a row": lambda x: wb.reduce_sum(wb.map_fn(lambda r: r * (jnp.arange(3) == 1), x)),
    "mask of as many numbers in a row": lambda x: wb.reduce_sum(
        wb.map_fn(lambda r: jnp.append(r, 1.0) * jnp.asarray(ROW_MASK), x)
    ),
    "groups": lambda x: wb.reduce_sum(x * (jnp.arange(4) // 2 == 1)[:, None]),
    "each client's own number": lambda x: wb.reduce_sum(
        wb.map_fn(lambda r, n: r * (n == r[0].astype(int)), (x, jnp.arange(4)))
    ),
    "all but one": lambda x: wb.reduce_sum(jnp.where((jnp.arange(4) == 1)[:, None], 0, x)),
    "unknown one-hot that differs from one": lambda x: wb.reduce_sum(
        jnp.where(jax.nn.one_hot(x[0, 0].astype(int), 4) != 1, x[:, 0], 0)
    ),
    "one-hot that equals an unknown number": lambda x: wb.reduce_sum(
        jnp.where(jax.nn.one_hot(1, 4) == x[0, 0], x[:, 0], 0)
    ),
}


@pytest.mark.parametrize("name", ONE_CLIENT)
def test_sum_that_a_mask_leaves_with_one_client_is_noted(name: str):
    reduced, whose = ONE_CLIENT[name]
    inputs = inspect.signature(reduced).parameters
    assert _alone(reduced, *[jnp.int32(1)] * (len(inputs) - 1)) == [whose]


@pytest.mark.parametrize("name", ALL_CLIENTS)
def test_sum_of_several_clients_has_no_such_note(name: str):
    assert _alone(ALL_CLIENTS[name]) == [""]


MANY = 1000
OF_MANY = {
    "constant": lambda x: wb.reduce_sum(x * np.eye(MANY, dtype=np.float32)[7][:, None]),
    "numbers of the rows": lambda x: wb.reduce_sum(
        jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, 0) == 7, x, 0.0)
    ),
    "number of the client in a row": lambda x: wb.reduce_sum(
        wb.map_fn(lambda row, i: jnp.where(jnp.reshape(i == 7, (1,)), row, 0.0), (x, jnp.arange(MANY)))
    ),
}


COPIES = {
    "returned": lambda x: wb.map_fn(lambda row: (row, row.sum()), x),
    "converted": lambda x: wb.map_fn(lambda row: row.astype(jnp.bfloat16), x),
    "in parts": lambda x: wb.map_fn(lambda row: (row[:1], row[1:][::-1]), x),
    "another shape in a sum": lambda x: wb.reduce_sum(wb.map_fn(lambda row: row[None], x)),
    "extreme": lambda x: wb.reduce_max(wb.map_fn(jnp.sort, x)),
    "compiled": lambda x: wb.reduce_sum(wb.map_fn(jax.jit(lambda row: row), x)),
    "either branch": lambda x: wb.map_fn(lambda row: jax.lax.cond(row[0] > 0, lambda: row, lambda: 0 * row), x),
    "in a table of all": lambda x: wb.reduce_sum(
        wb.map_fn(lambda row, i: jnp.zeros((4, 3)).at[i].set(row), (x, jnp.arange(4)))
    ),
    "carried by a loop": lambda x: jax.lax.scan(
        lambda old, _: (x, wb.reduce_max(wb.map_fn(lambda row: row, old))), jnp.zeros((4, 3)), length=2
    )[1],
    "condition of a loop": lambda x: jax.lax.while_loop(
        lambda c: c[1].sum() < 5, lambda c: (c[0] + 1, wb.map_fn(lambda row: row, x)), (0, jnp.zeros((4, 3)))
    )[0],
    "emitted": lambda x: wb.reduce_sum(wb.map_fn(lambda row: (wb.emit("row", row), row.sum())[1], x)),
    "printed": lambda x: wb.reduce_sum(wb.map_fn(lambda row: (jax.debug.print("{}", row), row.sum())[1], x)),
    "sent to Python": lambda x: wb.reduce_sum(
        wb.map_fn(lambda row: jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), jnp.float32), 2 * row), x)
    ),
}
DERIVED = {
    "scaled": lambda x: wb.map_fn(lambda row: 2 * row, x),
    "loss": lambda x: wb.reduce_mean(wb.map_fn(lambda row: (row**2).sum(), x)),
    "gradient": lambda x: jax.grad(lambda x: wb.reduce_sum(wb.map_fn(lambda row: (row**2).sum(), x)))(x),
    "choice of a row": lambda x: wb.reduce_sum(wb.map_fn(lambda row: jnp.eye(3)[row[0].astype(int)], x)),
    "emitted loss": lambda x: wb.reduce_sum(wb.map_fn(lambda row: (wb.emit("loss", row.sum()), row.sum())[1], x)),
}


@pytest.mark.parametrize("name", [*COPIES, *DERIVED])
def test_data_that_leave_unchanged_are_not_kept_on_the_client(name: str):
    """A copy, in any order, shape or dtype, is the client's data; a value computed from the data is not."""
    plan = wb.trace(wb.program(clients=4)((COPIES | DERIVED)[name]))(np.ones((4, 3), np.float32)).plan
    assert [value.name for value in plan.kept_local] == (["x"] if name in DERIVED else [])


def test_emitted_values_leave_with_the_steps_of_their_loop():
    def client(row: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            wb.emit("loss", carry.sum())
            return carry * 2, None

        return jax.lax.scan(step, row, length=5)[0]

    plan = wb.trace(wb.program(clients=4)(lambda x: wb.reduce_sum(wb.map_fn(client, x))))(np.ones((4, 3))).plan
    assert [(left.name, left.kind, left.shape) for left in plan.disclosed] == [
        ("emit('loss')", "row", (5,)),
        ("reduce_sum", "partial result", (3,)),
    ]
    assert "its own emit('loss') for listeners" in str(plan)


def test_callbacks_of_clients_are_noted_with_their_line():
    client = lambda row: jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), jnp.float32), row)  # noqa: E731
    plan = wb.trace(wb.program(clients=4)(lambda x: wb.reduce_sum(wb.map_fn(client, x))))(np.ones((4, 3))).plan
    (note,) = (note for note in plan.notes if "Python" in note)
    assert "test_disclosed.py" in note


IN_PODS = {  # the function of a pod, what a client discloses to its pod, and the client's data that stay
    "mean": (
        lambda rows: wb.reduce_mean(wb.map_fn(jnp.sum, rows, over="clients"), over="clients"),
        ("partial result", ()),
        [("x", (4,))],
    ),
    "row": (lambda rows: wb.map_fn(jnp.sum, rows, over="clients")[0], ("row", ()), [("x", (4,))]),
    "data in a sum": (lambda rows: wb.reduce_sum(rows, over="clients").sum(), ("partial result", (4,)), []),
}


@pytest.mark.parametrize("name", IN_PODS)
def test_clients_in_pods_disclose_to_their_pod(name: str):
    """3 clients in each of 2 pods: a client's values leave to the pod, and a pod's share leaves to the server."""
    pod, disclosed, kept = IN_PODS[name]

    @wb.program(placements={"pods": 2, "clients": 3})
    def program(x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(pod, x, over="pods"), over="pods")

    plan = wb.trace(program)(np.ones((2, 3, 4), np.float32)).plan
    assert [(left.kind, left.shape) for left in plan.disclosed if "." in left.stage] == [disclosed]
    assert [(left.kind, left.shape) for left in plan.disclosed if "." not in left.stage] == [("partial result", ())]
    assert [(value.name, value.shape) for value in plan.kept_local] == kept
    assert "over clients" in str(plan)
    assert "over pods" in str(plan)


def test_values_are_named_by_their_stage():
    rows = wb.program(clients=4)(lambda x: wb.map_fn(lambda row: (row, -row), x))
    row = wb.program(clients=4)(lambda x: wb.map_fn(lambda row: -row, x))
    assert [each.name for each in wb.trace(row)(np.ones(4)).plan.disclosed] == ["<lambda>"]
    assert [each.name for each in wb.trace(rows)(np.ones(4)).plan.disclosed] == ["<lambda>[0]", "<lambda>[1]"]


@pytest.mark.parametrize("name", OF_MANY)
def test_sum_of_one_of_many_clients_is_noted(name: str):
    x = jax.ShapeDtypeStruct((MANY, MANY + 1), jnp.float32)
    found = wb.trace(wb.program(clients=MANY)(OF_MANY[name]))(x).plan.disclosed
    assert [each.single_client for each in found] == ["client 7"]


def test_note_is_in_the_text_of_the_plan():
    program = wb.program(clients=4)(lambda x: wb.reduce_sum(x * (jnp.arange(4) == 2)))
    with jax.numpy_dtype_promotion("standard"):
        text = str(wb.trace(program)(np.ones(4, np.float32)).plan)
    assert "its share of reduce_sum (a mask leaves only the value of client 2), f32[] (4 B)" in text


@pytest.mark.parametrize("length", [0, 3])
def test_what_clients_send_to_each_other_is_not_kept_on_the_client(length):
    """A client that gathers the others' rows by a named axis of JAX sees their data."""

    @wb.program(clients=4)
    def gossip(shared, private):
        def exchange(x):
            return jax.lax.all_gather(2 * x, "clients").sum()

        def repeated(x):
            return jax.lax.scan(lambda total, _: (total + exchange(x), None), 0.0, length=length)[0]

        seen = wb.map_fn(repeated if length else exchange, shared)
        return wb.reduce_sum(wb.map_fn(lambda s, own: s + own.max(), (seen, private)))

    plan = wb.trace(gossip)(jnp.ones((4, 2)), jnp.ones((4, 3))).plan
    assert [value.name for value in plan.kept_local] == ["private"]
    (note,) = (note for note in plan.notes if "exchange" in note)
    assert "test_disclosed.py" in note
    assert note.split(" at ")[0] in str(plan)
