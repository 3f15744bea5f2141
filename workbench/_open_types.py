"""Aliases for objects that cannot be typed; independent of JAX, for layers that do not import it."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

Foreign: TypeAlias = Any
"""An object of a class that type checkers cannot read: from an optional extra (Spark, Dask, Ray, h5py, …), or
from a compiled module without stubs (jaxlib's executables, MLIR, profiles)."""

Option: TypeAlias = Any
"""A keyword argument that is passed on to another function, whose signature defines its type."""


Progress: TypeAlias = Callable[[str, float], None]
"""Called with the current phase and the elapsed seconds."""


Examples: TypeAlias = Sequence[int] | tuple[Sequence[int], int]
"""True number of examples of each client, alone or with the padded number per client: `(counts, held)`."""


class AsGiven(Enum):
    """The default of options that also accept None: the traced program's own setting is used."""

    AS_GIVEN = "as given"

    def __repr__(self) -> str:
        return "as given"


AS_GIVEN: Final = AsGiven.AS_GIVEN
