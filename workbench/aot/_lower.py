"""Lowers a program for a target: abstract mesh, platform, StableHLO text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from workbench._types import Argument, KeyPath
from workbench.aot._locations import drop_callers
from workbench.aot._parse import parse_target
from workbench.errors import MeshError, ProgramError
from workbench.primitives import calls_back
from workbench.records.compiled import TargetRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMesh:
    """A mesh over the devices of a target; the worker assigns the devices."""

    target: TargetRecord
    abstract: AbstractMesh
    order: Literal["topology", "naive"]

    @property
    def axes(self) -> dict[str, int]:
        """Axis sizes by name, in order."""
        return dict(zip(self.abstract.axis_names, self.abstract.axis_sizes, strict=True))


def target_mesh(
    target: str | TargetRecord,
    axis_shapes: Sequence[int],
    axis_names: Sequence[str],
    order: Literal["topology", "naive"] = "topology",
    *,
    axis_types: Sequence[AxisType] | None = None,
) -> TargetMesh:
    """Creates a mesh over the devices of a target that is not attached.

    Args:
        target: `"v5e:16x16"`, or a `TargetRecord`.
        axis_shapes: Sizes of the axes; their product is the target's number of devices.
        axis_names: One name per axis.
        order: Order of devices in the mesh: `topology` keeps neighbours adjacent, `naive` is the compiler's order.
        axis_types: One type per axis; None makes all axes Auto.

    Returns:
        The mesh; use `.abstract` in shardings and `lower_for_target`, and `.axes` and `.order` in `compile_for_target`.

    Raises:
        MeshError: if the product of the sizes is not the number of devices, or if there are not as many names as sizes.

    Example:
        >>> target_mesh("v5e:4x4", (8, 2), ("clients", "model")).axes
        {'clients': 8, 'model': 2}
    """
    target = parse_target(target) if isinstance(target, str) else target
    shapes, names = tuple(axis_shapes), tuple(axis_names)
    if len(shapes) != len(names) or math.prod(shapes) != target.devices:
        message = (
            f"`target_mesh` was given sizes {shapes} and names {names} for target {target.name!r}: {math.prod(shapes)} "
            f"places for {target.devices} devices ({target.chips} chips). Every axis must have a size and a name, and "
            f"the product of the sizes must be the number of devices: for example ({target.devices // 2 or 1}, "
            f"{2 if target.devices > 1 else 1})."
        )
        raise MeshError(message)
    types = tuple(axis_types) if axis_types is not None else (AxisType.Auto,) * len(shapes)
    return TargetMesh(target=target, abstract=AbstractMesh(shapes, names, axis_types=types), order=order)


def lower_for_target(
    fn: Callable[..., Any],
    args: Sequence[Any],
    mesh: TargetMesh | AbstractMesh,
    *,
    platform: Literal["tpu", "cuda"] | None = None,
) -> str:
    """Lowers `fn(*args)` to StableHLO with source lines, for a platform that is not attached.

    The program does not run, and no device of that platform is needed. `fn` is traced with `mesh` as the current mesh.

    Args:
        fn: A function of arrays, jitted or not.
        args: Arrays or `jax.ShapeDtypeStruct`s, in any pytrees. Named shardings are moved to `mesh` by their axis
            names; the compiler places leaves that have no sharding.
        mesh: A mesh from `target_mesh`, or an abstract mesh.
        platform: `tpu` or `cuda`; None means the target's platform.

    Returns:
        The text of one module, for `compile_for_target`.

    Raises:
        MeshError: if a sharding names axes that `mesh` lacks.
        ProgramError: if `mesh` is abstract and no platform is given, or if the program has Python callbacks.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
        >>> text = lower_for_target(lambda x: x * 2, [jnp.ones(8)], mesh, platform="tpu")
        >>> "stablehlo.multiply" in text
        True
    """
    abstract = mesh.abstract if isinstance(mesh, TargetMesh) else mesh
    if platform is None:
        if not isinstance(mesh, TargetMesh):
            message = (
                f"`lower_for_target` was given an abstract mesh of axes {abstract.axis_names} and no `platform`. "
                "The lowering of operations depends on the platform: pass `platform='tpu'` or 'cuda', or a mesh from "
                "`target_mesh`, which has a platform."
            )
            raise ProgramError(message)
        platform = mesh.target.platform
    moved = _on_mesh(args, abstract)
    trace = getattr(fn, "trace", None) or jax.jit(fn).trace
    with jax.set_mesh(None), jax.sharding.use_abstract_mesh(abstract):  # does not depend on the current mesh's size
        traced = trace(*moved)
        if calls_back(traced.jaxpr):
            message = (
                f"`{getattr(fn, '__name__', 'the function')}` has Python callbacks. JAX compiles callbacks only for "
                "attached devices: remove `jax.debug.print`, `jax.pure_callback` and `io_callback`, or name only the "
                'chip, as in `on="v5e"`; the program is then compiled for the attached devices and priced for the chip.'
            )
            raise ProgramError(message)
        lowered = traced.lower(lowering_platforms=(platform,))
    return drop_callers(lowered.as_text(debug_info=True))


def _on_mesh(args: Sequence[Any], mesh: AbstractMesh) -> tuple[Any, ...]:
    """The shapes of all leaves, with their named shardings moved to `mesh`."""
    strange: dict[str, str] = {}
    uneven: dict[str, str] = {}

    def moved(path: KeyPath, leaf: Argument) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding):
            return jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.dtypes.result_type(leaf))
        named = {
            name
            for part in sharding.spec
            if part is not None
            for name in (part if isinstance(part, tuple) else (part,))
        }
        if missing := named.difference(mesh.axis_names):
            strange[jax.tree_util.keystr(path)] = f"{sharding.spec} names {', '.join(sorted(map(repr, missing)))}"
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for size, part in zip(leaf.shape, sharding.spec, strict=False):
            parts = math.prod(mesh.shape[name] for name in ((part,) if isinstance(part, str) else part or ()))
            if size % parts:
                uneven[jax.tree_util.keystr(path)] = f"{parts} parts of a dimension of {size}, by {sharding.spec}"
                return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, sharding.spec))

    shapes = jax.tree_util.tree_map_with_path(moved, tuple(args))
    if strange:
        listed = "; ".join(f"args{where}: {fault}" for where, fault in strange.items())
        message = (
            "`lower_for_target` was given shardings over axes that the mesh "
            f"{dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))} lacks: {listed}. Shardings are moved to the "
            "target's mesh by axis names: use the same names, or shard these arguments over other axes."
        )
        raise MeshError(message)
    if uneven:
        sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        listed = "; ".join(f"args{where}: {fault}" for where, fault in uneven.items())
        message = (
            f"`lower_for_target` was given shardings that the mesh {sizes} cannot divide evenly: {listed}. A sharded "
            "argument is divided into equal parts: pass `on=(jax.sharding.AbstractMesh(sizes, names), target)` with "
            "sizes that divide the dimensions, use a smaller target, or pass these arguments without a sharding."
        )
        raise MeshError(message)
    return shapes
