"""Generated data are the same for a seed, have natural clients, and refuse what cannot be."""

import numpy as np
import pytest

from workbench import data
from workbench.errors import DataError


def test_glyphs_of_a_seed_are_the_same_and_of_another_are_not():
    first, again, other = (data.rendered_glyphs(writers=2, copies=2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0]["x"], again[0]["x"])
    assert np.abs(first[0]["x"] - other[0]["x"]).max() > 0.1


def test_every_writer_draws_every_character_with_ink():
    glyphs = data.rendered_glyphs(writers=25, characters="07AZ", copies=2)
    assert len(set(glyphs.clients)) == 25
    for client in glyphs:
        assert np.bincount(glyphs[client]["y"]).tolist() == [2, 2, 2, 2]
        assert glyphs[client]["x"].min() >= 0
        assert glyphs[client]["x"].max(axis=1).min() > 0.3


def test_writers_differ_more_than_the_copies_of_one():
    glyphs = data.rendered_glyphs(writers=12, characters="4", copies=8)
    means = np.stack([glyphs[client]["x"].mean(0) for client in glyphs])
    between = np.linalg.norm(means[:, None] - means, axis=-1)[np.triu_indices(12, 1)].mean()
    within = np.mean([np.linalg.norm(glyphs[c]["x"] - glyphs[c]["x"].mean(0), axis=1).mean() for c in glyphs])
    assert between > 0.8 * within


@pytest.mark.parametrize("bad", [{"writers": 0}, {"copies": 0}, {"characters": ""}])
def test_no_glyphs_are_refused(bad):
    with pytest.raises(DataError, match="draws at least one character at least once"):
        data.rendered_glyphs(**bad)
