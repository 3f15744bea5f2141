"""Docstrings begin with a verb or a noun of the field, and sentences of pages and notebooks are short."""

import ast
import json
import re

from repository_files import ROOT, offenders, python_files, tracked_files

CLAUSE = re.compile(
    r"(?:What|Who|Whose|Whoever|Whatever|Whether|Which|How|Where|When|Why|From which|Of which|Of what)\b"
)
PARTICIPLES_AND_PRONOUNS = frozenset(
    "asked brought done each everyone found given gone got held kept known left_out made meant mine nobody ours own "
    "said same sent taken theirs these those told wanted what which who whole whose".split()
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


def bound_names(tree: ast.AST, *, public: bool = True, local: bool = False) -> list[tuple[int, str]]:
    """Local variables, and parameters of private functions; fields of classes and public parameters are no part."""
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and local:
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.arg) and not public:
            names.append((node.lineno, node.arg))
        elif isinstance(node, ast.ClassDef):
            names += bound_names(node, public=public and not node.name.startswith("_"))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_public = public and not local and not re.match(r"_(?!_)", node.name)
            names += bound_names(node, public=is_public, local=True)
        elif isinstance(node, ast.Lambda):
            names += bound_names(node, public=False, local=True)
        else:
            names += bound_names(node, public=public, local=local)
    return names


def test_local_names_are_nouns():
    def wrong(name: str) -> list[str]:
        bound = bound_names(ast.parse((ROOT / name).read_text()))
        return [f"line {line}: {word}" for line, word in bound if word in PARTICIPLES_AND_PRONOUNS]

    assert offenders(python_files("workbench", "widgets"), wrong) == []


def test_sentences_of_pages_and_notebooks_are_short():
    pages = [name for name in tracked_files() if name.endswith((".md", ".ipynb")) and not name.startswith("tests/")]
    for ending in (".md", ".ipynb"):
        counts = sorted(count for name in pages if name.endswith(ending) for count in word_counts(name))
        assert sum(counts) / len(counts) <= MEAN_WORDS, ending
        assert counts[int(0.95 * len(counts))] <= MOST_WORDS, ending
