"""The progress bar for a run."""

from typing import TYPE_CHECKING

import numpy as np

from workbench.errors import needs_library
from workbench.records.live import RoundRecord

if TYPE_CHECKING:
    from tqdm import std

_SHOWN_METRICS = 3


class Progress:
    """A progress bar that shows the first metrics, averaged over clients, and the number of problems."""

    def __init__(self, rounds: int | None, finished: int, *, shown: bool, unit: str = "round") -> None:
        self._bar: std.tqdm | None = None
        self._problems = 0
        if shown:
            with needs_library("tqdm", needed_for="A progress bar (`progress=True`)"):
                from tqdm.auto import tqdm  # detects terminal or notebook at import

            self._bar = tqdm(total=rounds, initial=finished, unit=unit)

    def update(self, record: RoundRecord) -> None:
        """Shows one more round."""
        if self._bar is None:
            return
        self._problems += len(record.problems)
        shown = {
            name: f"{float(np.mean(np.asarray(values))):.4g}"
            for name, values in list(record.metrics.items())[:_SHOWN_METRICS]
        }
        self._bar.set_postfix(shown | ({"problems": self._problems} if self._problems else {}), refresh=False)
        self._bar.update()

    def close(self, status: str) -> None:
        """Closes the bar, and shows the status if the run ended early."""
        if self._bar is None:
            return
        if status != "finished":
            self._bar.set_description_str(status)
        self._bar.close()
