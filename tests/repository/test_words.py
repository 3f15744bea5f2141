"""Docstrings, messages, pages and notebooks use the words that a reader would search for."""

import ast
import json
import re

from repository_files import ROOT, offenders, python_files, tracked_files

# Left: what is not written. Right: what is.
WORDS = {
    r"clients_at_once": "chunk size",
    r"what leaves a client|leaves each client": "disclosed to the server",
    r"\bmovements?\b": "update",
    r"\b\w*[Dd]esks?\b": "controller",
    r"hardware that is not here|chips? that (?:is|are) not here|TPUs? that (?:is|are) not here": "ahead-of-time target",
    r"for what it is\b": "the name of the thing",
    r"\banew\b": "again",
    r"\bso many\b": "the number, or: this many",
    r"\bare no positions\b": "do not map to positions",
    r"\bless than no time\b": "must be at least 0",
    r"\btake along\b|\btakes along\b|\btaken along\b": "import, export",
}

# Of prose: sentences of docstrings and messages, pages and notebooks. In code these are also names.
PROSE_WORDS = {
    r"\bliars?\b": "Byzantine clients",
    r"\beverybody\b": "all clients, all others",
    r"\bseats?\b": "slot",
    r"\b(?:turns? of (?:a|the) loop|loop turns?|per turn|every turn)\b": "iteration",
    r"\btold\b|\btells?\b": "report, state, distinguish",
    r"\bdoors?\b": "connection, access",
    r"\bkeepers?\b|\bledgers?\b": "supervisor, run log",
    r"\bheard\b": "emitted, captured",
    r"\bwhat was given\b": "name the thing",
    r"\binside of\b": "inside",
    r"\bbeside\b": "next to, compared with",
    r"\bwalks\b|\bwalked\b": "interprets, moves",
    r"\bhardly talk\b|\bmade the devices talk\b": "communicate",
    r"\bhardware that is not attached here\b": "ahead-of-time target",
    r"\bfor ever\b": "deadlock",
}


def sentences(name: str) -> list[tuple[int, str]]:
    """The prose of a file, by line: strings and docstrings of Python, the text of a page, the cells of a notebook."""
    text = (ROOT / name).read_text()
    if name.endswith(".py"):
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        return [(node.lineno, node.value) for node in found if isinstance(node.value, str)]
    if name.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        return [(i, "".join(cell["source"])) for i, cell in enumerate(cells) if cell["cell_type"] == "markdown"]
    prose = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return list(enumerate(prose.splitlines(), 1))


def is_prose(name: str, text: str) -> bool:
    """Whether a text is sentences: in Python that is a docstring or a message, and not a key or a name."""
    return not name.endswith(".py") or len(text.split()) > 2


FILES = [
    *python_files("workbench", "widgets"),
    *(name for name in tracked_files() if name.endswith((".md", ".ipynb")) and not name.startswith("tests/")),
]


def test_words_are_those_of_the_field():
    def wrong(name: str) -> list[str]:
        return [
            f"line {line}: {match[0]!r}: write {instead}"
            for line, text in sentences(name)
            for pattern, instead in ({**WORDS, **PROSE_WORDS} if is_prose(name, text) else WORDS).items()
            for match in re.finditer(pattern, text)
        ]

    assert offenders(FILES, wrong) == []
