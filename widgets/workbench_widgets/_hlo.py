"""The HLO view: the user's source, StableHLO and the compiled module, linked by line."""

import re
from collections.abc import Iterable, Mapping, Sequence

from workbench.records import package_of, read_source_line, read_source_lines
from workbench.records.compiled import CollectiveRecord, InstructionRecord, ModuleRecord, ProgramRecord
from workbench.records.program import SourceLine
from workbench.render import GLOSSARY
from workbench.render.units import axes_text, bytes_text, count_text, counted_text, source_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets._clients_state import Arrays, floats
from workbench_widgets._headline import CollectiveGroup, group_collectives, work_per_device
from workbench_widgets._scopes import GroupTree, kind_of, read_call_groups, read_edges, read_scopes
from workbench_widgets._stablehlo import read_stablehlo
from workbench_widgets.states import HloCollective, HloCollectiveGroup, HloGraph, HloState

KINDS = ("server", "broadcast", "clients", "reduce", "loop", "branch", "program", "", "collective")
MOST_LINES = 20_000  # of StableHLO
MOST_FILE_LINES = 3_000
_METADATA = re.compile(r",? ?(?:metadata|backend_config|origin)=(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\"[^\"]*\")")
AROUND = 2  # lines of source shown around the line of an instruction
_MOVES = frozenset(("bitcast", "convert", "copy", "copy-done", "copy-start", "get-tuple-element", "transpose"))
_MOST_ARGUMENTS = 3
_File = tuple[str, str, list[tuple[int, str]]]  # path, title, numbered lines


class HloView(WorkbenchWidget):
    """Live view of a compiled module: a searchable list or graph, linked to source and StableHLO.

    Args:
        record: The program; the view is empty without a compiled module or StableHLO text.
    """

    view_name = "hlo"

    def __init__(self, record: ProgramRecord, **values: object) -> None:
        self.record, self._subject = record, record.module
        data, arrays = hlo_state(record)
        super().__init__(data={**data, "glossary": GLOSSARY}, arrays=arrays, label=data["sentence"], **values)

    def text(self) -> str:
        """Summarizes the module in one line, followed by its collectives."""
        module = self.record.module
        lines = [self.label + "."]
        for collective in module.collectives if module is not None else ():
            places = ", ".join(source_text(s.file, s.line) for s in collective.sources) or "unknown lines"
            lines.append(
                f"  {collective.name} over {axes_text(collective.axes)}: {bytes_text(collective.payload_bytes)} from "
                f"{places}"
            )
        return "\n".join(lines)


def hlo_state(record: ProgramRecord, *, can_explain: bool = False) -> tuple[HloState, Arrays]:
    """State of the HLO view, with long texts as single strings and most other data as numbers."""
    module = record.module
    instructions = module.instructions if module is not None else ()
    source_keys = {_key(instruction.source) for instruction in instructions} - {None}
    listing = read_stablehlo(record.stablehlo, source_keys)[:MOST_LINES]
    sources = sorted({key for key in source_keys | {key for _, key in listing} if key is not None})
    place = {key: index for index, key in enumerate(sources)}
    stages = sorted(
        {i.stage or "" for i in instructions}, key=lambda path: [int(p) for p in path.split(".") if p.isdigit()]
    )
    opcodes = sorted({instruction.opcode for instruction in instructions})
    computations = list(dict.fromkeys(instruction.computation for instruction in instructions))
    joint = module.collectives if module is not None else ()
    by_name = {instruction.name: instruction for instruction in instructions}
    collectives = {collective.name: i for i, collective in enumerate(joint)}
    order = [{name: i for i, name in enumerate(names)} for names in (stages, opcodes, computations)]
    arrays = {
        "hlo.opcode": floats([order[1][instruction.opcode] for instruction in instructions]),
        "hlo.stage": floats([order[0][instruction.stage or ""] for instruction in instructions]),
        "hlo.computation": floats([order[2][instruction.computation] for instruction in instructions]),
        "hlo.source": floats([_place(instruction.source, place) for instruction in instructions]),
        "hlo.size": floats([instruction.size_bytes for instruction in instructions]),
        "hlo.flops": floats([instruction.flops for instruction in instructions]),
        "hlo.elementwise": floats([instruction.elementwise_flops for instruction in instructions]),
        "hlo.accessed": floats([instruction.accessed_bytes for instruction in instructions]),
        "hlo.executions": floats([instruction.executions for instruction in instructions]),
        "hlo.collective": floats([collectives.get(instruction.name, -1) for instruction in instructions]),
        "hlo.stable": floats([-1 if key is None else place[key] for _, key in listing]),
    }
    graph, graph_arrays = _graph(instructions, collectives, record)
    state: HloState = {
        "count": len(instructions),
        "names": "\n".join(instruction.name for instruction in instructions),
        "shapes": "\n".join(instruction.shape for instruction in instructions),
        "operands": "\n".join(", ".join(instruction.operands) for instruction in instructions),
        "op_names": [instruction.op_name for instruction in instructions],
        "opcodes": opcodes,
        "stages": stages,
        "computations": computations,
        "sources": [(file, line, source_text(file, line)) for file, line in sources],
        "collectives": [
            _collective(collective, arguments_of(collective.name, by_name), staged=len([*filter(None, stages)]) > 1)
            for collective in joint
        ],
        "groups": [_group(group, collectives) for group in group_collectives(joint, record.call_tree)],
        "axes": sorted({axis for collective in joint for axis in collective.axes}),
        "stable": "\n".join(line for line, _ in listing),
        "compiled": _listing(module),
        "code": _code(sources),
        "graph": graph,
        "sentence": _sentence(record),
        "facts": work_per_device(record),
        "missing": "This record contains neither a compiled module nor StableHLO. Inspect the program to compile it.",
        "can_explain": can_explain,
    }
    return state, arrays | graph_arrays


def _sentence(record: ProgramRecord) -> str:
    module = record.module
    if module is None:
        return f"{record.name} is not compiled"
    devices = counted_text(module.devices, f"{module.platform} device")
    instructions = counted_text(len(module.instructions), "instruction")
    collectives = counted_text(len(module.collectives), "collective")
    return f"{module.name} on {devices}: {instructions}, {collectives}, {work_per_device(record)}"


def _participants(collective: CollectiveRecord) -> str:
    if collective.kind == "collective-permute":
        return f"{counted_text(collective.groups, 'sender')}, each to one receiver"
    return f"{counted_text(collective.groups, 'group')} of {count_text(collective.group_size)}"


def arguments_of(name: str, instructions: Mapping[str, InstructionRecord]) -> list[str]:
    """The arguments from which a collective's operand is computed; they distinguish the layers of a Python list.

    Empty for collectives that the compiler combined, because few of their operands come from an argument directly.
    """
    producers = _producers(name, instructions)
    if len(producers) != 1:
        return []
    inputs = [producers[0], *_producers(producers[0].name, instructions)]
    paths = [i.op_name for i in inputs if i.opcode == "parameter"]
    return list(dict.fromkeys(path for path in paths if path and "/" not in path))


def _producers(name: str, instructions: Mapping[str, InstructionRecord]) -> list[InstructionRecord]:
    """The instructions that compute the operands of an instruction; copies and the like are skipped."""
    producers: list[InstructionRecord] = []
    for operand in instructions[name].operands if name in instructions else ():
        if operand in instructions and instructions[operand].opcode in _MOVES:
            producers += _producers(operand, instructions)
        elif operand in instructions:
            producers.append(instructions[operand])
    return producers


def _collective(collective: CollectiveRecord, arguments: Sequence[str], *, staged: bool) -> HloCollective:
    more = f" and {len(arguments) - _MOST_ARGUMENTS} more" if len(arguments) > _MOST_ARGUMENTS else ""
    rows: list[tuple[str, str]] = [
        ("mesh axis", axes_text(collective.axes)),
        ("devices", _participants(collective)),
        ("payload", f"{bytes_text(collective.payload_bytes)} per device"),
        *([("computed from", ", ".join(arguments[:_MOST_ARGUMENTS]) + more)] if arguments else []),
        ("sent", f"{bytes_text(collective.wire_bytes)} by one device in one execution"),
        ("executions", "unknown" if collective.executions is None else count_text(collective.executions)),
        *([("stages", ", ".join(collective.stages) or "unknown")] if staged else []),
        ("source", ", ".join(source_text(s.file, s.line) for s in collective.sources) or "unknown"),
    ]
    return {
        "name": collective.name,
        "axis_names": list(collective.axes),
        "axes": axes_text(collective.axes),
        "payload": collective.payload_bytes,
        "times": collective.executions,
        "sent": collective.sent_bytes,
        "stages": list(collective.stages),
        "lines": _lines(collective.sources),
        "rows": rows,
    }


def _group(group: CollectiveGroup, number: dict[str, int]) -> HloCollectiveGroup:
    """Groups of collectives of one kind, over the same axes, from the same lines."""
    return {
        "kind": group.kind,
        "axes": axes_text(group.axes),
        "axis_names": list(group.axes),
        "places": group.places,
        "lines": _lines(group.lines),
        "payload": max(member.payload_bytes for member in group.members),
        "sent": group.sent_bytes,
        "times": group.executions,
        "members": [number[member.name] for member in group.members],
        "stages": sorted({stage for member in group.members for stage in member.stages}),
    }


def _lines(sources: Sequence[SourceLine]) -> list[tuple[str, str, str]]:
    return [(f"{s.file}:{s.line}", source_text(s.file, s.line), _code_at(s)) for s in sources]


def _code_at(source: SourceLine) -> str:
    return read_source_line(source.file, source.line).strip()


def _place(source: SourceLine | None, place: dict[tuple[str, int], int]) -> int:
    key = _key(source)
    return -1 if key is None else place[key]


def _key(source: SourceLine | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)


def _code(sources: Iterable[tuple[str, int]]) -> list[_File]:
    """The user's files that contain compiled lines, each with its name and, if readable, all its lines.

    Long files and libraries are reduced to the lines around compiled lines.
    """
    lines_by_file: dict[str, set[int]] = {}
    for file, line in sources:
        lines_by_file.setdefault(file, set()).add(line)
    return [row for file, numbers in lines_by_file.items() if (row := _file(file, numbers)) is not None]


def _file(file: str, used: set[int]) -> _File | None:
    text_lines = read_source_lines(file)
    title = source_text(file, min(used)).rpartition(":")[0]
    if text_lines and len(text_lines) <= MOST_FILE_LINES and package_of(file) is None:
        return file, title, list(enumerate(text_lines, 1))
    around = sorted({near for line in used for near in range(max(1, line - AROUND), line + AROUND + 1)})
    lines = [(number, read_source_line(file, number)) for number in around]
    return (file, title, lines) if any(text for _, text in lines) else None


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
    instructions: Sequence[InstructionRecord], collectives: dict[str, int], record: ProgramRecord
) -> tuple[HloGraph | None, Arrays]:
    """The groups of the graph (by call tree, and by stages and scopes), and the edges between instructions."""
    if not instructions:
        return None, {}
    trees: dict[str, GroupTree] = {}
    if record.call_tree is not None and record.call_tree.made_from == "compiled":
        trees["calls"] = read_call_groups(instructions, record.call_tree)
    trees["scopes"] = read_scopes(instructions, record.plan)
    kinds = ["collective" if instruction.name in collectives else kind_of(instruction) for instruction in instructions]
    arrays = {
        "hlo.edges": floats(read_edges(instructions).ravel()),
        "hlo.kind": floats([_kind(kind) for kind in kinds]),
    }
    arrays |= {f"hlo.parent.{name}": floats(tree.parent) for name, tree in trees.items()}
    groups = {
        name: [(group.title, group.instruction, _kind(group.kind), group.node, group.key) for group in tree.groups]
        for name, tree in trees.items()
    }
    return {"groups": groups, "kinds": list(KINDS)}, arrays


def _kind(kind: str) -> int:
    return KINDS.index(kind if kind in KINDS else "")
