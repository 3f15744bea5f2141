"""`show` and `explore`: pick the inspector, pick the view."""

import contextvars
import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from workbench import launch, views
from workbench._errors import InspectionError, MeshError
from workbench._inspect import are_arrays, current_mesh, inspect
from workbench.engines import tap
from workbench.live import DeviceMonitor, Run
from workbench.records import ProgramRecord, Record, RunRecord, TapRecord, TimelineRecord
from workbench.what_if import WhatIf

# Options of `inspect` that trying other shardings has no use for.
_OF_INSPECT = ("chip", "examples_per_client", "order", "force", "progress", "cancel", "timeout_seconds")


def show(x: Any, *args: Any, view: str | None = None, **options: Any) -> None:
    """Displays a program, mesh, array, pytree, record or launched program: live in a notebook, as text in a terminal.

    A display never ends the cell: if the live view cannot be made, the static picture or the text is shown with the
    reason.

    Args:
        x: A program (with its arguments behind it), a mesh, an array, a pytree of arrays, any record, a program of
            nodes before launch, or what `launch` returned.
        *args: Arguments of the program.
        view: Which view of it: "program", "clients", "mesh", "sharding", "hlo", "cost", "devices" or "run". Default:
            what suits best.
        **options: With a program, options of `inspect`: `mesh=`, `target="v5e:16x16"`, …

    Raises:
        InspectionError: if there is nothing known to show of `x`.

    Example:
        >>> show(jnp.ones((4, 2)))  # doctest: +ELLIPSIS
        1 array...
    """
    views.register_treescope()  # if somebody has loaded it: our records then fold out there too
    if isinstance(x, DeviceMonitor | Run | launch.Launched):
        _show_live(x)
        return
    record = _record_of(x, args, options)
    if not in_notebook():
        print(views.render_text(record))
        return
    from IPython.display import display

    if isinstance(record, TapRecord):
        display({"text/html": views.render_tap_html(record), "text/plain": views.render_text(record)}, raw=True)
        return
    what_if = _tries(x, args, options, record)
    widget = _widget(record, view, compile_for=_elsewhere(x, args, options), what_if=what_if, tap=_opener(x, args))
    if widget is not None:
        display(widget)


def explore(
    fn: Callable,
    *args: Any,
    gradient: Callable | ProgramRecord | None = None,
    rounds: Run | None = None,
    monitor: DeviceMonitor | None = None,
    run: RunRecord | None = None,
    timeline: TimelineRecord | None = None,
    **options: Any,
) -> Any:
    """All views of a program in one widget, with linked selection.

    Args:
        fn: A program, or a `ProgramRecord`.
        *args: Its arguments.
        gradient: A second program of the same arguments, shown beside it: `jax.grad(...)` of it, for example.
        rounds: A `Run`, live or over: its curves, its clients round by round, and buttons to pause and stop it.
        monitor: What `watch_devices` returned, for a view of the devices.
        run: What `measure` returned: measured seconds per client and a time line per device.
        timeline: A simulated round: who is late in it.
        **options: Options of `inspect`.

    Returns:
        The widget; the last line of a cell displays it.

    Raises:
        InspectionError: if `fn` is not a program.
    """
    import widgets

    record = _record_of(fn, args, options)
    if not isinstance(record, ProgramRecord):
        message = (
            f"`explore` was given a {type(fn).__name__}, which is not a program. It opens a program with its "
            "arguments, or a `ProgramRecord`: use `show` for meshes, arrays and other records."
        )
        raise InspectionError(message)
    return widgets.Explorer(
        record,
        gradient=_gradient(gradient, args, options),
        compile_for=_elsewhere(fn, args, options),
        what_if=_tries(fn, args, options, record),
        rounds=rounds,
        monitor=monitor,
        run=run,
        timeline=timeline,
        tap=_opener(fn, args),
    )


def playground(**settings: Any) -> Any:
    """An experiment in federated learning without writing code: choose, run, compare, and take the code along.

    Args:
        **settings: What to start with, as for `workbench.experiments.Settings`: `algorithm=`, `clients=`, `alpha=`, …

    Returns:
        The widget; the last line of a cell displays it.

    Raises:
        ProgramError: for settings that no experiment can be made of.
    """
    import widgets
    from workbench.experiments import Settings

    return widgets.Playground(Settings(**settings))


def _show_live(x: DeviceMonitor | Run | launch.Launched) -> None:
    if not in_notebook():
        if isinstance(x, launch.Launched):
            print(views.render_text(x.record))
        else:
            print(x.history.to_pandas() if isinstance(x, Run) else x.to_pandas())
        return
    from IPython.display import display

    import widgets

    if isinstance(x, launch.Launched):
        display(widgets.LaunchView(x))
    else:
        display(widgets.RunView(x) if isinstance(x, Run) else widgets.DevicesView(x))


def in_notebook() -> bool:
    """Whether this is a kernel with a front end that shows widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    # The hosts of ipyparallel are kernels too, but their front end is another one's: they print.
    return kernel is not None and not type(kernel).__module__.startswith("ipyparallel")


def _elsewhere(x: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., ProgramRecord] | None:
    """The program to be compiled for targets that a view names, in any thread; None for what is not a program.

    Remembers the shapes of arguments, not the arrays, and the mesh of now: another thread has none.
    """
    if not callable(x) or isinstance(x, jax.Array) or hasattr(x, "record"):
        return None
    shapes = jax.tree.map(_shape, args)
    remembered = {"mesh": current_mesh(), **jax.tree.map(_shape, options)}
    remembered = {name: value for name, value in remembered.items() if name not in ("target", "chip")}
    context = contextvars.copy_context()

    def compile_for(target: str, **waiting: Any) -> ProgramRecord:
        return context.copy().run(inspect, x, *shapes, **{**remembered, **waiting, "target": target})

    return compile_for


def _opener(fn: Any, args: tuple[Any, ...]) -> Callable[[int], TapRecord] | None:
    """What evaluates the program for one client's values; None for a record, or arguments that are only shapes."""
    shapes_only = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    if shapes_only or not callable(fn) or hasattr(fn, "record"):
        return None
    return lambda client: tap(fn, *args, client=client)


def _tries(x: Any, args: tuple[Any, ...], options: dict[str, Any], record: Record) -> WhatIf | None:
    """The program to be tried with other shardings that a view names; None for what is none, or has no mesh."""
    if not callable(x) or isinstance(x, jax.Array) or not isinstance(record, ProgramRecord) or record is x:
        return None
    given = {name: value for name, value in options.items() if name not in _OF_INSPECT}
    try:
        return WhatIf(x, *args, present=record, **given)
    except MeshError:  # without a mesh there is nothing to shard over
        return None


def _gradient(gradient: Any, args: tuple[Any, ...], options: dict[str, Any]) -> ProgramRecord | None:
    """The record of a second program of the same arguments."""
    if gradient is None or isinstance(gradient, ProgramRecord):
        return gradient
    return inspect(gradient, *args, **options)


def _shape(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else x


def _widget(record: Record, view: str | None, **asked: Any) -> Any:
    try:
        import widgets

        return widgets.show_record(record, view=view, **asked)
    except InspectionError:
        raise
    except Exception as error:  # a display never ends the cell
        print(f"The live view could not be made ({type(error).__name__}: {error}); this is the text of it:")
        print(views.render_text(record))
        return None


def _say_progress(target: str) -> Callable[[str, float], None]:
    """A line under the cell that says how far a compilation is, once a second."""
    from IPython.display import display

    shown: Any = None
    said = 0

    def progress(phase: str, seconds: float) -> None:
        nonlocal shown, said
        if seconds < said + 1:
            return
        said = int(seconds)
        text = {"text/plain": f"{target}: {phase}, {said} s; interrupt the kernel to stop"}
        if shown is None:
            shown = display(text, raw=True, display_id=True)
        else:
            shown.update(text, raw=True)

    return progress


def _record_of(x: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Record:
    if isinstance(x, Record):
        return x
    if isinstance(x, Mesh | AbstractMesh):
        return inspect(x)
    if hasattr(x, "record") and isinstance(x.record, Record):
        return x.record
    if callable(x) and not isinstance(x, jax.Array):
        if in_notebook() and options.get("target") and "progress" not in options:
            options = {**options, "progress": _say_progress(options["target"])}
        return inspect(x, *args, **options)
    if are_arrays(x):
        return inspect(x)
    message = (
        f"`show` was given a {type(x).__name__}, which it does not know. It shows programs with their arguments, "
        "meshes, arrays, pytrees of arrays, and records: pass `show(program, *args)`, `show(mesh)` or `show(array)`."
    )
    raise InspectionError(message)
