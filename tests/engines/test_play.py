import jax
import jax.numpy as jnp
import numpy as np
import pytest
from client_functions import emitting_fedavg as fedavg

import workbench as wb
from workbench.engines import play
from workbench.records.run import PlayRecord


@pytest.fixture
def arguments():
    return np.ones(3, np.float32), np.arange(4 * 2 * 3, dtype=np.float32).reshape(4, 2, 3)


@pytest.fixture
def played(arguments) -> PlayRecord:
    return play(fedavg, *arguments)


def test_stages_are_in_order_with_bytes(played: PlayRecord) -> None:
    assert [(stage.kind, stage.clients) for stage in played.stages] == [("broadcast", 4), ("clients", 4), ("reduce", 4)]
    assert played.stages[0].moved_bytes == 4 * 3 * 4


def test_results_are_those_of_the_program(played: PlayRecord, arguments) -> None:
    np.testing.assert_allclose(played.results, fedavg(*arguments), rtol=1e-6)


def test_every_client_has_the_size_and_the_distance_of_its_value(played: PlayRecord, arguments) -> None:
    params, data = arguments

    def train(weights, rows):
        for row in rows:
            weights = weights - 0.5 * 2 * (weights - row) / 3
        return weights

    trained = np.stack([train(params, rows) for rows in data])
    value = played.stages[1].values[0]
    np.testing.assert_allclose(value.norms, np.linalg.norm(trained, axis=1), rtol=1e-5)
    np.testing.assert_allclose(value.distances, np.linalg.norm(trained - params, axis=1), rtol=1e-5)


def test_what_clients_emit_is_their_course_over_local_steps(played: PlayRecord, arguments) -> None:
    params, data = arguments
    (course,) = played.courses
    first = ((params - data[:, 0]) ** 2).mean(axis=1)
    assert course.name == "loss"
    np.testing.assert_allclose([row[0] for row in course.values], first, rtol=1e-6)
    assert {len(row) for row in course.values} == {2}


def test_pictures_are_the_values_themselves_while_they_are_small(played: PlayRecord) -> None:
    value = played.stages[2].values[0]
    assert value.picture_shape == (1, 3)
    np.testing.assert_allclose(value.picture, played.results, rtol=1e-6)


def test_a_large_array_is_pictured_by_means_of_its_parts() -> None:
    @wb.program(clients=2)
    def total(x):
        return wb.reduce_sum(x)

    rows = np.stack([np.kron(np.arange(64.0).reshape(8, 8), np.ones((4, 2)))] * 2).astype(np.float32)
    (value,) = play(total, rows).stages[0].values
    assert value.picture_shape == (8, 8)
    np.testing.assert_allclose(value.picture, 2 * np.arange(64.0))


def test_of_many_clients_all_are_computed_and_some_are_pictured() -> None:
    @wb.program(clients=200)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x))

    played = play(total, np.ones((200, 3), np.float32))
    (value,) = played.stages[0].values
    assert len(value.norms) == 200
    assert len(played.pictured_clients) == len(value.picture) // 3 == 64
    assert "64 of 200 clients" in played.notes[0]


def test_a_derivative_of_a_program_is_played_too(arguments) -> None:
    def outer(params, data):
        return fedavg(params, data).sum()

    played = play(jax.grad(outer), *arguments)
    assert "reduce" in [stage.kind for stage in played.stages]
    np.testing.assert_allclose(played.results, jax.grad(outer)(*arguments), rtol=1e-5)


def test_the_record_is_json_without_results(played: PlayRecord) -> None:
    assert PlayRecord.from_json(played.to_json()).stages == played.stages


def test_random_keys_are_no_numbers_to_show() -> None:
    @wb.program(clients=2)
    def noisy(key):
        keys = jax.random.split(key, 2)
        return wb.reduce_mean(wb.map_fn(lambda k: jax.random.normal(k, (3,)), keys))

    played = play(noisy, jax.random.key(0))
    assert np.isfinite(jnp.asarray(played.results)).all()
