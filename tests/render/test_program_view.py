import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import pytest
import records_examples as examples
from records_parts import PARAMETER_BYTES

from workbench import inspect, render
from workbench.records.compiled import ProgramRecord
from workbench.records.program import PlanRecord, StageRecord
from workbench.render import stage_details
from workbench.render._program_layout import lay_out

SVG = "{http://www.w3.org/2000/svg}"
PROGRAMS = {
    "round": examples.fedavg_record,
    "gradient": examples.gradient_record,
    "loop": examples.rounds_record,
    "pods": examples.pods_record,
    "many clients": lambda: examples.fedavg_record(4096),
}
every_program = pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)


def stages_of(record: ProgramRecord) -> list[str]:
    def paths(stages: tuple[StageRecord, ...]) -> list[str]:
        return [path for stage in stages for path in (stage.path, *paths(stage.body))]

    return sorted(paths(record.plan.stages))


@every_program
def test_every_stage_is_drawn_once(make):
    drawn = ET.fromstring(render.svg(make()))
    assert sorted(each.attrib["data-stage"] for each in drawn.findall(".//*[@data-stage]")) == stages_of(make())


@every_program
def test_no_card_overlaps_another_of_its_level_or_leaves_the_picture(make):
    record = make()
    layout = lay_out(record.plan, record.mesh)
    solid = [box for box in layout.boxes if box.form in ("card", "pill", "chip")]
    for box in solid:
        assert box.x >= 0
        assert box.x + box.width <= layout.width
        assert box.y + box.height <= layout.height
    overlaps = [
        (a.title, b.title)
        for i, a in enumerate(solid)
        for b in solid[i + 1 :]
        if a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height
    ]
    assert overlaps == []


@every_program
def test_no_wire_runs_through_a_card_of_its_own_lane(make):
    record = make()
    layout = lay_out(record.plan, record.mesh)
    cards = [box for box in layout.boxes if box.form == "card"]
    hits = []
    for wire in layout.wires:
        for (x0, y0), (x1, y1) in zip(wire.points, wire.points[1:], strict=False):
            for box in cards:
                inside_x = box.x < x0 < box.x + box.width
                passes = x0 == x1 and inside_x and min(y0, y1) < box.y - 1 and max(y0, y1) > box.y + box.height + 1
                if passes:
                    hits.append((wire.source, wire.target, box.title))
    assert hits == []


def test_up_to_64_clients_are_dots_grouped_by_the_devices_that_hold_them():
    drawn = ET.fromstring(render.svg(examples.fedavg_record()))
    dots = drawn.findall(".//*[@data-client]")
    blocks = drawn.findall(".//*[@data-first]")
    assert [int(dot.attrib["data-client"]) for dot in dots] == list(range(64))
    assert [(b.attrib["data-first"], b.attrib["data-count"]) for b in blocks] == [
        ("0", "16"), ("16", "16"), ("32", "16"), ("48", "16"),
    ]  # fmt: skip


def test_thousands_of_clients_are_counted_instead_of_drawn():
    drawn = ET.fromstring(render.svg(examples.fedavg_record(4096)))
    assert drawn.findall(".//*[@data-client]") == []
    assert "1,024" in "".join(drawn.itertext())


def test_crossings_carry_the_bytes_that_move():
    words = "".join(ET.fromstring(render.svg(examples.fedavg_record())).itertext())
    assert f"64 × 2.54 KiB = {PARAMETER_BYTES * 64 / 1024:.0f} KiB" in words


def test_inner_stages_lie_inside_the_frame_of_their_loop():
    layout = lay_out(examples.rounds_record().plan)
    frame = next(box for box in layout.boxes if box.form == "frame")
    inner = [box for box in layout.boxes if box.path.startswith("0.")]
    assert len(inner) == 5
    assert all(frame.x < box.x and box.x + box.width < frame.x + frame.width for box in inner)
    assert all(frame.y < box.y and box.y + box.height < frame.y + frame.height for box in inner)


def test_names_are_escaped():
    record = examples.fedavg_record()
    stages = tuple(stage.replace(name="<script>&") for stage in record.plan.stages)
    drawn = render.svg(record.replace(plan=record.plan.replace(stages=stages)))
    assert "<script>" not in drawn
    ET.fromstring(drawn)


def test_a_program_without_stages_still_has_a_picture():
    empty = ProgramRecord(name="nothing", target="here", plan=PlanRecord(name="nothing", placements=(), stages=()))
    assert ET.fromstring(render.svg(empty)).tag == f"{SVG}svg"
    assert render.describe(empty).startswith("Program nothing on here: no clients, 0 stages")


def test_a_program_without_clients_is_one_stage_with_its_name_and_no_server():
    def train_step(params, x):
        loss, gradient = jax.value_and_grad(lambda p: jnp.mean((x @ p) ** 2))(params)
        return params - 0.1 * gradient, loss

    # One goes through a plan, the other is the user's own jit.
    for fn in (train_step, jax.jit(train_step)):
        record = inspect(fn, on="v5e")(jnp.ones((16, 4)), jnp.ones((8, 16)))
        (stage,) = record.plan.stages
        assert (stage.kind, stage.name) == ("program", "train_step")
        assert record.module is not None
        assert {part.kind for each in record.module.instructions for part in each.by_stage()} <= {"program", ""}
        drawn = "".join(ET.fromstring(render.svg(record, live=True)).itertext())
        shown = [drawn, render.text(record), repr(stage_details(record)), render.text(record.cost)]
        assert [text for text in shown if re.search(r"\b(server|clients?)\b", text)] == []
        assert re.search("train_step", drawn)


def test_bytes_of_a_loop_count_every_iteration():
    # (64 broadcast + 64 reduced) copies of 2,600 bytes and 64 losses of 4 bytes, ten times: 3,330,560 bytes.
    moved = 10 * (2 * 64 * 2600 + 64 * 4)
    assert moved == 3_330_560
    assert f"{moved / 2**20:.2f} MiB between server and clients" in render.describe(examples.rounds_record())


def test_text_says_what_the_picture_says():
    text = render.text(examples.rounds_record())
    assert re.search(r"^  0\. loop scan; 10 iterations", text, re.MULTILINE)
    assert re.search(r"^    0\.2\. reduce reduce_mean; 64 clients; moves 162 KiB", text, re.MULTILINE)
    assert "all-reduce over clients: 2.54 KiB per device, stage 0.2, 0.3" in text


def test_details_of_a_stage_hold_its_collectives_with_their_axes():
    found = stage_details(examples.fedavg_record())["2"]["blocks"]
    table = next(block for block in found if block.get("title") == "Collectives")
    assert table["rows"] == [["all-reduce (add)", "clients", "2.54 KiB", "3.81 KiB"]]


def test_details_say_that_a_stage_does_not_communicate():
    found = stage_details(examples.fedavg_record())["0"]["blocks"]
    assert {"form": "note", "title": "Collectives", "text": "None: the devices do not communicate here."} in found


def test_details_mark_the_line_of_source_among_its_neighbours():
    found = stage_details(examples.fedavg_record(), lambda place: [(place.line - 1, "a"), (place.line, "b")])
    code = next(block for block in found["2"]["blocks"] if block.get("source"))
    assert code["lines"] == [(11, "a", False), (12, "b", True)]


def test_very_long_jaxprs_are_cut_and_say_so():
    record = examples.fedavg_record()
    stage = record.plan.stages[1].replace(jaxpr="x" * 50_000)
    long = record.replace(plan=record.plan.replace(stages=(stage,)))
    code = next(block for block in stage_details(long)["1"]["blocks"] if block["form"] == "code")
    assert code["lines"][-1][1] == "… (cut)"


def test_nested_placements_are_counted_by_level():
    assert re.search(r"\b\d+ pods × \d+ clients, ", render.describe(examples.pods_record()))
