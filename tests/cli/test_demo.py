"""`workbench demo`: the sections of its report, its errors, and the whole of it on few rounds."""

import inspect
import re

from records_examples import fedavg_record

from workbench.cli import _demo, _demo_sections as sections, _training, main
from workbench.federated.data import ClientData, describe
from workbench.records.live import RoundRecord
from workbench.render.report import ReportCode, ReportImage, ReportText, ReportView, render_report


def pieces(section, kind):
    return [piece for piece in section.pieces if isinstance(piece, kind)]


def rounds(*accuracies):
    return [
        RoundRecord(round=number, seconds=1.0, metrics={_training.ACCURACY: accuracy})
        for number, accuracy in enumerate(accuracies)
    ]


def test_training_section_says_when_it_passed_ninety_percent():
    section = sections.training_section(rounds(0.5, 0.92, 0.95), 12.5)
    (text,) = pieces(section, ReportText)
    assert (
        "After 3 rounds the network classifies 95.0 % of the held-out digits correctly. "
        "The accuracy reached 90 % in round 2." in text.text
    )
    (image,) = pieces(section, ReportImage)
    assert image.png != image.dark


def test_training_section_does_not_claim_what_did_not_happen():
    (text,) = pieces(sections.training_section(rounds(0.5), 1.0), ReportText)
    assert "reached" not in text.text


def test_data_section_counts_examples():
    arrays = {"a": {"y": [0, 0, 1]}, "b": {"y": [1]}}
    section = sections.data_section(describe(ClientData(arrays=arrays, label="y")))
    assert "4 real handwritten digits are stored at 2 clients, 1 to 3 each" in pieces(section, ReportText)[0].text


def test_round_section_shows_the_code_before_the_player():
    section = sections.round_section("the code", "<p>player</p>")
    assert pieces(section, ReportCode)[0].text == "the code"
    assert section.pieces[-1] == pieces(section, ReportView)[0]
    assert pieces(section, ReportView)[0].fragment == "<p>player</p>"


def test_program_section_counts_stages_and_collectives_of_the_round_and_of_its_derivative():
    record = fedavg_record()
    section = sections.program_section(record, record.replace(module=None), "<p>explorer</p>")
    (text,), stages = pieces(section, ReportText), len(list(record.plan.walk()))
    assert f"The compiled round has {stages} stages and 1 all-reduce over clients and " in text.text
    assert text.text.endswith(f"{stages} stages and no collective.")


def test_next_section_names_the_command_of_this_installation():
    assert "x/bin/workbench lab 01-start-here" in [
        p.text for p in pieces(sections.next_section("x/bin/workbench"), ReportCode)
    ]


def test_code_is_shown_without_docstrings_and_types():
    code = _demo.code_of(_training.train_locally, _training.fedavg)
    assert code.startswith("def train_locally(parameters, client):\n    def step(carry, batch):\n")
    assert "@program(clients=CLIENTS)\ndef fedavg(parameters, data):\n    changes, losses = map_fn(" in code
    source = inspect.getsource(_training)
    assert [line for line in code.splitlines() if line not in source and "def " not in line] == []


def test_demo_that_cannot_write_says_so_before_it_trains(tmp_path, capsys):
    folder = tmp_path / "a-folder"
    folder.mkdir()
    assert main(["demo", "--out", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"was given --out {folder}, which cannot be written (Is a directory)" in said
    assert "choose another file with `--out`, for example `--out report.html`" in said


def test_demo_writes_one_file_that_fetches_nothing(tmp_path, capsys):
    out = tmp_path / "new" / "report.html"
    assert main(["demo", "--out", str(out), "--rounds", "2"]) == 0
    page = out.read_text()
    said = capsys.readouterr().out.splitlines()
    assert said[-3] == f"wrote {out.as_uri()}"
    assert "workbench lab 01-start-here" in said[-1]
    assert re.findall("<h2>(.*?)</h2>", re.sub("<script.*?</script>", "", page, flags=re.DOTALL)) == [
        "Training",
        "The data stay with their clients",
        "A round",
        "Inside the program",
        "Next",
    ]
    assert page.count('class="wb-savedview"') == 2
    assert not re.search(r"""(?:src|href|srcset)=["'](?!data:|#)""", page)
    assert "After 2 rounds" in page
    assert page.startswith(str(render_report(_demo.TITLE, "", []))[:200])


def test_training_reaches_ninety_percent_within_forty_rounds():
    from workbench.mesh import make_mesh

    trained = _training.train(make_mesh(clients=8), 40, progress=False)
    assert len(trained.history) == 40
    assert _training.accuracies_of(trained.history)[-1] >= 0.90
