"""Evaluates a client's jaxpr where the mesh looks different from where it was traced: inside a `shard_map`.

A jaxpr remembers the mesh it was traced under, in every equation and in the loops inside of it. Inside a `shard_map`
over the clients' axes these axes are manual, and JAX 0.10 refuses equations that remember otherwise. So each equation
is bound anew under the mesh of the place, and structured control flow is traced anew.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import NamedSharding, PartitionSpec as P

from workbench import _jax_compat
from workbench.placements import find_layout


def replay(closed: ClosedJaxpr, *inputs: Any) -> list[Any]:
    """The outputs of a closed jaxpr, computed under the current mesh."""
    return _replay(closed.jaxpr, closed.consts, inputs)


def _replay(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        results = replay_equation(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def replay_equation(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of one equation, computed under the current mesh."""
    rule = _STRUCTURED.get(equation.primitive.name, _bind)
    with _jax_compat.source_of(equation, mesh=False):
        return rule(equation, operands)


def _bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    params = {key: sharding_here(value) for key, value in equation.params.items()}
    if "layout" in params and "placement" in params:  # a sharding constraint has a `layout` of another kind
        params["layout"] = find_layout(params["placement"])
    return _jax_compat.bind_equation(_jax_compat.new_equation(equation, params=params), operands)


def sharding_here(value: Any) -> Any:
    """A sharding of the traced mesh as one of the mesh of this place; axes that are manual here say nothing."""
    if not isinstance(value, NamedSharding):
        return value
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh == value.mesh:
        return value
    manual = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if str(kind) == "Manual"}
    return NamedSharding(mesh, P(*(_without(entry, manual) for entry in value.spec)))


def _without(entry: Any, manual: set[str]) -> Any:
    if isinstance(entry, tuple):
        kept = tuple(axis for axis in entry if axis not in manual)
        return kept or None
    return None if entry in manual else entry


def _call(key: str) -> Callable[[Any, Sequence[Any]], list[Any]]:
    def rule(equation: Any, operands: Sequence[Any]) -> list[Any]:
        body = equation.params[key]
        return replay(body, *operands) if isinstance(body, ClosedJaxpr) else _replay(body, (), operands)

    return rule


def _checkpoint(equation: Any, operands: Sequence[Any]) -> list[Any]:
    params = equation.params
    again = jax.checkpoint(
        lambda *values: tuple(_replay(params["jaxpr"], (), values)),
        prevent_cse=params["prevent_cse"],
        policy=params["policy"],
    )
    return list(again(*operands))


def _scan(equation: Any, operands: Sequence[Any]) -> list[Any]:
    params = equation.params
    consts, carries = params["num_consts"], params["num_carry"]
    fixed, start, xs = operands[:consts], operands[consts : consts + carries], operands[consts + carries :]

    def turn(carry: Any, x: Any) -> Any:
        results = replay(params["jaxpr"], *fixed, *carry, *x)
        return tuple(results[:carries]), tuple(results[carries:])

    last, stacked = jax.lax.scan(
        turn, tuple(start), tuple(xs), params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    return [*last, *stacked]


def _while(equation: Any, operands: Sequence[Any]) -> list[Any]:
    params = equation.params
    conditions, bodies = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body = operands[:conditions], operands[conditions : conditions + bodies]
    return list(
        jax.lax.while_loop(
            lambda carry: replay(params["cond_jaxpr"], *for_condition, *carry)[0],
            lambda carry: tuple(replay(params["body_jaxpr"], *for_body, *carry)),
            tuple(operands[conditions + bodies :]),
        )
    )


def _cond(equation: Any, operands: Sequence[Any]) -> list[Any]:
    branches = [lambda *xs, branch=branch: tuple(replay(branch, *xs)) for branch in equation.params["branches"]]
    return list(jax.lax.switch(operands[0], branches, *operands[1:]))


_STRUCTURED: dict[str, Callable[[Any, Sequence[Any]], list[Any]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "checkpoint": _checkpoint,
    "remat2": _checkpoint,
    "jit": _call("jaxpr"),
    "pjit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
}
