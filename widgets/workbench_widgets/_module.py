"""One self-contained ES module per widget: a front end cannot import its siblings, so they are put inside.

Every sibling becomes a function scope of its own, so that two files may use the same private name.
"""

import functools
import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


@functools.cache
def module(name: str) -> str:
    """The text of `static/<name>` with everything that it imports inside.

    Always text, never a path: anywidget keeps every widget alive whose module is a path, because it watches the file.
    """
    order: list[str] = []
    _collect(name, order, ())
    parts = [_scope(each) for each in order[:-1]]
    return "\n".join([*parts, _without_imports(name)])


def _collect(name: str, order: list[str], chain: tuple[str, ...]) -> None:
    if name in chain:
        message = (
            f"the modules {' -> '.join([*chain, name])} import each other in a circle; move what they share to a third"
        )
        raise ImportError(message)
    for _, sibling in _IMPORT.findall(_read(name)):
        _collect(sibling, order, (*chain, name))
    if name not in order:
        order.append(name)


def _scope(name: str) -> str:
    exported = ", ".join(_EXPORT.findall(_read(name)))
    body = re.sub(r"^export (?!default)", "", _without_imports(name), flags=re.MULTILINE)
    body = re.sub(r"^export default .*\n", "", body, flags=re.MULTILINE)
    return f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def _without_imports(name: str) -> str:
    def bind(match: re.Match[str]) -> str:
        return f"const {{{match[1].replace(' as ', ': ')}}} = {_variable(match[2])};\n"

    return _IMPORT.sub(bind, _read(name))


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


@functools.cache
def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
