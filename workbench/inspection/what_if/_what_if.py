"""Lowers a program again with different shardings for its arguments, and compares the results."""

import collections
import dataclasses
import functools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh

from workbench._open_types import Progress
from workbench.aot import compile_for_cpu, compile_for_target, fit_axes, lower_for_target, parse_target, target_mesh
from workbench.cost import estimate_cost, largest_dtype
from workbench.errors import EngineError, InspectionError, MeshError, WorkbenchError
from workbench.inspection._call import TracedCall, current_mesh, mesh_of_values, on_mesh
from workbench.inspection._compile_once import compile_now
from workbench.inspection._program import mesh_record, plan_call
from workbench.inspection.hlo import inspect_module
from workbench.inspection.sharding import propagate_shardings
from workbench.inspection.what_if._specs import Leaves, Spec, shape_of
from workbench.plan import ChunkSize, choose_chunk_size
from workbench.records.compiled import (
    CollectiveRecord,
    CostRecord,
    ModuleRecord,
    ProgramRecord,
    TrafficRecord,
    WhatIfRecord,
)
from workbench.records.program import SourceLine
from workbench.records.sharding import PlannedCollectiveKind, PlannedCollectiveRecord, PropagationRecord

Key = tuple[PlannedCollectiveKind, tuple[str, ...], str | None]


@dataclasses.dataclass
class _Sum:
    runs: float | None = 0.0
    size_bytes: float | None = 0.0
    by_line: dict[SourceLine, float] = dataclasses.field(default_factory=dict)  # bytes

    def add(self, runs: float | None, each_bytes: float, sources: Sequence[SourceLine]) -> None:
        """Adds a collective; the line of its largest part comes first in `sources`."""
        if runs is None or self.runs is None or self.size_bytes is None:
            self.runs = self.size_bytes = None  # a loop of unknown length, so the sum is unknown
        else:
            self.runs += runs
            self.size_bytes += runs * each_bytes
        size_bytes = each_bytes * (1.0 if runs is None else runs)
        for number, source in enumerate(sources):
            self.by_line[source] = self.by_line.get(source, 0.0) + (0.0 if number else size_bytes)

    @property
    def sources(self) -> tuple[SourceLine, ...]:
        return tuple(sorted(self.by_line, key=lambda source: -self.by_line[source]))


def compare_compiled(
    before: Iterable[CollectiveRecord], after: Iterable[CollectiveRecord], stages: Mapping[str, str]
) -> tuple[TrafficRecord, ...]:
    """Compares compiled collectives.

    A collective that was combined from several stages is divided among these stages in proportion to their shares.
    """
    return _compare(_compiled(before), _compiled(after), stages)


def compare_planned(
    before: Iterable[PlannedCollectiveRecord], after: Iterable[PlannedCollectiveRecord], stages: Mapping[str, str]
) -> tuple[TrafficRecord, ...]:
    """Compares planned collectives. A collective in a loop counts once."""
    return _compare(_planned(before), _planned(after), stages)


def _compiled(collectives: Iterable[CollectiveRecord]) -> dict[Key, _Sum]:
    sums: dict[Key, _Sum] = collections.defaultdict(_Sum)
    for collective in collectives:
        only = collective.stages[0] if collective.stages else None
        shares: dict[str | None, float] = (
            {**collective.stage_shares} if len(collective.stage_shares) > 1 else {only: 1.0}
        )
        for stage, share in shares.items():
            sums[collective.kind, collective.axes, stage].add(
                collective.executions, collective.payload_bytes * share, collective.sources
            )
    return sums


def _planned(collectives: Iterable[PlannedCollectiveRecord]) -> dict[Key, _Sum]:
    sums: dict[Key, _Sum] = collections.defaultdict(_Sum)
    for collective in collectives:
        size = collective.device_bytes if collective.device_bytes is not None else collective.size_bytes
        sums[collective.kind, collective.axes, collective.stage].add(
            1.0, size, [collective.source] if collective.source else []
        )
    return sums


def _compare(
    before: Mapping[Key, _Sum], after: Mapping[Key, _Sum], stages: Mapping[str, str]
) -> tuple[TrafficRecord, ...]:
    rows = []
    for key in sorted({*before, *after}, key=lambda key: (_place(key[2]), key[1], key[0])):
        kind, axes, stage = key
        old, new = before.get(key, _Sum()), after.get(key, _Sum())
        rows.append(
            TrafficRecord(
                kind=kind,
                axes=axes,
                stage=stage,
                stage_name=stages.get(stage or "", ""),
                runs_before=old.runs,
                runs_after=new.runs,
                before_bytes=old.size_bytes,
                after_bytes=new.size_bytes,
                sources=new.sources or old.sources,
            )
        )
    return tuple(rows)


def _place(stage: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in stage.split(".") if part.isdigit()) if stage else (1 << 30,)


_PRESENT = "the present shardings"
_MEMORY = ("argument_bytes", "output_bytes", "temporary_bytes", "alias_bytes", "peak_bytes", "available_bytes", "fits")


class WhatIf:
    """A program to try with different shardings; caches the results for the current shardings."""

    def __init__(
        self,
        call: TracedCall,
        *,
        mesh: Mesh | AbstractMesh | None = None,
        target: str | None = None,
        present: ProgramRecord | None = None,
        chunk_size: ChunkSize | Literal["as given"] = "as given",
    ) -> None:
        call = call.without_references()  # arrays can be placed, references cannot
        self._call = call.with_shapes()
        self._chunk_size: ChunkSize = call.chunk_size if chunk_size == "as given" else chunk_size
        self._present = present
        self._machine = None if target is None else parse_target(target)
        self._there = None
        start_mesh = mesh if mesh is not None else current_mesh() or call.mesh or mesh_of_values(call.leaves)
        self._mesh = self._find_mesh(start_mesh)
        # JAX itself places keyword arguments that are on one device, such as a random key.
        self._kwargs = jax.tree.map(lambda leaf: shape_of(leaf, self._mesh), self._call.kwargs)
        self._leaves = Leaves(self._call.parameters, self._call.args, self._mesh, self._call.names)
        self._args = self._leaves.replaced({}, self._mesh)
        self._versions: dict[tuple[tuple[int, Spec], ...], _Version] = {}
        self._busy = threading.Lock()

    def plan(self, specs: Mapping[str, Any]) -> WhatIfRecord:
        """Plans the program with different specs, using Shardy; see `Traced.what_if`."""
        chosen = self._leaves.resolve(specs, self._mesh)
        with self._busy:
            before, after = self._version({}), self._version(chosen)
        records = (before.record, after.record)
        propagations = [record.propagation for record in records if record.propagation is not None]
        planned = compare_planned(propagations[0].collectives, propagations[-1].collectives, self._names(records[0]))
        return WhatIfRecord(
            specs={self._leaves.labels[index]: spec for index, spec in chosen.items()},
            before=records[0],
            after=records[1],
            planned=planned,
            notes=tuple(
                f"{label}: {note}"
                for label, propagation in zip(("unchanged", "as tried"), propagations, strict=False)
                for note in propagation.notes
            ),
        )

    def compile(
        self, tried: WhatIfRecord, *, progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> WhatIfRecord:
        """Adds compiled results to the result of `plan`; see `Traced.what_if`."""
        chosen = self._leaves.resolve(tried.specs, self._mesh)
        with self._busy:
            before = self._compiled(self._version({}), _PRESENT, progress, cancel)
            after = self._compiled(self._version(chosen), "the shardings to be tried", progress, cancel)
        assert before.module is not None
        assert after.module is not None
        traffic = compare_compiled(before.module.collectives, after.module.collectives, self._names(before))
        return tried.replace(before=before, after=after, compiled=traffic)

    def _find_mesh(self, current: Mesh | AbstractMesh | None) -> Mesh | AbstractMesh:
        if current is None or current.empty:
            message = (
                "`what_if` was given a program without a mesh. A PartitionSpec names axes of a mesh. "
                "Either pass a mesh, as in `on=wb.make_mesh(clients=4, model=2)` or "
                "`on=jax.sharding.AbstractMesh((4, 2), ('clients', 'model'))`, or set a mesh with `jax.set_mesh`."
            )
            raise MeshError(message)
        if self._machine is None:
            return current
        axes = fit_axes(self._machine, dict(current.shape))
        self._there = target_mesh(
            self._machine, tuple(axes.values()), tuple(axes), axis_types=tuple(current.axis_types)
        )
        return self._there.abstract

    def _version(self, chosen: Mapping[int, Spec]) -> "_Version":
        """Shardy's plan of the program with some leaves sharded differently."""
        key = tuple(sorted(chosen.items()))
        if key not in self._versions:
            try:
                self._versions[key] = self._plan_version(chosen)
            except WorkbenchError:
                raise
            except Exception as error:  # JAX's sharding errors have no common base class
                raise InspectionError(self._refusal(chosen, error)) from error
        return self._versions[key]

    def _refusal(self, chosen: Mapping[int, Spec], error: Exception) -> str:
        reason = f"{type(error).__name__}: {error}"[:700]
        specs = ", ".join(f"{self._leaves.labels[index]}: {_written(spec)}" for index, spec in chosen.items())
        return (
            f"`what_if` was given {specs or _PRESENT}, with which JAX cannot trace or lower the program. JAX says: "
            f"{reason} Where the mesh's axes are Explicit, a sharding must fit every operation that it reaches: choose "
            "different axes or dimensions, or make the axes Auto, so that the compiler may reshard."
        )

    def _plan_version(self, chosen: Mapping[int, Spec]) -> "_Version":
        args = self._leaves.replaced(chosen, self._mesh)
        with on_mesh(self._mesh):
            if self._present is None:
                self._present = self._described()
            lowered, text = self._lowered(args)
        propagation = self._named(propagate_shardings(text))
        inputs = {value.name: value.spec for value in propagation.values if value.operation == "input"}
        specs = [inputs.get(f"%arg{number}") for number in range(len(self._leaves.values))]
        record = self._present.replace(
            inputs=self._leaves.record(specs, self._mesh),
            outputs=None,
            propagation=propagation,
            module=None if chosen else self._present.module,
            cost=None if chosen else self._present.cost,
            stablehlo=text,
        )
        return _Version(lowered, record)

    def _named(self, propagation: PropagationRecord) -> PropagationRecord:
        """The propagation with the inputs under the user's names."""
        names = {f"%arg{number}": label for number, label in enumerate(self._leaves.labels)}
        values = (
            value.replace(op_name=names[value.name]) if value.operation == "input" and value.name in names else value
            for value in propagation.values
        )
        return propagation.replace(values=tuple(values))

    def _described(self) -> ProgramRecord:
        described = plan_call(self._call, self._mesh)
        where = self._machine.name if self._machine is not None else f"{self._mesh.size} devices"
        mesh = mesh_record(self._mesh, described)
        return ProgramRecord(name=self._call.name, target=where, plan=described, mesh=mesh)

    def _lowered(self, args: tuple[Any, ...]) -> tuple[Any, str]:
        """The program lowered for its platform; unused arguments are kept, so that inputs correspond to leaves."""
        version, chunk_size = self._call.under(self._mesh), self._chunk_size
        if self._there is None:
            # The tried shardings replace the shardings given to the user's jit.
            jitted = version.jitted(chunk_size, shardings=False, keep_unused=True)
            lowered = jitted.trace(*args, **self._kwargs).lower(lowering_platforms=(self._platform(),))
            return lowered, lowered.as_text(debug_info=True)
        target = self._there.target
        if chunk_size == "auto":
            chunk_size = functools.partial(
                choose_chunk_size, platform=target.platform, memory_bytes=target.available_bytes
            )
        jitted = version.jitted(chunk_size, shardings=False, keep_unused=True)
        program = functools.wraps(jitted)(functools.partial(jitted, **self._kwargs)) if self._kwargs else jitted
        text = lower_for_target(jax.jit(program, keep_unused=True) if self._kwargs else jitted, args, self._there)
        return None, text

    def _compiled(
        self, version: "_Version", label: str, progress: Progress | None, cancel: threading.Event | None
    ) -> ProgramRecord:
        if version.record.module is None:
            task = f"Compiling {version.record.name} with {label}"
            module = self._module(version, task, {"progress": progress, "cancel": cancel})
            version.record = version.record.replace(module=module, cost=self._cost(version.record, module))
        return version.record

    def _cost(self, record: ProgramRecord, module: ModuleRecord) -> CostRecord | None:
        """The predicted cost on the chip for which the present program was priced."""
        present = self._present.cost if self._present is not None else None
        if present is None or present.chip is None:
            return None
        dtype = largest_dtype(record.plan, present.chip)
        return estimate_cost(module, record.plan, chip=present.chip, mesh=record.mesh, dtype=dtype)

    def _module(self, version: "_Version", task: str, waiting: dict[str, Any]) -> ModuleRecord:
        text, mesh, described = version.record.stablehlo, version.record.mesh, version.record.plan
        if self._there is not None:
            target = self._there.target
            compilation = compile_for_target(text, target, mesh_axes=self._there.axes, **waiting)
            if not compilation.hlo:
                message = (
                    f"{task} for {target.name} produced no program: {compilation.error} A program that does not fit "
                    "cannot be compared: use a larger target, or different specs."
                )
                raise EngineError(message)
            hlo, memory = compilation.hlo, compilation.memory
            module = inspect_module(hlo, mesh=mesh, platform=target.platform, plan=described)
        elif self._platform() == "cpu":
            hlo, memory = compile_for_cpu(text, self._mesh.size, task=task, **waiting)
            module = inspect_module(hlo, mesh=mesh, platform="cpu", plan=described)
        else:  # the devices belong to this process, so no other process could compile for them
            compiled = compile_now(version.lowered, text, version.record.name)
            return inspect_module(compiled, mesh=mesh, plan=described)
        reported = {name: getattr(memory, name) for name in _MEMORY if getattr(memory, name) is not None}
        return module.replace(memory=module.memory.replace(**reported), devices=self._mesh.size)

    def _platform(self) -> str:
        return self._mesh.devices.flat[0].platform if isinstance(self._mesh, Mesh) else jax.default_backend()

    def _names(self, record: ProgramRecord) -> dict[str, str]:
        return {stage.path: stage.name for stage in record.plan.walk()}


@dataclasses.dataclass
class _Version:
    """The program with one assignment of shardings."""

    lowered: jax.stages.Lowered
    record: ProgramRecord


def _written(spec: Spec) -> str:
    return f"P({', '.join('+'.join(axes) or 'None' for axes in spec)})"
