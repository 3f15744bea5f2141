"""A workbench for sharded, differentiable MapReduce in JAX: write a program, then look at what it does.

Importing it prints nothing, starts no device and reaches no network.
"""

from workbench._export import export as export, load as load
from workbench._inspect import inspect as inspect, plan as plan
from workbench._measure import measure as measure
from workbench._show import explore as explore, playground as playground, show as show
from workbench.engines import tap as tap
from workbench.inspectors import compare as compare
from workbench.live import Run as Run, run_rounds as run_rounds, watch_devices as watch_devices
from workbench.placements import make_mesh as make_mesh, simulate_devices as simulate_devices
from workbench.plan import jit as jit, listen as listen
from workbench.primitives import (
    broadcast as broadcast,
    emit as emit,
    map_fn as map_fn,
    program as program,
    reduce_by_key as reduce_by_key,
    reduce_max as reduce_max,
    reduce_mean as reduce_mean,
    reduce_min as reduce_min,
    reduce_sum as reduce_sum,
    reduce_weighted_mean as reduce_weighted_mean,
    sample as sample,
    select as select,
)
from workbench.targets import targets as targets
