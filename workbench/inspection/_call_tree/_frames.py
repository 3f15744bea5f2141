"""Python frames as nodes of a tree: the user's frames, the start of the program, and the names of cells."""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from workbench.records import cell_name, package_of

_CELL = re.compile(r"/ipykernel_\d+/|^<ipython-input-\d+-")
_MODULE = re.compile(r"^([A-Z]\w*)\.__call__$")
# Layer libraries that open no name scopes; a frame of a layer is shown as the layer.
_LAYERS = (("/flax/nnx/nn/", "nnx"), ("/penzai/", "pz"))


class Frame(NamedTuple):
    """One Python frame of a traceback."""

    file: str
    function: str  # qualified name
    line: int
    column: int | None = None


@functools.lru_cache(maxsize=4096)
def layer_of(frame_file: str, function: str) -> str | None:
    """The layer whose call a library frame represents, such as `nnx.Linear`; None for other frames."""
    match = _MODULE.match(function)
    if match is None:
        return None
    return next((f"{short}.{match[1]}" for part, short in _LAYERS if part in frame_file), None)


def shown_file(file: str) -> str:
    """The displayed name of a file: `In [n]` for a notebook cell, otherwise the path.

    Example:
        >>> shown_file("<ipython-input-3-8f1c>")
        'In [3]'
    """
    if _CELL.search(file) is None:
        return file
    # A cell that runs again keeps its file name and gets another number, so names are not cached.
    return cell_name(file) or "In [ ]"  # a module from another kernel has no cell number


def trim(
    stack: tuple[Frame, ...], name: str, outer: frozenset[tuple[str, str]] = frozenset(), called: tuple[str, ...] = ()
) -> tuple[Frame, ...]:
    """The stack from the program's own function inwards, with every call listed once.

    When XLA inlines a call, it puts the caller's frames first. If the function was traced for an earlier call, the
    inlined frames may start again with the program, at a different line. In that case the outer frames have the correct
    line.

    Args:
        stack: Frames, outermost first.
        name: Name of the compiled function.
        outer: Files and functions that called the compilation, as found by `outer_frames`.
        called: Names of the jitted functions in the stack. JAX caches their jaxprs with the stack of the program that
            called them first, so only the frames inside these functions are used.

    Returns:
        The frames from the function's first frame inwards; without such a frame, all frames except the outer frames.

    Example:
        >>> outer, step = Frame("a.py", "<module>", 9), Frame("a.py", "step", 3)
        >>> [frame.function for frame in trim((outer, step, outer, step, Frame("a.py", "layer", 1)), "step")]
        ['step', 'layer']
    """
    merged: tuple[Frame, ...] = ()
    for segment in _segments(_without_repetition(stack), name, outer):
        start = next((i for i, frame in enumerate(segment) if is_named(frame, name)), None)
        if start is None and not merged:
            start = next((i for i, f in enumerate(segment) if not _is_outer(f, outer)), len(segment))
        elif start is None and _is_outer(segment[0], outer):  # a stack from another program
            start = next((i for i, frame in enumerate(segment) if frame.function.rsplit(".", 1)[-1] in called), None)
            start = len(segment) if start is None else start
        segment = segment[start or 0 :]
        depth = 0
        while depth < min(len(merged), len(segment)) and merged[depth][:2] == segment[depth][:2]:
            depth += 1
        merged += segment[depth:]
    return merged


def outer_frames(stacks: Iterable[tuple[Frame, ...]], name: str) -> frozenset[tuple[str, str]]:
    """Files and functions of the callers of a program's function, from the stacks of the program's operations."""
    callers: set[tuple[str, str]] = set()
    for stack in stacks:
        start = next((i for i, frame in enumerate(stack) if is_named(frame, name)), 0)
        callers.update(frame[:2] for frame in stack[:start])
    return frozenset(callers)


def below_outer(
    stack: tuple[Frame, ...], outer: frozenset[tuple[str, str]], home: str | None = None
) -> tuple[Frame, ...]:
    """A stack trace without the frames up to the last outer frame that precedes the user's first frame.

    Frames between two outer frames are also removed. They are not in `outer` if a nested placement enters the plan
    a second time.

    Example:
        >>> plan, phase = Frame("/site-packages/jax/a.py", "plan", 1), Frame("/site-packages/jax/a.py", "phase", 2)
        >>> stack = (plan, phase, plan, phase, Frame("a.py", "pod", 1))
        >>> [frame.function for frame in below_outer(stack, frozenset({plan[:2]}))]
        ['phase', 'pod']
    """
    above = [_is_outer(frame, outer) for frame in stack]
    users = (i for i, f in enumerate(stack) if package_of(f.file) in (None, home) and not above[i])
    entered = above[: next(users, len(stack))]
    return stack[max((index + 1 for index, is_above in enumerate(entered) if is_above), default=0) :]


def _is_outer(frame: Frame, outer: frozenset[tuple[str, str]]) -> bool:
    return frame.function == "<module>" or frame[:2] in outer


def _without_repetition(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    frames, length = list(stack), 1
    while 2 * length <= len(frames):
        start = 0
        while start + 2 * length <= len(frames):
            if frames[start] == frames[start + length] and (
                frames[start : start + length] == frames[start + length : start + 2 * length]
            ):
                del frames[start : start + length]
            else:
                start += 1
        length += 1
    return tuple(frames)


def _segments(stack: tuple[Frame, ...], name: str, outer: frozenset[tuple[str, str]]) -> list[tuple[Frame, ...]]:
    """Splits a stack into parts, each of which begins where the stack starts again."""
    starts, entered, above = [0], False, True  # above: still among the outer frames of the current part
    for index, frame in enumerate(stack):
        named, is_outer = is_named(frame, name), _is_outer(frame, outer)
        again = frame[:2] == stack[0][:2] or is_outer or (named and entered)
        if index and again and not above:
            starts.append(index)
        above = is_outer or (again and not named and above)
        entered = entered or named
    return [stack[start:end] for start, end in zip(starts, [*starts[1:], len(stack)], strict=True)]


def is_named(frame: Frame, name: str) -> bool:
    """Returns whether a frame belongs to the function with this name."""
    return frame.function.rsplit(".", 1)[-1] == name


def split_stack(stack: tuple[Frame, ...], home: str | None = None) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
    """The user's frames in a stack, and the library frames below the innermost user frame."""
    shown = [package_of(frame.file) in (None, home) for frame in stack]
    if not any(shown):
        return (), stack
    last = len(shown) - 1 - shown[::-1].index(True)
    return tuple(frame for frame, is_shown in zip(stack, shown, strict=True) if is_shown), stack[last + 1 :]


def home_of(stacks: Iterable[tuple[Frame, ...]], name: str) -> str | None:
    """The library that a program's own function belongs to; None for a user's function."""
    package = next((package_of(frame.file) for stack in stacks for frame in stack if is_named(frame, name)), None)
    return None if package in ("python", "workbench", "jax") else package
