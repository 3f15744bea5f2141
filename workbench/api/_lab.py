"""Requests of the labextension to the kernel: code to explore a cell's function with, a panel of devices."""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workbench.measurement import DeviceMonitor, watch_devices

_monitors: list[DeviceMonitor] = []
_panels: list[Any] = []


class Answer(dict[str, Any]):
    """An answer that the kernel sends as JSON."""

    def _repr_json_(self) -> dict[str, Any]:
        return dict(self)


def explore_cell(source: str) -> Answer:
    """The cell that opens the explorer of the function that a cell defines or calls.

    The arguments are those of the function's last call in the notebook: in this cell first, then in cells that ran.

    Args:
        source: The cell's text.

    Returns:
        `code` to insert and whether to `run` it, or a `message` that says what is missing. Code whose arguments call
        functions is inserted only, since a call such as `next(batches)` may change the notebook's state.
    """
    tree = _parse(source)
    if tree is None:
        return Answer(message="The cell is not Python that can be read: repair its syntax first.")
    known = _namespace()
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    called = [name for name, _ in _calls(tree) if callable(known.get(name)) and _is_users(known[name])]
    wanted = list(dict.fromkeys([*reversed(defined), *called]))
    if not wanted:
        return Answer(message="The cell does not define or call one of your functions: choose a cell that does.")
    for name in wanted:
        if (arguments := _last_call(name, [tree, *_history()])) is not None:
            can_run = name in known and not _has_effects(arguments)
            return Answer(code=_cell(known, f"explore({name})({arguments})"), run=can_run)
    name = wanted[0]
    code = _cell(known, f"explore({name})(...)  # its arguments: arrays, or jax.ShapeDtypeStruct for shapes alone")
    message = f"`{name}` has not been called yet: put its arguments into the new cell."
    return Answer(code=code, run=False, message=message)


def _has_effects(arguments: str) -> bool:
    """Returns whether evaluating the arguments again may change something: `next(batches)` advances an iterator."""
    tree = ast.parse(f"f({arguments})", mode="eval")
    effects = (ast.Call, ast.Await, ast.NamedExpr, ast.Yield, ast.YieldFrom)
    return any(isinstance(node, effects) for node in ast.walk(tree) if node is not tree.body)


def device_panel() -> Answer:
    """The widget of a view of this kernel's devices; one monitor serves every panel."""
    import workbench_widgets

    if not _monitors:
        _monitors.append(watch_devices())
    for panel in _panels:
        panel.close()
    _panels[:] = [workbench_widgets.DevicesView(_monitors[0])]
    return Answer(model=_panels[0].model_id)


def _cell(known: dict[str, Any], call: str) -> str:
    """Code that works whether or not the notebook has imported this package under a name."""
    workbench = sys.modules["workbench"]
    name = next((name for name, value in known.items() if value is workbench and not name.startswith("_")), None)
    return f"{name}.{call}" if name else f"import workbench as wb\n\nwb.{call}"


def _namespace() -> dict[str, Any]:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "user_ns", {})


def _history() -> Iterator[ast.Module]:
    """The cells that ran, the last one first."""
    for text in reversed(_namespace().get("In", [])):
        if (tree := _parse(text)) is not None:
            yield tree


def _parse(source: str) -> ast.Module | None:
    """The cell as Python; lines that are IPython's own are left out."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return None


def _calls(tree: ast.Module) -> list[tuple[str, ast.Call]]:
    """Calls of plain names in the notebook's own lines: inside a function they may name what exists only there."""
    found: list[tuple[str, ast.Call]] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension):
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.append((node.func.id, node))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def _last_call(name: str, cells: Iterable[ast.Module]) -> str | None:
    for tree in cells:
        calls = [call for called, call in _calls(tree) if called == name]
        if calls:
            call = calls[-1]
            given = [*map(ast.unparse, call.args)]
            given += [f"{each.arg}={ast.unparse(each.value)}" if each.arg else f"**{ast.unparse(each.value)}"
                      for each in call.keywords]  # fmt: skip
            return ", ".join(given)
    return None


def _is_users(function: Callable[..., Any]) -> bool:
    """Defined in the notebook: under a transformation such as `jax.jit` too."""
    inner = getattr(function, "__wrapped__", function)
    return getattr(inner, "__module__", None) == "__main__"
