"""Rewrites a jaxpr for a context whose mesh differs from the mesh it was traced under.

Every equation and type in a jaxpr stores the mesh it was traced under. Inside a `shard_map` over the clients' axes,
these axes are Manual, and inside `auto_axes` they are Auto; JAX 0.10 rejects equations with a different mesh. Rewriting
the meshes takes a fraction of the time that tracing the functions again would take.
"""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.core import AbstractValue
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

from workbench import _jax_compat
from workbench._jax_compat import JaxprEqnContext
from workbench._types import Atom, Aval
from workbench.primitives._layout import find_layout
from workbench.primitives._rewriting import Rewriting


def rebase(closed: ClosedJaxpr, hidden: Sequence[str] = ()) -> ClosedJaxpr:
    """The same program under the current mesh, with types that do not mention the `hidden` axes."""
    place = MeshRewriting(jax.sharding.get_abstract_mesh(), hidden)
    return ClosedJaxpr(place.jaxpr(closed.jaxpr), closed.consts)


def bind_rebased(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation under the current mesh."""
    place, equation = MeshRewriting(jax.sharding.get_abstract_mesh()), _as_operations(equation)
    params = place.params(equation)
    if "layout" in params and "placement" in params:  # in a sharding constraint, `layout` has a different meaning
        params["layout"] = find_layout(params["placement"])
    with _jax_compat.source_of(equation, mesh=False):
        return _jax_compat.bind_equation(_jax_compat.new_equation(equation, params=params), operands)


def bind_here(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Runs one equation under the mesh it was traced with or, inside a `shard_map`, under the current mesh."""
    if _jax_compat.has_manual_axes():
        return bind_rebased(equation, operands)
    with _jax_compat.source_of(equation):
        return _jax_compat.bind_equation(equation, operands)


def sharding_here(sharding: NamedSharding, hidden: Sequence[str] = ()) -> NamedSharding:
    """Converts a sharding on the traced mesh to the current mesh, without Manual or hidden axes."""
    return MeshRewriting(jax.sharding.get_abstract_mesh(), hidden).sharding(sharding)


class MeshRewriting(Rewriting):
    """A rewriting for one mesh; shared types and contexts stay shared, because JAX's caches use them as keys."""

    def __init__(self, mesh: AbstractMesh, hidden: Sequence[str] = ()) -> None:
        super().__init__()
        self.mesh: AbstractMesh = mesh
        self.types: dict[str, AxisType] = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        self.manual: frozenset[str] = frozenset(name for name, kind in self.types.items() if kind is AxisType.Manual)
        self.hidden: frozenset[str] = self.manual | frozenset(hidden)
        self._types: dict[AbstractValue, Aval] = {}
        self._contexts: dict[JaxprEqnContext, JaxprEqnContext] = {}

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        variables: dict[Var, Var] = {}

        def atom(v: Atom) -> Atom:
            if isinstance(v, Literal):
                return _jax_compat.retyped_literal(v, self.type(v.aval))
            if v not in variables:
                variables[v] = _jax_compat.new_variable(v, self.type(v.aval))
            return variables[v]

        def atoms(vs: Sequence[Atom]) -> list[Atom]:
            return [atom(v) for v in vs]

        equations = [
            _jax_compat.new_equation(
                equation,
                invars=atoms(equation.invars),
                outvars=atoms(equation.outvars),
                params=self.params(equation),
                effects=_jax_compat.renamed_effects(equation.effects, variables),
                ctx=self.context(equation.ctx),
            )
            for equation in map(_as_operations, jaxpr.eqns)
        ]
        return jaxpr.replace(
            constvars=atoms(jaxpr.constvars),
            invars=atoms(jaxpr.invars),
            outvars=atoms(jaxpr.outvars),
            eqns=equations,
            effects=_jax_compat.renamed_effects(jaxpr.effects, variables),
            debug_info=jaxpr.debug_info,  # otherwise `replace` loses the argument names
        )

    def consts(self, closed: ClosedJaxpr) -> list[object]:
        """The constants, with types for the current mesh."""
        pairs = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        return [_jax_compat.retyped_constant(value, self.type(variable.aval)) for variable, value in pairs]

    def params(self, equation: JaxprEqn) -> dict[str, Any]:  # of any primitive
        params: dict[str, Any] = super().params(equation)
        if equation.primitive.name == "shard_map":
            # Axes that are already Manual do not matter in an inner shard_map: its function receives one device's part.
            for name in ("newly_manual_axes", "manual_axes"):
                if name in params:
                    params[name] = frozenset(params[name]) - self.manual
            for name in ("in_specs", "out_specs"):
                params[name] = tuple(P(*(_without(entry, self.manual) for entry in spec)) for spec in params[name])
        return params

    def type(self, aval: AbstractValue) -> Aval:
        if aval not in self._types:
            self._types[aval] = self._retyped(aval)
        return self._types[aval]

    def _retyped(self, aval: Aval) -> Aval:
        inner = getattr(aval, "inner_aval", None)
        if inner is not None:  # a Ref
            return aval.update(inner_aval=self.type(inner))
        sharding = getattr(aval, "sharding", None)
        return aval.update(sharding=self.sharding(sharding)) if isinstance(sharding, NamedSharding) else aval

    def context(self, context: JaxprEqnContext) -> JaxprEqnContext:
        if context not in self._contexts:
            mesh = self.changed(context.cur_abstract_mesh)
            self._contexts[context] = _jax_compat.context_under(context, mesh)
        return self._contexts[context]

    def param(self, value: object) -> object:
        """Also rewrites types, meshes and shardings, even inside JAX's dataclasses (`pallas`)."""
        if isinstance(value, NamedSharding):
            return self.sharding(value)
        if isinstance(value, AbstractMesh):
            return self.changed(value)
        if isinstance(value, AbstractValue):
            return self.type(value)
        if dataclasses.is_dataclass(value) and type(value).__module__.startswith("jax."):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            changed = {name: new for name, old in fields.items() if (new := self.param(old)) is not old}
            return _with_fields(value, {k: v for k, v in changed.items() if not _same(v, fields[k])})
        return super().param(_jax_compat.changed_operation(value, self.param))

    def sharding(self, sharding: NamedSharding) -> NamedSharding:
        mesh = self.changed(sharding.mesh.abstract_mesh)
        return NamedSharding(mesh, P(*(_without(entry, self.hidden) for entry in sharding.spec)))

    def changed(self, mesh: AbstractMesh) -> AbstractMesh:
        """The current mesh; inside an inner `shard_map`, its axes are also Manual."""
        if mesh.empty or self.mesh.empty:
            return self.mesh
        inner = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual}
        return mesh.update_axis_types({n: k for n, k in self.types.items() if n in self.hidden and n not in inner})


def _as_operations(equation: JaxprEqn) -> JaxprEqn:
    """The equation, expanded into operations if its parameters hide types with the traced mesh (Equinox, Lineax)."""
    return _jax_compat.expanded(equation) if _jax_compat.is_of_equinox(equation) else equation


def _same(new: object, old: object) -> bool:
    try:
        return bool(new == old) and not isinstance(new, Jaxpr | ClosedJaxpr)
    except Exception:  # values that cannot be compared are replaced
        return False


def _with_fields(value: object, changes: Mapping[str, object]) -> object:
    if not changes:
        return value
    clone = copy.copy(value)
    for name, field in changes.items():
        object.__setattr__(clone, name, field)
    return clone


def _without(entry: object, hidden: frozenset[str]) -> object:
    if isinstance(entry, tuple):
        return tuple(axis for axis in entry if axis not in hidden) or None
    return None if entry in hidden else entry
