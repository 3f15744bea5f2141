"""Stage mode: a view fills the screen in large type, and the keys of a presenter's remote control step through it."""

import pytest
import records_examples as examples
import workbench_widgets
from every_view import VIEWS
from harness import Harness
from playwright.sync_api import Locator, expect

import workbench as wb

pytestmark = pytest.mark.browser


def enter(view: Locator) -> Locator:
    view.get_by_role("button", name="Present", exact=True).click()
    shell = view.locator(".wb-shell")
    expect(shell).to_have_class("wb wb-shell wb-onstage")
    return shell


def fills(shell: Locator) -> bool:
    box = "const box = node.getBoundingClientRect();"
    return shell.evaluate(f"node => {{ {box} return box.width >= innerWidth && box.height >= innerHeight }}")


def test_the_player_steps_blanks_and_leaves(harness: Harness) -> None:
    view = harness.mount(workbench_widgets.PlayerView(None, examples.fedavg_record()))
    said = view.locator(".wb-playsaid")
    before = said.bounding_box()
    shell = enter(view)
    assert fills(shell)
    expect(said).to_contain_text("Step 1 of")
    harness.page.keyboard.press("PageDown")
    harness.page.keyboard.press("PageDown")
    expect(said).to_contain_text("Step 2 of")
    harness.page.keyboard.press("PageUp")
    expect(said).to_contain_text("Step 1 of")
    size = said.evaluate("node => node.getBoundingClientRect().height / node.offsetHeight")
    assert size == pytest.approx(1.5, abs=0.02)
    harness.page.keyboard.press("b")
    expect(view.locator(".wb-blank")).to_be_visible()
    harness.page.keyboard.press("b")
    expect(view.locator(".wb-blank")).to_be_hidden()
    view.get_by_role("button", name="Present", exact=True).click()
    expect(shell).to_have_class("wb wb-shell")
    after = said.bounding_box()
    assert before is not None
    assert after is not None
    assert after["width"] == pytest.approx(before["width"], abs=2)


def test_the_explorer_turns_its_tabs(harness: Harness) -> None:
    view = harness.mount(VIEWS["explorer"]())
    selected = view.locator('[role="tab"][aria-selected="true"]')
    first = selected.inner_text()
    enter(view)
    harness.page.keyboard.press("PageDown")
    expect(selected).not_to_have_text(first)
    harness.page.keyboard.press("PageUp")
    expect(selected).to_have_text(first)


def test_the_playground_shows_one_part_after_the_other(harness: Harness) -> None:
    view = harness.mount(wb.playground(clients=4, rounds=2))
    enter(view)
    cell = view.locator(".wb-cell")
    top = cell.evaluate("node => node.getBoundingClientRect().top")
    harness.page.keyboard.press("PageDown")
    assert cell.evaluate("node => node.getBoundingClientRect().top") != top or cell.evaluate(
        "node => node.getBoundingClientRect().bottom <= innerHeight"
    )
