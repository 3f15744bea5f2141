"""Shardings of arrays and meshes, and the shardings that Shardy propagates through programs."""

from workbench.inspection.sharding._arrays import inspect_sharding as inspect_sharding
from workbench.inspection.sharding._mesh import (
    inspect_mesh as inspect_mesh,
    link_distances as link_distances,
    order_of_jax as order_of_jax,
    place_clients as place_clients,
)
from workbench.inspection.sharding._propagation import propagate_shardings as propagate_shardings
