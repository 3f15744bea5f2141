"""Pictures of notebooks on pages that list the course.

The metadata of one cell of each notebook choose its picture: `"card": {"shows": "..."}`, with a text for readers who do
not see the picture. `"panel": "left"` or `"right"` chooses the first or the last panel of a figure with several panels.
"""

import base64
import io
import itertools
import re
from dataclasses import dataclass
from typing import Any

BORDER = 6  # pixels of white around a panel


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Suffix, content and description of a picture."""

    suffix: str
    content: bytes
    shows: str


def card_of(notebook: Any) -> Card | None:
    """Returns the picture of an executed notebook; None without a picture.

    Without a chosen cell, this is the largest figure, or else the picture of the first view.
    """
    chosen = [cell for cell in notebook.cells if "card" in cell.metadata]
    card = chosen[0].metadata["card"] if chosen else {}
    outputs = [output.get("data", {}) for cell in chosen or notebook.cells for output in cell.get("outputs", ())]
    if figures := [data["image/png"] for data in outputs if "image/png" in data]:
        content = base64.b64decode(max(figures, key=len))
        if "panel" in card:
            content = _panel(content, card["panel"])
        return Card(suffix=".png", content=content, shows=card.get("shows", ""))
    drawings = [data["image/svg+xml"].encode() for data in outputs if "image/svg+xml" in data]
    pages = "".join(data.get("text/html", "") for data in outputs)
    views = re.findall(r'<img [^>]*src="data:image/svg\+xml;base64,([^"]+)"', pages)
    drawings += [base64.b64decode(view) for view in views]
    return Card(suffix=".svg", content=drawings[0], shows=card.get("shows", "")) if drawings else None


def _panel(content: bytes, panel: str) -> bytes:
    """The first or the last panel of a figure. White columns of pixels separate axes from labels."""
    import numpy as np
    from matplotlib import image

    pixels = image.imread(io.BytesIO(content), format="png")
    darkest = np.min(pixels[:, :, :3], axis=(0, 2))
    runs, start = [], 0
    for drawn, columns in itertools.groupby(value < 0.98 for value in darkest):
        end = start + len(list(columns))
        if drawn:
            runs.append((start, end))
        start = end
    width = pixels.shape[1]
    axes = [(start, end) for start, end in runs if end - start > width / 5]
    left, right = (0, axes[0][1] + BORDER) if panel == "left" else (axes[-2][1] + BORDER, width)
    written = io.BytesIO()
    image.imsave(written, pixels[:, left:right].copy(), format="png")
    return written.getvalue()
