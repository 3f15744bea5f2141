"""Rewrites a traced program for another mesh without tracing it again."""

from typing import Any

from jax.core import AbstractValue
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from workbench import _jax_compat
from workbench._types import AnyMesh, Aval
from workbench.primitives import Layout, MeshRewriting, find_layout


class RebaseError(ValueError):
    """Raised if a program with its own meshes cannot be rewritten for another mesh."""


def retarget(closed: ClosedJaxpr, mesh: AbstractMesh) -> ClosedJaxpr:
    """The program as if it had been traced under another mesh."""
    program_mesh = mesh_of_program(closed)
    if program_mesh is not None and program_mesh.shape == mesh.shape:
        closed = _OverOtherDevices(mesh).closed(closed)
    return _Elsewhere(mesh).closed(closed)


def mesh_of_program(closed: ClosedJaxpr) -> Mesh | AbstractMesh | None:
    """The mesh of the first `shard_map` that a program enters; None if there is none."""
    meshes: list[Mesh | AbstractMesh] = []

    def search(jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "shard_map":
                meshes.append(equation.params["mesh"])
            if not meshes:
                for inner in _jax_compat.inner_jaxprs(equation):
                    search(getattr(inner, "jaxpr", inner))

    search(closed.jaxpr)
    return meshes[0] if meshes else None


class _OverOtherDevices(MeshRewriting):
    """Rewrites a program for the same axes on different devices, or for an abstract mesh."""

    def params(self, equation: JaxprEqn) -> dict[str, Any]:
        params = super().params(equation)
        return {**params, "mesh": self.changed(params["mesh"])} if equation.primitive.name == "shard_map" else params

    def sharding(self, sharding: NamedSharding) -> NamedSharding:
        return NamedSharding(self.changed(sharding.mesh), sharding.spec)

    def changed(self, mesh: Mesh | AbstractMesh) -> AbstractMesh:
        if mesh.shape != self.mesh.shape:
            return mesh.abstract_mesh
        return self.mesh.update_axis_types(dict(zip(mesh.axis_names, mesh.axis_types, strict=True)))


class _Elsewhere(MeshRewriting):
    """Rewrites a program for another mesh, using the names of its axes."""

    def params(self, equation: JaxprEqn) -> dict[str, Any]:
        if equation.primitive.name == "shard_map" and equation.params["mesh"].shape == self.mesh.shape:
            return {**equation.params, "mesh": self.mesh}  # the same axes on other devices; its function is unchanged
        if equation.primitive.name in ("shard_map", "xla_pmap"):
            message = f"it enters `{equation.primitive.name}` over another mesh."
            raise RebaseError(message)
        params = super().params(equation)
        if "placement" in params and "layout" in params:
            params["layout"] = find_layout(params["placement"], self.mesh)
            if _explicit(equation.params["layout"]) != _explicit(params["layout"]):
                message = "its clients are on Explicit axes in one of the meshes."
                raise RebaseError(message)
        return params

    def type(self, aval: AbstractValue) -> Aval:
        sharding = getattr(aval, "sharding", None)
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        if mesh is not None and (_explicit_axes(mesh) != _explicit_axes(self.mesh)):
            message = "its values have types with different Explicit axes."
            raise RebaseError(message)
        return super().type(aval)

    def sharding(self, sharding: NamedSharding) -> NamedSharding:
        used = {axis for entry in sharding.spec for axis in _axes(entry)}
        if missing := sorted(used - set(self.mesh.axis_names)):
            message = f"it shards values over {', '.join(map(repr, missing))}, which the other mesh lacks."
            raise RebaseError(message)
        return NamedSharding(self.mesh, sharding.spec)

    def changed(self, mesh: AbstractMesh) -> AbstractMesh:
        return self.mesh


def _explicit(layout: Layout | None) -> bool:
    return layout is not None and layout.explicit


def _explicit_axes(mesh: AnyMesh) -> set[str]:
    return {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}


def _axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if entry is None or entry is P.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
