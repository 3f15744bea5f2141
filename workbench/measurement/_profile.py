"""Device profiles, captured while a function runs."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax

from workbench._jax_compat.profiler import ProfilerBusyError, start_profile
from workbench.errors import EngineError, ProfileError
from workbench.measurement._device_events import DeviceEvent, ModuleRun, OtherEvent, first_moment, read_plane
from workbench.measurement._xplane import WireError, read_space

# JAX supports one profile at a time, so other threads wait, unless the measuring thread waits for them.
_TURN = threading.RLock()
_PATIENCE_SECONDS = 300.0
_RUNNING: "weakref.WeakSet[RunningProfile]" = weakref.WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Device activity during a function call, in time order; `result` is the function's return value."""

    events: tuple[DeviceEvent, ...]
    others: tuple[OtherEvent, ...] = ()  # device events without an instruction: copies, waiting, overlapping work
    runs: tuple[ModuleRun, ...] = ()  # whole programs, if the profile has them (TPU)
    result: object = field(default=None, repr=False, compare=False)

    def modules(self) -> dict[str, int]:
        """Number of events per HLO module."""
        counts: dict[str, int] = {}
        for event in self.events:
            counts[event.module] = counts.get(event.module, 0) + 1
        return counts

    @property
    def other_events(self) -> int:
        """Device events that have no instruction and do not overlap with other events."""
        return sum(not event.overlaps for event in self.others)


def capture_profile(fn: Callable[[], Any]) -> Profile:
    """Runs `fn` once and returns the instructions that each device executed.

    If another thread is profiling, waits up to five minutes for it to finish. If this JAX can return the profile in
    memory, nothing is written to disk. Otherwise the public profiler writes to a temporary directory, which is read and
    removed. The call blocks until the outputs of `fn` are ready.

    Args:
        fn: Function without arguments. Compile beforehand, unless compilation should be profiled.

    Returns:
        The events of all devices, and the result of `fn`. If there are no events, `fn` did not run anything on a
        device.

    Raises:
        EngineError: if another profile is being captured.

    Example:
        >>> import jax
        >>> double = jax.jit(lambda x: 2 * x).lower(1.0).compile()
        >>> profile = capture_profile(lambda: double(3.0))
        >>> float(profile.result), len(profile.events) > 0
        (6.0, True)
    """
    _let_finish()
    has_turn = _TURN.acquire(timeout=_PATIENCE_SECONDS)
    try:
        end = start_profile()
        try:
            result = jax.block_until_ready(fn())
        finally:
            spaces = end()
        return _read(spaces, result)
    except ProfilerBusyError as error:
        msg = (
            f"`capture_profile` could not start the profiler ({error}). JAX supports one profile at a time in a "
            "process: wait for the other measurement, or stop it with `jax.profiler.stop_trace()`."
        )
        raise EngineError(msg) from error
    finally:
        if has_turn:
            _TURN.release()


class RunningProfile:
    """A profile that starts without waiting, and is stopped by another thread."""

    def __init__(self) -> None:
        if _RUNNING:  # a second session starts silently, and both profiles would be lost
            raise EngineError("a profile could not start, because the previous profile has not been read yet.")
        try:
            self._end = start_profile()
        except ProfilerBusyError as error:
            msg = f"a profile could not start ({error}). JAX supports one profile at a time in a process."
            raise EngineError(msg) from error
        _RUNNING.add(self)

    def stop(self) -> Profile:
        """Ends the profile; returns all device events since its start, including those from other calls."""
        try:
            return _read(self._end(), None)
        except ProfilerBusyError as error:
            msg = f"a profile was lost ({error}). JAX supports one profile at a time in a process."
            raise EngineError(msg) from error
        finally:
            _RUNNING.discard(self)


def _let_finish() -> None:
    """Waits for earlier work to finish; otherwise, its last events would be attributed to the profiled function."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except RuntimeError:  # deleted in the meantime, or the result of a failed computation
            continue


def _read(spaces: Iterable[bytes], result: object) -> Profile:
    events: list[DeviceEvent] = []
    others: list[OtherEvent] = []
    runs: list[ModuleRun] = []
    for space in spaces:
        try:
            planes = read_space(space).planes
        except ProfileError:  # an empty profile has no plane
            continue
        moment = first_moment(planes)
        for plane in planes:
            try:
                for item in read_plane(plane, origin_ps=moment):
                    kinds = events if isinstance(item, DeviceEvent) else runs if isinstance(item, ModuleRun) else others
                    kinds.append(item)  # pyright: ignore[reportArgumentType] -- a list of jaxlib's type
            except WireError as error:
                msg = f"`capture_profile` received a profile that it cannot read: {error}. Measure again."
                raise EngineError(msg) from error
    events.sort(key=lambda event: (event.start_seconds, event.device))
    origin = events[0].start_seconds if events else 0.0
    return Profile(
        events=tuple(event._replace(start_seconds=event.start_seconds - origin) for event in events),
        others=tuple(event._replace(start_seconds=event.start_seconds - origin) for event in others),
        runs=tuple(run._replace(start_seconds=run.start_seconds - origin) for run in runs),
        result=result,
    )


def describe_others(others: Iterable[OtherEvent]) -> list[str]:
    """Describes events that are not executions of instructions, by kind, longest first.

    Example:
        >>> describe_others([OtherEvent(0, "memory copies and fills", "memcpy", 0.0, 0.5)])
        ['1 event of 0.5 s on devices: memory copies and fills.']
    """
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in others:
        seconds[event.kind] += event.seconds  # pyright: ignore[reportArgumentType] -- a Counter of floats
        counts[event.kind] += 1
    return [
        f"{counts[kind]} event{'s' if counts[kind] > 1 else ''} of {total:.4g} s on devices: {kind}."
        for kind, total in seconds.most_common()
    ]
