"""Attained shares of published peaks, and fixed costs, by chip family.

There is one row per family, fitted to the points that `benchmarks/predictions.py` marks as fitted (published
measurements) and to the recordings in `tests/recorded` (AMD). The points that are not fitted validate the rows; see
`ACCURACY`.
"""

import re
from typing import Literal, NamedTuple

from workbench.records.hardware import ChipRecord

OperationClass = Literal["matrix product", "convolution", "elementwise", "reduction or transpose", "other"]
Family = Literal["TPU", "NVIDIA", "AMD", "CPU", "other"]


class Rates(NamedTuple):
    """Attained rates of one family: shares of the published peak, and fixed times in seconds."""

    matrix: dict[OperationClass, float]  # share of the matrix unit's peak
    memory: dict[OperationClass, float]  # share of the bandwidth of main memory
    operation_seconds: float  # fixed cost of one operation
    collective_seconds: float  # fixed cost of one collective
    permute_seconds: float  # fixed cost of one collective-permute
    hop_seconds: float  # latency of one step of a collective
    large_hop_seconds: float  # the same for operands of at least 4 MiB, for which NCCL uses another protocol
    links: dict[str, float]  # kind of collective -> share of the links' bandwidth; "" for all other kinds
    radix: float = 1.0  # share of the bandwidth of main memory in the passes of a radix sort
    network: float = 1.0  # share of the bandwidth of the network beyond the links


LARGE_BYTES = 4 * 2**20


def _same(matrix: float, memory: float) -> tuple[dict[OperationClass, float], dict[OperationClass, float]]:
    kinds: tuple[OperationClass, ...] = (
        "matrix product", "convolution", "elementwise", "reduction or transpose", "other",
    )  # fmt: skip
    return dict.fromkeys(kinds, matrix), dict.fromkeys(kinds, memory)


_FAMILIES: dict[Family, Rates] = {
    "TPU": Rates(
        *_same(0.93, 0.87),
        operation_seconds=1.5e-6,
        collective_seconds=10e-6,
        permute_seconds=4e-6,
        hop_seconds=1e-6,
        large_hop_seconds=1e-6,
        links={"": 0.88},
        network=0.88,
    ),
    "NVIDIA": Rates(
        *_same(0.80, 0.82),
        operation_seconds=4e-6,
        collective_seconds=5e-6,
        permute_seconds=5e-6,
        hop_seconds=2.8e-6,
        large_hop_seconds=6e-6,
        links={"": 0.80},
        radix=0.27,
        network=0.95,
    ),
    "AMD": Rates(
        {**_same(0.5, 0.6)[0], "matrix product": 0.30, "convolution": 0.35},
        {"matrix product": 0.8, "convolution": 0.36, "elementwise": 0.84, "reduction or transpose": 0.52, "other": 0.6},
        operation_seconds=4e-6,
        collective_seconds=5e-6,
        permute_seconds=5e-6,
        hop_seconds=2.8e-6,
        large_hop_seconds=6e-6,
        links={"": 0.80},
        network=0.95,
    ),
    "CPU": Rates(
        *_same(1.0, 1.0),
        operation_seconds=1e-6,
        collective_seconds=20e-6,
        permute_seconds=20e-6,
        hop_seconds=5e-6,
        large_hop_seconds=5e-6,
        links={"": 1.0},
    ),
    # Chips outside the table: stated peaks are fully attained, and only collective steps have a fixed cost.
    "other": Rates(
        *_same(1.0, 1.0),
        operation_seconds=0.0,
        collective_seconds=0.0,
        permute_seconds=0.0,
        hop_seconds=1e-6,
        large_hop_seconds=1e-6,
        links={"": 1.0},
    ),
}  # fmt: skip
_NAMES: tuple[tuple[Family, re.Pattern[str]], ...] = (
    ("CPU", re.compile(r"cpu", re.IGNORECASE)),
    ("TPU", re.compile(r"(?:v\d|tpu|\d)\w*$")),
    ("AMD", re.compile(r"MI\d")),
    ("NVIDIA", re.compile(r"(?:V|T|A|L|H|GH|B|GB)\d")),
)
# Share of the matrix unit's peak for chips with fitted points.
_MATRIX = {"tpu7x": 0.83, "A100": 0.92, "A100 40GB": 0.92, "H100": 0.70, "H200": 0.70}
# Share of main memory bandwidth for such chips.
_MEMORY = {"H200": 0.90}
# Switches with in-network reduction (NVLink SHARP): an all-reduce sends its operand about once.
_REDUCING_SWITCH = ("H100", "H200", "H800", "GH200", "B200", "B300", "GB200", "GB300")
_REDUCING_SHARE = 1.07  # relative to the bandwidth of a ring


def family_of(chip: ChipRecord) -> Family:
    """The family of a chip, which selects the chip's row in the table of rates.

    Example:
        >>> from workbench.aot import known_chip
        >>> family_of(known_chip("v5e")), family_of(known_chip("MI300X"))
        ('TPU', 'AMD')
    """
    for family, name in _NAMES:
        if name.match(chip.name):
            return family
    return "other"


def rates_of(chip: ChipRecord) -> Rates:
    """Attained shares of a chip's peaks; 1 if its rates were measured."""
    rates = _FAMILIES[family_of(chip)]
    if chip.rates:
        shares = _same(1.0, 1.0)
        return rates._replace(matrix=shares[0], memory=shares[1], links={"": 1.0}, network=1.0)
    if share := _MATRIX.get(chip.name):
        rates = rates._replace(matrix=dict.fromkeys(rates.matrix, share))
    if share := _MEMORY.get(chip.name):
        rates = rates._replace(memory=dict.fromkeys(rates.memory, share))
    if chip.name in _REDUCING_SWITCH:
        rates = rates._replace(links={**rates.links, "all-reduce": _REDUCING_SHARE})
    return rates
