"""Finds sums over devices that a loop repeats only to add their results, and rewrites a program to sum once."""

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal as Choice

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import NamedSharding, PartitionSpec

from workbench import _jax_compat
from workbench._types import AnyMesh, Atom, type_of
from workbench.advice._remat import CHECKPOINTS, Flat, scanned, traced_again
from workbench.advice._rewrite import Line, Spec
from workbench.plan import InnerCall, Scan, source_line
from workbench.records.program import SourceLine
from workbench.records.sharding import PropagationRecord

Kind = Choice["psum", "clients", "sharded"]
_SUMS = ("psum", "psum2", "psum_invariant")
_LINEAR = {"convert_element_type", "reshape", "transpose", "neg", "squeeze", "expand_dims", "copy", "reduce_sum"}
_CONTRACTING = {
    "dot_general": "dot_general", "reduce_sum": "reduce", "scatter-add": "scatter",
    "conv_general_dilated": "convolution",
}  # fmt: skip
Split = tuple[tuple[str, ...], dict[int, int]]
# (line, operation, shapes of operands) -> possible specs of the operands
Specs = Mapping[tuple[Line, str, tuple[tuple[int, ...], ...]], set[tuple[Spec, ...]]]


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A loop, or a chain of additions, whose terms are all sums over the same devices."""

    source: SourceLine
    kind: Kind
    axes: tuple[str, ...]
    times: int
    arrays: int
    size_bytes: int  # of all sums of one iteration, without sharding
    lines: frozenset[Line]  # of the sums
    is_loop: bool
    is_implicit: bool  # JAX inserted the sum, as the derivative of a use of replicated values


def repeated_sums(closed: ClosedJaxpr, specs: Specs, mesh: AnyMesh | None) -> list[Repeated]:
    """Finds the loops that sum over devices in every iteration, and only add the results."""
    finder, loops, claimed = _Late(specs, mesh), list[Repeated](), set[Var]()
    waiting = [traced_again(_Inlined(), closed).jaxpr]
    while waiting:
        jaxpr = waiting.pop()
        loops += finder.read(jaxpr).described(claimed)
        waiting += [getattr(inner, "jaxpr", inner) for e in jaxpr.eqns for inner in _jax_compat.inner_jaxprs(e)]
    return loops


def summed_once(
    closed: ClosedJaxpr, lines: Collection[Line], specs: Specs, mesh: AnyMesh | None
) -> tuple[ClosedJaxpr, int]:
    """The program that adds the values of each device in the loops at these lines, and sums over devices afterwards.

    Returns:
        The program, and the number of sums that it moves.
    """
    changing = _Late(specs, mesh, frozenset(lines))
    return traced_again(changing, traced_again(_Inlined(), closed)), changing.count


def operand_specs(propagation: PropagationRecord | None) -> Specs:
    """The propagated specs of the operands of sums and products, by line, operation and shapes."""
    values = {} if propagation is None else {value.name: value for value in propagation.values}
    specs: dict[Any, set[tuple[Spec, ...]]] = {}
    for value in values.values():
        operands = [values[name] for name in value.operands if name in values]
        if value.source is not None and value.operation in _CONTRACTING.values() and operands:
            key = (
                (value.source.file, value.source.line),
                value.operation,
                tuple(operand.shape for operand in operands if operand.shape),
            )
            specs.setdefault(key, set()).add(tuple(operand.spec for operand in operands if operand.shape))
    return specs


@dataclasses.dataclass(eq=False)
class _Term:
    """A sum over devices.

    Attributes:
        splits: The sharded dimensions over which `equation` sums: mesh axes, and operands with their dimensions.
        sizes: Sizes of the leading dimensions of the value before the sum: one for devices or clients, none in `psum`.
        inside: In a scan, the sum that its body computes.
    """

    equation: JaxprEqn
    kind: Kind
    axes: tuple[str, ...]
    splits: tuple[Split, ...] = ()
    sizes: tuple[int, ...] = ()
    inside: "_Tree | None" = None

    @property
    def leading(self) -> int:
        return len(self.sizes)


@dataclasses.dataclass(eq=False)
class _Tree:
    """A value that is a linear function of sums over the same devices, computed by `late` variables."""

    root: Var
    terms: dict[Var, _Term] = dataclasses.field(default_factory=dict)
    late: set[Var] = dataclasses.field(default_factory=set)
    carried: int = 0

    @property
    def first(self) -> _Term:
        return next(iter(self.terms.values()))

    @property
    def leaf(self) -> _Term:
        """The first term, inside all scans."""
        return self.first if self.first.inside is None else self.first.inside.leaf

    @property
    def is_uniform(self) -> bool:
        """Returns whether all terms are summed over the same devices, by the same operation."""
        leaves = list(_leaves(self))
        names = {None if leaf.kind == "sharded" else leaf.equation.primitive.name for leaf in leaves}
        return len({(leaf.kind, leaf.axes, leaf.sizes) for leaf in leaves}) == len(names) == 1


class _Sums:
    """The sums of one flat jaxpr that can wait: accumulators of its scans, and its own chains of additions."""

    def __init__(self, jaxpr: Jaxpr, reader: "_Late") -> None:
        self.jaxpr, self.reader = jaxpr, reader
        self.makers = {v: equation for equation in jaxpr.eqns for v in equation.outvars}
        atoms = [*(equation.invars for equation in jaxpr.eqns), jaxpr.outvars]
        self.uses = Counter(v for group in atoms for v in group if isinstance(v, Var))
        self.accumulators: dict[int, dict[int, _Tree]] = {}  # id of a scan -> position in its carry -> its sum
        for equation in jaxpr.eqns:
            if equation.primitive.name == "scan":
                self.accumulators[id(equation)] = self._accumulated(equation)
        self.chains: list[_Tree] = []
        used: set[Var] = set()
        for equation in reversed(jaxpr.eqns):
            if equation.primitive.name in ("add", "add_any") and equation.outvars[0] not in used:
                tree = self.tree(equation.outvars[0])
                if tree is not None and _is_repeated(tree):
                    self.chains.append(tree)
                    used |= tree.late

    def _accumulated(self, equation: JaxprEqn) -> dict[int, _Tree]:
        flow = Scan[Any](equation)
        body = self.reader.read(flow.body.jaxpr)
        inputs, trees = body.jaxpr.invars[flow.consts :], {}
        for at in range(flow.carries):
            v = body.jaxpr.outvars[at]
            tree = body.tree(v, inputs[at]) if isinstance(v, Var) and body.uses[v] == 1 else None
            if tree is not None and tree.carried == 1 and body.uses[inputs[at]] == 1:
                trees[at] = tree
        return trees

    def tree(self, root: Var, carry: Var | None = None) -> _Tree | None:
        """The sums over devices that a value is a linear function of; None if it depends on anything else."""
        tree = _Tree(root)
        return tree if self._grow(tree, root, carry, True) and tree.is_uniform else None

    def _grow(self, tree: _Tree, v: Atom, carry: Var | None, is_direct: bool) -> bool:
        if v is carry:
            tree.carried += is_direct
            return is_direct
        if self._is_zero(v):
            return True
        equation = None if isinstance(v, Literal) else self.makers.get(v)
        if equation is None or isinstance(v, Literal) or (v is not tree.root and self.uses[v] != 1):
            return False
        tree.late.add(v)
        term, name = self._term(equation, v), equation.primitive.name
        if term is not None:
            tree.terms[v] = term
            return True
        if name in ("add", "add_any"):
            return all(self._grow(tree, operand, carry, is_direct) for operand in equation.invars)
        if name in _LINEAR and len(equation.invars) == 1:
            is_cast = name == "convert_element_type" and _is_float(equation.invars[0])
            return self._grow(tree, equation.invars[0], carry, is_direct and is_cast)
        if name not in ("mul", "div"):
            return False
        orders = [equation.invars, equation.invars[::-1]][: 1 + (name == "mul")]
        return any(self._is_scaled(tree, value, factor, carry) for value, factor in orders)

    def _is_scaled(self, tree: _Tree, v: Atom, factor: Atom, carry: Var | None) -> bool:
        """Returns whether a value is a sum that all devices multiply with the same factor."""
        late, terms = set(tree.late), dict(tree.terms)
        if self._grow(tree, v, carry, False) and len(tree.terms) > len(terms) and _is_same(factor, tree):
            return True
        tree.late, tree.terms = late, terms
        return False

    def _term(self, equation: JaxprEqn, v: Var) -> _Term | None:
        name, params = equation.primitive.name, equation.params
        if not _is_float(v):
            return None
        if name in _SUMS:
            return None if params.get("axis_index_groups") else _Term(equation, "psum", tuple(params["axes"]))
        if name in ("reduce_sum", "reduce_mean") and "placement" in params:
            return _Term(equation, "clients", (params["placement"].name,), sizes=type_of(equation.invars[0]).shape[:1])
        if name == "scan":
            tree = self._scanned(equation, equation.outvars.index(v))
            return None if tree is None else dataclasses.replace(tree.first, equation=equation, inside=tree)
        splits = self.reader.splits(equation)
        if name == "scatter-add" and not self._is_zero(equation.invars[0]):
            return None
        axes = tuple(axis for group, _ in splits for axis in group)
        return _Term(equation, "sharded", axes, splits, (self.reader.size(axes),)) if splits else None

    def _scanned(self, equation: JaxprEqn, at: int) -> _Tree | None:
        """The sum that a scan computes for one of its results: in every slice, or by accumulating from zero."""
        flow = Scan[Any](equation)
        if at < flow.carries:
            is_from_zero = self._is_zero(equation.invars[flow.consts + at])
            return self.accumulators.get(id(equation), {}).get(at) if is_from_zero else None
        body = self.reader.read(flow.body.jaxpr)
        inner = body.jaxpr.outvars[at]
        return body.tree(inner) if isinstance(inner, Var) and body.uses[inner] == 1 else None

    def _is_zero(self, v: Atom) -> bool:
        if not isinstance(v, Literal):
            equation = self.makers.get(v)
            return (
                equation is not None
                and equation.primitive.name == "broadcast_in_dim"
                and self._is_zero(equation.invars[0])
            )
        return jnp.ndim(v.val) == 0 and not v.val

    def described(self, claimed: set[Var]) -> Iterator[Repeated]:
        """The loops and chains, one entry per line, kind and axes, without parts of sums outside (`claimed`)."""
        groups: dict[SourceLine | None, list[_Tree]] = {}
        for tree in self.chains:
            if tree.root not in claimed:
                groups.setdefault(source_line(self.makers[tree.root]), []).append(tree)
                claimed |= _all_late(tree)
        for equation in self.jaxpr.eqns:
            sums = self.accumulators.get(id(equation), {})
            trees = [tree for at, tree in sums.items() if equation.outvars[at] not in claimed]
            claimed |= {v for tree in trees for v in _all_late(tree)}
            yield from _entries(trees, source_line(equation), equation.params.get("length"))
        for source, trees in groups.items():
            yield from _entries(trees, source, None)


def _entries(trees: Sequence[_Tree], source: SourceLine | None, times: int | None) -> Iterator[Repeated]:
    groups: dict[tuple[Kind, tuple[str, ...]], list[_Tree]] = {}
    for tree in trees:
        groups.setdefault((tree.first.kind, tree.first.axes), []).append(tree)
    for (kind, axes), members in groups.items():
        terms = [leaf for tree in members for leaf in _leaves(tree)]
        lines = frozenset((s.file, s.line) for leaf in terms if (s := source_line(leaf.equation)) is not None)
        if source is not None:
            yield Repeated(
                source=source,
                kind=kind,
                axes=axes,
                times=min(len(tree.terms) for tree in members) if times is None else times,
                arrays=len(members),
                size_bytes=sum(math.prod(type_of(t.root).shape) * type_of(t.root).dtype.itemsize for t in members),
                lines=lines,
                is_loop=times is not None,
                is_implicit=any("transpose(" in str(leaf.equation.source_info.name_stack) for leaf in terms),
            )


def _leaves(tree: _Tree) -> Iterator[_Term]:
    for term in tree.terms.values():
        yield from [term] if term.inside is None else _leaves(term.inside)


def _all_late(tree: _Tree) -> set[Var]:
    return tree.late.union(*(_all_late(term.inside) for term in tree.terms.values() if term.inside is not None))


def _is_repeated(tree: _Tree) -> bool:
    """Returns whether a chain adds sums from the same line: a Python loop."""
    lines = Counter(source_line(leaf.equation) for leaf in _leaves(tree))
    return len(tree.terms) > 1 and max(lines.values()) > 1


def _is_float(v: Atom) -> bool:
    return jnp.issubdtype(getattr(v.aval, "dtype", jnp.int32), jnp.inexact)


def _is_same(factor: Atom, tree: _Tree) -> bool:
    """Returns whether all devices multiply with the same factor."""
    if isinstance(factor, Literal) or tree.first.kind != "psum":
        return True
    return _is_checked(tree) and not set(tree.first.axes) & _jax_compat.varying_axes(factor.aval)


def _is_checked(tree: _Tree) -> bool:
    """Returns whether the types of values state over which axes they differ: in `shard_map` with `check_vma`."""
    return tree.leaf.equation.primitive.name == "psum_invariant"


def _varying(value: jax.typing.ArrayLike, axes: Sequence[str]) -> jax.Array:
    """The value with a type that differs over these axes."""
    array = jnp.asarray(value)
    missing = tuple(axis for axis in axes if axis not in _jax_compat.varying_axes(jax.typeof(array)))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def _behind_barrier(operands: Sequence[Any]) -> list[Any]:
    """The operands after a barrier; values of one barrier would all get the type that differs over most axes."""
    values, places = list(operands), dict[frozenset[str], list[int]]()
    for at, value in enumerate(values):
        places.setdefault(_jax_compat.varying_axes(jax.typeof(value)), []).append(at)
    for group in places.values():
        for at, value in zip(group, jax.lax.optimization_barrier([values[at] for at in group]), strict=True):
            values[at] = value
    return values


class _Inlined(Flat):
    """Inlines calls, also inside `shard_map` and checkpoints, whose inputs stay behind a barrier."""

    def enters(self, equation: JaxprEqn) -> bool:
        return equation.primitive.name in CHECKPOINTS or super().enters(equation)

    def equation(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        if equation.primitive.name != "shard_map":
            return super().equation(equation, operands)
        params = equation.params
        with _jax_compat.source_of(equation):
            mapped = jax.shard_map(
                lambda *values: tuple(self.run(ClosedJaxpr(params["jaxpr"], ()), values)),
                mesh=params["mesh"],
                in_specs=tuple(params["in_specs"]),
                out_specs=tuple(params["out_specs"]),
                axis_names=set(params["newly_manual_axes"]),
                check_vma=params["check_vma"],
            )
            return list(mapped(*operands))

    def call(self, flow: InnerCall[Any], operands: Sequence[Any]) -> list[Any]:
        params = flow.equation.params
        if params.get("differentiated") and params.get("prevent_cse"):
            operands = _behind_barrier(operands)
        return super().call(flow, operands)


class _Late(_Inlined):
    """Evaluates a flat program, and postpones the sums of some loops until their results are needed."""

    def __init__(self, specs: Specs, mesh: AnyMesh | None, lines: frozenset[Line] = frozenset()) -> None:
        self.specs, self.mesh, self.lines, self.count = specs, mesh, lines, 0
        self._read: dict[Jaxpr, _Sums] = {}

    def read(self, jaxpr: Jaxpr) -> _Sums:
        """The sums of a flat jaxpr that can wait."""
        if jaxpr not in self._read:
            self._read[jaxpr] = _Sums(jaxpr, self)
        return self._read[jaxpr]

    def is_meant(self, equation: JaxprEqn) -> bool:
        """Returns whether an equation is at one of the lines, if there are any."""
        source = source_line(equation)
        return not self.lines or (source is not None and (source.file, source.line) in self.lines)

    def splits(self, equation: JaxprEqn) -> tuple[Split, ...]:
        """The sharded dimensions over which an equation sums, with their mesh axes."""
        name, source, params = equation.primitive.name, source_line(equation), equation.params
        if name not in _CONTRACTING or source is None or self.mesh is None:
            return ()
        shapes = tuple(tuple(type_of(v).shape) for v in equation.invars if type_of(v).shape)
        key = (source.file, source.line), _CONTRACTING[name], shapes
        if name == "dot_general":
            left, right = params["dimension_numbers"][0]
            places = [{0: one, 1: other} for one, other in zip(left, right, strict=True)]
        elif name == "reduce_sum":
            places = [{0: dim} for dim in params["axes"]]
        elif name == "scatter-add":
            windows = params["dimension_numbers"].update_window_dims
            outer = [dim for dim in range(len(shapes[2])) if dim not in windows]
            places = [{1: at, 2: dim} for at, dim in enumerate(outer)]
        elif params["feature_group_count"] == params["batch_group_count"] == 1:
            numbers = params["dimension_numbers"]
            places = [{0: numbers.lhs_spec[1], 1: numbers.rhs_spec[1]}]
        else:
            places = []
        options = (self._splits(shapes, specs, places) for specs in sorted(self.specs.get(key, ())))
        return next((splits for splits in options if splits), ())

    def _splits(
        self, shapes: Sequence[tuple[int, ...]], specs: Sequence[Spec], places: Sequence[dict[int, int]]
    ) -> tuple[Split, ...]:
        """The places that are sharded equally in all operands; none if shards have different sizes."""
        splits: list[Split] = []
        for place in places:
            axes = {(*specs[at], *[()] * len(shapes[at]))[dim] for at, dim in place.items()}
            if len(axes) == 1 and any(axes):
                splits.append((axes.pop(), place))
        is_even = all(shapes[at][dim] % self.size(axes) == 0 for axes, place in splits for at, dim in place.items())
        return tuple(splits) if is_even else ()

    def size(self, axes: Sequence[str]) -> int:
        """The number of devices along some axes."""
        sizes = {} if self.mesh is None else dict(self.mesh.shape)
        return math.prod(sizes[axis] for axis in axes)

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        return self._results(closed, inputs, ())

    def _results(self, closed: ClosedJaxpr, inputs: Sequence[Any], waiting: Collection[_Tree]) -> list[Any]:
        """The results of a jaxpr, where the sums of some results wait."""
        jaxpr, sums = closed.jaxpr, self.read(closed.jaxpr)
        chains = [tree for tree in sums.chains if self.is_meant(sums.makers[tree.root])]
        trees = {v: tree for tree in (*chains, *waiting) for v in tree.late}
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(self.constant, closed.consts), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Atom) -> Any:
            return self.constant(atom.val) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            operands, late = [read(atom) for atom in equation.invars], [trees.get(v) for v in equation.outvars]
            accumulators = sums.accumulators.get(id(equation), {})
            if not self.is_meant(equation):
                accumulators = {at: tree for at, tree in accumulators.items() if late[at] is not None}
            if accumulators or any(late):
                results = self._late(equation, operands, late, accumulators)
            else:
                results = self.equation(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))
            for v, tree in zip(equation.outvars, late, strict=True):
                if tree is not None and tree.root is v and tree not in waiting:
                    values[v] = self._sum(tree, values[v])
        return [read(atom) for atom in jaxpr.outvars]

    def _late(
        self,
        equation: JaxprEqn,
        operands: Sequence[Any],
        late: Sequence[_Tree | None],
        accumulators: Mapping[int, _Tree],
    ) -> list[Any]:
        """The results of an equation; those with a tree are not summed yet."""
        terms = [t and t.terms.get(v) for t, v in zip(late, equation.outvars, strict=True)]
        if equation.primitive.name == "scan":
            return self._scan(Scan[Any](equation), operands, accumulators, terms)
        if any(term is not None and term.kind == "psum" for term in terms):
            others = [at for at, term in enumerate(terms) if term is None]
            rest = _jax_compat.new_equation(
                equation, invars=[equation.invars[at] for at in others], outvars=[equation.outvars[at] for at in others]
            )
            results = iter(self.bind(rest, [operands[at] for at in others]) if others else [])
            return [operands[at] if term is not None else next(results) for at, term in enumerate(terms)]
        [term], [tree] = terms, late
        assert tree is not None
        if term is not None:
            return [operands[0] if term.kind == "clients" else self._parts(term, operands)]
        if _is_checked(tree):
            operands = [_varying(x, tree.first.axes) for x in operands]
        are_late = [jnp.ndim(x) > len(type_of(v).shape) for x, v in zip(operands, equation.invars, strict=True)]
        return [self._mapped(equation, operands, are_late, tree.first.leading)]

    def _mapped(self, equation: JaxprEqn, operands: Sequence[Any], are_late: Sequence[bool], leading: int) -> jax.Array:
        """The result of an equation, mapped over leading dimensions of some operands."""

        def fn(*values: jax.Array) -> jax.Array:
            return self.bind(equation, values)[0]

        for _ in range(leading):
            fn = jax.vmap(fn, in_axes=tuple(0 if is_late else None for is_late in are_late))
        return fn(*operands)

    def _parts(self, term: _Term, operands: Sequence[Any]) -> jax.Array:
        """The contributions of all devices to a sum, one row per device along the summed axes."""
        specs: list[list[Any]] = [[None] * jnp.ndim(x) for x in operands]
        for axes, dims in term.splits:
            for at, dim in dims.items():
                specs[at][dim] = axes
        params = {name: None if name.endswith("sharding") else value for name, value in term.equation.params.items()}
        equation = _jax_compat.new_equation(term.equation, params=params)
        with _jax_compat.source_of(equation, mesh=False):
            return jax.shard_map(
                lambda *values: _jax_compat.bind_equation(equation, values)[0][None],
                mesh=self.mesh,
                in_specs=tuple(PartitionSpec(*spec) for spec in specs),
                out_specs=PartitionSpec(term.axes),
                axis_names=set(term.axes),
                check_vma=False,
            )(*operands)

    def _scan(
        self, flow: Scan[Any], operands: Sequence[Any], accumulators: Mapping[int, _Tree], late: Sequence[_Term | None]
    ) -> list[Any]:
        """The results of a scan that accumulates values of each device."""
        consts, start, xs = flow.split(operands)
        slices = {at: term.inside for at, term in enumerate(late) if term is not None and at >= flow.carries}
        waiting = [*accumulators.values(), *(tree for tree in slices.values() if tree is not None)]
        begin = [self._zeros(accumulators[at], x) if at in accumulators else x for at, x in enumerate(start)]

        def iteration(carry: Sequence[Any], x: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            results = self._results(flow.body, [*consts, *carry, *x], waiting)
            return tuple(results[: flow.carries]), tuple(results[flow.carries :])

        last, rows = scanned(flow, iteration, begin, tuple(xs))
        results = [*last, *rows]
        for at, tree in accumulators.items():
            if late[at] is None:
                results[at] = start[at] + self._sum(tree, results[at])
        for at, tree in slices.items():
            leading = 0 if tree is None else tree.first.leading
            results[at] = jnp.moveaxis(results[at], range(1, 1 + leading), range(leading))
        return results

    def _zeros(self, tree: _Tree, start: jax.Array) -> jax.Array:
        term = tree.first
        zeros = jnp.zeros((*term.sizes, *jnp.shape(start)), jnp.asarray(start).dtype)
        if term.kind == "sharded":
            assert self.mesh is not None
            spec = PartitionSpec(term.axes, *[PartitionSpec.UNCONSTRAINED] * jnp.ndim(start))
            return jax.lax.with_sharding_constraint(zeros, NamedSharding(self.mesh, spec))
        return _varying(zeros, term.axes) if _is_checked(tree) else zeros

    def _sum(self, tree: _Tree, value: jax.Array) -> jax.Array:
        """The sum over devices of a value whose sum has waited."""
        self.count += 1
        equation = tree.leaf.equation
        if tree.first.kind == "sharded":
            with _jax_compat.source_of(equation):
                return value.sum(axis=0)
        return self.bind(_jax_compat.new_equation(equation, outvars=equation.outvars[:1]), [value])[0]
