"""`watch`: the public function, which also shows the live view."""

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.api._waiting import in_notebook
from workbench.measurement import Tracker, Watch


def watch(
    fn: Callable[..., Any] | None = None,
    *,
    outputs: str | Callable[[Any], Any] | Sequence[str] | Mapping[str, str | Callable[[Any], Any]] | None = None,
    log: Tracker | str | Path | list[Tracker | str | Path] | None = None,
    profile_every: int | None = None,
    name: str = "",
    show: bool | None = None,
) -> Watch:
    """Records every call of a function in a training loop without further edits: `step = wb.watch(step)`.

    The function may come from `jax.jit`, `nnx.jit`, `eqx.filter_jit`, `jax.pmap` or `wb.jit`, or be a Python function
    that calls such functions. Arguments and results are passed through unchanged. Calls stay asynchronous, because a
    separate thread waits for the results. Only one small array per call and the chosen outputs are kept, until they are
    read. The cost of a Python function without `lower` is unknown.

    Args:
        fn: The function. If omitted, call the watch object with the function later, or use `Watch.steps`.
        outputs: Numbers to record, given as names of arrays in the results (`"loss"`, `"metrics.accuracy"`), a function
            of the results, or a dictionary that maps names to either. Default: floating-point scalars in the results,
            at most 8; from a training state, only learning rates, losses, norms and accuracies.
        log: Trackers and folders, as in `run_rounds`.
        profile_every: Number of calls from one profile to the next. A profile is matched to source lines in
            `record.call_tree`. The profiled call is slower. Default: no profiles.
        name: Name of the loop. Default: the name of the function.
        show: Whether to show the loop while it runs, as a view in a notebook or a line in a terminal. Default: True if
            a notebook or terminal is attached.

    Returns:
        The watched function. `record`, `to_pandas()`, `history` and `problems` hold the recorded data; `print` shows
        them. If a function with the same name was watched before, `record.changes` lists the differences.

    Raises:
        MeasureError: if `fn` is not a function, or an option is out of range.
        MissingDependencyError: at the first call, if a tracker's library is not installed.

    Example:
        >>> step = watch(jax.jit(lambda w: (w - 0.1, (w**2).sum())), outputs={"loss": "1"})
        >>> w = jnp.ones(3)
        >>> for _ in range(4):
        ...     w, loss = step(w)
        >>> step.record.steps, [round(found.metrics["loss"], 2) for found in step.record.history]
        (4, [3.0, 2.43, 1.92, 1.47])
    """
    display = None if show is False else _display if in_notebook() else _line if show or _in_terminal() else None
    return Watch(fn, outputs=outputs, log=log, profile_every=profile_every, name=name, display=display)


def _in_terminal() -> bool:
    return bool(getattr(sys.stderr, "isatty", lambda: False)()) and "IPython" not in sys.modules


def _line(watched: Watch) -> None:
    watched.show_progress()


def _display(watched: Watch) -> None:
    """Shows the view under the loop's cell, and again at the end of the loop, so that the notebook stores it."""
    import workbench_widgets
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    view = workbench_widgets.RunView(watched)
    handle = display(view, display_id=True)
    events = getattr(get_ipython(), "events", None)
    if handle is None or events is None:
        return
    alive, steps = weakref.ref(watched), 0

    def renew(*_: object) -> None:
        nonlocal steps
        loop = alive()
        count = 0 if loop is None else loop.end_cell()
        if count > steps:
            steps = count
            view.renew()
            # JupyterLab adds a second view if an output is replaced by an output of the same type.
            handle.update({"text/plain": ""}, raw=True)
            handle.update(view)
        if loop is None or loop.status in ("finished", "failed"):
            events.unregister("post_run_cell", renew)

    events.register("post_run_cell", renew)
