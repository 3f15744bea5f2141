"""Measurements: memory, utilisation, profiles by stage and client, and multi-round runs."""

from workbench.measurement._calibrate import calibrate as calibrate
from workbench.measurement._checkpoints import load_checkpoint as load_checkpoint
from workbench.measurement._client_profiles import ClientProfiles as ClientProfiles
from workbench.measurement._compare_runs import (
    Results as Results,
    RunComparison as RunComparison,
    compare_runs as compare_runs,
    is_runs as is_runs,
    overlay_runs as overlay_runs,
)
from workbench.measurement._explain import watch_compilations as watch_compilations
from workbench.measurement._history import History as History
from workbench.measurement._measure import (
    ReadingOptions as ReadingOptions,
    caller_of as caller_of,
    measure_compiled as measure_compiled,
)
from workbench.measurement._memory import free_bytes as free_bytes
from workbench.measurement._monitor import DeviceMonitor as DeviceMonitor, watch_devices as watch_devices
from workbench.measurement._open_profile import open_profile as open_profile
from workbench.measurement._rounds import Run as Run, run_rounds as run_rounds
from workbench.measurement._run_log import RunFolder as RunFolder, Tracker as Tracker
from workbench.measurement._run_store import StoredRun as StoredRun, list_runs as list_runs
from workbench.measurement._simulate import simulate_round as simulate_round
from workbench.measurement._trackers import (
    MlflowLog as MlflowLog,
    TensorBoardLog as TensorBoardLog,
    TrackioLog as TrackioLog,
    WandbLog as WandbLog,
)
from workbench.measurement._watch import Watch as Watch
from workbench.measurement._xplane import trim_profile as trim_profile
