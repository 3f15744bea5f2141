"""Cache of the latest compilations, so that a second inspection does not compile again."""

import collections
import threading

from jax.stages import Compiled, Lowered

from workbench import _jax_compat
from workbench.errors import InspectionError
from workbench.inspection._compile_apart import check_survivable

_MOST_PROGRAMS = 8
_MOST_CHARACTERS = 16 << 20  # of StableHLO, all programs together; an executable is of the same order

_LATEST: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_LOCK = threading.Lock()


def compile_once(lowered: Lowered, text: str, name: str) -> Compiled:
    """Compiles a lowered program, or finds what an equal one was compiled to in this process.

    A function is traced again whenever it is inspected, since what it closes over may have changed; equal StableHLO on
    equal devices compiles to the same. The source lines are part of it, those of the call that inspects too: a library
    function has no other line, and a program that is found may not show those of another cell.

    Args:
        lowered: The program.
        text: Its StableHLO with locations, `lowered.as_text(debug_info=True)`.
        name: What its user calls it, for errors.

    Returns:
        The compiled program. Programs with callbacks are compiled each time: their text names no function.

    Raises:
        InspectionError: if XLA's compiler does not survive it.
    """
    key = _jax_compat.compilation_key(lowered)
    if key is None or len(text) > _MOST_CHARACTERS:
        return compile_now(lowered, text, name)
    with _LOCK:
        found = _LATEST.get((text, key))
        if found is not None:
            _LATEST.move_to_end((text, key))
            return found
    compiled = compile_now(lowered, text, name)
    with _LOCK:
        _LATEST[text, key] = compiled
        while len(_LATEST) > _MOST_PROGRAMS or sum(len(text) for text, _ in _LATEST) > _MOST_CHARACTERS:
            _LATEST.popitem(last=False)
    return compiled


def compile_now(lowered: Lowered, text: str, name: str) -> Compiled:
    """Compiles a lowered program, unless XLA's compiler does not survive it; arguments and errors as `compile_once`."""
    if refused := _jax_compat.waits_forever(f"The compilation of `{name}`"):
        raise InspectionError(refused)
    check_survivable(text, name)
    return _jax_compat.compile_with_own_lines(lowered)
