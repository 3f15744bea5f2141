"""A profile of the devices, captured while a function runs."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax

from workbench._jax_compat.profiler import ProfilerBusyError, RawEvent, profile_in_memory, profile_through_directory
from workbench.errors import EngineError

_DEVICE_PLANE = re.compile(r"/device:[A-Za-z]+:(\d+)")


class DeviceEvent(NamedTuple):
    """One execution of one HLO instruction on one device, seconds from the first event of the profile."""

    device: int
    name: str  # the HLO instruction
    module: str
    run: int | None
    start_seconds: float
    seconds: float

    @property
    def end_seconds(self) -> float:
        """When it was over."""
        return self.start_seconds + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the devices did while a function ran, in order of time. `result` is what the function returned."""

    events: tuple[DeviceEvent, ...]
    source: Literal["memory", "directory"]
    other_events: int = 0  # on planes of devices, without the name of an instruction
    result: Any = field(default=None, repr=False, compare=False)

    def modules(self) -> dict[str, int]:
        """Number of events of every HLO module that ran."""
        counts: dict[str, int] = {}
        for event in self.events:
            counts[event.module] = counts.get(event.module, 0) + 1
        return counts


def capture_profile(fn: Callable[[], Any], *, through: Literal["memory", "directory"] | None = None) -> Profile:
    """Runs `fn` once and returns what every device did meanwhile, instruction by instruction.

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

    def run() -> Any:
        return jax.block_until_ready(fn())

    _let_finish()
    try:
        captured = profile_in_memory(run) if through != "directory" else None
        if captured is not None:
            return _read(captured[1], captured[0], "memory")
        if through != "memory":
            result, raw = profile_through_directory(run)
            return _read(raw, result, "directory")
    except ProfilerBusyError as error:
        msg = (
            f"`capture_profile` could not start the profiler ({error}). JAX profiles one thing at a time in a process: "
            "wait for the other measurement, or stop it with `jax.profiler.stop_trace()`."
        )
        raise EngineError(msg) from error
    msg = (
        f"`capture_profile` was given through='memory', but JAX {jax.__version__} has no profiler session that hands "
        "its data over in memory. Leave `through` out, or use through='directory'."
    )
    raise EngineError(msg)


def _let_finish() -> None:
    """Waits for what was started before, whose last events would be taken for those of the profiled function."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except RuntimeError:  # deleted meanwhile, or the result of a computation that failed
            continue


def _read(raw: Iterable[RawEvent], result: Any, source: Literal["memory", "directory"]) -> Profile:
    found, others = [], 0
    for event in raw:
        device = _device_of(event)
        if device is None:
            continue
        if "hlo_op" in event.stats:
            found.append((event.start_nanoseconds, device, event))
        elif _DEVICE_PLANE.match(event.plane):  # the CPU's devices are threads of the host, with events of their own
            others += 1
    found.sort(key=lambda item: (item[0], item[1]))
    origin = found[0][0] if found else 0.0
    events = tuple(
        DeviceEvent(
            device=device,
            name=str(event.stats["hlo_op"]),
            module=str(event.stats.get("hlo_module", "")),
            run=event.stats.get("run_id"),
            start_seconds=(start - origin) * 1e-9,
            seconds=event.nanoseconds * 1e-9,
        )
        for start, device, event in found
    )
    return Profile(events=events, source=source, other_events=others, result=result)


def _device_of(event: RawEvent) -> int | None:
    ordinal = event.stats.get("device_ordinal")
    if ordinal is not None:
        return int(ordinal)
    plane = _DEVICE_PLANE.match(event.plane)
    return int(plane[1]) if plane else None
