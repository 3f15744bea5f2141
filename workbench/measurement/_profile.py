"""A profile of the devices, captured while a function runs."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax

from workbench._jax_compat.profiler import (
    ProfilerBusyError,
    profile_in_memory,
    profile_through_directory,
    start_profile,
)
from workbench.errors import EngineError, ProfileError
from workbench.measurement._device_events import DeviceEvent, ModuleRun, OtherEvent, first_moment, read_plane
from workbench.measurement._xplane import WireError, read_space

# JAX profiles one thing at a time: other threads wait, unless the one that measures waits for them.
_TURN = threading.RLock()
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Activity of the devices while a function ran, in order of time. `result` is the function's result."""

    events: tuple[DeviceEvent, ...]
    source: Literal["memory", "directory"]
    others: tuple[OtherEvent, ...] = ()  # on devices, without an instruction: copies, waiting, what overlaps
    runs: tuple[ModuleRun, ...] = ()  # whole programs, where the profile has them (TPU)
    result: object = field(default=None, repr=False, compare=False)

    def modules(self) -> dict[str, int]:
        """Number of events of every HLO module that ran."""
        counts: dict[str, int] = {}
        for event in self.events:
            counts[event.module] = counts.get(event.module, 0) + 1
        return counts

    @property
    def other_events(self) -> int:
        """Events on devices that take time of their own and name no instruction."""
        return sum(not event.overlaps for event in self.others)


def capture_profile(fn: Callable[[], Any], *, through: Literal["memory", "directory"] | None = None) -> Profile:
    """Runs `fn` once and returns what every device did meanwhile, instruction by instruction.

    A second thread waits up to five minutes for the first.
    Nothing is written to the disk where this JAX can hand the profile over in memory; elsewhere the public profiler
    writes to a temporary directory, which is read back and removed. The outputs of `fn` are waited for.

    Args:
        fn: What to run, without arguments. Compile beforehand what should not be profiled.
        through: Force one of the two ways; None takes the one in memory if this JAX has it.

    Returns:
        The events of all devices, and the result of `fn`. No events: `fn` ran nothing on a device.

    Raises:
        EngineError: another profile is being captured, or `through="memory"` cannot be had.

    Example:
        >>> import jax
        >>> double = jax.jit(lambda x: 2 * x).lower(1.0).compile()
        >>> profile = capture_profile(lambda: double(3.0))
        >>> float(profile.result), len(profile.events) > 0
        (6.0, True)
    """

    def run() -> object:
        return jax.block_until_ready(fn())

    _let_finish()
    has_turn = _TURN.acquire(timeout=_PATIENCE_SECONDS)
    try:
        captured = profile_in_memory(run) if through != "directory" else None
        if captured is not None:
            return _read([captured[1]], captured[0], "memory")
        if through != "memory":
            result, files = profile_through_directory(run)
            return _read(files, result, "directory")
    except ProfilerBusyError as error:
        msg = (
            f"`capture_profile` could not start the profiler ({error}). JAX profiles one thing at a time in a process: "
            "wait for the other measurement, or stop it with `jax.profiler.stop_trace()`."
        )
        raise EngineError(msg) from error
    finally:
        if has_turn:
            _TURN.release()
    msg = (
        f"`capture_profile` was given through='memory', but JAX {jax.__version__} has no profiler session that "
        "returns its data in memory. Leave `through` out, or use through='directory'."
    )
    raise EngineError(msg)


class RunningProfile:
    """A profile that began now and ends in another thread; nothing is waited for at its beginning.

    Raises:
        EngineError: another profile is being captured.
    """

    def __init__(self) -> None:
        try:
            self._end = start_profile()
        except ProfilerBusyError as error:
            msg = f"a profile could not begin ({error}). JAX profiles one thing at a time in a process."
            raise EngineError(msg) from error

    def stop(self) -> Profile:
        """The events of all devices since the beginning, those of earlier and later calls included."""
        try:
            return _read(self._end(), None, "memory")
        except ProfilerBusyError as error:
            msg = f"a profile was lost ({error}). JAX profiles one thing at a time in a process."
            raise EngineError(msg) from error


def _let_finish() -> None:
    """Waits for what was started before, whose last events would be taken for those of the profiled function."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except RuntimeError:  # deleted meanwhile, or the result of a computation that failed
            continue


def _read(spaces: Iterable[bytes], result: object, source: Literal["memory", "directory"]) -> Profile:
    events: list[DeviceEvent] = []
    others: list[OtherEvent] = []
    runs: list[ModuleRun] = []
    for space in spaces:
        try:
            planes = read_space(space).planes
        except ProfileError:  # a profile of nothing holds no plane
            continue
        moment = first_moment(planes)
        for plane in planes:
            try:
                for found in read_plane(plane, origin_ps=moment):
                    kinds = (
                        events if isinstance(found, DeviceEvent) else runs if isinstance(found, ModuleRun) else others
                    )
                    kinds.append(found)  # pyright: ignore[reportArgumentType] -- the list of its own type
            except WireError as error:
                msg = f"`capture_profile` received a profile that it cannot read: {error}. Measure once more."
                raise EngineError(msg) from error
    events.sort(key=lambda event: (event.start_seconds, event.device))
    origin = events[0].start_seconds if events else 0.0
    return Profile(
        events=tuple(event._replace(start_seconds=event.start_seconds - origin) for event in events),
        source=source,
        others=tuple(event._replace(start_seconds=event.start_seconds - origin) for event in others),
        runs=tuple(run._replace(start_seconds=run.start_seconds - origin) for run in runs),
        result=result,
    )


def describe_others(others: Iterable[OtherEvent]) -> list[str]:
    """One sentence per kind of event that is no execution of an instruction, most seconds first.

    Args:
        others: Of all devices.

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
