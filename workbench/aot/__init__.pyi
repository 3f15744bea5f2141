from ._availability import list_targets as list_targets, targets_for as targets_for
from ._axes import fit_axes as fit_axes
from ._calibrations import store_calibration as store_calibration
from ._chip_table import CHIPS as CHIPS, chip_of_gpu as chip_of_gpu, known_chip as known_chip
from ._compile import compile_for_target as compile_for_target
from ._cpu import compile_for_cpu as compile_for_cpu
from ._lower import lower_for_target as lower_for_target, target_mesh as target_mesh
from ._parse import is_target as is_target, parse_target as parse_target
from ._process import stop_workers as stop_workers
