"""The trees of arrays in the algorithms' signatures. Their leaves differ in shape; what they share is named."""

from typing import TypeAlias

from jaxtyping import Array, Float, Inexact, Shaped

from workbench._types import PyTree

Params: TypeAlias = PyTree[Inexact[Array, "..."]]
"""Parameters at the server or of one client, and what has their form: gradients, updates, averages."""
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
