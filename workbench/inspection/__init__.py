"""Reads programs, compiled modules, arrays and meshes without running anything; returns records."""

from workbench.inspection._compare import compare as compare
from workbench.inspection._program import (
    Inspection as Inspection,
    are_arrays as are_arrays,
    current_mesh as current_mesh,
    inspect_program as inspect_program,
    inspect_thing as inspect_thing,
    on_mesh as on_mesh,
    plan_program as plan_program,
    trace_call_tree as trace_call_tree,
    unwrap_jitted as unwrap_jitted,
)
from workbench.inspection.hlo import inspect_module as inspect_module
from workbench.inspection.sharding import (
    explain_axis as explain_axis,
    inspect_mesh as inspect_mesh,
    inspect_sharding as inspect_sharding,
    place_clients as place_clients,
    propagate_shardings as propagate_shardings,
    trace_axes as trace_axes,
)
