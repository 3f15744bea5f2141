"""The program view: stages as a picture, and a panel for the selected stage or client."""

from typing import Any

from workbench import render
from workbench.records.compiled import ProgramRecord
from workbench.render import GLOSSARY, StageDetails, note, program_blocks, stage_details
from workbench.render.units import bytes_text, seconds_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, clients_state
from workbench_widgets._headline import work_per_device
from workbench_widgets._source import read_source
from workbench_widgets.states import ClientsState, ProgramPicture, ProgramState

WIDTH, NARROW_WIDTH = 620, 500


class ProgramView(WorkbenchWidget):
    """Live view of a program's stages, with details of the selected stage or client.

    Args:
        record: The program.
        gradient: A second program to show next to the first, for example its `jax.grad`.
    """

    view_name = "program"

    def __init__(self, record: ProgramRecord, gradient: ProgramRecord | None = None, **values: Any) -> None:
        self.record: ProgramRecord = record
        self._subject = record
        self.gradient: ProgramRecord | None = gradient
        data, arrays = program_state(record, gradient)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=render.describe(record), **values)

    def text(self) -> str:
        """The stages as indented lines."""
        both = [self.record] if self.gradient is None else [self.record, self.gradient]
        return "\n\n".join(render.text(record) for record in both)


def program_state(
    record: ProgramRecord, gradient: ProgramRecord | None = None, clients: tuple[ClientsState, Arrays] | None = None
) -> tuple[ProgramState, Arrays]:
    """State of the program view; `clients` is `clients_state(record)`, if already computed."""
    pictures: list[ProgramPicture] = []
    stages: dict[str, StageDetails] = {}
    lines: dict[str, str] = {}
    records = {"": record} if gradient is None else {"": record, "gradient/": gradient}
    for prefix, program in records.items():
        width = WIDTH if gradient is None else NARROW_WIDTH
        svg = str(render.svg(program, width=width, live=True))
        name = f"gradient: {program.name}" if prefix else program.name
        pictures.append({"svg": svg, "width": width, "name": name, "prefix": prefix})
        stages |= {prefix + path: detail for path, detail in stage_details(program, read_source).items()}
        sources = {prefix + stage.path: stage.source for stage in program.plan.walk()}
        lines |= {path: f"{source.file}:{source.line}" for path, source in sources.items() if source is not None}
    columns, arrays = clients_state(record) if clients is None else clients
    state: ProgramState = {
        "pictures": pictures,
        "stages": stages,
        "lines": lines,
        "clients": columns,
        "overview": overview(record),
    }
    return state, arrays


def overview(record: ProgramRecord) -> StageDetails:
    """The panel shown without a selection: the whole program."""
    stages = list(record.plan.walk())
    rows = [("target", record.target)]
    rows += [("stages", str(len(stages)))] if record.plan.placements else []
    rows += [(f"placement {p.name}", f"{p.size:,}{_over(p.mesh_axes)}") for p in record.plan.placements]
    if record.mesh is not None:
        axes = " × ".join(f"{axis.name} {axis.size:,}" for axis in record.mesh.axes)
        rows.append(("mesh", f"{axes}{' (abstract: no devices)' if record.mesh.abstract else ''}"))
    if record.plan.chunk_size is not None:
        rows.append(("chunk size", f"{record.plan.chunk_size:,} per device"))
    if record.module is not None:
        rows.append(("FLOPs per device", f"{work_per_device(record).replace(' per device', '')} (predicted)"))
        if record.module.memory.peak_bytes is not None:
            rows.append(("peak memory", f"{bytes_text(record.module.memory.peak_bytes)} per device"))
    if record.cost is not None and record.cost.seconds is not None:
        chip = f" on {record.cost.chip.name}" if record.cost.chip is not None else ""
        rows.append(
            ("time of one call", f"{seconds_text(record.cost.seconds)}{chip} (predicted, {record.cost.error_bar})")
        )
    parts = "a stage or a client" if record.plan.placements else "the stage"
    notes = [*record.plan.notes, *record.notes, *(record.module.notes if record.module is not None else ())]
    blocks = [
        *program_blocks(record, rows),
        *([note("Notes", " ".join(notes))] if notes else []),
        note("Look closer", f"Select {parts} in the picture: with the mouse, or with the arrow keys and Enter."),
    ]
    return {"title": record.name, "kind": "program", "subtitle": "the whole program", "blocks": blocks}


def _over(axes: tuple[str, ...]) -> str:
    return f" over mesh axis {' × '.join(axes)}" if axes else ", on every device"
