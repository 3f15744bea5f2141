"""The committed corpus, and drawn changes of it: every parser answers or refuses, with an error of the library."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fuzz.driver import mutate
from fuzz.targets import TARGETS
from workbench.errors import MissingDependencyError


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_is_answered_or_refused(name: str):
    target = TARGETS[name]
    try:
        for data in target.seeds():
            target.attempt(data)
    except MissingDependencyError as missing:
        pytest.skip(f"the extra `{missing.extra}` is not installed")


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_changed_inputs_are_answered_or_refused(name: str, seed: int):
    target, generator = TARGETS[name], np.random.default_rng(seed)
    pool = target.seeds()
    try:
        target.attempt(mutate(pool[generator.integers(len(pool))], pool, generator))
    except MissingDependencyError as missing:
        pytest.skip(f"the extra `{missing.extra}` is not installed")
