"""The stages of a plan: their source lines, clients inside loops, and rows that are computed more than once."""

import inspect
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import ProgramError

CLIENTS = 8


@wb.program(clients=CLIENTS)
def three_passes(x):
    rows = wb.map_fn(lambda row: row**2, x)  # first pass
    mean = wb.reduce_mean(rows)
    apart = wb.map_fn(lambda row, mean: jnp.tanh(row - mean), (rows, wb.broadcast(mean)))  # second pass
    return wb.reduce_sum(wb.map_fn(jnp.subtract, (apart, wb.broadcast(wb.reduce_mean(apart)))))  # third pass


def line_of(words):
    lines, first = inspect.getsourcelines(inspect.unwrap(three_passes))
    return first + next(number for number, text in enumerate(lines) if words in text)


def test_stages_have_the_lines_of_the_user():
    stages = wb.trace(three_passes)(jnp.ones((CLIENTS, 2))).plan.stages
    sources = [stage.source for stage in stages if stage.kind == "clients" and stage.source]
    lines = [(source.file, source.line) for source in sources]
    assert lines == [(__file__, line_of(words)) for words in ("first pass", "second pass", "third pass")]


@pytest.mark.parametrize(("values", "computations"), [(2, [1, 1, 1]), (2**32, [3, 2, 1])])
def test_rows_that_do_not_fit_are_computed_again_by_every_later_pass(values, computations):
    plan = wb.trace(three_passes)(jax.ShapeDtypeStruct((CLIENTS, values), "float32")).plan
    assert [stage.computations for stage in plan.stages if stage.kind == "clients"] == computations
    assert len(plan.notes) == sum(count > 1 for count in computations)


def test_clients_inside_a_loop_are_listed():
    @wb.program(clients=CLIENTS)
    def rounds(w, x):
        return jax.lax.scan(lambda w, _: (wb.reduce_mean(wb.map_fn(jnp.add, (wb.broadcast(w), x))), None), w, length=3)[
            0
        ]

    (placement,) = wb.trace(rounds)(jnp.ones(2), jnp.ones((CLIENTS, 2))).plan.placements
    assert (placement.name, placement.size) == ("clients", CLIENTS)


@dataclass(frozen=True)
class Unit:
    name: str


def test_a_constant_that_no_stage_reads_is_returned():
    @wb.program(clients=CLIENTS)
    def total_and_positions(x):
        return wb.reduce_sum(x), jnp.arange(3)

    total, positions = wb.jit(total_and_positions)(jnp.ones(CLIENTS))
    assert (total, positions.tolist()) == (8.0, [0, 1, 2])


def test_static_objects_are_for_jit_alone():
    @wb.program(clients=CLIENTS)
    def scaled(x: Any, unit: Any):
        return wb.reduce_mean(wb.map_fn(lambda row: row * len(unit.name), x))

    unit, x = Unit("meters"), jnp.ones(CLIENTS)
    assert wb.trace(jax.jit(scaled, static_argnames="unit"))(x, unit=unit).plan.placements
    with pytest.raises(ProgramError, match="an object of type Unit"):
        wb.trace(scaled)(x, unit)


def test_reductions_on_one_line_are_one_stage():
    def mean(x):
        return wb.reduce_mean(x)

    @wb.program(clients=CLIENTS)
    def by_helper(x, y):
        first = mean(x)
        return first + mean(y)

    @wb.program(clients=CLIENTS)
    def apart(x, y):
        first = wb.reduce_mean(x)
        return first + wb.reduce_mean(y)

    x = jnp.ones(CLIENTS)
    kinds = [[stage.kind for stage in wb.trace(fn)(x, x).plan.stages].count("reduce") for fn in (by_helper, apart)]
    assert kinds == [1, 2]


@pytest.mark.parametrize(("spec", "kind"), [(P("clients"), "clients"), (P("clients", "model"), "server")])
def test_arithmetic_on_sharded_columns_is_for_the_compiler(spec, kind):
    mesh = jax.make_mesh((2, 2), ("clients", "model"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(jnp.ones((CLIENTS, 4)), NamedSharding(mesh, spec))
    rows = wb.program(clients=CLIENTS)(lambda x: 2 * wb.map_fn(jnp.sin, x))
    with jax.set_mesh(mesh):
        assert [stage.kind for stage in wb.trace(rows)(x).plan.stages] == ["clients", kind]
        assert wb.jit(rows)(x).sharding.spec == jax.jit(lambda x: 2 * jnp.sin(x))(x).sharding.spec
