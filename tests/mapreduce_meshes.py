"""The meshes that programs are tested under, as context managers."""

import contextlib
from typing import Any

import jax
from jax.sharding import AxisType

import workbench as wb

MESHES = ("no mesh", "Auto", "Explicit", "mixed")


def under(mesh: str) -> Any:
    """Eight devices along the clients; "mixed" has four along the clients (Auto) and two along an Explicit axis."""
    if mesh == "no mesh":
        return contextlib.nullcontext()
    if mesh == "mixed":
        return jax.set_mesh(wb.make_mesh(clients=4, model=2, axis_types=(AxisType.Auto, AxisType.Explicit)))
    return jax.set_mesh(wb.make_mesh(clients=8, axis_types=getattr(AxisType, mesh)))
