"""Exports views as one page that needs neither a kernel nor a network."""

import base64
import functools
import getpass
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from workbench.records import shorten_paths
from workbench.render import icon_link, mark
from workbench_widgets._bundle import BUILT, CHUNKS, chunk, stylesheet

SHARED = ("data", "arrays", "live", "label", "selection", "settings")
_LICENSES = BUILT.parent / "third-party-licenses.txt"  # licence notices for code in the bundles, required in every copy
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
{icon}
<style>{css}body{{margin:0}}.wb-page{{background:var(--wb-bg);min-height:100vh;padding:16px;box-sizing:border-box}}</style>
</head><body class="wb-exported"><main class="wb wb-page"><header class="wb-pagehead"><h1>{mark} {title}</h1>
<p class="wb-note">{by}{date}. This page needs neither a kernel nor a network.</p>{code}</header></main>
<script type="text/plain" id="wb-licenses">{licenses}</script>
<script type="text/plain" id="wb-chunks">{chunks}</script>
<script type="text/plain" id="wb-state">{state}</script>
<script type="module">{script}</script></body></html>
"""


class SavedView(NamedTuple):
    """A view's code and state, from which a page draws the view without a kernel."""

    script: object  # the code that draws the view
    name: str  # one of the views in the bundle
    model_id: str
    title: str
    code: Mapping[str, str]  # the user's code, keyed by cell or file
    state: dict[str, Any]  # JSON with bytes in base64 and file names without this machine's folders


def page(views: Sequence[SavedView], *, title: str, author: str | None) -> str:
    """Returns one self-contained page with the views one below the other."""
    by = _user() if author is None else author
    state = [{"esm": view.script, "state": view.state} for view in views]
    return _PAGE.format(
        title=html.escape(title),
        icon=icon_link(),
        mark=mark(20),
        by=f"{html.escape(by)}, " if by else "",
        code=_code_of(views),
        date=f"{datetime.now().astimezone():%d %B %Y, %H:%M}",
        css=stylesheet(),
        licenses=_LICENSES.read_text(encoding="utf-8"),
        chunks=_packed_chunks(),
        state=pack(state),
        script=(BUILT / "offline.js").read_text(encoding="utf-8"),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user who has no name, as in some containers
        return ""


def _code_of(views: Sequence[SavedView]) -> str:
    """The user's code, collapsed; each cell and file once."""
    code: dict[str, str] = {}
    for view in views:
        code.update({shorten_paths(title): text for title, text in view.code.items()})
    if not code:
        return ""
    blocks = [f"<h2>{html.escape(title)}</h2><pre>{html.escape(text)}</pre>" for title, text in code.items()]
    return f'<details class="wb-pagecode"><summary>The code</summary>{"".join(blocks)}</details>'


def code_texts(code: Any) -> dict[str, str]:
    """Texts of code, keyed by title, from a mapping or from tuples; a text may also be a list of numbered lines."""
    entries = code.items() if isinstance(code, Mapping) else [entry[-2:] for entry in code or ()]
    return {title: text if isinstance(text, str) else "\n".join(line[1] for line in text) for title, text in entries}


def plain_state(state: Mapping[str, object]) -> dict[str, Any]:
    """A view's state as JSON, for a page: bytes as base64, file names without this machine's folders."""
    return shorten_paths(_plain(state))


def pack(value: object) -> str:
    """JSON as gzip in base64; the result is shorter than the JSON and cannot close a script element early."""
    text = json.dumps(value).encode()
    return base64.b64encode(gzip.compress(text, 6 if len(text) < 2**21 else 2, mtime=0)).decode()


@functools.cache
def _packed_chunks() -> str:
    return pack({name: chunk(name) for name in CHUNKS})


def _plain(value: object) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"wb-base64": base64.b64encode(bytes(value)).decode()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
