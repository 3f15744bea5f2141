"""An empty figure for higher layers; imports matplotlib when a figure is created."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.render._figures import NotebookFigure


def notebook_figure(width: float, height: float) -> "NotebookFigure":
    """An empty figure with a size in inches; displays itself in a notebook even if pyplot is not imported."""
    from workbench.render._figures import NotebookFigure

    return NotebookFigure(figsize=(width, height), layout="constrained")
