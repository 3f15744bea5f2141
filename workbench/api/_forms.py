"""Derives one-line forms, with options, types and documentation, from the methods of `Traced`."""

import difflib
import functools
import inspect as inspect_module
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, get_args, overload

from jax.sharding import AbstractMesh, Mesh

from workbench._open_types import Option
from workbench._types import Argument
from workbench.api._options import asked
from workbench.api._things import is_program
from workbench.api._traced import Traced, trace_for
from workbench.api._waiting import is_watched, say_phase, waiting
from workbench.inspection import parts_of

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Method = Callable[Concatenate[Traced, P], R]


class Question(Protocol[P, R_co]):
    """A question about one call of a function, with the same options as a method of `Traced`."""

    def __call__(self, fn: Callable, /, *args: P.args, **options: P.kwargs) -> Callable[..., R_co]: ...


class OpenQuestion(Protocol[P, R_co]):
    """A question about one call of a function, or about a value that is not a function."""

    @overload
    def __call__(self, x: Callable, /, *args: P.args, **options: P.kwargs) -> Callable[..., R_co]: ...
    @overload
    def __call__(self, x: object, /, *args: P.args, **options: P.kwargs) -> Any: ...


def question(method: Method[P, R]) -> Question[P, R]:
    """The one-line form of a method: first the options, then the arguments of the function."""
    return cast("Question[P, R]", _form(method, "A function, or a traced call `wb.trace(fn)(*args)`.", None))


def open_question(answer: Callable[..., Any], takes: str) -> Callable[[Method[P, R]], OpenQuestion[P, R]]:
    """The one-line form of a method that also accepts values that are not functions."""

    def decorate(method: Method[P, R]) -> OpenQuestion[P, R]:
        return cast("OpenQuestion[P, R]", _form(method, takes, answer))

    return decorate


def _form(method: Callable[..., Any], takes: str, answer: Callable[..., Any] | None) -> Callable[..., Any]:
    name = method.__name__
    parameters = [p for p in inspect_module.signature(method).parameters.values() if p.name != "self"]
    options = {p.name: p for p in _written_out(parameters)}

    def ask(x: Any, /, *args: Argument, **settings: Option) -> Any:
        unknown = [option for option in settings if option not in options]
        if unknown:
            raise TypeError(_unknown(name, unknown, options))
        if isinstance(x, Traced):
            return method(x, *args, **settings)
        if answer is not None and not is_program(x, name):
            with asked(name):
                return answer(x, *args, **settings)
        mesh = next((part for part in parts_of(settings.get("on")) if isinstance(part, Mesh | AbstractMesh)), None)
        traced = trace_for(name, x, mesh)

        @functools.wraps(x)
        def call(*arguments: Argument, **keywords: Argument) -> Argument:
            shown = name in _LONG and settings.get("progress") is None and is_watched()
            with waiting(getattr(x, "__name__", "the program"), "tracing", shown=shown):
                program = traced(*arguments, **keywords)
                say_phase(_LONG.get(name, ""))
                return method(program, *args, **settings)

        return call

    ask.__name__ = ask.__qualname__ = name
    label = "x" if answer else "fn"
    ask.__doc__ = _documentation(method, name, f"{label}: {takes}")
    first = inspect_module.Parameter(label, inspect_module.Parameter.POSITIONAL_ONLY)
    returned = inspect_module.signature(method).return_annotation
    ask.__signature__ = inspect_module.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [first, *options.values()], return_annotation=returned
    )
    return ask


# Slow questions, each with the activity to display after tracing.
_LONG: dict[str, str] = {
    "show": "compiling and reading the compiled program",
    "explore": "compiling and reading the compiled program",
    "measure": "compiling and measuring",
    "advise": "looking for improvements, compiling each change",
}


def _written_out(parameters: Sequence[inspect_module.Parameter]) -> Iterator[inspect_module.Parameter]:
    """The parameters of a method, with `**options: Unpack[…]` expanded."""
    for parameter in parameters:
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter
            continue
        (options,) = get_args(parameter.annotation)
        for name, hint in options.__annotations__.items():
            yield inspect_module.Parameter(name, parameter.KEYWORD_ONLY, default=..., annotation=hint)


def _documentation(method: Callable[..., Any], name: str, argument: str) -> str:
    """The documentation of a method, adapted to its one-line form."""
    summary, _, rest = inspect_module.cleandoc(method.__doc__ or "").partition("\n")
    line = f"`{name}(fn, …)(*args)` is `trace(fn)(*args).{name}(…)`."
    rest = rest.strip()
    if "Args:\n" in rest:
        rest = rest.replace("Args:\n", f"Args:\n    {argument}\n", 1)
    return f"{summary}\n\n{line}\n\n{rest}\n"


def _unknown(name: str, unknown: Sequence[str], options: Mapping[str, Any]) -> str:
    near = [match for word in unknown for match in difflib.get_close_matches(word, options, n=1)]
    near += ["on" for word in unknown if word in ("mesh", "target", "targets", "chip", "chips") and "on" in options]
    hint = f" Did you mean {', '.join(f'`{word}`' for word in dict.fromkeys(near))}?" if near else ""
    return (
        f"`{name}` received {', '.join(f'`{word}`' for word in unknown)}, but has no such option.{hint} The options of "
        f"`{name}` are {', '.join(options)}; arguments of your function go into the second call, as in "
        f"`{name}(fn)(*args, **kwargs)`."
    )
