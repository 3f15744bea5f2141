"""A stopped program leaves none of its threads, however soon it is forgotten."""

import gc
import threading

import pytest

from workbench.launch import Program, PyNode, ServiceNode, launch


class Total:
    def __init__(self):
        self.value = 0

    def add(self, number):
        self.value += number
        return self.value


def test_two_hundred_short_programs_leave_no_thread():
    for number in range(200):
        program = Program(f"short {number}")
        total = program.add_node(ServiceNode(Total))
        program.add_node(PyNode(lambda client: client.add(1), total))
        with launch(program) as launched:
            launched.wait()
        del launched
        left = [each.name for each in threading.enumerate() if f"short {number}" in each.name]
        assert left == []
    gc.collect()
    assert not [each.name for each in threading.enumerate() if "short" in each.name]


def test_an_interrupted_stop_is_taken_up_by_the_next(monkeypatch):
    program = Program("interrupted")
    program.add_node(ServiceNode(Total))
    launched = launch(program)
    monkeypatch.setattr(launched, "_all_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launched.stop()
    monkeypatch.undo()
    assert launched.stop() == {"main/0": 0}
    assert launched.status == "stopped"


def interrupted():
    raise KeyboardInterrupt
