"""Rewrites a jaxpr for a place where the mesh looks different from where it was traced: inside a `shard_map`.

A jaxpr remembers the mesh it was traced under, in every equation and in every type. Inside a `shard_map` over the
clients' axes these axes are manual, and JAX 0.10 refuses equations that remember otherwise. Rewriting what they
remember costs a fraction of tracing their functions anew.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from workbench import _jax_compat
from workbench.mesh import find_layout


def rebase(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program under the mesh of this place."""
    place = _Place(jax.sharding.get_abstract_mesh())
    return ClosedJaxpr(place.jaxpr(closed.jaxpr), closed.consts)


def bind_rebased(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation, computed under the mesh of this place."""
    place = _Place(jax.sharding.get_abstract_mesh())
    params = {key: place.param(value) for key, value in equation.params.items()}
    if "layout" in params and "placement" in params:  # a sharding constraint has a `layout` of another kind
        params["layout"] = find_layout(params["placement"])
    with _jax_compat.source_of(equation, mesh=False):
        return _jax_compat.bind_equation(_jax_compat.new_equation(equation, params=params), operands)


def sharding_here(sharding: NamedSharding) -> NamedSharding:
    """A sharding of the traced mesh as one of the mesh of this place; axes that are manual here say nothing."""
    return _Place(jax.sharding.get_abstract_mesh()).sharding(sharding)


class _Place:
    """One rewriting; what is shared (types, contexts, inner jaxprs) stays shared, as JAX keys its caches with it."""

    def __init__(self, mesh: AbstractMesh) -> None:
        self.mesh = mesh
        self.manual = frozenset(
            name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual
        )
        self._types: dict[Any, Any] = {}
        self._contexts: dict[Any, Any] = {}
        self._jaxprs: dict[Any, Jaxpr] = {}

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        if jaxpr not in self._jaxprs:
            self._jaxprs[jaxpr] = self._rewritten(jaxpr)
        return self._jaxprs[jaxpr]

    def _rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        variables: dict[Any, Any] = {}

        def atom(v: Any) -> Any:
            if isinstance(v, Literal):
                return v
            if v not in variables:
                variables[v] = _jax_compat.new_variable(v, self.type(v.aval))
            return variables[v]

        def atoms(vs: Sequence[Any]) -> list[Any]:
            return [atom(v) for v in vs]

        equations = [
            _jax_compat.new_equation(
                equation,
                invars=atoms(equation.invars),
                outvars=atoms(equation.outvars),
                params={key: self.param(value) for key, value in equation.params.items()},
                ctx=self.context(equation.ctx),
            )
            for equation in jaxpr.eqns
        ]
        return jaxpr.replace(
            constvars=atoms(jaxpr.constvars),
            invars=atoms(jaxpr.invars),
            outvars=atoms(jaxpr.outvars),
            eqns=equations,
        )

    def type(self, aval: Any) -> Any:
        if aval not in self._types:
            sharding = getattr(aval, "sharding", None)
            known = isinstance(sharding, NamedSharding)
            self._types[aval] = aval.update(sharding=self.sharding(sharding)) if known else aval
        return self._types[aval]

    def context(self, context: Any) -> Any:
        if context not in self._contexts:
            mesh = self.changed(context.cur_abstract_mesh)
            self._contexts[context] = _jax_compat.context_under(context, mesh)
        return self._contexts[context]

    def param(self, value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return ClosedJaxpr(self.jaxpr(value.jaxpr), value.consts)
        if isinstance(value, Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, NamedSharding):
            return self.sharding(value)
        if isinstance(value, AbstractMesh):
            return self.changed(value)
        if type(value) in (tuple, list):
            return type(value)(self.param(item) for item in value)
        return value

    def sharding(self, sharding: NamedSharding) -> NamedSharding:
        mesh = self.changed(sharding.mesh.abstract_mesh)
        return NamedSharding(mesh, P(*(_without(entry, self.manual) for entry in sharding.spec)))

    def changed(self, mesh: AbstractMesh) -> AbstractMesh:
        """The mesh of the place; inside of an inner `shard_map` its own axes are manual as well."""
        if mesh.empty or self.mesh.empty:
            return self.mesh
        return mesh.update_axis_types({name: AxisType.Manual for name in self.manual})


def _without(entry: Any, manual: frozenset[str]) -> Any:
    if isinstance(entry, tuple):
        return tuple(axis for axis in entry if axis not in manual) or None
    return None if entry in manual else entry
