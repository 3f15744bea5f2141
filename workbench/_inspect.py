"""`plan` and `inspect`: reads a program without running it, joining plan, sharding, compiled module and cost."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, overload

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from workbench import _jax_compat, inspectors
from workbench._errors import InspectionError
from workbench.cost import estimate_cost, known_chip, largest_dtype
from workbench.plan import (
    AtOnce,
    Jitted,
    Traced,
    call_staged,
    choose_clients_at_once,
    count_at_once,
    describe_plan,
    find_phases,
    trace,
)
from workbench.records import (
    ChipRecord,
    MeshRecord,
    ModuleRecord,
    PlanRecord,
    ProgramRecord,
    ShardingRecord,
    TargetCompilation,
)
from workbench.targets import compile_for_target, fit_axes, lower_for_target, parse_target, target_mesh

_AS_GIVEN: Any = object()

Arrays = jax.Array | jax.ShapeDtypeStruct | np.ndarray | dict | list | tuple


def plan(fn: Callable, *args: Any, **kwargs: Any) -> PlanRecord:
    """The stages of a program: what the server does, what each client does, and what goes between them.

    Traces `fn`; nothing is compiled and nothing runs.

    Args:
        fn: A program, or any function that calls programs; also a derivative of one, or what `jit` returned.
        *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
        **kwargs: Its keyword arguments.

    Returns:
        The plan; `print` shows it as a table.

    Raises:
        InspectionError: if `fn` is not a function.

    Example:
        >>> from workbench import map_fn, program, reduce_mean
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> [stage.kind for stage in plan(mean_square, jax.numpy.ones(8)).stages]
        ['clients', 'reduce']
    """
    fn, at_once = opened(fn, "auto")
    traced = trace(fn, *args, **kwargs)
    return _described(traced, at_once)


@overload
def inspect(fn: Mesh | AbstractMesh) -> MeshRecord: ...
@overload
def inspect(fn: Arrays) -> ShardingRecord: ...
@overload
def inspect(
    fn: Callable,
    *args: Any,
    mesh: Mesh | AbstractMesh | None = None,
    target: str | None = None,
    chip: str | None = None,
    clients_at_once: AtOnce = _AS_GIVEN,
    examples_per_client: Sequence[int] | None = None,
    order: Literal["topology", "naive"] = "topology",
    force: bool = False,
    progress: Callable[[str, float], None] | None = None,
    cancel: Any = None,
    timeout_seconds: float | None = None,
    **kwargs: Any,
) -> ProgramRecord: ...
def inspect(
    fn: Any,
    *args: Any,
    mesh: Mesh | AbstractMesh | None = None,
    target: str | None = None,
    chip: str | None = None,
    clients_at_once: AtOnce = _AS_GIVEN,
    examples_per_client: Sequence[int] | None = None,
    order: Literal["topology", "naive"] = "topology",
    force: bool = False,
    progress: Callable[[str, float], None] | None = None,
    cancel: Any = None,
    timeout_seconds: float | None = None,
    **kwargs: Any,
) -> Any:
    """Everything that can be known of a program without running it: stages, shardings, collectives, memory, cost.

    Traces and compiles `fn` for the devices of `mesh` (or of `jax.set_mesh`), or for hardware that is not here.
    Given a mesh, or arrays, it reads those: where devices and shards are.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or what `jit` returned; or, alone, a
            mesh, an array or a pytree of arrays.
        *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
        mesh: Mesh to inspect it on. An `AbstractMesh` is only planned, since nothing can be compiled for it.
        target: Hardware that is not here, such as "v5e:16x16" or "h100:8"; see `targets`.
        chip: Chip to estimate seconds for, such as "v5e". Default: that of the target; without one no seconds.
        clients_at_once: As for `jit`. Default: that of `fn` if it came from `jit`, else "auto".
        examples_per_client: The true number of examples of every client, to price padding and lockstep.
        order: With a target: devices in the order that its topology prefers, or as they come ("naive").
        force: With a target: also a topology that nobody has seen working.
        progress: With a target: called with what is being done and the seconds so far.
        cancel: With a target: a `threading.Event` that ends the compilation once it is set.
        timeout_seconds: With a target: ends the compilation after so long.
        **kwargs: Keyword arguments of `fn`.

    Returns:
        The record; `show` draws it. What could not be found out is missing and said in `notes`. For a mesh a
        `MeshRecord`, for arrays a `ShardingRecord`.

    Raises:
        InspectionError: if `fn` is neither a function nor a mesh nor arrays.
        MeshError: for an unknown target or one that the mesh does not fit.
        MissingDependencyError: if the compiler of the target is not installed.
        EngineError: if the compiler of the target died, was cancelled or took too long.

    Example:
        >>> from workbench import map_fn, program, reduce_mean
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> inspect(mean_square, jax.numpy.ones(8)).module.devices
        1
        >>> inspect(jax.numpy.ones((4, 2))).leaves[0].shape
        (4, 2)
    """
    if isinstance(fn, Mesh | AbstractMesh):
        return inspectors.inspect_mesh(fn)
    if are_arrays(fn):
        return inspectors.inspect_sharding(fn)
    fn, given = opened(fn, "auto")
    at_once = given if clients_at_once is _AS_GIVEN else clients_at_once
    inspection = Inspection(fn, args, kwargs, at_once, examples_per_client)
    if target is not None:
        return inspection.on_target(
            target,
            mesh,
            chip=chip,
            order=order,
            force=force,
            waiting={"progress": progress, "cancel": cancel, "timeout_seconds": timeout_seconds},
        )
    return inspection.here(mesh, chip)


def are_arrays(x: Any) -> bool:
    """Whether `x` is an array or a pytree with arrays alone for its leaves."""
    leaves = () if callable(x) and not isinstance(x, jax.Array) else jax.tree.leaves(x)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves)


def opened(fn: Any, default: AtOnce) -> tuple[Callable, AtOnce]:
    if isinstance(fn, Jitted):
        return fn.fn, fn.clients_at_once
    if not callable(fn):
        message = (
            f"`inspect` was given a {type(fn).__name__}, which is not a function. It reads a program and the arguments "
            "to call it with, or a mesh, or arrays: pass `inspect(fn, *args)`, `inspect(mesh)` or `inspect(arrays)`."
        )
        raise InspectionError(message)
    return fn, default


def _described(traced: Traced, at_once: AtOnce) -> PlanRecord:
    phases = [phase for level in find_phases(traced.plan, recompute=at_once is not None).values() for phase in level]
    chosen = None
    for phase in phases:
        if phase.divisible and at_once is not None:
            shares = 1 if phase.layout is None else phase.layout.size
            per_share = -(-phase.placement.size // shares)
            chosen = max(chosen or 1, count_at_once(at_once, phase, per_share))
    return describe_plan(traced.plan, names=traced.in_names, clients_at_once=chosen)


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

    def __init__(self, fn: Callable, args: Any, kwargs: Any, at_once: AtOnce, examples: Sequence[int] | None) -> None:
        self.fn, self.args, self.kwargs, self.examples = fn, args, kwargs, examples
        self.at_once: AtOnce = at_once
        self.name = getattr(fn, "__name__", type(fn).__name__)

    def staged(self, at_once: AtOnce) -> Callable:
        @functools.wraps(self.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return call_staged(self.fn, args, kwargs, at_once)

        return call

    def compile(self, mesh: Mesh | AbstractMesh | None) -> "Compilation":
        """Traces, plans, lowers and, where there are devices, compiles the program on a mesh."""
        with on_mesh(mesh):
            current = mesh if mesh is not None else current_mesh()
            described = _described(trace(self.fn, *self.args, **self.kwargs), self.at_once)
            lowered, platform = self.lower(current)
            compiled = None if isinstance(current, AbstractMesh) else lowered.compile()
        record = mesh_record(current, described)
        module = None if compiled is None else inspectors.inspect_module(compiled, mesh=record)
        devices = current if isinstance(current, Mesh) else None
        return Compilation(described, lowered, compiled, record, module, platform, devices)

    def lower(self, current: Mesh | AbstractMesh | None, **options: Any) -> tuple[Any, str]:
        """The program as StableHLO, inside the mesh that is current, and the platform that it is for."""
        platform = jax.default_backend() if not isinstance(current, Mesh) else current.devices.flat[0].platform
        staged = jax.jit(self.staged(self.at_once), **options)
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
            propagation=inspectors.propagate_shardings(made.lowered) if made.mesh is not None else None,
            module=made.module,
            cost=self._cost(made.module, made.plan, made.mesh, known_chip(chip) if chip else None),
            stablehlo=made.lowered.as_text(debug_info=True),
            notes=() if made.compiled is not None else (_ONLY_PLANNED,),
        )

    def on_target(
        self, target: str, mesh: Any, *, chip: str | None, order: Any, force: bool, waiting: dict[str, Any]
    ) -> ProgramRecord:
        machine = parse_target(target, force=force)
        current = mesh if mesh is not None else current_mesh()
        placements = trace(self.fn, *_abstract(self.args), **_abstract(self.kwargs)).plan.placements
        axes = {placements[0].name if placements else "devices": 1} if current is None else dict(current.shape)
        if math.prod(axes.values()) != machine.devices:
            axes = fit_axes(machine, axes, {placement.name: placement.size for placement in placements})
        there = target_mesh(machine, tuple(axes.values()), tuple(axes), order=order, axis_types=_types(current))
        at_once = self.at_once
        if at_once == "auto":
            at_once = functools.partial(
                choose_clients_at_once, platform=machine.platform, memory_bytes=machine.available_bytes
            )
        with on_mesh(there.abstract):
            described = _described(trace(self.fn, *_abstract(self.args), **_abstract(self.kwargs)), at_once)
        text = lower_for_target(self._with_keywords(at_once), self.args, there)
        compilation = compile_for_target(text, machine, mesh_axes=there.axes, order=order, **waiting)
        placed = _place_all(compilation.mesh, described)
        notes = (_compiled_by(compilation), *compilation.notes, *filter(None, (compilation.error,)))
        module = None
        if compilation.hlo:
            module = inspectors.inspect_module(
                compilation.hlo, mesh=placed, platform=machine.platform, available_bytes=machine.available_bytes
            )
            module = module.replace(memory=_joined_memory(module, compilation.memory), devices=machine.devices)
        return ProgramRecord(
            name=self.name,
            target=machine.name,
            plan=described,
            mesh=placed,
            inputs=_shardings(self.args, None),
            propagation=inspectors.propagate_shardings(text),
            module=module,
            cost=self._cost(module, described, placed, known_chip(chip or machine.chip)),
            stablehlo=text,
            notes=notes,
        )

    def _with_keywords(self, at_once: AtOnce) -> Callable:
        staged = self.staged(at_once)
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
    return None if mesh is None else _place_all(inspectors.inspect_mesh(mesh), described)


def _place_all(mesh: MeshRecord, described: PlanRecord) -> MeshRecord:
    for placement in described.placements:
        mesh = inspectors.place_clients(mesh, placement)
    return mesh


def _types(mesh: Any) -> Any:
    return None if mesh is None else tuple(mesh.axis_types)


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jax.numpy.shape(x), jax.numpy.result_type(x)), tree)


def _shardings(tree: Any, shardings: Any, mesh: Mesh | None = None) -> ShardingRecord:
    if shardings is None:
        return inspectors.inspect_sharding(tree)
    leaves, structure = jax.tree.flatten(tree)
    known = jax.tree.leaves(shardings, is_leaf=lambda s: isinstance(s, jax.sharding.Sharding))
    if len(known) != len(leaves):  # arguments that the program does not read have no sharding
        return inspectors.inspect_sharding(tree)
    named = [_jax_compat.named_sharding(sharding, mesh) for sharding in known]
    pairs = zip(leaves, named, strict=True)
    structs = [jax.ShapeDtypeStruct(jax.numpy.shape(x), _dtype(x), sharding=sharding) for x, sharding in pairs]
    return inspectors.inspect_sharding(jax.tree.unflatten(structure, structs))


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
        told = inspectors.with_padding(told)
    return told.replace(
        timeline=told.timeline or module.memory.timeline,
        peak_bytes=told.peak_bytes if told.peak_bytes is not None else module.memory.peak_bytes,
    )
