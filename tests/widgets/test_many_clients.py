"""Ten million clients: a view of groups of them, made of numbers and not of one object each."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workbench_widgets._clients import clients_view_state
from workbench_widgets._clients_state import MOST_DRAWN, clients_state, group_means

import workbench as wb
from workbench.cost import estimate_cost
from workbench.records.compiled import ClientCostRecord

MANY = 10**7


def averages(clients: int):
    return wb.program(clients=clients)(
        lambda w, x: wb.reduce_mean(wb.map_fn(lambda w, row: w * row, (wb.broadcast(w), x)))
    )


def arguments(clients: int):
    return jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((clients,), jnp.float32)


@pytest.fixture(scope="module")
def record():
    with jax.set_mesh(wb.make_mesh(clients=4)):
        return wb.inspect(averages(MANY))(*arguments(MANY))


def test_record_and_text_of_ten_million_clients_are_small(record) -> None:
    assert record.cost.clients == ()
    assert record.cost.padding_waste == 0.0
    assert "10,000,000 clients" in str(record)
    assert len(record.to_json()) < 10**6


def test_view_of_ten_million_clients_is_of_groups(record) -> None:
    state, arrays = clients_state(record)
    assert state["count"] * state["group_size"] == MANY
    assert state["count"] <= MOST_DRAWN
    assert "10,000,000 clients, drawn as groups of 100" in state["placement"]
    assert [(start, stop) for start, stop, *_ in state["ranges"]] == [
        (0, 25_000),
        (25_000, 50_000),
        (50_000, 75_000),
        (75_000, 100_000),
    ]
    flops = np.frombuffer(arrays["clients.flops"], "<f4")
    assert flops.shape == (state["count"],)
    trains = next(stage for stage in record.plan.stages if stage.kind == "clients")
    assert set(flops) == {trains.flops_per_client}
    assert set(np.frombuffer(arrays["clients.elementwise"], "<f4")) == {trains.elementwise_flops_per_client} != {0.0}


def test_explorer_of_ten_million_clients_needs_no_gigabyte_and_fits_a_page(record) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = wb.explore(record)
    assert len(view.to_html()) < 10 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB
    view.close()


def test_measured_numbers_are_means_of_groups() -> None:
    means = group_means({0: 1.0, 1: 3.0, 2: None, 5: 8.0, 9: 1.0}, 3, 2)
    np.testing.assert_array_equal(means, [2.0, np.nan, 8.0])


def test_wastes_of_many_unequal_clients_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers with and without a record for each client."""
    with jax.set_mesh(wb.make_mesh(clients=4)):
        found = wb.inspect(averages(10), chunk_size=2)(*arguments(10))
    examples = [1, 7, 2, 2, 9, 1, 3, 3, 5, 4]

    def wastes():
        cost = estimate_cost(found.module, found.plan, mesh=found.mesh, examples_per_client=(examples, 9))
        return len(cost.clients), cost.padding_waste, cost.lockstep_waste, cost.imbalance_waste

    listed = wastes()
    monkeypatch.setattr("workbench.cost._clients.MOST_CLIENTS", 5)
    assert listed[0] == 10
    assert wastes() == (0, *listed[1:])
    assert listed[1] == pytest.approx(1 - (sum(examples) / 9) / 12)


def test_few_clients_stay_single() -> None:
    found = wb.inspect(averages(10))(*arguments(10))
    state, arrays = clients_view_state(found)
    assert (state["count"], state["group_size"]) == (10, 1)
    assert isinstance(found.cost.clients[3], ClientCostRecord)
    assert len(arrays["clients.flops"]) == 40
