"""Finds the outputs that `watch` reads from a call, and their paths for the next call."""

import ast
import collections
import functools
import inspect
import operator
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from workbench._jax_compat import keeps_results
from workbench._types import Argument
from workbench.errors import MeasureError

Getter: TypeAlias = Callable[[Any], Any]
Wanted: TypeAlias = str | Callable[[Any], Any] | Sequence[str] | Mapping[str, str | Callable[[Any], Any]] | None

MOST_DEFAULT_OUTPUTS = 8
MOST_NUMBERS = 1024  # of one output
_MOST_CHANGES = 3  # maximum number of arguments in the reason for a compilation
# maximum number of keys in the path of a metric such as `loss` or `metrics["loss"]`; deeper scalars belong to a state
_SHALLOW = 3
_METRIC = re.compile(r"learning_rate|\blr\b|loss|norm|accuracy|total")


class WatchedCall(NamedTuple):
    """A finished call as a tuple; the path of each value starts with the value's index in the tuple."""

    result: Argument
    args: tuple[Argument, ...]
    kwargs: dict[str, Argument]


class Mean(NamedTuple):
    """An output that a metric of NNX stores as two arrays."""

    total: Any
    count: Any


class Reader:
    """Finds the chosen outputs of a call, and one small array to wait for.

    Args:
        fn: The watched function; the names in its `return` statement name the outputs.
        selection: Outputs that the user chose; see `watch`. None: at most eight floating-point scalars in the results,
            shallowest first.
        call: A finished call, which determines the paths.
        before: Argument arrays before the call, by `id`; results that are among them are excluded, because they were
            ready before the call.

    Attributes:
        problems: Messages about chosen outputs that do not exist.
        is_empty: Whether there is no output to read.
        of_state: Names of outputs deep inside a result; the next call may donate these outputs.
    """

    def __init__(self, fn: Callable | None, selection: Wanted, call: WatchedCall, before: Mapping[int, object]) -> None:
        self.problems: list[str] = []
        self._functions: dict[str, Callable[[Any], Any]] = {}
        leaves = [
            (path, leaf)
            for path, leaf in jax.tree_util.tree_flatten_with_path(tuple(call))[0]
            if isinstance(leaf, jax.Array) and id(leaf) not in before
        ]
        self.is_traced = any(isinstance(leaf, Tracer) for _, leaf in leaves)
        named = _named(leaves, _returned_names(fn), _parameters(fn), call)
        chosen = self._chosen(selection, named)
        numbers = [(path, leaf) for path, leaf in leaves if not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)]
        # Without results, wait for an argument that is updated in place, as in NNX.
        smallest = min(numbers, key=lambda entry: (entry[0][0].idx, entry[1].size, len(entry[0])), default=None)
        if self.is_traced:
            smallest, chosen = None, {}
        self._probe = None if smallest is None else _getter(smallest[0], call, smallest[1])
        self._outputs = {name: _getter(path, call, leaf) for name, (path, leaf) in chosen.items()}
        if selection is None:
            self._outputs = _means(self._outputs, named, call)
        self.is_empty = not self._outputs and not self._functions
        self.of_state = {name for name, (path, _) in chosen.items() if len(path) > _SHALLOW and path[0].idx == 0}

    def read(self, call: WatchedCall) -> tuple[jax.Array | None, dict[str, Any]]:
        """Returns the array to wait for, and the outputs by name.

        Lookup errors propagate if the structure of the results has changed.
        """
        values = {name: getter(call) for name, getter in self._outputs.items()}
        for name, function in list(self._functions.items()):
            try:
                outputs = function(call.result)
            except Exception as error:  # a failing user function must not stop the loop
                del self._functions[name]
                self.problems.append(
                    f"the output {name!r} failed and was removed ({type(error).__name__}: {error}): its function "
                    "receives the result of the watched function"
                )
                continue
            values |= {
                name + jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(outputs)
            }
        return (None if self._probe is None else self._probe(call)), values

    def _chosen(self, selection: Wanted, named: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
        if selection is None:
            scalars = {
                name: entry
                for name, entry in named.items()
                if _is_metric(entry[1]) and (len(entry[0]) <= _SHALLOW or _METRIC.search(name))
            }
            depth = {name: (entry[0][0].idx, len(entry[0]), "loss" not in name) for name, entry in scalars.items()}
            return {name: scalars[name] for name in sorted(scalars, key=depth.__getitem__)[:MOST_DEFAULT_OUTPUTS]}
        chosen = {}
        for name, place in outputs_by_name(selection).items():
            if callable(place):
                self._functions[name] = place
                continue
            matches = [key for key in named if key == place or key.endswith(f".{place}")]
            if not matches:
                shown = ", ".join(list(named)[:12]) or "none"
                self.problems.append(f"there is no output {place!r}; the arrays are: {shown}")
                continue
            path, leaf = named[min(matches, key=len)]
            if leaf.size > MOST_NUMBERS:
                self.problems.append(
                    f"the output {place!r} has {leaf.size:,} values, but `watch` keeps at most {MOST_NUMBERS:,}: pass "
                    "a function of the results that returns one number"
                )
                continue
            chosen[name] = (path, leaf)
        return chosen


def outputs_by_name(selection: Wanted) -> dict[str, str | Callable[[Any], Any]]:
    """Maps names to chosen outputs.

    Example:
        >>> outputs_by_name(["loss", "metrics.accuracy"])
        {'loss': 'loss', 'metrics.accuracy': 'metrics.accuracy'}
    """
    if selection is None:
        return {}
    if isinstance(selection, Mapping):
        chosen: dict[str, Any] = dict(selection)
    else:
        items: Sequence[Any] = [selection] if isinstance(selection, str) or callable(selection) else selection
        chosen = {_name_of(item): item for item in items}
    wrong = [repr(item) for item in chosen.values() if not (isinstance(item, str) or callable(item))]
    if wrong:
        message = (
            f"`watch` received outputs with {', '.join(wrong)}. An output is the name of an array in the results, or a "
            'function of the results: pass outputs=["loss"] or outputs={"norm": lambda result: …}.'
        )
        raise MeasureError(message)
    return chosen


def arrays_of(args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> dict[int, object]:
    """The argument arrays by `id`; empty if they cannot be listed."""
    try:
        return {id(leaf): leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.Array)}
    except (TypeError, ValueError):
        return {}


_ARRAYS = (jax.Array, np.ndarray, np.generic)


def shapes_of(args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> tuple[Any, ...]:
    """The key of a program: shapes and dtypes of array arguments, and values of static arguments."""
    try:
        leaves = jax.tree.leaves((args, kwargs))
    except (TypeError, ValueError):
        return ()
    return tuple(
        (leaf.shape, leaf.dtype) if isinstance(leaf, _ARRAYS) else leaf if isinstance(leaf, bool | str) else type(leaf)
        for leaf in leaves
    )


def arguments_of(fn: Callable | None, call: WatchedCall) -> dict[str, str]:
    """The type and sharding of each argument array, and the values of static arguments, by name."""
    parameters = _parameters(fn)
    described = {}
    try:
        leaves = jax.tree_util.tree_flatten_with_path((call.args, call.kwargs))[0]
    except (TypeError, ValueError):
        return {}
    for path, leaf in leaves:
        place, *rest = path[1:]
        index = getattr(place, "idx", None)
        first = jax.tree_util.keystr((place,), simple=True)
        if index is not None and index < len(parameters):
            first = parameters[index]
        name = first + jax.tree_util.keystr(tuple(rest))
        if isinstance(leaf, jax.Array):
            aval: Any = leaf.aval
            weak = ", weakly typed" if getattr(aval, "weak_type", False) else ""
            described[name] = f"{aval.str_short(short_dtypes=True)}{weak} on {_layout(leaf.sharding)}"
        elif isinstance(leaf, _ARRAYS):
            described[name] = f"{leaf.dtype}{list(leaf.shape)} of NumPy"
        else:
            described[name] = repr(leaf)[:80] if isinstance(leaf, bool | str) else type(leaf).__name__
    return described


def _layout(sharding: Any) -> str:
    devices = len(sharding.device_set)
    if devices == 1:
        return "one device"
    if sharding.is_fully_replicated:
        return f"{devices} devices, replicated"
    spec = getattr(sharding, "spec", None)
    return f"{devices} devices, {type(sharding).__name__ if spec is None else spec}"


def changes_between(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Describes the arguments that differ between two calls; empty if none differs or there is no earlier call.

    Example:
        >>> changes_between({"x": "f32[8] on one device"}, {"x": "f32[6] on one device"})
        'argument `x`: now f32[6] on one device, before f32[8] on one device'
    """
    if not before:
        return ""
    changed = [name for name in now if before.get(name) != now[name]]
    texts = [f"argument `{name}`: now {now[name]}, before {before.get(name, 'absent')}" for name in changed]
    more = f"; and {len(texts) - _MOST_CHANGES} more arguments" if len(texts) > _MOST_CHANGES else ""
    return "; ".join(texts[:_MOST_CHANGES]) + more


def _name_of(item: object) -> str:
    name = item if isinstance(item, str) else getattr(item, "__name__", type(item).__name__)
    return "value" if name == "<lambda>" else str(name)


def _is_metric(leaf: jax.Array) -> bool:
    """Returns whether an array is a scalar, or one scalar per device under `pmap`."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return False
    return leaf.ndim == 0 or (leaf.ndim == 1 and 1 < leaf.size == len(leaf.sharding.device_set)
                              and not leaf.sharding.is_fully_replicated)  # fmt: skip


def _named(
    leaves: Sequence[tuple[Any, Any]], returned: Sequence[str] | None, parameters: Sequence[str], call: WatchedCall
) -> dict[str, tuple[Any, Any]]:
    """Names the arrays, using the names in the function's `return` statement and the keys in their paths.

    Names are as short as possible: `learning_rate` for `state.opt_state.1.hyperparams.learning_rate`, if no other path
    ends with that name.
    """
    entries: list[tuple[list[str], Any, Any]] = []
    for path, leaf in leaves:
        inner = path[1:]
        parts = [jax.tree_util.keystr((key,), simple=True) for key in inner]
        if path[0].idx == 0 and returned is not None:
            if len(returned) == 1 and not isinstance(call.result, tuple):
                parts = parts if returned[0].isdigit() else [returned[0], *parts]
            elif isinstance(call.result, tuple) and len(returned) == len(call.result):
                parts = [returned[inner[0].idx], *parts[1:]]
        if path[0].idx == 1 and inner[0].idx < len(parameters):  # an argument that is updated in place
            parts[0] = parameters[int(inner[0].idx)]
        if parts and parts[-1] == "value" and len(parts) > 1:  # of an NNX variable
            parts = parts[:-1]
        entries.append((parts or ["value"], path, leaf))
    lasts = collections.Counter(parts[-1] for parts, _, _ in entries)
    named = {}
    for parts, path, leaf in entries:
        last = parts[-1]
        short = last if lasts[last] == 1 and not last.isdigit() else ".".join(parts)
        named[short if short not in named else f"{short} ({len(named)})"] = (path, leaf)
    return named


def _means(getters: dict[str, Getter], named: dict[str, tuple[Any, Any]], call: WatchedCall) -> dict[str, Getter]:
    """Replaces the `total` of a metric that also has a `count`, as in NNX, with the mean."""
    outputs: dict[str, Getter] = {}
    for name, getter in getters.items():
        path, leaf = named[name]
        key = next((key for key in reversed(path) if jax.tree_util.keystr((key,), simple=True) != "value"), None)
        place = path.index(key) if key in path else 0
        is_total = key is not None and jax.tree_util.keystr((key,), simple=True) == "total"
        count = next(
            (
                (other, size)
                for other, size in named.values()
                if len(other) == len(path) and other[:place] == path[:place] and other[place + 1 :] == path[place + 1 :]
                and jax.tree_util.keystr((other[place],), simple=True) == "count" and size.shape == leaf.shape
            ),
            None,
        ) if is_total else None  # fmt: skip
        if count is None:
            outputs[name] = getter
        else:
            parent = jax.tree_util.keystr((path[place - 1],), simple=True)
            outputs[name.removesuffix("total").rstrip(".") or parent] = _mean_of(
                getter, _getter(count[0], call, count[1])
            )
    return outputs


def _mean_of(total: Getter, count: Getter) -> Getter:
    return lambda call: Mean(total(call), count(call))


def _getter(path: tuple[Any, ...], call: WatchedCall, leaf: object) -> Getter:
    """Returns a function that reads the array at a path; if the keys allow this, it does not flatten the pytree."""
    steps: list[Getter] = []
    place: Any = tuple(call)
    try:
        for key in path:
            step = _step(key, place)
            place = step(place)
            steps.append(step)
    except (AttributeError, KeyError, IndexError, TypeError):
        place = None
    if place is leaf:

        def walk(call: WatchedCall) -> object:
            value: Any = call
            for step in steps:
                value = step(value)
            return value

        return walk
    index = next(i for i, candidate in enumerate(jax.tree.leaves(tuple(call))) if candidate is leaf)
    return lambda call: jax.tree.leaves(tuple(call))[index]


def _step(key: Any, place: object) -> Getter:
    if isinstance(key, jax.tree_util.SequenceKey):
        return operator.itemgetter(key.idx)
    if isinstance(key, jax.tree_util.DictKey):
        return operator.itemgetter(key.key)
    if isinstance(key, jax.tree_util.GetAttrKey):
        if key.name == "value" and callable(getattr(type(place), "get_raw_value", None)):
            return operator.methodcaller("get_raw_value")  # for an NNX variable, whose `value` emits a warning
        return operator.attrgetter(key.name)
    raise TypeError


def _parameters(fn: Callable | None) -> list[str]:
    """The parameters of a function, in order; empty if its signature is unknown."""
    try:
        return [] if fn is None else list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return []


def _returned_names(fn: Callable | None) -> list[str] | None:
    """The names in a function's `return` statements; None if the statements differ."""
    inner: Any = getattr(fn, "func", fn)
    inner = getattr(inner, "__wrapped__", inner)
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = getattr(inner, "__func__", inner)  # of a method
    while keeps_results(inner):
        inner = inner.__wrapped__
    if fn is None or not inspect.isfunction(inner) or hasattr(inner, "__wrapped__"):
        return None  # `jax.grad(f)` also wraps `f`, but returns other values
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inner)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    top = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
    returned = [] if top is None else [_names_in(node.value) for node in _returns(top)]
    return returned[0] if returned and all(names == returned[0] for names in returned) else None


def _returns(node: ast.AST) -> list[ast.Return]:
    returns = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            returns.append(child)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            returns += _returns(child)
    return returns


def _names_in(value: ast.expr | None) -> list[str]:
    items = value.elts if isinstance(value, ast.Tuple) else [value]
    return [_name_in(item, place) for place, item in enumerate(items)]


def _name_in(item: ast.expr | None, place: int) -> str:
    if isinstance(item, ast.Name):
        return item.id
    if isinstance(item, ast.Attribute):
        return item.attr
    if isinstance(item, ast.Call) and item.args:  # `jax.lax.pmean(loss, "batch")`
        return _name_in(item.args[0], place)
    return str(place)
