"""Adapts modules from the CPU compiler so that they can be priced as accelerator modules.

Two properties of XLA's CPU compiler would distort the ranking of shardings. The CPU compiler keeps an all-reduce whose
result is sliced on every device, where other compilers emit a reduce-scatter. The CPU compiler also sums 16-bit numbers
as float32.
"""

import re
from collections import defaultdict

from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord

_PASSED = {"bitcast", "copy", "reshape", "transpose", "get-tuple-element", "tuple"}
_PROMOTED = re.compile(r"%?([\w.\-]+) = .*\ball-reduce(?:-start)?\(.*to_apply=%?[\w.\-]*_promoted")


def as_accelerator(module: ModuleRecord) -> ModuleRecord:
    """The module, with its all-reduces replaced by the collectives that an accelerator's compiler would emit."""
    users: dict[str, list[InstructionRecord]] = defaultdict(list)
    for instruction in module.instructions:
        for operand in instruction.operands:
            users[operand].append(instruction)
    promoted = promoted_sums(module)
    changed = tuple(_changed(collective, users, promoted) for collective in module.collectives)
    return module.replace(collectives=changed)


def promoted_sums(module: ModuleRecord) -> set[str]:
    """The all-reduces of 16-bit numbers that the CPU compiler has changed to float32."""
    return {match[1] for line in module.text.splitlines() if (match := _PROMOTED.search(line))}


def _changed(
    collective: CollectiveRecord, users: dict[str, list[InstructionRecord]], promoted: set[str]
) -> CollectiveRecord:
    if collective.kind != "all-reduce":
        return collective
    if collective.name in promoted:
        wire_bytes = None if collective.wire_bytes is None else collective.wire_bytes / 2
        collective = collective.replace(payload_bytes=collective.payload_bytes // 2, wire_bytes=wire_bytes)
    if _is_sliced(collective.name, users):
        wire_bytes = None if collective.wire_bytes is None else collective.wire_bytes / 2
        collective = collective.replace(kind="reduce-scatter", wire_bytes=wire_bytes)
    return collective


def _is_sliced(name: str, users: dict[str, list[InstructionRecord]]) -> bool:
    """Returns whether all users of a value read only a slice of it."""
    readers, seen, waiting = [], set(), [name]
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.name not in seen:
                seen.add(user.name)
                (waiting.append(user.name) if user.opcode in _PASSED else readers.append(user))
    return bool(readers) and all(user.opcode == "dynamic-slice" or "dynamic-slice" in user.name for user in readers)
