"""Experiments in federated learning: sweeps, run comparisons, and a playground."""

from workbench.federated.experiments._code import write_code as write_code
from workbench.federated.experiments._experiment import Experiment as Experiment
from workbench.federated.experiments._hypergradient_search import HypergradientSearch as HypergradientSearch
from workbench.federated.experiments._playground import playground as playground
from workbench.federated.experiments._settings import Settings as Settings
from workbench.federated.experiments._space import (
    Grid as Grid,
    RandomSearch as RandomSearch,
    SuccessiveHalving as SuccessiveHalving,
)
from workbench.federated.experiments._sweep import sweep as sweep
