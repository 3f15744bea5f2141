"""Delivers the front end to a page: a few lines of code per widget, and one copy of the bundle.

Every widget's module text is copied into every instance and into saved notebooks, so this text only finds or loads the
bundle. The bundle itself is the state of a `Chunk`, a model that has no view and that all widgets of a kernel refer to.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import anywidget
import traitlets

STATIC = Path(__file__).parent / "static"
BUILT = STATIC / "built"
# Every page loads the first part; the other parts are loaded on first use.
CHUNKS = ("workbench", "editor", "runs", "player", "graph")
LABEXTENSION = STATIC.parent / "labextension"


class Chunk(anywidget.AnyWidget):
    """A part of the front end, stored as a model that pages load once."""

    _esm = "export default { render() {} };"
    code = traitlets.Unicode().tag(sync=True)
    css = traitlets.Unicode().tag(sync=True)


_models: dict[str, Chunk] = {}


def chunk_models() -> dict[str, Chunk]:
    """The models of this kernel; they are recreated if they were closed."""
    for name in CHUNKS:
        if name not in _models or _models[name].comm is None:
            _models[name] = Chunk(**chunk(name))
    return dict(_models)


@functools.cache
def chunk(name: str) -> dict[str, str]:
    """The code of one part; the first part includes the style sheet."""
    if name not in CHUNKS:
        message = f"a page requested {name!r}, but the front end has only the parts {', '.join(CHUNKS)}"
        raise ValueError(message)
    code = (BUILT / f"{name}.js").read_text(encoding="utf-8")
    return {"code": code, "css": stylesheet() if name == CHUNKS[0] else ""}


@functools.cache
def loader(view: str) -> str:
    """The module text for widgets that show `view`, one of the view names in the bundle."""
    hashes = {name: _hash(chunk(name)) for name in CHUNKS}
    text = (STATIC / "loader.js").read_text(encoding="utf-8")
    return text.replace("%VIEW%", view).replace("%HASHES%", json.dumps(hashes))


@functools.cache
def stylesheet() -> str:
    """The style sheet that all widgets share."""
    from workbench.render import css_variables

    return str(css_variables()) + (BUILT / "styles.css").read_text(encoding="utf-8")


def _hash(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def labextension_files() -> list[Path]:
    """The labextension files that JupyterLab serves, and where each one is in this source tree."""
    files = [*(LABEXTENSION / "static").iterdir(), BUILT / "styles.css"]
    return sorted([*files, *(BUILT / f"{name}.js" for name in CHUNKS)])


def write_theme() -> None:
    """Writes the page colours to the labextension file that draws saved views without a kernel."""
    from workbench.render import css_variables

    (LABEXTENSION / "static" / "theme.css").write_text(f"{css_variables()}\n", encoding="utf-8")
