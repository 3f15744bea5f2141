"""The cache node: one call of the service per key and time to live, also under load, and errors that are not kept."""

import threading
import time

import pytest

from workbench.errors import ProgramError
from workbench.launch import CacheNode, Program, PyNode, ServiceNode, current_node, launched_on_threads
from workbench.launch._cache import Cache

CALLERS = 16


class Weights:
    """Counts its calls; slow enough that all callers arrive while it is asked."""

    def __init__(self, seconds=0.2):
        self.calls, self.seconds = [], seconds

    def layer(self, number, scale=1.0, offset=0.0):
        self.calls.append(number)
        time.sleep(self.seconds)
        if number < 0:
            message = "no such layer"
            raise ValueError(message)
        return [number * scale + offset, len(self.calls)]

    def asked(self):
        return list(self.calls)


def together(call):
    """Calls from many threads at once; results or errors."""
    results, barrier = [], threading.Barrier(CALLERS)

    def caller():
        barrier.wait()
        try:
            results.append(call())
        except ValueError as error:
            results.append(str(error))

    threads = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_many_callers_of_one_key_cost_one_call():
    service = Weights()
    cache = Cache(service, seconds=60.0)
    assert together(lambda: cache.call("layer", 3)) == [[3.0, 1]] * CALLERS
    assert service.calls == [3]
    assert cache.statistics() == {"hits": CALLERS - 1, "misses": 1}


def test_keys_are_method_arguments_and_keywords_in_any_order():
    service = Weights(0.0)
    cache = Cache(service, seconds=60.0)
    assert cache.call("layer", 1, scale=2.0, offset=1.0) == cache.call("layer", 1, offset=1.0, scale=2.0)
    cache.call("layer", 1)
    cache.call("layer", 2)
    assert service.calls == [1, 1, 2]


def test_an_answer_lives_for_its_time_from_the_moment_it_came(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("workbench.launch._cache.time.monotonic", lambda: now[0])
    service = Weights(0.0)
    cache = Cache(service, seconds=5.0)
    cache.call("layer", 1)
    now[0] = 104.9
    assert cache.call("layer", 1) == [1.0, 1]
    now[0] = 105.0
    assert cache.call("layer", 1) == [1.0, 2]
    cache.forget()
    assert cache.call("layer", 1) == [1.0, 3]


def test_errors_reach_all_that_wait_and_are_not_kept():
    service = Weights()
    cache = Cache(service, seconds=60.0)
    assert together(lambda: cache.call("layer", -1)) == ["no such layer"] * CALLERS
    assert service.calls == [-1]
    with pytest.raises(ValueError, match="no such layer"):
        cache.call("layer", -1)
    assert service.calls == [-1, -1]


def test_the_oldest_answers_leave_first():
    service = Weights(0.0)
    cache = Cache(service, seconds=60.0, max_size=2)
    for number in (1, 2, 3, 3, 1):
        cache.call("layer", number)
    assert service.calls == [1, 2, 3, 1]


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"seconds": 1.0, "max_size": 0}])
def test_impossible_settings_are_errors_before_the_launch(wrong):
    program = Program("cached")
    service = program.add_node(ServiceNode(Weights))
    with pytest.raises(ProgramError, match=r"`Cache` was given seconds="):
        CacheNode(service, **wrong)


def read_often(cache, times):
    for _ in range(times):
        assert cache.call("layer", 7)[0] == 7


def test_a_cache_node_stands_between_actors_and_a_service():
    program = Program("cached")
    service = program.add_node(ServiceNode(Weights))
    cache = program.add_node(CacheNode(service, seconds=60.0))
    with program.group("actors"):
        for _ in range(8):
            program.add_node(PyNode(read_often, cache, 5))
    with launched_on_threads(program, seconds=30.0) as launched:
        launched.wait(30.0)
        assert launched.client(service).asked() == [7]
        assert launched.client(cache).statistics() == {"hits": 39, "misses": 1}


def never_ends():
    current_node().log("still reading")
    while not current_node().wait_for_stop(0.05):
        pass


def test_a_node_that_does_not_end_fails_the_test_with_its_stack_and_log():
    program = Program("late")
    program.add_node(PyNode(never_ends))
    with (
        pytest.raises(AssertionError, match=r"1 of 1 nodes of 'late' had not ended after 0.3 s") as raised,
        launched_on_threads(program, seconds=0.3),
    ):
        pass
    assert "never_ends" in str(raised.value)
    assert "still reading" in str(raised.value)
