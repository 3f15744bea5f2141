"""Finds values that layers keep for the backward pass, and rewrites a program so that it computes them again."""

import ast
import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from workbench import _jax_compat
from workbench._types import Atom, type_of
from workbench.advice._rewrite import RECOMPUTED, Line
from workbench.plan import Interpreter, Scan, is_user_file, source_line
from workbench.records import read_source_lines
from workbench.records.program import SourceLine
from workbench.render.units import line_text

KEPT = "values kept for the backward pass"  # the name of the rule
Policy = Callable[..., Any]
CHECKPOINTS = ("checkpoint", "remat2")
_MAIN = 0.9  # share of the kept bytes that must come from below one call for the call to be the layer
_Frame = tuple[str, int, int, int, int, str]
_Users = dict[Atom, list[int]]
_Inputs = tuple[dict[Any, Any], dict[Any, Any]]  # inputs of a recomputation: of all iterations, and of each iteration


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """Values that one loop over layers keeps for its backward pass.

    Attributes:
        source: The call of `jax.lax.scan`, or the call of the layer in a Python loop.
        function: The function that each iteration calls; "" if a Python loop calls no single function.
        library: The package that implements the layers: "linen", "nnx", "equinox" or "jax".
        copies: Number of iterations.
        size_bytes: Kept bytes of all iterations without sharding, minus the inputs that a recomputation needs.
        values: The largest kept values of one iteration, such as "3 of float32[8, 64] at model.py:12".
    """

    source: SourceLine
    function: str
    library: str
    copies: int
    is_scan: bool
    size_bytes: int
    values: tuple[str, ...]


def kept_for_backward(closed: ClosedJaxpr) -> list[Kept]:
    """Finds the loops over layers whose values are kept for the backward pass, largest first.

    Loops that are already checkpointed, or keep only the inputs of their layers, are omitted.
    """
    loops: list[Kept] = []
    waiting: list[Jaxpr] = [_flat(closed).jaxpr]
    while waiting:
        jaxpr = waiting.pop()
        loops += [loop.kept for loop in _loops(jaxpr, None) if loop.kept.size_bytes > 0]
        waiting += [getattr(inner, "jaxpr", inner) for e in jaxpr.eqns for inner in _jax_compat.inner_jaxprs(e)]
    return sorted(loops, key=lambda loop: -loop.size_bytes)


def rematerialised(closed: ClosedJaxpr, lines: Collection[Line], policy: Policy | None) -> tuple[ClosedJaxpr, int]:
    """The program that computes the layers of these loops again in its backward pass.

    Returns:
        The program, and the number of loops and layers that it computes again.
    """
    changing = _Recomputing(frozenset(lines), policy)
    return traced_again(changing, _flat(closed)), changing.count


def _flat(closed: ClosedJaxpr) -> ClosedJaxpr:
    return traced_again(Flat(), closed)


def traced_again(interpreter: Interpreter[Any], closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program as an interpreter evaluates it."""
    flat, closed_over = _jax_compat.trace_to_jaxpr(
        lambda *inputs: interpreter.run(closed, inputs),
        closed.in_avals,
        name="rematerialised",
        arguments=_jax_compat.argument_names(closed),
    )
    return _jax_compat.close_over(flat, closed_over) if closed_over else flat


class Flat(Interpreter[Any]):
    """Inlines calls, so that the forward and the backward pass of a jitted function become one list of equations."""

    def enters(self, equation: JaxprEqn) -> bool:
        if equation.primitive.name in CHECKPOINTS or equation.primitive.name.startswith("custom_"):
            return False
        placed = (*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ()))
        return not any(isinstance(sharding, jax.sharding.Sharding) for sharding in placed)


@dataclasses.dataclass(eq=False)
class _Layer:
    """The recomputation of one layer: `equations` compute `dropped` values from `inputs`."""

    dropped: list[Var]
    inputs: list[Var]
    equations: list[JaxprEqn]
    before: int = 0  # position of the first equation that reads a dropped value, in a Python loop


@dataclasses.dataclass(eq=False)
class _Loop:
    """A loop over layers: a Python loop, or the two scans (forward and backward) of one layer."""

    kept: Kept
    layers: list[_Layer]
    forward: JaxprEqn | None = None
    backward: JaxprEqn | None = None


def _layer(equations: Sequence[JaxprEqn], dropped: Sequence[Var], policy: Policy | None) -> _Layer:
    """The equations that compute some values again; values that the policy keeps become inputs."""
    needed, again = dict.fromkeys(dropped), []
    for equation in reversed(equations):
        is_needed = any(v in needed for v in equation.outvars)
        if is_needed and not equation.effects and not (policy is not None and _keeps(policy, equation)):
            again.append(equation)
            needed.update(dict.fromkeys(v for v in equation.invars if isinstance(v, Var)))
    computed = {v for equation in again for v in equation.outvars}
    return _Layer([v for v in dropped if v in computed], [v for v in needed if v not in computed], again[::-1])


def _keeps(policy: Policy, equation: JaxprEqn) -> bool:
    return policy(equation.primitive, *(type_of(v) for v in equation.invars), **equation.params) is True


def _loops(jaxpr: Jaxpr, policy: Policy | None) -> Iterator[_Loop]:
    """The loops over layers in one list of equations."""
    users: _Users = defaultdict(list)
    for at, atoms in enumerate([*(equation.invars for equation in jaxpr.eqns), jaxpr.outvars]):
        for v in atoms:
            if isinstance(v, Var):
                users[v].append(at)
    yield from _scans(jaxpr, users, policy)
    yield from _python_loops(jaxpr, users, policy)


def _scans(jaxpr: Jaxpr, users: _Users, policy: Policy | None) -> Iterator[_Loop]:
    equations = jaxpr.eqns
    for forward in equations:
        source = source_line(forward)
        if forward.primitive.name != "scan" or source is None:
            continue
        flow = Scan[Any](forward)
        readers = sorted({at for v in forward.outvars[flow.carries :] for at in users[v]} - {len(equations)})
        scans = [equations[at] for at in readers if equations[at].primitive.name == "scan"]
        backward = next((e for e in scans if e.params["length"] == flow.length and _is_backward(e)), None)
        if backward is None or any(e.primitive.name in CHECKPOINTS for e in Scan[Any](backward).body.jaxpr.eqns):
            continue
        body, sliced = flow.body.jaxpr, set(Scan[Any](backward).split(backward.invars)[2])
        rows = list(zip(body.outvars[flow.carries :], forward.outvars[flow.carries :], strict=True))
        private = [v for v, outer in rows if outer in sliced and {equations.index(backward)} == set(users[outer])]
        layer = _layer(body.eqns, [v for v in private if isinstance(v, Var) and v not in body.invars], policy)
        operands = {*body.constvars, *body.invars[: flow.consts], *body.invars[flow.consts + flow.carries :]}
        size = _bytes(layer.dropped) - _bytes({*layer.inputs} - operands - {v for v, _ in rows})
        makers = [equation for equation in body.eqns if any(v in layer.dropped for v in equation.outvars)]
        paths = [_below(_path(equation), _path(forward)) for equation in makers]
        yield _Loop(
            Kept(
                source=source,
                function=next((frame[5] for path in paths for frame in path if is_user_file(frame[0])), ""),
                library=_library(_path(forward)[-1:]),
                copies=flow.length,
                is_scan=True,
                size_bytes=flow.length * size,
                values=_described(makers, layer.dropped),
            ),
            [layer],
            forward,
            backward,
        )


def _python_loops(jaxpr: Jaxpr, users: _Users, policy: Policy | None) -> Iterator[_Loop]:
    """The Python loop (equations repeated below the same calls) from which the backward pass reads the most bytes."""
    equations = jaxpr.eqns
    first = next((at for at, equation in enumerate(equations) if _is_backward(equation)), 0)
    forward = equations[:first]
    signatures = [(e.primitive.name, _path(e), tuple(getattr(v.aval, "shape", ()) for v in e.outvars)) for e in forward]
    counts, read_bytes, sizes = Counter(signatures), Counter[Any](), Counter[int]()
    for signature, equation in zip(signatures, forward, strict=True):
        if counts[signature] > 1 and signature[1]:
            size = _bytes(v for v in equation.outvars if max(users[v], default=0) >= first)
            read_bytes[signature] += size
            sizes[counts[signature]] += size
    copies = max(sizes, key=lambda count: sizes[count], default=0)
    path = _main_path([(signature[1], size) for signature, size in read_bytes.items() if counts[signature] == copies])
    starts: dict[Any, list[int]] = defaultdict(list)
    for at, signature in enumerate(signatures):
        if counts[signature] == copies and path and signature[1][: len(path)] == path:
            starts[signature].append(at)
    if not starts:
        return
    begin, end = next(iter(starts.values())), 1 + max(places[-1] for places in starts.values())
    layers = []
    for start, stop in zip(begin, (*begin[1:], end), strict=True):
        values = [v for equation in equations[start:stop] for v in equation.outvars]
        dropped = [v for v in values if _is_private(users[v], range(start, stop), equations)]
        layer = _layer(equations[start:stop], dropped, policy)
        layer.before = min((at for v in layer.dropped for at in users[v] if at >= first), default=0)
        layers += [layer] if layer.dropped else []
    if not layers:
        return
    stays = {v for v, places in users.items() if max(places, default=0) >= first} | {*jaxpr.invars, *jaxpr.constvars}
    here = [signature for signature in signatures[begin[0] : end] if signature[1][: len(path)] == path]
    below = [frame for frame in here[0][1][len(path) :] if is_user_file(frame[0])]
    is_call = bool(below) and sum(counts[s] % copies == 0 for s in here) > _MAIN * len(here)
    callers = [frame for frame in path if is_user_file(frame[0])][-1:]
    # A function that contains the loop is called once, although all of its equations are repeated.
    is_call = is_call and not (_is_in_loop(below[0]) and not any(map(_is_in_loop, callers)))
    frames = callers if is_call else below[:1]
    if frames:
        file, line, column, end_line, end_column, name = frames[0]
        yield _Loop(
            Kept(
                source=SourceLine(
                    file=file, line=line, column=column, end_line=end_line, end_column=end_column, function=name
                ),
                function=below[0][5] if is_call else "",
                library=_library(frame for signature in here for frame in signature[1]),
                copies=len(layers),
                is_scan=False,
                size_bytes=sum(_bytes(layer.dropped) - _bytes({*layer.inputs} - stays) for layer in layers),
                values=_described(forward, layers[-1].dropped),
            ),
            layers,
        )


def _is_in_loop(frame: _Frame) -> bool:
    """Returns whether a line is inside a Python loop; False if its file cannot be read."""
    try:
        tree = ast.parse("\n".join(read_source_lines(frame[0])))
    except SyntaxError:
        return False
    loops = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)
    nodes = [node for node in ast.walk(tree) if isinstance(node, loops)]
    return any(node.lineno <= frame[1] <= (node.end_lineno or 0) for node in nodes)


def _is_private(users: Sequence[int], layer: range, equations: Sequence[JaxprEqn]) -> bool:
    """Returns whether only the backward pass reads a value outside the value's layer, and no checkpoint does."""
    later = [at for at in users if at not in layer]
    readers = [equations[at] for at in later if at < len(equations)]
    return (
        bool(later)
        and len(readers) == len(later)
        and all(_is_backward(reader) and reader.primitive.name not in CHECKPOINTS for reader in readers)
    )


def _main_path(sizes: Sequence[tuple[tuple[_Frame, ...], int]]) -> tuple[_Frame, ...]:
    """The longest common beginning of the call paths of nearly all bytes; the outermost call comes first."""
    path: tuple[_Frame, ...] = ()
    while True:
        below = Counter[_Frame]()
        for frames, size in sizes:
            if frames[: len(path)] == path and len(frames) > len(path):
                below[frames[len(path)]] += size
        best = max(below, key=lambda frame: below[frame], default=None)
        if best is None or below[best] < _MAIN * sum(size for _, size in sizes):
            return path
        path = (*path, best)


def _path(equation: JaxprEqn) -> tuple[_Frame, ...]:
    """The calls that lead to an equation, outermost first."""
    return _jax_compat.user_frames(equation.source_info)[::-1]


def _below(path: tuple[_Frame, ...], outer: tuple[_Frame, ...]) -> tuple[_Frame, ...]:
    """The calls of a path after the beginning that it shares with `outer`."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, outer, strict=False))
    return path[sum(1 for _ in pairs) :]


def _library(frames: Iterable[_Frame]) -> str:
    files = {frame[0].replace("\\", "/") for frame in frames}
    folders = {"/flax/linen/": "linen", "/flax/core/": "linen", "/flax/nnx/": "nnx", "/equinox/": "equinox"}
    return next((name for folder, name in folders.items() if any(folder in file for file in files)), "jax")


def _described(equations: Iterable[JaxprEqn], values: Collection[Var]) -> tuple[str, ...]:
    """The largest groups of values with one type and line, in words."""
    lines = {v: source_line(equation) for equation in equations for v in equation.outvars}
    groups = Counter((type_of(v).dtype.name, type_of(v).shape, lines[v]) for v in values)
    largest = sorted(groups, key=lambda group: -math.prod(group[1]) * groups[group])[:3]
    return tuple(
        f"{groups[group]} of {group[0]}{list(group[1])}" + (f" at {line_text(group[2])}" if group[2] else "")
        for group in largest
    )


def _is_backward(equation: JaxprEqn) -> bool:
    return "transpose(" in str(equation.source_info.name_stack)


def _bytes(values: Iterable[Var]) -> int:
    return sum(math.prod(type_of(v).shape) * type_of(v).dtype.itemsize for v in dict.fromkeys(values))


class _Recomputing(Flat):
    """Evaluates a flat program, and computes the layers of some loops again before the backward pass reads them."""

    def __init__(self, lines: frozenset[Line], policy: Policy | None) -> None:
        self.lines, self.policy, self.count = lines, policy, 0

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        values = self._values(closed, inputs)
        return [self._read(values, atom) for atom in closed.jaxpr.outvars]

    def _read(self, values: dict[Any, Any], atom: Atom) -> Any:
        return self.constant(atom.val) if isinstance(atom, Literal) else values[atom]

    def _values(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> dict[Any, Any]:
        jaxpr = closed.jaxpr
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(self.constant, closed.consts), strict=True))
        values.update(zip(jaxpr.invars, inputs, strict=True))
        loops = [
            loop for loop in _loops(jaxpr, self.policy) if (loop.kept.source.file, loop.kept.source.line) in self.lines
        ]
        scans = {id(equation): loop for loop in loops for equation in (loop.forward, loop.backward) if equation}
        layers = {layer.before: layer for loop in loops if loop.forward is None for layer in loop.layers}
        inputs_of: dict[int, _Inputs] = {}
        for at, equation in enumerate(jaxpr.eqns):
            if at in layers:
                self._before(layers[at], equation, values)
            operands, loop = [self._read(values, atom) for atom in equation.invars], scans.get(id(equation))
            if loop is None:
                results = self.equation(equation, operands)
            elif equation is loop.forward:
                results, inputs_of[id(loop)] = self._forward(loop, equation, operands)
            else:
                results = self._backward(loop, equation, operands, inputs_of[id(loop)])
            values.update(zip(equation.outvars, results, strict=True))
        return values

    def _again(self, layer: _Layer, values: dict[Any, Any]) -> None:
        with jax.named_scope(RECOMPUTED):
            for equation in layer.equations:
                results = self.equation(equation, [self._read(values, atom) for atom in equation.invars])
                values.update(zip(equation.outvars, results, strict=True))

    def _before(self, layer: _Layer, reader: JaxprEqn, values: dict[Any, Any]) -> None:
        """Computes a layer of a Python loop again once the cotangents of the next layer are known."""
        waited = [v for v in reader.invars if isinstance(v, Var) and v not in layer.dropped]
        inputs = list(dict.fromkeys((*layer.inputs, *waited)))
        barred = dict(zip(inputs, jax.lax.optimization_barrier([values[v] for v in inputs]), strict=True))
        values.update((v, barred[v]) for v in waited)
        inner = {**values, **barred}
        self._again(layer, inner)
        values.update((v, inner[v]) for v in layer.dropped)
        self.count += 1

    def _forward(self, loop: _Loop, equation: JaxprEqn, operands: Sequence[Any]) -> tuple[list[Any], _Inputs]:
        """The results of a forward scan (None for dropped results), and the inputs of the recomputation."""
        flow, [layer] = Scan[Any](equation), loop.layers
        consts, start, xs = flow.split(operands)
        body, carries = flow.body.jaxpr, flow.carries
        fixed: dict[Any, Any] = dict(zip(body.constvars, map(self.constant, flow.body.consts), strict=True))
        fixed.update(zip(body.invars, consts, strict=False))
        sliced: dict[Any, Any] = dict(zip(body.invars[flow.consts + carries :], xs, strict=True))
        outputs = [v for v in body.outvars[carries:] if v not in layer.dropped]
        extra = [v for v in layer.inputs if v not in fixed and v not in sliced]

        def iteration(carry: Sequence[Any], x: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            values = self._values(flow.body, [*consts, *carry, *x])
            results = tuple(self._read(values, v) for v in (*body.outvars[:carries], *outputs, *extra))
            return results[:carries], results[carries:]

        last, rows = scanned(flow, iteration, start, tuple(xs))
        sliced.update(zip(extra, rows[len(outputs) :], strict=True))
        results = iter(rows)
        stacked = [None if v in layer.dropped else next(results) for v in body.outvars[carries:]]
        self.count += 1
        fixed, sliced = ({v: part[v] for v in layer.inputs if v in part} for part in (fixed, sliced))
        return [*last, *stacked], (fixed, sliced)

    def _backward(self, loop: _Loop, equation: JaxprEqn, operands: Sequence[Any], inputs: _Inputs) -> list[Any]:
        """The results of a backward scan, whose iterations compute the dropped values again."""
        assert loop.forward is not None
        flow, [layer], (fixed, sliced) = Scan[Any](equation), loop.layers, inputs
        consts, start, xs = flow.split(operands)
        inner = dict(zip(loop.forward.outvars, Scan[Any](loop.forward).body.jaxpr.outvars, strict=True))
        names = [inner[v] if x is None else None for v, x in zip(flow.split(equation.invars)[2], xs, strict=True)]

        def iteration(carry: Sequence[Any], x: tuple[Sequence[Any], ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            rest, values = iter(x[0]), {**fixed, **dict(zip(sliced, x[1], strict=True))}
            self._again(layer, values)
            rows = [next(rest) if name is None else values[name] for name in names]
            results = tuple(self.body(flow, flow.body, [*consts, *carry, *rows]))
            return results[: flow.carries], results[flow.carries :]

        last, rows = scanned(flow, iteration, start, ([x for x in xs if x is not None], list(sliced.values())))
        return [*last, *rows]


def scanned(flow: Scan[Any], iteration: Callable[..., Any], start: Sequence[Any], xs: Any) -> Any:
    """The final carry and the stacked results of a scan with another body."""
    unroll = flow.equation.params["unroll"]
    with _jax_compat.source_of(flow.equation, mesh=False):
        return jax.lax.scan(iteration, tuple(start), xs, flow.length, reverse=flow.reverse, unroll=unroll)
