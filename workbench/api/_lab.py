"""Requests from the labextension to the kernel: code that explores a cell, and the device panel."""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workbench.measurement import DeviceMonitor, watch_devices

_monitors: list[DeviceMonitor] = []
_panels: list[Any] = []


class Answer(dict[str, Any]):
    """An answer that the kernel sends as JSON, in the form of a dictionary."""

    def _repr_json_(self) -> dict[str, Any]:
        return dict(self)


def explore_cell(source: str) -> Answer:
    """Code that opens the explorer for the function that a cell defines or calls.

    The arguments come from the function's last call in the notebook: in this cell if there is one, otherwise in the
    executed cells.

    Args:
        source: The cell's text.

    Returns:
        `code` to insert and whether to `run` it, or a `message` about what is missing. Code whose arguments call
        functions is inserted but not run, because a call such as `next(batches)` may change state.
    """
    tree = _parse(source)
    if tree is None:
        return Answer(message="The cell is not valid Python: fix its syntax first.")
    namespace = _namespace()
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    called = [name for name, _ in _calls(tree) if callable(namespace.get(name)) and _is_users(namespace[name])]
    candidates = list(dict.fromkeys([*reversed(defined), *called]))
    if not candidates:
        return Answer(message="The cell does not define or call one of your functions: choose a cell that does.")
    for name in candidates:
        if (arguments := _last_call(name, [tree, *_history()])) is not None:
            can_run = name in namespace and not _has_effects(arguments)
            return Answer(code=_cell(namespace, f"explore({name})({arguments})"), run=can_run)
    name = candidates[0]
    code = _cell(namespace, f"explore({name})(...)  # its arguments: arrays, or jax.ShapeDtypeStruct for shapes only")
    message = f"`{name}` has not been called yet: put its arguments into the new cell."
    return Answer(code=code, run=False, message=message)


def _has_effects(arguments: str) -> bool:
    """Returns whether evaluating the arguments again may change state: `next(batches)` advances an iterator."""
    tree = ast.parse(f"f({arguments})", mode="eval")
    effects = (ast.Call, ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom)
    return any(isinstance(node, effects) for node in ast.walk(tree) if node is not tree.body)


def device_panel() -> Answer:
    """The widget that shows this kernel's devices; all panels share one monitor."""
    import workbench_widgets

    if not _monitors:
        _monitors.append(watch_devices())
    for panel in _panels:
        panel.close()
    _panels[:] = [workbench_widgets.DevicesView(_monitors[0])]
    return Answer(model=_panels[0].model_id)


def _cell(namespace: dict[str, Any], call: str) -> str:
    """Code for a call, with the notebook's own name for this package or, if it has none, with an import."""
    workbench = sys.modules["workbench"]
    name = next((name for name, value in namespace.items() if value is workbench and not name.startswith("_")), None)
    return f"{name}.{call}" if name else f"import workbench as wb\n\nwb.{call}"


def _namespace() -> dict[str, Any]:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "user_ns", {})


def _history() -> Iterator[ast.Module]:
    """The executed cells, most recent first."""
    for text in reversed(_namespace().get("In", [])):
        if (tree := _parse(text)) is not None:
            yield tree


def _parse(source: str) -> ast.Module | None:
    """The cell as Python, without IPython-specific syntax."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return None


def _calls(tree: ast.Module) -> list[tuple[str, ast.Call]]:
    """Calls of plain names at the top level; calls inside a function are excluded because they may use local names."""
    calls: list[tuple[str, ast.Call]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            calls.append((node.func.id, node))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return calls


def _last_call(name: str, cells: Iterable[ast.Module]) -> str | None:
    for tree in cells:
        calls = [call for called, call in _calls(tree) if called == name]
        if calls:
            call = calls[-1]
            arguments = [*map(ast.unparse, call.args)]
            arguments += [f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}"
                      for k in call.keywords]  # fmt: skip
            return ", ".join(arguments)
    return None


def _is_users(function: Callable[..., Any]) -> bool:
    """Returns whether a name is defined in the notebook, including under a transformation such as `jax.jit`."""
    inner = getattr(function, "__wrapped__", function)
    return getattr(inner, "__module__", None) == "__main__"
