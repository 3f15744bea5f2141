"""The table of cases of the page on algorithms: absent clients, empty rounds, padding, weights, seeds."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.federated import algorithms, data

pytestmark = pytest.mark.usefixtures("little_optimized")


def squares(w, batch):  # the loss uses the mask: padding does not count
    error = jnp.where(batch["mask"], (w - batch["x"]) ** 2, 0.0)
    return error.sum() / jnp.maximum(batch["mask"].sum(), 1).astype(error.dtype)


@pytest.fixture
def averaged():
    """The parameters after one round from 0 with a rate of 0.5, at which one step reaches the mean of a batch."""
    algorithm = algorithms.fedavg(squares, clients=2, client_optimizer=optax.sgd(0.5))

    def run(x, mask, weight=None):
        batches = {"x": jnp.asarray(x, jnp.float32), "mask": jnp.asarray(mask, bool)}
        batches |= {} if weight is None else {"weight": jnp.asarray(weight, jnp.float32)}
        return float(algorithm.round(algorithm.init(jnp.float32(0)), batches)[0].params)

    return run


X, FULL = [[[2.0, 2.0]], [[6.0, 6.0]]], [[[1, 1]], [[1, 1]]]


@pytest.mark.parametrize(
    ("mask", "weight", "expected"),
    [
        (FULL, None, 4.0),  # without weights all clients count equally
        (FULL, [1, 3], 5.0),
        (FULL, [0, 1], 6.0),  # an absent client
        (FULL, [0, 0], 0.0),  # a round without clients changes nothing
        ([[[0, 0]], [[1, 1]]], [1, 1], 3.0),  # a client without examples and with a weight counts: its update is 0
        ([[[0, 0]], [[1, 1]]], [0, 2], 6.0),  # the weights of `pad_clients` are the numbers of examples
    ],
)
def test_weights_and_absent_clients(averaged, mask, weight, expected):
    assert averaged(X, mask, weight) == expected


def test_a_partial_batch_counts_its_examples_alone(averaged):
    assert averaged([[[2.0, 99.0]], [[6.0, 6.0]]], [[[1, 0]], [[1, 1]]]) == 4.0


def test_steps_of_padding_do_not_move_a_client(averaged):
    assert averaged([[[2.0, 2.0], [0, 0]], [[6.0, 6.0], [6, 6]]], [[[1, 1], [0, 0]], [[1, 1], [1, 1]]]) == 4.0


def test_the_order_of_a_client_depends_on_the_key_and_the_client_alone():
    held = data.ClientData(arrays={name: {"x": np.arange(8.0)} for name in "abc"})
    alone, among = (data.pad_clients(chosen, batch_size=4, key=3) for chosen in (held.select([1]), held))
    assert alone["x"][0].tolist() == among["x"][1].tolist()
    assert data.pad_clients(held, batch_size=4, key=4)["x"].tolist() != among["x"].tolist()


def test_items_are_left_out_of_groups_by_values_of_zero_or_keys_that_are_traced():
    values, keys = jnp.array([1.0, 2.0, 4.0]), jnp.array([0, 0, 1])
    present = jnp.array([1.0, 0.0, 1.0])
    with wb.program(clients=3):
        assert wb.reduce_by_key(values * present, keys, 2).tolist() == [1.0, 4.0]
        total, count = wb.reduce_by_key((values * present, present), keys, 2)
        assert (total / count).tolist() == [1.0, 4.0]  # a mean with weights

    @wb.jit
    @wb.program(clients=3)
    def grouped(values, keys):
        return wb.reduce_by_key(values, keys, 2, op="mean")

    assert grouped(values, jnp.where(present > 0, keys, -1)).tolist() == [1.0, 4.0]


def test_a_schedule_of_a_client_is_named():
    schedule = optax.sgd(optax.exponential_decay(0.5, 1, 0.5))
    algorithm = algorithms.fedavg(squares, clients=2, client_optimizer=schedule)
    batches = {"x": jnp.asarray(X), "mask": jnp.asarray(FULL, bool)}
    with pytest.warns(UserWarning, match=r"contains a schedule.*optax.sgd\(schedule\(round\)\)"):
        algorithm.round(algorithm.init(jnp.float32(0)), batches)
