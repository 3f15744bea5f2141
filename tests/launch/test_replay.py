"""The replay table: by hand where small, by frequencies where random."""

import threading
import time

import pytest

from workbench.errors import NodeError, ProgramError
from workbench.launch import Program, Replay, ReplayNode, launch


def filled(items, **options):
    table = Replay(**{"max_size": 4} | options)
    for item in items:
        table.insert(item)
    return table


def test_the_oldest_items_leave_a_full_table():
    table = filled("abcdef")
    assert set(table.sample(200)["items"]) == set("cdef")
    assert table.counts() == {"size": 4, "inserted": 6, "sampled": 200}


def test_fifo_gives_each_item_once_in_order_across_the_end_of_the_ring():
    table = filled("abcdef", sampling="fifo")
    assert table.sample(3)["items"] == ["c", "d", "e"]
    table.insert("g")
    assert table.sample(2)["items"] == ["f", "g"]
    assert table.size() == 0


def test_uniform_sampling_draws_every_item_equally_often():
    drawn = filled("abcd").sample(8000)
    assert drawn["probabilities"][0] == 0.25
    # 2000 each; the standard deviation of one count is sqrt(8000 * 1/4 * 3/4) = 38.7, so 200 is five of them.
    assert all(abs(drawn["items"].count(item) - 2000) < 200 for item in "abcd")


def test_prioritized_sampling_draws_in_proportion_to_the_powered_priority():
    table = Replay(4, sampling="prioritized", exponent=2.0)
    for item, priority in (("a", 1.0), ("b", 2.0), ("c", 0.0)):
        table.insert(item, priority)
    drawn = table.sample(5000)
    assert drawn["items"].count("c") == 0
    # b has 4 of 5 parts: 4000, standard deviation sqrt(5000 * 0.8 * 0.2) = 28.3.
    assert abs(drawn["items"].count("b") - 4000) < 142
    assert drawn["probabilities"][drawn["items"].index("a")] == pytest.approx(0.2)


def test_new_priorities_reach_only_items_that_are_still_there():
    table = Replay(2, sampling="prioritized")
    keys = [table.insert(item) for item in "abc"]
    assert table.update_priorities(keys, [1.0, 0.0, 3.0]) == 2  # "a" has left
    assert set(table.sample(50)["items"]) == {"c"}


def test_same_seed_draws_the_same_items():
    assert filled("abcd", seed=7).sample(20) == filled("abcd", seed=7).sample(20)


def test_sample_waits_for_the_smallest_size():
    table = filled("a", min_size=2)
    with pytest.raises(TimeoutError, match=r"asked for 1 items within 0.05 s, but the table has 1 \(min_size 2\)"):
        table.sample(1, timeout_seconds=0.05)
    threading.Timer(0.05, table.insert, args=("b",)).start()
    assert len(table.sample(3, timeout_seconds=30)["items"]) == 3


def test_rate_limit_lets_no_item_be_sampled_too_often():
    table = filled("ab", samples_per_insert=1.5)
    assert len(table.sample(3)["items"]) == 3  # 2 inserted * 1.5
    with pytest.raises(TimeoutError, match="3 samples"):
        table.sample(1, timeout_seconds=0.02)
    table.insert("c")
    assert len(table.sample(1, timeout_seconds=1)["items"]) == 1


@pytest.mark.parametrize(
    "options",
    [{"min_size": 5}, {"min_size": 0}, {"sampling": "lifo"}, {"samples_per_insert": 0.0}],
    ids=["more than it holds", "nothing", "unknown order", "no rate"],
)
def test_a_table_that_could_never_be_sampled_is_refused(options):
    with pytest.raises(ProgramError, match=f"`Replay` received .*{next(iter(options))}=[^.]*[.]"):
        Replay(4, **options)


@pytest.mark.parametrize("priority", [-1.0, float("nan")], ids=["negative", "nan"])
def test_a_priority_that_is_no_weight_is_refused(priority):
    with pytest.raises(ValueError, match="priorities are numbers of at least 0"):
        Replay(4).insert("a", priority)


@pytest.mark.parametrize("on", ["threads", "processes"])
def test_a_waiting_sampler_does_not_hold_up_the_inserter(on):
    program = Program("table")
    table = program.add_node(ReplayNode(8, min_size=2))
    with launch(program, on) as launched:
        client = launched.client(table)
        waiting = client.futures.sample(4)
        client.insert("a")
        client.insert("b")
        assert set(waiting.result(60)["items"]) <= {"a", "b"}


def test_a_waiting_sampler_ends_with_the_program():
    program = Program("table")
    table = program.add_node(ReplayNode(8))
    with launch(program) as launched:
        waiting = launched.client(table).futures.sample(1)
        while launched.state()[0].active_calls == 0:
            time.sleep(0.01)
    with pytest.raises(NodeError, match="gave up waiting for 1 items: the program is stopping"):
        waiting.result(30)


def test_items_are_wanted_until_a_sample_is_ready_and_again_after_it():
    table = Replay(8, min_size=2, samples_per_insert=2.0)
    assert table.wanted(4)
    assert table.insert_all(["a", "b"], [1.0, 1.0]) == [0, 1]
    assert not table.wanted(4, timeout_seconds=0.01)
    table.sample(4)
    assert table.wanted(4)
