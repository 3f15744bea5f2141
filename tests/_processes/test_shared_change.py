"""Temporary changes of the process: made once, undone by the last use, in whatever order uses end."""

import gc
import itertools
import threading
import warnings

import pytest

from workbench._processes import UNUSED_DONATIONS_ARE_FINE, SharedChange
from workbench.records import without_collections


@pytest.fixture
def log():
    return []


@pytest.fixture
def change(log):
    def make():
        log.append("made")
        return lambda: log.append("undone")

    return SharedChange(make)


@pytest.mark.parametrize("ends", list(itertools.permutations(range(3))), ids=str)
def test_the_last_use_undoes_the_change_in_any_order(change, log, ends):
    uses = [change] * 3
    for use in uses:
        use.__enter__()
    for number in ends[:-1]:
        uses[number].__exit__(None, None, None)
        assert log == ["made"]
    uses[ends[-1]].__exit__(None, None, None)
    assert log == ["made", "undone"]


def test_threads_share_one_change(change, log):
    barrier = threading.Barrier(4)

    def use():
        for _ in range(200):
            with change:
                assert log[-1] == "made"
        barrier.wait()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log[-1] == "undone"
    assert log == ["made", "undone"] * (len(log) // 2)


def test_a_change_that_cannot_be_made_leaves_nothing(log):
    def make():
        log.append("tried")
        raise OSError

    change = SharedChange(make)
    for _ in range(2):
        with pytest.raises(OSError), change:  # noqa: PT011
            log.append("inside")
    assert log == ["tried", "tried"]


def test_an_error_of_the_block_goes_on_and_the_change_is_undone(change, log):
    with pytest.raises(KeyError), change:
        raise KeyError
    assert log == ["made", "undone"]


def test_filters_that_are_set_meanwhile_stay():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with UNUSED_DONATIONS_ARE_FINE:
            warnings.warn("Some donated buffers were not usable: f32[3]", stacklevel=1)
            warnings.filterwarnings("ignore", "set by the user")
        assert warnings.filters[1:] == before
        assert warnings.filters[0][1].pattern == "set by the user"
        with pytest.raises(UserWarning):
            warnings.warn("Some donated buffers were not usable: f32[3]", stacklevel=1)


@pytest.mark.parametrize("enabled", [True, False])
def test_pauses_of_the_collector_that_overlap_leave_it_as_it_was(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with without_collections():
            with without_collections():
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
