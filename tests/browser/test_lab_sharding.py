"""Other shardings of a real program, tried in JupyterLab while its kernel stays free."""

import re
from pathlib import Path

import pytest
from lab import open_notebook, run_all, set_theme, write_notebook
from playwright.sync_api import Locator, Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.lab]

SETUP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import workbench as wb

wb.simulate_devices(8)
mesh = wb.make_mesh(clients=4, model=2)

@wb.program(clients=8)
def mean_output(w, data):
    layer = lambda w, x: jnp.tanh(x @ w["up"]) @ w["down"]
    return wb.reduce_mean(wb.map_fn(layer, (wb.broadcast(w), data)))

w = {"up": jnp.ones((32, 64)), "down": jnp.ones((64, 32))}
data = jax.device_put(jnp.ones((8, 16, 32)), NamedSharding(mesh, PartitionSpec("clients")))
with jax.set_mesh(mesh):
    wb.show(mean_output, view="sharding")(w, data)
"""


def test_specs_are_tried_from_menus_and_the_propagation_is_played(
    lab_page: Page, lab: str, lab_root: Path, tmp_path: Path
):
    (lab_root / "04-shardings-and-meshes.ipynb").write_text("{}")
    open_notebook(lab_page, lab, write_notebook(lab_root, "sharding.ipynb", SETUP.strip()))
    assert run_all(lab_page) == []
    view = lab_page.locator("section.wb")
    view.locator('[data-leaf="1"]').click()  # w["up"]
    view.get_by_label("mesh axes of dimension 1").select_option(label="model")
    view.locator('[data-leaf="0"]').click()  # w["down"]
    view.get_by_label("mesh axes of dimension 0").select_option(label="model")
    view.get_by_role("button", name="Compile and compare").click()
    added = view.locator('[data-change="added"]')
    expect(view.locator(".wb-desk p[role=status]")).to_contain_text("(compiled)", timeout=120_000)
    expect(added).to_contain_text("all-reduce")
    expect(added).to_contain_text("model")
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(lab_page, theme)
        lab_page.screenshot(path=tmp_path / f"{theme[-5:].strip().lower()}.png")
    word = view.locator("a.wb-term", has_text=re.compile("^shard$")).first
    assert (word.get_attribute("href") or "").endswith("/lab/tree/04-shardings-and-meshes.ipynb")
    view.get_by_role("button", name="Why: propagation step by step").click()
    play_the_propagation(lab_page, view)


def play_the_propagation(page: Page, view: Locator) -> None:
    """Step by step as a reader would: by button, by key, played; then asks why, down to where the axis came in."""
    counter, said = view.locator(".wb-counter"), view.locator(".wb-said")
    expect(view.locator("[data-value]").first).to_be_visible()
    view.get_by_label("First step").click()
    expect(counter).to_contain_text(re.compile(r"beginning · 0 of [1-9]"))
    expect(said).to_contain_text("the program specifies")
    last = int((counter.text_content() or "").split()[-1])
    assert last > 2
    view.get_by_label("Step forward").click()
    expect(counter).to_contain_text(f"1 of {last}")
    expect(view.locator(".wb-now").first).to_be_visible()  # what this step decided is brought out
    first_said = said.text_content()
    slider = view.get_by_label("Step of the propagation")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(counter).to_contain_text(f"2 of {last}")
    assert said.text_content() != first_said
    page.keyboard.press("End")
    expect(counter).to_contain_text(f"{last} of {last}")
    expect(view.locator(".wb-future")).to_have_count(0)
    view.get_by_label("Speed").select_option(label="3 ×")
    view.get_by_role("button", name="Play", exact=False).first.click()  # from the beginning, since it is at its end
    expect(counter).to_contain_text(f"{last} of {last}", timeout=60_000)
    expect(view.locator(".wb-play")).to_have_attribute("aria-pressed", "false")
    row = view.locator("[data-value]").last
    row.focus()
    page.keyboard.press("Enter")
    panel = view.get_by_label("Why the chosen value is sharded")
    reasons = panel.locator(".wb-why").first.locator("button")
    expect(reasons.first).to_be_visible()
    reasons.last.click()  # the end of the chain: where the axis entered the program
    expect(counter).to_contain_text("beginning")
