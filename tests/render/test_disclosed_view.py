"""What a client discloses: in pictures, in text, in side panels and of runs."""

import xml.etree.ElementTree as ET

import records_examples as examples
from workbench_widgets._program import overview

from workbench import render
from workbench.records.program import DisclosedRecord
from workbench.records.run import RunRecord
from workbench.render import stage_details
from workbench.render._disclosure import describe_disclosed, disclosed_blocks
from workbench.render._program_layout import lay_out

ROW = DisclosedRecord(stage="1", name="train_locally[2]", shape=(), dtype="float32", size_bytes=4, kind="row")


def marks(record):
    return ET.fromstring(render.svg(record)).findall(".//*[@data-disclosed]")


def test_every_reduction_has_a_mark_where_a_share_leaves_the_clients():
    assert [mark.attrib["data-disclosed"] for mark in marks(examples.fedavg_record())] == ["2", "3"]
    assert [mark.attrib["data-disclosed"] for mark in marks(examples.rounds_record())] == ["0.2", "0.3"]


def test_mark_says_what_leaves():
    # 64 × 10 and 10 float32: 2,600 bytes.
    first = marks(examples.fedavg_record())[0]
    assert "".join(first.itertext()) == "each client discloses: a share, f32[64,10], f32[10], 2.54 KiB"


def test_a_clients_own_value_differs_from_a_share_by_its_form_and_in_words():
    record = examples.fedavg_record()
    mixed = record.replace(plan=record.plan.replace(disclosed=(ROW, *record.plan.disclosed)))
    by_stage = {mark.attrib["data-disclosed"]: mark for mark in marks(mixed)}
    assert sorted(by_stage) == ["1", "2", "3"]
    forms = {stage: {child.tag.rpartition("}")[2] for child in mark.iter()} for stage, mark in by_stage.items()}
    assert "path" in forms["2"]  # a wedge
    assert "path" not in forms["1"]  # a whole disc
    assert "its own value" in "".join(by_stage["1"].itertext())


def test_marks_are_on_the_clients_side_of_a_reduction():
    record = examples.fedavg_record()
    pills = {box.path: box for box in lay_out(record.plan, record.mesh).boxes if box.form == "pill"}
    for mark in marks(record):
        circle = next(child for child in mark.iter() if child.tag.endswith("circle"))
        pill = pills[mark.attrib["data-disclosed"]]
        assert float(circle.attrib["cx"]) == round(pill.x + pill.width, 2)


def test_lines_under_the_picture_lie_inside_of_it():
    drawn = ET.fromstring(render.svg(examples.fedavg_record()))
    words = next(group for group in drawn.iter() if group.attrib.get("class") == "wb-disclosed")
    said = "".join(words.itertext())
    assert "Disclosed to the server by each client" in said
    assert "kept on the client" in said
    assert "data.x f32[128,64], data.y i32[128]" in said
    bottom = float(drawn.attrib["viewBox"].split()[3])
    assert all(float(each.attrib["y"]) < bottom for each in words.iter() if "y" in each.attrib)


def test_program_that_lets_nothing_out_has_no_lines():
    record = examples.fedavg_record()
    alone = record.replace(plan=record.plan.replace(disclosed=(), kept_local=()))
    assert "each client discloses" not in render.svg(alone).lower()
    assert "discloses" not in render.text(alone)
    assert disclosed_blocks(alone.plan) == []


def test_sentence_counts_the_iterations_of_the_loop_around_a_stage():
    assert describe_disclosed(examples.rounds_record().plan) == (
        "Each client discloses: its share of reduce_mean, f32[64,10], f32[10] (10 × 2.54 KiB); "
        "its share of reduce_mean, f32[] (10 × 4 B). "
        "Kept on the client: data.x f32[128,64] (32 KiB); data.y i32[128] (512 B)."
    )


def test_text_holds_the_sentence():
    record = examples.fedavg_record()
    assert describe_disclosed(record.plan) in render.text(record).splitlines()


def test_panel_of_the_program_lists_what_leaves_and_what_stays():
    blocks = {block.get("title"): block for block in overview(examples.fedavg_record())["blocks"]}
    assert blocks["Disclosed to the server by each client"]["rows"] == [
        ["share of reduce_mean", "f32[64,10], f32[10]", "2.54 KiB"],
        ["share of reduce_mean", "f32[]", "4 B"],
    ]
    assert [row[0] for row in blocks["Kept on the client"]["rows"]] == ["data.x", "data.y"]


def test_panel_of_a_stage_says_what_leaves_there():
    details = stage_details(examples.fedavg_record())
    assert ("each client discloses", "f32[64,10], f32[10], 2.54 KiB") in details["2"]["blocks"][0]["rows"]
    assert "each client discloses" not in dict(details["1"]["blocks"][0]["rows"])


def test_text_of_a_run_says_what_left():
    share = examples.share("2", 3).replace(count=15, clients=4)
    run = RunRecord(name="rounds", engine="flower", seconds=1.0, disclosed=(share, ROW.replace(count=5)))
    assert render.text(run).splitlines()[1:] == [
        "Disclosed by the clients:",
        "  stage 2: f32[3]; 15 partial results, each of up to 4 clients, 180 B in all",
        "  stage 1: train_locally, f32[]; 5 rows, 20 B in all",
    ]
