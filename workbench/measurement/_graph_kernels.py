"""Kernels of CUDA graphs, which a profile gives no instruction: found by their names and their order.

XLA launches the kernels of a program in the order of its schedule, also where a command buffer holds them, and names a
kernel after the first fusion with the same computation. Calls of libraries have their place between such names.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from workbench.records.compiled import InstructionRecord, ModuleRecord

GRAPH = "cuda graph "  # how the name of a kernel begins until its instruction is found
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
    """Name of a kernel in a command buffer, equal in all runs of it.

    Args:
        device: Its number.
        graph: Number of the CUDA graph.
        node: Number of the kernel in it.

    Example:
        >>> graph_name(0, 26, 7)
        'cuda graph 0.26.7'
    """
    return f"{GRAPH}{device}.{graph}.{node}"


def name_kernels(kernels: Sequence[tuple[str, str]], module: ModuleRecord) -> dict[str, str]:
    """The instructions of kernels in command buffers.

    Args:
        kernels: Each kernel of the program on one device once, in the order in which they first ran: the name of the
            instruction, or one of `graph_name`, and the name of the kernel. The first run may have begun before.
        module: The compiled program.

    Returns:
        Names of instructions by `graph_name`. Empty where names and schedule do not agree from the first kernel to the
        last; without the calls of libraries in a row that launched more kernels than they are.
    """
    expected = _runs(list(_launched(module)), lambda each: _word(each.name) if each.opcode == "fusion" else _LIBRARY)
    known = {word for word, _ in expected}
    calls = {each.name for word, run in expected for each in run if word == _LIBRARY}

    def word_of(kernel: tuple[str, str]) -> str:
        name = kernel[0] if not kernel[0].startswith(GRAPH) else kernel[1]
        return _word(name) if name not in calls and _word(name) in known else _LIBRARY

    first = expected[0][0] if expected else ""
    starts = [place for place, kernel in enumerate(kernels) if not is_fill(kernel[1]) and word_of(kernel) == first]
    for start in [0, *starts[:_MOST_STARTS]]:
        if found := _named([*kernels[start:], *kernels[:start]], expected, calls, word_of):
            return found
    return {}


def _named(
    kernels: Sequence[tuple[str, str]], expected: Sequence[tuple[str, list[InstructionRecord]]], calls: Collection[str],
    word_of: Callable[[tuple[str, str]], str],
) -> dict[str, str]:  # fmt: skip
    """The instructions of kernels whose first is the schedule's first; nothing where the words differ."""
    measured = _runs([kernel for kernel in kernels if not is_fill(kernel[1])], word_of)
    if [word for word, _ in measured] != [word for word, _ in expected]:
        return {}
    names: dict[str, str] = {}
    named = {kernel for _, kernel in kernels}
    shapes: dict[str, str] = {}  # one kernel makes one shape
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
                own = _OTHER.sub("_", instruction.name)
                is_named_otherwise = own != kernel and own in named
                if is_named_otherwise or shapes.setdefault(kernel, instruction.shape) != instruction.shape:
                    return {}
            names[name] = instruction.name
    return {name: each for name, each in (names | _fills(kernels, names, calls)).items() if name.startswith(GRAPH)}


def _runs(items: Sequence[_Item], word_of: Callable[[_Item], str]) -> list[tuple[str, list[_Item]]]:
    """The items by their words, those in a row together."""
    return [(word, list(run)) for word, run in itertools.groupby(items, word_of)]


def _launched(module: ModuleRecord) -> Iterator[InstructionRecord]:
    """Instructions that launch a kernel, in the order of the schedule; a loop's once."""
    computations: defaultdict[str, list[InstructionRecord]] = defaultdict(list)
    called: set[str] = set()
    for each in module.instructions:
        if not each.fused:
            computations[each.computation].append(each)
            called.update(each.calls)

    def inside(name: str) -> Iterator[InstructionRecord]:
        for each in computations.get(name, ()):
            if each.opcode in ("while", "call", "conditional"):
                for callee in each.calls:
                    yield from inside(callee)
            elif each.opcode not in _SILENT:
                yield each

    for name in computations:
        if name not in called:
            yield from inside(name)


def _word(name: str) -> str:
    return _NUMBER.sub("", _OTHER.sub("_", name))


def is_fill(kernel: str) -> bool:
    """Returns whether a kernel only clears or copies memory."""
    return kernel.lower().startswith(("memset", "memcpy"))


def _fills(kernels: Sequence[tuple[str, str]], names: Mapping[str, str], calls: Collection[str]) -> dict[str, str]:
    """Kernels that clear memory before a call of a library, with the instruction of the call."""
    found: dict[str, str] = {}
    following = ""
    for name, kernel in reversed(kernels):
        if not is_fill(kernel):
            following = names.get(name, name)
        elif following in calls and kernel.lower().startswith("memset"):
            found[name] = following
    return found
