"""Errors in predicted times, by program class and chip family; all reported errors come from here.

`benchmarks/predictions.py` writes the numbers, using measurements that were not used to fit rates.
`tests/measurement/test_open_profile.py` recomputes the errors for recorded profiles.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from workbench.cost._rates import Family, family_of
from workbench.cost._timeline import InstructionTime, is_compiled_elsewhere
from workbench.records.compiled import ModuleRecord
from workbench.records.hardware import ChipRecord
from workbench.render.units import share_text

_DOMINANT = 0.8  # minimum share of a module's seconds at which one instruction determines the module's class

ProgramClass = Literal[
    "matrix product", "memory", "layout", "collective", "training step", "attention", "loop", "operation of a profile"
]


class Accuracy(NamedTuple):
    """Errors `|predicted / measured - 1|` for one class of programs on one family of chips."""

    points: int
    median: float
    largest: float
    source: str


_PAGE = "measurements of docs/predictions.md"

ACCURACY: dict[tuple[Family, ProgramClass], Accuracy] = {
    ("TPU", "matrix product"): Accuracy(4, 0.03, 0.055, _PAGE),
    ("TPU", "memory"): Accuracy(4, 0.01, 0.08, _PAGE),
    ("TPU", "collective"): Accuracy(4, 0.02, 0.045, _PAGE),
    ("NVIDIA", "matrix product"): Accuracy(17, 0.042, 0.506, _PAGE),
    ("NVIDIA", "memory"): Accuracy(10, 0.075, 0.477, _PAGE),
    ("NVIDIA", "layout"): Accuracy(3, 0.099, 0.464, _PAGE),
    ("NVIDIA", "collective"): Accuracy(14, 0.028, 0.533, _PAGE),
    ("TPU", "training step"): Accuracy(5, 0.085, 0.282, _PAGE),
    ("NVIDIA", "training step"): Accuracy(3, 0.087, 0.849, _PAGE),
    ("NVIDIA", "attention"): Accuracy(1, 0.439, 0.439, _PAGE),
    ("NVIDIA", "loop"): Accuracy(1, 0.679, 0.679, _PAGE),
    ("AMD", "operation of a profile"): Accuracy(17, 0.17, 0.46, "two recordings of MI300X and one of MI355X, fitted"),
    ("NVIDIA", "operation of a profile"): Accuracy(44, 0.148, 0.743, "two recordings of one H200"),
    ("TPU", "operation of a profile"): Accuracy(2, 0.29, 0.50, "one recording of v6e, with one collective"),
}


def accuracy_of(chip: ChipRecord, kind: ProgramClass) -> Accuracy | None:
    """The error for one program class on a chip's family; None if unknown.

    A calibrated chip has no published points; `benchmarks/predictions_here.py` measures its error.

    Args:
        chip: A chip in the table.
        kind: The class.
    """
    return None if chip.rates else ACCURACY.get((family_of(chip), kind))


UNKNOWN = "error unknown"


def error_bar(chip: ChipRecord | None, kind: ProgramClass) -> str:
    """Formats the error in predicted times for a program class; "error unknown" without a chip or without points.

    Example:
        >>> from workbench.aot import known_chip
        >>> error_bar(known_chip("v5e").replace(name="unlisted"), "memory")
        'error unknown'
    """
    row = None if chip is None else accuracy_of(chip, kind)
    if chip is None or row is None:
        return UNKNOWN
    points = f"{row.points} {kind} point{'s' * (row.points != 1)} of {family_of(chip)} chips"
    return f"median error ±{100 * row.median:.0f} % over {points}, at most {100 * row.largest:.0f} %"


def error_bar_of_module(module: ModuleRecord, chip: ChipRecord, times: Mapping[str, InstructionTime]) -> str:
    """Formats the error in a compiled module's predicted time.

    If one instruction takes at least 4/5 of the time, its class determines the error; otherwise, the class is "training
    step". The error is unknown if an operation's FLOPs or time could not be counted.
    """
    is_factorised = any(i.routine is not None and not i.routine.length for i in module.instructions)
    uncounted = next((note for note in module.notes if note.endswith("not counted")), None)
    if uncounted is not None and not is_factorised:
        return f"{UNKNOWN}: {uncounted}"
    if is_compiled_elsewhere(module, chip):
        return f"{UNKNOWN}: compiled for CPU devices, priced as {chip.name}"
    if is_factorised:
        return f"{UNKNOWN}: the time of factorisations was not compared with measurements on {chip.name}"
    executions = {o.name: o.executions or 0.0 for o in (*module.instructions, *module.collectives)}
    seconds = {name: (time.seconds or 0.0) * executions.get(name, 0.0) for name, time in times.items()}
    largest = max(seconds, key=lambda name: seconds[name], default="")
    if not largest or seconds[largest] < _DOMINANT * sum(seconds.values()):
        return error_bar(chip, "training step")
    if times[largest].is_collective:
        return error_bar(chip, "collective")
    instruction = next(i for i in module.instructions if i.name == largest)
    if instruction.flops:
        return error_bar(chip, "matrix product")
    return error_bar(chip, "layout" if instruction.opcode in ("reverse", "transpose") else "memory")


def accuracy_text(chip: ChipRecord) -> str:
    """Formats the error in predicted times on this chip family as one sentence.

    Example:
        >>> from workbench.aot import known_chip
        >>> accuracy_text(known_chip("MI300X").replace(name="unlisted"))
        'The error in predicted seconds on unlisted is unknown.'
    """
    if chip.rates:
        return f"The error in predicted seconds on {chip.name} is unknown: its rates were measured, but not the error."
    family = family_of(chip)
    rows = [(kind, accuracy) for (of, kind), accuracy in ACCURACY.items() if of == family]
    if not rows:
        return f"The error in predicted seconds on {chip.name} is unknown."
    parts = [
        f"{kind} ±{share_text(a.median, 0)} (at most {share_text(a.largest, 0)}, "
        f"{a.points} point{'s' * (a.points != 1)})"
        for kind, a in rows
    ]
    return f"Errors of predicted seconds on {family} chips, median of measured points: {'; '.join(parts)}."
