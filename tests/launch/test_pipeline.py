"""Sending ahead: how much, in which order, and what of it can be taken back."""

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor

import launch_nodes as nodes
import pytest

from workbench.errors import NodeError
from workbench.launch import _pipeline
from workbench.launch._dask_calls import InOrder
from workbench.launch._pipeline import PipelinedLine

LONG = 120.0


class Clock:
    """Stands still until somebody works."""

    now = 0.0

    def monotonic(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time by which a line judges a service: what the machine does meanwhile does not count."""
    clock = Clock()
    monkeypatch.setattr(_pipeline, "time", clock)
    return clock


class Endpoint:
    """Answers `wait` when told to, and everything else after `work`, in so many threads that begin together."""

    label, methods = "main/0", ("wait", "quick")

    is_connected = True

    def __init__(self, work=lambda: None, threads=1):
        self.go = threading.Event()
        self.sent = []
        self.most_under_way = 0
        self._together = threading.Barrier(threads, action=work)
        self._pool = ThreadPoolExecutor(threads)
        self._under_way = set()

    def connected(self):
        return self.is_connected

    def known(self):
        return True

    def send(self, method, args, kwargs):
        if args == ("unsendable",):
            raise TypeError(method)
        self.sent.append(args)
        future = self._pool.submit(self._answer, method, args)
        self._under_way.add(future)
        self.most_under_way = max(self.most_under_way, len(self._under_way))
        future.add_done_callback(self._under_way.discard)
        return future

    def _answer(self, method, args):
        if method == "wait":
            assert self.go.wait(LONG)
        self._together.wait(LONG)
        return args

    def answered(self, sent, count, seconds):
        deadline = time.monotonic() + seconds
        while sum(each.done() for each in sent) < count and time.monotonic() < deadline:
            time.sleep(0.0005)
        return [each for each in sent if each.done()]

    def announce(self, sent, report):
        sent.add_done_callback(lambda _: report())

    def results(self, sent):
        return [each.result for each in sent]


def test_a_fast_service_gets_calls_ahead_and_no_more_than_64():
    endpoint = Endpoint()
    line = PipelinedLine(endpoint, 1)
    futures = [line.submit("quick", (n,), {}) for n in range(2_000)]
    assert [future.result(LONG) for future in futures] == [(n,) for n in range(2_000)]
    assert endpoint.sent == [(n,) for n in range(2_000)]
    assert 5 < endpoint.most_under_way <= 65
    line.close()


def test_a_slow_service_gets_one_call_at_a_time_so_that_the_others_can_be_cancelled(clock):
    endpoint = Endpoint(lambda: clock.work(0.05))
    line = PipelinedLine(endpoint, 1)
    assert line.submit("quick", (0,), {}).result(LONG) == (0,)
    under_way, *later = [line.submit("wait", (n,), {}) for n in range(1, 6)]
    while len(endpoint.sent) < 2:
        time.sleep(0.001)
    assert all(future.cancel() for future in later)
    endpoint.go.set()
    assert under_way.result(LONG) == (1,)
    assert line.submit("quick", ("last",), {}).result(LONG) == ("last",)
    assert endpoint.sent == [(0,), (1,), ("last",)]
    assert endpoint.most_under_way == 1
    line.close()


def test_calls_that_wait_are_counted_and_dropped_when_the_line_is_closed():
    endpoint = Endpoint()
    line = PipelinedLine(endpoint, 1)
    first, *others = [line.submit("wait", (n,), {}) for n in range(4)]
    while not endpoint.sent:
        time.sleep(0.001)
    assert line.queued() == 3
    line.close()
    with pytest.raises(NodeError, match="`wait` was not sent to node 'main/0': its program has stopped"):
        line.submit("wait", (), {})
    for other in others:
        with pytest.raises(CancelledError):
            other.result(LONG)
    assert not first.done()
    endpoint.go.set()
    assert first.result(LONG) == (0,)


def test_a_slow_service_that_takes_many_calls_at_once_gets_no_more(clock):
    endpoint = Endpoint(lambda: clock.work(0.1), threads=4)
    line = PipelinedLine(endpoint, 4)
    futures = [line.submit("quick", (n,), {}) for n in range(16)]
    assert [future.result(LONG) for future in futures] == [(n,) for n in range(16)]
    assert endpoint.most_under_way == 4
    line.close()


def test_calls_are_not_waited_for_where_nobody_can_answer():
    endpoint = Endpoint()
    line = PipelinedLine(endpoint, 1)
    under_way, waiting = (line.submit("wait", (n,), {}) for n in range(2))
    while not endpoint.sent:
        time.sleep(0.001)
    endpoint.is_connected = False
    with pytest.raises(NodeError, match=r"`wait` did not get an answer .* \(the client library .* was shut down\)"):
        under_way.result(LONG)
    with pytest.raises(CancelledError):
        waiting.result(LONG)
    endpoint.go.set()


def test_answers_are_kept_by_nobody_but_those_who_asked():
    class Answer:
        pass

    class WeaklyError(Exception):
        pass

    class Keeping(Endpoint):
        def _answer(self, method, args):
            if method == "wait":
                raise WeaklyError
            return Answer()

    gc.disable()
    try:
        line = PipelinedLine(Keeping(), 1)
        kept = [weakref.ref(line.submit("quick", (), {}).result(LONG)) for _ in range(3)]
        kept += [weakref.ref(line.submit("wait", (), {}).exception(LONG)) for _ in range(3)]
        assert nodes.eventually(lambda: [reference() for reference in kept] == [None] * 6)
    finally:
        gc.enable()
    line.close()


def test_a_call_that_cannot_be_sent_fails_alone():
    line = PipelinedLine(Endpoint(), 1)
    futures = [line.submit("quick", (what,), {}) for what in ("before", "unsendable", "after")]
    assert isinstance(futures[1].exception(LONG), TypeError)
    assert [futures[0].result(LONG), futures[2].result(LONG)] == [("before",), ("after",)]
    line.close()


def test_a_line_that_nobody_used_can_be_closed():
    PipelinedLine(Endpoint(), 1).close()


def test_numbered_calls_begin_in_order_however_they_arrive():
    begun = []

    async def run():
        calls = InOrder(1, "calls in order")
        answers = await asyncio.gather(*(calls.run(n, lambda n=n: begun.append(n) or b"%d" % n) for n in (3, 1, 0, 2)))
        calls.close()
        return answers

    assert asyncio.run(run()) == [b"3", b"1", b"0", b"2"]
    assert begun == [0, 1, 2, 3]
