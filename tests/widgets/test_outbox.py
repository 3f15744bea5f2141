import threading

from workbench_widgets._outbox import Outbox


def test_fast_updates_coalesce_and_the_last_one_arrives():
    sent, done = [], threading.Event()

    def send(values):
        sent.append(dict(values))
        if values.get("step") == 999:
            done.set()

    outbox = Outbox(send, interval_seconds=0.02)
    for step in range(1000):
        outbox.put(step=step)
    assert done.wait(60)
    assert sent[-1] == {"step": 999}
    assert len(sent) < 500


def test_values_of_different_kinds_leave_together():
    sent = []
    outbox = Outbox(lambda values: sent.append(dict(values)), interval_seconds=60)
    outbox.put(a=1)
    outbox.put(a=2)
    outbox.put(b=3)
    outbox.flush()
    assert sent == [{"a": 1}, {"a": 2, "b": 3}]
    outbox.close()


def test_nothing_leaves_while_nobody_looks_and_the_newest_waits():
    sent, looking = [], []
    outbox = Outbox(lambda values: sent.append(dict(values)), interval_seconds=0, is_open=lambda: bool(looking))
    outbox.put(step=1)
    outbox.put(step=2)
    assert sent == []
    looking.append(True)
    outbox.flush()
    assert sent == [{"step": 2}]


def test_many_threads_lose_nothing_but_what_was_overwritten():
    seen: dict[str, int] = {}
    outbox = Outbox(seen.update, interval_seconds=0.001)

    def work(name: str) -> None:
        for step in range(200):
            outbox.put(**{name: step})

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    outbox.flush()
    assert seen == {f"t{i}": 199 for i in range(8)}


def test_closing_drops_what_is_pending():
    sent = []
    outbox = Outbox(lambda values: sent.append(dict(values)), interval_seconds=60)
    outbox.put(a=1)
    outbox.put(a=2)
    outbox.close()
    outbox.flush()
    assert sent == [{"a": 1}]
