"""Adapts modules from the CPU compiler so that they can be priced as accelerator modules.

Two properties of XLA's CPU compiler would distort the ranking of shardings. It keeps an all-reduce whose result is
sliced on every device, where other compilers emit a reduce-scatter. It also sums 16-bit numbers as float32.
"""

import re
from collections import defaultdict

from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord

_PASSED = {"bitcast", "copy", "reshape", "transpose", "get-tuple-element", "tuple"}
_PROMOTED = re.compile(r"%?([\w.\-]+) = .*\ball-reduce(?:-start)?\(.*to_apply=%?[\w.\-]*_promoted")


def as_accelerator(module: ModuleRecord) -> ModuleRecord:
    """The module, with its all-reduces replaced by the collectives that an accelerator's compiler would emit.

    Args:
        module: A module from the CPU compiler.

    Returns:
        The module with different collectives; its text, memory and other fields are unchanged.
    """
    users: dict[str, list[InstructionRecord]] = defaultdict(list)
    for each in module.instructions:
        for operand in each.operands:
            users[operand].append(each)
    promoted = promoted_sums(module)
    changed = tuple(_changed(each, users, promoted) for each in module.collectives)
    return module.replace(collectives=changed)


def promoted_sums(module: ModuleRecord) -> set[str]:
    """The all-reduces of 16-bit numbers that the CPU compiler has changed to float32."""
    return {found[1] for line in module.text.splitlines() if (found := _PROMOTED.search(line))}


def _changed(each: CollectiveRecord, users: dict[str, list[InstructionRecord]], promoted: set[str]) -> CollectiveRecord:
    if each.kind != "all-reduce":
        return each
    if each.name in promoted:
        sent = None if each.wire_bytes is None else each.wire_bytes / 2
        each = each.replace(payload_bytes=each.payload_bytes // 2, wire_bytes=sent)
    if _is_sliced(each.name, users):
        sent = None if each.wire_bytes is None else each.wire_bytes / 2
        each = each.replace(kind="reduce-scatter", wire_bytes=sent)
    return each


def _is_sliced(name: str, users: dict[str, list[InstructionRecord]]) -> bool:
    """Returns whether all users of a value read only a slice of it."""
    found, seen, waiting = [], set(), [name]
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user.name not in seen:
                seen.add(user.name)
                (waiting.append(user.name) if user.opcode in _PASSED else found.append(user))
    return bool(found) and all(user.opcode == "dynamic-slice" or "dynamic-slice" in user.name for user in found)
