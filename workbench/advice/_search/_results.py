"""The results that replace arguments, as an expression for `out_shardings=` in pasted code."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from workbench._jax_compat import is_jitted, static_arguments
from workbench._types import PyTree
from workbench.advice._search._groups import pattern_argument
from workbench.inspection import TracedCall
from workbench.records.advice import JitRecord

_ROOTS = {"eqx.filter_jit": 1, "nnx.jit": 0}  # position of the kept results among the results of the inner `jax.jit`


def read_jit(call: TracedCall, results: PyTree, names: Sequence[Sequence[str]]) -> tuple[JitRecord, frozenset[int]]:
    """Returns how the function is jitted, and the positions of the results whose shardings the code can request."""
    library = type(call.fn).__module__.partition(".")[0]
    wrapper = {"flax": "nnx.jit", "equinox": "eqx.filter_jit"}.get(library, "jax.jit")
    options = {} if wrapper == "eqx.filter_jit" else call.donations
    if is_jitted(call.fn):
        positions, static = static_arguments(call.fn, len(call.args))
        options |= {"static_argnums": tuple(sorted(positions)), "static_argnames": tuple(sorted(static))}
    written = ", ".join(f"{name}={value!r}" for name, value in options.items() if value)
    start = 0
    if wrapper in _ROOTS and isinstance(results, tuple) and len(results) == 3:
        start = sum(len(jax.tree.leaves(part)) for part in results[: _ROOTS[wrapper]])
        results = results[_ROOTS[wrapper]]
    if wrapper == "nnx.jit":  # its `in_shardings` are also the shardings of updated modules
        modules = [jax.tree.leaves(module) for module in results]
        arguments = [pattern_argument(call.result_name(f"[0][{at}]")) for at, leaves in enumerate(modules) if leaves]
        template = _tuple(["%s" if leaves else "None" for leaves in modules])
        record = JitRecord(wrapper=wrapper, results=template, updated=tuple(arguments), options=written)
        return record, frozenset(range(sum(map(len, modules))))
    expression = _Expression(call.names, names)
    text = expression.of(results, itertools.count(start))
    record = JitRecord(wrapper=wrapper, results=text, updated=tuple(expression.arguments), options=written)
    return record, frozenset(expression.positions)


class _Expression:
    """Writes results as an expression of arguments: `(%s, None)` for results that begin with an updated argument."""

    def __init__(self, leaves: Sequence[str], names: Sequence[Sequence[str]]) -> None:
        self._leaves, self._names = leaves, names
        self.arguments: list[str] = []
        self.positions: list[int] = []

    def of(self, tree: PyTree, count: Iterator[int]) -> str:
        """The expression for a subtree, whose arrays are next in `count`."""
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
        positions = list(itertools.islice(count, len(paths)))
        if not any(self._names[at] for at in positions):
            return "None"
        argument = self._argument(paths, positions)
        if argument:
            self.arguments.append(argument)
            self.positions += positions
            return "%s"
        places = iter(positions)
        if type(tree) is dict:
            return "{" + ", ".join(f"{_literal(key)}: {self.of(tree[key], places)}" for key in sorted(tree)) + "}"
        if type(tree) in (tuple, list):
            entries = [self.of(entry, places) for entry in tree]
            return _tuple(entries) if type(tree) is tuple else f"[{', '.join(entries)}]"
        return "None"

    def _argument(self, paths: Sequence[str], positions: Sequence[int]) -> str:
        """The argument with the shortest name whose arrays are all replaced by these results, or an empty string."""
        roots: set[str] = set.intersection(
            *(
                {name.removesuffix(path) for name in self._names[at] if name.endswith(path)}
                for path, at in zip(paths, positions, strict=True)
            )
        )
        return min((root for root in roots if self._size(root) == len(paths)), key=len, default="")

    def _size(self, root: str) -> int:
        """Number of arrays in an argument."""
        return sum(name == root or name.startswith((f"{root}.", f"{root}[")) for name in self._leaves)


def _tuple(entries: Sequence[str]) -> str:
    return f"({', '.join(entries)}{',' * (len(entries) == 1)})"


def _literal(key: Any) -> str:
    return repr(key).replace("%", "%%")
