"""Text that nodes print: in their logs, and with their names where the program was launched."""

import io
import sys

import pytest

from workbench.launch import Program, PyNode, ServiceNode, launch
from workbench.launch._output import NodeOutput

WHERE = pytest.mark.parametrize("where", ["threads", "processes"])


def say(text):
    print(text)
    print("and", "more", sep=", ")


class Speaker:
    def say(self, text):
        print(text, end="")


def program():
    made = Program("speakers")
    for text in ("one", "two"):
        made.add_node(PyNode(say, text))
    return made


@WHERE
def test_lines_are_printed_with_the_labels_of_their_nodes_where_they_are_asked_for(where, capsys):
    with launch(program(), where, echo=True) as launched:
        launched.wait(60)
        assert launched.logs("main/0") == ("one", "and, more")
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == ["[main/0] and, more", "[main/0] one", "[main/1] and, more", "[main/1] two"]


def test_prints_on_threads_stay_as_they_are_and_are_in_the_logs(capsys):
    before = sys.stdout
    with launch(program()) as launched:
        launched.wait(60)
        assert launched.logs("main/1") == ("two", "and, more")
        print("not of a node")
    assert sys.stdout is before
    assert sorted(capsys.readouterr().out.splitlines()) == ["and, more", "and, more", "not of a node", "one", "two"]


def test_lines_of_a_call_belong_to_the_service_and_may_be_unfinished():
    made = Program("called")
    speaker = made.add_node(ServiceNode(Speaker))
    with launch(made) as launched:
        launched.client(speaker).say("a\nb")
        assert launched.logs(speaker) == ("a", "b")
        launched.client(speaker).say("c\n")
        assert launched.logs(speaker) == ("a", "bc")


def test_other_attributes_of_the_stream_are_there():
    stream = io.StringIO()
    assert NodeOutput(stream).getvalue() == ""
