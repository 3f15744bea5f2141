"""Names for what has no type that could be said; nothing here imports JAX, which some layers do without."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

Foreign: TypeAlias = Any
"""An object whose class type checkers cannot read: of an extra that is not installed where types are checked (Spark,
Dask, Ray, h5py, …), or of a compiled module without stubs (jaxlib's executables, MLIR, profiles)."""

Option: TypeAlias = Any
"""A keyword argument that is passed on to another function, whose signature has its type."""


Progress: TypeAlias = Callable[[str, float], None]
"""Called with the phase of long work and the seconds so far."""


Examples: TypeAlias = Sequence[int] | tuple[Sequence[int], int]
"""True numbers of examples of the clients, alone or with the number that the arrays hold for each: `(counts, held)`."""


class AsGiven(Enum):
    """The default of an option of which None is a value of its own: what the traced program already has."""

    AS_GIVEN = "as given"

    def __repr__(self) -> str:
        return "as given"


AS_GIVEN: Final = AsGiven.AS_GIVEN
