"""Reads programs, compiled modules, arrays and meshes without running anything; returns records."""

from workbench.inspection._call import (
    Inspected as Inspected,
    LoweredCall as LoweredCall,
    TracedCall as TracedCall,
    current_mesh as current_mesh,
    function_name as function_name,
    mesh_of_values as mesh_of_values,
    on_mesh as on_mesh,
    trace_call as trace_call,
)
from workbench.inspection._call_tree._seconds import measured_tree as measured_tree
from workbench.inspection._compare import compare as compare
from workbench.inspection._compare_lines import codes_of as codes_of
from workbench.inspection._compare_measured import compare_measured as compare_measured
from workbench.inspection._compile_once import compile_now as compile_now
from workbench.inspection._files import inspect_given as inspect_given
from workbench.inspection._machine import (
    On as On,
    machine_of as machine_of,
    parts_of as parts_of,
)
from workbench.inspection._program import Inspection as Inspection, inspect_call as inspect_call, plan_call as plan_call
from workbench.inspection._why import explain_program as explain_program
from workbench.inspection._why_causes import constraint_advice as constraint_advice
from workbench.inspection.hlo import inspect_module as inspect_module
from workbench.inspection.sharding import (
    inspect_mesh as inspect_mesh,
    inspect_sharding as inspect_sharding,
    link_distances as link_distances,
    order_of_jax as order_of_jax,
)
