"""The compiler's own memory peak, divided among the instructions whose values use the memory.

XLA plans memory as allocations: one per argument, one per result that does not alias an argument, and an arena in which
temporaries share addresses. The plan is available from the executable (`serialized_buffer_assignment_proto`).
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from workbench._jax_compat.hlo import buffer_assignment_of
from workbench.inspection.hlo._memory import Buffer
from workbench.inspection.hlo._text import Hlo, Instruction
from workbench.render.units import share_text

RESERVED = "reserved by the compiler"
_ALIGNMENT = 64  # in bytes: the gap between two buffers in an arena counts as part of the first
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class HeldAtPeak(NamedTuple):
    """A part of the peak in bytes, and the instruction whose value it stores (None if unknown)."""

    instruction: Instruction | None
    size_bytes: float


class Placed(NamedTuple):
    """A value stored in an allocation."""

    instruction: str
    offset: int
    size: int


class Allocation(NamedTuple):
    """Memory that the compiler reserves."""

    size: int
    parameter: int | None  # number of the argument, if any
    placed: tuple[Placed, ...]


def divide_peak(
    hlo: Hlo, compiled: object, stats: object | None, peak_bytes: int | None, at_peak: tuple[Buffer, ...]
) -> tuple[tuple[HeldAtPeak, ...], str]:
    """Divides the bytes of the peak among the values that are alive.

    Returns:
        Shares that add up to the compiler's peak (or, if it is unknown, to the schedule's peak), and a note that names
        the peak that was used.
    """
    alive = [HeldAtPeak(buffer.instruction, buffer.leaf.padded_bytes) for buffer in at_peak if buffer.leaf.padded_bytes]
    reached = sum(value.size_bytes for value in alive)
    if not peak_bytes:
        return tuple(alive), ("peak bytes are the sum of the values alive at the peak of the reconstructed schedule")
    allocations = _allocations(compiled, stats)
    if allocations and sum(allocation.size for allocation in allocations) == peak_bytes:
        return tuple(_planned(hlo, allocations, at_peak)), (
            "peak bytes come from the compiler; each reserved block counts as the value that it stores at the "
            "schedule's peak; a block that is empty at the peak counts as the largest value that it ever stores"
        )
    note = (
        f"memory per line is computed at the schedule's peak of {reached:,} bytes; the compiler reports a peak of "
        f"{peak_bytes:,} bytes"
    )
    if reached <= peak_bytes:
        rest = [HeldAtPeak(None, peak_bytes - reached)] if reached < peak_bytes else []
        return (*alive, *rest), f"{note}; memory reserved beyond it is a separate node"
    factor = peak_bytes / reached
    return tuple(HeldAtPeak(value.instruction, value.size_bytes * factor) for value in alive), (
        f"{note}: values share memory, so each value counts for {share_text(factor, 0)} of its bytes"
    )


def _allocations(compiled: object, stats: object | None) -> list[Allocation]:
    plan = buffer_assignment_of(compiled, stats)
    try:
        return [] if plan is None else list(read_allocations(*plan))
    except (ValueError, TypeError):  # messages from another XLA version, so fall back to the schedule
        return []


def read_allocations(assignment: bytes, module: bytes) -> Iterator[Allocation]:
    """The memory used by one call, from a `BufferAssignmentProto` and its `HloModuleProto`.

    Constants and per-thread memory are not counted, as in the compiler's own totals.
    """
    values: dict[int, tuple[int, int]] = {}  # id of a value -> id of its instruction, and its size
    allocations: list[dict[int, list[Any]]] = []
    for number, value in fields(assignment):
        if number == 1:
            entry = dict(fields(value))
            values[entry.get(1, 0)] = dict(fields(entry.get(3, b""))).get(4, 0), entry.get(2, 0)
        elif number == 3:
            allocation: dict[int, list[Any]] = {}
            for key, content in fields(value):
                allocation.setdefault(key, []).append(content)
            if not any(allocation.get(flag) for flag in (3, 12)):  # per thread, constant
                allocations.append(allocation)
    names = _names(module, {instruction for instruction, _ in values.values()})
    for allocation in allocations:
        placed = []
        for content in allocation.get(9, ()):
            entry = dict(fields(content))
            instruction, size = values.get(entry.get(1, 0), (0, 0))
            if instruction in names:
                placed.append(Placed(names[instruction], entry.get(2, 0), entry.get(3, size)))
        parameter = allocation.get(6, [0])[0] if allocation.get(5) else None
        yield Allocation(allocation.get(2, [0])[0], parameter, tuple(placed))


def _names(module: bytes, instructions: set[int]) -> dict[int, str]:
    computations, names = {instruction >> 32 for instruction in instructions}, {}
    for number, computation in fields(module):
        if number != 3:
            continue
        parts = list(fields(computation))
        if next((value for key, value in parts if key == 5), 0) not in computations:
            continue
        for key, instruction in parts:
            if key != 2:
                continue
            name = b""
            for field, value in fields(instruction):
                if field == 1:
                    name = value
                elif field == 35:
                    names[value] = name.decode()
                    break
    return names


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a protobuf message."""
    index, end = 0, len(message)
    while index < end:
        key, index = _varint(message, index)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, index = _varint(message, index)
            yield number, value
            continue
        if kind == _BYTES:
            size, index = _varint(message, index)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, end)
        if index + size > end:
            fact = "a message is truncated"
            raise ValueError(fact)
        yield number, message[index : index + size]
        index += size


def _varint(message: bytes, index: int) -> tuple[int, int]:
    value = shift = 0
    while index < len(message):
        byte = message[index]
        value |= (byte & 0x7F) << shift
        index, shift = index + 1, shift + 7
        if byte < 0x80:
            return value, index
    fact = "a number is truncated"
    raise ValueError(fact)


def _planned(hlo: Hlo, allocations: Iterable[Allocation], at_peak: tuple[Buffer, ...]) -> Iterator[HeldAtPeak]:
    by_name = {i.name: i for c in hlo.computations.values() for i in c.instructions}
    parameters = hlo.entry.parameters
    alive = {buffer.instruction.name for buffer in at_peak}
    for allocation in allocations:
        if allocation.parameter is not None:
            yield HeldAtPeak(parameters.get(allocation.parameter), allocation.size)
            continue
        sums: dict[str | None, int] = {}
        for name, size in _addresses(allocation, alive):
            sums[name] = sums.get(name, 0) + size
        for name, size in sums.items():
            yield HeldAtPeak(by_name.get(name) if name else None, size)


def _addresses(allocation: Allocation, alive: set[str]) -> Iterator[tuple[str | None, int]]:
    """Owner of each part of an allocation: a live value, or otherwise the largest value stored there."""
    starting = sorted(allocation.placed, key=lambda placed: placed.offset)
    bounds = {0, allocation.size}
    for placed in starting:
        bounds.update((placed.offset, min(placed.offset + placed.size, allocation.size)))
    edges, here, following, last = sorted(bounds), [], 0, None
    for low, high in itertools.pairwise(edges):
        while following < len(starting) and starting[following].offset <= low:
            placed = starting[following]
            heapq.heappush(here, (placed.instruction not in alive, -placed.size, following, placed))
            following += 1
        while here and here[0][3].offset + here[0][3].size <= low:
            heapq.heappop(here)
        if here:
            last = here[0][3].instruction
            yield last, high - low
        else:
            yield last if high - low < _ALIGNMENT else None, high - low
