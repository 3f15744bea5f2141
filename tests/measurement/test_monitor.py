import gc
import os
import sys
import threading
import time
import types
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from measurement_examples import FakeDevice

from workbench.errors import MeasureError, MissingDependencyError
from workbench.measurement import DeviceMonitor, watch_devices
from workbench.measurement._memory import largest_arrays, live_bytes
from workbench.measurement._nvml import NvmlReader
from workbench.measurement._sampling import Sampler
from workbench.measurement._tpu_metrics import TpuMetrics

PATIENCE = 120.0


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


class FakeNvml:
    """The part of pynvml that is used, for two GPUs; the second cannot tell its power."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class _Rates:
        gpu = 87

    def __init__(self):
        self.started = 0

    def nvmlInit(self):
        self.started += 1

    def nvmlShutdown(self):
        self.started -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return ("index", index)

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return ("uuid", uuid)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return self._Rates

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == ("index", 1):
            raise self.NVMLError("not supported")
        return 312_500

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 61


def test_live_bytes_counts_each_shard_where_it_lies():
    mesh = Mesh(np.array(jax.devices()[:4]), ("clients",))
    split = jax.device_put(jnp.zeros((8, 10), jnp.float32), NamedSharding(mesh, P("clients")))  # 2 x 10 x 4 bytes each
    copied = jax.device_put(jnp.zeros(5, jnp.int8), NamedSharding(mesh, P()))  # 5 bytes on each
    assert live_bytes([split, copied]) == {0: 85, 1: 85, 2: 85, 3: 85}


def test_live_bytes_leaves_out_what_was_deleted():
    x = jnp.zeros(7, jnp.float32)
    assert list(live_bytes([x]).values()) == [28]
    x.delete()
    assert live_bytes([x]) == {}


def test_largest_arrays_are_named_with_the_line_that_made_them():
    small, big = jnp.zeros(3), jnp.ones((100, 100)) + 1
    (record,) = largest_arrays(1, [small, big])
    assert (record.shape, record.size_bytes, record.bytes_per_device) == ((100, 100), 40_000, {"cpu:0": 40_000})
    assert record.made_at.function.endswith("test_largest_arrays_are_named_with_the_line_that_made_them")
    assert record.made_at.file.endswith("test_monitor.py")


def test_monitor_samples_all_devices_and_the_host():
    held = jax.block_until_ready(jnp.ones(1000, jnp.float32))  # before the first sample
    with watch_devices(0.05, arrays=2) as monitor:
        wait_for(lambda: len(monitor.history()) >= 3)
        sample = monitor.latest()
        assert [device.where for device in sample.devices] == [f"cpu:{i}" for i in range(8)]
        assert sample.devices[0].memory_source == "live_arrays"
        assert sample.devices[0].bytes_in_use >= held.nbytes
        assert sample.devices[0].limit_bytes is None
        assert sample.host.process_bytes > 0
        assert sample.host.memory_total_bytes >= sample.host.memory_used_bytes > 0
        assert 1 <= len(sample.arrays) <= 2
    assert not monitor.running
    assert monitor.problems == type(monitor.problems)(maxlen=100)


def test_monitor_keeps_the_last_samples_only():
    with watch_devices(0.001, history=3, arrays=0) as monitor:
        wait_for(lambda: monitor.latest().time_seconds > 0 and len(monitor.history()) == 3)
        first = monitor.history()[0]
        wait_for(lambda: monitor.history()[0] is not first)
        assert len(monitor.history()) == 3


def test_monitor_as_a_table_has_a_row_per_sample_and_device():
    with watch_devices(0.02) as monitor:
        wait_for(lambda: len(monitor.history()) >= 2)
    table = monitor.to_pandas()
    assert len(table) == 8 * len(monitor.history())
    assert {"time_seconds", "where", "bytes_in_use", "utilisation_percent", "host_cpu_percent"} <= set(table.columns)
    assert table["time_seconds"].is_monotonic_increasing
    assert table["power_watts"].dtype == "Float64"  # missing everywhere on this platform, and still numbers
    assert table["power_watts"].isna().all()
    assert table["peak_bytes"].dtype == table["host_process_bytes"].dtype == "Int64"
    assert table["host_process_bytes"].mean() > 2**20


def test_subscriber_hears_every_sample_until_it_leaves():
    received = []
    with watch_devices(0.02) as monitor:
        leave = monitor.subscribe(received.append)
        wait_for(lambda: len(received) >= 2)
        leave()
        quiet = len(received)
        later = monitor.latest()
        wait_for(lambda: monitor.latest().time_seconds > later.time_seconds + 0.05)
        assert len(received) <= quiet + 1  # one may have been on its way
    assert {id(sample) for sample in received} <= {id(sample) for sample in monitor.history()}


def test_broken_subscriber_is_removed_and_named_while_others_go_on():
    received = []

    def broken(sample):
        raise ValueError("no such widget")

    with watch_devices(0.02) as monitor:
        monitor.subscribe(broken)
        monitor.subscribe(received.append)
        wait_for(lambda: len(received) >= 3)
        assert list(monitor.problems) == ["A subscriber failed and was removed: ValueError: no such widget"]


class SlowSampler:
    def __init__(self):
        self.order, self.samples = [], threading.Event()

    def sample(self, started):
        self.order.append("begins")
        self.samples.set()
        time.sleep(0.3)
        self.order.append("ends")
        raise ValueError("no device")

    def close(self):
        self.order.append("closed")


def test_sampler_is_closed_after_its_last_sample():
    sampler = SlowSampler()
    monitor = DeviceMonitor(sampler, interval_seconds=PATIENCE, history=1)
    assert sampler.samples.wait(PATIENCE)
    monitor.stop()
    assert sampler.order == ["begins", "ends", "closed"]


def test_subscriber_may_stop_the_monitor():
    monitor = watch_devices(0.02)
    monitor.subscribe(lambda sample: monitor.stop())
    wait_for(lambda: not monitor._thread.is_alive())
    assert not monitor.running
    assert list(monitor.problems) == []


def test_forgotten_monitor_stops():
    monitor = watch_devices(0.01)
    monitor.latest()
    thread, reference = monitor._thread, weakref.ref(monitor)
    del monitor
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert reference() is None


def test_device_that_vanishes_is_reported_and_the_others_are_still_watched():
    steady = FakeDevice(0, {"bytes_in_use": 10, "peak_bytes_in_use": 20, "bytes_limit": 100})
    lost = FakeDevice(1, {"bytes_in_use": 10})
    sampler = Sampler([steady, lost], arrays=0, nvml=NvmlReader(FakeNvml()))
    before = sampler.sample(0.0).devices
    lost.gone = True
    after = sampler.sample(0.0).devices
    assert [device.present for device in (*before, *after)] == [True, True, True, False]
    assert after[1].notes == ("gpu:1 could not be read: RuntimeError: device lost",)
    assert (after[0].bytes_in_use, after[0].peak_bytes, after[0].limit_bytes) == (10, 20, 100)
    assert after[0].memory_source == "memory_stats"
    lost.gone = False
    assert sampler.sample(0.0).devices[1].present


def test_gpu_figures_come_from_nvml_in_percent_watts_and_degrees():
    sampler = Sampler([FakeDevice(0, {"bytes_in_use": 1})], arrays=0, nvml=NvmlReader(FakeNvml(), visible=""))
    (device,) = sampler.sample(0.0).devices
    assert (device.utilisation_percent, device.power_watts, device.temperature_celsius) == (87.0, 312.5, 61.0)


def test_gpu_that_does_not_know_one_figure_still_reports_the_others():
    assert NvmlReader(FakeNvml(), visible="").read(1) == (87.0, None, 61.0)


@pytest.mark.parametrize(
    ("visible", "handle"),
    [("", ("index", 1)), ("4,6", ("index", 6)), ("GPU-a, GPU-b", ("uuid", "GPU-b"))],
    ids=["all", "by number", "by identity"],
)
def test_gpus_are_counted_as_cuda_visible_devices_orders_them(visible, handle):
    assert NvmlReader(FakeNvml(), visible=visible)._find(1) == handle


def test_missing_nvml_binding_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "mapreduce-workbench\[gpu\]"'):
        NvmlReader()
    sampler = Sampler([FakeDevice(0, {"bytes_in_use": 1})], arrays=0)
    sample = sampler.sample(0.0)
    assert "nvidia-ml-py" in sample.notes[0]
    assert sample.devices[0].utilisation_percent is None
    assert sample.devices[0].present


def test_tpu_metrics_are_read_when_the_worker_has_answered():
    metrics = TpuMetrics([sys.executable, "-c", 'print(\'{"duty_cycle_pct": ["12.5", "80"]}\')'])
    assert metrics.poll() == {}
    wait_for(lambda: metrics.poll() != {})
    assert metrics.latest == {"duty_cycle_pct": [12.5, 80.0]}


def test_tpu_worker_that_hangs_is_ended_and_never_waited_for():
    metrics = TpuMetrics([sys.executable, "-c", "import time; time.sleep(600)"], timeout_seconds=0.2)
    metrics.poll()
    process = metrics._process
    assert process.poll() is None  # it still hangs: nobody waited for its 600 s
    wait_for(lambda: metrics.poll() == {} and metrics.problem is not None)
    assert metrics.problem == "The TPU's monitoring did not answer within 0.2 s and is not queried again."
    assert process.poll() is not None
    metrics.poll()
    assert metrics._process is None


def test_tpu_worker_that_fails_is_reported_once_and_not_asked_again():
    metrics = TpuMetrics([sys.executable, "-c", "raise SystemExit('no libtpu here')"])
    wait_for(lambda: metrics.poll() == {} and metrics.problem is not None)
    assert metrics.problem == "The TPU's monitoring ended with code 1 (no libtpu here) and is not queried again."


def test_monitor_never_calls_from_the_threads_of_others():
    callers = set()
    with watch_devices(0.02) as monitor:
        monitor.subscribe(lambda sample: callers.add(threading.current_thread().name))
        wait_for(lambda: callers)
    assert callers == {"workbench-devices"}


def test_impossible_settings_are_an_error():
    with pytest.raises(MeasureError, match=r"received interval_seconds=0\. Pass interval_seconds > 0"):
        watch_devices(0)


def test_monitor_without_a_sample_says_so():
    class Nameless:
        platform = "cpu"

    with watch_devices(60, devices=[Nameless()]) as monitor:
        with pytest.raises(MeasureError, match=r"`latest` waited 0.5 s.*problems: A sample failed: AttributeError"):
            monitor.latest(0.5)


def test_this_process_is_the_one_that_is_measured():
    assert Sampler([], arrays=0)._process.pid == os.getpid()


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_monitor_runs_while_its_thread_lives_and_nobody_stopped_it(alive, stopped):
    parts = types.SimpleNamespace(
        _thread=types.SimpleNamespace(is_alive=lambda: alive), _stopped=types.SimpleNamespace(is_set=lambda: stopped)
    )
    assert DeviceMonitor.running.fget(parts) is (alive and not stopped)
