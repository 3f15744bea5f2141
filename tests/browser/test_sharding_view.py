"""Shardings and meshes in a browser: every rank, other specs tried, the propagation played, devices by keyboard."""

import math
import re
import threading

import numpy as np
import pytest
import records_examples as examples
import records_parts as parts
import workbench_widgets
from accessibility import nameless, weak_contrasts
from harness import Harness, PageComm
from playwright.sync_api import Locator, expect
from test_axe import violations
from workbench_widgets._propagation import PropagationView

from workbench.records.compiled import TrafficRecord, WhatIfRecord
from workbench.records.sharding import PlannedValueRecord, PropagationEdge, PropagationRecord, ShardingRecord

pytestmark = pytest.mark.browser


def value(name: str, operation: str, spec, shape=(8, 16), **fields: object) -> PlannedValueRecord:
    return PlannedValueRecord(
        name=name,
        operation=operation,
        shape=shape,
        dtype="f32",
        spec=spec,
        origins={},
        source=parts.source(4),
        **fields,
    )  # type: ignore[arg-type]


# x is cut by clients from the beginning; tanh takes that in step 0, the product in step 2; w gives model in step 1.
PROPAGATION = PropagationRecord(
    values=(
        value("%arg0", "input", (("clients",), ()), op_name="x"),
        value("%arg1", "input", ((), ("model",)), (16, 32), op_name="w"),
        value("%0", "constant", ((), ())),
        value("%1", "tanh", (("clients",), ()), stage="1"),
        value("%2", "dot_general", (("clients",), ("model",)), (8, 32), stage="1", rule="([i, k], [k, j])->([i, j])"),
    ),
    edges=(
        PropagationEdge(step=0, axis="clients", from_value="%arg0", to_value="%1"),
        PropagationEdge(step=1, axis="model", from_value="%arg1", to_value="%2"),
        PropagationEdge(step=2, axis="clients", from_value="%1", to_value="%2"),
    ),
)


class Trying:
    """Answers as `WhatIf` does, once the test lets it."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), []

    def plan(self, specs):
        self.asked.append(specs)
        assert self.go.wait(20)
        before = examples.fedavg_record()
        after = before.replace(propagation=PROPAGATION)
        added = TrafficRecord(
            kind="all-gather",
            axes=("model",),
            stage="1",
            stage_name="train_locally",
            runs_after=2.0,
            after_bytes=2048.0,
        )
        return WhatIfRecord(specs={"w": ((), ("model",))}, before=before, after=after, planned=(added,))

    def compile(self, tried, *, progress, cancel):
        progress("compiling", 1.5)
        if "fail" in self.asked[-1]:
            raise RuntimeError("the compiler refused")
        return tried.replace(compiled=tried.planned)


def finish(harness: Harness, view: workbench_widgets.ShardingView, trying: Trying) -> None:
    """Lets a trial end; its thread must not touch the page, which belongs to this one."""
    PageComm.harness = None
    trying.go.set()
    assert view.answers.wait(20)
    assert view._outbox is not None
    view._outbox.flush()
    PageComm.harness = harness
    view.send_state("live")


def cube(rank: int) -> ShardingRecord:
    """An array of `rank` dimensions of 4, the first three cut by two each."""
    mesh = parts.mesh_record(axes=(("a", 2), ("b", 2), ("c", 2)), clients=0)
    spec = tuple(axes for axes in ((("a",), ("b",), ("c",)) + ((),) * 2)[:rank])
    leaf = parts.leaf("cube", (4,) * rank, spec, mesh)
    return parts.sharding_record().replace(leaves=(leaf,), mesh=mesh)


@pytest.mark.parametrize("rank", range(6))
def test_sharding_of_any_rank_shows_every_shard_once(harness: Harness, rank: int):
    view = harness.mount(workbench_widgets.ShardingView(cube(rank)))
    blocks = view.locator("[data-block]")
    expect(blocks).to_have_count(2 ** min(rank, 3))
    # Devices 0 and 7 hold the first and the last corner; those that differ only along uncut axes share it.
    shared = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"][: 2 ** (3 - rank)] if 0 < rank < 3 else None
    if rank == 0:
        expect(blocks).to_have_attribute("aria-label", f"shard on {', '.join(f'cpu:{d}' for d in range(8))}")
    elif shared:
        at, slices = ", ".join("0" * rank), ", ".join(["0:2"] * rank)
        expect(blocks.first).to_have_attribute("aria-label", f"shard {at}: [{slices}] on {', '.join(shared)}")
    else:
        last = ["1", "1", "1", "0", "0"][:rank]
        expect(view.locator(f'[data-block="{",".join(last)}"]')).to_have_attribute(
            "aria-label", f"shard {', '.join(last)}: [{', '.join(['2:4', '2:4', '2:4', '0:4', '0:4'][:rank])}] on cpu:7"
        )
    assert nameless(view) == []


def test_more_slices_than_fit_are_chosen_with_sliders(harness: Harness):
    mesh = parts.mesh_record(axes=(("a", 2), ("b", 2), ("c", 32)), clients=0)
    leaf = parts.leaf("deep", (4, 4, 32), (("a",), ("b",), ("c",)), mesh)
    view = harness.mount(workbench_widgets.ShardingView(parts.sharding_record().replace(leaves=(leaf,), mesh=mesh)))
    label = view.locator('[data-block^="1,1"]')
    expect(label).to_have_attribute("aria-label", "shard 1, 1, 0: [2:4, 2:4, 0:1] on cpu:96")
    view.get_by_label("slice of dimension 2").fill("31")
    expect(label).to_have_attribute("aria-label", "shard 1, 1, 31: [2:4, 2:4, 31:32] on cpu:127")


def test_details_are_about_what_is_selected(harness: Harness):
    made = workbench_widgets.ShardingView(parts.sharding_record())
    view = harness.mount(made)
    title, facts, shards = (
        view.locator(".wb-detail h2"),
        view.locator(".wb-detail dl").first,
        view.locator("[data-block]"),
    )
    expect(title).to_have_text("All arrays")
    expect(shards.first).to_be_hidden()
    assert made.selection == {}
    view.locator('[role="row"]', has_text="params").click()
    assert made.selection == {"leaf": "['params']"}
    expect(title).to_have_text("['params']")
    view.get_by_role("button", name="Try all of it over clients").click()
    expect(facts).to_contain_text("1.29 KiB → 360 B")  # w: 2,560 B halved, then in eighths; b: 40 B, a vector
    view.locator('[data-leaf="0"]').click()
    expect(title).to_have_text("['params']['w']")
    made.select(leaf="['data']")
    expect(view.locator('[role="row"][aria-selected="true"]')).to_contain_text("data")
    expect(title).to_have_text("['data']")
    expect(shards.first).to_be_hidden()
    made.select(leaf=None)
    expect(title).to_have_text("All arrays")


def test_arguments_stand_in_their_order_and_the_first_of_equal_ones_is_open(harness: Harness):
    mesh = parts.mesh_record(clients=0)
    paths = ("params['w']", "params['b']", "state[0].mu['w']", "state[0].nu['w']")
    record = parts.sharding_record().replace(
        leaves=tuple(parts.leaf(path, (64, 10), ((), ()), mesh) for path in paths), mesh=mesh
    )
    view = harness.mount(workbench_widgets.ShardingView(record))
    names = view.locator('[role="row"] .wb-tt-name').all_inner_texts()
    assert [name.split()[-1] for name in names] == ["params", "w", "b", "state", "0", "mu", "w", "nu", "w"]


def test_sizes_of_another_spec_are_seen_at_once(harness: Harness):
    made = workbench_widgets.ShardingView(parts.sharding_record())
    view = harness.mount(made)
    view.locator('[data-leaf="2"]').click()
    # [64, 128, 64] cut 4 × 2 ways: shards of [16, 128, 32] floats are 256 KiB.
    view.get_by_label("mesh axes of dimension 2").select_option(label="model")
    expect(view.locator(".wb-trial")).to_contain_text("[16,128,32]")
    expect(view.locator(".wb-trial")).to_contain_text("512 KiB → 256 KiB")
    expect(view.locator('[data-leaf="2"]')).to_contain_text("→ P('clients', None, 'model')")
    view.get_by_label("mesh axes of dimension 1").select_option(label="model")
    expect(view.locator(".wb-trial")).to_contain_text("Mesh axis model is used twice")
    expect(view.locator(".wb-desk")).to_contain_text("open this view with the program")


def test_other_specs_are_compiled_in_the_background_and_compared(harness: Harness):
    trying = Trying()
    made = workbench_widgets.ShardingView(parts.sharding_record(), what_if=trying, names=("w", "b", "x"))
    view = harness.mount(made)
    view.locator('[data-leaf="0"]').click()
    view.get_by_label("mesh axes of dimension 1").select_option(label="not sharded")
    view.get_by_label("mesh axes of dimension 0").select_option(label="clients × model")
    view.get_by_role("button", name="Compile and compare").click()
    expect(view.get_by_role("button", name="Stop")).to_be_visible()
    assert trying.asked == [{"w": [["clients", "model"], []]}]
    finish(harness, made, trying)
    row = view.locator('[data-change="added"]')
    expect(row).to_contain_text("0 B → 2 KiB")
    row.get_by_role("button", name="all-gather").click()
    assert (made.selection["stage"], made.selection["axis"]) == ("1", "model")
    assert made.answers.tried is not None
    view.get_by_role("button", name="Why: propagation step by step").click()  # of what was tried
    expect(view.locator("[data-value]")).to_have_count(4)
    view.get_by_role("button", name="Arrays and what if").click()
    assert nameless(view) == []
    assert weak_contrasts(view) == []


def test_stopped_trial_says_so(harness: Harness):
    trying = Trying()
    made = workbench_widgets.ShardingView(parts.sharding_record(), what_if=trying, names=("w", "b", "x"))
    view = harness.mount(made)
    view.locator('[data-leaf="0"]').click()
    view.get_by_label("mesh axes of dimension 0").select_option(label="clients")
    view.get_by_role("button", name="Plan only").click()
    view.get_by_role("button", name="Stop").click()
    finish(harness, made, trying)
    expect(view.locator(".wb-desk")).to_contain_text("Stopped.")
    assert made.answers.tried is None


def frames_shown(view: Locator) -> int:
    return view.locator("[data-frame]:not(.wb-future)").count()


def test_propagation_is_stepped_through_and_asked_why(harness: Harness):
    made = PropagationView(PROPAGATION)
    view = harness.mount(made)
    expect(view.locator("[data-value]")).to_have_count(4)  # the constant is not sharded
    assert frames_shown(view) == 5 + 3  # five tags, three arrows
    fills = view.locator(".wb-tag-axis > rect:nth-child(2)").evaluate_all(
        "all => all.map(r => getComputedStyle(r).fill)"
    )
    assert len({*fills}) == 2, fills  # a colour for each axis
    assert "rgb(0, 0, 0)" not in fills
    view.get_by_label("First step").click()
    assert frames_shown(view) == 2  # what the program says: clients of x, model of w
    harness.page.keyboard.press("ArrowRight")
    expect(view.locator(".wb-said")).to_contain_text("tanh %1 took the axis from input `x`")
    harness.page.keyboard.press("End")
    assert frames_shown(view) == 8
    view.locator('[data-value="%2"]').click()
    reasons = view.locator(".wb-why").first.locator("li")
    expect(reasons).to_have_count(3)
    expect(reasons.last).to_contain_text("Given in the program")
    assert made.selection == {"stage": "1", "line": "fedavg.py:4"}


def test_propagation_plays_and_pauses(harness: Harness):
    harness.page.emulate_media(reduced_motion="reduce")
    view = harness.mount(PropagationView(PROPAGATION))
    view.get_by_label("Speed").select_option("3")
    view.locator(".wb-play").click()
    expect(view.locator(".wb-counter")).to_have_text("3 of 3 · Shardy's step 2")
    expect(view.locator(".wb-play")).to_have_attribute("aria-pressed", "false")
    assert view.locator(".wb-arc").first.evaluate("n => getComputedStyle(n).transitionDuration") == "0s"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_propagation_and_trials_are_for_everyone(harness: Harness, theme: str):
    harness.page.emulate_media(color_scheme=theme)
    trying = Trying()
    made = workbench_widgets.ShardingView(
        parts.sharding_record(), propagation=PROPAGATION, what_if=trying, names=("w", "b", "x")
    )
    view = harness.mount(made)
    view.locator('[data-leaf="0"]').click()
    view.get_by_label("mesh axes of dimension 0").select_option(label="clients")
    view.get_by_role("button", name="Compile and compare").click()
    finish(harness, made, trying)
    expect(view.locator('[data-change="added"]')).to_be_visible()
    assert violations(view) == []
    assert weak_contrasts(view) == []
    view.get_by_role("button", name="Why: propagation step by step").click()
    view.locator('[data-value="%2"]').click()
    assert violations(view) == []
    assert nameless(view) == []
    harness.page.set_viewport_size({"width": 460, "height": 800})
    assert view.evaluate("node => node.scrollWidth <= node.clientWidth + 1")


def test_one_axis_of_the_propagation_is_shown_alone(harness: Harness):
    made = PropagationView(PROPAGATION)
    view = harness.mount(made)
    view.get_by_label("Mesh axis shown").select_option("model")
    assert made.selection == {"axis": "model"}
    assert frames_shown(view) == 2 + 1


def test_sharding_and_propagation_are_one_view(harness: Harness):
    made = workbench_widgets.ShardingView(parts.sharding_record(), propagation=PROPAGATION)
    view = harness.mount(made)
    view.get_by_role("button", name="Why: propagation step by step").click()
    expect(view.locator("[data-value]")).to_have_count(4)
    expect(view.locator("[data-leaf]").first).to_be_hidden()
    assert made.settings == {"mode": "why"}


def torus(record, shape: tuple[int, ...]):
    """Devices with coordinates in the reverse order of their ids, four to a host."""
    last = math.prod(shape) - 1
    devices = tuple(
        device.replace(
            coords=tuple(int(c) for c in np.unravel_index(last - device.id, shape)), host=device.id // 4, core_on_chip=0
        )
        for device in record.devices
    )
    return record.replace(devices=devices)


def test_devices_are_laid_out_by_mesh_axis_on_the_torus_or_by_host(harness: Harness):
    record = torus(parts.mesh_record(axes=(("clients", 4), ("model", 2))), (2, 4))
    view = harness.mount(workbench_widgets.MeshView(record))
    assert place_of(view, 0) == (0, 0)
    view.get_by_label("Arrange devices by").select_option("torus")
    # Coordinates (1, 3), x first: the last of four rows of two.
    assert place_of(view, 0) == (3, 1)
    view.get_by_label("Arrange devices by").select_option("hosts")
    assert place_of(view, 5) == (1, 1)


def place_of(view: Locator, device: int) -> tuple[int, int]:
    """Row and column of a device's card."""
    boxes = view.locator("[data-device] > .wb-card").evaluate_all(
        "cards => cards.map(c => [c.y, c.x].map(v => v.baseVal.value))"
    )
    row, column = (sorted(set(at)) for at in zip(*boxes, strict=True))
    y, x = view.locator(f'[data-device="{device}"] > .wb-card').evaluate("c => [c.y, c.x].map(v => v.baseVal.value)")
    return row.index(y), column.index(x)


# The devices whose cards are nearest to the two ends of each arrow.
ENDS = """paths => paths.map(path => {
  const ends = [0, path.getTotalLength()].map(at => path.getPointAtLength(at).matrixTransform(path.getScreenCTM()));
  const cards = [...document.querySelectorAll("[data-device]")];
  const distance = (card, { x, y }) => {
    const box = card.getBoundingClientRect();
    return Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
  };
  return ends.map(end => Number(cards.sort((a, b) => distance(a, end) - distance(b, end))[0].dataset.device));
})"""


def test_a_permute_is_drawn_from_each_sender_to_its_receiver(harness: Harness):
    harness.page.set_viewport_size({"width": 900, "height": 900})
    record = parts.mesh_record(axes=(("clients", 8),))
    pairs = ((0, 1), (3, 2), (6, 7))
    permute = parts.round_collectives()[0].replace(
        name="permute", kind="collective-permute", axes=("clients",), group_size=2, groups=3, pairs=pairs
    )
    view = harness.mount(workbench_widgets.MeshView(record, collectives=[permute]))
    links = view.locator(".wb-link-busy")
    expect(links).to_have_count(3)
    assert [tuple(ends) for ends in links.evaluate_all(ENDS)] == list(pairs)
    expect(view.get_by_text("3 devices send")).to_be_visible()
    right = view.locator('[data-device="7"]').evaluate("card => card.getBoundingClientRect().right")
    assert right <= view.locator(".wb-meshframe").evaluate("node => node.parentElement.getBoundingClientRect().right")


def test_a_permute_of_unknown_pairs_is_no_exchange_within_a_group(harness: Harness):
    record = parts.mesh_record(axes=(("clients", 8),))
    permute = parts.round_collectives()[0].replace(name="permute", kind="collective-permute", axes=("clients",))
    view = harness.mount(workbench_widgets.MeshView(record, collectives=[permute]))
    expect(view.locator(".wb-link-busy")).to_have_count(0)
    expect(view.get_by_text("to at most one other device in one call")).to_be_visible()


def test_a_collective_is_drawn_on_the_links_that_carry_it(harness: Harness):
    record = torus(parts.mesh_record(axes=(("clients", 4), ("model", 2))), (2, 4)).replace(wraps=(False, True))
    made = workbench_widgets.MeshView(record, collectives=parts.round_collectives())
    view = harness.mount(made)
    links = view.locator(".wb-link-busy")
    largest = max(parts.round_collectives(), key=lambda each: each.wire_bytes or 0)
    rows = view.get_by_role("table", name="Collectives over the mesh").get_by_role("button")
    first, other = rows.first, rows.nth(1)
    expect(first).to_have_attribute("aria-pressed", "true")  # the largest is shown at first
    assert largest.name == "all-reduce.1"
    first.click()
    expect(links).to_have_count(0)
    other.click()
    assert made.selection["instruction"] == "all-gather.7"
    first.click()
    assert made.selection["instruction"] == "all-reduce.1"
    expect(links).to_have_count(8)  # two rings of four
    place = "1 all-reduce of 2.54 KiB over clients, fedavg.py:12 +1"  # as in the headline
    expect(view.get_by_text(f"{place}: each link of the rings carries 3.81 KiB")).to_be_visible()
    expect(view.get_by_text("in each card: the device's id and its clients")).to_be_visible()
    view.get_by_label("Arrange devices by").select_option("torus")
    expect(view.locator(".wb-link-idle")).to_have_count(4 + 8)  # across and along the rows, closed
    first.click()
    expect(links).to_have_count(0)


@pytest.mark.parametrize("axes", [(("data", 16),), (("pods", 4), ("data", 16)), (("a", 4), ("b", 32))], ids=str)
def test_rows_of_many_devices_fit_a_narrow_page_and_the_collectives_stand_below(harness: Harness, axes):
    harness.page.set_viewport_size({"width": 690, "height": 900})
    (name, size) = axes[-1]
    sends = [each.replace(axes=(name,), group_size=size) for each in parts.round_collectives()]
    view = harness.mount(workbench_widgets.MeshView(parts.mesh_record(clients=0, axes=axes), collectives=sends))
    pane = view.locator(".wb-scrolls").first
    assert pane.evaluate("node => node.scrollWidth - node.clientWidth") <= 1
    picture, table = (view.locator(part).bounding_box() for part in (".wb-meshframe", ".wb-sent"))
    assert table["y"] >= picture["y"] + picture["height"]
    written = view.locator(".wb-cardcontents").evaluate_all("nodes => nodes.some(node => node.textContent)")
    place = f"its place along {', '.join(axis for axis, _ in axes)}"
    assert view.get_by_text(place).count() == int(written)
    for card in view.locator("[data-device]").all()[:16]:
        box, words = card.locator("rect").first.bounding_box(), card.locator("text").first.bounding_box()
        assert words["x"] + words["width"] <= box["x"] + box["width"] + 0.5


def test_an_all_to_all_says_how_much_goes_to_each_device(harness: Harness):
    record = parts.mesh_record(clients=0, axes=(("expert", 8),))
    exchange = parts.round_collectives()[0].replace(kind="all-to-all", axes=("expert",), wire_bytes=7168.0)
    view = harness.mount(workbench_widgets.MeshView(record, collectives=[exchange]))
    expect(view.get_by_text("sends 7 KiB, 1 KiB to each of the 7 others of its group, in one call")).to_be_visible()


def test_device_says_which_clients_and_shards_live_on_it(harness: Harness):
    made = workbench_widgets.MeshView(parts.mesh_record(), sharding=parts.sharding_record(), names=("w", "b", "x"))
    view = harness.mount(made)
    cards = view.locator("[data-device]")
    expect(cards).to_have_count(8)
    cards.first.focus()
    harness.page.keyboard.press("ArrowDown")  # one row down: next place along the first axis
    harness.page.keyboard.press("Enter")
    expect(view.locator(".wb-panel h2")).to_have_text("cpu:2")
    expect(view.locator(".wb-panel")).to_contain_text("16–31")
    expect(view.locator(".wb-panel")).to_contain_text("[16:32, :, :]")  # its clients' rows of x
    expect(view.locator(".wb-panel")).to_contain_text("[:, 0:5]")  # the first half of w's columns
    view.get_by_role("button", name="its group along clients").click()
    assert made.selection == {"device": 2, "axis": "clients"}
    assert sorted(
        int(n) for n in view.locator(".wb-group").evaluate_all("nodes => nodes.map(n => n.dataset.device)")
    ) == [0, 4, 6]


def test_8960_devices_are_recoloured_and_walked_by_keyboard(harness: Harness):
    record = parts.mesh_record(clients=8960, axes=(("pods", 20), ("x", 16), ("y", 28)))
    made = workbench_widgets.MeshView(record)
    view = harness.mount(made)
    view.get_by_label("Colour devices by").select_option(label="place along y")
    canvas = view.locator("canvas")
    painted = "n => { const d = n.getContext('2d').getImageData(0, 0, n.width, n.height).data; let k = 0; "
    assert canvas.evaluate(painted + "for (let i = 3; i < d.length; i += 4) k += d[i] === 255; return k; }") == 8960
    first, second = (canvas.evaluate(f"n => [...n.getContext('2d').getImageData({x}, 0, 1, 1).data]") for x in (0, 27))
    assert first == [0, 34, 78, 255]
    assert second == [254, 232, 56, 255]
    canvas.focus()
    for key in ["ArrowRight"] * 28 + ["Enter"]:  # 27 steps to the end of the first panel's row, then over the gap
        harness.page.keyboard.press(key)
    assert made.selection == {"device": 16 * 28}


def test_thousands_of_devices_that_hold_the_same_have_one_colour(harness: Harness):
    made = workbench_widgets.MeshView(parts.mesh_record(clients=640, axes=(("x", 64), ("y", 10))))
    view = harness.mount(made)
    expect(view.locator(".wb-tools")).to_contain_text("the same on every device · clients held: 1")
    colours = "n => new Set(Array.from(new Uint32Array(n.getContext('2d').getImageData(0, 0, n.width, n.height).data"
    count = f"{colours}.buffer)).filter(Boolean)).size"
    assert view.locator("canvas").evaluate(count) == 1
    view.get_by_role("button", name="y", exact=True).click()
    expect(view.locator(".wb-tools")).to_contain_text("64 groups")
    assert view.locator("canvas").evaluate(count) > 1


def test_explained_word_names_the_notebook_that_teaches_it(harness: Harness):
    view = harness.mount(workbench_widgets.ShardingView(parts.sharding_record()))
    view.locator('[data-leaf="0"]').click()
    word = view.locator(".wb-term", has_text=re.compile("^shard$")).first
    expect(word).to_have_attribute(
        "data-tip", "The piece of an array that one device holds. Taught in notebook: 04-shardings-and-meshes."
    )
