"""The primitives by what they do, for everything that reads programs."""

from workbench.primitives._broadcast import broadcast_p
from workbench.primitives._by_key import by_key_p
from workbench.primitives._cohort import place_p, select_p
from workbench.primitives._map import map_p
from workbench.primitives._reduce import max_p, mean_p, min_p, sum_p

REDUCTIONS = frozenset({sum_p, mean_p, max_p, min_p, by_key_p})
COHORTS = frozenset({select_p, place_p})
MAPREDUCE_PRIMITIVES = frozenset({broadcast_p, map_p}) | REDUCTIONS | COHORTS
