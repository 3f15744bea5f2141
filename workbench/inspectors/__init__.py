"""Reads programs, compiled modules, arrays and meshes without running anything; returns records."""

from workbench.inspectors._compare import compare as compare
from workbench.inspectors._memory import with_padding as with_padding
from workbench.inspectors._mesh import inspect_mesh as inspect_mesh, place_clients as place_clients
from workbench.inspectors._module import inspect_module as inspect_module
from workbench.inspectors._propagation import (
    explain_axis as explain_axis,
    propagate_shardings as propagate_shardings,
    trace_axes as trace_axes,
)
from workbench.inspectors._sharding import inspect_sharding as inspect_sharding
