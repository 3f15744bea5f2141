"""Names jaxpr values that are used outside the source expression that computes them."""

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from workbench import _jax_compat
from workbench.plan import is_user_file

_LONGEST = 60
_NAMED_CALLS = ("jit", "pjit")
_OPAQUE = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


class SourceSpan(NamedTuple):
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str


def named_values(jaxpr: Jaxpr) -> dict[int, tuple[str | None, ...]]:
    """Names the outputs of every equation (keyed by `id`); values used only inside an expression have no name.

    A derivative has the same source lines as its function. Values that a line saves for its own derivative therefore
    have no name. A value that the derivative of a line passes to other lines is called "backward of" that line.
    """
    flow = _Flow(jaxpr)
    leaving: dict[tuple[SourceSpan, bool], list[tuple[int, int, Any]]] = {}
    for equation in jaxpr.eqns:
        for place, v in enumerate(equation.outvars):
            expression = flow.left(equation, v)
            if expression is not None:
                leaving.setdefault(expression, []).append((id(equation), place, v))
    names: dict[int, list[str | None]] = {id(equation): [None] * len(equation.outvars) for equation in jaxpr.eqns}
    for (span, backward), members in leaving.items():
        inner = [flow.spans[equation][0] for equation, _, _ in members]
        transposed = [equation in flow.backward for equation, _, _ in members]
        labels = _names(span, inner, transposed)
        if not backward and any(transposed):
            gradients = [v if is_gradient else None for (_, _, v), is_gradient in zip(members, transposed, strict=True)]
            labels = [path or label for path, label in zip(flow.paths(span, gradients), labels, strict=True)]
        for (equation, place, _), label in zip(members, labels, strict=True):
            names[equation][place] = f"backward of {label}" if backward else label
    return {key: tuple(value_names) for key, value_names in names.items()}


class _Flow:
    """The source expressions of a jaxpr's equations, and the equations that read each value."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        self.spans = {id(equation): _spans(equation) for equation in jaxpr.eqns}
        self.backward = {id(e) for e in jaxpr.eqns if "transpose(" in str(e.source_info.name_stack)}
        self.readers: dict[Any, list[Any]] = {}
        for equation in jaxpr.eqns:
            for atom in equation.invars:
                if not isinstance(atom, Literal):
                    self.readers.setdefault(atom, []).append(equation)
        self.results = {atom for atom in jaxpr.outvars if not isinstance(atom, Literal)}
        arguments = getattr(jaxpr.debug_info, "arg_names", None) or ()
        self.arguments = dict(zip(jaxpr.invars, arguments, strict=True)) if len(arguments) == len(jaxpr.invars) else {}
        several = len(set(self.spans.values())) > 1
        self.around = set.intersection(*map(set, self.spans.values())) if several else set()

    def left(self, equation: JaxprEqn, v: object) -> tuple[SourceSpan, bool] | None:
        """Finds the widest expression whose value is used elsewhere, and whether it belongs to the backward pass."""
        spans, readers = self.spans[id(equation)], self.readers.get(v, [])
        if not spans:
            return None
        wide = [span for span in spans if any(span not in self.spans[id(reader)] for reader in readers)]
        if v in self.results or not readers:
            wide = [span for span in spans if span not in self.around] or [spans[0]]
        if not wide:
            return None
        forward_reader = any(id(reader) not in self.backward for reader in readers)
        is_result = v in self.results and wide[-1] != spans[0]
        return wide[-1], id(equation) in self.backward and not forward_reader and not is_result

    def paths(self, span: SourceSpan, gradients: Sequence[Any]) -> list[str | None]:
        """Names gradients by the paths of the parameters that they update, such as `grads['w']`; None if unknown."""
        assigned = _assigned(span)
        for root in assigned.parameters if assigned.targets else ():
            leaves: dict[Any, str] = {
                v: name[len(root) :]
                for v, name in self.arguments.items()
                if name and name.startswith((f"{root}[", f"{root}."))
            }
            updated = [set() if v is None else self._updated(v, leaves) for v in gradients]
            if any(updated):
                paths = [next(iter(names)) if len(names) == 1 else None for names in updated]
                return [
                    None if path is None or paths.count(path) > 1 else f"{assigned.targets[-1]}{path}" for path in paths
                ]
        return [None] * len(gradients)

    def _updated(self, gradient: Any, leaves: dict[Any, str]) -> set[str]:
        """The paths of the parameters that meet values of the gradient's shape that are computed from the gradient."""
        shape, met = gradient.aval.shape, set()
        pending, seen = [gradient], {gradient}
        while pending:
            for equation in self.readers.get(pending.pop(), []):
                outputs = {v for v in equation.outvars if v.aval.shape == shape}
                atoms = [atom for atom in equation.invars if not isinstance(atom, Literal) and atom in leaves]
                here = {leaves[atom] for atom in atoms if atom.aval.shape == shape}
                if outputs and here:
                    met |= here
                elif outputs:
                    pending += outputs - seen
                    seen |= outputs
        return met


def is_opaque(equation: JaxprEqn) -> bool:
    """Returns whether an equation calls a library function; of such a call, only the result is shown."""
    if equation.primitive.name in _OPAQUE:
        return True
    if equation.primitive.name not in _NAMED_CALLS:
        return False
    inside = [span for inner in equation.params["jaxpr"].eqns for span in _spans(inner)[:1]]
    return not any(span.function == equation.params.get("name") for span in inside)


def _spans(equation: JaxprEqn) -> tuple[SourceSpan, ...]:
    """The stack frames of an equation in the user's code, innermost first."""
    return tuple(
        SourceSpan(*frame) for frame in _jax_compat.user_frames(equation.source_info) if is_user_file(frame[0])
    )


def _names(span: SourceSpan, inner: Sequence[SourceSpan], transposed: Sequence[bool]) -> list[str]:
    """Names each value that is used outside its expression.

    `inner` are the inner expressions that computed the values; `transposed` marks values computed by the derivative.
    """
    assignment = _assigned(span)
    targets = assignment.targets
    if len(targets) == len(inner):
        return list(targets)
    if len(inner) == 1:
        return [", ".join(targets) if targets else _text(span)]
    names = [", ".join(_assigned(inner_span).targets) or _text(inner_span) for inner_span in inner]
    names = [
        f"{name} [{names[:place].count(name)}]" if names.count(name) > 1 else name for place, name in enumerate(names)
    ]
    # A tree with one name, such as all gradients of a loss: name each array by the tree and its inner expression.
    if len(targets) == 1:
        return [name if s == span else f"{targets[0]} from {name}" for name, s in zip(names, inner, strict=True)]
    if len(targets) == 2 and assignment.value_and_gradient:
        value = targets[0] if transposed.count(False) == 1 else None
        return [
            f"{targets[1]} from {name}" if back else value or f"{targets[0]} from {name}"
            for name, back in zip(names, transposed, strict=True)
        ]
    return names


class _Assigned(NamedTuple):
    """The targets of an assignment, and whether the assigned expression is a value with its gradient.

    `parameters` are the names of the array tree by which the expression differentiates.
    """

    targets: tuple[str, ...] = ()
    value_and_gradient: bool = False
    parameters: tuple[str, ...] = ()


def _assigned(span: SourceSpan) -> _Assigned:
    return _assignments("".join(linecache.getlines(span.file))).get(span[1:5], _Assigned())


@functools.lru_cache(maxsize=32)
def _assignments(source: str) -> dict[tuple[int, int, int, int], _Assigned]:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a cell with magics
        return {}
    differentiated = set(_differentiated(tree))
    aliases = sorted(_aliases(tree))
    assignments = {}
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) or value is None:
            continue
        assert target is not None
        names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        place = node if isinstance(node, ast.AugAssign) else value
        key = (place.lineno, place.col_offset, place.end_lineno or 0, place.end_col_offset or 0)
        called = isinstance(value, ast.Call) and (
            _makes_value_and_gradient(value.func) or ast.unparse(value.func) in differentiated
        )
        parameters = ()
        if isinstance(value, ast.Call) and value.args and (called or _makes_gradient(value.func)):
            name = ast.unparse(value.args[0])
            earlier = [other for line, alias, other in aliases if alias == name and line < node.lineno]
            parameters = (name, *earlier[-1:])
        targets = tuple(name for name in map(ast.unparse, names) if name != "_")
        assignments[key] = _Assigned(targets, called, parameters)
    return assignments


def _aliases(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yields the line, the target and the value of assignments; `a, b = x` assigns `x[0]` to `a`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], ast.unparse(node.value)
            if isinstance(target, ast.Tuple):
                plain = itertools.takewhile(lambda element: not isinstance(element, ast.Starred), target.elts)
                yield from ((node.lineno, ast.unparse(element), f"{value}[{i}]") for i, element in enumerate(plain))
            else:
                yield node.lineno, ast.unparse(target), value


def _differentiated(tree: ast.Module) -> Iterator[str]:
    """Finds the functions in a file that return a value and its gradient, by assignment or decorator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _makes_value_and_gradient(node.value):
            yield from map(ast.unparse, node.targets)
        elif isinstance(node, ast.FunctionDef) and any("value_and_grad" in ast.unparse(d) for d in node.decorator_list):
            yield node.name


def _makes_value_and_gradient(node: ast.expr) -> bool:
    """Returns whether this is a call of JAX's or Flax's `value_and_grad`, or of Equinox's `filter_value_and_grad`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("value_and_grad")


def _makes_gradient(node: ast.expr) -> bool:
    """Returns whether this is a call of `jax.grad`, of Flax's `grad`, or of Equinox's `filter_grad`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("grad")


def _text(span: SourceSpan) -> str:
    lines = [linecache.getline(span.file, number) for number in range(span.line, span.end_line + 1)]
    if not lines or not lines[0]:
        return f"{span.function}, line {span.line}"
    pieces = [line.encode() for line in lines]
    pieces[-1] = pieces[-1][: span.end_column]
    pieces[0] = pieces[0][span.column :]
    text = " ".join(b" ".join(pieces).decode(errors="replace").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
