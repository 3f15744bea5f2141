import gc
import threading

import jax
import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated import data as wd

WAIT_SECONDS = 20.0


def workers():
    return [thread for thread in threading.enumerate() if thread.name == "workbench-prefetch"]


def test_items_come_in_order_as_jax_arrays():
    items = [{"x": np.full(3, i)} for i in range(7)]
    got = list(wd.prefetch(items, size=2))
    assert [item["x"].tolist() for item in got] == [[i] * 3 for i in range(7)]
    assert all(isinstance(item["x"], jax.Array) for item in got)
    assert not workers()


def test_padded_cohorts_arrive_sharded_over_the_clients():
    mesh = jax.make_mesh((4,), ("clients",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
    train, _ = wd.digits(clients=12, seed=0)
    ready = list(wd.prefetch(wd.cohorts(train, 6, key=0, rounds=3, multiple_of=4), sharding=sharding))
    assert [len(padded.clients) for padded in ready] == [8] * 3
    assert all(padded["x"].sharding.is_equivalent_to(sharding, 3) for padded in ready)
    plain = list(wd.cohorts(train, 6, key=0, rounds=3, multiple_of=4))
    for placed, held in zip(ready, plain, strict=True):
        np.testing.assert_array_equal(placed["x"], held["x"])


def test_it_works_ahead_by_size_and_no_further():
    made, third = [], threading.Event()

    def items():
        for i in range(10):
            made.append(i)
            if i == 2:
                third.set()
            yield np.array(i)

    with wd.prefetch(items(), size=2):
        # Two are ready and the third is made, but waits for room: the fourth cannot have been begun.
        assert third.wait(WAIT_SECONDS)
        assert made == [0, 1, 2]


def test_an_exception_travels_in_its_place():
    def items():
        yield np.array(1)
        raise KeyError("no client 7")

    ready = wd.prefetch(items())
    assert int(next(ready)) == 1
    with pytest.raises(KeyError, match="no client 7"):
        next(ready)
    with pytest.raises(StopIteration):
        next(ready)
    assert not workers()


def test_closing_early_ends_the_thread_and_the_generator():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield np.array(0)
        finally:
            closed.set()

    with wd.prefetch(items()) as ready:
        next(ready)
    assert closed.is_set()
    assert not workers()
    ready.close()
    assert list(ready) == []


def test_a_forgotten_iterator_ends_its_thread():
    ready = wd.prefetch(iter(lambda: np.array(0), 1))
    next(ready)
    (thread,) = workers()
    del ready
    gc.collect()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


def test_items_that_jax_cannot_hold_are_an_error_of_next():
    with wd.prefetch([object()]) as ready, pytest.raises(TypeError, match="object"):
        next(ready)


def test_size_zero_is_refused():
    with pytest.raises(DataError, match=r"size=0\. `size` is the number of items that are kept ready: use 1 or more"):
        wd.prefetch([], size=0)
