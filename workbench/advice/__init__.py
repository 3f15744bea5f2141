"""Advice about a program: ranked findings with evidence and, if possible, a verified gain."""

from workbench.advice._advise import (
    advise_call as advise_call,
    advise_record as advise_record,
    rule_sentences as rule_sentences,
)
from workbench.advice._search._question import search_call as search_call
from workbench.advice._verify import Variants as Variants

__all__ = ["Variants", "advise_call", "advise_record", "rule_sentences", "search_call"]
