"""Recorded devices and sessions are read as they were written, and damaged files are refused."""

import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated.population import (
    Population,
    Synchronous,
    read_devices,
    read_sessions,
    simulate,
)
from workbench.records.run import WorkRecord

DEVICES = b"flops_per_second,download_bytes_per_second,upload_bytes_per_second\n1e9,1e6,2e6\n3e9,1e6,1e6\n"
SESSIONS = b"client,start_seconds,end_seconds\nb,5,600\na,100,200\na,1,20\n"


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def test_sessions_repeat_after_their_period(write):
    rows = b"client,start_seconds,end_seconds\na,0,200\na,500,900\nb,100,150\n"
    sessions = read_sessions(write("s.csv", rows), period_hours=1000 / 3600)
    ids = np.arange(200)
    device = sessions.devices_of(ids, 0)
    assert set(device) == {0, 1}
    for now, expected in ((50, (150, 0)), (1050, (150, 0)), (600, (300, 0)), (1120, (80, 30)), (950, (0, 0))):
        found = sessions.remaining_seconds(ids, float(now), np.zeros(200), 0)
        np.testing.assert_allclose(found, np.array(expected)[device])


def test_a_population_of_recorded_devices_runs(write):
    devices = read_devices(write("d.csv", DEVICES))
    sessions = read_sessions(write("s.csv", SESSIONS), period_hours=0.25)
    people = Population(10**6, devices, [sessions], {0.0: 1.0})
    work = WorkRecord(flops=1e9, download_bytes=1e4, upload_bytes=1e4)
    record = simulate(people, work, Synchronous(cohort=50), rounds=5).record
    assert all(each.succeeded for each in record.rounds)
    assert record.devices[0].name == "recorded devices"


def test_tables_of_devices_and_sessions(write):
    devices = read_devices(write("d.csv", DEVICES))
    assert devices.flops_per_second.tolist() == [1e9, 3e9]
    sessions = read_sessions(write("s.csv", SESSIONS))
    assert sessions.starts.tolist() == [1, 100, 5]
    assert sessions.offsets.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (read_devices, b"flops_per_second\n1\n"),
        (read_sessions, b"client,start_seconds,end_seconds\na,1,1000000\n"),
        (read_devices, DEVICES + b"0,1e6,1e6\n"),
        (read_sessions, b"client,start_seconds,end_seconds\n"),
    ],
    ids=["columns", "period", "zero", "empty"],
)
def test_damaged_files_are_refused_by_name(reader, content, write):
    with pytest.raises(DataError, match="broken"):
        reader(write("broken", content))


def test_missing_files_are_refused():
    with pytest.raises(DataError, match="No such file"):
        read_devices("nowhere")
