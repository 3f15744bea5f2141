"""Inspects a program without running it: combines plan, sharding, compiled module and cost."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from workbench import _jax_compat
from workbench._open_types import Examples, Option
from workbench._types import AnyMesh, PyTree
from workbench.aot import compile_for_target, fit_axes, lower_for_target, parse_target, target_mesh
from workbench.cost import estimate_cost, known_chip, largest_dtype, product_peak
from workbench.errors import InspectionError
from workbench.inspection._call import LoweredCall, TracedCall, Version, current_mesh, mesh_of_values, on_mesh
from workbench.inspection._call_tree._seconds import predict_seconds
from workbench.inspection._compile_once import compile_now, compile_once
from workbench.inspection._retarget import mesh_of_program
from workbench.inspection.hlo import inspect_module, with_padding
from workbench.inspection.sharding import inspect_mesh, inspect_sharding, place_clients, propagate_shardings
from workbench.plan import ChunkSize, choose_chunk_size, describe_plan, main_product
from workbench.records import without_collections
from workbench.records.compiled import (
    CollectiveRecord,
    CostRecord,
    MemoryRecord,
    ModuleRecord,
    ProgramRecord,
    TargetCompilation,
)
from workbench.records.hardware import ChipRecord, MeshRecord
from workbench.records.program import PlanRecord, SourceLine
from workbench.records.sharding import PlannedValueRecord, PropagationRecord, ShardingRecord


def planned_target(devices: int) -> str:
    """Target name for a program that was planned but not compiled."""
    return f"{devices:,} device{'s' * (devices != 1)}"


def plan_call(call: TracedCall | LoweredCall, mesh: Mesh | AbstractMesh | None = None) -> PlanRecord:
    """The stages of a traced call, on `mesh` or on the call's own mesh, without compiling."""
    if isinstance(call, LoweredCall):
        return PlanRecord(name=call.name, placements=(), stages=(), notes=(_NO_JAXPR,))
    return _described(call.under(mesh or current_mesh() or call.mesh), call.chunk_size)


def inspect_call(
    call: TracedCall | LoweredCall,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    target: str | None = None,
    chip: str | None = None,
    chunk_size: tuple[ChunkSize] | None = None,
    examples_per_client: Examples | None = None,
    order: Literal["topology", "naive"] = "topology",
    force: bool = False,
    waiting: Mapping[str, Any] | None = None,
) -> ProgramRecord:
    """Inspects a traced call; see `workbench.api.Traced.inspect`. `chunk_size` is None or a tuple with one element."""
    if isinstance(call, LoweredCall):
        return inspect_lowered(call, mesh, chip=chip, target=target)
    inspection = Inspection(call, call.chunk_size if chunk_size is None else chunk_size[0], examples_per_client)
    if target is not None:
        return inspection.on_target(target, mesh, chip=chip, order=order, force=force, waiting=waiting or {})
    return inspection.here(mesh, chip)


def inspect_lowered(
    call: LoweredCall, mesh: Mesh | AbstractMesh | None = None, *, chip: str | None = None, target: str | None = None
) -> ProgramRecord:
    """Inspects a `Lowered` or `Compiled`; returns all figures except the stages of the traced function."""
    if target is not None:
        message = (
            f"`inspect` was given on={target!r} and `{call.name}`, which is already lowered or compiled for the "
            "devices of this process. Compiling for a target starts from the function: pass the function itself."
        )
        raise InspectionError(message)
    notes = [_NO_JAXPR]
    program = call.program
    if _jax_compat.lines_may_be_stale(program):
        notes.append(_OF_ANOTHER_VERSION)
    lowered = program if isinstance(program, jax.stages.Lowered) else None
    compiled = (
        compile_now(program, program.as_text(), call.name) if isinstance(program, jax.stages.Lowered) else program
    )
    shardings = jax.tree.leaves(_compiled_shardings(compiled))
    current = mesh or current_mesh() or mesh_of_values(shardings) or _old_mesh()
    record = None if current is None else inspect_mesh(current)
    module = inspect_module(compiled, mesh=record)
    infos, devices = compiled.args_info, current if isinstance(current, Mesh) else None
    shapes = jax.tree.map(lambda info: jax.ShapeDtypeStruct(info.shape, info.dtype), infos)
    inputs = shapes[0] if not shapes[1] else (*shapes[0], shapes[1])
    if lowered is None:
        notes.append(
            "the propagation of shardings is unknown, because a compiled program does not contain its StableHLO"
        )
    plan = PlanRecord(name=call.name, placements=(), stages=(), notes=(_NO_JAXPR,))
    chosen = known_chip(chip) if chip else None
    return ProgramRecord(
        name=call.name,
        target=f"{module.platform} x {module.devices}",
        plan=plan,
        mesh=record,
        inputs=_shardings(inputs, compiled.input_shardings, devices),
        outputs=_results(compiled, compiled, devices),
        propagation=None if lowered is None or record is None else propagate_shardings(lowered),
        module=module,
        cost=estimate_cost(module, plan, chip=chosen, mesh=record, dtype=largest_dtype(plan, chosen)),
        stablehlo="" if lowered is None else lowered.as_text(debug_info=True),
        notes=tuple(notes),
    )


def _described(version: Version, chunk_size: ChunkSize) -> PlanRecord:
    with on_mesh(version.mesh):
        return describe_plan(
            version.plan,
            names=version.of.names,
            chunk_size=chunk_size,
            form=version.of.form_for(chunk_size),
            under=functools.partial(on_mesh, version.mesh),
            notes=version.notes,
        )


_NO_JAXPR = (
    "the stages are missing, because a compiled or lowered program and HLO text do not contain the traced function; "
    "pass the function and its arguments to see them"
)
_OF_ANOTHER_VERSION = (
    "source lines may come from an earlier version of the file, because JAX's persistent compilation cache is on and "
    "ignores lines. Pass the function, or set `jax_compilation_cache_include_metadata_in_key`"
)
_PROPAGATED = "not placed by the program: this sharding is inferred by Shardy"
_ONLY_PLANNED = (
    "nothing was compiled: an abstract mesh has no devices, so memory and compiled collectives are unknown; pass a "
    "target or a mesh of devices"
)


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A program compiled for the devices of a mesh; `inspect` reads it, and `measure` runs it."""

    plan: PlanRecord
    lowered: jax.stages.Lowered
    stablehlo: str
    compiled: jax.stages.Compiled | None
    mesh: MeshRecord | None
    module: ModuleRecord | None
    platform: str
    devices: Mesh | None
    args: tuple[Any, ...]  # in the form that the compiled program accepts
    kwargs: dict[str, Any]


class Inspection:
    """One traced call, which can be inspected on any mesh."""

    def __init__(self, call: TracedCall, chunk_size: ChunkSize, examples: Examples | None = None) -> None:
        self.call: TracedCall = call
        self.examples: Examples | None = examples
        self.chunk_size: ChunkSize = chunk_size

    def compile(self, mesh: Mesh | AbstractMesh | None) -> Compilation:
        """Plans and lowers the program on a mesh, and compiles it if the mesh has devices; done once per mesh."""
        current = mesh if mesh is not None else current_mesh() or self.call.mesh
        version = self.call.under(current)
        key = self.chunk_size if self.call.holds_clients else None
        if key not in version.known:
            version.known[key] = self._compile(version, current)
        return version.known[key]

    def _compile(self, version: Version, current: Mesh | AbstractMesh | None) -> Compilation:
        call = version.of
        described = _described(version, self.chunk_size)
        with on_mesh(current):
            lowered, platform, args, kwargs = self.lower(version)
            text = lowered.as_text(debug_info=True)
            compiled = None if isinstance(current, AbstractMesh) else compile_once(lowered, text, call.name)
        named = current
        if named is None:
            values = [*call.leaves, *_jax_compat.jit_options(call.stage)["in_shardings"]]
            named = mesh_of_values([*values, *(jax.tree.leaves(_compiled_shardings(compiled)))]) or _old_mesh()
        record = mesh_record(named, described)
        module = None
        if compiled is not None:
            raw_module = inspect_module(compiled, mesh=record, plan=described)
            module = _staged(_module_named_by(call, raw_module), described)
        devices = named if isinstance(named, Mesh) else None
        return Compilation(described, lowered, text, compiled, record, module, platform, devices, args, kwargs)

    def lower(
        self, version: Version, **options: Option
    ) -> tuple[jax.stages.Lowered, str, tuple[Any, ...], dict[str, Any]]:
        """The program lowered to StableHLO under the current mesh, with its platform and its arguments."""
        mesh, call = version.mesh, version.of
        platform = jax.default_backend() if not isinstance(mesh, Mesh) else mesh.devices.flat[0].platform
        if version.stage is not None and not call.holds_clients and not options:
            # The record shows the program that runs, which is the user's own jit, lowered unchanged.
            lowered = version.stage.lower(lowering_platforms=(platform,) if isinstance(mesh, AbstractMesh) else None)
            return lowered, platform, *call.stage_args
        jitted = version.jitted(self.chunk_size, **options)
        lowered = jitted.trace(*call.args, **call.kwargs).lower(lowering_platforms=(platform,))
        return lowered, platform, call.args, call.kwargs

    def here(self, mesh: Mesh | AbstractMesh | None, chip: str | None) -> ProgramRecord:
        """The record for a mesh on this machine; for an abstract mesh, a record without a compiled module."""
        with without_collections():
            return self._here(mesh, chip)

    def _here(self, mesh: Mesh | AbstractMesh | None, chip: str | None) -> ProgramRecord:
        compilation, call = self.compile(mesh), self.call
        devices = (
            compilation.module.devices
            if compilation.module is not None
            else len(compilation.mesh.devices)
            if compilation.mesh
            else 1
        )
        input_shardings = None if compilation.compiled is None else _readable(compilation.compiled, "input_shardings")
        propagation = (
            _named_by(call, propagate_shardings(compilation.lowered)) if compilation.mesh is not None else None
        )
        placed = _shardings(_inputs(call), input_shardings, compilation.devices)
        if compilation.compiled is None and propagation is not None:
            placed = _as_propagated(_inputs(call), propagation, mesh or current_mesh() or call.mesh) or placed
        return ProgramRecord(
            name=call.name,
            target=f"{compilation.platform} x {devices}"
            if compilation.compiled is not None
            else planned_target(devices),
            plan=compilation.plan,
            mesh=compilation.mesh,
            inputs=_labelled(call, placed),
            outputs=None
            if compilation.compiled is None
            else _results(compilation.lowered, compilation.compiled, compilation.devices, call),
            propagation=propagation,
            module=_with_seconds(compilation.module, compilation.plan, known_chip(chip) if chip else None),
            cost=self._cost(compilation.module, compilation.plan, compilation.mesh, known_chip(chip) if chip else None),
            traced_call_tree=None if compilation.compiled is not None else call.read_tree(),
            stablehlo=compilation.stablehlo,
            notes=(*compilation.plan.notes, *(() if compilation.compiled is not None else (_ONLY_PLANNED,))),
        )

    def on_target(
        self,
        target: str,
        mesh: AnyMesh | None,
        *,
        chip: str | None,
        order: Literal["topology", "naive"],
        force: bool,
        waiting: Mapping[str, Any],
    ) -> ProgramRecord:
        machine = parse_target(target, force=force)
        call = self.call
        current = mesh if mesh is not None else current_mesh() or call.mesh or mesh_of_values(call.leaves)
        current = current or mesh_of_program(call.closed)
        placements = call.under(call.mesh).plan.placements
        axes = {placements[0].name if placements else "devices": 1} if current is None else dict(current.shape)
        if math.prod(axes.values()) != machine.devices:
            axes = fit_axes(machine, axes, {placement.name: placement.size for placement in placements})
        there = target_mesh(machine, tuple(axes.values()), tuple(axes), order=order, axis_types=_types(current))
        chunk_size = self.chunk_size
        if chunk_size == "auto":
            chunk_size = functools.partial(
                choose_chunk_size, platform=machine.platform, memory_bytes=machine.available_bytes
            )
        version = call.under(there.abstract)
        described = _described(version, chunk_size)
        jitted = version.jitted(chunk_size)
        args = call.args
        if call.kwargs:
            args = (*call.args, *call.kwargs.values())
            jitted = _positional(jitted, len(call.args), tuple(call.kwargs))
        text = lower_for_target(jitted, args, there)
        options = _jax_compat.jit_options(call.stage)["compiler_options"]
        compilation = compile_for_target(text, machine, mesh_axes=there.axes, order=order, options=options, **waiting)
        placed = _place_all(compilation.mesh, described)
        propagation = _named_by(call, propagate_shardings(text))
        inputs = _as_propagated(_inputs(call), propagation, there.abstract) or inspect_sharding(_inputs(call))
        notes = (_compiled_by(compilation), *compilation.notes, *filter(None, (compilation.error,)), *version.notes)
        module = None
        if compilation.hlo:
            module = inspect_module(
                compilation.hlo,
                mesh=placed,
                platform=machine.platform,
                available_bytes=machine.available_bytes,
                plan=described,
                peak_bytes=compilation.memory.peak_bytes,
            )
            module = module.replace(memory=_joined_memory(module, compilation.memory), devices=machine.devices)
            module = _staged(_module_named_by(call, module), described)
        return ProgramRecord(
            name=call.name,
            target=machine.name,
            plan=described,
            mesh=placed,
            inputs=_labelled(call, inputs),
            propagation=propagation,
            module=_with_seconds(module, described, known_chip(chip or machine.chip)),
            cost=self._cost(module, described, placed, known_chip(chip or machine.chip)),
            stablehlo=text,
            notes=notes,
        )

    def _cost(
        self, module: ModuleRecord | None, described: PlanRecord, mesh: MeshRecord | None, chip: ChipRecord | None
    ) -> CostRecord:
        dtype = largest_dtype(described, chip)
        main = main_product(self.call.closed) if module is None and chip is not None else None
        if main is not None and chip is not None and product_peak(main, chip):
            dtype = main
        return estimate_cost(module, described, chip=chip, mesh=mesh, dtype=dtype, examples_per_client=self.examples)


def _with_seconds(module: ModuleRecord | None, described: PlanRecord, chip: ChipRecord | None) -> ModuleRecord | None:
    """The module with predicted seconds added to its call tree."""
    if module is None or module.call_tree is None or chip is None:
        return module
    dtype = largest_dtype(described, chip)
    return module.replace(call_tree=predict_seconds(module.call_tree, module, chip, dtype))


def mesh_record(mesh: Mesh | AbstractMesh | None, described: PlanRecord) -> MeshRecord | None:
    return None if mesh is None else _place_all(inspect_mesh(mesh), described)


def _place_all(mesh: MeshRecord, described: PlanRecord) -> MeshRecord:
    for placement in described.placements:
        mesh = place_clients(mesh, placement)
    return mesh


def _types(mesh: AnyMesh | None) -> tuple[jax.sharding.AxisType, ...] | None:
    return None if mesh is None else tuple(mesh.axis_types)


def _inputs(call: TracedCall) -> tuple[Any, ...]:
    return call.args if not call.kwargs else (*call.args, dict(call.kwargs))


def _labelled(call: TracedCall, inputs: ShardingRecord) -> ShardingRecord:
    """Arguments under the names that the user writes, such as `model.up.kernel`."""
    if len(call.names) != len(inputs.leaves):
        return inputs
    pairs = zip(inputs.leaves, call.names, strict=True)
    return inputs.replace(leaves=tuple(leaf.replace(path=name) for leaf, name in pairs))


def _readable(stage: jax.stages.Compiled | jax.stages.Lowered, name: str) -> PyTree[Any]:
    """A property of a stage; None if JAX cannot read it, as in programs with references (`jax.Ref`)."""
    try:
        return getattr(stage, name)
    except ValueError:  # the state of refs is also returned, but is not in the tree of results
        return None


def _results(
    stage: jax.stages.Compiled | jax.stages.Lowered,
    compiled: jax.stages.Compiled,
    devices: Mesh | None,
    call: TracedCall | None = None,
) -> ShardingRecord:
    record = _shardings(*_jax_compat.results_of(stage, compiled), devices)
    named = (lambda path: f"result{path}") if call is None else call.result_name
    return record.replace(leaves=tuple(leaf.replace(path=named(leaf.path)) for leaf in record.leaves))


def _compiled_shardings(compiled: jax.stages.Compiled | None) -> PyTree[jax.sharding.Sharding]:
    if compiled is None:
        return ()
    return tuple(_readable(compiled, name) or () for name in ("input_shardings", "output_shardings"))


def _old_mesh() -> Mesh | None:
    mesh = _jax_compat.mesh_of_old_context()
    return None if mesh.empty else mesh


def _positional(jitted: Callable, count: int, names: tuple[str, ...]) -> Callable:
    def program(*args: object) -> PyTree[jax.Array]:
        return jitted(*args[:count], **dict(zip(names, args[count:], strict=True)))

    return jax.jit(functools.wraps(jitted)(program))


def _staged(module: ModuleRecord, described: PlanRecord) -> ModuleRecord:
    """The module with facts added from the plan: lines of combined collectives, and rewritten products."""
    lines = {stage.path: stage.source for stage in described.walk()}
    return module.replace(
        collectives=tuple(_with_lines(collective, lines) for collective in module.collectives),
        notes=(*module.notes, *_rewritten_products(module, described)),
    )


def _with_lines(collective: CollectiveRecord, lines: Mapping[str, SourceLine | None]) -> CollectiveRecord:
    """Adds lines from the plan, because a combined collective keeps the stack frame of only one operation."""
    if len(collective.sources) >= len(collective.stages):
        return collective
    planned = [line for path in collective.stages if (line := lines.get(path)) is not None]
    line_keys = {(line.file, line.line) for line in collective.sources}
    more = {(line.file, line.line): line for line in planned if (line.file, line.line) not in line_keys}
    return collective.replace(sources=(*collective.sources, *more.values()))


def _rewritten_products(module: ModuleRecord, described: PlanRecord) -> Iterator[str]:
    """Notes on stages for which the compiler computes fewer matrix products than planned."""
    if module.flops is None:
        return
    compiled: dict[str, float] = {}
    for instruction in module.instructions:
        for part in instruction.by_stage():
            path = part.stage or (described.stages[0].path if len(described.stages) == 1 else "")
            compiled[path] = compiled.get(path, 0.0) + part.flops * (instruction.executions or 0.0)
    for stage in described.stages:
        planned, compiled_flops = stage.flops, compiled.get(stage.path, 0.0)
        if not planned or stage.kind in ("loop", "branch"):
            continue
        if compiled_flops == 0.0 or (module.devices == 1 and compiled_flops < planned * (1 - 1e-9)):
            yield (
                f"only {compiled_flops:,.0f} of {planned:,.0f} FLOPs in matrix products of stage {stage.path} "
                f"(`{stage.name}`) are compiled as matrix products; the rest counts as 0 here, because the compiler "
                "rewrote it as elementwise operations (products with a vector) or computes repeated products only once"
            )


def _shardings(tree: object, shardings: object, mesh: Mesh | None = None) -> ShardingRecord:
    if shardings is None:
        return inspect_sharding(tree)
    leaves, structure = jax.tree.flatten(tree)
    sharding_leaves = jax.tree.leaves(shardings, is_leaf=lambda s: isinstance(s, jax.sharding.Sharding))
    if len(sharding_leaves) != len(leaves):  # arguments that the program does not read have no sharding
        return inspect_sharding(tree)
    named = [_jax_compat.named_sharding(sharding, mesh) for sharding in sharding_leaves]
    pairs = zip(leaves, named, strict=True)
    structs = [jax.ShapeDtypeStruct(jax.numpy.shape(x), _dtype(x), sharding=sharding) for x, sharding in pairs]
    return inspect_sharding(jax.tree.unflatten(structure, structs))


def _users_names(call: TracedCall) -> dict[str, str]:
    """The user's name for every argument that a library's wrapper or HLO names differently."""
    listed = _jax_compat.argument_names(call.closed)
    return dict(zip(listed, call.names, strict=True)) if len(listed) == len(call.names) else {}


def _named_by(call: TracedCall, propagation: PropagationRecord) -> PropagationRecord:
    """The propagation with the inputs and results under the user's names."""
    users = _users_names(call)

    def named(value: PlannedValueRecord) -> PlannedValueRecord:
        name = value.op_name
        if value.operation == "input":
            name = users.get(name, name)
        elif value.operation == "output" and name.startswith("result"):
            name = call.result_name(name.removeprefix("result"))
        return value if name == value.op_name else value.replace(op_name=name)

    return propagation.replace(values=tuple(named(value) for value in propagation.values))


def _module_named_by(call: TracedCall, module: ModuleRecord) -> ModuleRecord:
    """The compiled module with the parameters under the user's names."""
    users = _users_names(call)

    def named(op_name: str) -> str:
        return users.get(op_name.replace("\\'", "'"), op_name)

    instructions = tuple(
        i.replace(op_name=named(i.op_name)) if i.op_name and named(i.op_name) != i.op_name else i
        for i in module.instructions
    )
    largest = tuple(value.replace(op_name=named(value.op_name)) for value in module.memory.largest)
    return module.replace(instructions=instructions, memory=module.memory.replace(largest=largest))


def _as_propagated(tree: object, propagation: PropagationRecord, mesh: AnyMesh | None) -> ShardingRecord | None:
    """Inputs, with the shardings that Shardy infers for inputs without one; None if Shardy's inputs do not match."""
    leaves, structure = jax.tree.flatten(tree)
    planned = [value for value in propagation.values if value.operation == "input"]
    shapes = [tuple(jax.numpy.shape(leaf)) for leaf in leaves]
    if not isinstance(mesh, Mesh | AbstractMesh) or [value.shape for value in planned] != shapes:
        return None  # unread arguments are not inputs of the StableHLO
    free = [getattr(leaf, "sharding", None) is None for leaf in leaves]

    def place(leaf: jax.ShapeDtypeStruct, value: PlannedValueRecord) -> jax.ShapeDtypeStruct:
        spec = jax.P(*(axes or None for axes in value.spec))
        sharding = jax.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), _dtype(leaf), sharding=sharding)

    triples = zip(leaves, planned, free, strict=True)
    placed_leaves = [place(leaf, value) if unplaced else leaf for leaf, value, unplaced in triples]
    record = inspect_sharding(jax.tree.unflatten(structure, placed_leaves))
    named = zip(record.leaves, free, strict=True)
    return record.replace(
        leaves=tuple(leaf.replace(notes=(_PROPAGATED, *leaf.notes)) if unplaced else leaf for leaf, unplaced in named)
    )


def _dtype(x: PyTree[jax.Array]) -> np.dtype:
    return x.dtype if hasattr(x, "dtype") else jax.numpy.result_type(x)


def _compiled_by(compilation: TargetCompilation) -> str:
    order = "the order that its topology prefers" if compilation.order == "topology" else "the compiler's own order"
    return f"compiled by {compilation.versions['compiler']} for devices in {order}; nothing was run"


def _joined_memory(module: ModuleRecord, reported: MemoryRecord) -> MemoryRecord:
    """Memory reported by the target's compiler, with missing parts added from the compiled module."""
    if not reported.largest:
        reported = reported.replace(largest=module.memory.largest, padding_bytes=module.memory.padding_bytes)
    else:
        reported = with_padding(reported)
    return reported.replace(
        timeline=reported.timeline or module.memory.timeline,
        peak_bytes=reported.peak_bytes if reported.peak_bytes is not None else module.memory.peak_bytes,
    )
