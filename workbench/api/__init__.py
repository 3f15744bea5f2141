"""The user's entry points: a program is traced once, and all questions are methods of the trace."""

from workbench.api._compare import compare as compare
from workbench.api._export import load as load
from workbench.api._lab import device_panel as device_panel, explore_cell as explore_cell
from workbench.api._questions import (
    advise as advise,
    explore as explore,
    inspect as inspect,
    measure as measure,
    search as search,
    show as show,
    why as why,
)
from workbench.api._runs_page import write_runs_page as write_runs_page
from workbench.api._traced import Traced as Traced, trace as trace
from workbench.api._watch import watch as watch
