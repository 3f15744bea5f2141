"""Calibrated chips: measured rates of the attached devices, on disk or in a file."""

import hashlib
import json
from pathlib import Path

from workbench._cache import DiskCache, cache_directory
from workbench.errors import MeshError, RecordError
from workbench.records.hardware import ChipRecord

HERE = "here"
_LIMIT_BYTES = 16 * 2**20
_MEASUREMENTS = 3  # increased when a calibration measures a rate in another way


def calibration_of_devices() -> ChipRecord | None:
    """The calibration of the attached devices; None if `workbench calibrate` has not run for them.

    A calibration applies to one kind and number of devices, their driver, one version of JAX, and one way to measure.
    Starts the devices.
    """
    stored = _cache().load(_key())
    return None if stored is None else ChipRecord.from_dict(stored)


def store_calibration(chip: ChipRecord) -> str:
    """Stores the calibration of the attached devices; returns "" or the reason why this failed."""
    return _cache().store(_key(), chip.to_dict())


def named_calibration(name: str) -> ChipRecord | None:
    """The calibrated chip named by "here" or by the path of a JSON file; None for other names."""
    if name == HERE:
        chip = calibration_of_devices()
        if chip is None:
            message = (
                "`known_chip` was given 'here', but the attached devices have no calibration for this version of JAX "
                "and of Workbench. Calibration measures rates with small programs: run `wb.calibrate()` or "
                "`workbench calibrate` once."
            )
            raise MeshError(message)
        return chip
    if not name.endswith(".json"):
        return None
    try:
        chip = ChipRecord.from_json(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecordError, ValueError) as error:
        message = (
            f"`known_chip` was given {name!r}, which cannot be read as a calibration ({str(error)[:200]}). A "
            "calibration is a file that `workbench calibrate --out FILE.json` writes: pass the path of such a file."
        )
        raise MeshError(message) from error
    return chip


def _cache() -> DiskCache:
    return DiskCache(cache_directory("calibrations"), limit_bytes=_LIMIT_BYTES)


def _key() -> str:
    import jax  # the chip table can be read without JAX

    devices = jax.devices()
    about = [
        [devices[0].platform, devices[0].device_kind, len(devices), jax.process_count()],
        [getattr(devices[0].client, "platform_version", ""), jax.__version__, _MEASUREMENTS],
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
