"""Types of values in calls between nodes, without importing JAX."""

from typing import Any, TypeAlias

Value: TypeAlias = Any
"""An argument or a result of a user's service method: any picklable object."""
