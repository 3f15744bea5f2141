"""Hardware that is not here: the same program compiled for TPUs and GPUs that nobody needs to have."""

from workbench.targets._availability import targets as targets, targets_for as targets_for
from workbench.targets._cache import CompilationCache as CompilationCache
from workbench.targets._compile import compile_for_target as compile_for_target
from workbench.targets._cpu import compile_for_cpu as compile_for_cpu
from workbench.targets._lower import (
    TargetMesh as TargetMesh,
    fit_axes as fit_axes,
    lower_for_target as lower_for_target,
    target_mesh as target_mesh,
)
from workbench.targets._parse import parse_target as parse_target
from workbench.targets._process import Worker as Worker, stop_workers as stop_workers
