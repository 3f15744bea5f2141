"""`overlay_runs`: several runs over one another, from whatever holds them."""

from workbench.federated.experiments._compare_runs import compare_runs
from workbench.federated.experiments._overlay import named_runs
from workbench.records import RunOverlayRecord


def overlay_runs(results: object, *, metric: str | None = None, minimize: bool = True) -> RunOverlayRecord:
    """Several runs over one another: curves with intervals over seeds, how each ended, and paired tests.

    Args:
        results: A sweep; runs by name; or a list of runs, stored runs or histories, of which
            those of one name are seeds of one result.
        metric: The one that is shown first; default: "loss" where there is one, else the first.
        minimize: Whether small is good.

    Returns:
        The record: `wb.show` draws it live in a notebook, and `to_html` of that view is a page.

    Raises:
        DataError: these are no runs, or none of them has finished a round.

    Example:
        >>> from workbench.measurement import History
        >>> from workbench.records import RoundRecord
        >>> def run(*losses):
        ...     return History([RoundRecord(round=r, seconds=1.0, metrics={"loss": x}) for r, x in enumerate(losses)])
        >>> drawn = overlay_runs({"a": [run(3.0, 1.0), run(3.0, 2.0)], "b": [run(3.0, 2.0)]})
        >>> [(result.name, result.metrics[0].mean) for result in drawn.results]
        [('a', (3.0, 1.5)), ('b', (3.0, 2.0))]
    """
    return compare_runs(named_runs(results), metric=metric, minimize=minimize).record
