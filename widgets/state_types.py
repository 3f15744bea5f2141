"""Writes `src/lib/states.ts`, the TypeScript types of the states that Python sends.

`python widgets/state_types.py` writes the file; with `--check`, it exits with 1 if the file is out of date.
"""

import sys
import types
import typing
from pathlib import Path

from workbench_widgets.states import STATES

TARGET = Path(__file__).parent / "src" / "lib" / "states.ts"
_HEAD = "// The states that Python sends. Written by `python widgets/state_types.py` from `states.py`.\n"
_PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null", object: "unknown"}


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


def written() -> str:
    """The text of the TypeScript file."""
    parts = [_HEAD]
    for state in STATES:
        lines = []
        for name, hint in typing.get_type_hints(state, include_extras=True).items():
            optional = typing.get_origin(hint) is typing.NotRequired
            plain = typing.get_args(hint)[0] if optional else hint
            lines.append(f"  {name}{'?' if optional else ''}: {typescript(plain)};\n")
        parts.append(f"/** {state.__doc__} */\nexport interface {state.__name__} {{\n{''.join(lines)}}}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(TARGET.read_text(encoding="utf-8") != written())
    TARGET.write_text(written(), encoding="utf-8")
