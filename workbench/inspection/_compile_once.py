"""What was compiled of the latest programs, so that looking at one again does not compile it again."""

import collections
import itertools
import sys
import threading

from jax.stages import Compiled, Lowered

from workbench import _jax_compat

_MOST_PROGRAMS = 8
_MOST_CHARACTERS = 16 << 20  # of StableHLO, all programs together; an executable is of the same order

_LATEST: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_LOCK = threading.Lock()


def compile_once(lowered: Lowered, text: str) -> Compiled:
    """Compiles a lowered program, or finds what an equal one was compiled to in this process.

    A function is traced again whenever it is inspected, since what it closes over may have changed; equal StableHLO,
    source lines included, on equal devices compiles to the same.

    Args:
        lowered: The program.
        text: Its StableHLO with locations, `lowered.as_text(debug_info=True)`.

    Returns:
        The compiled program. Programs with callbacks are compiled each time: their text names no function.
    """
    key = _jax_compat.compilation_key(lowered)
    if key is None or len(text) > _MOST_CHARACTERS:
        return lowered.compile()
    text = _without_callers(text)
    with _LOCK:
        found = _LATEST.get((text, key))
        if found is not None:
            _LATEST.move_to_end((text, key))
            return found
    compiled = lowered.compile()
    with _LOCK:
        _LATEST[text, key] = compiled
        while len(_LATEST) > _MOST_PROGRAMS or sum(len(text) for text, _ in _LATEST) > _MOST_CHARACTERS:
            _LATEST.popitem(last=False)
    return compiled


def _without_callers(text: str) -> str:
    """The text without the places of the calls that are in progress: the cell that inspects is no part of a program."""
    frame = sys._getframe(1)
    while frame is not None:
        position = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        line, end_line, column, end_column = position
        end = f":{end_column}" if line == end_line else f"{end_line}:{end_column}"
        text = text.replace(f'"{frame.f_code.co_filename}":{line}:{column} to {end}', '"caller"')
        frame = frame.f_back
    return text
