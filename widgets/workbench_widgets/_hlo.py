"""The HLO view: the user's source, StableHLO and the compiled module, linked by line."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import workbench
from workbench.records import (
    CollectiveRecord,
    InstructionRecord,
    ModuleRecord,
    PlanRecord,
    ProgramRecord,
    SourceLine,
    read_source_line,
)
from workbench.render import (
    GLOSSARY,
    Markup,
    axes_text,
    bytes_text,
    count_text,
    describe_memory,
    flops_text,
    render_hlo_svg,
    source_text,
)
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._scopes import kind_of, read_scopes
from workbench_widgets._stablehlo import read_stablehlo

KINDS = ("server", "broadcast", "clients", "reduce", "loop", "branch", "", "collective")
MOST_LINES = 20_000  # of StableHLO
HIDDEN = (f"{Path(workbench.__file__).parent}/", "/site-packages/", "/dist-packages/")  # not the user's own code
AROUND = 2  # lines of source shown around one that became an instruction


class HloView(WorkbenchWidget):
    """A compiled module, live: a list or a graph, searched, filtered, folded, linked to source and StableHLO.

    Args:
        record: The program; it needs a compiled module or StableHLO text to have something to show.
    """

    module_name = "hlo.js"

    def __init__(self, record: ProgramRecord, **values: Any) -> None:
        self.record = record
        data, arrays = hlo_state(record)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=data["sentence"], **values)

    def static_svg(self) -> Markup | None:
        """The collectives by the bytes that they send, the work of every stage, memory over the schedule."""
        return None if self.record.module is None else render_hlo_svg(self.record.module)

    def text(self) -> str:
        """The module in one line, its collectives below."""
        module = self.record.module
        lines = [self.label + "."]
        for each in module.collectives if module is not None else ():
            places = ", ".join(source_text(s.file, s.line) for s in each.sources) or "unknown lines"
            lines.append(f"  {each.name} over {axes_text(each.axes)}: {bytes_text(each.payload_bytes)} from {places}")
        return "\n".join(lines)


def hlo_state(record: ProgramRecord) -> tuple[dict[str, Any], Arrays]:
    """What the HLO view draws: names and shapes as three long texts, everything else as numbers."""
    module = record.module
    found = module.instructions if module is not None else ()
    known = {_key(each.source) for each in found} - {None}
    listing = read_stablehlo(record.stablehlo, known, hidden=HIDDEN)[:MOST_LINES]
    sources = sorted({key for key in known | {key for _, key in listing} if key is not None})
    place = {key: index for index, key in enumerate(sources)}
    stages = sorted(
        {each.stage or "" for each in found}, key=lambda path: [int(p) for p in path.split(".") if p.isdigit()]
    )
    opcodes = sorted({each.opcode for each in found})
    computations = list(dict.fromkeys(each.computation for each in found))
    collectives = {each.name: i for i, each in enumerate(module.collectives)} if module is not None else {}
    order = [{name: i for i, name in enumerate(names)} for names in (stages, opcodes, computations)]
    arrays = {
        "hlo.opcode": floats([order[1][each.opcode] for each in found]),
        "hlo.stage": floats([order[0][each.stage or ""] for each in found]),
        "hlo.computation": floats([order[2][each.computation] for each in found]),
        "hlo.source": floats([_place(each.source, place) for each in found]),
        "hlo.size": floats([each.size_bytes for each in found]),
        "hlo.flops": floats([each.flops for each in found]),
        "hlo.accessed": floats([each.accessed_bytes for each in found]),
        "hlo.executions": floats([float("nan") if each.executions is None else each.executions for each in found]),
        "hlo.collective": floats([collectives.get(each.name, -1) for each in found]),
        "hlo.stable": floats([-1 if key is None else place[key] for _, key in listing]),
    }
    graph, graph_arrays = _graph(found, collectives, record.plan)
    memory, memory_arrays = _memory(module, found)
    state = {
        "count": len(found),
        "names": "\n".join(each.name for each in found),
        "shapes": "\n".join(each.shape for each in found),
        "operands": "\n".join(", ".join(each.operands) for each in found),
        "op_names": [each.op_name for each in found],
        "opcodes": opcodes,
        "stages": stages,
        "computations": computations,
        "sources": [[file, line, source_text(file, line)] for file, line in sources],
        "collectives": [_collective(each) for each in (module.collectives if module is not None else ())],
        "axes": sorted({axis for each in (module.collectives if module is not None else ()) for axis in each.axes}),
        "stable": [line for line, _ in listing],
        "code": _code(sources),
        "graph": graph,
        "memory": memory,
        "sentence": _sentence(module, record.name),
        "facts": _facts(module),
        "missing": "This record holds neither a compiled module nor StableHLO: inspect the program to compile it.",
    }
    return state, arrays | graph_arrays | memory_arrays


def _sentence(module: ModuleRecord | None, name: str) -> str:
    if module is None:
        return f"{name} is not compiled"
    return (
        f"{module.name} on {count_text(module.devices)} {module.platform} devices: "
        f"{_counted(len(module.instructions), 'instruction')}, {_counted(len(module.collectives), 'collective')}, "
        f"{_facts(module)}"
    )


def _facts(module: ModuleRecord | None) -> str:
    if module is None:
        return ""
    known = f"{module.attributed_instructions:.0%} of the instructions know their stage"
    return f"{flops_text(module.flops)} per device; {known}"


def _collective(each: CollectiveRecord) -> dict[str, Any]:
    """What is said of a collective, and its rank: the bytes that one device sends for it in one call."""
    rows = [
        ["mesh axis", axes_text(each.axes)],
        ["devices", f"{count_text(each.groups)} groups of {count_text(each.group_size)}"],
        ["payload", f"{bytes_text(each.payload_bytes)} per device"],
        ["wire", f"{bytes_text(each.wire_bytes)} sent by one device"],
        ["executions", "unknown" if each.executions is None else count_text(each.executions)],
        ["stages", ", ".join(each.stages) or "unknown"],
        ["source", ", ".join(source_text(s.file, s.line) for s in each.sources) or "unknown"],
    ]
    return {
        "name": each.name,
        "kind": each.kind,
        "axes": axes_text(each.axes),
        "axis_names": list(each.axes),
        "payload": bytes_text(each.payload_bytes),
        "executions": "unknown" if each.executions is None else count_text(each.executions),
        "sent": (each.payload_bytes if each.wire_bytes is None else each.wire_bytes) * (each.executions or 1),
        "stages": list(each.stages),
        "lines": [[f"{s.file}:{s.line}", source_text(s.file, s.line), _code_at(s)] for s in each.sources],
        "rows": rows,
    }


def _code_at(source: SourceLine) -> str:
    return read_source_line(source.file, source.line).strip()


def _place(source: SourceLine | None, place: dict[tuple[str, int], int]) -> int:
    key = _key(source)
    return -1 if key is None else place[key]


def _key(source: SourceLine | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)


def _code(sources: Iterable[tuple[str, int]]) -> list[list[Any]]:
    """The lines around every place that became an instruction, file by file."""
    wanted: dict[str, set[int]] = {}
    for file, line in sources:
        wanted.setdefault(file, set()).update(range(max(1, line - AROUND), line + AROUND + 1))
    code = []
    for file, numbers in wanted.items():
        lines = [[number, read_source_line(file, number)] for number in sorted(numbers)]
        known = [[number, text] for number, text in lines if text or number in numbers]
        if any(text for _, text in known):
            code.append([file, known])
    return code


def _graph(
    found: Sequence[InstructionRecord], collectives: dict[str, int], plan: PlanRecord
) -> tuple[dict[str, Any] | None, Arrays]:
    """The groups of the graph, and where everything stands inside its group."""
    if not found:
        return None, {}
    tree = read_scopes(found, plan)
    kinds = [group.kind for group in tree.groups]
    kinds += ["collective" if each.name in collectives else kind_of(each) for each in found]
    arrays = {
        "hlo.parent": floats(tree.parent),
        "hlo.place": floats(tree.places.ravel()),
        "hlo.edges": floats(tree.edges.ravel()),
        "hlo.kind": floats([KINDS.index(kind if kind in KINDS else "") for kind in kinds]),
    }
    return {"groups": [[group.title, group.instruction] for group in tree.groups], "kinds": KINDS}, arrays


def _memory(module: ModuleRecord | None, found: Sequence[InstructionRecord]) -> tuple[dict[str, Any] | None, Arrays]:
    """Live bytes over the schedule, and the buffers alive at the peak."""
    if module is None or len(module.memory.timeline) < 2:
        return None, {}
    number = {each.name: i for i, each in enumerate(found)}
    arrays = {
        "hlo.live": floats([size for _, size in module.memory.timeline]),
        "hlo.moment": floats([number.get(name, -1) for name, _ in module.memory.timeline]),
    }
    buffers = [
        [each.name, bytes_text(each.size_bytes), each.shape, _place_text(each.source), each.op_name]
        for each in module.memory.largest
    ]
    return {"sentence": describe_memory(module.memory), "buffers": buffers, "notes": list(module.memory.notes)}, arrays


def _place_text(source: SourceLine | None) -> str:
    return "" if source is None else source_text(source.file, source.line)


def _counted(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"
