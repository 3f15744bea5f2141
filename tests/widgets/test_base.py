import base64
import gc
import gzip
import json
import re
import time
import weakref
import xml.etree.ElementTree as ET

import pytest
import records_examples as examples
import workbench_widgets


def test_widget_carries_what_finds_the_bundle_and_no_address_of_a_network():
    text = workbench_widgets.ProgramView._esm
    assert isinstance(text, str)
    assert 'const VIEW = "program"' in text
    assert "http" not in text


def test_notebook_keeps_a_picture_and_a_text_next_to_the_live_view():
    data, _ = workbench_widgets.ProgramView(examples.fedavg_record())._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    picture = re.search(r"base64,([^\"]+)", data["text/html"])
    assert picture is not None
    drawn = ET.fromstring(base64.b64decode(picture[1]))
    assert len(drawn.findall(".//*[@data-stage]")) == 5
    assert data["text/plain"].startswith("Program fedavg on cpu x 8: 5 stages, 64 clients")
    assert "1. clients train_locally; 64 clients; 492 kFLOP per client (predicted)" in data["text/plain"]


def test_closed_view_is_garbage_collected():
    view = workbench_widgets.ProgramView(examples.fedavg_record())
    view.update_live(step=1)
    view.update_live(step=2)
    alive = weakref.ref(view)
    view.close()
    del view
    gc.collect()
    assert alive() is None


def test_nothing_is_sent_after_the_last_page_said_it_closed():
    view = workbench_widgets.ProgramView(examples.fedavg_record())
    view._receive(view, {"kind": "view", "open": True}, [])
    view._receive(view, {"kind": "view", "open": False}, [])
    view.update_live(step=1)
    assert view.live == {}
    view._receive(view, {"kind": "view", "open": True}, [])
    assert view.live == {"step": 1}


def test_unknown_selection_is_refused_with_what_exists():
    view = workbench_widgets.ProgramView(examples.fedavg_record())
    with pytest.raises(ValueError, match=r"`select` was given colour, which no view can select.*stage, client, device"):
        view.select(colour="red")


def test_error_of_a_callback_becomes_a_problem_with_its_traceback():
    view = workbench_widgets.ProgramView(examples.fedavg_record())

    def broken() -> None:
        raise KeyError("lost")

    assert view.guarded(broken)() is None
    assert view.problem["message"] == "KeyError: 'lost'"
    assert "in broken" in view.problem["traceback"]


def test_request_for_something_unknown_is_answered_with_an_error(monkeypatch):
    view = workbench_widgets.ProgramView(examples.fedavg_record())
    sent = []
    monkeypatch.setattr(view, "send", sent.append)
    view._receive(view, {"kind": "request", "id": 7, "name": "__class__"}, [])
    assert sent[0]["id"] == 7
    assert (
        "the view requested '__class__', but ProgramView answers only name_in_notebook" in sent[0]["error"]["message"]
    )


def test_exported_page_is_self_contained_and_cannot_be_broken_out_of():
    record = examples.fedavg_record().replace(name="</script><script>alert(1)</script>")
    page = workbench_widgets.ProgramView(record).to_html()
    assert "<script>alert" not in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    state = re.search(r'id="wb-state">(.*?)</script>', page, re.DOTALL)
    assert state is not None
    assert (
        json.loads(gzip.decompress(base64.b64decode(state[1])))[0]["state"]["data"]["overview"]["title"] == record.name
    )


def test_exported_page_can_be_written_to_a_file(tmp_path):
    view = workbench_widgets.ProgramView(examples.fedavg_record())
    assert view.to_html(tmp_path / "view.html") == (tmp_path / "view.html").read_text(encoding="utf-8")


class Slow(workbench_widgets.ProgramView):
    requests = {"count": "count"}  # noqa: RUF012
    background = frozenset({"count"})

    def count(self, report):
        for step in range(1_000_000):
            report(f"step {step}")
            self.steps = step
            time.sleep(0.001)


def test_long_request_reports_its_phases_and_is_stopped():
    view = Slow(examples.fedavg_record())
    sent = []
    view.send = sent.append
    view._receive(view, {"kind": "request", "id": "7", "name": "count", "args": {}}, [])
    until = time.monotonic() + 60
    while len(sent) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    view._receive(view, {"kind": "cancel", "id": "7"}, [])
    while sent[-1]["kind"] != "response" and time.monotonic() < until:
        time.sleep(0.01)
    assert (sent[0]["kind"], sent[0]["progress"]["phase"]) == ("progress", "step 0")
    assert "was stopped" in sent[-1]["error"]["message"]
    view.close()
