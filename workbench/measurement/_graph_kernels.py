"""Finds the instructions of CUDA graph kernels from kernel names and order.

Profiles do not name the instructions of these kernels. XLA launches a program's kernels in schedule order, also inside
command buffers, and names a kernel after the first fusion with the same computation. Kernels of library calls appear
between kernels with such names.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from workbench.records.compiled import InstructionRecord, ModuleRecord

GRAPH = "cuda graph "  # prefix of kernel names without a known instruction
_LIBRARY = "*"
_MOST_STARTS = 100
_SILENT = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier add-dependency "
    "domain copy copy-start copy-done async-done all-reduce-done all-gather-done collective-permute-done".split()
)
_NUMBER = re.compile(r"_\d+$")
_OTHER = re.compile(r"\W")
_Item = TypeVar("_Item")


def graph_name(device: int, graph: object, node: object) -> str:
    """Name of a kernel in a command buffer, identical in all its runs.

    Example:
        >>> graph_name(0, 26, 7)
        'cuda graph 0.26.7'
    """
    return f"{GRAPH}{device}.{graph}.{node}"


def name_kernels(kernels: Sequence[tuple[str, str]], module: ModuleRecord) -> dict[str, str]:
    """Finds the instructions of kernels in command buffers.

    Args:
        kernels: One pair per kernel of the program on one device, in the order of first execution: the instruction's
            name (or a `graph_name`), and the kernel's name. The first run may have started before the profile did.
        module: The compiled program.

    Returns:
        Names of instructions by `graph_name`. Empty if any kernel name contradicts the schedule. Consecutive library
        calls that launched several kernels each are left out.
    """
    expected = _runs(list(_launched(module)), lambda i: _word(i.name) if i.opcode == "fusion" else _LIBRARY)
    words = {word for word, _ in expected}
    calls = {instruction.name for word, run in expected for instruction in run if word == _LIBRARY}

    def word_of(kernel: tuple[str, str]) -> str:
        name = kernel[0] if not kernel[0].startswith(GRAPH) else kernel[1]
        return _word(name) if name not in calls and _word(name) in words else _LIBRARY

    first = expected[0][0] if expected else ""
    starts = [place for place, kernel in enumerate(kernels) if not is_fill(kernel[1]) and word_of(kernel) == first]
    for start in starts[:_MOST_STARTS]:
        if names := _named([*kernels[start:], *kernels[:start]], expected, calls, word_of):
            return names
    return {}


def _named(
    kernels: Sequence[tuple[str, str]], expected: Sequence[tuple[str, list[InstructionRecord]]], calls: Collection[str],
    word_of: Callable[[tuple[str, str]], str],
) -> dict[str, str]:  # fmt: skip
    """Matches all kernels to the schedule, starting at its first kernel; empty if their orders differ."""
    measured = _runs([kernel for kernel in kernels if not is_fill(kernel[1])], word_of)
    if [word for word, _ in measured] != [word for word, _ in expected]:
        return {}
    names: dict[str, str] = {}
    named = {kernel for _, kernel in kernels}
    shapes: dict[str, str] = {}  # every kernel has one output shape
    for (word, run), (_, instructions) in zip(measured, expected, strict=True):
        if len(run) == len(instructions):
            pairs = list(zip(run, instructions, strict=True))
        elif word == _LIBRARY and len(instructions) == 1:
            pairs = [(kernel, instructions[0]) for kernel in run]
        elif word == _LIBRARY:
            continue
        else:
            return {}
        for (name, kernel), instruction in pairs:
            if word != _LIBRARY and name.startswith(GRAPH):
                instruction_word = _OTHER.sub("_", instruction.name)
                is_named_otherwise = instruction_word != kernel and instruction_word in named
                if is_named_otherwise or shapes.setdefault(kernel, instruction.shape) != instruction.shape:
                    return {}
            names[name] = instruction.name
    return {name: target for name, target in (names | _fills(kernels, names, calls)).items() if name.startswith(GRAPH)}


def _runs(items: Sequence[_Item], word_of: Callable[[_Item], str]) -> list[tuple[str, list[_Item]]]:
    """Groups consecutive items with the same word."""
    return [(word, list(run)) for word, run in itertools.groupby(items, word_of)]


def _launched(module: ModuleRecord) -> Iterator[InstructionRecord]:
    """Instructions that launch a kernel, in schedule order; loop bodies appear once."""
    computations: defaultdict[str, list[InstructionRecord]] = defaultdict(list)
    called: set[str] = set()
    for instruction in module.instructions:
        if not instruction.fused:
            computations[instruction.computation].append(instruction)
            called.update(instruction.calls)

    def inside(name: str) -> Iterator[InstructionRecord]:
        for instruction in computations.get(name, ()):
            if instruction.opcode in ("while", "call", "conditional"):
                for callee in instruction.calls:
                    yield from inside(callee)
            elif instruction.opcode not in _SILENT:
                yield instruction

    for name in computations:
        if name not in called:
            yield from inside(name)


def _word(name: str) -> str:
    return _NUMBER.sub("", _OTHER.sub("_", name))


def is_fill(kernel: str) -> bool:
    """Returns whether a kernel only clears or copies memory."""
    return kernel.lower().startswith(("memset", "memcpy"))


def _fills(kernels: Sequence[tuple[str, str]], names: Mapping[str, str], calls: Collection[str]) -> dict[str, str]:
    """Finds kernels that clear memory before a library call, and the instruction of that call."""
    fills: dict[str, str] = {}
    following = ""
    for name, kernel in reversed(kernels):
        if not is_fill(kernel):
            following = names.get(name, name)
        elif following in calls and kernel.lower().startswith("memset"):
            fills[name] = following
    return fills
