"""Counts the FLOPs and bytes of one call of a jaxpr before it is compiled, with exact loop counts."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.extend import core
from jax.extend.core import JaxprEqn

from workbench import _jax_compat
from workbench._types import Atom, Aval
from workbench.plan._windows import valid_positions

# One FLOP per output element. Operations that only move or compare data are free and listed in _FUSED.
_ARITHMETIC = frozenset(
    "abs acos acosh add add_any asin asinh atan atan2 atanh cbrt ceil cos cosh digamma div erf erf_inv erfc exp exp2 "
    "expm1 floor integer_pow is_finite lgamma log log1p logistic max min mul neg nextafter pow rem round rsqrt sign "
    "sin sinh sqrt square sub tan tanh".split()
)
_FUSED = frozenset(
    "and bitcast_convert_type broadcast broadcast_in_dim clamp concatenate convert_element_type copy copy_p copysign "
    "eq ge gt imag iota le lt ne not or pad pvary real reduce_precision reshape rev select_n sharding_constraint "
    "shift_left shift_right_arithmetic shift_right_logical slice squeeze stop_gradient transpose xor "
    "optimization_barrier expand_dims split complex conj population_count clz".split()
)
_REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin cumsum cumprod cummax "
    "cummin cumlogsumexp reduce reduce_window reduce_window_sum reduce_window_max reduce_window_min".split()
)
_UNCOUNTED = frozenset(
    "cholesky eig eigh fft geqrf householder_product lu qr schur svd triangular_solve tridiagonal_solve ffi_call "
    "pure_callback io_callback hessenberg tridiagonal".split()
)
_INLINED = frozenset(
    "pjit jit closed_call core_call remat remat2 checkpoint custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr "
    "custom_lin name_call xla_call named_call run_state".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxprCount:
    """Cost of one call of a jaxpr.

    `flops` counts only dot products and convolutions (2 FLOPs per multiply-add), as rooflines do; it is `None` if a
    loop of unknown length contains any of these. `elementwise_flops` counts one FLOP per element of an arithmetic
    operation or reduction. `accessed_bytes` assumes that elementwise operations fuse into their neighbours and that all
    other operations read their operands from memory and write their results to it.
    """

    flops: float | None
    elementwise_flops: float | None
    accessed_bytes: int | None
    notes: tuple[str, ...] = ()


def count_jaxpr_work(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> JaxprCount:
    """Counts the work and memory traffic of one call of a jaxpr, with notes about operations that are not counted.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> count_jaxpr_work(jax.make_jaxpr(jnp.dot)(jnp.zeros((3, 4)), jnp.zeros((4, 5)))).flops
        120.0
    """
    total = _count(jaxpr)
    return JaxprCount(
        flops=_finite(total.flops),
        elementwise_flops=_finite(total.elementwise),
        accessed_bytes=None if math.isnan(total.bytes) else int(total.bytes),
        notes=tuple(dict.fromkeys(total.notes)),
    )


class _Cost(NamedTuple):
    """Partial counts; NaN means unknown and stays NaN under addition."""

    flops: float = 0.0
    elementwise: float = 0.0
    bytes: float = 0.0
    notes: tuple[str, ...] = ()

    def plus(self, other: "_Cost") -> "_Cost":
        return _Cost(
            self.flops + other.flops,
            self.elementwise + other.elementwise,
            self.bytes + other.bytes,
            self.notes + other.notes,
        )

    def times(self, factor: float) -> "_Cost":
        return _Cost(
            _scaled(self.flops, factor), _scaled(self.elementwise, factor), _scaled(self.bytes, factor), self.notes
        )


def _scaled(amount: float, factor: float) -> float:
    return 0.0 if amount == 0 or factor == 0 else amount * factor


def _finite(amount: float) -> float | None:
    return None if math.isnan(amount) else float(amount)


@dataclass(slots=True, eq=False)
class _Value:
    """A value in an inlined jaxpr. Needed because two calls of the same function share variables."""

    aval: Aval


_Scope = dict[Atom, _Value]


@dataclass(slots=True, kw_only=True)
class _Equation:
    """An equation in an inlined jaxpr; its operands omit literals."""

    name: str
    params: dict[str, Any]
    operands: list[_Value]
    results: list[_Value]
    effects: bool
    chain: tuple[JaxprEqn, ...] = ()  # the calls around it, and the equation itself


def _count(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> _Cost:
    return _count_open(_open(jaxpr))


@_jax_compat.once_per_jaxpr
def _count_open(jaxpr: core.Jaxpr) -> _Cost:
    scope: _Scope = {var: _Value(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)}
    equations = list(_inlined(jaxpr, scope))
    outputs = {scope[var] for var in jaxpr.outvars if not _is_literal(var)}
    equations = _live(equations, outputs)
    fused = {value for e in equations if _fuses(e.name) for value in e.results}
    written = outputs & fused  # fused results that must be written to memory
    read_by_fusions: set[_Value] = set()
    total = _Cost()
    for equation in equations:
        total = total.plus(_equation_cost(equation))
        if _fuses(equation.name) or equation.name in _REDUCTIONS:
            read_by_fusions.update(value for value in equation.operands if value not in fused)
        else:
            written.update(value for value in equation.operands if value in fused)
    return total.plus(_Cost(bytes=_sizes((*read_by_fusions, *written))))


class EquationWork(NamedTuple):
    """The work that all executions of one equation do in one call of a jaxpr."""

    chain: tuple[JaxprEqn, ...]  # enclosing equations, outermost first, followed by the equation itself
    flops: float
    elementwise_flops: float
    accessed_bytes: float
    executions: float  # on all devices and for all clients together
    copies: int  # number of devices of the enclosing `shard_map`
    at_least: bool  # inside a loop of unknown length, which counts as one iteration


def walk_jaxpr_work(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> Iterator[EquationWork]:
    """Yields the work of a jaxpr equation by equation; the total is the result of `count_jaxpr_work`."""
    yield from _walk(jaxpr, (), 1.0, 1, at_least=False)


def main_product(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> str | None:
    """The kind of product with the most FLOPs, as a key of `InstructionRecord.products`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> half = lambda x: x.astype(jnp.bfloat16) @ x.astype(jnp.bfloat16)
        >>> main_product(jax.make_jaxpr(half)(jnp.zeros((4, 4))))
        'bfloat16'
    """
    flops: dict[str, float] = {}
    for work in walk_jaxpr_work(jaxpr):
        equation = work.chain[-1]
        if work.flops and equation.primitive.name in ("dot_general", "conv_general_dilated"):
            dtypes = [var.aval.dtype for var in equation.invars]  # pyright: ignore[reportAttributeAccessIssue]
            dtype = max(dtypes, key=lambda dtype: dtype.itemsize)
            setting = str(equation.params.get("precision")).upper()
            precision = next((f":{name.lower()}" for name in ("HIGHEST", "HIGH") if name in setting), "")
            key = f"{dtype.name}{precision if dtype.name == 'float32' else ''}"
            flops[key] = flops.get(key, 0.0) + work.flops
    return max(flops, key=lambda key: flops[key], default=None)


def _walk(
    jaxpr: core.Jaxpr | core.ClosedJaxpr, chain: tuple[JaxprEqn, ...], executions: float, copies: int, *, at_least: bool
) -> Iterator[EquationWork]:
    jaxpr = _open(jaxpr)
    scope: _Scope = {var: _Value(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)}
    equations = list(_inlined(jaxpr, scope, chain))
    outputs = {scope[var] for var in jaxpr.outvars if not _is_literal(var)}
    equations = _live(equations, outputs)
    fused = {value for e in equations if _fuses(e.name) for value in e.results}
    written = outputs & fused
    readers: dict[_Value, int] = {}
    for index, equation in enumerate(equations):
        if _fuses(equation.name) or equation.name in _REDUCTIONS:
            for value in equation.operands:
                if value not in fused:
                    readers.setdefault(value, index)
        else:
            written.update(value for value in equation.operands if value in fused)
    reads = [0.0] * len(equations)
    for value, index in readers.items():
        reads[index] += _size(value)
    for index, equation in enumerate(equations):
        inner, factor, is_exact = _nested_work(equation)
        if inner is not None:
            once = at_least or not is_exact
            times = copies * (_copies(equation) if equation.name == "shard_map" else 1)
            for body in inner:
                yield from _walk(body, equation.chain, executions * factor, times, at_least=once)
        cost = _Cost() if inner is not None else _equation_cost(equation)
        size = cost.bytes + reads[index] + _sizes(value for value in equation.results if value in written)
        flops, elementwise, accessed = (_known(x) * executions for x in (cost.flops, cost.elementwise, size))
        yield EquationWork(equation.chain, flops, elementwise, accessed, executions, copies, at_least)


def _nested_work(equation: _Equation) -> tuple[list[core.Jaxpr | core.ClosedJaxpr] | None, float, bool]:
    """The jaxprs that an equation runs (or None), their number of executions, and whether that number is known."""
    name, params = equation.name, equation.params
    if name in _ARITHMETIC or name in _FUSED or name in _REDUCTIONS or _symbolic(equation):
        return None, 1.0, True
    if name.startswith("scatter"):  # its jaxpr combines two elements
        return None, 1.0, True
    if name == "scan":
        return [params["jaxpr"]], float(params["length"]), True
    if name == "while":
        return [params["cond_jaxpr"], params["body_jaxpr"]], 1.0, False
    if name == "cond":
        return [max(params["branches"], key=lambda branch: tuple(map(_known, _count(branch)[:3])))], 1.0, True
    if name == "custom_linear_solve":
        return [params["jaxprs"].solve], 1.0, True
    inner = list(_nested(params))
    return (inner, float(_copies(equation)), True) if inner else (None, 1.0, True)


def _known(amount: float) -> float:
    """The amount as a key for comparisons; unknown amounts count as 0."""
    return 0.0 if math.isnan(amount) else amount


def _fuses(name: str) -> bool:
    return name in _ARITHMETIC or name in _FUSED


def _live(equations: list[_Equation], outputs: set[_Value]) -> list[_Equation]:
    """Equations whose results are read; derivatives leave dead equations behind, which compilers remove."""
    needed, survivors = set(outputs), []
    for equation in reversed(equations):
        if equation.effects or not needed.isdisjoint(equation.results):
            needed.update(equation.operands)
            survivors.append(equation)
    return survivors[::-1]


def _inlined(jaxpr: core.Jaxpr, scope: _Scope, chain: tuple[JaxprEqn, ...] = ()) -> Iterator[_Equation]:
    """Equations in order, with grouping calls (jit, remat, custom rules) inlined."""
    for eqn in jaxpr.eqns:
        inner = _only_jaxpr(eqn) if eqn.primitive.name in _INLINED else None
        if inner is None or len(inner.invars) != len(eqn.invars):
            results = [_Value(var.aval) for var in eqn.outvars]
            yield _Equation(
                name=eqn.primitive.name,
                params=eqn.params,
                operands=[scope[var] for var in eqn.invars if not _is_literal(var)],
                results=results,
                effects=bool(eqn.effects),
                chain=(*chain, eqn),
            )
        else:
            inner_scope: _Scope = {var: _Value(var.aval) for var in inner.constvars}
            inner_scope |= {v: _seen(outer, scope) for v, outer in zip(inner.invars, eqn.invars, strict=True)}
            yield from _inlined(inner, inner_scope, (*chain, eqn))
            results = [_seen(var, inner_scope) for var in inner.outvars]
        scope.update(zip(eqn.outvars, results, strict=True))


def _seen(var: Atom, scope: _Scope) -> _Value:
    return _Value(var.aval) if _is_literal(var) else scope[var]


def _only_jaxpr(eqn: JaxprEqn) -> core.Jaxpr | None:
    inner = list(_nested(eqn.params))
    return _open(inner[0]) if len(inner) == 1 else None


def _equation_cost(equation: _Equation) -> _Cost:
    name = equation.name
    if _symbolic(equation):
        return _Cost(math.nan, math.nan, math.nan, (f"`{name}` has a symbolic shape, so its cost is unknown",))
    if name in _ARITHMETIC:
        return _Cost(elementwise=sum(_elements(v) for v in equation.results))
    if name in _FUSED:
        return _Cost()
    if name in _REDUCTIONS:
        return _Cost(elementwise=sum(_elements(v) for v in equation.operands), bytes=_sizes(equation.results))
    if name in _CONTROL:
        return _CONTROL[name](equation)
    if name.startswith("scatter"):
        updates = sum(_elements(v) for v in equation.operands[2:3])
        return _Cost(elementwise=updates if list(_nested(equation.params)) else 0, bytes=_traffic(equation))
    inner = list(_nested(equation.params))
    if inner:
        body = _sum(_count(jaxpr) for jaxpr in inner)
        return body.times(_copies(equation))
    if name in _DENSE:
        return _Cost(flops=_DENSE[name](equation), bytes=_traffic(equation))
    if name in _UNCOUNTED:
        return _Cost(bytes=_traffic(equation), notes=(f"FLOPs of `{name}` are not counted",))
    return _Cost(bytes=_traffic(equation))


def _traffic(equation: _Equation) -> float:
    operands, results = equation.operands, equation.results
    if equation.name in ("dynamic_slice", "gather"):  # reads only the selected elements
        return 2 * _sizes(results) + _sizes(operands[1:])
    if equation.name == "dynamic_update_slice":  # in place: only the update is read and written
        return 2 * _sizes(operands[1:2]) + _sizes(operands[2:])
    if equation.name.startswith("scatter"):
        return 3 * _sizes(operands[2:3]) + _sizes(operands[1:2])
    return _sizes(operands) + _sizes(results)


def _scan(equation: _Equation) -> _Cost:
    return _count(equation.params["jaxpr"]).times(equation.params["length"])


def _while(equation: _Equation) -> _Cost:
    once = _count(equation.params["body_jaxpr"]).plus(_count(equation.params["cond_jaxpr"]))
    note = "a `while` loop of unknown length is not counted; if its body computes anything, the count is unknown"
    return once.times(math.nan)._replace(notes=(*once.notes, note))


def _cond(equation: _Equation) -> _Cost:
    branches = [_count(branch) for branch in equation.params["branches"]]
    notes = [note for branch in branches for note in branch.notes]
    if len({branch[:3] for branch in branches}) > 1:
        notes.append("a `cond` is counted as its most expensive branch")
    flops, elementwise, accessed = (_most(amounts) for amounts in list(zip(*branches, strict=True))[:3])
    return _Cost(flops, elementwise, accessed, tuple(notes))


def _most(amounts: Sequence[float]) -> float:
    return math.nan if any(math.isnan(a) for a in amounts) else max(amounts)


def _linear_solve(equation: _Equation) -> _Cost:
    return _count(equation.params["jaxprs"].solve)  # the other three are used only for differentiation


def _dot(equation: _Equation) -> float:
    (contracting, _), _ = equation.params["dimension_numbers"]
    shape = equation.operands[0].aval.shape
    products = _elements(equation.results[0]) * math.prod(shape[d] for d in contracting)
    return 2.0 * _real_products(equation) * products


def _real_products(equation: _Equation) -> float:
    """Factor for complex numbers: a complex multiply-add is four real multiply-adds."""
    return 4.0 if getattr(equation.results[0].aval.dtype, "kind", "") == "c" else 1.0


def _ragged_dot(equation: _Equation) -> float:
    ragged = equation.params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = ragged.dot_dimension_numbers
    shape = equation.operands[0].aval.shape
    products = _elements(equation.results[0]) * math.prod(shape[d] for d in contracting)
    if set(ragged.lhs_ragged_dimensions) & set(contracting):
        # Each row is in exactly one group, so all groups together (the result's leading axis) use every row once.
        products /= max(1, equation.results[0].aval.shape[0])
    return 2.0 * _real_products(equation) * products


def _convolution(equation: _Equation) -> float:
    params, (lhs, rhs) = equation.params, (v.aval.shape for v in equation.operands[:2])
    out = equation.results[0].aval.shape
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    positions = 1
    for i, (low, _) in enumerate(params["padding"]):
        positions *= valid_positions(
            lhs[lhs_spec[2 + i]],
            rhs[rhs_spec[2 + i]],
            out[out_spec[2 + i]],
            stride=params["window_strides"][i],
            padding_low=low,
            base_dilation=params["lhs_dilation"][i],
            dilation=params["rhs_dilation"][i],
        )
    batch = lhs[lhs_spec[0]] // params["batch_group_count"]
    return (
        2.0 * _real_products(equation) * batch * rhs[rhs_spec[0]] * rhs[rhs_spec[1]] * positions
    )  # rhs[1] already counts only one group's features


_CONTROL: dict[str, Callable[[_Equation], _Cost]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_linear_solve": _linear_solve,
}
_DENSE: dict[str, Callable[[_Equation], float]] = {
    "dot_general": _dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
}


def _copies(equation: _Equation) -> int:
    """Number of executions of an equation's jaxpr: one per client of a placement, or per device of a shard_map."""
    params = equation.params
    size = getattr(params.get("placement"), "size", None)
    if size is not None:
        return int(size)
    if equation.name == "shard_map":
        return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    grid = getattr(params.get("grid_mapping"), "grid", None)
    return math.prod(grid) if grid else 1


def _nested(params: dict[str, Any]) -> Iterator[core.Jaxpr | core.ClosedJaxpr]:
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item


def _sum(costs: Iterator[_Cost]) -> _Cost:
    total = _Cost()
    for cost in costs:
        total = total.plus(cost)
    return total


def _open(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> core.Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr


def _is_literal(var: object) -> bool:
    return isinstance(var, core.Literal)


def _symbolic(equation: _Equation) -> bool:
    return any(math.isnan(_elements(value)) for value in (*equation.operands, *equation.results))


def _elements(var: Atom | _Value) -> float:
    """Number of elements; NaN for a symbolic shape."""
    shape = getattr(var.aval, "shape", ())
    return math.prod(shape) if all(isinstance(size, int) for size in shape) else math.nan


def _size(var: Atom | _Value) -> float:
    return _elements(var) * getattr(getattr(var.aval, "dtype", None), "itemsize", 0)


def _sizes(variables: Iterable[Atom | _Value]) -> float:
    return sum(_size(var) for var in variables)
