"""The primitives by what they do, for everything that reads programs."""

from workbench.primitives._broadcast import broadcast_p
from workbench.primitives._map import map_p
from workbench.primitives._reduce import max_p, mean_p, min_p, sum_p

REDUCTIONS = frozenset({sum_p, mean_p, max_p, min_p})
MAPREDUCE_PRIMITIVES = frozenset({broadcast_p, map_p}) | REDUCTIONS
