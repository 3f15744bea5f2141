"""Records of the data that clients hold."""

from dataclasses import dataclass

from workbench.records._base import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRecord(Record):
    """A field of client data: the shape is of one example."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    bytes: int = 0  # at all clients together


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDataRecord(Record):
    """Counts of each client's data; per-client tuples follow the order of `clients`."""

    name: str = ""
    clients: tuple[str, ...] = ()
    examples: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    fields: tuple[FieldRecord, ...] = ()
    label: str | None = None
    classes: tuple[str, ...] = ()
    label_counts: tuple[tuple[int, ...], ...] = ()  # [clients][classes]; empty without a label
    total_variation: tuple[float, ...] = ()  # of each client's label shares to the global ones, 0 to 1
    mean_total_variation: float | None = None  # every client alike; clients without examples left out
    weighted_total_variation: float | None = None  # each client counted by its examples
    size_variation: float = 0.0  # standard deviation of the numbers of examples over their mean

    @property
    def total_examples(self) -> int:
        """Examples of all clients together."""
        return sum(self.examples)
