"""Child processes, temporary folders, and temporary changes to this process.

`ChildProcess` is for children that answer requests; `SupervisedProcesses` is for process trees of other systems.

No child outlives this process, even if this process is killed. docs/decisions/012-child-processes.md states which parts
of the workbench use these classes, and why `launch` and `distributed` do not.
"""

from workbench._processes._child import ChildProcess as ChildProcess
from workbench._processes._folders import (
    end_users_with_this_process as end_users_with_this_process,
    is_removed as is_removed,
    make_folder as make_folder,
    remove_folder as remove_folder,
    remove_with_this_process as remove_with_this_process,
    temporary_folder as temporary_folder,
)
from workbench._processes._ray import (
    close_folder_of_ray as close_folder_of_ray,
    end_ray_with_this_process as end_ray_with_this_process,
    has_lost_raylet as has_lost_raylet,
    patient_ray_start as patient_ray_start,
)
from workbench._processes._shared_change import (
    UNUSED_DONATIONS_ARE_FINE as UNUSED_DONATIONS_ARE_FINE,
    SharedChange as SharedChange,
)
from workbench._processes._supervised import SupervisedProcesses as SupervisedProcesses
