"""The primitives grouped by role, for code that reads programs."""

from workbench.primitives._by_key import by_key_p
from workbench.primitives._cohort import place_p, select_p
from workbench.primitives._extreme import max_p, min_p
from workbench.primitives._linear import broadcast_p, mean_p, sum_p
from workbench.primitives._map import map_p

REDUCTIONS = frozenset({sum_p, mean_p, max_p, min_p, by_key_p})
COHORTS = frozenset({select_p, place_p})
MAPREDUCE_PRIMITIVES = frozenset({broadcast_p, map_p}) | REDUCTIONS | COHORTS
