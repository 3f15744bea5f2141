"""IPython magics: `%load_ext workbench`, then `%%explore`, `%%measure` and `%inspect`.

The last line of a cell must be a call, `fn(x, y)`. The lines before it run unchanged, and the call is explored,
measured or inspected. Options are written as keyword arguments, with or without commas::

    %%measure rounds=5, warmup=1
    step = jax.jit(train)
    step(params, batch)
"""

import ast
from typing import TYPE_CHECKING, Any

from workbench.errors import ProgramError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench._types import Argument


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Registers the magics; IPython calls it for `%load_ext workbench`."""
    for name, kinds in (("explore", "cell"), ("measure", "cell"), ("inspect", "line_cell")):
        shell.register_magic_function(_Magic(shell, name), magic_kind=kinds, magic_name=name)  # pyright: ignore


class _Magic:
    """A magic that runs the code before the call, and passes the call to a function of `workbench`."""

    def __init__(self, shell: "InteractiveShell", name: str) -> None:
        self._shell, self._name = shell, name
        self.__doc__ = f"Passes the call in the last line to `workbench.{name}`; options are its keyword arguments."

    def __call__(self, line: str, cell: str | None = None) -> object:
        """Runs the code and returns the result of the `workbench` function for the last call."""
        from workbench import api  # imported here, so that `%load_ext workbench` does not import JAX

        names = self._shell.user_ns
        if cell is None:  # `%inspect fn(x) on="v5e:4x4"`: the call is first
            call, options = _split_line(line, self._name)
        else:
            call, options = _take_call(cell, self._name, self._shell), line
        keywords = {str(keyword.arg): _value(keyword.value, names) for keyword in _options(options, self._name)}
        function = _value(call.func, names)
        arguments = [
            value
            for node in call.args
            for value in (_value(node.value, names) if isinstance(node, ast.Starred) else [_value(node, names)])
        ]
        named: dict[str, Any] = {}
        for keyword in call.keywords:
            value = _value(keyword.value, names)
            named.update(value if keyword.arg is None else {keyword.arg: value})
        return getattr(api, self._name)(function, **keywords)(*arguments, **named)


def _take_call(cell: str, name: str, shell: "InteractiveShell") -> ast.Call:
    """Runs everything except the last line of a cell, and returns the call on that line."""
    tree = ast.parse(cell)
    last = tree.body.pop() if tree.body else None
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        raise _no_call("%%" + name, cell)
    # The cell's own file name, so that views can find the lines of functions defined in the cell.
    exec(compile(tree, shell.compile.cache(cell), "exec"), shell.user_ns)
    return last.value


def _split_line(line: str, name: str) -> tuple[ast.Call, str]:
    """The call at the beginning of a line, and the options that follow it."""
    for end in range(len(line), 0, -1):
        if line[end - 1] != ")":
            continue
        try:
            node = ast.parse(line[:end].strip(), mode="eval").body
        except SyntaxError:
            continue
        if isinstance(node, ast.Call):
            return node, line[end:]
    raise _no_call("%" + name, line)


def _options(text: str, name: str) -> list[ast.keyword]:
    """The keyword arguments in a line such as `rounds=5 warmup=1`."""
    for attempt in (text, ", ".join(text.split())):
        try:
            call = ast.parse(f"f({attempt})", mode="eval").body
        except SyntaxError:
            continue
        if isinstance(call, ast.Call) and not call.args and all(keyword.arg for keyword in call.keywords):
            return call.keywords
    message = (
        f"`{name}` received the options {text.strip()!r}, which are not keyword arguments. Options must be keyword "
        f"arguments of `workbench.{name}`: write them as `name=value`, such as `rounds=5`."
    )
    raise ProgramError(message)


def _value(node: ast.expr, names: dict[str, Any]) -> "Argument":
    return eval(compile(ast.Expression(node), "<cell>", "eval"), names)


def _no_call(magic: str, code: str) -> ProgramError:
    last = (code.strip().splitlines() or [""])[-1]
    message = (
        f"`{magic}` received code that ends in {last!r}, which is not a call. `{magic}` needs a call of a function: "
        "end with `fn(x, y)`."
    )
    return ProgramError(message)
