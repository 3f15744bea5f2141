"""Seconds of one operation from the published peaks of a chip, and how far that was off on recorded devices.

A roofline with the part of the peak that operations of a class reach, and a shortest time of a kernel. The parts are
fitted to the recordings in `tests/recorded` (TPU v6e, MI300X, MI355X), one per class of operation and kind of device,
none per chip; `ERRORS` is what remains on the same recordings, and a test computes it again.
"""

import re
from typing import Literal, NamedTuple

from workbench.records import ChipRecord

Bound = Literal["compute", "memory", "overhead"]
OperationClass = Literal["matrix product", "convolution", "elementwise", "reduction or transpose", "other"]

# Part of the published peak that is reached: (matrix unit, main memory).
_REACHED_ON_GPU: dict[OperationClass, tuple[float, float]] = {
    "matrix product": (0.30, 0.80),
    "convolution": (0.35, 0.36),
    "elementwise": (0.5, 0.84),
    "reduction or transpose": (0.5, 0.52),
    "other": (0.5, 0.6),
}
_REACHED_ON_TPU: dict[OperationClass, tuple[float, float]] = {
    "matrix product": (0.8, 0.80),
    "convolution": (0.8, 0.80),
    "elementwise": (0.8, 0.80),
    "reduction or transpose": (0.8, 0.70),
    "other": (0.8, 0.70),
}
_SHORTEST_ON_GPU = 4e-6  # seconds of a kernel that does next to nothing
_SHORTEST_ON_TPU = 0.0
_TPU = re.compile(r"(?:v\d+|tpu|\d)")


class Prediction(NamedTuple):
    """Seconds of one execution on one device, and what limits it."""

    seconds: float
    bound: Bound


class PredictionError(NamedTuple):
    """How far predictions were off for one family of chips, on operations of at least 1 % of the time."""

    operations: int
    median: float  # of |predicted / measured - 1|
    largest: float
    recordings: str


ERRORS: dict[str, PredictionError] = {
    "TPU v6e": PredictionError(2, 0.28, 0.56, "one recording of v6e, with one collective"),
    "AMD MI300X": PredictionError(6, 0.11, 0.67, "two recordings of MI300X"),
    "AMD MI355X": PredictionError(11, 0.18, 0.48, "one recording of MI355X"),
}


def family_of(chip: ChipRecord) -> str:
    """The family whose recordings say how good predictions are: "TPU v6e", "AMD MI300X", "H100"."""
    if _TPU.match(chip.name):
        return f"TPU {chip.name}"
    return f"AMD {chip.name}" if chip.name.startswith("MI") else chip.name


def error_bar(chip: ChipRecord) -> str:
    """How far predicted seconds were off on recorded devices of this family, as a sentence.

    Example:
        >>> from workbench.cost import known_chip
        >>> error_bar(known_chip("T4"))
        'No profile of T4 was recorded: how far predictions are off there is not known.'
    """
    family = family_of(chip)
    known = ERRORS.get(family)
    if known is None:
        return f"No profile of {family} was recorded: how far predictions are off there is not known."
    return (
        f"On {known.recordings} predicted seconds of single operations were off by {known.median:.0%} (median) and "
        f"{known.largest:.0%} (at most), over {known.operations} operations of 1 % of the time or more."
    )


def classify_operation(category: str, opcode: str, flops: float) -> OperationClass:
    """The class of an operation, which decides what part of the peaks it reaches.

    Args:
        category: XProf's category, such as "loop fusion".
        opcode: HLO's, where it is known.
        flops: Of dot products and convolutions.

    Example:
        >>> classify_operation("convolution fusion", "fusion", flops=1e9)
        'convolution'
    """
    if "convolution" in category or opcode == "convolution":
        return "convolution"
    if flops:
        return "matrix product"
    if category in ("input fusion", "data formatting") or opcode in ("reduce", "transpose", "copy"):
        return "reduction or transpose"
    if category in ("loop fusion", "broadcast", "non-fusion elementwise") or "elementwise" in category:
        return "elementwise"
    return "other"


def nearest_dtype(dtype: str, chip: ChipRecord) -> str:
    """The dtype whose published peak stands for that of `dtype`: its own, of another float8, bfloat16 or float16.

    Args:
        dtype: JAX's name.
        chip: Has the peaks.

    Example:
        >>> from workbench.cost import known_chip
        >>> nearest_dtype("float8_e4m3b11fnuz", known_chip("v6e")), nearest_dtype("float32", known_chip("v6e"))
        ('float8_e4m3fn', 'bfloat16')
    """
    peaks = chip.peak_flops_per_second
    if dtype in peaks:
        return dtype
    family = next((name for name in ("float8", "float4") if dtype.startswith(name)), None)
    near = next((name for name in peaks if family and name.startswith(family)), None)
    return near or next((name for name in ("bfloat16", "float16") if name in peaks), next(iter(peaks), dtype))


def predict_operation(
    flops: float, accessed_bytes: float, dtype: str, chip: ChipRecord, *, kind: OperationClass = "other"
) -> Prediction:
    """Predicts the seconds of one execution of an operation on one device.

    Args:
        flops: Of dot products and convolutions.
        accessed_bytes: Of main memory.
        dtype: JAX's name of the type that it computes in; "" counts as bfloat16.
        chip: Gives the peaks.
        kind: From `classify_operation`.

    Returns:
        The larger of both parts of the roofline, and at least the shortest time of a kernel.

    Example:
        >>> from workbench.cost import known_chip
        >>> predict_operation(0.0, 10737418240, "float32", known_chip("v6e"), kind="elementwise").bound
        'memory'
    """
    is_gpu = chip.topology == "switch"
    matrix, memory = (_REACHED_ON_GPU if is_gpu else _REACHED_ON_TPU)[kind]
    peak = chip.peak_flops_per_second.get(nearest_dtype(dtype or "bfloat16", chip))
    seconds: dict[Bound, float] = {
        "memory": accessed_bytes / (chip.hbm_bytes_per_second / chip.devices_per_chip) / memory,
        "compute": flops / (peak / chip.devices_per_chip) / matrix if peak else 0.0,
        "overhead": _SHORTEST_ON_GPU if is_gpu else _SHORTEST_ON_TPU,
    }
    slowest = max(seconds, key=lambda bound: seconds[bound])
    return Prediction(seconds[slowest], slowest)
