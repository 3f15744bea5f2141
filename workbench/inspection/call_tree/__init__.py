"""The call tree: costs of a program by the user's functions, modules and lines."""

from workbench.inspection.call_tree._build import build_tree as build_tree
from workbench.inspection.call_tree._frames import (
    Frame as Frame,
    below_outer as below_outer,
    home_of as home_of,
    is_named as is_named,
    outer_frames as outer_frames,
    package_of as package_of,
    shown_file as shown_file,
    split_stack as split_stack,
    trim as trim,
)
from workbench.inspection.call_tree._items import Amounts as Amounts, Item as Item, Scope as Scope
from workbench.inspection.call_tree._jaxpr import read_jaxpr_tree as read_jaxpr_tree
from workbench.inspection.call_tree._op_names import called_functions as called_functions, read_op_name as read_op_name
from workbench.inspection.call_tree._seconds import measured_tree as measured_tree, predict_seconds as predict_seconds
