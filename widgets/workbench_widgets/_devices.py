"""The devices view: live memory, utilisation, power and temperature."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from workbench import render
from workbench.records.live import SampleRecord
from workbench.render import GLOSSARY, display_object
from workbench.render.units import bytes_text, shape_text, source_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import floats
from workbench_widgets.states import DevicesLive

MOST_DEVICES = 256
MOST_SAMPLES = 300
_COURSES = {  # figures drawn over time, and their fields in a sample
    "bytes_in_use": "bytes_in_use",
    "utilisation": "utilisation_percent",
    "power": "power_watts",
    "temperature": "temperature_celsius",
}


class Monitor(Protocol):
    """Interface that the view expects of a monitor, such as `workbench.measurement.watch_devices()`."""

    def history(self) -> Sequence[SampleRecord]:
        """All samples, oldest first."""
        ...

    def subscribe(self, callback: Callable[[SampleRecord], Any]) -> Callable[[], None]:
        """Calls `callback` with every new sample; returns a function that unsubscribes."""
        ...


class DevicesView(WorkbenchWidget):
    """Shows the devices, live while a page displays the view.

    Args:
        monitor: The source of samples, which are taken in a separate thread.
    """

    view_name = "devices"

    def __init__(self, monitor: Monitor, **values: object) -> None:
        self.monitor = monitor
        history = tuple(monitor.history())
        super().__init__(data={"glossary": GLOSSARY}, label=_sentence(history), live=devices_state(history), **values)
        me = weakref.ref(self)  # the monitor outlives the view and must not keep it alive

        def arrived(_sample: SampleRecord) -> None:
            if (view := me()) is not None and view.is_open:
                view.update_live(**devices_state(tuple(view.monitor.history())))

        self._unsubscribe = monitor.subscribe(arrived)

    def static_html(self) -> str:
        """The last sample as a table."""
        devices = [device for sample in self.monitor.history()[-1:] for device in sample.devices]
        rows = [
            {
                "device": d.where,
                "in_use_bytes": d.bytes_in_use,
                "peak_bytes": d.peak_bytes,
                "limit_bytes": d.limit_bytes,
            }
            for d in devices
        ]
        return display_object("Devices", self.text(), rows or None)["text/html"]

    def text(self) -> str:
        """The last sample in words."""
        return _sentence(tuple(self.monitor.history()))


def _sentence(history: Sequence[SampleRecord]) -> str:
    return render.describe(history) if history else "Memory of the devices: no samples."


def devices_state(history: Sequence[SampleRecord]) -> DevicesLive:
    """The latest sample, and every device's memory in all stored samples."""
    if not history:
        return {
            "devices": [],
            "left_out": 0,
            "seconds": b"",
            "memory": b"",
            "courses": {},
            "host_courses": {},
            "arrays": [],
            "live_arrays": 0,
            "host": [],
        }
    samples, last = history[-MOST_SAMPLES:], history[-1]
    devices = last.devices[:MOST_DEVICES]
    courses = device_courses(samples, [device.where for device in devices], _COURSES)
    host = last.host
    return {
        "devices": [
            {
                "where": d.where,
                "kind": d.kind or d.platform,
                "id": d.device_id,
                "present": d.present,
                "bytes": d.bytes_in_use,
                "peak": d.peak_bytes,
                "limit": d.limit_bytes,
                "source": d.memory_source,
                "utilisation": d.utilisation_percent,
                "power": d.power_watts,
                "temperature": d.temperature_celsius,
            }
            for d in devices
        ],
        "left_out": len(last.devices) - len(devices),
        "seconds": floats([sample.time_seconds for sample in samples]),
        "memory": floats(courses.pop("bytes_in_use")),
        "courses": {name: floats(values) for name, values in courses.items() if np.isfinite(values).any()},
        "host_courses": {
            "processor": floats([sample.host.cpu_percent for sample in samples]),
            "memory of this process": floats([sample.host.process_bytes for sample in samples]),
        },
        "arrays": [
            [
                shape_text(a.dtype, a.shape),
                bytes_text(a.size_bytes),
                a.sharding,
                "unknown" if a.made_at is None else source_text(a.made_at.file, a.made_at.line),
            ]
            for a in last.arrays
        ],
        "live_arrays": last.live_arrays,
        "host": [
            ("processor", "unknown" if host.cpu_percent is None else f"{host.cpu_percent:.0f} % of all cores"),
            (
                "memory of the computer",
                f"{bytes_text(host.memory_used_bytes)} of {bytes_text(host.memory_total_bytes)}",
            ),
            ("memory of this process", bytes_text(host.process_bytes)),
        ],
    }


def device_courses(
    samples: Sequence[SampleRecord], names: Sequence[str], fields: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """The figures in `fields` of every device, one number per sample; NaN where unknown."""
    rows = {where: row for row, where in enumerate(names)}
    courses = {name: np.full((len(names), len(samples)), np.nan) for name in fields}
    for column, sample in enumerate(samples):
        for device in sample.devices:
            if device.where in rows:
                for name, field in fields.items():
                    courses[name][rows[device.where], column] = getattr(device, field)
    return {name: values.ravel() for name, values in courses.items()}
