"""The player of a round and of collectives: step, scrub, play, keys, saved files."""

from pathlib import Path

import numpy as np
import pytest
import records_examples as examples
import workbench_widgets
from accessibility import nameless, weak_contrasts
from client_functions import emitting_fedavg
from harness import Harness
from playwright.sync_api import Browser, Locator, expect
from test_axe import violations
from visitor import open_tab

from workbench.engines import play
from workbench.records.run import PlayRecord

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def played() -> PlayRecord:
    return play(emitting_fedavg, np.ones(3, np.float32), np.arange(36, dtype=np.float32).reshape(4, 3, 3))


@pytest.fixture
def view(harness: Harness, played: PlayRecord) -> Locator:
    made = harness.mount(workbench_widgets.PlayerView(played, examples.fedavg_record()))
    expect(made.locator(".wb-playcanvas")).to_be_visible()
    return made


def test_a_round_is_stepped_through(view: Locator) -> None:
    said = view.locator(".wb-playsaid")
    expect(said).to_have_text("The server sends to every client: 4 × 12 B = 48 B.")
    forward = view.get_by_role("button", name="Step forward")
    forward.click()  # to the end of the first frame
    forward.click()
    expect(said).to_contain_text("Local step 1 of 3 in train: mean loss")
    expect(view.get_by_role("table", name="Clients").locator("tbody tr")).to_have_count(4)
    view.get_by_role("button", name="Last step").click()
    expect(said).to_contain_text("reduce_mean reduces 4 values to one")
    expect(view.locator(".wb-counter")).to_have_text("step 6 of 6")


def test_keys_step_jump_and_play(harness: Harness, played: PlayRecord) -> None:
    view = harness.mount(workbench_widgets.PlayerView(played))
    counter = view.locator(".wb-counter")
    chapter = view.get_by_role("button", name="train", exact=True)
    chapter.click()
    expect(counter).to_have_text("step 2 of 6")
    chapter.press("End")
    expect(counter).to_have_text("step 6 of 6")
    chapter.press("Home")
    expect(counter).to_have_text("step 1 of 6")
    view.get_by_label("Speed").select_option(label="4 ×")
    view.get_by_role("button", name="▶ Play").click()
    expect(counter).to_have_text("step 6 of 6")
    expect(view.get_by_role("button", name="▶ Play")).to_have_attribute("aria-pressed", "false")


def test_a_client_in_the_picture_is_chosen_everywhere(harness: Harness, played: PlayRecord) -> None:
    made = workbench_widgets.PlayerView(played)
    view = harness.mount(made)
    canvas = view.locator(".wb-playcanvas")
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] / 2 - 60, "y": box["height"] - 40 if box["height"] < 280 else 250})
    assert set(made.selection) == {"client"}


def test_a_collective_is_played_on_the_devices_of_its_group(view: Locator) -> None:
    choose = view.get_by_label("Round or collective")
    label = next(text for text in choose.locator("option").all_inner_texts() if text.startswith("all-reduce"))
    choose.select_option(label=label)
    expect(view.locator(".wb-playsaid")).to_contain_text("devices send")
    expect(view.locator("aside")).to_contain_text("the textbook algorithm")
    view.get_by_label("Algorithm", exact=True).select_option("tree")
    expect(view.locator("aside header")).to_contain_text("pairs")


def test_the_view_can_be_read_and_operated(view: Locator) -> None:
    assert weak_contrasts(view) == []
    assert nameless(view) == []
    assert violations(view) == []


def test_a_round_is_saved_as_a_gif(harness: Harness, played: PlayRecord, tmp_path: Path) -> None:
    view = harness.mount(workbench_widgets.PlayerView(played))
    with harness.page.expect_download(timeout=60_000) as download:
        view.get_by_role("button", name="Save as GIF").click()
    download.value.save_as(tmp_path / "round.gif")
    made = (tmp_path / "round.gif").read_bytes()
    assert made[:6] == b"GIF89a"
    assert made.count(b"\x21\xf9\x04") == 6 * 6 + 1  # six pictures of each frame, and the end


def test_a_round_is_saved_as_a_page(browser: Browser, harness: Harness, played: PlayRecord, tmp_path: Path) -> None:
    view = harness.mount(workbench_widgets.PlayerView(played))
    with harness.page.expect_download(timeout=60_000) as download:
        view.get_by_role("button", name="Save as page").click()
    download.value.save_as(tmp_path / "round.html")
    page = browser.new_page()
    page.goto((tmp_path / "round.html").as_uri())
    expect(page.locator(".wb-playsaid")).to_contain_text("The server sends to every client")
    expect(page.get_by_role("button", name="Save as page")).to_have_count(0)
    page.close()


def test_the_explorer_plays_the_program_when_asked(harness: Harness, played: PlayRecord) -> None:
    made = workbench_widgets.Explorer(examples.fedavg_record(), play=lambda: played)
    view = harness.mount(made)
    open_tab(view, "Play")
    view.get_by_role("button", name="Play the round with my values").click()
    expect(view.locator(".wb-playsaid")).to_have_text("The server sends to every client: 4 × 12 B = 48 B.")
