from . import (
    advice as advice,
    aot as aot,
    api as api,
    cli as cli,
    cost as cost,
    course as course,
    distributed as distributed,
    engines as engines,
    errors as errors,
    inspection as inspection,
    launch as launch,
    measurement as measurement,
    mesh as mesh,
    plan as plan,
    primitives as primitives,
    records as records,
    render as render,
    replicate as replicate,
    testing as testing,
)
from ._version import __version__ as __version__
from .api import (
    advise as advise,
    compare as compare,
    explore as explore,
    inspect as inspect,
    load as load,
    measure as measure,
    search as search,
    show as show,
    trace as trace,
    watch as watch,
    why as why,
)
from .federated import algorithms as algorithms, data as data, experiments as experiments, population as population
from .federated.experiments import playground as playground
from .measurement import (
    Run as Run,
    calibrate as calibrate,
    open_profile as open_profile,
    run_rounds as run_rounds,
    watch_compilations as watch_compilations,
    watch_devices as watch_devices,
)
from .mesh import make_mesh as make_mesh, simulate_devices as simulate_devices
from .plan import jit as jit, listen as listen
from .primitives import (
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
