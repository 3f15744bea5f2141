"""Capabilities of simulated clients: a table with a row per client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from numpy.typing import ArrayLike

from workbench.errors import MeasureError, needs_library
from workbench.records.live import ClientProfileRecord

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("flops_per_second", "down_bytes_per_second", "up_bytes_per_second", "dropout_probability")
_SHOWN = 5  # offenders named in an error


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientProfiles:
    """Speed, links and reliability of each client, as arrays `[clients]`; scalars apply to all clients.

    Attributes:
        flops_per_second: Sustained speed of local training.
        down_bytes_per_second: Bandwidth from the server to the client.
        up_bytes_per_second: Bandwidth from the client to the server.
        dropout_probability: Probability of dropping out during one round, from 0 to 1.

    Raises:
        MeasureError: if the columns have different lengths, or a value is invalid.

    Example:
        >>> profiles = ClientProfiles(
        ...     flops_per_second=[1e9, 2e9], down_bytes_per_second=1e6, up_bytes_per_second=1e5
        ... )
        >>> len(profiles), profiles.up_bytes_per_second.tolist()
        (2, [100000.0, 100000.0])
    """

    flops_per_second: Float[ndarray, " clients"] | ArrayLike
    down_bytes_per_second: Float[ndarray, " clients"] | ArrayLike
    up_bytes_per_second: Float[ndarray, " clients"] | ArrayLike
    dropout_probability: Float[ndarray, " clients"] | ArrayLike = 0.0

    def __post_init__(self) -> None:
        columns = {name: np.atleast_1d(np.asarray(getattr(self, name), np.float64)) for name in _COLUMNS}
        lengths = {name: column.shape for name, column in columns.items()}
        clients = max((column.shape[0] for column in columns.values()), default=0)
        if any(shape not in ((1,), (clients,)) for shape in lengths.values()):
            msg = (
                f"`ClientProfiles` was given columns of the shapes {lengths}, which are not one value per client. "
                "All columns describe the same clients: pass arrays of equal length, or one number for all clients."
            )
            raise MeasureError(msg)
        impossible = [
            text for name, column in columns.items() if (text := _impossible(name, column, name == _COLUMNS[-1]))
        ]
        if impossible:
            msg = (
                f"`ClientProfiles` was given {'; '.join(impossible)}. Speeds must be positive and finite, and "
                "probabilities between 0 and 1: correct or remove these clients."
            )
            raise MeasureError(msg)
        for name, column in columns.items():
            full = np.array(np.broadcast_to(column, (clients,)))
            full.flags.writeable = False
            object.__setattr__(self, name, full)

    def __len__(self) -> int:
        return len(np.asarray(self.flops_per_second))

    @classmethod
    def from_pandas(cls, table: "pd.DataFrame") -> Self:
        """Reads clients from a table like the one that `to_pandas` returns; `dropout_probability` is optional.

        Raises:
            MeasureError: if a column is missing.
        """
        missing = [name for name in _COLUMNS[:-1] if name not in table.columns]
        if missing:
            msg = (
                f"`ClientProfiles.from_pandas` was given a table with the columns {list(table.columns)}, without "
                f"{missing}. A profile needs a speed and two bandwidths: rename or add these columns."
            )
            raise MeasureError(msg)
        return cls(**{name: table[name].to_numpy() for name in _COLUMNS if name in table.columns})

    def to_pandas(self) -> "pd.DataFrame":
        """Returns one row per client."""
        with needs_library("pandas", needed_for="`to_pandas`"):
            import pandas as pd

        table = pd.DataFrame({name: getattr(self, name) for name in _COLUMNS})
        return table.rename_axis("client")

    def records(self) -> tuple[ClientProfileRecord, ...]:
        """One record per client."""
        rows: Sequence[Sequence[float]] = np.stack([getattr(self, name) for name in _COLUMNS], axis=1).tolist()
        return tuple(
            ClientProfileRecord(client=client, **dict(zip(_COLUMNS, row, strict=True)))
            for client, row in enumerate(rows)
        )


def _impossible(name: str, column: np.ndarray, probability: bool) -> str:
    good = (column >= 0) & (column <= 1) if probability else (column > 0) & np.isfinite(column)
    bad = np.flatnonzero(~good)
    if not len(bad):
        return ""
    shown = ", ".join(f"{column[client]:g} for client {client}" for client in bad[:_SHOWN])
    return f"{name} {shown}" + (f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
