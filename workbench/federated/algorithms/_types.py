"""Types of array trees in the algorithms' signatures, named by their common axes."""

from typing import TypeAlias

from jaxtyping import Array, Float, Inexact, Shaped

from workbench._types import PyTree

Params: TypeAlias = PyTree[Inexact[Array, "..."]]
"""Parameters of the server or of one client, or gradients, updates and averages of the same structure."""
ClientParams: TypeAlias = PyTree[Inexact[Array, " clients ..."]]
"""One value of each parameter per client."""
Batch: TypeAlias = PyTree[Shaped[Array, " batch ..."]]
"""One batch of one client."""
Batches: TypeAlias = PyTree[Shaped[Array, " steps ..."]]
"""The batches of one client, one per local step."""
ClientBatches: TypeAlias = PyTree[Shaped[Array, " clients steps ..."]]
"""The batches of all clients."""
Weights: TypeAlias = Float[Array, " clients"]
"""Weight of each client; 0 for an absent client."""
Metrics: TypeAlias = dict[str, Float[Array, "..."]]
"""Metrics of a round."""
