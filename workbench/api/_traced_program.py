"""Questions about one traced call that do not open a view."""

import functools
import inspect as inspect_module
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, Unpack

import jax
from jax.sharding import AbstractMesh, Mesh

from workbench import render
from workbench._open_types import AS_GIVEN, AsGiven, Examples
from workbench._types import Argument, Spec
from workbench.advice import Variants, advise_call, search_call
from workbench.api import _export, _measure
from workbench.api._options import InspectOptions, Progress, asked, inspect_options
from workbench.api._waiting import is_watched, say_phase, waiting
from workbench.engines import tap as tap_program
from workbench.errors import InspectionError, MeshError, ProgramError
from workbench.inspection import (
    Inspected,
    LoweredCall,
    On,
    TracedCall,
    explain_program,
    function_name,
    inspect_call,
    machine_of,
    plan_call,
    trace_call,
)
from workbench.inspection.what_if import WhatIf
from workbench.measurement import Watch
from workbench.plan import ChunkSize
from workbench.records.advice import AdviceRecord, SearchRecord
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import ProgramRecord, WhatIfRecord
from workbench.records.live import TapRecord
from workbench.records.program import PlanChoiceRecord, PlanRecord
from workbench.records.run import RunRecord
from workbench.records.sharding import WhyRecord


class TracedProgram(Inspected):
    """One traced call of a function, with the questions that do not open a view."""

    def __init__(
        self,
        fn: Callable,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        *,
        mesh: Mesh | AbstractMesh | None = None,
        call: TracedCall | LoweredCall | None = None,
        symbolic: ProgramError | None = None,
    ) -> None:
        fn = getattr(fn, "__wrapped__", fn) if isinstance(fn, Watch) else fn
        self.fn: Callable = fn
        self.args: tuple[Argument, ...] = args
        self.kwargs: dict[str, Argument] = kwargs
        self.name: str = function_name(fn)
        self._symbolic = symbolic  # reason why only `export` is available
        if symbolic is None:
            self._known = trace_call(fn, args, kwargs, mesh) if call is None else call

    @property
    def _call(self) -> TracedCall | LoweredCall:
        if self._symbolic is not None:
            raise self._symbolic
        return self._known

    @functools.cached_property
    def plan(self) -> PlanRecord:
        """The stages of the program: server, clients, and communication between them. Nothing is compiled."""
        return plan_call(self._call)

    @property
    def plan_choice(self) -> PlanChoiceRecord:
        """The client-loop configuration (chunk size, kept rows, spread), and its source.

        The source is a measurement by `jit(fn, chunk_size="tune")` in this or an earlier process, the arguments of
        `jit`, or the default rule.
        """
        return self._traced("plan_choice").read_choice()

    @functools.cached_property
    def call_tree(self) -> CallTreeRecord:
        """FLOPs, traffic and collectives, assigned to the user's functions, modules and lines. Nothing is compiled.

        `inspect().call_tree` has the figures for the compiled program, including memory.
        """
        return self._traced("call_tree").read_tree()

    @asked("inspect")
    def inspect(
        self,
        *,
        on: On = None,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        examples_per_client: Examples | None = None,
        order: Literal["topology", "naive"] = "topology",
        force: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        timeout_seconds: float | None = None,
    ) -> ProgramRecord:
        """Inspects the program without running it: stages, shardings, collectives, memory, cost.

        Compiles the program for the devices of a mesh (default: the mesh set by `jax.set_mesh`), or ahead of time for a
        target.

        Args:
            on: The machine, given as a mesh; a compilation target such as "v5e:16x16" or "h100:8" (see `list_targets`);
                a chip whose rates determine the predicted times, such as "v5e"; or a tuple of at most one mesh, one
                target and one chip. For an `AbstractMesh`, the program is not compiled. Times are estimated only if a
                target or a chip is given.
            chunk_size: The chunk size, as in `jit`. Default: the chunk size of `fn` if `fn` is a result of `jit`,
                otherwise "auto".
            examples_per_client: The true number of examples of every client. The numbers of examples determine the cost
                of padding, and of clients that wait for larger clients in the same chunk. If no argument is named
                `mask`, also pass the padded number of examples per client, as in `(counts, 64)`.
            order: Order of a target's devices: the order of the target's topology, or the compiler's order ("naive").
            force: Whether to accept an untested topology of a target.
            progress: Called with the phase and the elapsed seconds; only with a target.
            cancel: Event that stops the compilation when it is set; only with a target.
            timeout_seconds: Stops the compilation after this time; only with a target.

        Returns:
            The record; `show` draws it. `notes` list what is missing.

        Raises:
            MeshError: for an unknown target, or for a target whose devices do not match the mesh.
            MissingDependencyError: if the target's compiler is not installed.
            EngineError: if the target's compiler died, was cancelled or timed out.

        Example:
            >>> @program(clients=8)
            ... def mean_square(x):
            ...     return reduce_mean(map_fn(lambda row: row**2, x))
            >>> wb.inspect(mean_square)(jnp.ones(8)).module.devices
            1
            >>> wb.inspect(jnp.ones((4, 2))).leaves[0].shape
            (4, 2)
        """
        options = inspect_options(
            "inspect",
            on=on,
            chunk_size=chunk_size,
            examples_per_client=examples_per_client,
            order=order,
            force=force,
            progress=progress,
            cancel=cancel,
            timeout_seconds=timeout_seconds,
        )
        return inspect_call(self._call, **options)

    @asked("why")
    def why(self, *, large_bytes: int | None = None, **options: Unpack[InspectOptions]) -> WhyRecord:
        """Explains in words why the program communicates, and why large arrays are replicated.

        Args:
            large_bytes: Minimum size of a replicated array for it to be explained. Default: 1 MiB, or a tenth of the
                largest value if all values are smaller than 1 MiB.
            **options: Options of `inspect`.

        Returns:
            For each collective, the line that needs it, the operands with their shardings, and the argument or
            constraint from which each mesh axis came. For each large replicated array, the reason. `print` shows the
            explanations; `workbench.render.text(record, details=True)` adds every propagation step.

        Example:
            >>> mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
            >>> rows = jax.NamedSharding(mesh, jax.P("data"))
            >>> found = wb.why(lambda x: x.sum(0))(jax.ShapeDtypeStruct((8, 3), "float32", sharding=rows))
            >>> found.collectives[0].reason, found.collectives[0].operands[0].origins
            ('sum', {'data': 'the argument itself'})
        """
        return explain_program(self.inspect(**options), large_bytes=large_bytes)

    @asked("measure")
    def measure(
        self, *, rounds: int = 3, warmup: int = 1, clients: Literal["together", "probe"] = "together", on: On = None
    ) -> RunRecord:
        """Runs the program on this machine's devices and measures the time of every stage and device.

        Costs `warmup + 2 * rounds` calls: to compute the overhead, each measured call is paired with a call without the
        profiler.

        Args:
            rounds: Number of calls to measure.
            warmup: Number of calls before the measured calls; they are not counted.
            clients: "together" runs clients as in production. "probe" runs the clients on a device one after another,
                to measure each client's time and number of steps. Clients that the compiler merges into one kernel
                are called separately, for at most 10 s; a note states this.
            on: Mesh to run the program on (default: the mesh set by `jax.set_mesh`), a chip whose peaks are compared
                with the achieved rates, or both.

        Returns:
            The run; its `results` are the program's results. On a CPU, time spent waiting for other devices counts as
            waiting, never as communication.

        Raises:
            InspectionError: if `clients` is neither "together" nor "probe".
            MeshError: if `on` contains an `AbstractMesh`.
            EngineError: if the profiler is busy, or the program fails.

        Example:
            >>> @program(clients=8)
            ... def mean_square(x):
            ...     return reduce_mean(map_fn(lambda row: row**2, x))
            >>> float(wb.measure(mean_square, rounds=1)(jnp.ones(8)).results)
            1.0
        """
        machine = machine_of(on, "measure", reads=("mesh", "chip"))
        if isinstance(machine.mesh, AbstractMesh):
            message = (
                "`measure` was given an `AbstractMesh`, which has no devices to run on. `measure` runs on devices of "
                "this machine: pass a mesh from `wb.make_mesh`, or use `inspect`, which does not run the program."
            )
            raise MeshError(message)
        return _measure.measure_program(
            self._call,
            rounds=rounds,
            warmup=warmup,
            clients=clients,
            mesh=machine.mesh,
            chip=machine.chip,
            replayed=lambda: self._replayed("measure"),
        )

    def tap(
        self,
        *,
        client: int | tuple[int, ...] = 0,
        most_values: int = 10_000,
        most_bytes: int = 64 << 20,
        only: str | tuple[str, ...] | None = None,
    ) -> TapRecord:
        """Runs the program once and returns all values that one client computes, under the user's names.

        Args:
            client: Number of the client; for nested placements, the numbers of the outer and the inner client, as in
                `(2, 0)`.
            most_values: Maximum number of values; the first values are kept.
            most_bytes: Maximum total bytes of arrays; for later arrays, only statistics are kept.
            only: Files whose values are kept, such as `"train.py"` or `("src/*.py", "model.py")`. Values from other
                files, such as an optimizer library, are omitted; inputs and emitted values are kept.

        Raises:
            InspectionError: if the program has no such client.
            EngineError: if a stage fails; the error's `stage` and `client` identify the place.

        Example:
            >>> @program(clients=4)
            ... def total(x):
            ...     def square(row):
            ...         doubled = 2 * row
            ...         return doubled**2
            ...     return wb.reduce_sum(map_fn(square, x))
            >>> record = wb.trace(total)(np.arange(4, dtype=np.float32)).tap(client=3)
            >>> float(record.find("doubled")[0].value), float(record.results)
            (6.0, 56.0)
        """
        fn, args = self._replayed("tap")
        with waiting(self.name, "evaluating the program, one operation of the client at a time", shown=is_watched()):
            return tap_program(fn, *args, client=client, most_values=most_values, most_bytes=most_bytes, only=only)

    @asked("what_if")
    def what_if(
        self,
        specs: Mapping[str, Spec],
        *,
        on: On = None,
        compiled: bool = True,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> WhatIfRecord:
        """Predicts shards, bytes and collectives for other argument shardings, without running the program.

        Args:
            specs: The new spec for each leaf, such as `{"params['w']": P(None, "model")}`. A name that covers several
                leaves (`"params"`) selects all of them. A spec is a `PartitionSpec`, or a sequence of mesh axes per
                dimension.
            on: The mesh (default: the mesh set by `jax.set_mesh`; an abstract mesh needs no devices), a target such as
                "v5e:4x4", or both.
            compiled: Whether to compile; otherwise only Shardy's plan is computed, which takes milliseconds.
            chunk_size: The chunk size, as in `inspect`.
            progress: Called with the phase and the elapsed seconds.
            cancel: An event, set from any thread, that stops the compilation. Compilations for an accelerator in this
                machine cannot be stopped.

        Returns:
            The program before and after, with the changes in its collectives by stage and mesh axis.

        Raises:
            MeshError: if there is no mesh, or if specs do not fit their arrays or the mesh; the error names all such
                specs.
            InspectionError: if JAX rejects the program with these shardings.
            EngineError: if the compiler dies or fails, or `cancel` is set.

        Example:
            >>> @program(clients=8)
            ... def spread(x):
            ...     return reduce_mean(map_fn(lambda row: row**2, x))
            >>> mesh = jax.sharding.AbstractMesh((4, 2), ("clients", "model"))
            >>> x = jax.ShapeDtypeStruct((8, 6), "float32")
            >>> tried = wb.trace(spread)(x).what_if({"x": ("clients", "model")}, on=mesh, compiled=False)
            >>> tried.after.inputs.leaves[0].shard_shape
            (2, 3)
        """
        options: dict[str, Any] = {} if chunk_size is AS_GIVEN else {"chunk_size": chunk_size}
        machine = machine_of(on, "what_if", reads=("mesh", "target"))
        trial = WhatIf(self._traced("what_if"), mesh=machine.mesh, target=machine.target, **options)
        planned = trial.plan(specs)
        return trial.compile(planned, progress=progress, cancel=cancel) if compiled else planned

    @asked("advise")
    def advise(
        self,
        *,
        verify: bool = True,
        measure: bool = False,
        seconds: float | None = None,
        found: Callable[[AdviceRecord], None] | None = None,
        **options: Unpack[InspectOptions],
    ) -> AdviceRecord:
        """Ranked findings: what to change, why, the evidence, and the gain.

        Inspects the program once. With `verify`, every change that needs no edit to the program (donation, shardings)
        is compiled, and changes without a gain are dropped. The program does not run, except with `measure`.

        Args:
            verify: Whether to compile the changes.
            measure: Whether to run the program before and after each compiled change, interleaved on the attached
                devices; shapes are replaced by zeros. Only programs that fit in free memory are run. `cancel` stops the
                runs.
            seconds: Total time; None means no limit. A change is not compiled if the remaining time is too short for
                one compilation. The finding of such a change remains an estimate, and a note counts these findings.
            found: Called with the record so far: first with estimates, then again after each compiled change.
            **options: Options of `inspect`. Once `cancel` is set, or after an interrupt, the findings so far are
                returned.

        Returns:
            The findings, most important first, and the rules that were checked.

        Raises:
            InspectionError: if the program cannot be compiled on the given mesh, or `seconds` is not positive.

        Example:
            >>> old = new = jnp.ones((64, 64))
            >>> advice = wb.advise(jax.jit(lambda old, new: 0.9 * old + 0.1 * new))(old, new)
            >>> [finding.rule for finding in advice.findings]
            ['missing donation']
        """
        if seconds is not None and not seconds > 0:
            message = (
                f"`advise` was given seconds={seconds!r}. `seconds` is the total time: pass a number above 0, or None "
                "for no limit."
            )
            raise InspectionError(message)
        began = time.monotonic()
        settings = inspect_options("advise", **options)
        record = inspect_call(self._call, **settings)
        variants = self._variants(settings)
        return advise_call(
            record,
            variants,
            verify=verify,
            measure=measure,
            progress=options.get("progress") or (lambda phase, _: say_phase(phase)),
            cancel=options.get("cancel"),
            found=found,
            until=None if seconds is None else began + seconds,
            compiling=time.monotonic() - began,
        )

    @asked("search")
    def search(
        self,
        *,
        on: On = None,
        axes: Sequence[str] | None = None,
        lock: Mapping[str, Spec] | None = None,
        seconds: float | None = None,
        compiled: bool = True,
        compiler: Literal["auto", "cpu"] = "auto",
        memory_bytes: int | None = None,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
        found: Callable[[SearchRecord], None] | None = None,
        measure: bool = False,
    ) -> SearchRecord:
        """Searches for the fastest shardings that fit, optionally also for meshes or the smallest slice.

        The program does not run, except with `measure`.

        `on` decides what is searched:

        * a mesh (default: the mesh of `jax.set_mesh`), alone or with a chip, `(mesh, "v5p")`: PartitionSpecs on this
          mesh;
        * a target, `"v5e:16x16"`: every way to divide its devices among the axes, with the specs on each mesh;
        * a chip, `"v5e"`, or a list of chips and targets, `["v5e", "h100:8"]`: the smallest slice of each family that
          fits the program over one axis; a target is the largest slice to try.

        Each parameter has the same spec in all layers, optimizer states follow their parameters, and results that
        replace an argument have the argument's spec. Shardy propagates every choice and a cost model predicts its cost.
        The best choices are compiled for the chip, or for CPU devices if the chip's compiler is not installed, and
        their cost is predicted again. For a program with clients, the best specs are also tried with other chunk sizes;
        if predicted times are equal, the `chunk_size="auto"` choice for the chip ranks first.

        Args:
            on: The mesh, target, chip, or list of chips and targets. An abstract mesh needs no devices.
            axes: Names of the mesh axes; only with a target, a chip or a list. Default: the axes of the current mesh,
                otherwise the axis of the program's clients (or "data") and "model". For slices, the first axis contains
                all devices.
            lock: Specs that the search keeps, keyed by pattern, such as `{"batch": P("data"),
                "params['layers'][*]['up']": P()}`; only with a mesh or a target.
            seconds: Time for the whole search, after which the best choices found are returned. At least one
                compilation is always done. Default: 60, or 120 for the meshes of a target; compilations for slices take
                additional time.
            compiled: Whether to compile the best choices; otherwise all figures come from the cost model.
            compiler: "auto" compiles for the chip; "cpu" compiles for CPU devices even if the chip's compiler is
                installed. Only with a mesh or a target.
            memory_bytes: Bytes that one device may use, a hard limit; only with a mesh or a target. Default: the chip's
                memory.
            progress: Called with the current activity and the elapsed seconds.
            cancel: An event, set from any thread, that stops the search; the choices found so far are returned.
            found: Called with the record so far whenever a better choice is found; only with a mesh.
            measure: Whether to run the best three choices, interleaved, with the arguments or with zeros of the same
                shapes; only with a mesh of attached devices. Only programs that fit in free memory are run; `cancel`
                stops the runs.

        Returns:
            The choices, fastest fitting choice first: `.best.specs`, `.best.mesh`, `.best.chunk_size`, `.code()`,
            `.to_pandas()`, `.specs` for `what_if`; `.slices` has one row per family. `pareto` marks choices that no
            other choice beats in both time and memory.

        Raises:
            MeshError: for an unknown machine, if there is no mesh of several devices, or if a locked spec does not fit.
            InspectionError: if Shardy does not propagate the program in this process.
            ProgramError: for options that this kind of search does not use.

        Example:
            >>> predict = lambda w, batch: jnp.tanh(batch @ w)
            >>> w, batch = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((65536, 64), "float32")
            >>> mesh = jax.sharding.AbstractMesh((8,), ("data",))
            >>> wb.search(predict, on=(mesh, "v5e"), compiled=False)(w, batch).best.specs
            {'batch': (('data',), ())}
            >>> wb.search(predict, on="v5e:2x2", axes=("data",), compiled=False)(w, batch).best.mesh
            {'data': 4}
            >>> [(row.target, row.fits) for row in wb.search(predict, on="v5e", compiled=False)(w, batch).slices]
            [('v5e:1x1', True)]

        References:
            Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning", 2022.
        """
        return search_call(
            self._traced("search"),
            on=on,
            axes=axes,
            lock=lock,
            seconds=seconds,
            compiled=compiled,
            compiler=compiler,
            memory_bytes=memory_bytes,
            progress=progress,
            cancel=cancel,
            found=found,
            measure=measure,
        )

    def export(
        self,
        *,
        platforms: Sequence[str] | None = None,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
        derivatives: int = 0,
    ) -> _export.ExportedProgram:
        """Exports the program, including its clients, as StableHLO for another process or machine.

        Compiles nothing. The shardings of the arguments, and thus the number of devices, are preserved. Dimensions from
        `jax.export.symbolic_shape`, such as the clients or the batch, stay symbolic; all clients are then computed at
        once.

        Args:
            platforms: Platforms to export the program for, such as ("cpu", "tpu"). Default: this process's platform.
            chunk_size: The chunk size, as in `jit`.
            derivatives: Number of times that the loaded program can be differentiated in reverse mode.

        Returns:
            The bytes; `load` turns them into a callable, and `jax.export.deserialize(bytearray(...))` reads them.

        Raises:
            InspectionError: if the program contains parts that StableHLO cannot represent: callbacks, or pytree classes
                that are not registered with `jax.export`.

        Example:
            >>> saved = wb.trace(lambda x: x**2)(jnp.float32(0)).export()
            >>> float(wb.load(saved)(jnp.float32(3)))
            9.0
        """
        if self._symbolic is not None:
            return _export.write(self.name, jax.jit(self.fn), (self.args, self.kwargs), platforms, derivatives)
        return _export.export_program(
            self._traced("export"),
            platforms=platforms,
            chunk_size=None if chunk_size is AS_GIVEN else (chunk_size,),
            derivatives=derivatives,
        )

    def of(self, fn: Callable) -> Self:
        """A call to another function with the same arguments.

        Example:
            >>> squares = lambda x: (x**2).sum()
            >>> gradient = wb.trace(squares)(jnp.ones(3)).of(jax.grad(squares))
            >>> gradient.inspect().module.memory.output_bytes
            12
        """
        return type(self)(fn, self.args, self.kwargs)

    def with_shapes(self) -> Self:
        """The same call with shapes instead of arrays, so that it keeps no array alive."""
        if isinstance(self._call, LoweredCall):
            return self
        call = self._call.with_shapes()
        return type(self)(self.fn, call.args, call.kwargs, call=call)

    def _variants(self, options: dict[str, Any]) -> Variants:
        """The call prepared for compilation with changes; accepts the options of `inspect_call`."""
        return Variants(call=self._call, fn=self.fn, args=self.args, kwargs=self.kwargs, options=options)

    def _traced(self, question: str) -> TracedCall:
        if isinstance(self._call, TracedCall):
            return self._call
        message = (
            f"`{question}` was given `{self.name}`, an object of type {type(self.fn).__name__} that does not expose "
            f"the function that it traces. `{question}` needs the traced function: pass the function without this "
            "wrapper."
        )
        raise InspectionError(message)

    def _replayed(self, question: str) -> tuple[Callable, tuple[Argument, ...]]:
        """The program as a function of only its arrays; the function evaluates the traced equations."""
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
            parameter_names = list(inspect_module.signature(call.parameters).parameters)
        except (TypeError, ValueError):
            parameter_names = []
        parameters = (
            [inspect_module.Parameter(name, kind) for name in parameter_names[:count]]
            if len(parameter_names) > count
            else parameters
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
        return render.display_object("Traced", render.text(self.plan))
