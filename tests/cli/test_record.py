"""`workbench record` writes one file that another machine opens."""

import json
import zipfile
from pathlib import Path

import pytest

from workbench.aot import CHIPS, store_calibration
from workbench.cli._record import write_recording
from workbench.errors import CommandError
from workbench.measurement import open_profile
from workbench.records.hardware import ChipRecord

V6E = Path(__file__).parents[1] / "recorded" / "tpu_v6e_4chips_host_offload.xplane.pb"


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    out = tmp_path_factory.mktemp("recording") / "recording.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_CACHE", str(out.parent))
        store_calibration(CHIPS["v5e"])
        assert write_recording(out) == 0
    return zipfile.ZipFile(out)


def test_recording_holds_the_rates_that_were_measured_before(recording):
    assert ChipRecord.from_json(recording.read("calibration.json")) == CHIPS["v5e"]


def test_recording_holds_profile_devices_measurements_and_hlo(recording):
    names = set(recording.namelist())
    assert {"README.txt", "profile.xplane.pb", "summary.txt", "devices.json", "measured.json"} <= names
    programs = json.loads(recording.read("measured.json"))
    assert {f"hlo/{name}.hlo.txt" for name in programs} <= names
    assert all("error" not in run for run in programs.values())
    assert json.loads(recording.read("devices.json"))["samples"]


def test_recorded_profile_opens_again_with_every_program(recording, tmp_path):
    path = tmp_path / "profile.xplane.pb"
    path.write_bytes(recording.read("profile.xplane.pb"))
    profile = open_profile(path)
    assert profile.joined == 1.0
    assert {program.module for program in profile.programs} >= {"jit_matrix_product", "jit_loop", "jit_all_reduce"}


def test_loop_counts_its_own_seconds_and_not_those_of_its_body(recording, tmp_path):
    path = tmp_path / "profile.xplane.pb"
    path.write_bytes(recording.read("profile.xplane.pb"))
    profile = open_profile(path)
    busy = sum(device.busy_seconds for device in profile.devices)
    assert busy == pytest.approx(profile.seconds)
    loop = [operation for operation in profile.operations if operation.program.startswith("jit_loop")]
    inside = sum(operation.seconds for operation in loop if operation.opcode != "while")
    assert sum(operation.seconds for operation in loop if operation.opcode == "while") < inside


def test_profile_of_ones_own_is_trimmed_to_its_devices(tmp_path):
    out = tmp_path / "own.zip"
    write_recording(out, profile=V6E)
    (tmp_path / "profile.xplane.pb").write_bytes(zipfile.ZipFile(out).read("profile.xplane.pb"))
    trimmed, whole = open_profile(tmp_path / "profile.xplane.pb"), open_profile(V6E)
    assert trimmed.operations == whole.operations
    assert trimmed.hosts == ()


def test_nothing_to_record_and_no_place_to_write_are_errors(tmp_path):
    with pytest.raises(CommandError, match="has nothing to write"):
        write_recording(tmp_path / "x.zip", profile=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="--out"):
        write_recording(tmp_path / "file" / "x.zip", profile=V6E)
