"""An empty figure for callers above this layer; matplotlib is imported when one is made."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.render._figures import NotebookFigure


def notebook_figure(width: float, height: float) -> "NotebookFigure":
    """An empty figure, in inches, that shows itself in a notebook whether or not pyplot was imported."""
    from workbench.render._figures import NotebookFigure

    return NotebookFigure(figsize=(width, height), layout="constrained")
