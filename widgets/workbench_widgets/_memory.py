"""The memory view: live bytes over the schedule, the buffers at the peak, and whether they fit."""

from workbench import render
from workbench.records.compiled import MemoryRecord, ProgramRecord
from workbench.render import GLOSSARY
from workbench.render.units import bytes_text, source_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._memory_tree import buffer_tree
from workbench_widgets.states import MemoryState

SAME = 0.005  # peaks that differ by less than this share count as equal


class MemoryView(WorkbenchWidget):
    """Live view of one device's memory: bytes in use over the schedule, and the buffers at the peak.

    Args:
        record: The program; the view is empty without a compiled module.
    """

    view_name = "memory"

    def __init__(self, record: ProgramRecord, **values: object) -> None:
        self.record = record
        self._subject = None if record.module is None else record.module.memory
        data, arrays = memory_state(record)
        label = f"{record.name}: {data['sentence']}"
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=label, **values)


def memory_state(record: ProgramRecord) -> tuple[MemoryState, Arrays]:
    memory = MemoryRecord() if record.module is None else record.module.memory
    instructions = {i.name: i for i in record.module.instructions} if record.module is not None else {}
    parameters = {name for name, instruction in instructions.items() if instruction.opcode == "parameter"}
    places = [instructions[name].source if name in instructions else None for name, _ in memory.timeline]
    chip = record.cost.chip if record.cost is not None else None
    state: MemoryState = {
        "drawn": str(render.svg(memory, live=True)),
        "facts": _facts(memory),
        "peak": memory.peak_bytes,
        "capacity": memory.within(chip).available_bytes,
        "capacity_of": "the device" if memory.available_bytes is not None or chip is None else chip.name,
        "moments": [name if name in instructions else "" for name, _ in memory.timeline],
        "keys": ["" if place is None else f"{place.file}:{place.line}" for place in places],
        "places": ["" if place is None else source_text(place.file, place.line) for place in places],
        "buffers": buffer_tree(memory.largest, parameters),
        "notes": _notes(memory),
        "sentence": render.describe(memory),
    }
    return state, {"memory.live": floats([size for _, size in memory.timeline])}


def _facts(memory: MemoryRecord) -> list[tuple[str, str]]:
    rows = [
        ["peak memory", memory.peak_bytes],
        ["arguments", memory.argument_bytes],
        ["outputs", memory.output_bytes],
        ["temporaries", memory.temporary_bytes],
        ["shared by inputs and outputs", memory.alias_bytes or None],
        ["available", memory.available_bytes],
    ]
    shown = [(str(name), bytes_text(value)) for name, value in rows if isinstance(value, int)]
    if memory.padding_bytes:
        shown.append(("layout padding", f"{bytes_text(memory.padding_bytes)} of the buffers alive at the peak"))
    return shown


def _notes(memory: MemoryRecord) -> list[str]:
    """The record's notes, plus a sentence if the curve's peak differs from the compiler's."""
    peaks = _two_peaks(memory)
    return [*peaks, *(note for note in memory.notes if not peaks or not note.startswith("the timeline reaches"))]


def _two_peaks(memory: MemoryRecord) -> list[str]:
    """Returns the reason why the curve's peak differs from the compiler's, if it does."""
    alive = max((size for _, size in memory.timeline), default=0)
    if not alive or not memory.peak_bytes or abs(alive / memory.peak_bytes - 1) < SAME:
        return []
    return [
        f"Two peaks: the compiler reports {bytes_text(memory.peak_bytes)} (the memory that it assigns), while the "
        f"values alive at any one moment of the schedule add up to at most {bytes_text(alive)}. The peaks differ "
        "because buffers are shared, rounded up, or counted in only one of them. The compiler's peak decides whether "
        "the program fits."
    ]
