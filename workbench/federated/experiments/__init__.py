"""Experiments in federated learning from a handful of settings, and the notebook cell that does the same."""

from workbench.federated.experiments._code import write_code as write_code
from workbench.federated.experiments._experiment import (
    Experiment as Experiment,
    count_labels as count_labels,
)
from workbench.federated.experiments._settings import (
    ALGORITHMS as ALGORITHMS,
    COMPRESSIONS as COMPRESSIONS,
    Settings as Settings,
)
