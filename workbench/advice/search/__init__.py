"""Searches shardings of a program's arguments, meshes and machines: planned by Shardy, decided by compilers."""

from workbench.advice.search._program import SearchProgram as SearchProgram
from workbench.advice.search._suggest import suggest_shardings as suggest_shardings

__all__ = ["SearchProgram", "suggest_shardings"]
