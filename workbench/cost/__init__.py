"""Predicts what programs cost on which chip: records in, records out, nothing measured."""

from workbench.aot import CHIPS as CHIPS, chip_of_gpu as chip_of_gpu, known_chip as known_chip
from workbench.cost._collectives import collective_seconds as collective_seconds, is_closed_ring as is_closed_ring
from workbench.cost._estimate import estimate_cost as estimate_cost, largest_dtype as largest_dtype
from workbench.cost._operations import (
    Prediction as Prediction,
    classify_operation as classify_operation,
    error_bar as error_bar,
    nearest_dtype as nearest_dtype,
    predict_operation as predict_operation,
)
from workbench.cost._scaling import (
    estimate_scaled as estimate_scaled,
    scaled_placement as scaled_placement,
)
