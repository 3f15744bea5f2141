"""Reads recorded devices and sessions from tables."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.federated.population._availability import RecordedSessions
from workbench.federated.population._devices import PHONES, RecordedDevices
from workbench.records.run import DeviceClassRecord

if TYPE_CHECKING:
    import pandas as pd


def read_devices(path: str | Path, *, like: DeviceClassRecord = PHONES[1]) -> RecordedDevices:
    r"""Reads devices from a table of speeds and bandwidths.

    The columns are `flops_per_second`, `download_bytes_per_second` and `upload_bytes_per_second`.

    Args:
        path: A CSV or (with pyarrow) Parquet file, one row per device.
        like: Class of devices that supplies memory, battery and power consumption, which the table lacks.

    Raises:
        DataError: if a column is missing, or a number is not positive.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "devices.csv")
        >>> _ = file.write_text("flops_per_second,download_bytes_per_second,upload_bytes_per_second\n1e9,2e6,5e5\n")
        >>> read_devices(file).upload_bytes_per_second
        array([500000.])
    """
    names = ("flops_per_second", "download_bytes_per_second", "upload_bytes_per_second")
    table = _read_table(path, names, "read_devices")
    flops, down, up = (table[name].to_numpy(float) for name in names)
    _check_positive(path, flops_per_second=flops, download_bytes_per_second=down, upload_bytes_per_second=up)
    return RecordedDevices(flops, down, up, like)


def read_sessions(path: str | Path, *, period_hours: float = 168.0) -> RecordedSessions:
    r"""Reads sessions from a table with `client`, `start_seconds` and `end_seconds`.

    Args:
        path: A CSV or (with pyarrow) Parquet file, one row per session.
        period_hours: Period after which every device's sessions repeat. Default: one week.

    Raises:
        DataError: if a column is missing, or a session ends before it starts or after the period.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "sessions.csv")
        >>> _ = file.write_text("client,start_seconds,end_seconds\na,0,600\nb,300,900\n")
        >>> read_sessions(file, period_hours=1).ends
        array([600., 900.])

    References:
        Wang et al., "FLINT", MLSys 2023 (arXiv 2302.12862), section 3.2: availability from session logs.
    """
    table = _read_table(path, ("client", "start_seconds", "end_seconds"), "read_sessions")
    groups = table.sort_values(["client", "start_seconds"]).groupby("client", sort=True)
    sessions = [list(zip(group["start_seconds"], group["end_seconds"], strict=True)) for _, group in groups]
    return _sessions(sessions, [period_hours * 3600] * len(sessions), path)


def _read_table(path: str | Path, names: Sequence[str], reader: str) -> "pd.DataFrame":
    with needs_library("pandas", needed_for=f"`{reader}`"):
        import pandas as pd
    try:
        table = pd.read_parquet(path) if str(path).endswith(".parquet") else pd.read_csv(path)
    except (OSError, ValueError) as error:
        message = f"`{reader}` cannot read {str(path)!r}: {error}. Pass a CSV or Parquet file."
        raise DataError(message) from error
    missing = [name for name in names if name not in table.columns]
    if missing or not len(table):
        message = (
            f"`{reader}` received {str(path)!r} with {len(table)} rows and the columns {', '.join(table.columns)}. "
            f"`{reader}` reads {', '.join(names)}: rename your columns, or convert their units."
        )
        raise DataError(message)
    return table


def _check_positive(path: str | Path, **columns: np.ndarray) -> None:
    wrong = [name for name, values in columns.items() if not (np.isfinite(values) & (values > 0)).all()]
    if wrong:
        message = (
            f"The file {str(path)!r} has values of {', '.join(wrong)} that are not positive. Speeds and bandwidths "
            "must be positive: remove the devices that were not measured."
        )
        raise DataError(message)


def _sessions(sessions: list[list[tuple[float, float]]], periods: list[float], path: str | Path) -> RecordedSessions:
    histories = [[(float(a), float(b)) for a, b in history if b > a] for history in sessions]
    starts = np.array([start for history in histories for start, _ in history])
    ends = np.array([end for history in histories for _, end in history])
    lengths = np.array([len(history) for history in histories])
    limits = np.repeat(np.array(periods), lengths)
    fits = np.isfinite(periods).all() and min(periods, default=0) > 0 and len(starts) > 0
    if not fits or not (ends <= limits).all() or starts.min() < 0:
        message = (
            f"The file {str(path)!r} has {len(starts)} sessions of {len(histories)} clients that do not fit their "
            f"periods of up to {max(periods, default=math.nan):g} s. Sessions must not start before 0 s, and must end "
            "within the period after which they repeat: shift their times, or pass a longer period."
        )
        raise DataError(message)
    return RecordedSessions(starts, ends, np.concatenate([[0], np.cumsum(lengths)]), np.array(periods))
