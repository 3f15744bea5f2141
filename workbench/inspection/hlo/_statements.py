"""HLO text as statements: continued lines are joined, and comments and indentation are removed."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_DEFINITION = re.compile(r"(?:ROOT\s+)?%?[\w.\-]+\s*=\s")
_HEADER = re.compile(r"(?:ENTRY\s+)?%?[^\s(){}=@]+\s*(?:\(|\{|$)")
_MARKS = re.compile(r'\\.|["{}()]|/\*|\*/|//')
_ROW = re.compile(r"\d+ ")
_PIECE = 65_536  # characters

Kind = Literal["module", "table", "row", "computation", "instruction", "end", "unknown"]


class Statement(NamedTuple):
    """One stripped statement; `number` is the number of its first line."""

    kind: Kind
    number: int
    text: str


class _Joiner:
    """Joins physical lines until brackets and quotes balance, and drops comments, in linear time."""

    def __init__(self) -> None:
        self.number = 0
        self.braces = self.parentheses = 0
        self._pieces: list[str] = []
        self._quoted = self._comment = False

    @property
    def first(self) -> str:
        """The first line of the current statement; "" if it has no lines yet."""
        return self._pieces[0] if self._pieces else ""

    @property
    def last(self) -> str:
        """The last line of the current statement."""
        return self._pieces[-1] if self._pieces else ""

    @property
    def is_open(self) -> bool:
        """True while the statement is incomplete."""
        return self._quoted or self._comment or self.braces > 0 or self.parentheses > 0

    @property
    def is_within_text(self) -> bool:
        """True if the next line begins inside a quotation or comment."""
        return self._quoted or self._comment

    def add(self, number: int, line: str) -> None:
        """Appends one physical line."""
        if not self.is_open and _is_plain(line):  # applies to nearly every line printed by a compiler
            text = line
        else:
            text = self._scan(line)
        if text.strip() and not self._pieces:
            self.number = number
        if text.strip():
            self._pieces.append(text.strip())

    def take(self) -> str:
        """Returns the statement and starts a new one."""
        text = self._pieces[0] if len(self._pieces) == 1 else " ".join(self._pieces)
        self._pieces.clear()
        self.braces = self.parentheses = 0
        self._quoted = self._comment = False
        return text

    def _scan(self, line: str) -> str:
        pieces, start = [], 0
        for match in _MARKS.finditer(line):
            mark = match[0]
            if self._comment:
                if mark == "*/":
                    self._comment, start = False, match.end()
            elif mark == '"':
                self._quoted = not self._quoted
            elif self._quoted or mark == "*/" or mark[0] == "\\":
                continue
            elif mark == "/*":
                pieces.append(line[start : match.start()])
                self._comment = True
            elif mark == "//":
                pieces.append(line[start : match.start()])
                start = len(line)
                break
            elif mark in "{}":
                self.braces += 1 if mark == "{" else -1
            else:
                self.parentheses += 1 if mark == "(" else -1
        if not self._comment:
            pieces.append(line[start:])
        return "".join(pieces)


def statements(text: str) -> Iterator[Statement]:
    """The statements of an HLO module, in text order."""
    joiner = _Joiner()
    inside = in_table = False
    for number, physical in enumerate(_lines(text), start=1):
        if not joiner.is_within_text:
            line = physical.strip()
            if not line:
                continue
            if inside and not joiner.is_open and (line[0] == "}" or _DEFINITION.match(line)) and joiner.first:
                yield Statement("instruction", joiner.number, joiner.take())
            if inside and not joiner.first and line[0] == "}":
                inside = False
                yield Statement("end", number, line)
                continue
            if not inside and not joiner.first:
                if line in _TABLES:
                    in_table = True
                    yield Statement("table", number, line)
                    continue
                if in_table and _ROW.match(line):
                    yield Statement("row", number, line)
                    continue
        else:
            line = physical
        joiner.add(number, line)
        if joiner.braces < 0 or joiner.parentheses < 0:  # a brace closes the computation, so the statement is truncated
            yield Statement("unknown", joiner.number or number, joiner.take() or line.strip())
            return
        if inside or not joiner.first:
            continue
        ended = _outside(joiner, line)
        if ended is None:
            continue
        yield ended
        if ended.kind == "unknown":
            return
        inside, in_table = ended.kind == "computation", False
    if joiner.first:
        kind: Kind = "instruction" if inside and not joiner.is_open else "unknown"
        yield Statement(kind, joiner.number, joiner.take())


def _lines(text: str) -> Iterator[str]:
    """Yields the lines of a string one by one, because a list of all lines would be as large as the string."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE)
        end = len(text) if end < 0 else end + 1
        yield from text[start:end].splitlines()
        start = end


def _outside(joiner: _Joiner, line: str) -> Statement | None:
    """The header of the module or of a computation, once the header is complete."""
    if joiner.first.startswith("HloModule"):
        if joiner.is_open or line.endswith(","):
            return None
        return Statement("module", joiner.number, joiner.take())
    if not _HEADER.match(joiner.first):
        return Statement("unknown", joiner.number, joiner.take())
    if joiner.last.endswith("{") and joiner.braces == 1 and joiner.parentheses == 0:
        return Statement("computation", joiner.number, joiner.take())
    if joiner.braces == 0 and joiner.parentheses == 0 and _DEFINITION.match(line):
        return Statement("unknown", joiner.number, joiner.take())
    return None


def _is_plain(line: str) -> bool:
    """Returns whether a line is complete in itself, without scanning every character in Python."""
    return (
        line.count("{") == line.count("}")
        and line.count("(") == line.count(")")
        and line.count('"') % 2 == 0
        and "//" not in line
        and ("/*" not in line or ("%" in line and line.count("/*") == line.count("/*index=")))
    )
