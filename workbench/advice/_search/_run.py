"""Runs compiled programs in an interleaved order, and computes intervals for their medians."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workbench._types import Argument, Device
from workbench.advice._search._groups import Spec
from workbench.errors import EngineError
from workbench.inspection import TracedCall, inspect_module
from workbench.measurement import caller_of, free_bytes
from workbench.plan import ChunkSize

_FEWEST, _MOST = 8, 40  # minimum number of calls of each program
_SECONDS = 2.0  # seconds for all calls, after the minimum number of calls
_MISSED = 0.05  # probability that the interval misses the median


class Runnable(NamedTuple):
    """A compiled program with its arguments, which may be given as shapes."""

    compiled: jax.stages.Compiled
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument] = {}


class Interval(NamedTuple):
    """A median and its distribution-free 95 % interval."""

    median: float
    low: float
    high: float


def median_interval(values: Sequence[float]) -> Interval:
    """Computes the median and its distribution-free 95 % interval; the full range for fewer than 9 values.

    Example:
        >>> median_interval([3.0, 1.0, 2.0])
        Interval(median=2.0, low=1.0, high=3.0)
    """
    ordered, count = sorted(values), len(values)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    outside, rank = 2 * 0.5**count, 0  # probability that the median is outside the values of this rank
    while rank + 1 < count // 2:
        more = outside + 2 * math.comb(count, rank + 1) * 0.5**count
        if more > _MISSED:
            break
        outside, rank = more, rank + 1
    return Interval(middle, ordered[rank], ordered[count - 1 - rank])


def run_interleaved(programs: Sequence[Runnable], cancel: threading.Event | None = None) -> list[list[float]]:
    """Runs programs in turn and returns the wall time of every call except the first, in seconds."""
    _require_memory(programs)
    calls = [_caller(program) for program in programs]
    walls: list[list[float]] = [[] for _ in programs]
    for call in calls:
        call([])
    while len(walls[0]) < _FEWEST or (len(walls[0]) < _MOST and sum(map(sum, walls)) < _SECONDS):
        if cancel is not None and cancel.is_set():
            break
        forth = len(walls[0]) % 2 == 0
        for call, samples in list(zip(calls, walls, strict=True))[:: 1 if forth else -1]:
            call(samples)
    if not walls[0]:
        message = (
            "The measurement was stopped before all programs had run. A gain needs measurements of all programs: "
            "start the measurement again."
        )
        raise EngineError(message)
    return walls


def with_specs(call: TracedCall, mesh: Mesh, specs: Mapping[str, Spec], chunk_size: ChunkSize) -> Runnable:
    """Compiles a traced call with its arguments sharded on a mesh."""
    if call.kwargs:
        message = (
            f"`{call.name}` has keyword arguments, whose shardings `jax.jit` does not accept: pass these arguments "
            "by position."
        )
        raise EngineError(message)

    def sharding(name: str, leaf: Any) -> NamedSharding:
        original = getattr(leaf, "sharding", None)
        if name in specs:
            return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in specs[name])))
        return NamedSharding(mesh, original.spec if isinstance(original, NamedSharding) else PartitionSpec())

    leaves, tree = jax.tree.flatten(call.args)
    shardings = [sharding(name, leaf) for name, leaf in zip(call.names, leaves, strict=True)]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in map(_as_array, leaves)]
    with jax.set_mesh(mesh):
        jitted = call.under(mesh).jitted(chunk_size, shardings=False, in_shardings=tree.unflatten(shardings))
        compiled = jitted.lower(*tree.unflatten(shapes)).compile()
    return Runnable(compiled, call.args)


def _as_array(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") else jax.numpy.asarray(leaf)


def _caller(program: Runnable) -> Any:
    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), leaf.shape) if leaf.shape else jax.random.key(0)
        return jax.numpy.zeros(leaf.shape, leaf.dtype)

    args, kwargs = jax.tree.map(zeros, (program.args, dict(program.kwargs)))
    return caller_of(program.compiled, args, inspect_module(program.compiled), kwargs)


def _require_memory(programs: Sequence[Runnable]) -> None:
    """Raises an error unless there is free memory for all programs' arguments and for running one program."""
    devices: set[Device] = set()
    arguments, running = 0, 0
    for program in programs:
        devices |= {
            device for sharding in jax.tree.leaves(program.compiled.input_shardings) for device in sharding.device_set
        }
        memory = program.compiled.memory_analysis()
        if memory is None:
            return
        arguments += memory.argument_size_in_bytes
        running = max(running, memory.output_size_in_bytes + memory.temp_size_in_bytes)
    free = free_bytes(sorted(devices, key=lambda device: device.id))
    if free is not None and arguments + running > free:
        message = (
            f"Running the programs needs {(arguments + running) / 2**20:,.0f} MiB on each device, but only "
            f"{free / 2**20:,.0f} MiB are free. Delete arrays that are not needed, or measure smaller arguments."
        )
        raise EngineError(message)
