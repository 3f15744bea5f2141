"""Work of clients, padding and waiting, derived by hand."""

import numpy as np
import pytest

from workbench.cost import estimate_cost
from workbench.cost._clients import client_costs
from workbench.errors import InspectionError
from workbench.records.hardware import ClientRange, MeshRecord
from workbench.records.program import PlacementRecord, PlanRecord, StageRecord, ValueRecord


def stage(index=0, kind="clients", path=None, *, flops=100.0, accessed=50, elementwise=20.0, **fields):
    facts = {"placement": "clients" if kind == "clients" else None, "clients": 4}
    return StageRecord(
        index=index, path=path or str(index), kind=kind, name=kind, flops_per_client=flops, bytes_per_client=accessed,
        elementwise_flops_per_client=elementwise, **{**facts, **fields},
    )  # fmt: skip


def plan(*stages, **fields):
    placements = (PlacementRecord(name="clients", size=4),)
    return PlanRecord(name="toy", placements=placements, stages=stages or (stage(),), **fields)


def mesh(*ranges, placement="clients"):
    """Clients from `start` to `stop` on devices 7, 8, ..., optionally with empty slots."""
    clients = tuple(
        ClientRange(placement=placement, device_id=7 + at, start=start, stop=stop, padding=sum(padding))
        for at, (start, stop, *padding) in enumerate(ranges)
    )
    return MeshRecord(axes=(), devices=(), clients=clients)


def waste(program, on, examples):
    return client_costs(program, on, examples)[1:]


def work(program):
    """FLOPs, bytes and elementwise FLOPs of the first client."""
    client = client_costs(program, None, None)[0][0]
    return client.flops, client.accessed_bytes, client.elementwise_flops


LOOP, BRANCH = stage(0, "loop", body=(stage(path="0.0"),)), ("0[0].0", "0[1].0")


@pytest.mark.parametrize(
    ("stages", "times"),
    [
        ((stage(), stage(1), stage(2, "server"), stage(3, placement="pods")), 2),
        ((stage(computations=3), stage(1)), 4),
        ((LOOP.replace(trip_count=5), stage(1)), 6),
        ((LOOP.replace(trip_count=5, body=(stage(path="0.0"), LOOP.replace(trip_count=2))),), 15),
        ((stage(0, "branch", body=(stage(path=BRANCH[0]), stage(path=BRANCH[1]), stage(1, path="0[1].1"))),), 2),
        ((stage(), stage(1, "branch", body=())), 1),
        ((stage(), stage(1, "loop", body=(stage(0, "server", "1.0"),))), 1),  # of unknown length, without clients
    ],
)
def test_one_client_does_the_work_of_all_its_stages(stages, times):
    assert work(plan(*stages)) == (100.0 * times, 50.0 * times, 20.0 * times)


@pytest.mark.parametrize(
    "stages",
    [
        (LOOP,), (stage(flops=None),), (stage(), stage(1, accessed=None)),
        (stage(0, "branch", body=(stage(path=BRANCH[0]), stage(path=BRANCH[1], flops=None))),),
        (stage(0, "loop", trip_count=2, body=(stage(path="0.0", flops=None),)),),
    ],
)  # fmt: skip
def test_unknown_work_leaves_out_the_clients(stages):
    assert client_costs(plan(*stages), None, None) == ((), None, None, None)


def test_unknown_elementwise_work_counts_as_none():
    assert work(plan(stage(elementwise=None))) == (100.0, 50.0, 0.0)


def test_without_clients_there_is_no_waste():
    for program in (None, plan(stage(0, "server")), plan(stage(placement=None))):
        assert client_costs(program, None, None) == ((), None, None, None)


def test_clients_of_the_first_stage_are_counted_with_their_devices():
    inner = stage(0, "loop", trip_count=1, body=(stage(path="0.0", placement="pods", clients=3),))
    found, *_ = client_costs(plan(stage(0, "server"), inner, stage()), mesh((0, 2), (2, 5), placement="pods"), None)
    assert [(c.client, c.device_id) for c in found] == [(0, 7), (1, 7), (2, 8)]
    assert {(c.examples, c.padded_examples) for c in found} == {(None, None)}


def test_clients_on_no_device_and_copies_on_a_second_device():
    found, *_ = client_costs(plan(), mesh((0, 2), (0, 2), (2, 2), (2, 3)), None)
    assert [c.device_id for c in found] == [7, 7, 10, None]
    assert [c.device_id for c in client_costs(plan(), mesh((0, 4), placement="pods"), None)[0]] == [None] * 4


@pytest.mark.parametrize(
    ("ranges", "padding"),
    [
        ((), 0.0), (((0, 4),), 0.0), (((0, 2), (2, 4)), 0.0), (((0, 2, 1), (2, 4, 1)), 2 / 6),
        (((0, 3), (3, 4, 2)), 2 / 6),
        (((0, 2, 1), (0, 2, 1), (2, 4, 1), (2, 4, 1)), 2 / 6), (((0, 4, 4), (4, 4, 8)), 12 / 16),
    ],
)  # fmt: skip
def test_share_of_empty_slots(ranges, padding):
    assert waste(plan(), mesh(*ranges), None) == (pytest.approx(padding), None, None)
    assert waste(plan(), mesh((0, 2, 9), placement="pods"), None) == (0.0, None, None)


@pytest.mark.parametrize(
    ("counts", "ranges", "chunk_size", "lockstep", "imbalance"),
    [
        # 4 clients together take 4 · 8, those in pairs 2 · 8 + 2 · 4, one after another what they need
        ((8, 4, 4, 0), (), None, 32 / 16 - 1, 0.0),
        ((8, 4, 4, 0), (), 2, 24 / 16 - 1, 0.0),
        ((8, 4, 4, 0), (), 3, 24 / 16 - 1, 0.0),
        ((8, 4, 4, 0), (), 1, 0.0, 0.0),
        # devices of 16 and 8: the slowest takes 16, the mean is 12
        ((8, 4, 4, 0), ((0, 2), (2, 4)), None, 24 / 16 - 1, 16 / 12 - 1),
        ((8, 4, 4, 0), ((0, 2), (2, 4)), 1, 0.0, 12 / 8 - 1),
        ((8, 4, 4, 0), ((0, 1), (1, 4)), None, 20 / 16 - 1, 12 / 10 - 1),
        # the last client is on an unknown device
        ((8, 4, 4, 2), ((0, 2), (2, 3)), None, 22 / 18 - 1, 16 / (22 / 3) - 1),
        ((4, 4, 4, 4), ((0, 2), (2, 4)), None, 0.0, 0.0),
    ],
)
def test_waiting_for_the_largest_client_and_the_slowest_device(counts, ranges, chunk_size, lockstep, imbalance):
    program = plan(chunk_size=chunk_size)
    for examples in (counts, np.array(counts)):
        assert waste(program, mesh(*ranges), (examples, 8))[1:] == pytest.approx((lockstep, imbalance))


def test_padding_counts_examples_and_empty_slots():
    assert waste(plan(), None, ((8, 4, 4, 0), 8))[0] == 1 - 16 / 32
    # 16 of 4 · 8 examples, and two of six slots are empty
    assert waste(plan(), mesh((0, 2, 1), (2, 4, 1)), ((8, 4, 4, 0), 8))[0] == pytest.approx(1 - 2 / 6)


def test_two_clients_may_have_plain_numbers_of_examples():
    mask = ValueRecord(name="mask", shape=(2, 9), dtype="bool", size_bytes=18)
    two = plan(stage(clients=2), inputs=(mask,))
    found, *_ = client_costs(two, None, (3, 9))
    assert [(c.examples, c.padded_examples, c.flops) for c in found] == [(3, 9, pytest.approx(100 / 3)), (9, 9, 100.0)]


def value(name, shape, dtype="bool"):
    return ValueRecord(name=name, shape=shape, dtype=dtype, size_bytes=0)


@pytest.mark.parametrize(
    ("inputs", "padded"),
    [
        ((value("mask", (4, 8)),), 8), ((value("d['mask']", (4, 2, 8)),), 16), ((value("d.mask", (4,)),), 1),
        ((value("mask", (4, 8)), value("other['mask']", (4, 8))), 8), ((value("mask", (4, 8)), value("x", (4, 9))), 8),
    ],
)  # fmt: skip
def test_a_mask_declares_the_padded_number(inputs, padded):
    found, *_ = client_costs(plan(inputs=inputs), None, (1, 1, 1, 1))
    assert {c.padded_examples for c in found} == {padded}
    found, *_ = client_costs(plan(inputs=inputs), None, ((1, 1, 1, 1), 32))
    assert {c.padded_examples for c in found} == {32}


@pytest.mark.parametrize(
    "inputs",
    [
        (), (value("mask", (4, 8), "int8"),), (value("mask", (5, 8)),), (value("unmask", (4, 8)),),
        (value("mask_of", (4, 8)),), (value("mask", (4, 8)), value("a['mask']", (4, 9))),
    ],
)  # fmt: skip
def test_other_inputs_declare_nothing(inputs):
    with pytest.raises(InspectionError) as caught:
        client_costs(plan(inputs=inputs), None, (1, 5, 3, 2))
    assert str(caught.value) == (
        "`examples_per_client` has the true number of examples of every client, but the padded number of examples in "
        "the arrays is not declared: a dimension may be examples, steps or features. Pass both numbers, as in "
        "`examples_per_client=(counts, 5)`, or the mask of `pad_clients` as an argument `mask`."
    )


RULE = (
    "`examples_per_client` needs one non-negative number per client, and at least one of them must be positive: {}omit "
    "`examples_per_client` to count all clients equally."
)
FOUR = RULE.format("pass 4 numbers, or ")


@pytest.mark.parametrize(
    ("examples", "program", "message"),
    [
        ((1, 2, 3), plan(), f"`examples_per_client` for 3 clients, but placement 'clients' has 4 clients. {FOUR}"),
        ((1,) * 5, plan(), f"`examples_per_client` for 5 clients, but placement 'clients' has 4 clients. {FOUR}"),
        ((1, 2, -1, 0), plan(), f"`examples_per_client` between -1 and 2. {FOUR}"),
        (((0, 0, 0, 0), 8), plan(), f"`examples_per_client` between 0 and 0. {FOUR}"),
        ((1, 2, 3), plan(stage(0, "server")),
         f"`examples_per_client` for 3 clients, but no stage of the program has clients. {RULE.format('')}"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_the_clients_are_refused(examples, program, message):
    with pytest.raises(InspectionError) as caught:
        client_costs(program, None, examples)
    assert str(caught.value) == f"`estimate_cost` was given {message}"


def test_more_examples_than_rows_are_refused():
    assert waste(plan(), None, ((0, 0, 0, 8), 8))[0] == 0.75
    with pytest.raises(InspectionError) as caught:
        client_costs(plan(), None, ((0, 1009, 9, 1009), 1008))
    assert str(caught.value) == (
        "`examples_per_client` has 1,009 examples for client 1, but the arrays have 1,008 for each client. A client "
        "cannot have more examples than its arrays have rows: pass the counts that belong to these arrays."
    )


@pytest.mark.parametrize(("clients", "records"), [(100_000, 100_000), (100_001, 0)])
def test_more_than_100000_clients_have_no_records_of_their_own(clients, records):
    many = plan(stage(clients=clients))
    found, padding, lockstep, imbalance = client_costs(many, None, (np.arange(clients) % 2, 1))
    assert len(found) == records
    assert padding == pytest.approx(0.5, abs=1e-4)
    assert (lockstep, imbalance) == (pytest.approx(1.0, abs=1e-4), 0.0)


def test_costs_contain_the_clients_and_their_waste():
    cost = estimate_cost(None, plan(), mesh=mesh((0, 2), (2, 4)), examples_per_client=((8, 4, 4, 0), 8))
    assert len(cost.clients) == 4
    found = cost.padding_waste, cost.lockstep_waste, cost.imbalance_waste
    assert found == pytest.approx((0.5, 24 / 16 - 1, 16 / 12 - 1))
