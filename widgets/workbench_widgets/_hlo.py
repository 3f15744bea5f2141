"""The HLO view: the user's source, StableHLO and the compiled module, linked by line."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from workbench import render
from workbench.records import package_of, read_source_line, read_source_lines
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord, ProgramRecord
from workbench.records.program import SourceLine
from workbench.render import GLOSSARY, Markup
from workbench.render.units import axes_text, bytes_text, count_text, source_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._headline import CollectiveGroup, group_collectives, sent_by, work_per_device
from workbench_widgets._scopes import GroupTree, kind_of, read_call_groups, read_edges, read_scopes
from workbench_widgets._stablehlo import read_stablehlo

KINDS = ("server", "broadcast", "clients", "reduce", "loop", "branch", "program", "", "collective")
MOST_LINES = 20_000  # of StableHLO
MOST_FILE_LINES = 3_000
_METADATA = re.compile(r",? ?(?:metadata|backend_config|origin)=(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\"[^\"]*\")")
AROUND = 2  # lines of source shown around the line of an instruction


class HloView(WorkbenchWidget):
    """Live view of a compiled module: a searchable list or graph, linked to source and StableHLO.

    Args:
        record: The program; the view is empty without a compiled module or StableHLO text.
    """

    view_name = "hlo"

    def __init__(self, record: ProgramRecord, **values: object) -> None:
        self.record = record
        data, arrays = hlo_state(record)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=data["sentence"], **values)

    def static_svg(self) -> Markup | None:
        """Collectives by bytes sent, the work of every stage, and memory over the schedule."""
        return None if self.record.module is None else render.svg(self.record.module)

    def text(self) -> str:
        """Summarizes the module in one line, followed by its collectives."""
        module = self.record.module
        lines = [self.label + "."]
        for each in module.collectives if module is not None else ():
            places = ", ".join(source_text(s.file, s.line) for s in each.sources) or "unknown lines"
            lines.append(f"  {each.name} over {axes_text(each.axes)}: {bytes_text(each.payload_bytes)} from {places}")
        return "\n".join(lines)


def hlo_state(record: ProgramRecord) -> tuple[dict[str, Any], Arrays]:
    """State of the HLO view: names and shapes as three long strings, all other data as numbers."""
    module = record.module
    found = module.instructions if module is not None else ()
    known = {_key(each.source) for each in found} - {None}
    listing = read_stablehlo(record.stablehlo, known)[:MOST_LINES]
    sources = sorted({key for key in known | {key for _, key in listing} if key is not None})
    place = {key: index for index, key in enumerate(sources)}
    stages = sorted(
        {each.stage or "" for each in found}, key=lambda path: [int(p) for p in path.split(".") if p.isdigit()]
    )
    opcodes = sorted({each.opcode for each in found})
    computations = list(dict.fromkeys(each.computation for each in found))
    joint = module.collectives if module is not None else ()
    collectives = {each.name: i for i, each in enumerate(joint)}
    order = [{name: i for i, name in enumerate(names)} for names in (stages, opcodes, computations)]
    arrays = {
        "hlo.opcode": floats([order[1][each.opcode] for each in found]),
        "hlo.stage": floats([order[0][each.stage or ""] for each in found]),
        "hlo.computation": floats([order[2][each.computation] for each in found]),
        "hlo.source": floats([_place(each.source, place) for each in found]),
        "hlo.size": floats([each.size_bytes for each in found]),
        "hlo.flops": floats([each.flops for each in found]),
        "hlo.elementwise": floats([each.elementwise_flops for each in found]),
        "hlo.accessed": floats([each.accessed_bytes for each in found]),
        "hlo.executions": floats([float("nan") if each.executions is None else each.executions for each in found]),
        "hlo.collective": floats([collectives.get(each.name, -1) for each in found]),
        "hlo.stable": floats([-1 if key is None else place[key] for _, key in listing]),
    }
    graph, graph_arrays = _graph(found, collectives, record)
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
        "collectives": [_collective(each, staged=len([*filter(None, stages)]) > 1) for each in joint],
        "groups": [_group(each, collectives) for each in group_collectives(joint, record.call_tree)],
        "axes": sorted({axis for each in joint for axis in each.axes}),
        "stable": "\n".join(line for line, _ in listing),
        "compiled": _listing(module),
        "code": _code(sources),
        "graph": graph,
        "sentence": _sentence(record),
        "facts": work_per_device(record),
        "missing": "This record contains neither a compiled module nor StableHLO. Inspect the program to compile it.",
    }
    return state, arrays | graph_arrays


def _sentence(record: ProgramRecord) -> str:
    module = record.module
    if module is None:
        return f"{record.name} is not compiled"
    return (
        f"{module.name} on {_counted(module.devices, f'{module.platform} device')}: "
        f"{_counted(len(module.instructions), 'instruction')}, {_counted(len(module.collectives), 'collective')}, "
        f"{work_per_device(record)}"
    )


def _participants(each: CollectiveRecord) -> str:
    if each.kind == "collective-permute":
        return f"{_counted(each.groups, 'sender')}, each to one receiver"
    return f"{_counted(each.groups, 'group')} of {count_text(each.group_size)}"


def _collective(each: CollectiveRecord, *, staged: bool) -> dict[str, Any]:
    """Facts about a collective."""
    rows = [
        ["mesh axis", axes_text(each.axes)],
        ["devices", _participants(each)],
        ["payload", f"{bytes_text(each.payload_bytes)} per device"],
        ["sent", f"{bytes_text(each.wire_bytes)} by one device in one execution"],
        ["executions", "unknown" if each.executions is None else count_text(each.executions)],
        *([["stages", ", ".join(each.stages) or "unknown"]] if staged else []),
        ["source", ", ".join(source_text(s.file, s.line) for s in each.sources) or "unknown"],
    ]
    return {
        "name": each.name,
        "axis_names": list(each.axes),
        "axes": axes_text(each.axes),
        "payload": each.payload_bytes,
        "times": each.executions,
        "sent": sent_by(each),
        "stages": list(each.stages),
        "rows": rows,
    }


def _group(group: CollectiveGroup, number: dict[str, int]) -> dict[str, Any]:
    """Groups of collectives of one kind, over the same axes, from the same lines."""
    return {
        "kind": group.kind,
        "axes": axes_text(group.axes),
        "axis_names": list(group.axes),
        "places": group.places,
        "lines": [[f"{s.file}:{s.line}", source_text(s.file, s.line), _code_at(s)] for s in group.lines],
        "payload": max(each.payload_bytes for each in group.members),
        "sent": group.sent_bytes,
        "times": group.executions,
        "members": [number[each.name] for each in group.members],
        "stages": sorted({stage for each in group.members for stage in each.stages}),
    }


def _code_at(source: SourceLine) -> str:
    return read_source_line(source.file, source.line).strip()


def _place(source: SourceLine | None, place: dict[tuple[str, int], int]) -> int:
    key = _key(source)
    return -1 if key is None else place[key]


def _key(source: SourceLine | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)


def _code(sources: Iterable[tuple[str, int]]) -> list[list[Any]]:
    """The user's files that contain compiled lines: their names and, if readable, all their lines.

    Long files and libraries are reduced to the lines around compiled lines.
    """
    wanted: dict[str, set[int]] = {}
    for file, line in sources:
        wanted.setdefault(file, set()).add(line)
    return [made for file, numbers in wanted.items() if (made := _file(file, numbers)) is not None]


def _file(file: str, used: set[int]) -> list[Any] | None:
    whole = read_source_lines(file)
    title = source_text(file, min(used)).rpartition(":")[0]
    if whole and len(whole) <= MOST_FILE_LINES and package_of(file) is None:
        return [file, title, [[number, text] for number, text in enumerate(whole, 1)]]
    around = sorted({near for line in used for near in range(max(1, line - AROUND), line + AROUND + 1)})
    lines = [[number, read_source_line(file, number)] for number in around]
    return [file, title, lines] if any(text for _, text in lines) else None


def _listing(module: ModuleRecord | None) -> str:
    """The compiled module as text, without the source locations and metadata that the view shows elsewhere."""
    if module is None:
        return ""
    shown, tables = [], False
    for line in module.text.splitlines():
        tables = (tables or line == "FileNames") and not line.startswith(("%", "ENTRY"))  # of files, lines and frames
        if not tables:
            shown.append(_METADATA.sub("", line))
    lines = shown[:MOST_LINES]
    return "\n".join(lines)


def _graph(
    found: Sequence[InstructionRecord], collectives: dict[str, int], record: ProgramRecord
) -> tuple[dict[str, Any] | None, Arrays]:
    """The groups of the graph (by call tree, and by stages and scopes), and the edges between instructions."""
    if not found:
        return None, {}
    trees: dict[str, GroupTree] = {}
    if record.call_tree is not None and record.call_tree.made_from == "compiled":
        trees["calls"] = read_call_groups(found, record.call_tree)
    trees["scopes"] = read_scopes(found, record.plan)
    kinds = ["collective" if each.name in collectives else kind_of(each) for each in found]
    arrays = {"hlo.edges": floats(read_edges(found).ravel()), "hlo.kind": floats([_kind(kind) for kind in kinds])}
    arrays |= {f"hlo.parent.{name}": floats(tree.parent) for name, tree in trees.items()}
    groups = {
        name: [[each.title, each.instruction, _kind(each.kind), each.node, each.key] for each in tree.groups]
        for name, tree in trees.items()
    }
    return {"groups": groups, "kinds": KINDS}, arrays


def _kind(kind: str) -> int:
    return KINDS.index(kind if kind in KINDS else "")


def _counted(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"
