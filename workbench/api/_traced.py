"""`trace` and the object it returns: all questions about one call of a function."""

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Unpack

from jax.sharding import AbstractMesh, Mesh

from workbench._types import Argument
from workbench.api import _show
from workbench.api._options import InspectOptions, Layout, Progress, ViewOptions, asked
from workbench.api._things import is_program
from workbench.api._traced_program import TracedProgram
from workbench.api._waiting import is_watched, waiting
from workbench.engines import Engine
from workbench.errors import InspectionError, ProgramError
from workbench.inspection import machine_of
from workbench.measurement import DeviceMonitor, Run
from workbench.plan import check_call
from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.records.run import RunRecord

if TYPE_CHECKING:
    from workbench_widgets import PlayerView, WorkbenchWidget


class Traced(TracedProgram):
    """One traced call of a function, with methods for all questions about it.

    Created by `trace`, which calls the function once; no method calls the function again. Options are arguments of the
    methods. The function's own arguments are passed to `trace(fn)(...)`, so that their names cannot collide with
    options.

    Example:
        >>> @wb.program(clients=4)
        ... def mean_square(x):
        ...     return wb.reduce_mean(wb.map_fn(lambda row: row**2, x))
        >>> traced = wb.trace(mean_square)(jnp.arange(4.0))
        >>> [stage.operation for stage in traced.plan.stages]
        ['map_fn', 'reduce_mean']
    """

    @asked("show")
    def show(self, **options: Unpack[ViewOptions]) -> None:
        """Displays the result of `explore`: live in a notebook, as text in a terminal.

        Args:
            **options: Options of `explore`.

        Example:
            >>> wb.show(jnp.ones((4, 2)))  # doctest: +ELLIPSIS
            1 array...
        """
        _show.show_program(self, **options)

    @asked("explore")
    def explore(
        self,
        *,
        view: str | None = None,
        gradient: Callable[..., Any] | ProgramRecord | None = None,
        rounds: Run | None = None,
        monitor: DeviceMonitor | None = None,
        run: RunRecord | None = None,
        timeline: TimelineRecord | None = None,
        runs: object = None,
        dock: Literal["right"] | None = None,
        layout: Layout | None = None,
        **options: Unpack[InspectOptions],
    ) -> "WorkbenchWidget":
        """Opens the views of the program: all views in one widget with linked selection, or one view.

        Args:
            view: A single view, such as "hlo" or "cost"; an unknown name raises an error that lists the views. Default:
                the explorer, which contains all views.
            gradient: A second program with the same arguments, shown next to the program, for example its
                `jax.grad(...)`.
            rounds: A `Run`, live or finished, shown with its curves, its clients in each round, and buttons to pause
                and stop it.
            monitor: The result of `watch_devices`, shown in a view of the devices.
            run: The result of `measure`, shown with the measured time of each client and a timeline per device.
            timeline: A simulated round, used to show stragglers.
            runs: Several runs to compare, given as a sweep, a comparison of runs, a list of runs, or a dictionary of
                runs by name.
            dock: "right" shows the widget next to the notebook (JupyterLab, with the extension of this package).
            layout: The widget's layout, as an `ipywidgets.Layout` or a mapping of its fields.
            **options: Options of `inspect`.

        Returns:
            An ipywidget. A notebook displays it if it is the last value of a cell. The widget can also be placed in
            boxes and tabs, and its traits `selection` and `settings` can be observed and linked.

        Raises:
            InspectionError: for an unknown view.
            ProgramError: if explorer options are given with another view.

        Example:
            >>> type(wb.explore(jnp.ones((4, 2)))).__name__
            'ShardingView'
        """
        return _show.view_of_program(
            self,
            view=view,
            gradient=gradient,
            rounds=rounds,
            monitor=monitor,
            run=run,
            timeline=timeline,
            runs=runs,
            dock=dock,
            layout=layout,
            **options,
        )

    def play(self) -> "PlayerView":
        """Plays one call step by step with actual values: messages, client steps and results.

        Evaluates the program once in this process. Numbers that clients `emit` are shown as curves over local
        steps. With a mesh, the program is also compiled, and its collectives can be played message by message.

        Returns:
            The widget; a notebook displays it if it is the last value of a cell. `.to_html("round.html")` saves it.

        Raises:
            InspectionError: if the program does not compute anything.

        Example:
            >>> @program(clients=4)
            ... def total(x):
            ...     return wb.reduce_sum(map_fn(lambda row: row**2, x))
            >>> print(wb.trace(total)(jnp.arange(4.0)).play().text())
            total, played step by step
              0 clients: <lambda>, 4 clients
              1 reduce: reduce_sum, 4 clients, 16 B sent
        """
        fn, args = self._replayed("play")
        with waiting(self.name, "evaluating it", shown=is_watched()):
            return _show.player_of(self, fn, args)

    def engine(self, engine: Engine) -> "EngineCall":
        """The same call on another engine: `traced.engine(Beam()).run()`.

        Args:
            engine: An engine, such as `workbench.engines.Executor(pool)`.

        Example:
            >>> total = wb.program(clients=4)(wb.reduce_sum)
            >>> float(wb.trace(total)(jnp.arange(4.0)).engine(wb.engines.Sequential()).run().results)
            6.0
        """
        return EngineCall(self, engine)


class EngineCall:
    """A traced call on one engine."""

    def __init__(self, traced: Traced, engine: Engine) -> None:
        self.traced: Traced = traced
        self.on: Engine = engine

    def run(self, *, progress: Progress | None = None, cancel: threading.Event | None = None) -> RunRecord:
        """Runs the call on the engine; the record's `results` are the program's results.

        Raises:
            EngineError: if a stage fails; the error's `stage` and `client` identify the place.
        """
        fn, args = self.traced._replayed("engine")
        return self.on.run(fn, *args, progress=progress, cancel=cancel)


def trace(fn: Callable, *, on: Mesh | AbstractMesh | None = None) -> Callable[..., Traced]:
    """Traces one call of a function so that questions can be asked about it, similar to `jax.jit(fn).trace`.

    `fn` is called once, during tracing; questions about the traced call do not call it again. Exception: if the program
    itself names a mesh, for example in `shard_map`, a question about another mesh calls `fn` again, and a note reports
    this.

    Args:
        fn: A program, a function that calls programs, or a derivative of these. `fn` may be a result of `jit`,
            `jax.jit`, `nnx.jit` or `eqx.filter_jit`, whose options are respected, or a partial call, a method or a
            callable object.
        on: Mesh to trace the function under. Default: the mesh set by `jax.set_mesh`.

    Returns:
        A function whose call, `trace(fn)(*args, **kwargs)`, returns a `Traced`. Arguments are pytrees of arrays or
        `jax.ShapeDtypeStruct`s; other leaves (strings, functions, settings) are kept constant.

    Raises:
        InspectionError: if `fn` is not a function.
        ProgramError: raised by the call if its arguments cannot be traced (too few or too many arguments, deleted
            arrays, containers that contain themselves).

    Example:
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> traced = trace(mean_square)(jnp.ones(8))
        >>> [stage.kind for stage in traced.plan.stages]
        ['clients', 'reduce']
        >>> traced.inspect().module.devices
        1
    """
    return trace_for("trace", fn, machine_of(on, "trace", reads=("mesh",)).mesh)


def trace_for(question: str, fn: Callable, mesh: Mesh | AbstractMesh | None) -> Callable[..., Traced]:
    """Traces a call for a question; errors state the name of the question."""
    if not is_program(fn, question):
        message = (
            f"`{question}` received an object of type {type(fn).__name__}, which is not a function. `{question}` "
            f"traces a call of a function: pass the function, then its arguments, as in `{question}(fn)(*args)`. For "
            "meshes, arrays and records, use `inspect` or `show`."
        )
        raise InspectionError(message)

    @functools.wraps(fn)
    def call(*args: Argument, **kwargs: Argument) -> Traced:
        try:
            check_call(f"`{question}`", fn, args, kwargs)
        except ProgramError as refused:
            if question != "trace":
                raise
            check_call("`trace`", fn, args, kwargs, symbolic=True)
            return Traced(fn, args, kwargs, symbolic=refused)
        return Traced(fn, args, kwargs, mesh=mesh)

    return call
