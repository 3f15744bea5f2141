"""The player: a round of a program with its actual values, and its collectives step by step."""

import functools
from typing import ClassVar

from workbench.records.compiled import CollectiveRecord, ProgramRecord
from workbench.records.hardware import MeshRecord
from workbench.records.run import PlayedStageRecord, PlayRecord
from workbench.render import GLOSSARY
from workbench.render.units import bytes_text, source_text, sources_text
from workbench_widgets._base import WorkbenchWidget
from workbench_widgets.states import PlayedCollective, PlayedRound, PlayedStage, PlayerState

MOST_COLLECTIVES = 24  # maximum number of collectives in the menu, largest first
MOST_DEVICES = 16  # maximum size of a group whose messages are drawn


class PlayerView(WorkbenchWidget):
    """A round, step by step: broadcasts, client steps and results.

    Args:
        play: A round from `workbench.engines.play`; None to play only a program's collectives.
        program: The compiled program, whose collectives can be played on its mesh.
        first: The kind of collective to open first, such as "all-gather"; by default, the largest one.
    """

    view_name = "player"
    requests: ClassVar[dict[str, str]] = {"player_page": "page"}

    def __init__(
        self, play: PlayRecord | None, program: ProgramRecord | None = None, *, first: str = "", **values: object
    ) -> None:
        self.play = play
        data = {**player_state(play, program, first=first), "glossary": GLOSSARY}
        super().__init__(data=data, label=f"{data['title']}, played step by step", **values)

    def page(self) -> str:
        """The player as one HTML page."""
        return self.to_html()

    def text(self) -> str:
        stages = () if self.play is None else self.play.stages
        return "\n".join([self.label, *(f"  {stage.path} {stage.kind}: {_words(stage)}" for stage in stages)])


def _words(stage: PlayedStageRecord) -> str:
    text = stage.name if stage.clients == 1 else f"{stage.name}, {stage.clients:,} clients"
    return text + (f", {bytes_text(stage.moved_bytes)} sent" if stage.moved_bytes else "")


def player_state(
    play: PlayRecord | None, program: ProgramRecord | None = None, *, first: str = "", can_play: bool = False
) -> PlayerState:
    """State of the player: stages with values, the clients' paths, and collectives with their devices."""
    collectives = [] if program is None else _collectives(program, first)
    named = play.name if play is not None else program.name if program is not None else "nothing"
    return {
        "title": named,
        "played": None if play is None else _played(play),
        "collectives": collectives,
        "notes": [] if play is None else list(play.notes),
        "can_play": can_play,
    }


def _played(play: PlayRecord) -> PlayedRound:
    return {
        "name": play.name,
        "stages": [_stage(stage) for stage in play.stages],
        "courses": [{"name": course.name, "values": [list(row) for row in course.values]} for course in play.courses],
        "pictured": list(play.pictured_clients),
        "clients": max((stage.clients for stage in play.stages), default=1),
    }


def _stage(stage: PlayedStageRecord) -> PlayedStage:
    return {
        "path": stage.path,
        "kind": stage.kind,
        "name": stage.name,
        "clients": stage.clients,
        "moved_bytes": stage.moved_bytes,
        "line": None if stage.source is None else source_text(stage.source.file, stage.source.line),
        "values": [
            {
                "name": value.name,
                "shape": list(value.shape),
                "dtype": value.dtype,
                "size_bytes": value.size_bytes,
                "norms": list(value.norms),
                "distances": list(value.distances),
                "picture": list(value.picture),
                "picture_shape": list(value.picture_shape),
            }
            for value in stage.values
        ],
    }


def _collectives(program: ProgramRecord, first: str) -> list[PlayedCollective]:
    if program.module is None:
        return []
    collectives = [
        collective for collective in program.module.collectives if 1 < len(_members(collective)) <= MOST_DEVICES
    ]
    in_order = sorted(collectives, key=lambda c: (c.kind != first, -c.payload_bytes * (c.executions or 1)))
    return [_collective(collective, program.mesh) for collective in in_order[:MOST_COLLECTIVES]]


def _collective(collective: CollectiveRecord, mesh: MeshRecord | None) -> PlayedCollective:
    axes = " and ".join(collective.axes)
    members = _members(collective)
    over = f" over {axes}" if axes else ""
    return {
        "label": f"{collective.kind} of {bytes_text(collective.payload_bytes)}{over}",
        "kind": collective.kind,
        "axes": axes,
        "payload_bytes": collective.payload_bytes,
        "devices": _devices(collective, mesh),
        "groups": len(_chains(collective.pairs)) if collective.pairs else collective.groups,
        "pairs": [
            (members.index(sender), members.index(receiver))
            for sender, receiver in collective.pairs
            if sender in members
        ],
        "executions": collective.executions,
        "line": sources_text(collective.sources) or None,
    }


def _members(collective: CollectiveRecord) -> list[int]:
    """Device numbers in the first group or, for a permute, mesh positions in the first ring or chain."""
    if collective.kind != "collective-permute":
        return list(range(collective.group_size))
    return next(iter(_chains(collective.pairs)), [])


@functools.lru_cache(maxsize=256)
def _chains(pairs: tuple[tuple[int, int], ...]) -> list[list[int]]:
    """Rings and chains of messages, each as mesh positions in the order in which messages connect them."""
    receivers, starts = dict(pairs), dict.fromkeys(sender for sender, _ in pairs)
    for _, receiver in pairs:
        starts.pop(receiver, None)
    chains: list[list[int]] = []
    positions: set[int] = set()
    for start in (*starts, *receivers):  # the ends of chains first, then rings
        chain: list[int] = []
        here: int | None = start
        while here is not None and here not in positions:
            positions.add(here)
            chain.append(here)
            here = receivers.get(here)
        chains += [chain] if chain else []
    return chains


def _devices(collective: CollectiveRecord, mesh: MeshRecord | None) -> list[str]:
    """Names of the devices in the collective's first group; numbered names if the devices are unknown."""
    if collective.pairs:
        devices = {} if mesh is None else dict(enumerate(mesh.devices))
        return [
            f"{devices[i].platform}:{devices[i].id}" if i in devices else f"device {i}" for i in _members(collective)
        ]
    names = [] if mesh is None else [axis.name for axis in mesh.axes]
    numbered = [f"device {place}" for place in range(collective.group_size)]
    if mesh is None or not collective.axes or any(axis not in names for axis in collective.axes):
        return numbered
    other_axes = [place for place, name in enumerate(names) if name not in collective.axes]
    first = [
        f"{device.platform}:{device.id}"
        for device in mesh.devices
        if all(device.position[place] == 0 for place in other_axes)
    ]
    return first if len(first) == collective.group_size else numbered
