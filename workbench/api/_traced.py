"""`trace` and the object that it returns; `inspect`, `show`, `measure`, … are the same questions in one line."""

import functools
import inspect as inspect_module
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import jax
from jax.sharding import AbstractMesh, Mesh

from workbench import render
from workbench._open_types import AS_GIVEN, AsGiven
from workbench._types import Argument, Spec
from workbench.advice import (
    advise_record,
    chunk_of,
    fit as fit_program,
    planner_of,
    recompiler,
    suggest_mesh as search_mesh,
    suggest_shardings as search_shardings,
)
from workbench.api import _export, _measure, _show
from workbench.api._options import (
    AdviseOptions,
    ExploreOptions,
    ExportOptions,
    FitOptions,
    InspectOptions,
    Layout,
    MeasureOptions,
    MeshOptions,
    ShowOptions,
    SpecsOptions,
    SuggestOptions,
    TapOptions,
    WhyOptions,
    options_of,
)
from workbench.api._things import is_program, record_of_thing
from workbench.api._waiting import say_phase, waiting
from workbench.engines import Engine, tap as tap_program
from workbench.errors import InspectionError
from workbench.inspection import (
    LoweredCall,
    TracedCall,
    choice_of_plan,
    explain_program,
    function_name,
    inspect_call,
    plan_call,
    trace_call,
    trace_call_tree,
)
from workbench.inspection.what_if import WhatIf
from workbench.measurement import DeviceMonitor, Run
from workbench.plan import ChunkSize, check_call
from workbench.records import (
    AdviceRecord,
    CallTreeRecord,
    FitTableRecord,
    MeshRecord,
    PlanChoiceRecord,
    PlanRecord,
    ProgramRecord,
    Record,
    RunRecord,
    ShardingSearchRecord,
    TapRecord,
    TimelineRecord,
    WhatIfRecord,
    WhyRecord,
)

if TYPE_CHECKING:
    from workbench_widgets import Explorer, PlayerView, WorkbenchWidget

Progress = Callable[[str, float], None]


class Traced:
    """One call of a function, traced: what it will do, and everything that can be asked of it.

    Made by `trace`, which calls the function once; nothing here calls it again. Options are arguments of the methods;
    the function's own arguments were given to `trace(fn)(...)`, so that the two never share names.

    Example:
        >>> @wb.program(clients=4)
        ... def mean_square(x):
        ...     return wb.reduce_mean(wb.map_fn(lambda row: row**2, x))
        >>> traced = wb.trace(mean_square)(jnp.arange(4.0))
        >>> [stage.operation for stage in traced.plan.stages]
        ['map_fn', 'reduce_mean']
    """

    def __init__(
        self,
        fn: Callable,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        *,
        mesh: Mesh | AbstractMesh | None = None,
        call: TracedCall | LoweredCall | None = None,
    ) -> None:
        self.fn: Callable = fn
        self.args: tuple[Argument, ...] = args
        self.kwargs: dict[str, Argument] = kwargs
        self.name: str = function_name(fn)
        self._call = trace_call(fn, args, kwargs, mesh) if call is None else call

    @functools.cached_property
    def plan(self) -> PlanRecord:
        """The stages of the program: server, clients, and what goes between them. Nothing is compiled."""
        return plan_call(self._call)

    @property
    def plan_choice(self) -> PlanChoiceRecord:
        """How its clients are computed (chunk size, what waits for a second pass, spread), and on what that rests.

        Measured by `jit(fn, chunk_size="tune")`, in this process or before; given to `jit`; or by the rule.
        """
        return choice_of_plan(self._traced("plan_choice"))

    @functools.cached_property
    def call_tree(self) -> CallTreeRecord:
        """FLOPs, traffic and collectives on the user's functions, modules and lines. Nothing is compiled.

        Those of the compiled program, with memory, are `inspect().call_tree`.
        """
        return trace_call_tree(self._traced("call_tree"))

    def inspect(
        self,
        *,
        mesh: Mesh | AbstractMesh | None = None,
        target: str | None = None,
        chip: str | None = None,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        examples_per_client: Sequence[int] | None = None,
        order: Literal["topology", "naive"] = "topology",
        force: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        timeout_seconds: float | None = None,
    ) -> ProgramRecord:
        """Everything that can be known without running: stages, shardings, collectives, memory, cost.

        Compiles the program for the devices of `mesh` (or of `jax.set_mesh`), or ahead of time for a target.

        Args:
            mesh: Mesh to inspect it on. An `AbstractMesh` is only planned, since nothing can be compiled for it.
            target: An ahead-of-time target such as "v5e:16x16" or "h100:8"; see `list_targets`.
            chip: Chip to estimate seconds for, such as "v5e". Default: that of the target; without one no seconds.
            chunk_size: As for `jit`. Default: that of `fn` if it came from `jit`, else "auto".
            examples_per_client: The true number of examples of every client, to price padding and lockstep.
            order: With a target: devices in the order that its topology prefers, or as they come ("naive").
            force: With a target: also a topology that was never tried.
            progress: With a target: called with the phase and the seconds so far.
            cancel: With a target: an event that ends the compilation once it is set.
            timeout_seconds: With a target: ends the compilation after this time.

        Returns:
            The record; `show` draws it. What could not be found out is missing and named in `notes`.

        Raises:
            MeshError: for an unknown target or one that the mesh does not fit.
            MissingDependencyError: if the compiler of the target is not installed.
            EngineError: if the compiler of the target died, was cancelled or took too long.
        """
        return inspect_call(
            self._call,
            mesh=mesh,
            target=target,
            chip=chip,
            chunk_size=None if chunk_size is AS_GIVEN else (chunk_size,),
            examples_per_client=examples_per_client,
            order=order,
            force=force,
            waiting={"progress": progress, "cancel": cancel, "timeout_seconds": timeout_seconds},
        )

    def why(self, *, large_bytes: int | None = None, **options: Unpack[InspectOptions]) -> WhyRecord:
        """Why the program communicates as it does, and why its large arrays are replicated: reasons in words.

        Args:
            large_bytes: From which size on a replicated array is explained. Default: 1 MiB, or a tenth of the largest
                value where all are smaller.
            **options: Options of `inspect`.

        Returns:
            Per collective the line that needs it, the operands that met there with their shardings, and which argument
            or constraint each mesh axis came from; per large replicated array the reason. Printing it gives the words;
            `workbench.render.render_why_text(record, details=True)` adds every step of the way.
        """
        return explain_program(self.inspect(**options), large_bytes=large_bytes)

    def show(self, *, view: str | None = None, **options: Unpack[InspectOptions]) -> None:
        """Displays the program: live in a notebook, as text in a terminal.

        Args:
            view: "program", "clients", "mesh", "sharding", "hlo", "cost" or "run". Default: the explorer.
            **options: Options of `inspect`.
        """
        _show.show_program(self, view=view, options=dict(options))

    def explore(
        self,
        *,
        gradient: Callable | ProgramRecord | None = None,
        rounds: Run | None = None,
        monitor: DeviceMonitor | None = None,
        run: RunRecord | None = None,
        timeline: TimelineRecord | None = None,
        runs: object = None,
        dock: Literal["right"] | None = None,
        layout: Layout | None = None,
        **options: Unpack[InspectOptions],
    ) -> "Explorer":
        """All views of the program in one widget, with linked selection.

        Args:
            gradient: A second program of the same arguments, shown next to it: `jax.grad(...)` of it, for example.
            rounds: A `Run`, live or finished: its curves, its clients round by round, buttons to pause and stop it.
            monitor: What `watch_devices` returned, for a view of the devices.
            run: What `measure` returned: measured seconds per client and a time line per device.
            timeline: A simulated round: who is late in it.
            runs: Several runs over one another: a sweep, what `compare_runs` returned, a list of runs, runs by name.
            dock: "right" shows it next to the notebook (JupyterLab, with the extension that this package installs).
            layout: Its place among other widgets: an `ipywidgets.Layout`, or the fields of one.
            **options: Options of `inspect`.

        Returns:
            The widget; the last line of a cell displays it. Its traits `selection` and `settings` can be linked.
        """
        return _show.explorer_of(
            self,
            gradient=gradient,
            rounds=rounds,
            monitor=monitor,
            run=run,
            timeline=timeline,
            runs=None if runs is None else record_of_thing(runs, "explore"),
            dock=dock,
            layout=layout,
            options=dict(options),
        )

    def measure(
        self,
        *,
        rounds: int = 3,
        warmup: int = 1,
        clients: Literal["together", "probe"] = "together",
        mesh: Mesh | None = None,
        chip: str | None = None,
    ) -> RunRecord:
        """Runs the program on the devices of this machine and returns measured seconds of every stage and device.

        Costs `warmup + 2 * rounds` calls: each measured call has a twin without the profiler, which gives the overhead.

        Args:
            rounds: Calls to measure.
            warmup: Calls before them that do not count.
            clients: "together" runs them as in production; "probe" runs the clients of a device one after the other,
                so that each has its own time and number of steps.
            mesh: Mesh to run it on. Default: that of `jax.set_mesh`.
            chip: Chip whose peaks the achieved rates are compared with.

        Returns:
            The run; its `results` are the program's. On a CPU, waiting for other devices is shown as waiting and never
            as communication.

        Raises:
            InspectionError: if `clients` is neither "together" nor "probe".
            EngineError: if the profiler is busy, or the program fails.
        """
        return _measure.measure_program(self._call, rounds=rounds, warmup=warmup, clients=clients, mesh=mesh, chip=chip)

    def tap(
        self,
        *,
        client: int | tuple[int, ...] = 0,
        most_values: int = 10_000,
        most_bytes: int = 64 << 20,
        only: str | tuple[str, ...] | None = None,
    ) -> TapRecord:
        """Runs the program once and returns every value that one client computes, under the user's own names.

        Args:
            client: Which client; of clients inside clients, the outer and the inner one: `(2, 0)`.
            most_values: How many values to keep; the first ones.
            most_bytes: How many bytes of arrays to keep; of later ones only their figures.
            only: Files whose lines are of interest: `"train.py"`, `("src/*.py", "model.py")`. Values of other files, as
                those of an optimizer's library, are left out; inputs and what is emitted stay.

        Raises:
            InspectionError: if the program has no such client.
            EngineError: if a stage fails; `stage` and `client` name where.
        """
        fn, args = self._replayed("tap")
        return tap_program(fn, *args, client=client, most_values=most_values, most_bytes=most_bytes, only=only)

    def play(self) -> "PlayerView":
        """A player of one call: what is sent, what clients compute step by step, what comes back, from real values.

        Costs one evaluation of the program in this process. Numbers that clients `emit` are their courses over local
        steps. Under a mesh the program is compiled as well, and its collectives can be played message by message.

        Returns:
            The widget; the last line of a cell displays it. `.to_html("round.html")` saves it.

        Raises:
            InspectionError: if the program computes nothing.
        """
        fn, args = self._replayed("play")
        return _show.player_of(self, fn, args)

    def try_specs(
        self,
        specs: Mapping[str, Spec],
        *,
        mesh: Mesh | AbstractMesh | None = None,
        target: str | None = None,
        compiled: bool = True,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> WhatIfRecord:
        """What other PartitionSpecs of the arguments would cause: shards, bytes, collectives. Nothing runs.

        Args:
            specs: The new spec by leaf: `{"params['w']": P(None, "model")}`. A name above several leaves (`"params"`)
                means all of them. A spec is a `PartitionSpec`, or a sequence of mesh axes per dimension.
            mesh: The mesh; by default that of `jax.set_mesh`. An abstract one needs no devices.
            target: An ahead-of-time target, such as "v5e:4x4".
            compiled: Whether to compile; without it only what Shardy plans is known, in milliseconds.
            chunk_size: As for `inspect`.
            progress: Called with the phase and the seconds so far.
            cancel: Ends the compilation once it is set, from any thread (except for an accelerator of this machine).

        Returns:
            The program before and after, and what became of its collectives, by stage and mesh axis.

        Raises:
            MeshError: if there is no mesh, or a spec does not fit its array or the mesh; all that do not are named.
            InspectionError: if JAX refuses the program with these shardings.
            EngineError: if the compiler dies or refuses, or `cancel` is set.
        """
        options: dict[str, Any] = {} if chunk_size is AS_GIVEN else {"chunk_size": chunk_size}
        made = WhatIf(self._traced("try_specs"), mesh=mesh, target=target, **options)
        planned = made.plan(specs)
        return made.compile(planned, progress=progress, cancel=cancel) if compiled else planned

    def advise(self, *, verify: bool = True, **options: Unpack[InspectOptions]) -> AdviceRecord:
        """Ranked findings: what to change, why, with which evidence, and what it gains.

        Inspects the program once; with `verify` every change that can be applied from outside (donation, shardings)
        is compiled, and those that gain nothing are left out. Nothing runs.

        Args:
            verify: Whether to compile the changes.
            **options: Options of `inspect`.

        Returns:
            The findings, most important first, and the rules that were checked.

        Raises:
            InspectionError: if the program can only be planned on the mesh given.
        """
        recompile = recompiler(self, dict(options)) if verify else None
        waiting = {"progress": options.get("progress"), "cancel": options.get("cancel")}
        record = self.inspect(**options)
        planner = planner_of(self, dict(options))
        chunk = chunk_of(self, dict(options))
        return advise_record(record, recompile=recompile, planner=planner, fn=self.fn, chunk_size=chunk, **waiting)

    def suggest_shardings(
        self,
        *,
        mesh: Mesh | AbstractMesh | None = None,
        chip: str | None = None,
        lock: Mapping[str, Spec] | None = None,
        seconds: float = 60.0,
        compiled: bool = True,
        compiler: Literal["auto", "cpu"] = "auto",
        memory_bytes: int | None = None,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        found: Callable[[ShardingSearchRecord], None] | None = None,
    ) -> ShardingSearchRecord:
        """Searches PartitionSpecs for the arguments: the fastest that fit, with what each sends. Nothing runs.

        The same parameter of all layers shares one spec, optimizer states follow their parameters, and results that
        take the place of an argument have its spec. Shardy propagates every choice and a cost model prices it; the
        best few are compiled for the chip, or for CPU devices where its compiler is not installed, and priced again.
        For a program with clients the best specs are tried with other chunk sizes too; among equal seconds the choice
        of `chunk_size="auto"` for the chip comes first.

        Args:
            mesh: The mesh; by default that of `jax.set_mesh`. An abstract one needs no devices.
            chip: The chip whose seconds count, such as "v5p". Default: "v5e", and a note says so.
            lock: Specs that stay as they are, by pattern: `{"batch": P("data"), "params['layers'][*]['up']": P()}`.
            seconds: Time for the search; the best choices known by then are returned. One compilation is always made.
            compiled: Whether to compile the best few; without it every figure is that of the cost model.
            compiler: "auto" compiles for the chip; "cpu" for CPU devices even where the chip's compiler is installed.
            memory_bytes: What one device may use, a hard limit. Default: the memory of the chip.
            progress: Called with what is done now and the seconds so far.
            cancel: Ends the search once it is set, from any thread; what was found by then is returned.
            found: Called with the record so far whenever a better choice is known.

        Returns:
            The choices, the fastest that fits first: `.best.specs`, `.code()`, `.to_pandas()`, `.specs` for
            `try_specs`. `pareto` marks those that no other one beats in both seconds and memory.

        Raises:
            MeshError: if there is no mesh of several devices, or a locked spec does not fit.
            InspectionError: if Shardy does not propagate the program in this process.

        References:
            Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning", 2022.
        """
        return search_shardings(
            self._traced("suggest_shardings"),
            mesh=mesh,
            chip=chip,
            lock=lock,
            seconds=seconds,
            compiled=compiled,
            compiler=compiler,
            memory_bytes=memory_bytes,
            progress=progress,
            cancel=cancel,
            found=found,
        )

    def suggest_mesh(
        self,
        *,
        chips: str,
        axes: Sequence[str] | None = None,
        lock: Mapping[str, Spec] | None = None,
        seconds: float = 120.0,
        compiled: bool = True,
        compiler: Literal["auto", "cpu"] = "auto",
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> ShardingSearchRecord:
        """Searches mesh shapes and PartitionSpecs together: which sizes of the axes, and which specs on them.

        Every way to share the devices between the axes is searched as `suggest_shardings` does, for a program with
        clients with several chunk sizes, and the best few choices of all are compiled.

        Args:
            chips: The machine, such as "v5e:16x16".
            axes: Names of the mesh's axes. Default: those of the current mesh, else "model" after the axis of the
                program's clients, or after "data" without any.
            lock: Specs that stay as they are, by pattern.
            seconds: Time for all meshes together.
            compiled: Whether to compile the best few.
            compiler: "auto" compiles for the chip; "cpu" for CPU devices even where the chip's compiler is installed.
            progress: Called with what is done now and the seconds so far.
            cancel: Ends the search once it is set.

        Returns:
            The choices over all meshes, compiled ones first; `.best.mesh` is the mesh, `.best.chunk_size` how many
            clients a device computes together, and `.code()` has both.

        Raises:
            MeshError: for an unknown machine, or if the program can be planned on no mesh of it.
        """
        return search_mesh(
            self._traced("suggest_mesh"),
            chips=chips,
            axes=axes,
            lock=lock,
            seconds=seconds,
            compiled=compiled,
            compiler=compiler,
            progress=progress,
            cancel=cancel,
        )

    def fit(
        self,
        *,
        targets: Sequence[str],
        axes: Sequence[str] | None = None,
        seconds: float = 60.0,
        compiled: bool = True,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> FitTableRecord:
        """The smallest slice of each family on which the program fits, and the predicted seconds of a call there.

        On every slice, from the smallest, the best shardings over one mesh axis are searched and compiled, until the
        compiler says that they fit. For a program with clients the chunk size is searched as well.

        Args:
            targets: Families such as "v5e"; or slices such as "v5e:8x8", for those up to it.
            axes: The first takes all devices. Default: that of the program's clients, else "data".
            seconds: Time for the searches of all families together; compilations come on top.
            compiled: Whether to compile. Without it, or without the compiler of a family, the plan's peak decides.
            progress: Called with what is done now and the seconds so far.
            cancel: Ends it once it is set.

        Returns:
            One row per family.

        Raises:
            MeshError: for an unknown family.
        """
        return fit_program(
            self._traced("fit"),
            targets=targets,
            axes=axes,
            seconds=seconds,
            compiled=compiled,
            progress=progress,
            cancel=cancel,
        )

    def export(
        self,
        *,
        platforms: Sequence[str] | None = None,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        derivatives: int = 0,
    ) -> _export.ExportedProgram:
        """The program, its clients included, as StableHLO bytes that another process or machine can run.

        Compiles nothing. The shardings of the arguments are kept, and with them the number of devices.

        Args:
            platforms: Platforms it will run on, as ("cpu", "tpu"). Default: that of this process.
            chunk_size: As for `jit`.
            derivatives: How many times the loaded program can be differentiated in reverse.

        Returns:
            The bytes; `load` makes a callable of them.

        Raises:
            InspectionError: if the program holds something that StableHLO cannot: callbacks, own pytree classes that
                are not registered with `jax.export`.

        Example:
            >>> saved = wb.trace(lambda x: x**2)(jnp.float32(0)).export()
            >>> float(wb.load(saved)(jnp.float32(3)))
            9.0
        """
        return _export.export_program(
            self._traced("export"),
            platforms=platforms,
            chunk_size=None if chunk_size is AS_GIVEN else (chunk_size,),
            derivatives=derivatives,
        )

    def engine(self, engine: Engine) -> "EngineCall":
        """The same call on another system: `traced.engine(Beam()).run()`.

        Args:
            engine: Such as `workbench.engines.Executor(pool)`.

        Example:
            >>> total = wb.program(clients=4)(wb.reduce_sum)
            >>> float(wb.trace(total)(jnp.arange(4.0)).engine(wb.engines.Sequential()).run().results)
            6.0
        """
        return EngineCall(self, engine)

    def of(self, fn: Callable) -> "Traced":
        """A call of another function with the same arguments.

        Example:
            >>> squares = lambda x: (x**2).sum()
            >>> gradient = wb.trace(squares)(jnp.ones(3)).of(jax.grad(squares))
            >>> gradient.inspect().module.memory.output_bytes
            12
        """
        return Traced(fn, self.args, self.kwargs)

    def with_shapes(self) -> "Traced":
        """The same call with shapes for arguments: it keeps no array alive."""
        if isinstance(self._call, LoweredCall):
            return self
        call = self._call.with_shapes()
        return Traced(self.fn, call.args, call.kwargs, call=call)

    def _traced(self, question: str) -> TracedCall:
        if isinstance(self._call, TracedCall):
            return self._call
        message = (
            f"`{question}` was given `{self.name}`, a {type(self.fn).__name__} that shows what it lowers and not the "
            "function that it traces. It needs the traced function: pass the function without this wrapper."
        )
        raise InspectionError(message)

    def _replayed(self, question: str) -> tuple[Callable, tuple[Argument, ...]]:
        """The program as a function of its arrays alone, which gives the traced equations again."""
        call = self._traced(question)
        if not call.kwargs:
            return call.replayed, call.args
        names = tuple(call.kwargs)
        count = len(call.args)

        @functools.wraps(call.replayed)
        def positional(*args: Argument) -> Argument:
            return call.replayed(*args[:count], **dict(zip(names, args[count:], strict=True)))

        kind = inspect_module.Parameter.POSITIONAL_ONLY
        parameters = [inspect_module.Parameter(f"arg{number}", kind) for number in range(count)]
        try:
            known = list(inspect_module.signature(call.parameters).parameters)
        except (TypeError, ValueError):
            known = []
        parameters = (
            [inspect_module.Parameter(name, kind) for name in known[:count]] if len(known) > count else parameters
        )
        keywords = [inspect_module.Parameter(name, kind) for name in names]
        unique = {parameter.name: parameter for parameter in (*parameters, *keywords)}
        if len(unique) == count + len(names):
            vars(positional)["__signature__"] = inspect_module.Signature(list(unique.values()))
        return positional, (*call.args, *call.kwargs.values())

    def __repr__(self) -> str:
        return (
            f"<traced {self.name}: {len(jax.tree.leaves((self.args, self.kwargs)))} arrays; `.plan`, `.inspect()`, …>"
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return render.display_object("Traced", render.render_text(self.plan))


class EngineCall:
    """A traced call on one engine."""

    def __init__(self, traced: Traced, engine: Engine) -> None:
        self.traced: Traced = traced
        self.on: Engine = engine

    def run(self, *, progress: Progress | None = None, cancel: threading.Event | None = None) -> RunRecord:
        """Runs it there; the record's `results` are the program's.

        Raises:
            EngineError: if a stage fails; `stage` and `client` name where.
        """
        fn, args = self.traced._replayed("engine")
        return self.on.run(fn, *args, progress=progress, cancel=cancel)


def trace(fn: Callable, *, mesh: Mesh | AbstractMesh | None = None) -> Callable[..., Traced]:
    """A function of the arguments of `fn` that returns what the call would do; as `jax.jit(fn).trace`.

    `fn` is called once, when it is traced; no question about the traced call calls it again. (The exception is a
    program that names a mesh itself, by `shard_map` for instance, asked about on another mesh: a note says that.)

    Args:
        fn: A program, any function that calls programs, a derivative of one; what `jit`, `jax.jit`, `nnx.jit` or
            `eqx.filter_jit` returned, with the options that they were given; partial calls, methods, callable objects.
        mesh: Mesh to trace it under. Default: that of `jax.set_mesh`.

    Returns:
        A function: `trace(fn)(*args, **kwargs)` is a `Traced`. Arguments are pytrees of arrays or
        `jax.ShapeDtypeStruct`s; what else is in them (strings, functions, settings) is held fixed.

    Raises:
        InspectionError: if `fn` is not a function.
        ProgramError: of the call, for arguments that cannot be traced: too few or too many, deleted arrays, containers
            inside themselves.

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
    if not callable(fn):
        message = (
            f"`trace` received a {type(fn).__name__}, which is not a function. It traces a call of a function: pass "
            "the function, then its arguments: `trace(fn)(*args)`. Meshes, arrays and records go to `inspect`, `show`."
        )
        raise InspectionError(message)

    @functools.wraps(fn)
    def call(*args: Argument, **kwargs: Argument) -> Traced:
        check_call("`trace`", fn, args, kwargs)
        return Traced(fn, args, kwargs, mesh=mesh)

    return call


@overload
def inspect(x: Callable, **options: Unpack[InspectOptions]) -> Callable[..., ProgramRecord]: ...
@overload
def inspect(x: Mesh | AbstractMesh) -> MeshRecord: ...
@overload
def inspect(
    x: ProgramRecord | Traced | jax.stages.Lowered | jax.stages.Compiled | str | bytes | Path,
    **options: Unpack[InspectOptions],
) -> ProgramRecord: ...
@overload
def inspect(x: object, **options: Unpack[InspectOptions]) -> Argument: ...
@options_of(Traced.inspect)
def inspect(x: object, **options: Unpack[InspectOptions]) -> Record | Callable[..., ProgramRecord]:
    """Reads a program without running it, or a mesh, arrays, a compiled program, HLO or StableHLO text, files of these.

    `inspect(fn, target="v5e:4x4")(*args)` is `trace(fn)(*args).inspect(target="v5e:4x4")`.

    Args:
        x: A function; or a mesh; an array, a pytree with arrays (a module, an optimizer state); what `jax.jit` gives on
            the way (`Traced`, `Lowered`, `Compiled`); a `jax.export.Exported`; the text of an HLO or StableHLO module,
            an HLO proto, the path of a file of these or of a directory that `xla_dump_to` filled.
        **options: With a program, the options of `Traced.inspect`.

    Returns:
        For a function, a function of its arguments that returns a `ProgramRecord`; for other programs the
        `ProgramRecord`; for a mesh a `MeshRecord`, for arrays a `ShardingRecord`. What cannot be known from what was
        given is missing, and named in `notes`.

    Raises:
        InspectionError: if `x` is none of these.

    Example:
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> inspect(mean_square)(jnp.ones(8)).module.devices
        1
        >>> inspect(jnp.ones((4, 2))).leaves[0].shape
        (4, 2)
    """
    return _asked(x, Traced.inspect, options) if is_program(x) else record_of_thing(x, "inspect", **options)


@overload
def show(x: Callable, **options: Unpack[ShowOptions]) -> Callable[..., None]: ...
@overload
def show(x: object, **options: Unpack[ShowOptions]) -> Callable[..., None] | None: ...
@options_of(Traced.show)
def show(x: object, **options: Unpack[ShowOptions]) -> Callable[..., None] | None:
    """Displays a program, mesh, array, pytree, record, run or launched program: live in a notebook, else as text.

    `show(fn)(*args)` is `trace(fn)(*args).show()`. A display never ends the cell: if the live view cannot be made, the
    static picture or the text is shown with the reason.

    Args:
        x: A function; or a mesh, an array, a pytree of arrays, any record, a `Run`, several runs (a sweep, what
            `compare_runs` returned, a list of runs, runs by name), a device monitor, a program of nodes before launch,
            or what `launch` returned.
        **options: With a function, `view=` and the options of `Traced.inspect`; with a record, `view=`.

    Returns:
        For a function, a function of its arguments; else None.

    Raises:
        InspectionError: if nothing is known to show of `x`.

    Example:
        >>> show(jnp.ones((4, 2)))  # doctest: +ELLIPSIS
        1 array...
    """
    return _asked(x, Traced.show, options) if is_program(x) else _show.show_thing(x, **options)


@overload
def explore(x: Callable, **options: Unpack[ExploreOptions]) -> "Callable[..., Explorer]": ...
@overload
def explore(x: ProgramRecord, **options: Unpack[ExploreOptions]) -> "Explorer": ...
@overload
def explore(x: object, **options: Unpack[ExploreOptions]) -> Argument: ...
@options_of(Traced.explore)
def explore(x: object, **options: Unpack[ExploreOptions]) -> "WorkbenchWidget | Callable[..., Explorer]":
    """The widget of a function, record, mesh, array or run: `explore(fn)(*args)` is `trace(fn)(*args).explore()`.

    The widget is an ipywidget: put it into boxes and tabs, observe its traits `selection` and `settings`, link them.

    Args:
        x: A function; or whatever `show` displays: a mesh, an array, a pytree of arrays, a record with a live view, a
            `Run`, several runs (drawn over one another), a device monitor, what `launch` returned.
        **options: The options of `Traced.explore`; only `layout=` for what is no program.

    Returns:
        For a function, a function of its arguments that returns the widget; for the others the widget.

    Raises:
        InspectionError: if nothing is known of `x`, or it has no live view.

    Example:
        >>> type(explore(jnp.ones((4, 2)))).__name__
        'ShardingView'
    """
    return _asked(x, Traced.explore, options) if is_program(x) else _show.explore_thing(x, **options)


@overload
def why(x: Callable, **options: Unpack[WhyOptions]) -> Callable[..., WhyRecord]: ...
@overload
def why(x: object, **options: Unpack[WhyOptions]) -> Argument: ...
@options_of(Traced.why)
def why(x: object, **options: Unpack[WhyOptions]) -> WhyRecord | Callable[..., WhyRecord]:
    """Why a program communicates: `why(fn)(*args)` is `trace(fn)(*args).why()`.

    Args:
        x: A function; or what `inspect` reads without arguments: a `ProgramRecord`, a `Lowered`, StableHLO text, ….
        **options: The options of `Traced.why`.

    Returns:
        For a function, a function of its arguments that returns the reasons; for other programs the reasons.

    Raises:
        InspectionError: if `x` is no program.

    Example:
        >>> mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> rows = jax.NamedSharding(mesh, jax.P("data"))
        >>> found = why(lambda x: x.sum(0))(jax.ShapeDtypeStruct((8, 3), "float32", sharding=rows))
        >>> found.collectives[0].reason, found.collectives[0].operands[0].origins
        ('sum', {'data': 'the argument itself'})
    """
    if is_program(x):
        return _asked(x, Traced.why, options)
    large_bytes = options.pop("large_bytes", None)
    record = record_of_thing(x, "why", **options)
    if not isinstance(record, ProgramRecord):
        message = (
            f"`why` received a {type(x).__name__}, which is not a program but a {type(record).__name__}. Reasons are "
            "given for the collectives of a program: pass a function, `why(fn)(*args)`, or what `jax.jit` makes of one."
        )
        raise InspectionError(message)
    return explain_program(record, large_bytes=large_bytes)


@options_of(Traced.measure)
def measure(fn: Callable, **options: Unpack[MeasureOptions]) -> Callable[..., RunRecord]:
    """Runs a program and times it: `measure(fn, rounds=5)(*args)` is `trace(fn)(*args).measure(rounds=5)`.

    Args:
        fn: A function.
        **options: The options of `Traced.measure`.

    Returns:
        A function of the arguments of `fn` that returns the run.

    Example:
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> float(measure(mean_square, rounds=1)(jnp.ones(8)).results)
        1.0
    """
    return _asked(fn, Traced.measure, options)


@options_of(Traced.tap)
def tap(fn: Callable, **options: Unpack[TapOptions]) -> Callable[..., TapRecord]:
    """Every value that one client computes: `tap(fn, client=3)(*args)` is `trace(fn)(*args).tap(client=3)`.

    Args:
        fn: A function.
        **options: The options of `Traced.tap`.

    Returns:
        A function of the arguments of `fn` that returns the values.

    Example:
        >>> @program(clients=4)
        ... def total(x):
        ...     def square(row):
        ...         doubled = 2 * row
        ...         return doubled**2
        ...     return wb.reduce_sum(map_fn(square, x))
        >>> record = tap(total, client=3)(np.arange(4, dtype=np.float32))
        >>> float(record.find("doubled")[0].value), float(record.results)
        (6.0, 56.0)
    """
    return _asked(fn, Traced.tap, options)


def play(fn: Callable) -> Callable[..., Any]:
    """Plays one call of a program step by step: `play(fn)(*args)` is `trace(fn)(*args).play()`.

    Args:
        fn: A function.

    Returns:
        A function of the arguments of `fn` that returns the widget.

    Example:
        >>> @program(clients=4)
        ... def total(x):
        ...     return wb.reduce_sum(map_fn(lambda row: row**2, x))
        >>> print(wb.play(total)(jnp.arange(4.0)).text())
        total, played step by step
          0 clients: <lambda>, 4 clients
          1 reduce: reduce_sum, 4 clients, 16 B sent
    """
    return _asked(fn, Traced.play, {})


@options_of(Traced.try_specs)
def try_specs(fn: Callable, specs: Mapping[str, Spec], **options: Unpack[SpecsOptions]) -> Callable[..., WhatIfRecord]:
    """What other PartitionSpecs would cause: `try_specs(fn, specs)(*args)` is `trace(fn)(*args).try_specs(specs)`.

    Args:
        fn: A function.
        specs: The new spec by leaf; see `Traced.try_specs`.
        **options: The other options of `Traced.try_specs`.

    Returns:
        A function of the arguments of `fn` that returns the program before and after.

    Example:
        >>> @program(clients=8)
        ... def spread(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> mesh = jax.sharding.AbstractMesh((4, 2), ("clients", "model"))
        >>> x = jax.ShapeDtypeStruct((8, 6), "float32")
        >>> tried = try_specs(spread, {"x": ("clients", "model")}, mesh=mesh, compiled=False)(x)
        >>> tried.after.inputs.leaves[0].shard_shape
        (2, 3)
    """
    return _asked(fn, Traced.try_specs, dict(options, specs=specs))


@options_of(Traced.advise)
def advise(fn: Callable, **options: Unpack[AdviseOptions]) -> Callable[..., AdviceRecord]:
    """What to change in a program: `advise(fn)(*args)` is `trace(fn)(*args).advise()`.

    Args:
        fn: A function.
        **options: The options of `Traced.advise`.

    Returns:
        A function of the arguments of `fn` that returns ranked findings.

    Example:
        >>> advice = advise(jax.jit(lambda old, new: 0.9 * old + 0.1 * new))(jnp.ones((64, 64)), jnp.ones((64, 64)))
        >>> [finding.rule for finding in advice.findings]
        ['missing donation']
    """
    return _asked(fn, Traced.advise, options)


@options_of(Traced.suggest_shardings)
def suggest_shardings(fn: Callable, **options: Unpack[SuggestOptions]) -> Callable[..., ShardingSearchRecord]:
    """Specs for a program's arguments: `suggest_shardings(fn)(*args)` is `trace(fn)(*args).suggest_shardings()`.

    Args:
        fn: A function.
        **options: The options of `Traced.suggest_shardings`.

    Returns:
        A function of the arguments of `fn` that returns the choices that were found.

    Example:
        >>> def predict(params, batch):
        ...     return jnp.tanh(batch @ params["up"]) @ params["down"]
        >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
        >>> shape = jax.ShapeDtypeStruct((512, 512), "float32")
        >>> search = suggest_shardings(predict, mesh=mesh, compiled=False)({"up": shape, "down": shape}, shape)
        >>> search.best.specs
        {'batch': (('data',), ())}
    """
    return _asked(fn, Traced.suggest_shardings, options)


@options_of(Traced.suggest_mesh)
def suggest_mesh(fn: Callable, **options: Unpack[MeshOptions]) -> Callable[..., ShardingSearchRecord]:
    """Mesh and specs for a program: `suggest_mesh(fn, chips=c)(*args)` is `trace(fn)(*args).suggest_mesh(chips=c)`.

    Args:
        fn: A function.
        **options: The options of `Traced.suggest_mesh`.

    Returns:
        A function of the arguments of `fn` that returns the choices that were found.

    Example:
        >>> predict = lambda w, batch: jnp.tanh(batch @ w)
        >>> w, batch = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((65536, 64), "float32")
        >>> search = suggest_mesh(predict, chips="v5e:2x2", axes=("data",), compiled=False)(w, batch)
        >>> search.best.mesh, search.best.specs
        ({'data': 4}, {'batch': (('data',), ())})
    """
    return _asked(fn, Traced.suggest_mesh, options)


@options_of(Traced.fit)
def fit(fn: Callable, **options: Unpack[FitOptions]) -> Callable[..., FitTableRecord]:
    """The smallest machines for a program: `fit(fn, targets=t)(*args)` is `trace(fn)(*args).fit(targets=t)`.

    Args:
        fn: A function.
        **options: The options of `Traced.fit`.

    Returns:
        A function of the arguments of `fn` that returns one row per family.

    Example:
        >>> predict = lambda w, batch: jnp.tanh(batch @ w)
        >>> w, batch = jax.ShapeDtypeStruct((4096, 4096), "float32"), jax.ShapeDtypeStruct((64, 4096), "float32")
        >>> [(row.target, row.fits) for row in fit(predict, targets=["v5e"], compiled=False)(w, batch).rows]
        [('v5e:1x1', True)]
    """
    return _asked(fn, Traced.fit, options)


@options_of(Traced.export)
def export(fn: Callable, **options: Unpack[ExportOptions]) -> Callable[..., _export.ExportedProgram]:
    """A program as StableHLO bytes: `export(fn)(*args)` is `trace(fn)(*args).export()`.

    Args:
        fn: A function.
        **options: The options of `Traced.export`.

    Returns:
        A function of the arguments of `fn` that returns the bytes; `load` makes a callable of them.

    Example:
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> float(wb.load(export(mean_square)(jnp.ones(8)))(jnp.arange(8.0)))
        17.5
    """
    return _asked(fn, Traced.export, options)


def _asked(fn: Callable, question: Callable, options: Mapping[str, Any]) -> Callable[..., Any]:
    traced = trace(fn, mesh=options.get("mesh"))

    @functools.wraps(fn)
    def call(*args: Argument, **kwargs: Argument) -> Argument:
        shown = question in _LONG and options.get("progress") is None and _show.is_watched()
        with waiting(getattr(fn, "__name__", "the program"), "tracing", shown=shown):
            made = traced(*args, **kwargs)
            say_phase(_LONG.get(question, ""))
            return question(made, **options)

    return call


# Questions that people wait for in front of a notebook, and what is done after tracing.
_LONG: dict[Callable, str] = {
    Traced.show: "compiling and reading what was compiled",
    Traced.explore: "compiling and reading what was compiled",
    Traced.measure: "compiling and measuring",
    Traced.tap: "evaluating it, the client operation by operation",
    Traced.play: "evaluating it",
    Traced.advise: "looking for advice, compiling each change",
}
