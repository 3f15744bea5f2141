"""Rewrites a traced program for another mesh, so that it needs not be traced again for it."""

from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from workbench.mesh import Place, find_layout


class RebaseError(ValueError):
    """A program that names meshes itself cannot be rewritten for another one."""


def retarget(closed: ClosedJaxpr, mesh: AbstractMesh) -> ClosedJaxpr:
    """The same program as if it had been traced under another mesh.

    Raises:
        RebaseError: if only tracing it again can tell: it enters a `shard_map`, constrains values over axes that the
            mesh has not, or the types of its values depend on a mesh of other Explicit axes.
    """
    return _Elsewhere(mesh).closed(closed)


class _Elsewhere(Place):
    """Rewrites a program for another mesh, by the names of its axes."""

    def closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        return ClosedJaxpr(self.jaxpr(closed.jaxpr), self.consts(closed))

    def params(self, equation: JaxprEqn) -> dict[str, Any]:
        if equation.primitive.name in ("shard_map", "xla_pmap"):
            message = f"it enters a `{equation.primitive.name}` over a mesh of its own."
            raise RebaseError(message)
        params = super().params(equation)
        if "placement" in params and "layout" in params:
            params["layout"] = find_layout(params["placement"], self.mesh)
            if _explicit(equation.params["layout"]) != _explicit(params["layout"]):
                message = "its clients lie along Explicit axes of one of the meshes."
                raise RebaseError(message)
        return params

    def type(self, aval: object) -> Any:
        sharding = getattr(aval, "sharding", None)
        known = sharding.mesh if isinstance(sharding, NamedSharding) else None
        if known is not None and (_explicit_axes(known) != _explicit_axes(self.mesh)):
            message = "the types of its values are those of other Explicit axes."
            raise RebaseError(message)
        return super().type(aval)

    def sharding(self, sharding: NamedSharding) -> NamedSharding:
        used = {axis for entry in sharding.spec for axis in _axes(entry)}
        if missing := sorted(used - set(self.mesh.axis_names)):
            message = f"it shards values over {', '.join(map(repr, missing))}, which the other mesh has not."
            raise RebaseError(message)
        return NamedSharding(self.mesh, sharding.spec)

    def changed(self, mesh: AbstractMesh) -> AbstractMesh:
        return self.mesh


def _explicit(layout: Any) -> bool:
    return layout is not None and layout.explicit


def _explicit_axes(mesh: Any) -> set[str]:
    return {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit}


def _axes(entry: Any) -> tuple[str, ...]:
    if entry is None or entry is P.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)
