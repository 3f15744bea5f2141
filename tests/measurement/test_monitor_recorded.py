"""Monitors on what real devices answered: see tests/recorded/device_answers.md for the sources."""

import sys

import pytest
from measurement_examples import FakeDevice

from workbench.measurement._amdsmi import AmdSmiReader
from workbench.measurement._nvml import NvmlReader
from workbench.measurement._sampling import Sampler


class RecordedNvml:
    """An A100 with MIG on: identities as recorded, utilisation not supported."""

    A100 = "GPU-d8d7e984-7a52-6ad0-676c-222f4be482b9"
    SLICE = "MIG-8c4c5a27-e508-5556-b2ea-7e549465741e"
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__({3: "Not Supported", 6: "Not Found", 15: "GPU is lost"}[value])
            self.value = value

    def nvmlInit(self):
        pass

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return "gpu"

    def nvmlDeviceGetUUID(self, handle):
        return self.A100 if handle == "gpu" else self.SLICE

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in (self.A100, self.SLICE):
            raise self.NVMLError(6)
        return "gpu" if uuid == self.A100 else "slice"

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index:
            raise self.NVMLError(6)
        return "slice"

    def nvmlDeviceIsMigDeviceHandle(self, handle):
        return handle == "slice"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):
        return "gpu"

    def nvmlDeviceGetUtilizationRates(self, handle):
        raise self.NVMLError(3)

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle != "gpu":
            raise self.NVMLError(3)
        return 92_000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 39


@pytest.mark.parametrize("visible", [RecordedNvml.A100, "GPU-d8d7e984", "MIG-8c4c5a27", RecordedNvml.SLICE])
def test_gpu_named_by_the_beginning_of_its_identity_is_found(visible):
    assert NvmlReader(RecordedNvml(), visible=visible).read(0) == (None, 92.0, 39.0)


def test_mig_slice_says_that_its_utilisation_is_not_measured():
    device = FakeDevice(0, {"bytes_in_use": 14987362304, "bytes_limit": 42505273344})
    sampler = Sampler([device], arrays=0, nvml=NvmlReader(RecordedNvml(), visible="MIG-8c4c5a27"))
    (sample,) = sampler.sample(0.0).devices
    assert (sample.present, sample.utilisation_percent, sample.power_watts) == (True, None, 92.0)
    assert "a MIG slice" in sample.notes[0]


def test_gpu_that_nvml_does_not_know_is_still_present():
    device = FakeDevice(0, {"bytes_in_use": 1})
    sampler = Sampler([device], arrays=0, nvml=NvmlReader(RecordedNvml(), visible="GPU-ffff"))
    (sample,) = sampler.sample(0.0).devices
    assert (sample.present, sample.power_watts) == (True, None)
    assert "cannot find GPU 0" in sample.notes[0]


def test_gpu_that_fell_off_the_bus_is_gone(monkeypatch):
    nvml = RecordedNvml()
    sampler = Sampler([FakeDevice(0, {"bytes_in_use": 1})], arrays=0, nvml=NvmlReader(nvml, visible=""))
    assert sampler.sample(0.0).devices[0].present

    def lost(handle, sensor):
        raise nvml.NVMLError(15)

    monkeypatch.setattr(nvml, "nvmlDeviceGetTemperature", lost)
    (sample,) = sampler.sample(0.0).devices
    assert not sample.present
    assert "the GPU is lost" in sample.notes[0]


class FakeTpu(FakeDevice):
    platform, device_kind = "tpu", "TPU v3"

    def __init__(self, number, kind, stats=None):
        super().__init__(number, stats or {"bytes_in_use": 1})
        self.device_kind, self.local_hardware_id = kind, number


class Duty:
    problem = None

    def __init__(self, *duty):
        self._duty = list(duty)

    def poll(self):
        return {"duty_cycle_pct": self._duty}

    def close(self):
        pass


@pytest.mark.parametrize(
    ("kind", "devices", "duty", "shown"),
    [
        ("TPU v3", 8, (10.0, 20.0, 30.0, 40.0), [10.0, 10.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0]),
        ("TPU v6 lite", 4, (100.0, 100.0, 100.0, 100.0), [100.0] * 4),  # as tpu-info prints it for a v6e-4
        ("TPU7x", 4, (10.0, 20.0), [10.0, 10.0, 20.0, 20.0]),
        ("TPU7x", 2, (10.0, 20.0), [10.0, 20.0]),
        ("TPU v4", 2, (), [None, None]),  # nothing runs: the metrics are empty
    ],
)
def test_duty_cycle_of_a_chip_is_shown_at_all_of_its_devices(kind, devices, duty, shown):
    sampler = Sampler([FakeTpu(n, kind) for n in range(devices)], arrays=0, tpu=Duty(*duty))
    assert [device.utilisation_percent for device in sampler.sample(0.0).devices] == shown


GIB = 2**30


@pytest.mark.parametrize(
    ("stats", "peak"),
    [
        # jax-ml/jax#1491: nothing but an array
        (
            {"bytes_in_use": 12288, "peak_bytes_in_use": 12288, "bytes_limit": 33014415360,
             "largest_free_block_bytes": 33014403072},
            12288,
        ),
        # EnzymeAD/Reactant.jl#2815: the program's own memory is in no counter, XProf's peak is 29.899 GiB
        (
            {"bytes_in_use": 1, "peak_bytes_in_use": int(2.648 * GIB), "bytes_limit": int(31.246 * GIB),
             "largest_free_block_bytes": int(1.347 * GIB)},
            int(31.246 * GIB) - int(1.347 * GIB),
        ),
    ],
    ids=["arrays", "program"],
)  # fmt: skip
def test_peak_of_a_tpu_includes_what_programs_reserve(stats, peak):
    sampler = Sampler([FakeTpu(0, "TPU v6 lite", stats)], arrays=0, tpu=Duty())
    assert sampler.sample(0.0).devices[0].peak_bytes == peak


class FakeAmdSmi:
    """The part of amdsmi that is used; a GPU that does not support a figure says "N/A"."""

    class AmdSmiException(Exception):
        pass

    class AmdSmiTemperatureType:
        HOTSPOT = 1

    class AmdSmiTemperatureMetric:
        CURRENT = 0

    def amdsmi_init(self):
        pass

    def amdsmi_shut_down(self):
        pass

    def amdsmi_get_processor_handles(self):
        return ["first", "second"]

    def amdsmi_get_gpu_activity(self, handle):
        if handle == "second":
            raise self.AmdSmiException("not supported")
        return {"gfx_activity": 93, "umc_activity": 40, "mm_activity": "N/A"}

    def amdsmi_get_power_info(self, handle):
        return {"current_socket_power": "N/A" if handle == "second" else 540, "average_socket_power": 300}

    def amdsmi_get_temp_metric(self, handle, sensor, metric):
        return 61


def test_amd_gpu_reports_what_it_supports():
    reader = AmdSmiReader(FakeAmdSmi(), visible="")
    assert (reader.read(0), reader.read(1)) == ((93.0, 540.0, 61.0), (None, 300.0, 61.0))
    assert AmdSmiReader(FakeAmdSmi(), visible="1,0").read(0) == (None, 300.0, 61.0)


def test_amd_gpu_is_watched_through_its_own_library(monkeypatch):
    device = FakeDevice(0, {"bytes_in_use": 1})
    device.device_kind = "AMD Instinct MI300X"
    sampler = Sampler([device], arrays=0, amd=AmdSmiReader(FakeAmdSmi(), visible=""))
    assert sampler.sample(0.0).devices[0].utilisation_percent == 93.0
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert "amdsmi" in Sampler([device], arrays=0).sample(0.0).notes[0]
