"""`workbench demo`: the sections of its report, its errors, and the whole of it on few rounds."""

import inspect
import re

from records_examples import fedavg_record, mesh_record, sharding_record

from workbench.cli import _demo, _demo_sections as sections, _training, main
from workbench.federated.data import ClientData, describe
from workbench.render.report import ReportCode, ReportImage, ReportPicture, ReportTable, ReportText, render_report


def pieces(section, kind):
    return [piece for piece in section.pieces if isinstance(piece, kind)]


def test_training_section_says_when_it_passed_ninety_percent():
    section = sections.training_section([2.0, 1.0, 0.5], [0.5, 0.92, 0.95], 12.5)
    (text,) = pieces(section, ReportText)
    assert (
        "After 3 rounds the network names 95.0% of the held-out digits correctly. It passed 90 % in round 2."
        in text.text
    )
    (image,) = pieces(section, ReportImage)
    assert image.png != image.dark


def test_training_section_does_not_claim_what_did_not_happen():
    (text,) = pieces(sections.training_section([2.0], [0.5], 1.0), ReportText)
    assert "passed" not in text.text


def test_data_section_counts_examples():
    arrays = {"a": {"y": [0, 0, 1]}, "b": {"y": [1]}}
    section = sections.data_section(describe(ClientData(arrays=arrays, label="y")))
    assert "4 real handwritten digits are stored at 2 clients, 1 to 3 each" in pieces(section, ReportText)[0].text


def test_program_section_shows_the_code_and_every_stage():
    record = fedavg_record()
    section = sections.program_section(record, "the code")
    assert pieces(section, ReportCode)[0].text == "the code"
    drawn = re.findall(r'data-stage="([\d.]+)"', pieces(section, ReportPicture)[0].svg)
    assert {stage.path for stage in record.plan.stages} <= set(drawn)


def test_stages_section_has_a_row_per_stage():
    record = fedavg_record()
    (table,) = pieces(sections.stages_section(record), ReportTable)
    assert [row[0] for row in table.rows] == [stage.path for stage in record.plan.stages]
    assert [row[3] for row in table.rows][:2] == ["64 × clients", "64 × clients"]


def test_placement_section_names_the_clients_of_every_device():
    mesh = mesh_record()
    (table,) = pieces(sections.placement_section(mesh), ReportTable)
    assert len(table.rows) == len(mesh.clients)
    assert table.rows[0][2].startswith("from 0 to ")


def test_sharding_section_has_a_row_per_array():
    record = sharding_record()
    (table,) = pieces(sections.sharding_section(record), ReportTable)
    assert [row[0] for row in table.rows] == [leaf.path for leaf in record.leaves]


def test_collectives_section_counts_what_was_compiled():
    record = fedavg_record()
    section = sections.collectives_section(record)
    count = len(record.module.collectives)
    assert f"The compiled round has {count} collective" in pieces(section, ReportText)[0].text
    assert len(pieces(section, ReportTable)[0].rows) == count


def test_collectives_section_without_any_says_none():
    section = sections.collectives_section(fedavg_record().replace(module=None))
    assert pieces(section, ReportText)[0].text == "The compiled round has 0 collectives."
    assert pieces(section, ReportTable) == []


def test_cost_section_is_left_out_where_nothing_was_predicted():
    assert sections.cost_section(fedavg_record().replace(cost=None)) is None


def test_cost_section_has_a_row_per_stage():
    record = fedavg_record()
    (table,) = pieces(sections.cost_section(record), ReportTable)
    assert len(table.rows) == len(record.cost.stages)


def test_code_is_shown_as_written_without_docstrings():
    code = _demo.code_of(_training.fedavg)
    assert code.startswith("@program(clients=CLIENTS)\ndef fedavg(")
    assert '"""' not in code
    assert code.splitlines()[-1] in inspect.getsource(_training)


def test_demo_that_cannot_write_says_so_before_it_trains(tmp_path, capsys):
    folder = tmp_path / "a-folder"
    folder.mkdir()
    assert main(["demo", "--out", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"was given --out {folder}, which cannot be written (Is a directory)" in said
    assert "name another file with `--out`, for example `--out report.html`" in said


def test_demo_writes_one_file_that_fetches_nothing(tmp_path, capsys):
    out = tmp_path / "new" / "report.html"
    assert main(["demo", "--out", str(out), "--rounds", "2"]) == 0
    page = out.read_text()
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {out.as_uri()}"
    for heading in (
        "The program",
        "Stages",
        "Placement",
        "Sharding",
        "Collectives",
        "Cost",
        "Training",
        "Its derivative",
    ):
        assert f"<h2>{heading}</h2>" in page
    assert not re.search(r"""(?:src|href|srcset)=["'](?!data:|#)""", page)
    assert "After 2 rounds" in page
    assert page.startswith(str(render_report(_demo.TITLE, _demo.LEAD, []))[:200])


def test_training_reaches_ninety_percent_within_forty_rounds():
    from workbench.mesh import make_mesh

    trained = _training.train(make_mesh(clients=8), 40, lambda *_: None)
    assert trained.accuracies[-1] >= 0.90
    assert len(trained.losses) == len(trained.accuracies) == 40
