"""Converts the HLO text of compiled modules to instructions, stages, collectives, FLOPs and memory."""

from workbench.inspection.hlo._attribution import combined_names as combined_names
from workbench.inspection.hlo._groups import group_axes as group_axes, pair_axes as pair_axes
from workbench.inspection.hlo._memory import with_padding as with_padding
from workbench.inspection.hlo._module import inspect_module as inspect_module
