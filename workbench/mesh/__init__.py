"""Placements (named groups of clients), their meshes, and simulated devices."""

from workbench.mesh._chunks import chunk_shard as chunk_shard
from workbench.mesh._hosts import is_here as is_here, read_here as read_here
from workbench.mesh._layout import (
    Layout as Layout,
    align as align,
    find_layout as find_layout,
    gather as gather,
    planned as planned,
    reveal as reveal,
    spread as spread,
)
from workbench.mesh._placement import (
    Placement as Placement,
    ProgramScope as ProgramScope,
    active as active,
    check_axis_names as check_axis_names,
    current_scope as current_scope,
    make_placements as make_placements,
    resolve as resolve,
)
from workbench.mesh._rebase import (
    MeshRewriting as MeshRewriting,
    bind_here as bind_here,
    rebase as rebase,
    sharding_here as sharding_here,
)
from workbench.mesh._rewriting import Rewriting as Rewriting
from workbench.mesh._simulate import make_mesh as make_mesh, simulate_devices as simulate_devices
