"""Records of a round as it was really computed: the values that each stage made, for a player that shows them."""

from dataclasses import dataclass, field

from workbench.records._base import Record, Results
from workbench.records._program import SourceLine, StageKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedValueRecord(Record):
    """One array that a stage made. Of a client-placed one, the lists have one entry per client, else one in all."""

    name: str
    shape: tuple[int, ...]  # of one client
    dtype: str
    size_bytes: int  # of one client
    norms: tuple[float, ...]  # Euclidean, of finite numbers
    distances: tuple[float, ...] = ()  # of each client's value from what it received, where the shapes are equal
    picture: tuple[float, ...] = ()  # the array, averaged down to `picture_shape`; clients one after the other
    picture_shape: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStageRecord(Record):
    """One stage with its values."""

    path: str
    kind: StageKind
    name: str
    clients: int = 1
    moved_bytes: int = 0  # between the server and all clients
    values: tuple[PlayedValueRecord, ...] = ()
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedCourseRecord(Record):
    """A number that every client emitted at its local steps; None where it is not finite."""

    name: str
    values: tuple[tuple[float | None, ...], ...]  # [clients][steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayRecord(Record):
    """One evaluation of a program, stage by stage; `results` is the program's output pytree and stays out of JSON."""

    name: str
    stages: tuple[PlayedStageRecord, ...]
    courses: tuple[PlayedCourseRecord, ...] = ()
    pictured_clients: tuple[int, ...] = ()  # whose values are in the pictures
    notes: tuple[str, ...] = ()
    results: Results = field(default=None, repr=False, compare=False)
