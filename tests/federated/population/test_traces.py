"""Recorded devices and sessions are read as they were written, and hostile or damaged files are refused."""

import os
import pickle

import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated.population import (
    Population,
    Synchronous,
    read_devices,
    read_fedscale_devices,
    read_fedscale_sessions,
    read_sessions,
    simulate,
)
from workbench.records.run import WorkRecord

CAPACITY = {n: {"computation": 50.0 + n, "communication": 4000.0 * (1 + n)} for n in range(5)}
BEHAVIOUR = {
    1: {"active": [0.0, 500.0], "inactive": [200.0, 900.0], "finish_time": 1000.0, "duration": 600.0},
    2: {"active": [100.0], "inactive": [150.0], "finish_time": 400.0, "duration": 50.0},
}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
        return path

    return write


def test_devices_of_fedscale(write):
    devices = read_fedscale_devices(write("capacity", CAPACITY), reference_flops=1e9)
    np.testing.assert_allclose(devices.flops_per_second, [1e12 / (50 + n) for n in range(5)])
    np.testing.assert_allclose(devices.download_bytes_per_second, [5e5 * (1 + n) for n in range(5)])


def test_sessions_of_fedscale_repeat_after_their_period(write):
    sessions = read_fedscale_sessions(write("behaviour", BEHAVIOUR))
    ids = np.arange(200)
    device = sessions.devices_of(ids, 0)
    assert set(device) == {0, 1}
    for now, expected in ((50, (150, 0)), (1050, (150, 0)), (600, (300, 0)), (520, (380, 30)), (950, (0, 0))):
        found = sessions.remaining_seconds(ids, float(now), np.zeros(200), 0)
        np.testing.assert_allclose(found, np.array(expected)[device])


def test_a_population_of_recorded_devices_runs(write):
    devices = read_fedscale_devices(write("capacity", CAPACITY))
    sessions = read_fedscale_sessions(write("behaviour", BEHAVIOUR))
    people = Population(10**6, devices, [sessions], {0.0: 1.0})
    work = WorkRecord(flops=1e9, download_bytes=1e4, upload_bytes=1e4)
    record = simulate(people, work, Synchronous(cohort=50), rounds=5).record
    assert all(each.succeeded for each in record.rounds)
    assert record.devices[0].name == "recorded devices"


def test_tables_of_devices_and_sessions(write):
    devices = read_devices(
        write(
            "d.csv", b"flops_per_second,download_bytes_per_second,upload_bytes_per_second\n1e9,1e6,2e6\n3e9,1e6,1e6\n"
        )
    )
    assert devices.flops_per_second.tolist() == [1e9, 3e9]
    sessions = read_sessions(write("s.csv", b"client,start_seconds,end_seconds\nb,5,6\na,10,20\na,1,2\n"))
    assert sessions.starts.tolist() == [1, 10, 5]
    assert sessions.offsets.tolist() == [0, 2, 3]


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_code_in_a_pickle_is_not_run(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="a trace contains only plain numbers"):
        read_fedscale_devices(write("hostile", {1: Hostile()}))
    assert not (tmp_path / "made-by-a-pickle").exists()


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (read_fedscale_devices, b"no pickle"),
        (read_fedscale_devices, {1: {"computation": 1.0}}),
        (read_fedscale_devices, {1: {"computation": 0.0, "communication": 1.0}}),
        (read_fedscale_sessions, {}),
        (read_fedscale_sessions, {1: {"active": [5.0, 1.0], "inactive": [6.0, 2.0], "finish_time": 9.0}}),
        (read_devices, b"flops_per_second\n1\n"),
        (read_sessions, b"client,start_seconds,end_seconds\na,1,1000000\n"),
    ],
    ids=["bytes", "fields", "zero", "empty", "order", "columns", "period"],
)
def test_damaged_files_are_refused_by_name(reader, content, write):
    with pytest.raises(DataError, match="broken"):
        reader(write("broken", content))


def test_missing_files_are_refused():
    with pytest.raises(DataError, match="No such file"):
        read_fedscale_devices("nowhere")
