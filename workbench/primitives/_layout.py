"""Layout of a placement's clients on the current mesh, and the sharding of their arrays."""

import contextlib
import dataclasses
import difflib
import functools
import math
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from workbench import _jax_compat
from workbench._types import AnyMesh, SpecEntry
from workbench.errors import MeshError
from workbench.mesh import check_axis_names
from workbench.primitives._placement import Placement

_PLANNED: ContextVar[bool] = ContextVar("workbench_planned", default=False)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The mesh axes over which a placement's clients are spread.

    Axes that are `explicit` are part of the array's type.
    """

    mesh: AnyMesh
    axes: tuple[str, ...]
    explicit: bool

    @property
    def size(self) -> int:
        """Number of mesh positions over which the clients are spread."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    @property
    def entry(self) -> str | tuple[str, ...]:
        """The layout as one entry of a PartitionSpec."""
        return self.axes[0] if len(self.axes) == 1 else self.axes

    @property
    def explicit_axes(self) -> str | tuple[str, ...] | None:
        """Mesh axes of an explicitly sharded leading axis; None for Auto meshes."""
        return self.entry if self.explicit else None


def check_mesh(operation: str, on: object) -> None:
    """Raises an error if `on`, which the user passed to an operation, is neither a mesh nor None."""
    if on is not None and not isinstance(on, Mesh | AbstractMesh):
        message = (
            f"`{operation}` was given on={on!r:.80}, an object of type {type(on).__name__}. Here, `on` must be a mesh: "
            "pass a `jax.sharding.Mesh`, such as `workbench.make_mesh(clients=8)`."
        )
        raise MeshError(message)


def find_layout(placement: Placement, mesh: AnyMesh | None = None, *, uneven: bool = False) -> Layout | None:
    """The layout of `placement` on `mesh` or on the mesh set by `jax.set_mesh`; None if clients are not spread.

    Clients are not spread if there is no mesh, if the mesh has none of the placement's axes, or if these axes are
    manual (inside `shard_map`). Explicit axes spread the clients only if the axis size divides the number
    of clients, because explicit types require equal shards. With `uneven`, any number of clients is spread,
    because the caller pads the clients.
    """
    mesh = mesh if mesh is not None else _current_mesh()
    if mesh.empty:
        return None
    check_axis_names("program", mesh.axis_names)
    types = {name: kind for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)}
    axes = tuple(axis for axis in placement.mesh_axes if types.get(axis, AxisType.Manual) is not AxisType.Manual)
    if not axes:
        _warn_of_typo(placement, mesh.axis_names, tuple(types[name] is AxisType.Explicit for name in mesh.axis_names))
        return None
    kinds = {types[axis] for axis in axes}
    if len(kinds) > 1:
        message = (
            f'placement "{placement.name}" is spread over the mesh axes {axes}, of types '
            f"{[types[axis].name for axis in axes]}. The axes of one placement must all be Auto or all Explicit: "
            "create the mesh with `workbench.make_mesh(..., axis_types=…)` and one type for these axes."
        )
        raise MeshError(message)
    explicit = kinds == {AxisType.Explicit}
    layout = Layout(mesh, axes, explicit)
    if explicit and placement.size % layout.size and not uneven:
        return None
    return layout


@functools.lru_cache(maxsize=64)  # only once per placement and mesh
def _warn_of_typo(placement: Placement, names: tuple[str, ...], explicit: tuple[bool, ...]) -> None:
    """Warns of mistyped axis names; on Explicit axes they would silently replicate all clients on every device."""
    candidates = [name for name, is_explicit in zip(names, explicit, strict=True) if is_explicit]
    for axis in placement.mesh_axes:
        near = difflib.get_close_matches(axis, candidates, n=1, cutoff=0.75)
        if near and axis not in names:
            warnings.warn(
                f'placement "{placement.name}" is mapped to the mesh axis "{axis}", which the mesh {names} does not '
                f'have; did you mean "{near[0]}"? The clients are not spread over the mesh: every '
                "device processes all of them. "
                f'Name the axis: `program(..., axes={{"{placement.name}": "{near[0]}"}})`.',
                stacklevel=2,
            )


def _current_mesh() -> AnyMesh:
    mesh = jax.sharding.get_abstract_mesh()
    return _jax_compat.mesh_of_old_context() if mesh.empty else mesh


def spread(x: jax.Array, layout: Layout | None) -> jax.Array:
    """Constrains the leading axis of `x` to the layout; other axes are unchanged.

    With Auto axes, this is a constraint that leaves other dimensions open; with Explicit axes, it changes the type.
    """
    if layout is None:
        return x
    if layout.explicit:
        return jax.sharding.reshard(
            x, NamedSharding(layout.mesh, P(layout.entry, *_rest(jax.typeof(x).sharding, x.ndim)))
        )
    if not isinstance(x, Tracer):
        # A concrete array cannot be split unevenly, and inside an eager vmap it is not the whole array.
        if x.shape[0] % layout.size or not _jax_compat.at_top_level():
            return x
        rest = _rest(getattr(x, "sharding", None), x.ndim)
        return jax.device_put(x, NamedSharding(_concrete(layout.mesh), P(layout.entry, *rest)))
    spec = P(layout.entry, *(P.UNCONSTRAINED for _ in range(x.ndim - 1)))
    return jax.lax.with_sharding_constraint(x, NamedSharding(layout.mesh, spec))


@contextlib.contextmanager
def planned() -> Iterator[None]:
    """Marks a trace made for a plan: the plan itself contains the mesh, so the trace adds no sharding constraints."""
    token = _PLANNED.set(True)
    try:
        yield
    finally:
        _PLANNED.reset(token)


def reveal(x: jax.Array, layout: Layout | None) -> jax.Array:
    """Makes `jax.jit` see a mesh other than the current mesh, through a sharding constraint on `x`.

    `jax.jit` chooses devices from the shardings it sees, and sees none inside a primitive. Without this constraint, a
    program with `on=` would run on one device.
    """
    if layout is None or layout.explicit or not jax.sharding.get_abstract_mesh().empty:
        return x
    if _PLANNED.get() or not isinstance(x, Tracer):
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(layout.mesh, P(*(P.UNCONSTRAINED,) * x.ndim)))


def pad_rows(x: jax.Array, layout: Layout, value: int = 0) -> jax.Array:
    """Appends rows of `value`, so that all devices have the same number of rows."""
    missing = -x.shape[0] % layout.size
    return jax.numpy.pad(x, [(0, missing), *[(0, 0)] * (x.ndim - 1)], constant_values=value)


def gather(x: jax.Array, layout: Layout | None) -> jax.Array:
    """Replicates explicitly sharded rows where their types require it; other rows are unchanged."""
    if layout is None or not layout.explicit:
        return x
    return jax.sharding.reshard(x, NamedSharding(layout.mesh, P(None, *_rest(jax.typeof(x).sharding, x.ndim))))


def align(x: jax.Array, like: jax.Array, axes: range) -> jax.Array:
    """Gives unsharded `axes` of `x` the explicit sharding that they have in `like`; vmap requires identical types."""
    sharding, target = jax.typeof(x).sharding, jax.typeof(like).sharding
    if target.mesh.empty or not any(target.spec[axis] for axis in axes if axis < len(target.spec)):
        return x
    spec = [*sharding.spec, *(None,) * (x.ndim - len(sharding.spec))]
    changed = [axis for axis in axes if spec[axis] is None and target.spec[axis] is not None]
    for axis in changed:
        spec[axis] = target.spec[axis]
    return jax.sharding.reshard(x, NamedSharding(target.mesh, P(*spec))) if changed else x


def _rest(sharding: object, ndim: int) -> tuple[SpecEntry, ...]:
    spec = tuple(getattr(sharding, "spec", ()))
    return spec[1:] + (None,) * (ndim - max(len(spec), 1))


def _concrete(mesh: AnyMesh) -> AnyMesh:
    if isinstance(mesh, Mesh):
        return mesh
    current = jax.sharding.get_mesh()
    return mesh if current.empty else current
