"""`show` and `explore`: pick the inspector, pick the view."""

import contextvars
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import jax

from workbench import launch, render
from workbench._open_types import Option
from workbench._types import PyTree
from workbench.advice import advise_record, chunk_of, planner_of, recompiler
from workbench.api._options import Layout
from workbench.api._things import record_of_thing
from workbench.api._waiting import say_phase, waiting
from workbench.engines import play
from workbench.errors import InspectionError, MeshError
from workbench.federated.experiments import is_runs, overlay_runs
from workbench.inspection import LoweredCall, current_mesh, mesh_of_values
from workbench.inspection.what_if import WhatIf
from workbench.measurement import DeviceMonitor, Run
from workbench.records import (
    AdviceRecord,
    PlayRecord,
    ProgramRecord,
    Record,
    ShardingSearchRecord,
    TapRecord,
)

if TYPE_CHECKING:
    from workbench_widgets import Explorer, PlayerView, Playground, WorkbenchWidget

    from workbench.api._traced import Traced

W = TypeVar("W", bound="WorkbenchWidget")


class Waiting(TypedDict, total=False):
    """How a view follows what it asked for, and ends it."""

    progress: Callable[[str, float], None]
    cancel: threading.Event


# Options of `inspect` that trying other shardings has no use for.
_OF_INSPECT = ("chip", "examples_per_client", "order", "force", "progress", "cancel", "timeout_seconds")


def show_thing(x: object, *, view: str | None = None, **options: Option) -> None:
    """Displays what is no function: a mesh, arrays, a record, a run, devices, a program of nodes."""
    live = _live_view_of(x) if in_notebook() else None
    if live is not None:
        _display(live)
    elif isinstance(x, DeviceMonitor | Run):
        print(x.history.to_pandas() if isinstance(x, Run) else x.to_pandas())
    else:
        display_record(record_of_thing(x, "show", **options), view)


def show_program(traced: "Traced", *, view: str | None, options: dict[str, Any]) -> None:
    """Displays a traced program; see `Traced.show`."""
    if in_notebook() and options.get("target") and "progress" not in options:
        options = {**options, "progress": lambda phase, _: say_phase(f"{phase} for {options['target']}")}
    with waiting(traced.name, "compiling and reading what was compiled", shown=is_watched()):
        record = traced.inspect(**options)
    display_record(
        record,
        view,
        compile_for=_elsewhere(traced, options),
        what_if=_tries(traced, options, record),
        tap=_opener(traced),
        play=_plays(traced),
        advise=_adviser(traced, options, record),
        search=_searcher(traced, options, record),
    )


def display_record(record: Record, view: str | None, **asked: Option) -> None:
    """Displays a record: live in a notebook, as text in a terminal."""
    if not in_notebook():
        print(render.render_text(record))
        return
    if isinstance(record, ProgramRecord):
        asked.setdefault("advise", _record_adviser(record))
    if isinstance(record, TapRecord):
        from IPython.display import display

        display({"text/html": render.render_tap_html(record), "text/plain": render.render_text(record)}, raw=True)
    else:
        _display(_widget(record, view, **asked) or record)


def _display(shown: object) -> None:
    from IPython.display import display

    display(shown)


def explorer_of(
    traced: "Traced", *, gradient: Callable | ProgramRecord | None, options: dict[str, Any], **views: Option
) -> "Explorer":
    """The explorer of a traced program; see `Traced.explore`."""
    import workbench_widgets

    layout = views.pop("layout", None)
    if in_notebook() and options.get("target") and "progress" not in options:
        options = {**options, "progress": lambda phase, _: say_phase(f"{phase} for {options['target']}")}
    with waiting(traced.name, "compiling and reading what was compiled", shown=is_watched()):
        record = traced.inspect(**options)
    if callable(gradient) and not isinstance(gradient, ProgramRecord):
        gradient = traced.of(gradient).inspect(**options)
    made = workbench_widgets.Explorer(
        record,
        gradient=gradient,
        compile_for=_elsewhere(traced, options),
        what_if=_tries(traced, options, record),
        tap=_opener(traced),
        play=_plays(traced),
        advise=_adviser(traced, options, record),
        search=_searcher(traced, options, record),
        **views,
    )
    return laid_out(made, layout)


def player_of(traced: "Traced", fn: Callable, args: tuple[PyTree[jax.Array], ...]) -> "PlayerView":
    """The player of a traced program; see `Traced.play`."""
    import workbench_widgets

    played = play(fn, *args)
    mesh = current_mesh()
    placed = [leaf.sharding.device_set for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
    spread = isinstance(mesh, jax.sharding.Mesh) or any(len(devices) > 1 for devices in placed)
    compiled = traced.inspect() if spread else None  # one device sends nothing to others
    return workbench_widgets.PlayerView(played, compiled)


def _live_view_of(x: object) -> "WorkbenchWidget | None":
    """The view of what goes on while somebody watches: a run, devices, launched nodes, several runs; else None."""
    import workbench_widgets

    if isinstance(x, launch.Launched):
        return workbench_widgets.LaunchView(x)
    if isinstance(x, Run):
        return workbench_widgets.RunView(x)
    if isinstance(x, DeviceMonitor):
        return workbench_widgets.DevicesView(x)
    return workbench_widgets.RunsView(overlay_runs(x), again=lambda: overlay_runs(x)) if is_runs(x) else None


def explore_thing(x: object, *, layout: Layout | None = None, **options: Option) -> "WorkbenchWidget":
    """The widget of what is no function; see `explore`.

    Raises:
        InspectionError: if nothing is known of `x`, or its record has no live view.
    """
    import workbench_widgets

    made = _live_view_of(x)
    if made is None:
        record = x if isinstance(x, Record) else record_of_thing(x, "explore")
        if isinstance(record, ProgramRecord):
            made = workbench_widgets.Explorer(record, advise=_record_adviser(record), **options)
        else:
            try:
                made = workbench_widgets.show_record(record, **options)
            except TypeError as error:
                message = (
                    f"`explore` received a {type(record).__name__}, which has no live view. The last line of a cell "
                    "shows every record as a card, and `print` as text: use one of these."
                )
                raise InspectionError(message) from error
    return laid_out(made, layout)


def laid_out(widget: W, layout: Layout | None) -> W:
    """The widget with the reader's layout, which ipywidgets takes as a `Layout` or as its fields."""
    if layout is not None:
        widget.layout = layout
    return widget


def playground(**settings: Option) -> "Playground":
    """An experiment in federated learning without writing code: choose, run, compare, and copy the code.

    Args:
        **settings: What to start with, as for `wb.experiments.Settings`: `algorithm=`, `clients=`, `alpha=`, …

    Returns:
        The widget; the last line of a cell displays it.

    Raises:
        ProgramError: for settings that no experiment can be made of.

    Example:
        >>> type(playground(algorithm="FedAvg", clients=4, rounds=2)).__name__
        'Playground'
    """
    import workbench_widgets

    from workbench.federated import experiments

    return workbench_widgets.Playground(experiments, experiments.Settings(**settings))  # pyright: ignore[reportArgumentType]


def in_notebook() -> bool:
    """Returns whether this is a kernel with a front end that shows widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    # The hosts of ipyparallel are kernels too, but their front end is another one's: they print.
    return kernel is not None and not type(kernel).__module__.startswith("ipyparallel")


def is_watched() -> bool:
    """Returns whether somebody waits in front of a notebook; a program that executes notebooks reads no progress."""
    if not in_notebook():
        return False
    from workbench_widgets import runs_unseen

    return not runs_unseen()


def _elsewhere(traced: "Traced", options: dict[str, Any]) -> Callable[..., ProgramRecord]:
    """The program to be compiled for targets that a view names, in any thread.

    Remembers the shapes of arguments, not the arrays, and the mesh of now: another thread has none.
    """
    shapes = traced.with_shapes()
    remembered = {"mesh": current_mesh(), **{k: v for k, v in options.items() if k not in ("target", "chip")}}
    context = contextvars.copy_context()

    def compile_for(target: str, **waiting: Unpack[Waiting]) -> ProgramRecord:
        return context.copy().run(lambda: shapes.inspect(**{**remembered, **waiting, "target": target}))

    return compile_for


def _adviser(traced: "Traced", options: dict[str, Any], record: ProgramRecord) -> Callable[..., AdviceRecord]:
    """What finds advice about the program once it is asked, in any thread; see `_elsewhere`."""
    shapes = traced.with_shapes()
    remembered = {"mesh": current_mesh(), **options}
    context = contextvars.copy_context()

    def advise(**waiting: Unpack[Waiting]) -> AdviceRecord:
        return context.copy().run(lambda: found(**waiting))

    def found(**waiting: Unpack[Waiting]) -> AdviceRecord:
        known = {k: v for k, v in remembered.items() if v is not None}
        planner, recompile = planner_of(shapes, known), recompiler(shapes, known)
        chunk = chunk_of(shapes, known)
        return advise_record(record, recompile=recompile, planner=planner, fn=traced.fn, chunk_size=chunk, **waiting)

    return advise


def _record_adviser(record: ProgramRecord) -> Callable[..., AdviceRecord]:
    """What finds advice about a program of which only the record is there: gains are estimates, nothing is compiled."""
    return lambda **waiting: advise_record(record, **waiting)


def _searcher(
    traced: "Traced", options: dict[str, Any], record: ProgramRecord
) -> Callable[..., ShardingSearchRecord] | None:
    """What searches shardings once it is asked, in any thread; None without a mesh of several devices."""
    mesh = options.get("mesh") or current_mesh()
    if mesh is None and not isinstance(traced._call, LoweredCall):
        mesh = traced._call.mesh or mesh_of_values(traced._call.leaves)
    if mesh is None or mesh.empty or mesh.size < 2 or isinstance(traced._call, LoweredCall):
        return None
    shapes, context = traced.with_shapes(), contextvars.copy_context()
    chip = options.get("chip") or (options.get("target") or "").partition(":")[0] or None

    def search(**asked: Option) -> ShardingSearchRecord:
        return context.copy().run(lambda: shapes.suggest_shardings(mesh=mesh, chip=chip, **asked))

    return search


def _opener(traced: "Traced") -> Callable[[int], TapRecord] | None:
    """What evaluates the program for one client's values; None for arguments that are only shapes."""
    leaves = jax.tree.leaves((traced.args, traced.kwargs))
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return None
    return lambda client: traced.tap(client=client)


def _plays(traced: "Traced") -> Callable[[], PlayRecord] | None:
    """What evaluates the program for the player; None for arguments that are only shapes."""
    return None if _opener(traced) is None else lambda: play(*_flat(traced._replayed("play")))


def _flat(call: tuple[Callable, tuple[Any, ...]]) -> tuple[Any, ...]:
    return call[0], *call[1]


def _tries(traced: "Traced", options: dict[str, Any], record: ProgramRecord) -> WhatIf | None:
    """The program to be tried with other shardings that a view names; None where there is no mesh."""
    given = {name: value for name, value in options.items() if name not in _OF_INSPECT}
    try:
        return WhatIf(traced._traced("show"), present=record, **given)
    except (MeshError, InspectionError):  # without a mesh there is nothing to shard over
        return None


def _widget(record: Record, view: str | None, **asked: Option) -> "WorkbenchWidget | None":
    try:
        import workbench_widgets

        return workbench_widgets.show_record(record, view=view, **asked)
    except InspectionError:
        raise
    except TypeError:  # this kind of record has no live view
        return None
    except Exception as error:  # a display never ends the cell
        print(f"The live view could not be made ({type(error).__name__}: {error}).")
        return None
