import xml.etree.ElementTree as ET

import pytest

from workbench import render
from workbench.records.live import (
    ClientOutcomeRecord,
    DeviceSampleRecord,
    HostSampleRecord,
    SampleRecord,
    SpanRecord,
    TimelineRecord,
)
from workbench.records.run import EventRecord, RunRecord, StageRunRecord
from workbench.render._live import ticks
from workbench.render._svg import text_width

SVG = "{http://www.w3.org/2000/svg}"


def parsed(picture):
    return ET.fromstring(picture)


def texts(picture):
    return [element.text for element in parsed(picture).iter(f"{SVG}text")]


def paths(picture, name):
    return [element for element in parsed(picture).iter(f"{SVG}path") if element.get("class") == f"wb-fill-{name}"]


def event(where, kind, start, seconds):
    return EventRecord(where=where, name="x", start_seconds=start, seconds=seconds, kind=kind)


RUN = RunRecord(
    name="jit_round",
    engine="cpu x 2",
    seconds=1.0,
    events=(
        event("cpu:10", "compute", 0.0, 0.6),
        event("cpu:10", "collective", 0.6, 0.4),
        event("cpu:9", "compute", 0.0, 0.2),
        event("cpu:9", "wait", 0.2, 0.4),
        event("cpu:9", "collective", 0.6, 0.4),
    ),
    stages=(
        StageRunRecord(stage="1", where="cpu:9", compute_seconds=0.2, wait_seconds=0.4, collective_seconds=0.4),
        StageRunRecord(stage="1", where="cpu:10", compute_seconds=0.6, collective_seconds=0.4),
    ),
    joined_events=1.0,
    attributed_seconds=0.975,
)


@pytest.mark.parametrize("end", [0.4, 1.0, 3e-4], ids=["400 ms", "1 s", "300 µs"])
def test_no_tick_is_cut_at_the_edge(end):
    picture = parsed(render.svg(TIMELINE.replace(seconds=end), width=400))
    for label in picture.iter(f"{SVG}text"):
        share = {"wb-middle": 0.5, "wb-end": 0.0}.get(label.get("class").split()[-1], 1.0)
        assert float(label.get("x")) + share * text_width(label.text, float(label.get("font-size"))) <= 400


def test_bar_is_where_its_seconds_are():
    picture = render.svg(TIMELINE, width=1000)
    hues = ("broadcast", "clients", "reduce")
    starts = {name: float(paths(picture, name)[0].get("d").split()[0][1:]) for name in hues}
    assert starts["reduce"] - starts["clients"] == pytest.approx(starts["clients"] - starts["broadcast"], abs=0.02)


def test_thousands_of_spans_become_few_shapes():
    spans = tuple(span(0, "compute", index * 4e-4, 3.9e-4) for index in range(10_000))
    assert len(render.svg(TIMELINE.replace(spans=spans))) < 12_000


def test_run_in_words_gives_shares_of_the_time():
    assert render.describe(RUN) == (
        "Run of jit_round on cpu x 2: 1 call in 1 s. Of the devices' time: 40 % compute, 40 % collective, "
        "20 % waiting. 100.0 % of the events are instructions of the program, and 97.5 % of the time is "
        "attributed to a stage."
    )


def test_run_as_text_averages_over_the_devices():
    assert render.text(RUN).splitlines()[-1].split() == ["1", "400", "ms", "400", "ms", "200", "ms"]


def span(client, kind, start, seconds):
    return SpanRecord(client=client, kind=kind, start_seconds=start, seconds=seconds)


TIMELINE = TimelineRecord(
    name="round 4",
    seconds=4.0,
    deadline_seconds=4.0,
    spans=(
        span(0, "download", 0, 1), span(0, "compute", 1, 1), span(0, "upload", 2, 1), span(5, "download", 0, 1),
        span(5, "compute", 1, 3), span(7, "download", 0, 1),
    ),
    outcomes=(
        ClientOutcomeRecord(client=0, status="finished"),
        ClientOutcomeRecord(client=5, status="late"),
        ClientOutcomeRecord(client=7, status="dropped"),
    ),
)  # fmt: skip


def test_gantt_has_a_row_and_an_outcome_per_client():
    shown = texts(render.svg(TIMELINE))
    assert {"client 0", "client 5", "client 7", "✓ counts", "✗ late", "✗ dropped out", "deadline, 4 s"} <= set(shown)


def test_gantt_draws_each_phase_of_each_client():
    picture = render.svg(TIMELINE)
    assert [len(paths(picture, hue)) for hue in ("broadcast", "clients", "reduce")] == [3, 2, 1]


def test_gantt_of_many_clients_shows_the_slowest():
    outcomes = tuple(
        ClientOutcomeRecord(client=index, status="finished", needed_seconds=float(index)) for index in range(100)
    )
    shown = [text for text in texts(render.svg(TIMELINE.replace(outcomes=outcomes))) if "client " in text]
    assert shown == [f"client {index}" for index in range(52, 100)]


def test_timeline_in_words_counts_the_outcomes():
    assert render.describe(TIMELINE) == (
        "Simulated round 4: 4 s, 3 clients: 1 finished, 1 late, 1 dropped. Clients were idle 33 % of the time."
    )  # 8 s of work in 3 x 4 s


def sample(seconds, *held):
    devices = tuple(
        DeviceSampleRecord(
            where=f"cpu:{number}", device_id=number, platform="cpu", present=size is not None, bytes_in_use=size
        )
        for number, size in enumerate(held)
    )
    return SampleRecord(time_seconds=seconds, unix_seconds=0.0, devices=devices, host=HostSampleRecord())


SAMPLES = [sample(1.0, 0, 100, 100, 100), sample(2.0, 2048, 200, 200, None), sample(3.0, 512, 300, 300, None)]


def test_memory_in_words_names_the_peak_and_what_is_gone():
    assert render.describe(SAMPLES) == (
        "Memory of 4 devices, 3 samples: at most 2 KiB on cpu:0. No longer readable: cpu:3."
    )


@pytest.mark.parametrize("dark", [True, False, None], ids=["dark", "light", "both"])
def test_picture_is_well_formed_named_and_escaped(dark):
    picture = parsed(render.svg(TIMELINE, dark=dark))
    assert picture.get("role") == "img"
    assert picture.get("aria-label")


def test_names_are_escaped():
    named = TIMELINE.replace(name='<script>"')
    assert parsed(render.svg(named)).get("aria-label") == render.describe(named)


@pytest.mark.parametrize(
    ("end", "expected"),
    [(1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.013, [0, 0.005, 0.01]), (47.0, [0, 10, 20, 30, 40])],
    ids=["one", "milliseconds", "seconds"],
)
def test_ticks_are_round_numbers(end, expected):
    assert ticks(end, most=5) == expected
