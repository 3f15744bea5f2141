"""Rewrites a traced program at a finding's lines: constraints, `shard_map`s and explicit gathers."""

from collections.abc import Callable, Collection, Mapping

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workbench import _jax_compat
from workbench._types import Atom, type_of
from workbench.primitives import Rewriting

RECOMPUTED = "rematted_computation"  # in the names of operations that a checkpoint recomputes
Line = tuple[str, int]
Spec = tuple[tuple[str, ...], ...]


class AtLines(Rewriting):
    """A pass over selected lines of a program; `count` is the number of equations changed."""

    enters_shard_maps = True

    def __init__(self, lines: Collection[Line] = ()) -> None:
        super().__init__()
        self.lines = frozenset(lines)
        self.count = 0

    def program(self, closed: ClosedJaxpr) -> tuple[ClosedJaxpr, int]:
        """The changed program, and the number of changed equations."""
        changed = self.closed(closed)
        return changed, self.count

    def inside(self, equation: JaxprEqn) -> JaxprEqn:
        is_outside = equation.primitive.name == "shard_map" and not self.enters_shard_maps
        return equation if is_outside else super().inside(equation)

    def is_at_lines(self, equation: JaxprEqn) -> bool:
        """Returns whether an equation comes from one of the lines; JAX's own equations do not have a line."""
        frames = _jax_compat.user_frames(equation.source_info)
        return not self.lines or not frames or any((file, line) in self.lines for file, line, *_ in frames)


class _Unconstrained(AtLines):
    enters_shard_maps = False

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        if equation.primitive.name != "sharding_constraint" or not self.is_at_lines(equation):
            return equation
        self.count += 1
        return converted(equation, equation.invars[0], equation.outvars[0])


def unconstrained(closed: ClosedJaxpr, lines: Collection[Line]) -> tuple[ClosedJaxpr, int]:
    """The program without the sharding constraints on these lines, and the number of removed constraints."""
    return _Unconstrained(lines).program(closed)


def _rank(equation: JaxprEqn) -> int:
    return len(type_of(equation.invars[0]).shape)


_WHOLE: Mapping[str, Callable[[JaxprEqn], int]] = {  # number of last dimensions that must be unsharded
    "fft": lambda equation: len(equation.params["fft_lengths"]),
    "cholesky": lambda equation: 2,
    "eigh": lambda equation: 2,
    "lu": lambda equation: 2,
    "top_k": lambda equation: (
        _rank(equation) if equation.params.get("axis", -1) not in (-1, _rank(equation) - 1) else 1
    ),
    "qr": lambda equation: 2,
    "svd": lambda equation: 2,
    "triangular_solve": lambda equation: 2,
}


class _Constrained(AtLines):
    enters_shard_maps = False

    def __init__(self, lines: Collection[Line], mesh: Mesh, specs: Mapping[tuple[int, ...], Spec]) -> None:
        super().__init__(lines)
        self.mesh, self.specs = mesh, specs

    def _spec(self, value: Atom) -> Spec | None:
        kind = type_of(value)
        spec = self.specs.get(tuple(kind.shape)) if hasattr(kind, "dtype") else None  # tokens have no dtype
        return spec if spec is not None and jax.numpy.issubdtype(kind.dtype, jax.numpy.inexact) else None

    def _is_constrained(self, equation: JaxprEqn) -> bool:
        """Returns whether the results (or, in a transpose, the operands) of an equation are constrained."""
        is_call = any(isinstance(value, ClosedJaxpr | Jaxpr) for value in equation.params.values())
        if equation.effects or (is_call and equation.primitive.name not in ("jit", "pjit")):
            return False
        atoms = equation.invars if _is_transposed(equation) else equation.outvars
        return any(self._spec(atom) is not None for atom in atoms) and self.is_at_lines(equation)

    def inside(self, equation: JaxprEqn) -> JaxprEqn:
        # The user can only constrain the result of a call, such as `jax.random.normal`.
        return equation if self._is_constrained(equation) else super().inside(equation)

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        if not self._is_constrained(equation):
            return equation
        is_cotangent = _is_transposed(equation)
        primitive, params = equation.primitive, equation.params
        literals = {at: v.val for at, v in enumerate(equation.invars) if isinstance(v, Literal)}
        operands = [v for v in equation.invars if not isinstance(v, Literal)]

        def constrained(atom: Atom, value: jax.Array) -> jax.Array:
            spec = self._spec(atom)
            if spec is None:
                return value
            sharding = NamedSharding(self.mesh, PartitionSpec(*(tuple(axes) or None for axes in spec)))
            return jax.lax.with_sharding_constraint(value, sharding)

        def local_fn(*values: jax.Array) -> list[jax.Array]:
            rest = iter(values)
            inputs = [literals[at] if at in literals else next(rest) for at in range(len(equation.invars))]
            if is_cotangent:
                inputs = [constrained(atom, value) for atom, value in zip(equation.invars, inputs, strict=True)]
            results = primitive.bind(*inputs, **params)
            results = list(results) if primitive.multiple_results else [results]
            if not is_cotangent:
                results = [constrained(atom, value) for atom, value in zip(equation.outvars, results, strict=True)]
            return results

        shapes = [jax.ShapeDtypeStruct(type_of(v).shape, type_of(v).dtype) for v in operands]
        closed = jax.make_jaxpr(jax.jit(local_fn))(*shapes)
        [replacement] = closed.jaxpr.eqns
        self.count += not is_cotangent
        return _jax_compat.new_equation(
            equation,
            primitive=replacement.primitive,
            params=replacement.params,
            effects=replacement.effects,
            invars=operands,
        )


def _is_transposed(equation: JaxprEqn) -> bool:
    return "transpose(" in str(equation.source_info.name_stack)


def with_constraints(
    closed: ClosedJaxpr, lines: Collection[Line], mesh: Mesh, specs: Mapping[tuple[int, ...], Spec]
) -> tuple[ClosedJaxpr, int]:
    """The program with a sharding constraint on the values that these lines compute, and on their cotangents."""
    return _Constrained(lines, mesh, specs).program(closed)


class _Mapped(AtLines):
    enters_shard_maps = False

    def __init__(self, lines: Collection[Line], mesh: Mesh, specs: Mapping[tuple[int, ...], Spec]) -> None:
        super().__init__(lines)
        self.mesh, self.specs = mesh, specs

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        name = equation.primitive.name
        shapes = [tuple(type_of(v).shape) for v in (*equation.invars, *equation.outvars)]
        spec = next((self.specs[shape] for shape in shapes if shape in self.specs), None)
        if name not in _WHOLE or spec is None or not self.is_at_lines(equation):
            return equation
        batch = _rank(equation) - _WHOLE[name](equation)
        batch_spec = PartitionSpec(*spec[:batch])
        if not any(spec[:batch]):
            return equation

        many = equation.primitive.multiple_results

        def local_fn(*operands: jax.Array) -> jax.Array | tuple[jax.Array, ...]:
            results = equation.primitive.bind(*operands, **equation.params)
            return tuple(results) if many else results

        results = tuple(batch_spec for _ in equation.outvars) if many else batch_spec
        self.count += 1
        return _in_place_of(equation, local_fn, self.mesh, tuple(batch_spec for _ in equation.invars), results)


def with_own_shards(
    closed: ClosedJaxpr, lines: Collection[Line], mesh: Mesh, specs: Mapping[tuple[int, ...], Spec]
) -> tuple[ClosedJaxpr, int]:
    """The program with batched transforms and factorisations moved into `jax.shard_map`, without communication.

    Returns:
        The program, and the number of wrapped operations.
    """
    return _Mapped(lines, mesh, specs).program(closed)


class _Gathered(AtLines):
    enters_shard_maps = False

    def __init__(self, lines: Collection[Line], mesh: Mesh, specs: Mapping[tuple[int, ...], Spec]) -> None:
        super().__init__(lines)
        self.mesh, self.specs, self._again = mesh, specs, False

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        return self.rewritten(jaxpr)  # not cached, because only the recomputed use of a jaxpr changes

    def inside(self, equation: JaxprEqn) -> JaxprEqn:
        before = self._again
        self._again = before or _is_again(equation)
        try:
            return super().inside(equation)
        finally:
            self._again = before

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        is_again = self._again or _is_again(equation)
        if not is_again or equation.primitive.name != "sharding_constraint" or not self.is_at_lines(equation):
            return equation
        sharding = equation.params["sharding"]
        shape = tuple(type_of(equation.invars[0]).shape)
        if not isinstance(sharding, NamedSharding) or any(sharding.spec) or shape not in self.specs:
            return equation
        spec = self.specs[shape]

        def gathered(part: jax.Array) -> jax.Array:
            for dim, axes in enumerate(spec):
                if axes:
                    part = jax.lax.all_gather(part, axes, axis=dim, tiled=True)
            return part

        self.count += 1
        return _in_place_of(equation, gathered, self.mesh, PartitionSpec(*spec), PartitionSpec())


def _is_again(equation: JaxprEqn) -> bool:
    """Returns whether a checkpoint recomputes an equation; the derivative's own equations are not recomputed."""
    return RECOMPUTED in str(equation.source_info.name_stack)


def with_written_gathers(
    closed: ClosedJaxpr, lines: Collection[Line], mesh: Mesh, specs: Mapping[tuple[int, ...], Spec]
) -> tuple[ClosedJaxpr, int]:
    """The program with explicit gathers (`jax.lax.all_gather`) in place of recomputed constraints that replicate."""
    return _Gathered(lines, mesh, specs).program(closed)


def converted(equation: JaxprEqn, before: Atom, after: Var) -> JaxprEqn:
    """Creates an equation that converts a variable to a new variable with a different dtype."""
    return _jax_compat.new_equation(
        equation,
        primitive=jax.lax.convert_element_type_p,
        invars=[before],
        outvars=[after],
        params={"new_dtype": type_of(after).dtype, "weak_type": type_of(after).weak_type, "sharding": None},
        effects=frozenset(),
    )


def _in_place_of(
    equation: JaxprEqn,
    fn: Callable[..., jax.Array | tuple[jax.Array, ...]],
    mesh: Mesh,
    in_specs: PartitionSpec | tuple[PartitionSpec, ...],
    out_specs: PartitionSpec | tuple[PartitionSpec, ...],
) -> JaxprEqn:
    """Replaces the equation with a `jax.shard_map` of a function of its operands."""
    assert not any(isinstance(v, Literal) for v in equation.invars)
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    shapes = [jax.ShapeDtypeStruct(type_of(v).shape, type_of(v).dtype) for v in equation.invars]
    [replacement] = jax.make_jaxpr(mapped)(*shapes).jaxpr.eqns
    return _jax_compat.new_equation(
        equation, primitive=replacement.primitive, params=replacement.params, effects=replacement.effects
    )
