"""Searches shardings, meshes and machines: Shardy plans the candidates, and compilers decide between them."""

from workbench.advice.search._groups import (
    ArgumentLeaf as ArgumentLeaf,
    group_leaves as group_leaves,
    pattern_argument as pattern_argument,
)
from workbench.advice.search._program import Priced as Priced, SearchProgram as SearchProgram
from workbench.advice.search._question import search_call as search_call
from workbench.advice.search._run import (
    Runnable as Runnable,
    median_interval as median_interval,
    run_interleaved as run_interleaved,
    with_specs as with_specs,
)
from workbench.advice.search._stand_in import as_accelerator as as_accelerator, promoted_sums as promoted_sums

__all__ = [
    "ArgumentLeaf",
    "Priced",
    "Runnable",
    "SearchProgram",
    "as_accelerator",
    "group_leaves",
    "median_interval",
    "pattern_argument",
    "promoted_sums",
    "run_interleaved",
    "search_call",
    "with_specs",
]
