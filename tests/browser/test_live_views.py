from typing import Literal

import numpy as np
import pytest
import records_examples as examples
import workbench_widgets
from accessibility import nameless, weak_contrasts
from harness import Harness
from live_examples import FakeMonitor, FakeRun, sample
from playwright.sync_api import expect
from visitor import open_tab
from workbench_widgets._clients import ClientsView

from workbench.records.live import ProblemRecord, RoundRecord, SampleRecord, TappedValueRecord, TapRecord

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def _send_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # A page of the synchronous Playwright may be used from the test's own thread only: no timers.
    monkeypatch.setattr(
        workbench_widgets.WorkbenchWidget, "update_live", lambda self, **values: _set_live(self, values)
    )
    monkeypatch.setattr("workbench_widgets._run_controller.poll", lambda *arguments: None)


def _set_live(widget: workbench_widgets.WorkbenchWidget, values: dict[str, object]) -> None:
    widget.live = {**widget.live, **values}


def test_devices_show_memory_as_it_changes(harness: Harness):
    monitor = FakeMonitor(sample(0, 1024, 2048))
    view = harness.mount(workbench_widgets.DevicesView(monitor))
    tiles = view.locator("[data-where]")
    expect(tiles).to_have_count(2)
    expect(tiles.first).to_contain_text("1 KiB")
    monitor.take(sample(1, 3 * 2**20, 2048))
    expect(tiles.first.locator(".wb-big")).to_have_text("3 MiB")
    expect(tiles.first.locator("svg")).to_have_attribute("aria-label", "memory over 1 s: 1 KiB to 3 MiB")
    assert weak_contrasts(view) == []
    assert nameless(view) == []


def test_what_a_backend_reports_next_to_memory_can_be_drawn_over_time(harness: Harness):
    def at(second: float, percent: float) -> SampleRecord:
        made = sample(second, 1024)
        busy = made.devices[0].replace(utilisation_percent=percent, power_watts=300.0, temperature_celsius=41.0)
        return made.replace(devices=(busy,))

    view = harness.mount(workbench_widgets.DevicesView(FakeMonitor(at(0, 20.0), at(2, 90.0))))
    tile = view.locator("[data-where]")
    expect(tile).to_contain_text("utilisation 90 % · power 300 W · temperature 41 °C")
    view.get_by_label("Draw over time").select_option("utilisation")
    expect(tile.locator("svg")).to_have_attribute("aria-label", "utilisation over 2 s: 20 % to 90 %")
    expect(view.get_by_role("img", name="memory of this process over 2 s: 256 MiB to 256 MiB")).to_be_visible()


def test_devices_are_a_tab_of_the_explorer_and_share_its_selection(harness: Harness):
    monitor = FakeMonitor(sample(0, 1, 2, 3))
    made = workbench_widgets.Explorer(examples.fedavg_record(), monitor=monitor, view="devices")
    view = harness.mount(made)
    view.get_by_role("button", name="cpu:2").press("Enter")
    assert made.selection == {"device": 2}
    open_tab(view, "Mesh")
    expect(view.locator('[data-device="2"]')).to_have_attribute("aria-pressed", "true")


def test_run_shows_progress_curves_and_every_client(harness: Harness):
    run = FakeRun(rounds=4)
    view = harness.mount(workbench_widgets.RunView(run))
    run.finish(loss=(3.0, 1.0), accuracy=0.25)
    run.finish(loss=(2.0, 1.0), accuracy=0.5)
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("running · 2 of 4 rounds")
    expect(view.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "2")
    expect(view.get_by_role("img", name="loss: 1.5 after round 1")).to_be_visible()
    expect(view.locator(".wb-plotread").first).to_have_text("round 1 · mean 1.5 · band 1.1 to 1.9")
    view.get_by_label("Band over clients").select_option("all")
    expect(view.locator(".wb-plotread").first).to_have_text("round 1 · mean 1.5 · band 1 to 2")
    heat = view.get_by_role("img", name="loss of 2 clients over 2 rounds, from 1 to 3")
    assert heat.evaluate("node => [node.width, node.height]") == [2, 2]
    assert weak_contrasts(view) == []
    assert nameless(view) == []


def test_arrow_keys_move_the_crosshair_of_all_charts(harness: Harness):
    run = FakeRun(rounds=4)
    view = harness.mount(workbench_widgets.RunView(run))
    run.finish(loss=(3.0, 1.0), accuracy=0.25)
    run.finish(loss=(2.0, 1.0), accuracy=0.5)
    view.get_by_role("img", name="accuracy: 0.5 after round 1").press("ArrowLeft")
    expect(view.locator(".wb-plotread").nth(0)).to_contain_text("round 0 · mean 2")
    expect(view.locator(".wb-plotread").nth(1)).to_have_text("round 0 · accuracy 0.25")


def test_the_map_holds_all_rounds_and_marks_the_chosen_client(harness: Harness):
    run = FakeRun(rounds=900)
    for step in range(500):
        run.history.append(RoundRecord(round=step, seconds=0.1, metrics={"loss": (1.0 + step, 2.0)}))
    made = workbench_widgets.RunView(run)
    view = harness.mount(made)
    expect(view.get_by_role("img", name="loss of 2 clients over 500 rounds, from 1.5 to 500")).to_be_visible()
    expect(view.locator(".wb-legendbox")).to_contain_text("loss; of 2 rounds")
    view.get_by_label("Go to client").fill("1")
    view.get_by_label("Go to client").press("Enter")
    assert made.selection == {"client": 1}
    expect(view.locator(".wb-heatring")).to_be_visible()


def test_other_runs_lie_behind_the_curves(harness: Harness):
    run, other = FakeRun(rounds=4), FakeRun(rounds=4)
    other.finish(loss=9.0)
    run.finish(loss=1.0)
    view = harness.mount(workbench_widgets.RunView(run, others={"α = 0.1": other}))
    expect(view.locator(".wb-plotread").first).to_have_text("round 0 · α = 0.1 9 · this run 1")


def test_devices_lie_over_the_same_seconds_as_the_rounds(harness: Harness):
    run, monitor = FakeRun(rounds=4), FakeMonitor(sample(0, 1024, 2048), sample(1, 2048, 2048))
    run.history.append(RoundRecord(round=0, seconds=1.0, metrics={"loss": 1.0}, unix_seconds=1e9 + 1))
    view = harness.mount(workbench_widgets.RunView(run, monitor=monitor))
    view.get_by_label("Along the axis").select_option("seconds")
    expect(view.get_by_role("img", name="memory of 2 devices while the rounds ran")).to_be_visible()
    expect(view.locator(".wb-plotread").last).to_have_text("1 s · cpu:0 2 KiB · cpu:1 2 KiB")
    assert nameless(view) == []
    assert weak_contrasts(view) == []


def test_buttons_reach_the_run(harness: Harness):
    run = FakeRun(rounds=4)
    made = workbench_widgets.RunView(run)
    view = harness.mount(made)
    view.get_by_role("button", name="Pause").click()
    made.refresh()
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("paused · 0 of 4 rounds")
    view.get_by_role("button", name="Resume").click()
    made.refresh()
    view.get_by_role("button", name="Stop").click()
    made.refresh()
    expect(view.get_by_role("button", name="Stop")).to_be_disabled()
    assert run.reported == ["pause", "resume", "stop"]


def test_notes_are_kept_with_the_view(harness: Harness):
    made = workbench_widgets.RunView(FakeRun(rounds=1))
    view = harness.mount(made)
    view.get_by_label("Notes on this run").fill("larger step next time")
    view.get_by_label("Notes on this run").blur()
    assert made.settings == {"notes": "larger step next time"}


def test_problems_of_a_run_are_listed(harness: Harness):
    run = FakeRun(rounds=3)
    run.problems.append(ProblemRecord(round=1, what="loss of client 3 is not finite (nan)"))
    view = harness.mount(workbench_widgets.RunView(run))
    expect(view.get_by_role("listitem")).to_have_text("round 1: loss of client 3 is not finite (nan)")


def followed(rounds: int = 9) -> tuple[FakeRun, ClientsView]:
    value = TappedValueRecord(
        stage="1", name="slope", operation="mul", shape=(3,), dtype="float32", value=np.array([1.0, 2.0, 3.0])
    )
    run = FakeRun(rounds=rounds)
    made = ClientsView(
        examples.fedavg_record(4096),
        rounds=run,
        tap=lambda client: TapRecord(name="fedavg", client=(client,), stages={"1": "train"}, values=(value,)),
    )
    return run, made


def test_clients_of_a_run_are_measures_of_their_own_and_can_be_looked_back_at(harness: Harness):
    run, made = followed()
    view = harness.mount(made)
    for number in range(3):
        run.finish(loss=tuple(float(number + client % 7) for client in range(4096)))
    view.get_by_label("Measure", exact=True).select_option(label="loss, by round")
    summary = view.locator(".wb-summary")
    expect(summary).to_contain_text("loss in round 2 (measured): mean 5, most 8")
    run.finish(loss=tuple(float(3 + client % 7) for client in range(4096)))
    expect(summary).to_contain_text("loss in round 3 (measured): mean 6, most 9")
    view.get_by_label("Round", exact=True).fill("0")
    expect(summary).to_contain_text("loss in round 0 (measured): mean 3, most 6")
    run.finish(loss=tuple(0.0 for _ in range(4096)))
    expect(summary).to_contain_text("loss in round 0")  # who looks back is left alone


def test_a_chosen_client_shows_its_course_over_rounds_and_local_steps(harness: Harness):
    run, made = followed()
    view = harness.mount(made)
    run.finish(loss=tuple((4.0 + client, 2.0 + client) for client in range(4096)))
    run.finish(loss=tuple((3.0 + client, 1.0 + client) for client in range(4096)))
    made.select(client=10)
    expect(view.get_by_role("img", name="loss of client 10: 12 after round 1")).to_be_visible()
    expect(view.get_by_role("img", name="loss of client 10 over 2 local steps")).to_be_visible()
    assert weak_contrasts(view) == []
    assert nameless(view) == []


def test_a_client_is_opened_into_a_frame_that_reaches_nothing(harness: Harness):
    _, made = followed()
    view = harness.mount(made)
    made.select(client=10)
    view.get_by_role("button", name="Open its values").click()
    frame = view.frame_locator("iframe.wb-values")
    expect(frame.locator("body")).to_contain_text("slope")
    assert view.locator("iframe.wb-values").get_attribute("sandbox") == "allow-scripts"
    view.get_by_text("As text").click()
    expect(view.get_by_role("region", name="Values of client 10 as text")).to_contain_text("slope: float32[3]")
    view.get_by_role("button", name="Close", exact=True).click()
    expect(view.locator("iframe.wb-values")).to_have_count(0)


@pytest.mark.parametrize("first", ["light", "dark"])
def test_values_of_a_client_are_read_by_day_and_by_night(harness: Harness, first: Literal["light", "dark"]):
    harness.page.emulate_media(color_scheme=first)
    _, made = followed()
    view = harness.mount(made)
    made.select(client=10)
    view.get_by_role("button", name="Open its values").click()
    page = view.frame_locator("iframe.wb-values").locator("html")
    expect(page.locator(".treescope_root")).to_contain_text("Hover/click for array data.")  # the array is drawn
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark") if first == "light" else ("dark", "light")
    for theme in themes:  # at first, and changed while open
        harness.page.emulate_media(color_scheme=theme)
        ground = view.locator("section.wb").evaluate("node => getComputedStyle(node).backgroundColor")
        expect(page).to_have_css("color-scheme", theme)
        expect(page).to_have_css("background-color", ground)
        assert weak_contrasts(page) == []


def test_a_run_is_a_tab_of_the_explorer(harness: Harness):
    run = FakeRun(rounds=4)
    view = harness.mount(workbench_widgets.Explorer(examples.fedavg_record(), rounds=run))
    open_tab(view, "Run")
    run.finish(loss=(3.0, 1.0))
    expect(view.locator(".wb-runhead .wb-big")).to_have_text("running · 1 of 4 rounds")
    view.get_by_role("button", name="Pause", exact=True).click()
    assert run.reported == ["pause"]


def test_labels_of_a_chart_are_not_cut_at_its_left_edge(harness: Harness):
    run = FakeRun(rounds=8)
    view = harness.mount(workbench_widgets.RunView(run))
    for number in range(8):
        run.finish(flops_per_second=(1 + number % 4) * 1.23e11)
    tile = view.locator(".wb-tile", has_text="FLOPs per second")
    expect(tile).to_contain_text("492 GFLOP/s")
    ink = "n => n.getContext('2d').getImageData(0, 0, 2, n.height).data.some((v, i) => i % 4 === 3 && v > 0)"
    assert not tile.locator("canvas").evaluate(ink)
