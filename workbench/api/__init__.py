"""What users call first: one trace of a program, and everything that can be asked of it."""

from workbench.api._export import ExportedProgram as ExportedProgram, LoadedProgram as LoadedProgram, load as load
from workbench.api._lab import device_panel as device_panel, explore_cell as explore_cell
from workbench.api._runs_page import write_runs_page as write_runs_page
from workbench.api._show import in_notebook as in_notebook, playground as playground
from workbench.api._things import compare as compare
from workbench.api._traced import (
    Traced as Traced,
    advise as advise,
    explore as explore,
    export as export,
    fit as fit,
    inspect as inspect,
    measure as measure,
    play as play,
    show as show,
    suggest_mesh as suggest_mesh,
    suggest_shardings as suggest_shardings,
    tap as tap,
    trace as trace,
    try_specs as try_specs,
    why as why,
)
