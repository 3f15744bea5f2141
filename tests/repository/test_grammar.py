"""Docstrings begin with a verb or a noun of the field, and sentences of pages and notebooks are short."""

import ast
import json
import re

from repository_files import ROOT, offenders, python_files, tracked_files

CLAUSE = re.compile(
    r"(?:What|Who|Whose|Whoever|Whatever|Whether|Which|How|Where|When|Why|From which|Of which|Of what)\b"
)
MEAN_WORDS = 17
MOST_WORDS = 30  # of 95 % of the sentences


def docstrings(name: str) -> list[tuple[int, str]]:
    tree = ast.parse((ROOT / name).read_text())
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    return [(n.body[0].lineno if n.body else 1, text) for n in nodes if (text := ast.get_docstring(n))]


def paragraphs(name: str) -> list[str]:
    """The running text of a page or a notebook: no code, table, heading, formula or HTML."""
    text = (ROOT / name).read_text()
    if name.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    for block in (r"^```.*?^```", r"<!--.*?-->", r"\$\$.*?\$\$"):
        text = re.sub(block, "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[*+-]|\d+\.|\|)\s)|\n(?=#)", text)
    return [flat for part in parts if (flat := " ".join(part.split())) and "|" not in flat and flat[0] not in "#<:"]


def word_counts(name: str) -> list[int]:
    """Numbers of words of a page's sentences; code, formulas and links count as one word."""
    counts = []
    for paragraph in paragraphs(name):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"\$[^$]*\$|`[^`]*`", "X", paragraph))
        counts += [len(sentence.split()) for sentence in re.split(r'(?<=[.!?:;])\s+(?=[A-Z"“X])', plain)]
    return [count for count in counts if count >= 3]


def test_docstrings_begin_with_a_verb_or_a_noun():
    def wrong(name: str) -> list[str]:
        return [f"line {line}: {text[:60]!r}" for line, text in docstrings(name) if CLAUSE.match(text)]

    assert offenders(python_files("workbench", "widgets"), wrong) == []


def test_sentences_of_pages_and_notebooks_are_short():
    pages = [name for name in tracked_files() if name.endswith((".md", ".ipynb")) and not name.startswith("tests/")]
    for ending in (".md", ".ipynb"):
        counts = sorted(count for name in pages if name.endswith(ending) for count in word_counts(name))
        assert sum(counts) / len(counts) <= MEAN_WORDS, ending
        assert counts[int(0.95 * len(counts))] <= MOST_WORDS, ending
