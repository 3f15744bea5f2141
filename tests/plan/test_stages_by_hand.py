"""Complete stages, records and disclosed values of small programs, derived by hand."""

import math
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import workbench as wb
from workbench.plan import LoopForm, describe_plan, evaluate, plan_jaxpr, trace
from workbench.plan._phases import _layout_here
from workbench.plan._single_client import single_client
from workbench.primitives import Placement
from workbench.records.program import DisclosedRecord, PlacementRecord, PlanRecord, StageRecord, ValueRecord


def s(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def value(name: str, *shape: int, argument: str = "", sharding: str | None = None) -> ValueRecord:
    size = 4 * math.prod(shape)
    return ValueRecord(name=name, shape=shape, dtype="float32", size_bytes=size, argument=argument, sharding=sharding)


def described(fn: Any, *shapes: Any, names: Any = (), **options: Any) -> PlanRecord:
    return describe_plan(trace(fn, shapes).plan, names=names, **options)


@wb.program(clients=4)
def averaged(w: Any, x: Any) -> Any:
    def train(w: Any, row: Any) -> Any:
        return w * row, row.sum()

    rows, sums = wb.map_fn(train, (wb.broadcast(w), x))
    return 2 * wb.reduce_mean(rows), jnp.sort(sums)


def facts(stage: StageRecord) -> tuple[Any, ...]:
    return stage.path, stage.kind, stage.name, stage.placement, stage.clients, stage.operation, stage.consumes


def test_every_stage_of_a_program() -> None:
    plan = described(averaged, s(3), s(4, 3), names=("w", "x"))
    assert [facts(stage) for stage in plan.stages] == [
        ("0", "broadcast", "broadcast", "clients", 4, "broadcast", (-1,)),
        ("1", "clients", "train", "clients", 4, "map_fn", (-1, 0)),
        ("2", "reduce", "reduce_mean", "clients", 4, "reduce_mean", (1,)),
        ("3", "server", "server", None, 1, "", (1, 2)),
    ]
    shared, training, mean, server = plan.stages
    w, x = value("w", 3), value("x", 4, 3)
    rows, sums, total = value("train[0]", 4, 3), value("train[1]", 4), value("reduce_mean", 3)
    assert (shared.inputs, shared.outputs) == ((w,), (value("broadcast", 4, 3),))
    assert [each.replace(argument="") for each in training.inputs] == [value("broadcast", 4, 3), x]
    assert training.outputs == (rows, sums)
    assert (mean.inputs, mean.outputs) == ((rows,), (total,))
    assert {each.name for each in server.inputs} == {"train[1]", "reduce_mean"}
    assert (plan.inputs, plan.outputs) == ((w, x), (value("out[0]", 3), value("out[1]", 4)))
    # a broadcast moves 4 · 12 B, and so does the mean's operand; one client multiplies 3 numbers and adds 3
    assert [stage.moved_bytes for stage in plan.stages] == [48, 0, 48, 0]
    assert (training.flops_per_client, training.elementwise_flops_per_client, training.bytes_per_client) == (0, 6, 40)
    assert (shared.flops_per_client, shared.bytes_per_client, mean.elementwise_flops_per_client) == (0, 0, 0)
    assert plan.placements == (PlacementRecord(name="clients", size=4),)
    assert (plan.name, plan.notes, plan.chunk_size, plan.chunk_limit) == ("averaged", (), None, None)
    assert [stage.computations for stage in plan.stages] == [1, 1, 1, 1]


def test_disclosed_and_kept_values_of_a_program() -> None:
    plan = described(averaged, s(3), s(4, 3), names=("w", "x"))
    assert plan.disclosed == (
        DisclosedRecord(stage="1", name="train[1]", shape=(), dtype="float32", size_bytes=4, kind="row"),
        DisclosedRecord(
            stage="2", name="reduce_mean", shape=(3,), dtype="float32", size_bytes=12, kind="partial result"
        ),
    )
    assert plan.kept_local == (value("x", 3),)


@pytest.mark.parametrize(
    ("chunk_size", "size", "limit", "slots"),
    [
        # 10 clients on a device, or 5 on each of two: the largest divisor from half of the size on, or padding
        (None, None, None, (None, None)), (1, 1, 1, (10, 5)), (3, (2, 3), 3, (10, 6)), (4, (2, 4), 4, (10, 8)),
        (5, 5, 5, (10, 5)), (20, (10, 5), 20, (10, 5)),
    ],
)  # fmt: skip
def test_chunks_and_slots_of_a_device(chunk_size: Any, size: Any, limit: Any, slots: tuple[Any, Any]) -> None:
    program = wb.program(clients=10)(lambda x: wb.reduce_sum(wb.map_fn(jnp.sin, x)))
    for devices, number in ((1, 0), (2, 1)):
        with jax.sharding.use_abstract_mesh(AbstractMesh((devices,), ("clients",), axis_types=(AxisType.Auto,))):
            plan = described(program, s(10), chunk_size=chunk_size)
            expected = size[number] if isinstance(size, tuple) else size
            assert (plan.chunk_size, plan.chunk_limit) == (expected, limit)
            assert plan.placements[0].slots_per_device == slots[number]
            assert plan.placements[0].mesh_axes == ("clients",)


def test_a_rule_sees_the_clients_of_a_device_and_of_any_device() -> None:
    program = wb.program(clients=10)(lambda x: wb.reduce_sum(wb.map_fn(jnp.sin, x)))
    plan = described(program, s(10), chunk_size=lambda phase, share: min(share // 2, 77))
    assert (plan.chunk_size, plan.chunk_limit) == (5, 77)


@wb.program(clients=4)
def rounds(w: Any, x: Any) -> Any:
    def one(w: Any, _: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(lambda w, row: w + row, (wb.broadcast(w), x))), None

    return lax.scan(one, w, None, length=5)[0] + 1


def test_stages_inside_of_a_loop() -> None:
    plan = described(rounds, s(3), s(4, 3), names=("w", "x"), chunk_size=3)
    assert [facts(stage)[:5] for stage in plan.walk()] == [
        ("0", "loop", "scan", None, 1), ("0.0", "broadcast", "broadcast", "clients", 4),
        ("0.1", "clients", "<lambda>", "clients", 4), ("0.2", "reduce", "reduce_mean", "clients", 4),
        ("1", "server", "server", None, 1),
    ]  # fmt: skip
    loop = plan.stages[0]
    assert (loop.trip_count, [stage.consumes for stage in loop.body]) == (5, [(-1,), (-1, 0), (1,)])
    assert {each.name for each in loop.body[1].inputs} == {"x", "broadcast"}
    assert (loop.body[0].inputs, loop.moved_bytes, plan.moved_bytes) == ((value("w", 3),), 0, 5 * 2 * 48)
    assert [(each.stage, each.kind) for each in plan.disclosed] == [("0.2", "partial result")]
    assert (plan.chunk_size, plan.chunk_limit, plan.kept_local) == (2, 3, (value("x", 3),))


def test_stages_of_branches_are_numbered_by_branch() -> None:
    @wb.program(clients=4)
    def either(i: Any, x: Any) -> Any:
        mean = lambda x: wb.reduce_mean(wb.map_fn(jnp.sin, x))  # noqa: E731
        return lax.switch(i, [mean, lambda x: wb.reduce_max(x), lambda x: x[0] * 2], x)

    plan = described(either, s(dtype="int32"), s(4), names=("i", "x"))
    assert [(stage.path, stage.kind) for stage in plan.walk()] == [
        ("0", "server"), ("1", "branch"), ("1[0].0", "clients"), ("1[0].1", "reduce"), ("1[1].0", "reduce"),
        ("1[2].0", "server"),
    ]  # fmt: skip
    assert [(each.stage, each.name, each.kind) for each in plan.disclosed] == [
        ("0", "x", "row"), ("1[0].1", "reduce_mean", "partial result"), ("1[1].0", "reduce_max", "partial result"),
    ]  # fmt: skip


def total(x: Any) -> Any:
    return wb.program(clients=4)(lambda x: wb.reduce_sum(wb.map_fn(jnp.sum, x)))(x)


@pytest.mark.parametrize(
    ("fn", "shape", "row", "kept"),
    [
        (lambda x: total(x) + jnp.sort(x, axis=0)[0, 0], (4, 3), (3,), []),
        (lambda x: lax.fori_loop(0, 2, lambda _, c: c + total(x), 0.0) + jnp.sort(x, axis=0)[0, 0], (4, 3), (3,), []),
        (lambda x: lax.fori_loop(0, 2, lambda _, c: c + total(x) + jnp.sort(x, axis=0)[0, 0], 0.0), (4, 3), (3,), []),
        (lambda x: lax.scan(lambda c, x: (c + total(x), None), 0.0, x)[0] + x[0, 0, 0], (5, 4, 3), (5, 3), []),
        (lambda x: lax.cond(x[0, 0] > 0, total, lambda x: 0.0, x), (4, 3), (3,), []),
        (lambda x: lax.fori_loop(0, 2, lambda _, c: c + total(x), 0.0), (4, 3), None, ["x"]),
        (lambda x: lax.fori_loop(0, 2, lambda _, c: c + jnp.sort(x, axis=0)[0, 0], 0.0), (4, 3), None, []),
        (lambda x: lax.while_loop(lambda c: total(x) > c, lambda c: c + 1, x[0, 0]), (4, 3), (3,), []),
        (lambda x: lax.while_loop(lambda c: total(x) > c, lambda c: c + 1, 0.0), (4, 3), None, ["x"]),
        (lambda x: lax.while_loop(lambda c: total(c[1]) > c[0], lambda c: (c[0] + 1, c[1]), (0.0, x))[0], (4, 3), None,
         ["x"]),
    ],
    ids=range(10),
)  # fmt: skip
def test_inputs_that_clients_and_the_server_read_are_disclosed_once(fn: Any, shape: Any, row: Any, kept: Any) -> None:
    plan = described(fn, s(*shape), names=("x",))
    rows = [each for each in plan.disclosed if each.kind == "row"]
    expected = [] if row is None else [("0", "x", row, 4 * math.prod(row))]
    assert [(each.stage, each.name, each.shape, each.size_bytes) for each in rows] == expected
    assert [each.name for each in plan.kept_local] == kept


@wb.program(clients=8)
def two_passes(x: Any) -> Any:
    rows = wb.map_fn(lambda a: 2 * a, x)
    return wb.reduce_sum(wb.map_fn(lambda r, m: r - m, (rows, wb.broadcast(wb.reduce_mean(rows)))))


@pytest.mark.parametrize(("kept_bytes", "times"), [(96, 1), (95, 2), (math.inf, 1)])
def test_stages_that_run_twice_say_so(kept_bytes: float, times: int) -> None:
    plan = described(two_passes, s(8, 3), chunk_size=2, form=LoopForm(kept_bytes=kept_bytes))
    assert [stage.computations for stage in plan.stages if stage.kind == "clients"] == [times, 1]
    note = (
        "each client computes stage 0 (`<lambda>`) 2 times: a later stage reads its rows, and recomputing them takes "
        "less memory than keeping the rows of all clients"
    )
    assert plan.notes == ((note,) if times == 2 else ())
    assert described(two_passes, s(8, 3), form=LoopForm(kept_bytes=0)).notes == ()  # all clients at once


def test_elementwise_work_on_rows_is_that_of_one_client() -> None:
    program = wb.program(clients=4)(lambda x: wb.reduce_sum(jnp.exp(wb.map_fn(jnp.sin, x)) * 2))
    plan = described(program, s(4, 3))
    assert [(stage.kind, stage.name) for stage in plan.stages] == [
        ("clients", "sin"), ("clients", "elementwise"), ("reduce", "reduce_sum"),
    ]  # fmt: skip
    assert (plan.stages[1].elementwise_flops_per_client, plan.stages[1].bytes_per_client) == (6, 24)


def test_a_program_without_clients_is_one_stage_of_its_name() -> None:
    plan = described(jnp.dot, s(3, 4), s(4, 5))
    assert [facts(stage) for stage in plan.stages] == [("0", "program", "dot", None, 1, "", (-1,))]
    assert (plan.stages[0].flops_per_client, plan.placements, plan.disclosed) == (120, (), ())
    assert described(lambda x: x, s(3)).stages == ()


# ---- levels: what must finish before a step starts


@pytest.mark.parametrize(
    ("fn", "steps"),
    [
        (lambda x: wb.reduce_sum(wb.map_fn(jnp.sin, x)), ["clients 0", "reduce 0"]),
        (lambda x: jnp.sin(wb.reduce_sum(x)), ["reduce 0", "server 1"]),
        (lambda x: wb.map_fn(jnp.add, (x, wb.broadcast(wb.reduce_sum(x)))), ["reduce 0", "broadcast 1", "clients 1"]),
        (lambda x: wb.reduce_sum(wb.map_fn(jnp.sin, x) * 2), ["clients 0", "clients 0", "reduce 0"]),
        (lambda x: wb.reduce_sum(x * 2), ["clients 0", "reduce 0"]),
        (lambda x: jnp.sort(wb.map_fn(jnp.sin, x)), ["clients 0", "server 1"]),
        (lambda x: jnp.sort(wb.broadcast(x[0])), ["server 0", "server 0", "broadcast 0", "server 0"]),
        (lambda x: wb.reduce_max(wb.map_fn(jnp.add, (x, wb.broadcast(jnp.sin(wb.reduce_min(x)))))),
         ["reduce 0", "server 1", "broadcast 1", "clients 1", "reduce 1"]),
        (lambda x: wb.map_fn(jnp.sin, x) + jnp.sort(x), ["clients 0", "server 0", "clients 0"]),
    ],
    ids=range(9),
)  # fmt: skip
def test_levels_of_steps(fn: Any, steps: list[str]) -> None:
    plan = plan_jaxpr(jax.make_jaxpr(wb.program(clients=4)(fn))(s(4)), "p")
    assert [f"{step.kind} {step.level}" for step in plan.steps] == steps
    assert plan.levels == 1 + max(step.level for step in plan.steps)
    orders = {"server": 0, "loop": 1, "branch": 1, "broadcast": 2, "clients": 3, "reduce": 4}
    keys = [(stage.steps[0].level, orders[stage.kind]) for stage in plan.stages]
    assert keys == sorted(keys)
    assert all(plan.stages[step.stage].steps.count(step) == 1 for step in plan.steps)


def test_a_program_without_steps_has_one_level() -> None:
    plan = plan_jaxpr(jax.make_jaxpr(lambda x: x)(s(4)), "p")
    assert (plan.steps, plan.levels) == ((), 1)


# ---- sums of a single client


def alone(mask: Any, *shapes: Any, clients: int = 4, reduction: Any = wb.reduce_sum) -> str:
    """The client that a masked sum of numbers belongs to."""

    def fn(x: Any, *args: Any) -> Any:
        return reduction(x * mask(*args))

    plan = trace(wb.program(clients=clients)(fn), (s(clients), *shapes)).plan
    (step,) = [step for step in plan.steps if step.kind == "reduce"]
    return single_client(plan, step)


def one_hot(at: int, size: int = 4) -> Any:
    return lambda: jnp.asarray(np.eye(size, dtype=np.float32)[at])


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_constant_mask_names_its_client(at: int) -> None:
    assert alone(one_hot(at)) == f"client {at}"
    assert alone(one_hot(at), reduction=wb.reduce_mean) == f"client {at}"
    assert alone(one_hot(at), reduction=wb.reduce_max) == ""


def test_masks_are_recognized_from_two_clients_on() -> None:
    assert alone(lambda: jnp.ones(1), clients=1) == ""
    assert alone(one_hot(1, 2), clients=2) == "client 1"
    assert alone(lambda: jnp.zeros(2), clients=2) == ""


@pytest.mark.parametrize(("clients", "found"), [(1_000_000, "client 5"), (1_000_001, "")])
def test_masks_of_at_most_a_million_clients_are_compared(clients: int, found: str) -> None:
    assert alone(lambda: (jnp.arange(clients) == 5).astype("float32"), clients=clients) == found


@pytest.mark.parametrize(("size", "found"), [(1_000_000, "one client"), (1_000_001, "")])
def test_numbers_are_computed_from_at_most_a_million_values(size: int, found: str) -> None:
    def computed(i: Any) -> Any:
        number = jnp.max(jnp.full(size, i)) - i + i
        return lax.dynamic_index_in_dim(jnp.eye(4), number, keepdims=False)

    assert alone(computed, s(dtype="int32")) == found


@pytest.mark.parametrize("create_key", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_cohort_drawn_with_either_form_of_key_is_not_of_one_client(create_key: Any) -> None:
    assert alone(lambda key: wb.sample(key, 2, form="mask").astype("float32"), create_key(0)) == ""


def test_a_number_with_side_effects_is_not_computed() -> None:
    def computed(i: Any) -> Any:
        jax.debug.callback(lambda i: None, i)
        seen = io_callback(lambda i: i, s(dtype="int32"), i)
        return lax.dynamic_index_in_dim(jnp.eye(4), seen + i - i, keepdims=False)

    assert alone(computed, s(dtype="int32")) == ""


@pytest.mark.parametrize(("clients", "found"), [(64, "one client"), (65, "")])
def test_masks_of_at_most_64_clients_are_computed(clients: int, found: str) -> None:
    def computed(i: Any) -> Any:
        return lax.dynamic_index_in_dim(jnp.eye(clients), i, keepdims=False)

    assert alone(computed, s(dtype="int32"), clients=clients) == found


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (lambda a, b: jnp.arange(4) == jnp.full(4, 2), "client 2"),
        (lambda a, b: jnp.arange(4) == a, "one client"), (lambda a, b: jnp.arange(4) + 2 == a, "one client"),
        (lambda a, b: jnp.arange(4) == a + b, "one client"), (lambda a, b: jnp.arange(4) == 9, ""),
        (lambda a, b: jnp.arange(4) // 2 == a, ""), (lambda a, b: jnp.arange(4) >= a, ""),
        (lambda a, b: (jnp.arange(4) >= 3) & (jnp.arange(4) <= 3), "client 3"),
        (lambda a, b: (jnp.arange(4) == a) | (jnp.arange(4) == b), ""),
        (lambda a, b: (jnp.arange(4) == a) & (jnp.arange(4) > 1), "one client"),
        (lambda a, b: ~(jnp.arange(4) != 2), "client 2"), (lambda a, b: 3 - jnp.arange(4) == 1, "client 2"),
        (lambda a, b: jnp.arange(4) * 2 == 4, "client 2"), (lambda a, b: jnp.arange(4) * 0 == 0, ""),
        (lambda a, b: a == jnp.arange(4), "one client"), (lambda a, b: jnp.int32(2) == jnp.arange(4), "client 2"),
        (lambda a, b: lax.broadcast(a, (4,)) == jnp.asarray(np.array([3, 1, 0, 2])), "one client"),
        (lambda a, b: jnp.asarray(np.array([3, 1, 0, 3])) == a, ""),
    ],
    ids=range(18),
)  # fmt: skip
def test_comparisons_of_client_numbers(mask: Any, found: str) -> None:
    number = s(dtype="int32")
    assert alone(lambda a, b: mask(a, b).astype("float32"), number, number) == found


HUNDRED = jnp.arange(100)


def hot(i: Any) -> Any:
    return (HUNDRED == i).astype("float32")


@pytest.mark.parametrize(
    ("fn", "found"),
    [
        (lambda x, i: x * (hot(i) > 0.5), "one client"), (lambda x, i: x * (hot(7) > 0), "client 7"),
        (lambda x, i: x * (hot(i) > -1), ""), (lambda x, i: x * (hot(i) >= 0), ""),
        (lambda x, i: x * (hot(i) >= 1), "one client"), (lambda x, i: x * (hot(i) == 1), "one client"),
        (lambda x, i: x * (hot(i) == 0), ""), (lambda x, i: x * (hot(i) != 0), "one client"),
        (lambda x, i: x * (hot(i) != 1), ""), (lambda x, i: x * (hot(i) < 1), ""),
        (lambda x, i: x * (i == HUNDRED), "one client"), (lambda x, i: x * (jnp.int32(7) == HUNDRED), "client 7"),
        (lambda x, i: jnp.where(HUNDRED == i, x, 0.0), "one client"),
        (lambda x, i: jnp.where(HUNDRED == i, 0.0, x), ""),
        (lambda x, i: jnp.where(HUNDRED != 7, 0.0, x), "client 7"), (lambda x, i: jnp.where(HUNDRED == i, x, 1.0), ""),
        (lambda x, i: jnp.where(~(HUNDRED == i), 0.0, x), "one client"),
        (lambda x, i: jnp.where(~(HUNDRED != i), x, 0.0), "one client"),
        (lambda x, i: jnp.where((HUNDRED != i) | (HUNDRED > 50), 0.0, x), "one client"),
        (lambda x, i: jnp.where((HUNDRED != i) & (HUNDRED > 50), 0.0, x), ""),
        (lambda x, i: jnp.where((HUNDRED == i) & (x > 0), x, 0.0), "one client"),
        (lambda x, i: jnp.where((x > 0) & (HUNDRED == i), x, 0.0), "one client"),
        (lambda x, i: jnp.where((HUNDRED == i) | (HUNDRED == 3), x, 0.0), ""),
        (lambda x, i: x * (hot(i) * jnp.sqrt(x)), "one client"), (lambda x, i: x * hot(i) / 2, "one client"),
        (lambda x, i: 2 / (x * hot(i)), ""), (lambda x, i: -(x * hot(i)), "one client"),
        (lambda x, i: jnp.exp(x * hot(i)), ""), (lambda x, i: (x[:, None] * hot(i)[:, None]), "one client"),
        (lambda x, i: x.reshape(100, 1) * hot(i).reshape(100, 1), "one client"),
        (lambda x, i: wb.map_fn(lambda r, n, i: r * (n == i), (x, HUNDRED, wb.broadcast(i))), "one client"),
        (lambda x, i: wb.map_fn(lambda r, n: r * (n == 7), (x, HUNDRED)), "client 7"),
        (lambda x, i: wb.map_fn(lambda r, n: r * (n // 2 == 7), (x, HUNDRED)), ""),
        (lambda x, i: wb.map_fn(lambda r, n: jnp.where(n == r, r, 0.0), (x, HUNDRED.astype("float32"))), ""),
    ],
    ids=range(34),
)  # fmt: skip
def test_masks_of_many_clients_are_read_operation_by_operation(fn: Any, found: str) -> None:
    """More than 64 clients, so that no mask is computed."""
    with jax.numpy_dtype_promotion("standard"):
        plan = trace(wb.program(clients=100)(lambda x, i: wb.reduce_sum(fn(x, i))), (s(100), s(dtype="int32"))).plan
    (step,) = [step for step in plan.steps if step.kind == "reduce"]
    assert single_client(plan, step) == found


def test_masks_that_clients_compute_from_a_broadcast_number() -> None:
    def fn(x: Any, i: Any) -> Any:
        hot = lambda r, n, i: r * jax.nn.one_hot(i, 4)[n]  # noqa: E731
        return wb.reduce_sum(wb.map_fn(hot, (x, jnp.arange(4), wb.broadcast(i))))

    plan = trace(wb.program(clients=4)(fn), (s(4), s(dtype="int32"))).plan
    assert single_client(plan, next(step for step in plan.steps if step.kind == "reduce")) == "one client"


def test_layout_of_a_phase_is_that_of_the_mesh_or_that_of_its_first_step_without_glue() -> None:
    def step(layout: Any, *, glue: bool = False) -> Any:
        return types.SimpleNamespace(equation=types.SimpleNamespace(params={"layout": layout}), glue=glue)

    placement, steps = Placement("clients", 7, ("clients",)), (step(1, glue=True), step(None), step(2), step(3))
    assert _layout_here(placement, steps) == 2
    assert _layout_here(placement, steps[:2]) is None
    with jax.set_mesh(jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))):
        layout: Any = _layout_here(placement, steps)
    assert (layout.size, layout.explicit) == (4, False)  # 7 clients on 4 devices


# ---- the loop over clients against numpy


@pytest.mark.parametrize(
    ("clients", "chunk_size", "spread", "kind"),
    [
        (7, 2, "shard_map", AxisType.Auto), (8, 1, "shard_map", AxisType.Explicit), (7, 2, "vmap", AxisType.Auto),
        (8, 1, "vmap", AxisType.Explicit), (3, None, "vmap", AxisType.Auto), (7, 2, None, AxisType.Auto),
    ],
)  # fmt: skip
def test_padded_clients_change_no_result(
    clients: int, chunk_size: Any, spread: Any, kind: AxisType, little_optimized: None
) -> None:
    """Clients whose number the devices and chunks do not divide, with every kind of reduction."""

    @wb.program(clients=clients)
    def fn(x: Any) -> Any:
        rows = wb.map_fn(lambda a: 1.0 / a, x)
        keys = jnp.arange(clients) % 2
        return (rows, wb.reduce_sum(rows), wb.reduce_mean(rows), wb.reduce_max(-rows), wb.reduce_min(rows),
                wb.reduce_by_key(rows, keys, 2))  # fmt: skip

    x = np.arange(1, 2 * clients + 1, dtype=np.float32).reshape(clients, 2)
    rows = 1 / x
    expected = (rows, rows.sum(0), rows.mean(0), (-rows).max(0), rows.min(0), [rows[0::2].sum(0), rows[1::2].sum(0)])
    form = LoopForm() if spread is None else LoopForm(spread, unroll=2)
    mesh = jax.make_mesh((1 if spread is None else 4,), ("clients",), axis_types=(kind,))
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.NamedSharding(mesh, P("clients") if kind is AxisType.Explicit else P()))
        plan = plan_jaxpr(jax.make_jaxpr(fn)(placed), "fn")
        found = jax.jit(lambda x: evaluate(plan, [x], chunk_size=chunk_size, form=form))(placed)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("spread", ["vmap", "shard_map"])
@pytest.mark.parametrize("chunk_size", [1, 2])
def test_clients_that_sum_over_all_clients_run_together(
    devices: int, spread: Any, chunk_size: int, little_optimized: None
) -> None:
    @wb.program(clients=4)
    def fn(x: Any) -> Any:
        return wb.map_fn(lambda a: a / lax.psum(a, "clients"), x)

    x = jnp.arange(1.0, 5.0)
    mesh = jax.make_mesh((devices,), ("clients",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        plan = plan_jaxpr(jax.make_jaxpr(fn)(x), "fn")
        found = jax.jit(lambda x: evaluate(plan, [x], chunk_size=chunk_size, form=LoopForm(spread)))(x)
    np.testing.assert_allclose(found[0], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
