"""The field's words: each is explained, and those that the course teaches lead to a notebook that uses them."""

import json
import re
from pathlib import Path

import pytest

from workbench.render import GLOSSARY, LESSONS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.mark.parametrize("word", LESSONS)
def test_a_word_leads_to_a_notebook_that_uses_it(word):
    cells = json.loads((NOTEBOOKS / f"{LESSONS[word]}.ipynb").read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert word in GLOSSARY
    assert re.search(rf"(?<!\w){re.escape(word)}", text, flags=re.IGNORECASE)


def test_explanations_are_sentences():
    assert [word for word, meaning in GLOSSARY.items() if not meaning.endswith(".") or not meaning[0].isupper()] == []
