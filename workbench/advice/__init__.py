"""Advice: ranked findings about a program, with evidence and, where it can be compiled, the verified gain."""

from workbench.advice._advise import RULES as RULES, advise_record as advise_record
from workbench.advice._narrow import narrowed as narrowed
from workbench.advice._rewrite import with_written_gathers as with_written_gathers
from workbench.advice._verify import (
    chunk_of as chunk_of,
    planner_of as planner_of,
    recompiler as recompiler,
)
from workbench.advice.search import (
    fit as fit,
    suggest_mesh as suggest_mesh,
    suggest_shardings as suggest_shardings,
)

__all__ = [
    "RULES",
    "advise_record",
    "chunk_of",
    "fit",
    "narrowed",
    "planner_of",
    "recompiler",
    "suggest_mesh",
    "suggest_shardings",
    "with_written_gathers",
]
