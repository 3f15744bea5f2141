"""Predicts the cost of programs on chips from their records, without measuring."""

from workbench.aot import CHIPS as CHIPS, chip_of_gpu as chip_of_gpu, known_chip as known_chip
from workbench.cost._accuracy import accuracy_text as accuracy_text, error_bar as error_bar
from workbench.cost._collectives import (
    collective_seconds as collective_seconds,
    seconds_of_collective as seconds_of_collective,
)
from workbench.cost._estimate import estimate_cost as estimate_cost, largest_dtype as largest_dtype
from workbench.cost._operations import (
    classify_operation as classify_operation,
    predict_operation as predict_operation,
    product_peak as product_peak,
    seconds_at_peak as seconds_at_peak,
)
from workbench.cost._rates import family_of as family_of
from workbench.cost._scaling import estimate_scaled as estimate_scaled, scaled_placement as scaled_placement
from workbench.cost._timeline import InstructionTime as InstructionTime, time_module as time_module
