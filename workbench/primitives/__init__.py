"""Broadcast, map and reductions as JAX primitives, and the program decorator that declares their clients."""

from workbench.primitives import _checkify as _checkify, _jet as _jet
from workbench.primitives._broadcast import broadcast as broadcast
from workbench.primitives._by_key import by_key_p as by_key_p, reduce_by_key as reduce_by_key, sum_by_key as sum_by_key
from workbench.primitives._callback_errors import (
    CALLBACKS as CALLBACKS,
    CallbackErrors as CallbackErrors,
    calls_back as calls_back,
)
from workbench.primitives._cohort import sample as sample, select as select
from workbench.primitives._emit import emit as emit, emit_p as emit_p, take_dropped_emissions as take_dropped_emissions
from workbench.primitives._extreme import (
    HOLDS as HOLDS,
    absent_value as absent_value,
    across_devices as across_devices,
    max_p as max_p,
    min_p as min_p,
)
from workbench.primitives._families import MAPREDUCE_PRIMITIVES as MAPREDUCE_PRIMITIVES, REDUCTIONS as REDUCTIONS
from workbench.primitives._layout import (
    Layout as Layout,
    check_mesh as check_mesh,
    find_layout as find_layout,
    planned as planned,
)
from workbench.primitives._linear import broadcast_p as broadcast_p, mean_p as mean_p, sum_p as sum_p
from workbench.primitives._map import map_fn as map_fn, map_p as map_p
from workbench.primitives._placement import Placement as Placement
from workbench.primitives._present import only_present as only_present
from workbench.primitives._program import program as program
from workbench.primitives._rebase import (
    MeshRewriting as MeshRewriting,
    bind_here as bind_here,
    rebase as rebase,
    sharding_here as sharding_here,
)
from workbench.primitives._reduce import reduce_max as reduce_max, reduce_min as reduce_min, reduce_sum as reduce_sum
from workbench.primitives._rewriting import Rewriting as Rewriting
from workbench.primitives._static import (
    EngineReader as EngineReader,
    hide_static as hide_static,
    is_array as is_array,
    is_opaque as is_opaque,
    refuse_deleted as refuse_deleted,
    refuse_forked as refuse_forked,
    refuse_readers as refuse_readers,
    show_static as show_static,
)
from workbench.primitives._weighted import reduce_mean as reduce_mean, reduce_weighted_mean as reduce_weighted_mean
