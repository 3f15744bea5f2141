"""Child processes: one class for those that answer requests, one for trees of processes of other systems; and folders.

None of them outlives this process, however it ends. Which part of the workbench uses which, and why `launch` and
`distributed` use neither, is in docs/decisions/012-child-processes.md.
"""

from workbench._processes._child import ChildProcess as ChildProcess
from workbench._processes._folders import (
    is_removed as is_removed,
    remove_with_this_process as remove_with_this_process,
    temporary_folder as temporary_folder,
)
from workbench._processes._supervised import SupervisedProcesses as SupervisedProcesses
