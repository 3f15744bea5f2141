"""The checks for a real accelerator run on CPU devices, where some of them are not possible."""

import json
import zipfile

import jax
import pytest

from benchmarks import on_device
from workbench.records.hardware import ChipRecord


@pytest.mark.slow
def test_every_check_answers_and_the_file_holds_the_answers(tmp_path):
    out = tmp_path / "on-device.zip"
    with jax.numpy_rank_promotion("allow"):  # as for users
        assert on_device.main(["--seconds", "1", "--out", str(out)]) == 0
    with zipfile.ZipFile(out) as archive:
        report = json.loads(archive.read("report.json"))
        assert ChipRecord.from_json(archive.read("calibration.json")).rates
        assert "recording.zip" in archive.namelist()
    verdicts = {name: answer["verdict"] for name, answer in report.items() if isinstance(answer, dict)}
    assert verdicts.keys() == {"memory", "recording", "monitor", "absent chip", "live feed", "rounds", "calibration"}
    assert {verdicts[name] for name in ("memory", "monitor", "absent chip")} == {"not possible here"}
    assert verdicts["recording"] == verdicts["calibration"] == "passed"


def test_a_figure_that_is_off_differs_and_says_by_how_much():
    assert on_device.compared(105.0, 100.0, 0.1, "bytes").verdict == "passed"
    answer = on_device.compared(120.0, 100.0, 0.1, "bytes")
    assert (answer.verdict, answer.text) == ("differs", "bytes: 120 against 100 (+20.0 %)")
