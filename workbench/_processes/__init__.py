"""Child processes: one class for those that answer requests, one for trees of processes of other systems.

Neither outlives this process, however it ends. Which part of the workbench uses which, and why `launch` and
`distributed` use neither, is in docs/decisions/012-child-processes.md.
"""

from workbench._processes._child import ChildProcess as ChildProcess
from workbench._processes._supervised import SupervisedProcesses as SupervisedProcesses
