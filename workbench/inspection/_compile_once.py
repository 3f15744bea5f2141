"""Cache of the latest compilations, so that a second inspection does not recompile."""

import collections
import threading

from jax.stages import Compiled, Lowered

from workbench import _jax_compat
from workbench.errors import InspectionError
from workbench.inspection._compile_apart import check_survivable

_MOST_PROGRAMS = 8
_MOST_CHARACTERS = 16 << 20  # bytes of StableHLO for all programs together; executables are about as large

_LATEST: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_LOCK = threading.Lock()


def compile_once(lowered: Lowered, text: str, name: str) -> Compiled:
    """Compiles a lowered program, or returns the result cached in this process for an identical program.

    Every inspection traces the function again, because values captured by the function may have changed. Identical
    StableHLO compiles to the same program on identical devices. The key includes source lines, even the lines of the
    inspecting call. For a library function these are the only lines, and a cached program must not show the lines of
    another cell.

    Args:
        lowered: The program.
        text: The program's StableHLO with locations, `lowered.as_text(debug_info=True)`.
        name: The user's name for the program, used in errors.

    Returns:
        The compiled program. Programs with callbacks are compiled every time, because their text does not identify the
        callback.

    Raises:
        InspectionError: if XLA's compiler aborts on the program.
    """
    key = _jax_compat.compilation_key(lowered)
    if key is None or len(text) > _MOST_CHARACTERS:
        return compile_now(lowered, text, name)
    with _LOCK:
        program = _LATEST.get((text, key))
        if program is not None:
            _LATEST.move_to_end((text, key))
            return program
    compiled = compile_now(lowered, text, name)
    with _LOCK:
        _LATEST[text, key] = compiled
        while len(_LATEST) > _MOST_PROGRAMS or sum(len(text) for text, _ in _LATEST) > _MOST_CHARACTERS:
            _LATEST.popitem(last=False)
    return compiled


def compile_now(lowered: Lowered, text: str, name: str) -> Compiled:
    """Compiles a lowered program unless XLA aborts on it; see `compile_once` for arguments and errors."""
    if refused := _jax_compat.waits_forever(f"The compilation of `{name}`"):
        raise InspectionError(refused)
    check_survivable(text, name)
    return _jax_compat.compile_with_own_lines(lowered)
