"""Types of values in calls between nodes. Does not import JAX, which many nodes do not need."""

from typing import Any, TypeAlias

Value: TypeAlias = Any
"""An argument or a result of a user's service method: any picklable object."""
