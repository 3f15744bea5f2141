"""Types of what calls between nodes carry. Nothing here imports JAX, which many nodes do without."""

from typing import Any, TypeAlias

Value: TypeAlias = Any
"""An argument or a result of a method of the user's own service: whatever can be pickled."""
