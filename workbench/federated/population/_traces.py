"""Reads recorded devices and sessions: FedScale's pickles, and tables."""

import io
import itertools
import math
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.federated.population._availability import RecordedSessions
from workbench.federated.population._devices import PHONES, RecordedDevices
from workbench.records.run import DeviceClassRecord

if TYPE_CHECKING:
    import pandas as pd


def read_fedscale_devices(
    path: str | Path, *, reference_flops: float = 6e8, like: DeviceClassRecord = PHONES[1]
) -> RecordedDevices:
    """Reads devices from FedScale's `client_device_capacity` (ms per example, kbit/s).

    Args:
        path: The file, a pickle of `{client: {"computation": ms, "communication": kbit/s}}`. Only plain numbers, text
            and containers are read; a pickle that refers to code is rejected.
        reference_flops: FLOPs of the timed inference on one example. Default: the FLOPs of MobileNet v2.
        like: Class of devices that supplies memory, battery and power consumption, which the file lacks.

    Raises:
        DataError: if the file is not of this form.

    Example:
        >>> import pickle, tempfile
        >>> with tempfile.NamedTemporaryFile(delete=False) as file:
        ...     _ = file.write(pickle.dumps({1: {"computation": 100.0, "communication": 8000.0}}))
        >>> devices = read_fedscale_devices(file.name)
        >>> float(devices.flops_per_second[0]), float(devices.upload_bytes_per_second[0])
        (6000000000.0, 1000000.0)

    References:
        Lai et al., "FedScale", ICML 2022 (arXiv 2105.11367), section 3.3.
    """
    rows = _entries(_load_plain(path, "read_fedscale_devices"), ("computation", "communication"), path)
    milliseconds = np.array([float(row["computation"]) for row in rows])
    bandwidth = np.array([float(row["communication"]) for row in rows]) * 1000 / 8
    _check_positive(path, computation=milliseconds, communication=bandwidth)
    return RecordedDevices(reference_flops * 1000 / milliseconds, bandwidth, bandwidth, like)


def read_fedscale_sessions(path: str | Path) -> RecordedSessions:
    """Reads repeating device sessions from FedScale's `client_behave_trace`.

    Args:
        path: The file, a pickle of `{client: {"active": [s, ...], "inactive": [s, ...], "finish_time": s}}`, read with
            the restrictions of `read_fedscale_devices`.

    Raises:
        DataError: if the file is not of this form.

    References:
        Lai et al., "FedScale", ICML 2022, section 3.3; Yang et al., "Characterizing Impacts of Heterogeneity in
        Federated Learning upon Large-Scale Smartphone Data", WWW 2021 (arXiv 2006.06983), the source of the recorded
        users.
    """
    rows = _entries(_load_plain(path, "read_fedscale_sessions"), ("active", "inactive", "finish_time"), path)
    sessions = [list(zip(row["active"], row["inactive"], strict=False)) for row in rows]
    return _sessions(sessions, [float(row["finish_time"]) for row in rows], path)


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


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler for containers, numbers and text; refuses to import or call code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        message = f"it names {module}.{name}, but a trace contains only plain numbers"
        raise pickle.UnpicklingError(message)


def _load_plain(path: str | Path, reader: str) -> object:
    try:
        return _PlainUnpickler(io.BytesIO(Path(path).read_bytes())).load()
    except OSError as error:
        message = f"`{reader}` cannot read {str(path)!r}: {error.strerror}. Pass the path of FedScale's file."
        raise DataError(message) from error
    except Exception as error:  # a damaged pickle can raise any exception
        message = (
            f"`{reader}` received {str(path)!r}, which is not a trace of FedScale: {error or type(error).__name__}. "
            "The file is a pickle of dictionaries of numbers: pass the file that FedScale's download script writes."
        )
        raise DataError(message) from error


def _entries(document: object, names: Sequence[str], path: str | Path) -> list[Mapping[str, Any]]:
    rows = list(document.values()) if isinstance(document, dict) else []
    if not rows or not all(isinstance(row, dict) and all(name in row for name in names) for row in rows):
        message = (
            f"The file {str(path)!r} contains {len(rows)} clients, some of which lack one or more of "
            f"{', '.join(names)}. A trace must have these entries for every client: pass a file from FedScale's "
            "benchmark, or write your own as a table (`read_devices`, `read_sessions`)."
        )
        raise DataError(message)
    return rows


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
    ordered = all(a[0] <= b[0] for history in histories for a, b in itertools.pairwise(history))
    fits = np.isfinite(periods).all() and min(periods, default=0) > 0 and len(starts) > 0
    if not fits or not ordered or not (ends <= limits).all() or starts.min() < 0:
        message = (
            f"The file {str(path)!r} has {len(starts)} sessions of {len(histories)} clients that do not fit their "
            f"periods of up to {max(periods, default=math.nan):g} s. Sessions must be in chronological order, and must "
            "end within the period after which they repeat: sort them, or pass a longer period."
        )
        raise DataError(message)
    return RecordedSessions(starts, ends, np.concatenate([[0], np.cumsum(lengths)]), np.array(periods))
