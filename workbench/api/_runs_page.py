"""Stored runs as one interactive page."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.measurement import StoredRun, overlay_runs


def write_runs_page(
    runs: Sequence[StoredRun[Any]], file: str | Path, *, metric: str | None = None, minimize: bool = True
) -> None:
    """Writes a page that needs no kernel: one run with its clients, or a comparison of several runs.

    The code and the provenance of each run are collapsed below the title.

    Args:
        runs: Runs from `Run.load`; runs with the same name are treated as different seeds of one result.
        file: The page.
        metric: The metric to show first.
        minimize: Whether smaller values are better.

    Raises:
        DataError: if there are several runs and none has finished a round.
    """
    import workbench_widgets

    code = [(f"{run.path.name}: code of the step", run.about["code"]) for run in runs]
    code += [(f"{run.path.name}: provenance", _provenance(run)) for run in runs]
    if len(runs) == 1:
        view = workbench_widgets.RunView(_Ended(runs[0]))
        view.data = {**view.data, "code": [list(pair) for pair in code]}
    else:
        view = workbench_widgets.RunsView(overlay_runs(list(runs), metric=metric, minimize=minimize), code=code)
    names = dict.fromkeys(run.about["name"] for run in runs)
    view.to_html(file, title=", ".join(names))
    view.close()


class _Ended:
    """A stored run with the interface of a live run, but without controls or new rounds."""

    def __init__(self, stored: StoredRun) -> None:
        self.rounds, self.status, self.history = stored.about["rounds"], stored.status, stored.history
        self.problems = [problem for record in stored.history for problem in record.problems]

    def pause(self) -> None:
        """Does nothing, because the run has ended."""

    resume = stop = pause

    def subscribe(self, callback: object) -> Callable[[], None]:
        """Does nothing, because no rounds will arrive."""
        return lambda: None


def _provenance(run: StoredRun) -> str:
    return json.dumps({name: value for name, value in run.about.items() if name != "code"}, indent=1)
