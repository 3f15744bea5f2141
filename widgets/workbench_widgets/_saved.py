"""Saved forms of a live view, for readers without a kernel: the view's state, or a page."""

import html
import os
import re
import sys
import uuid
from typing import Any

from workbench_widgets._bundle import BUILT, CHUNKS, chunk
from workbench_widgets._export import SavedView, pack

SAVED = "application/vnd.workbench.view+json"
MOST_BYTES = 3 * 2**20  # bytes of one output in the notebook's file; larger states are omitted
_PYTHON_SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{24}(_|$)")  # session names of jupyter_client
_HOSTS = ("VSCODE_PID", "COLAB_RELEASE_TAG", "JPY_SESSION_NAME")


def saved_view(view: SavedView, *, dock: str | None = None) -> dict[str, Any] | None:
    """The data with which the labextension draws the view without a kernel; None if too large for a notebook."""
    packed = pack({"view": view.name, "state": view.state})
    if len(packed) > MOST_BYTES:
        return None
    data = {"model": view.model_id, "title": view.title, "state": packed}
    return data if dock is None else {**data, "dock": dock}


def saved_page(view: SavedView, picture: str) -> str:
    """The view as HTML that is interactive in an exported notebook; without scripts, `picture` is shown.

    The HTML contains the compressed front-end code, about 450 kB. Every output contains this code, so that each output
    works on its own.
    """
    place = f"wb-{uuid.uuid4().hex[:12]}"
    chunks = {name: chunk(name) for name in CHUNKS}
    packed = pack({"esm": view.script, "state": view.state, "chunks": chunks})
    script = (BUILT / "saved.js").read_text(encoding="utf-8")
    return (
        f'<div id="{place}" class="wb-savedview"><div>{picture}</div>'
        f'<script type="text/plain">{html.escape(packed)}</script></div>'
        f'<script type="module">{script.replace("%PLACE%", place)}</script>'
    )


def runs_unseen() -> bool:
    """Returns whether a program sent the current cell, as in `jupyter nbconvert --execute`.

    A page has its own session and identifies the cell that it runs; Python clients do neither. A cell that a program
    sent is never shown live in a page.
    """
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython() if ipython is not None else None, "kernel", None)
    if kernel is None or any(name in os.environ for name in _HOSTS) or "google.colab" in sys.modules:
        return False
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):
        return False
    request = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    header, metadata = request.get("header") or {}, request.get("metadata") or {}
    return "cellId" not in metadata and _PYTHON_SESSION.match(str(header.get("session", ""))) is not None
