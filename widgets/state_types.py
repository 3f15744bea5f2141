"""Writes `src/lib/states.ts`, the TypeScript types of all states, live values and answers that Python sends.

`python widgets/state_types.py` writes the file; with `--check`, it exits with 1 if the file is out of date.
"""

import sys
import types
import typing
from pathlib import Path

from workbench_widgets._answers import Answers
from workbench_widgets._client_courses import ClientCourses
from workbench_widgets._launch import LaunchView
from workbench_widgets._player import PlayerView
from workbench_widgets._playground import Playground
from workbench_widgets._run_controller import RunController
from workbench_widgets.states import LIVE, STATES

TARGET = Path(__file__).parent / "src" / "lib" / "states.ts"
_HEAD = "// The states that Python sends. Written by `python widgets/state_types.py` from `states.py`.\n"
_PLAIN = {
    str: "string", int: "number", float: "number", bool: "boolean", bytes: "DataView", type(None): "null",
    object: "unknown",
}  # fmt: skip
ANSWERING = (Answers, ClientCourses, LaunchView, PlayerView, Playground, RunController)


def typescript(hint: object) -> str:
    """The TypeScript form of a type hint.

    Raises:
        TypeError: if the hint has no JSON form that this module supports.
    """
    if hint in _PLAIN:
        return _PLAIN[typing.cast(type, hint)]
    if typing.is_typeddict(hint):
        return typing.cast(type, hint).__name__
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(f'"{member}"' for member in inside)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(typescript(member) for member in inside)
    if origin is list:
        text = typescript(inside[0])
        return f"readonly ({text})[]" if text.startswith("readonly ") or " | " in text else f"readonly {text}[]"
    if origin is tuple:
        return f"readonly [{', '.join(typescript(member) for member in inside)}]"
    if origin is dict and inside[0] is str:
        return f"Readonly<Record<string, {typescript(inside[1])}>>"
    message = f"`typescript` received {hint!r}, which has no TypeScript form here. Add one, or use another hint."
    raise TypeError(message)


def answers() -> dict[str, object]:
    """The type of the answer to each request from the page."""
    methods = {name: getattr(owner, how) for owner in ANSWERING for name, how in owner.requests.items()}
    hints = {name: typing.get_type_hints(method)["return"] for name, method in sorted(methods.items())}
    return {"name_in_notebook": str | None, **hints}


def types_in(hint: object) -> typing.Iterator[type]:
    """The typed dictionaries inside a type hint; each follows those that it contains."""
    is_dictionary = typing.is_typeddict(hint)
    inside = typing.get_type_hints(hint, include_extras=True).values() if is_dictionary else typing.get_args(hint)
    for member in inside:
        yield from types_in(member)
    if is_dictionary:
        yield typing.cast(type, hint)


def interface(name: str, words: str, hints: typing.Mapping[str, object]) -> str:
    """An interface with one property per hint."""
    lines = []
    for key, hint in hints.items():
        optional = typing.get_origin(hint) is typing.NotRequired
        plain = typing.get_args(hint)[0] if optional else hint
        lines.append(f"  {key}{'?' if optional else ''}: {typescript(plain)};\n")
    if not lines:
        return f"/** {words} */\nexport type {name} = Readonly<Record<never, never>>;\n"
    return f"/** {words} */\nexport interface {name} {{\n{''.join(lines)}}}\n"


def written() -> str:
    """The text of the TypeScript file."""
    roots = (*STATES.values(), *LIVE.values(), *answers().values())
    dictionaries = dict.fromkeys(member for root in roots for member in types_in(root))
    parts = [interface(member.__name__, member.__doc__ or "", _hints_of(member)) for member in dictionaries]
    parts.append(interface("States", "The state of each view.", STATES))
    parts.append(interface("Live", "The live values of each view that has some.", LIVE))
    parts.append(interface("Answers", "The answer to each request.", answers()))
    return "\n".join([_HEAD, *parts])


def _hints_of(dictionary: type) -> dict[str, object]:
    hints = typing.get_type_hints(dictionary, include_extras=True)
    optional = getattr(dictionary, "__optional_keys__", frozenset())
    return {
        key: typing.NotRequired[hint] if key in optional and typing.get_origin(hint) is not typing.NotRequired else hint
        for key, hint in hints.items()
    }


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(TARGET.read_text(encoding="utf-8") != written())
    TARGET.write_text(written(), encoding="utf-8")
