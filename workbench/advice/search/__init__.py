"""Searches shardings of a program's arguments, meshes and machines: planned by Shardy, decided by compilers."""

from workbench.advice.search._groups import (
    ArgumentLeaf as ArgumentLeaf,
    group_leaves as group_leaves,
    pattern_of as pattern_of,
)
from workbench.advice.search._mesh import fit as fit, suggest_mesh as suggest_mesh
from workbench.advice.search._program import Priced as Priced, SearchProgram as SearchProgram
from workbench.advice.search._search import Search as Search
from workbench.advice.search._stand_in import as_accelerator as as_accelerator, promoted_sums as promoted_sums
from workbench.advice.search._suggest import suggest_shardings as suggest_shardings

__all__ = [
    "ArgumentLeaf",
    "Priced",
    "Search",
    "SearchProgram",
    "as_accelerator",
    "fit",
    "group_leaves",
    "pattern_of",
    "promoted_sums",
    "suggest_mesh",
    "suggest_shardings",
]
