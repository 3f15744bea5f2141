"""Records of a program's cost at another size than its own."""

from dataclasses import dataclass

from workbench.records._base import Record
from workbench.records._compiled import CostRecord, MemoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCostRecord(Record):
    """Estimated cost of a program with other numbers of clients, parameters and devices; nothing is compiled.

    `cost.assumptions` says what the estimate rests on.
    """

    cost: CostRecord
    memory: MemoryRecord | None  # totals alone; None where the compiler's are not known
    clients: int
    clients_per_device: int  # of the fullest device
    chunk_size: int
    devices: int
    idle_devices: int  # have no client at all
    model: float  # times the parameters
