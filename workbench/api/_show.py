"""Shows programs and other values: chooses the inspector and the view."""

import contextvars
import dataclasses
import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

import jax

from workbench import render
from workbench._open_types import Option
from workbench._types import PyTree
from workbench.advice import advise_call, advise_record, rule_sentences
from workbench.api._options import Layout, inspect_options
from workbench.api._things import record_of_thing, refuse_options
from workbench.api._traced_program import TracedProgram
from workbench.api._waiting import in_notebook, is_watched, say_phase, waiting
from workbench.engines import play
from workbench.errors import InspectionError, MeshError, ProgramError, WorkbenchError
from workbench.inspection import (
    Inspected,
    LoweredCall,
    On,
    current_mesh,
    explain_program,
    inspect_call,
    machine_of,
    mesh_of_values,
)
from workbench.inspection.what_if import WhatIf
from workbench.measurement import DeviceMonitor, Run, Watch, is_runs, overlay_runs
from workbench.records import Record
from workbench.records.advice import AdviceRecord, SearchRecord
from workbench.records.compiled import ProgramRecord
from workbench.records.launch import LiveProgram
from workbench.records.live import TapRecord, TimelineRecord
from workbench.records.run import RunOverlayRecord, RunRecord

if TYPE_CHECKING:
    from workbench_widgets import PlayerView, WorkbenchWidget

W = TypeVar("W", bound="WorkbenchWidget")


class Waiting(TypedDict, total=False):
    """Progress of a request, and the means to stop it."""

    progress: Callable[[str, float], None]
    cancel: threading.Event


class _Advising(Waiting, total=False):
    """Options for an advice request."""

    found: Callable[[AdviceRecord], None]


def show_thing(x: object, **options: Option) -> None:
    """Displays the view of a value that is not a function: live in a notebook, as text in a terminal."""
    if in_notebook():
        _display_or_text(lambda: view_of_thing("show", x, **options), x)
        return
    options.pop("layout", None)
    if isinstance(x, DeviceMonitor | Run):
        refuse_options("show", x, {name: value for name, value in options.items() if value is not None})
        print(x.history.to_pandas() if isinstance(x, Run) else x.to_pandas())
        return
    view = options.pop("view", None)
    views = _explorer_options("show", view, options)
    record = record_of_thing(x, "show", **options)
    _check_views("show", record, view, views)
    print(render.text(record))


def show_program(traced: TracedProgram, **options: Option) -> None:
    """Displays a traced program; see `Traced.show`."""
    if in_notebook():
        _display_or_text(lambda: view_of_program(traced, question="show", **options), traced)
        return
    view = options.pop("view", None)
    options.pop("layout", None)
    views = _explorer_options("show", view, options, gradient_of=traced)
    record = _inspected(traced, options)
    _check_views("show", record, view, views)
    print(render.text(record))


def _display_or_text(make: Callable[[], "WorkbenchWidget"], x: object) -> None:
    """Displays a view, or the record as a card if the view fails, so that a display never stops the cell."""
    try:
        shown: object = make()
    except WorkbenchError:
        raise
    except _NoView as problem:
        shown = problem.record
        if isinstance(shown, TapRecord):
            from IPython.display import display

            display({"text/html": render.render_tap_html(shown), "text/plain": render.text(shown)}, raw=True)
            return
    except Exception as error:
        print(f"The live view could not be created ({type(error).__name__}: {error}).")
        shown = x if not isinstance(x, Inspected) else x.inspect()
    _display(shown)


class _NoView(Exception):
    """A record that has no live view."""

    def __init__(self, record: Record) -> None:
        self.record = record


def _display(shown: object) -> None:
    from IPython.display import display

    display(shown)


def view_of_program(
    traced: TracedProgram,
    *,
    question: str = "explore",
    view: str | None = None,
    layout: Layout | None = None,
    **options: Any,
) -> "WorkbenchWidget":
    """The view of a traced program; see `Traced.explore`."""
    import workbench_widgets

    views = _explorer_options(question, view, options, gradient_of=traced)
    _check_name(question, view, workbench_widgets.PROGRAM_VIEWS)
    record = _inspected(traced, options)
    callbacks = _kernel_side(traced, inspect_options(question, **options), record)
    if view not in (None, "explorer"):
        return laid_out(_widget(question, record, view, **callbacks), layout)
    gradient = views.get("gradient")
    if gradient is not None and not isinstance(gradient, ProgramRecord):
        views["gradient"] = traced.of(gradient).inspect(**options)
    return laid_out(workbench_widgets.Explorer(record, **callbacks, **views), layout)


# Options that only the explorer has, with the types of their values.
_EXPLORER: dict[str, tuple[type, ...]] = {
    "gradient": (ProgramRecord,),
    "rounds": (Run, Watch),
    "monitor": (DeviceMonitor,),
    "run": (RunRecord,),
    "timeline": (TimelineRecord,),
    "runs": (RunOverlayRecord,),
    "dock": (str,),  # only "right"
}


def _explorer_options(
    question: str, view: object, options: dict[str, Any], *, gradient_of: TracedProgram | None = None
) -> dict[str, Any]:
    """Checks the options that only the explorer accepts, removes them from `options`, and returns them."""
    views = {name: value for name in _EXPLORER if (value := options.pop(name, None)) is not None}
    if views and view not in (None, "explorer"):
        message = (
            f"`{question}` was given {', '.join(f'`{name}=`' for name in views)} with view={view!r}. Only the "
            "explorer uses these options: omit `view=`."
        )
        raise ProgramError(message)
    if views.get("dock", "right") != "right":
        message = (
            f"`{question}` was given dock={views['dock']!r}. A view is shown below its cell or next to the notebook: "
            'omit `dock=`, or pass dock="right".'
        )
        raise InspectionError(message)
    if "runs" in views:
        views["runs"] = record_of_thing(views["runs"], question)
    for name, value in views.items():
        if isinstance(value, _EXPLORER[name]) or (name == "gradient" and gradient_of is not None and callable(value)):
            continue
        kinds = " or ".join(f"`{kind.__name__}`" for kind in _EXPLORER[name])
        kinds += " or a function" if name == "gradient" and gradient_of is not None else ""
        message = (
            f"`{question}` was given {name}={value!r:.80}, an object of type {type(value).__name__}. The explorer "
            f"reads a {kinds} here: pass such an object, or omit `{name}=`."
        )
        raise InspectionError(message)
    return views


def _check_views(question: str, record: Record, view: str | None, views: Mapping[str, Any]) -> None:
    """Raises an error for a view that a record lacks, and for options of the explorer with other records."""
    if view is not None:
        import workbench_widgets

        _check_name(question, view, workbench_widgets.views_of(record))
    if not isinstance(record, ProgramRecord):
        refuse_options(question, record, views)


def _check_name(question: str, view: str | None, views: Sequence[str]) -> None:
    if view is None or view in views:
        return
    near = difflib.get_close_matches(view, views, n=1)
    message = (
        f"`{question}` was given view={view!r}, which is not a view.{f' Did you mean {near[0]!r}?' if near else ''} "
        f"The views are {', '.join(views) or 'none for this kind of record'}: pass one of these, or omit `view=`."
    )
    raise InspectionError(message)


def _inspected(traced: TracedProgram, options: dict[str, Any]) -> ProgramRecord:
    """The record of a program; the cell shows the progress of the inspection."""
    target = machine_of(options.get("on"), "inspect").target
    if in_notebook() and target and options.get("progress") is None:
        options = {**options, "progress": lambda phase, _: say_phase(f"{phase} for {target}")}
    with waiting(traced.name, "compiling and reading the compiled program", shown=is_watched()):
        return traced.inspect(**options)


def _kernel_side(traced: TracedProgram, options: dict[str, Any], record: ProgramRecord) -> dict[str, Any]:
    """Requests that views of a program can send to the kernel; accepts the options of `inspect_call`."""
    return {
        "compile_for": _elsewhere(traced, options),
        "what_if": _tries(traced, options, record),
        "tap": _opener(traced),
        "play": None if _opener(traced) is None else lambda: play(*_flat(traced._replayed("play"))),
        "advise": _adviser(traced, options, record),
        "rules": rule_sentences(),
        "search": _searcher(traced, options),
        "explain": lambda: explain_program(record),
    }


def player_of(traced: TracedProgram, fn: Callable, args: tuple[PyTree[jax.Array], ...]) -> "PlayerView":
    """The player for a traced program; see `Traced.play`."""
    import workbench_widgets

    played = play(fn, *args)
    mesh = current_mesh()
    placed = [leaf.sharding.device_set for leaf in jax.tree.leaves(args) if isinstance(leaf, jax.Array)]
    spread = isinstance(mesh, jax.sharding.Mesh) or any(len(devices) > 1 for devices in placed)
    compiled = traced.inspect() if spread else None  # a single device sends nothing
    return workbench_widgets.PlayerView(played, compiled)


def _live_view_of(x: object) -> "WorkbenchWidget | None":
    """The view of a live object (a run, devices, launched nodes, several runs); None for other objects."""
    import workbench_widgets

    if isinstance(x, LiveProgram):
        return workbench_widgets.show_record(x)
    if isinstance(x, Run | Watch):
        return workbench_widgets.RunView(x)
    if isinstance(x, DeviceMonitor):
        return workbench_widgets.DevicesView(x)
    return workbench_widgets.RunsView(overlay_runs(x), again=lambda: overlay_runs(x)) if is_runs(x) else None


def view_of_thing(
    question: str, x: object, *, view: str | None = None, layout: Layout | None = None, **options: Option
) -> "WorkbenchWidget":
    """The view of a value that is not a function; see `explore`."""
    import workbench_widgets

    live = _live_view_of(x)
    if live is not None:
        refuse_options(question, x, {**options, **({} if view is None else {"view": view})})
        return laid_out(live, layout)
    views = _explorer_options(question, view, options)
    record = record_of_thing(x, question, **options)
    _check_views(question, record, view, views)
    if not isinstance(record, ProgramRecord):
        return laid_out(_widget(question, record, view), layout)
    callbacks = {
        "advise": lambda **waiting: advise_record(record, **waiting),
        "rules": rule_sentences(),
        "explain": lambda: explain_program(record),
    }
    if view in (None, "explorer"):
        return laid_out(workbench_widgets.Explorer(record, **callbacks, **views), layout)
    return laid_out(_widget(question, record, view, **callbacks), layout)


def laid_out(widget: W, layout: Layout | None) -> W:
    """The widget with the user's layout, which ipywidgets accepts as a `Layout` or as its fields."""
    if layout is not None:
        widget.layout = layout
    return widget


def _elsewhere(traced: TracedProgram, options: dict[str, Any]) -> Callable[..., ProgramRecord]:
    """Returns a function, callable from any thread, that compiles the program for a target that a view requests.

    Stores shapes instead of the arguments' arrays. Also stores the current mesh, because other threads lack it.
    """
    shapes = traced.with_shapes()
    mesh = options["mesh"] or current_mesh()
    remembered = {**options, "mesh": mesh, "chip": None}
    context = contextvars.copy_context()

    def compile_for(target: str, *, order: Literal["topology", "naive"] = "topology", **waiting: Unpack[Waiting]):
        settings = {**remembered, "target": target, "order": order, "waiting": waiting}
        return context.copy().run(lambda: inspect_call(shapes._call, **settings))

    return compile_for


def _adviser(traced: TracedProgram, options: dict[str, Any], record: ProgramRecord) -> Callable[..., AdviceRecord]:
    """Returns a function, callable from any thread, that finds advice about the program; see `_elsewhere`."""
    variants = traced.with_shapes()._variants({**options, "mesh": options["mesh"] or current_mesh()})
    variants = dataclasses.replace(variants, fn=traced.fn)
    context = contextvars.copy_context()

    def advise(**waiting: Unpack[_Advising]) -> AdviceRecord:
        return context.copy().run(lambda: advise_call(record, variants, **waiting))

    return advise


def _searcher(traced: TracedProgram, options: dict[str, Any]) -> Callable[..., SearchRecord] | None:
    """Returns a function, callable from any thread, that searches shardings; None without a mesh of several devices."""
    mesh = options["mesh"] or current_mesh()
    if mesh is None and not isinstance(traced._call, LoweredCall):
        mesh = traced._call.mesh or mesh_of_values(traced._call.leaves)
    if mesh is None or mesh.empty or mesh.size < 2 or isinstance(traced._call, LoweredCall):
        return None
    shapes, context = traced.with_shapes(), contextvars.copy_context()
    chip = options["chip"] or (options["target"] or "").partition(":")[0]
    on: On = (mesh, chip) if chip else mesh

    def search(**search_options: Option) -> SearchRecord:
        return context.copy().run(lambda: shapes.search(on=on, **search_options))

    return search


def _opener(traced: TracedProgram) -> Callable[[int], TapRecord] | None:
    """Returns a function that evaluates the program for one client; None if the arguments have no values."""
    leaves = jax.tree.leaves((traced.args, traced.kwargs))
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return None
    return lambda client: traced.tap(client=client)


def _flat(call: tuple[Callable, tuple[Any, ...]]) -> tuple[Any, ...]:
    return call[0], *call[1]


def _tries(traced: TracedProgram, options: dict[str, Any], record: ProgramRecord) -> WhatIf | None:
    """The program to try with the shardings that a view requests; None without a mesh."""
    extras = {} if options["chunk_size"] is None else {"chunk_size": options["chunk_size"][0]}
    try:
        return WhatIf(traced._traced("show"), present=record, mesh=options["mesh"], target=options["target"], **extras)
    except (MeshError, InspectionError):  # no mesh to shard over
        return None


def _widget(question: str, record: Record, view: str | None, **callbacks: Option) -> "WorkbenchWidget":
    import workbench_widgets

    if not workbench_widgets.views_of(record):
        if question == "show":
            raise _NoView(record)
        message = (
            f"`{question}` received an object of type {type(record).__name__}, which has no live view. Put the record "
            "on the last line of a cell to see it as a card, or `print` it to see it as text."
        )
        raise InspectionError(message)
    return workbench_widgets.show_record(record, view=view, **callbacks)
