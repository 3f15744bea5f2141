"""Inspects a program: reads it without running it, joining plan, sharding, compiled module and cost."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh

from workbench import _jax_compat
from workbench.aot import compile_for_target, fit_axes, lower_for_target, parse_target, target_mesh
from workbench.cost import estimate_cost, known_chip, largest_dtype
from workbench.errors import InspectionError
from workbench.inspection.call_tree import read_jaxpr_tree
from workbench.inspection.hlo import inspect_module, with_padding
from workbench.inspection.sharding import inspect_mesh, inspect_sharding, place_clients, propagate_shardings
from workbench.plan import (
    ChunkSize,
    Jitted,
    Traced,
    call_staged,
    choose_chunk_size,
    describe_plan,
    find_phases,
    resolve_chunk_size,
    trace,
)
from workbench.records import (
    CallTreeRecord,
    ChipRecord,
    MeshRecord,
    ModuleRecord,
    PlanRecord,
    ProgramRecord,
    ShardingRecord,
    TargetCompilation,
)


def plan_program(fn: Callable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PlanRecord:
    """The stages of one call of a function; traces it, compiles nothing."""
    fn, chunk_size = unwrap_jitted(fn)
    return _described(trace(fn, *args, **kwargs), chunk_size)


def trace_call_tree(fn: Callable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallTreeRecord:
    """The call tree of one call of a function; traces it, compiles nothing."""
    fn, _ = unwrap_jitted(fn)
    name = getattr(fn, "__name__", type(fn).__name__)
    jitted: Any = fn if hasattr(fn, "trace") and hasattr(fn, "lower") else jax.jit(fn)
    return read_jaxpr_tree(jitted.trace(*args, **kwargs).jaxpr, name=name)


def inspect_program(
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    mesh: Mesh | AbstractMesh | None = None,
    target: str | None = None,
    chip: str | None = None,
    chunk_size: tuple[ChunkSize] | None = None,
    examples_per_client: Sequence[int] | None = None,
    order: Literal["topology", "naive"] = "topology",
    force: bool = False,
    waiting: Mapping[str, Any] | None = None,
) -> ProgramRecord:
    """Inspects one call of a function; see `workbench.api.Traced.inspect`. `chunk_size` is None or a tuple of one."""
    fn, given = unwrap_jitted(fn)
    inspection = Inspection(fn, args, kwargs, given if chunk_size is None else chunk_size[0], examples_per_client)
    if target is not None:
        return inspection.on_target(target, mesh, chip=chip, order=order, force=force, waiting=waiting or {})
    return inspection.here(mesh, chip)


def inspect_thing(x: Any) -> MeshRecord | ShardingRecord:
    """What is known of a mesh, or of arrays.

    Raises:
        InspectionError: if `x` is neither.
    """
    if isinstance(x, Mesh | AbstractMesh):
        return inspect_mesh(x)
    if are_arrays(x):
        return inspect_sharding(x)
    message = (
        f"`inspect` received a {type(x).__name__}, which it cannot read. It reads functions, meshes, arrays and "
        "pytrees of arrays: pass `inspect(fn)(*args)`, `inspect(mesh)` or `inspect(arrays)`."
    )
    raise InspectionError(message)


def are_arrays(x: Any) -> bool:
    """Whether `x` is an array or a pytree with arrays alone for its leaves."""
    leaves = () if callable(x) and not isinstance(x, jax.Array) else jax.tree.leaves(x)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)


def unwrap_jitted(fn: Callable) -> tuple[Callable, ChunkSize]:
    """A function as written, and the chunk size that `jit` was given for it."""
    return (fn.fn, fn.chunk_size) if isinstance(fn, Jitted) else (fn, "auto")


def _described(traced: Traced, chunk_size: ChunkSize) -> PlanRecord:
    phases = [phase for level in find_phases(traced.plan, recompute=chunk_size is not None).values() for phase in level]
    chosen = None
    for phase in phases:
        if phase.divisible and chunk_size is not None:
            shares = 1 if phase.layout is None else phase.layout.size
            per_share = -(-phase.placement.size // shares)
            chosen = max(chosen or 1, resolve_chunk_size(chunk_size, phase, per_share))
    return describe_plan(traced.plan, names=traced.in_names, chunk_size=chosen)


_ONLY_PLANNED = (
    "nothing was compiled: an abstract mesh has no devices, so memory and compiled collectives are not known; give a "
    "`target`, or a mesh of devices, to know them"
)


@dataclasses.dataclass(frozen=True)
class Compilation:
    """A program on its way to the devices of a mesh: what `inspect` reads and `measure` runs."""

    plan: PlanRecord
    lowered: Any
    compiled: Any
    mesh: MeshRecord | None
    module: ModuleRecord | None
    platform: str
    devices: Mesh | None


class Inspection:
    """One program with its arguments, to be looked at on one mesh or another."""

    def __init__(
        self, fn: Callable, args: Any, kwargs: Any, chunk_size: ChunkSize, examples: Sequence[int] | None
    ) -> None:
        self.fn, self.args, self.kwargs, self.examples = fn, args, kwargs, examples
        self.chunk_size: ChunkSize = chunk_size
        self.name = getattr(fn, "__name__", type(fn).__name__)

    def staged(self, chunk_size: ChunkSize) -> Callable:
        @functools.wraps(self.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return call_staged(self.fn, args, kwargs, chunk_size)

        return call

    def compile(self, mesh: Mesh | AbstractMesh | None) -> "Compilation":
        """Traces, plans, lowers and, where there are devices, compiles the program on a mesh."""
        with on_mesh(mesh):
            current = mesh if mesh is not None else current_mesh()
            described = _described(trace(self.fn, *self.args, **self.kwargs), self.chunk_size)
            lowered, platform = self.lower(current)
            compiled = None if isinstance(current, AbstractMesh) else lowered.compile()
        record = mesh_record(current, described)
        module = None if compiled is None else inspect_module(compiled, mesh=record)
        devices = current if isinstance(current, Mesh) else None
        return Compilation(described, lowered, compiled, record, module, platform, devices)

    def lower(self, current: Mesh | AbstractMesh | None, **options: Any) -> tuple[Any, str]:
        """The program as StableHLO, inside the mesh that is current, and the platform that it is for."""
        platform = jax.default_backend() if not isinstance(current, Mesh) else current.devices.flat[0].platform
        staged = jax.jit(self.staged(self.chunk_size), **options)
        return staged.trace(*self.args, **self.kwargs).lower(lowering_platforms=(platform,)), platform

    def here(self, mesh: Mesh | AbstractMesh | None, chip: str | None) -> ProgramRecord:
        """The record on a mesh of this machine, or planned on an abstract one."""
        made = self.compile(mesh)
        devices = 1 if made.mesh is None else len(made.mesh.devices)
        known = None if made.compiled is None or self.kwargs else made.compiled.input_shardings[0]
        return ProgramRecord(
            name=self.name,
            target=f"here: {made.platform} x {devices}" if made.compiled is not None else f"planned: {devices} devices",
            plan=made.plan,
            mesh=made.mesh,
            inputs=_shardings(self.args, known, made.devices),
            outputs=None
            if made.compiled is None
            else _shardings(made.lowered.out_info, made.compiled.output_shardings, made.devices),
            propagation=propagate_shardings(made.lowered) if made.mesh is not None else None,
            module=made.module,
            cost=self._cost(made.module, made.plan, made.mesh, known_chip(chip) if chip else None),
            traced_call_tree=None if made.compiled is not None else trace_call_tree(self.fn, self.args, self.kwargs),
            stablehlo=made.lowered.as_text(debug_info=True),
            notes=() if made.compiled is not None else (_ONLY_PLANNED,),
        )

    def on_target(
        self, target: str, mesh: Any, *, chip: str | None, order: Any, force: bool, waiting: Mapping[str, Any]
    ) -> ProgramRecord:
        machine = parse_target(target, force=force)
        current = mesh if mesh is not None else current_mesh()
        placements = trace(self.fn, *_abstract(self.args), **_abstract(self.kwargs)).plan.placements
        axes = {placements[0].name if placements else "devices": 1} if current is None else dict(current.shape)
        if math.prod(axes.values()) != machine.devices:
            axes = fit_axes(machine, axes, {placement.name: placement.size for placement in placements})
        there = target_mesh(machine, tuple(axes.values()), tuple(axes), order=order, axis_types=_types(current))
        chunk_size = self.chunk_size
        if chunk_size == "auto":
            chunk_size = functools.partial(
                choose_chunk_size, platform=machine.platform, memory_bytes=machine.available_bytes
            )
        with on_mesh(there.abstract):
            described = _described(trace(self.fn, *_abstract(self.args), **_abstract(self.kwargs)), chunk_size)
        text = lower_for_target(self._with_keywords(chunk_size), self.args, there)
        compilation = compile_for_target(text, machine, mesh_axes=there.axes, order=order, **waiting)
        placed = _place_all(compilation.mesh, described)
        notes = (_compiled_by(compilation), *compilation.notes, *filter(None, (compilation.error,)))
        module = None
        if compilation.hlo:
            module = inspect_module(
                compilation.hlo, mesh=placed, platform=machine.platform, available_bytes=machine.available_bytes
            )
            module = module.replace(memory=_joined_memory(module, compilation.memory), devices=machine.devices)
        return ProgramRecord(
            name=self.name,
            target=machine.name,
            plan=described,
            mesh=placed,
            inputs=_shardings(self.args, None),
            propagation=propagate_shardings(text),
            module=module,
            cost=self._cost(module, described, placed, known_chip(chip or machine.chip)),
            stablehlo=text,
            notes=notes,
        )

    def _with_keywords(self, chunk_size: ChunkSize) -> Callable:
        staged = self.staged(chunk_size)
        if not self.kwargs:
            return staged
        return functools.wraps(self.fn)(lambda *args: staged(*args, **self.kwargs))

    def _cost(
        self, module: ModuleRecord | None, described: PlanRecord, mesh: MeshRecord | None, chip: ChipRecord | None
    ) -> Any:
        dtype = largest_dtype(described, chip)
        return estimate_cost(module, described, chip=chip, mesh=mesh, dtype=dtype, examples_per_client=self.examples)


@contextlib.contextmanager
def on_mesh(mesh: Mesh | AbstractMesh | None) -> Iterator[None]:
    """With `mesh` as the current one; None leaves it as it is."""
    if mesh is None:
        yield
    elif isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:  # an abstract mesh must not meet a concrete one of another size
        with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh):
            yield


def current_mesh() -> Mesh | AbstractMesh | None:
    """The mesh of `jax.set_mesh`, or the abstract one of `use_abstract_mesh`; None without either."""
    concrete = jax.sharding.get_mesh()
    if not concrete.empty:
        return concrete
    abstract = jax.sharding.get_abstract_mesh()
    return None if abstract.empty else abstract


def mesh_record(mesh: Mesh | AbstractMesh | None, described: PlanRecord) -> MeshRecord | None:
    return None if mesh is None else _place_all(inspect_mesh(mesh), described)


def _place_all(mesh: MeshRecord, described: PlanRecord) -> MeshRecord:
    for placement in described.placements:
        mesh = place_clients(mesh, placement)
    return mesh


def _types(mesh: Any) -> Any:
    return None if mesh is None else tuple(mesh.axis_types)


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.numpy.result_type(x)), tree)


def _shardings(tree: Any, shardings: Any, mesh: Mesh | None = None) -> ShardingRecord:
    if shardings is None:
        return inspect_sharding(tree)
    leaves, structure = jax.tree.flatten(tree)
    known = jax.tree.leaves(shardings, is_leaf=lambda s: isinstance(s, jax.sharding.Sharding))
    if len(known) != len(leaves):  # arguments that the program does not read have no sharding
        return inspect_sharding(tree)
    named = [_jax_compat.named_sharding(sharding, mesh) for sharding in known]
    pairs = zip(leaves, named, strict=True)
    structs = [jax.ShapeDtypeStruct(jax.numpy.shape(x), _dtype(x), sharding=sharding) for x, sharding in pairs]
    return inspect_sharding(jax.tree.unflatten(structure, structs))


def _dtype(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else jax.numpy.result_type(x)


def _compiled_by(compilation: TargetCompilation) -> str:
    order = "the order that its topology prefers" if compilation.order == "topology" else "the order as they come"
    return f"compiled by {compilation.versions['compiler']} for devices in {order}; nothing was run"


def _joined_memory(module: ModuleRecord, told: Any) -> Any:
    """What the compiler of the target told, and where it told nothing what its module shows."""
    if not told.largest:
        told = told.replace(largest=module.memory.largest, padding_bytes=module.memory.padding_bytes)
    else:
        told = with_padding(told)
    return told.replace(
        timeline=told.timeline or module.memory.timeline,
        peak_bytes=told.peak_bytes if told.peak_bytes is not None else module.memory.peak_bytes,
    )
