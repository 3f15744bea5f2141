"""The field's words: each is explained, and each is taught somewhere in the course."""

import re

from workbench.render import GLOSSARY, LESSONS


def test_every_explained_word_is_taught_in_a_notebook_of_the_course():
    assert set(LESSONS) == set(GLOSSARY)
    assert all(re.fullmatch(r"\d\d-[a-z-]+", notebook) for notebook in LESSONS.values())


def test_explanations_are_sentences():
    assert [word for word, meaning in GLOSSARY.items() if not meaning.endswith(".") or not meaning[0].isupper()] == []
