"""Inputs of clients carry the names of the client function's own arguments, by their paths in its pytrees."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.render import stage_details

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
DATA = {"x": jnp.ones((4, 5, 3)), "y": jnp.ones((4, 5, 2))}


def train(params: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        return jnp.mean(jnp.tanh(batch["x"] @ params["w"] + params["b"][None] - batch["y"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@wb.program(clients=4)
def one_round(params: Any, data: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))


NAMES = ["params['b']", "params['w']", "batch['x']", "batch['y']"]


def clients_of(fn: Any, *args: Any) -> list[list[str]]:
    plan = wb.trace(fn)(*args).plan
    return [[value.argument for value in stage.inputs] for stage in plan.walk() if stage.kind == "clients"]


def test_plan_names_what_the_client_function_receives() -> None:
    assert clients_of(one_round, PARAMS, DATA) == [NAMES]


def test_gradient_keeps_the_names() -> None:
    def total(params: Any, data: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree.leaves(one_round(params, data)))

    first = clients_of(jax.grad(total), PARAMS, DATA)[0]  # what the derivative does not read is not computed
    assert "batch['x']" in first
    assert set(first) <= set(NAMES)


def test_tap_names_inputs_by_their_paths() -> None:
    record = wb.trace(one_round)(PARAMS, DATA).tap(client=1)
    assert [value.name for value in record.values if value.operation == "input"] == NAMES


def test_explorer_shows_both_names() -> None:
    record = wb.inspect(one_round)(PARAMS, DATA)
    path = next(stage.path for stage in record.plan.walk() if stage.kind == "clients")
    inputs = next(block for block in stage_details(record)[path]["blocks"] if block["title"] == "Inputs")
    assert [row[0] for row in inputs["rows"]][2:] == ["batch['x'] = data['x']", "batch['y'] = data['y']"]


@pytest.mark.parametrize(
    ("fn", "args", "names"),
    [
        (lambda row: row["x"], DATA, ["row['x']", "row['y']"]),  # one argument that is no tuple
        (lambda first, *rest: first, (DATA["x"], DATA["y"], DATA["x"]), ["first", "rest[0]", "rest[1]"]),
        (jnp.add, (DATA["x"], DATA["x"]), ["args[0]", "args[1]"]),  # an object without a signature
        (lambda x, y, scale=2.0: x * scale, (DATA["x"], DATA["y"]), ["x", "y"]),
    ],
)
def test_parameters_of_every_kind_name_their_arrays(fn: Any, args: Any, names: list[str]) -> None:
    program = wb.program(clients=4)(lambda args: wb.reduce_sum(wb.map_fn(fn, args)))
    closed = jax.make_jaxpr(program)(args).jaxpr.eqns
    [call] = [equation for equation in closed if equation.primitive.name == "map_fn"]
    assert list(call.params["jaxpr"].jaxpr.debug_info.arg_names) == names


def test_values_that_are_closed_over_have_no_name_of_an_argument() -> None:
    def closing(w: Any, x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row @ w, x))

    [names] = clients_of(wb.program(clients=4)(closing), PARAMS["w"], DATA["x"])
    assert sorted(names) == ["", "row"]
