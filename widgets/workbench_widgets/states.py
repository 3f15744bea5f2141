"""Types of view states; `widgets/state_types.py` writes the TypeScript types from these."""

from typing import Literal, NotRequired, TypedDict

Look = Literal["strong", "plain", "good", "bad"]
Place = Literal["where", "when", "what-if", "learn"]


class TabState(TypedDict):
    """A tab of an explorer."""

    key: str
    title: str
    help: str
    place: Place


class FigureSelection(TypedDict):
    """Items that a number in the headline selects."""

    line: NotRequired[str | None]
    instruction: NotRequired[str]


class HeadlineFigure(TypedDict):
    """A number in the headline, with the view that explains the number."""

    text: str
    help: str
    look: Look
    view: str | None
    select: FigureSelection | None


class MemoryRow(TypedDict):
    """A buffer alive at the peak, or (if the row has a count of buffers) a level of the tree."""

    name: str
    parent: int
    count: int
    group: str
    bytes: int
    padding: int
    shape: str
    key: str
    place: str
    op_name: str


class MemoryState(TypedDict):
    """State of the memory view."""

    facts: list[list[str]]
    peak: int | None
    capacity: int | None
    capacity_of: str
    moments: list[str]
    keys: list[str]
    places: list[str]
    buffers: list[MemoryRow]
    notes: list[str]
    sentence: str


class FigureColumn(TypedDict):
    """A column of numbers in the call tree."""

    key: str
    title: str
    unit: str
    tip: str


class OperationsState(TypedDict):
    """State of the operations view; keys of dicts and numbers in lists are row numbers."""

    names: list[str]
    keys: list[str]
    places: list[str]
    scopes: list[str]
    iterations: dict[str, float]
    instructions: dict[str, list[str]]
    collectives: dict[str, list[list[str]]]
    layers: dict[str, list[int]]
    shared: list[int]
    at_least: list[int]
    kinds: list[str]
    passes: list[str]
    columns: list[FigureColumn]
    code: dict[str, list[tuple[int, str, bool]]]
    made_from: Literal["compiled", "jaxpr"]
    counted: str | None
    attributed: dict[str, float]
    notes: list[str]


STATES = (TabState, FigureSelection, HeadlineFigure, MemoryRow, MemoryState, FigureColumn, OperationsState)
