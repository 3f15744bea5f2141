"""Meshes, simulated devices, and rows on the devices of this process."""

from workbench.mesh._chunks import chunk_shard as chunk_shard
from workbench.mesh._hosts import is_here as is_here, read_here as read_here
from workbench.mesh._simulate import (
    check_axis_names as check_axis_names,
    make_mesh as make_mesh,
    simulate_devices as simulate_devices,
)
