"""Costs at another size: against the compiler at that size, and by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.cost import estimate_scaled, known_chip
from workbench.errors import InspectionError, MeshError

STEPS, ROWS, WIDTH = 3, 8, 64


def inspected(*, clients=16, shares=2, model=2, layers=2, at_once=None, chip=None, compiled=True):
    """A round of local SGD of `layers` square layers, cut along the model axis, inspected on a mesh of CPU devices."""
    sizes, names = (shares, model), ("clients", "model")
    mesh = wb.make_mesh(dict(zip(names, sizes, strict=True)), devices=jax.devices()[: shares * model])
    if not compiled:
        mesh = mesh.abstract_mesh

    @wb.program(clients=clients)
    def local_sgd(weights, data):
        def train(weights, rows):
            def step(weights, _):
                def loss(weights):
                    x = rows
                    for layer in range(layers):
                        x = jnp.tanh(x @ weights[layer])
                    return jnp.mean(x**2)

                return weights - 0.1 * jax.grad(loss)(weights), None

            return jax.lax.scan(step, weights, None, length=STEPS)[0]

        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(weights), data)))

    def struct(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    args = struct((layers, WIDTH, WIDTH), None, None, "model"), struct((clients, ROWS, WIDTH), "clients")
    return wb.inspect(local_sgd, on=(mesh, chip), chunk_size=at_once)(*args)


@pytest.fixture(scope="module")
def record():
    return inspected(chip="v5e")


def sent(cost):
    return {(stage.stage, axis): amount for stage in cost.stages for axis, amount in stage.collective_bytes.items()}


def flops(cost):
    return {stage.stage: stage.flops for stage in cost.stages if stage.flops}


def test_size_as_it_is_gives_the_records_own_cost(record):
    same = estimate_scaled(record)
    assert same.cost.stages == record.cost.stages
    assert same.cost.seconds == record.cost.seconds
    assert same.memory.peak_bytes == record.module.memory.peak_bytes
    assert (same.clients, same.clients_per_device, same.devices, same.idle_devices) == (16, 8, 4, 0)


@pytest.mark.parametrize(
    ("changes", "actual"),
    [
        ({"clients": 64}, {"clients": 64}),
        ({"devices": 8}, {"shares": 4}),
        ({"clients": 64, "devices": 8}, {"clients": 64, "shares": 4}),
        ({"devices": 2}, {"shares": 1}),
    ],
    ids=["more-clients", "more-devices", "both", "fewer-devices"],
)
def test_flops_and_bytes_sent_are_those_of_the_program_compiled_at_that_size(record, changes, actual):
    estimated, compiled = estimate_scaled(record, **changes), inspected(**actual)
    assert flops(estimated.cost) == flops(compiled.cost)
    assert sent(estimated.cost) == {key: pytest.approx(amount) for key, amount in sent(compiled.cost).items()}
    assert estimated.memory.argument_bytes == compiled.module.memory.argument_bytes
    assert estimated.memory.peak_bytes == pytest.approx(compiled.module.memory.peak_bytes, rel=0.15)


def test_twice_the_layers_are_twice_the_model(record):
    estimated, compiled = estimate_scaled(record, model=2.0), inspected(layers=4)
    # the first layer needs no gradient of its input, so a layer more costs a little more than a layer on average
    assert estimated.cost.stages[1].flops == pytest.approx(compiled.cost.stages[1].flops, rel=0.15)
    assert sent(estimated.cost)["2", "clients"] == pytest.approx(sent(compiled.cost)["2", "clients"])
    assert estimated.memory.argument_bytes == compiled.module.memory.argument_bytes
    assert estimated.memory.peak_bytes == pytest.approx(compiled.module.memory.peak_bytes, rel=0.25)


def test_fewer_chunk_size_take_less_memory_and_as_many_flops(record):
    estimated, compiled = estimate_scaled(record, chunk_size=2), inspected(at_once=2)
    assert estimated.chunk_size == 2
    assert flops(estimated.cost) == flops(record.cost) == flops(compiled.cost)
    assert estimated.memory.temporary_bytes == record.module.memory.temporary_bytes / 4  # of 8 clients at once
    assert compiled.module.memory.temporary_bytes < record.module.memory.temporary_bytes


def test_one_device_that_becomes_four_sends_what_the_plan_reduces():
    alone = inspected(shares=1, model=1)
    estimated = estimate_scaled(alone, devices=4)
    # an all-reduce of two layers of float32 over a ring of 4: 2 · S · 3/4
    assert sent(estimated.cost) == {("2", "clients"): 2 * (2 * WIDTH * WIDTH * 4) * 3 / 4}
    assert sent(estimate_scaled(alone).cost) == {}


@pytest.mark.parametrize("model", [2, 4])
def test_one_share_of_several_devices_that_becomes_two_sends_what_a_device_has_of_the_result(model):
    """One client: XLA leaves no operation of the reduction, and the result's own sharding says what a device has."""
    alone, two = inspected(clients=1, shares=1, model=model), inspected(clients=2, shares=2, model=model)
    estimated = estimate_scaled(alone, clients=2, devices=2 * model)
    reduced = sent(estimated.cost)["2", "clients"]
    assert reduced == 2 * (2 * WIDTH * WIDTH * 4 / model) / 2  # an all-reduce over a ring of 2
    over_clients = [c for c in two.module.collectives if c.axes == ("clients",)]
    assert reduced == sum(c.wire_bytes * c.executions for c in over_clients)


def test_plan_that_nobody_compiled_is_scaled_too():
    planned = inspected(compiled=False)
    twice = estimate_scaled(planned, clients=32)
    assert twice.memory is None
    assert twice.cost.stages[1].flops == 2 * planned.cost.stages[1].flops
    assert "the plan of local_sgd" in twice.cost.assumptions[0]


def test_devices_without_a_client_are_counted(record):
    # 16 clients on 32 shares of two devices: sixteen shares hold one each
    scaled = estimate_scaled(record, devices=64)
    assert (scaled.clients_per_device, scaled.idle_devices) == (1, 32)


def test_target_determines_the_chip_and_the_devices(record):
    scaled = estimate_scaled(record, on="v6e:4x4")
    assert (scaled.devices, scaled.cost.chip.name) == (16, "v6e")


def test_seconds_follow_the_chip(record):
    slow, fast = estimate_scaled(record), estimate_scaled(record, on="v6e")
    # v6e: 918 TFLOP/s and 1638 GB/s, v5e: 197 and 819
    assert fast.cost.stages[1].compute_seconds == pytest.approx(slow.cost.stages[1].compute_seconds * 197 / 918)
    assert fast.cost.stages[1].memory_seconds == pytest.approx(slow.cost.stages[1].memory_seconds * 819 / 1638)
    assert fast.memory.available_bytes == 32 * 2**30


def test_model_that_does_not_fit_any_more_says_so(record):
    assert estimate_scaled(record).memory.fits is not False
    large = estimate_scaled(record, model=1e6, on="v5e")
    assert large.memory.fits is False
    assert large.memory.peak_bytes > large.memory.available_bytes == 16 * 2**30


def test_every_assumption_is_next_to_the_estimate(record):
    scaled = estimate_scaled(record, clients=32, model=2.0, devices=8, chunk_size=1)
    said = " | ".join(scaled.cost.assumptions)
    for words in ("estimated, not compiled", "rings of 4 instead of 2", "2 times the parameters", "1 clients at once"):
        assert words in said


@pytest.mark.parametrize(
    ("changes", "clients"), [({"clients": 32}, 16), ({"devices": 8}, 4)], ids=["more-clients", "more-devices"]
)
def test_assumptions_name_the_clients_of_the_fullest_device(record, changes, clients):
    said = " | ".join(estimate_scaled(record, **changes).cost.assumptions)
    assert f"the fullest device has {clients} clients instead of 8" in said


def test_seconds_are_unknown_where_those_of_a_collective_are(record):
    collectives = tuple(collective.replace(wire_bytes=None) for collective in record.module.collectives)
    unread = record.replace(module=record.module.replace(collectives=collectives))
    assert estimate_scaled(unread, clients=32).cost.seconds is None


def test_clients_that_do_not_divide_say_what_is_left_out(record):
    said = " | ".join(estimate_scaled(record, clients=33).cost.assumptions)
    assert "33 clients do not divide evenly among 2 devices" in said
    assert "do not divide" not in " | ".join(estimate_scaled(record, clients=34).cost.assumptions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clients": 0}, "clients=0 is not above 0"),
        ({"model": -1.0, "chunk_size": 0}, "model=-1.0 is not above 0; chunk_size=0 is not above 0"),
        ({"devices": 3}, "devices=3 is not a multiple of 2"),
    ],
    ids=["clients", "several", "devices"],
)
def test_impossible_sizes_are_all_named(record, changes, words):
    with pytest.raises(InspectionError, match=f"given impossible sizes for 'local_sgd': {words}") as caught:
        estimate_scaled(record, **changes)
    assert "Use positive numbers" in str(caught.value)


def test_devices_of_a_target_are_blamed_on_the_target():
    mean = wb.program(clients=8)(lambda x: wb.reduce_mean(wb.map_fn(jnp.sin, x)))
    with pytest.raises(InspectionError, match=r"on='v5p-16' \(8 devices\), but the clients are not sharded") as caught:
        estimate_scaled(wb.inspect(mean)(jnp.ones((8, 4))), on="v5p-16")
    assert "devices=8" not in str(caught.value)


def test_program_without_clients_is_refused():
    plain = wb.inspect(lambda x: x + 1)(jnp.ones(3))
    with pytest.raises(InspectionError, match=r"which has no clients.*pass the record of a program with a placement"):
        estimate_scaled(plain)


def nested(*, clients=8, shares=2):
    """Pods that every device computes, of clients over a mesh axis."""
    mesh = wb.make_mesh({"clients": shares, "model": 2}, devices=jax.devices()[: shares * 2])

    @wb.program(placements={"pods": 4, "clients": clients})
    def rounds(weights, data):
        def pod(weights, data):
            def fit(w, rows):
                return w - 0.1 * jax.grad(lambda w: jnp.mean((rows @ w) ** 2))(w)

            local = wb.broadcast(weights, to="clients")
            return wb.reduce_mean(wb.map_fn(fit, (local, data), over="clients"), over="clients")

        return wb.reduce_mean(wb.map_fn(pod, (wb.broadcast(weights, to="pods"), data), over="pods"), over="pods")

    data = jax.ShapeDtypeStruct(
        (4, clients, ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P(None, "clients"))
    )
    return wb.inspect(rounds, on=mesh)(jnp.zeros((WIDTH, WIDTH)), data)


@pytest.mark.parametrize(
    ("changes", "actual"),
    [({"clients": 32}, {"clients": 32}), ({"devices": 8}, {"shares": 4})],
    ids=["more-clients", "more-devices"],
)
def test_clients_inside_pods_are_scaled_where_they_have_a_mesh_axis(changes, actual):
    estimated, compiled = estimate_scaled(nested(), **changes), nested(**actual)
    assert flops(estimated.cost) == flops(compiled.cost)
    assert sent(estimated.cost) == {key: pytest.approx(amount) for key, amount in sent(compiled.cost).items()}


@pytest.mark.parametrize("machine", ["cpu", 7, ("v5e",)])
def test_machine_without_rates_is_refused(record, machine: Any):
    with pytest.raises(MeshError, match=r'`estimate_scaled` was given on=.*such as "v5p"'):
        estimate_scaled(record, on=machine)


def test_network_between_hosts_is_part_of_a_target(record):
    chip = estimate_scaled(record, on="h100:2x8@8x400G").cost.chip
    assert chip == known_chip("h100@8x400G")


def test_slice_of_a_cloud_states_the_devices(record):
    assert estimate_scaled(record, on="v5e-16").cost == estimate_scaled(record, on="v5e:4x4").cost
