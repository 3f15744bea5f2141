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
    """State of the memory view; `drawn` is the curve as SVG."""

    drawn: str
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


class MeshAxis(TypedDict):
    """An axis of a mesh, with the links of a torus that a step along the axis crosses."""

    name: str
    size: int
    type: str
    hops: str | None


class DeviceFigure(TypedDict):
    """A figure of all devices, which the mesh view shows by colour or by group."""

    key: str
    label: str
    unit: str
    kind: Literal["number", "group"]


class MeshLayout(TypedDict):
    """An arrangement of the devices in cells, and its picture."""

    key: str
    label: str
    columns: int
    rows: int
    reading: str
    svg: str


class MeshLeaf(TypedDict):
    """An array on the mesh."""

    name: str
    type: str
    spec: str
    shape: list[int]
    shard_shape: list[int]
    bytes: int


class MeshCollective(TypedDict):
    """A collective: the bytes that one device sends per call, and the device pairs of a permutation."""

    name: str
    kind: str
    axes: list[str]
    sent: float
    pairs: list[tuple[int, int]]


class MeshState(TypedDict):
    """State of the mesh view; `held` has the placement, first client, last client + 1 and padding of each device."""

    layouts: list[MeshLayout]
    count: int
    few: bool
    axes: list[MeshAxis]
    abstract: bool
    choices: list[DeviceFigure]
    names: dict[str, str | list[str]]
    kinds: list[str]
    hosts: int
    coords: int
    wraps: list[bool]
    collectives: list[MeshCollective]
    held: dict[str, list[tuple[str, int, int, int]]]
    leaves: list[MeshLeaf]
    sentence: str


class StageCost(TypedDict):
    """Predicted cost of a stage; `unknown` explains missing figures."""

    stage: str
    kind: str
    name: str
    flops: float | None
    elementwise: float | None
    accessed: float | None
    wire: dict[str, float]
    wire_seconds: dict[str, float]
    compute: float | None
    memory: float | None
    collective: float | None
    seconds: float | None
    bound: str
    unknown: list[str]


class Scaling(TypedDict):
    """Sizes and positions of the sliders."""

    placement: str
    axes: str
    clients: list[int]
    clients_now: int
    model: list[float]
    devices: list[int]
    devices_now: int
    at_once: list[int | str]
    at_once_now: int | str
    chips: list[str]
    chip_now: str


class ChipRoofs(TypedDict):
    """Bytes per second, and FLOP/s by dtype, of one device."""

    name: str
    bandwidth: float
    peaks: dict[str, float]
    source: str


class RooflineDot(TypedDict):
    """A source line with matrix products."""

    place: str
    line: str | None
    instruction: str
    flops: float
    bytes: float
    seconds: float
    dtype: str
    most: float


class LinesRoofline(TypedDict):
    """Source lines below the roofs of a chip; lines without products have a number and a share of the seconds."""

    chip: ChipRoofs
    assumed: bool
    seconds: float
    communication: float | None
    dots: list[RooflineDot]
    without_products: tuple[int, float]


class TargetCost(TypedDict):
    """Predicted cost of a program on one target."""

    target: str
    chip: str
    seconds: float | None
    roofline: str | None
    lines: LinesRoofline | None
    assumptions: list[str]
    notes: list[str]
    total: str
    work: str
    at_least: bool
    flops: float | None
    elementwise: float | None
    peak: int | None
    available: int | None
    fits: bool | None
    mesh: str
    strategies: dict[str, str]
    buffers: list[list[str]]
    stages: list[StageCost]
    scaling: Scaling | None


class TargetChoice(TypedDict):
    """A chip to compile for, with its topologies that fit the mesh."""

    chip: str
    description: str
    targets: list[str]
    default: str | None
    install: str | None
    terms: str


class CostState(TypedDict):
    """State of the cost view."""

    targets: list[TargetCost]
    elsewhere: list[TargetChoice]
    other_size: str
    sentence: str


class MetricCurve(TypedDict):
    """A metric of a result: means over seeds, intervals, and the values of each seed."""

    metric: str
    rounds: list[int]
    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    seeds: list[list[float | None]]
    final: float | None
    final_low: float | None
    final_high: float | None


class ComparedResult(TypedDict):
    """A result of several seeds."""

    name: str
    status: str
    seeds: list[int]
    compared: int
    left_out: list[str]
    metrics: list[MetricCurve]


class ComparedPair(TypedDict):
    """A paired test of two results."""

    metric: str
    a: str
    b: str
    pairs: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None


class OverlayState(TypedDict):
    """State of the view of several runs."""

    metric: str
    minimize: bool
    confidence: float
    sentence: str
    results: list[ComparedResult]
    pairs: list[ComparedPair]


class ProgramNode(TypedDict):
    """A node as the launched program declares it."""

    group: str
    kind: str
    hue: str
    target: str
    methods: list[str]
    calls: list[str]
    callers: list[str]
    concurrency: int
    restarts: int
    resources: list[str]
    shares: list[str]


class NodeState(TypedDict):
    """The present state of a node."""

    label: str
    state: str
    where: str
    beat: float | None
    uptime: float | None
    calls: int
    rate: float | None
    errors: int
    active: int
    queue: int | None
    cpu: float | None
    memory: int | None
    restarts: int
    code: int | None
    failed: bool
    last: list[str]


class GroupState(TypedDict):
    """The present state of a group of nodes."""

    said: str
    hue: str
    load: str


class HloCollective(TypedDict):
    """A collective; a line has a key, a place and its code."""

    name: str
    axis_names: list[str]
    axes: str
    payload: int
    times: float | None
    sent: float
    stages: list[str]
    lines: list[tuple[str, str, str]]
    rows: list[tuple[str, str]]


class HloCollectiveGroup(TypedDict):
    """Collectives of one kind, over the same axes, from the same lines; members are positions."""

    kind: str
    axes: str
    axis_names: list[str]
    places: str
    lines: list[tuple[str, str, str]]
    payload: int
    sent: float
    times: float | None
    members: list[int]
    stages: list[str]


class ShardingLeaf(TypedDict):
    """An array, and the device of each shard."""

    path: str
    shape: list[int]
    shard_shape: list[int]
    blocks: list[int]
    spec: list[list[str]]
    itemsize: float
    type: str
    spec_text: str
    devices: list[int]
    rows: list[tuple[str, str]]
    notes: list[str]
    left_out: int
    sentence: str


class TrialRow(TypedDict):
    """A collective before and after a trial of other shardings."""

    change: Literal["added", "removed", "more", "less", "same"]
    sign: str
    kind: str
    axes: list[str]
    stage: str | None
    stage_name: str
    runs: tuple[str, str]
    bytes: tuple[str, str]
    line: str | None
    source: str


class PlannedValue(TypedDict):
    """A value in the propagation of shardings."""

    name: str
    title: str
    leaf: str
    stage: str | None
    line: str | None
    rows: list[tuple[str, str]]


class PropagationState(TypedDict):
    """State of the propagation view; an arrival has an axis, dimensions, a frame, a source value and a sentence."""

    svg: str
    page: int
    values: list[PlannedValue]
    place: dict[str, int]
    why: dict[str, list[tuple[str, list[int], int, str | None, str]]]
    axes: list[str]
    steps: list[int]
    sentence: str
    engine: str
    notes: list[str]


class ShardingState(TypedDict):
    """State of the sharding view; an axis has a name and a size."""

    leaves: list[ShardingLeaf]
    axes: list[tuple[str, int]]
    names: dict[str, str]
    device_count: int
    total: str
    fullest: str
    notes: list[str]
    can_try: bool
    propagation: PropagationState | None
    sentence: str


class PlayedValue(TypedDict):
    """A value of all clients, with norms, distances and a small picture."""

    name: str
    shape: list[int]
    dtype: str
    size_bytes: int
    norms: list[float]
    distances: list[float]
    picture: list[float]
    picture_shape: list[int]


class PlayedStage(TypedDict):
    """A stage of a played round."""

    path: str
    kind: Literal["server", "broadcast", "clients", "reduce", "loop", "branch", "program"]
    name: str
    clients: int
    moved_bytes: int
    line: str | None
    values: list[PlayedValue]


class PlayedCourse(TypedDict):
    """Numbers that clients emit at each local step."""

    name: str
    values: list[list[float | None]]


class PlayedRound(TypedDict):
    """A round, played with actual values."""

    name: str
    stages: list[PlayedStage]
    courses: list[PlayedCourse]
    pictured: list[int]
    clients: int


class PlayedCollective(TypedDict):
    """A collective to play; pairs are positions in `devices`."""

    label: str
    kind: str
    axes: str
    payload_bytes: int
    devices: list[str]
    groups: int
    pairs: list[tuple[int, int]]
    executions: float | None
    line: str | None


STATES = (
    TabState, FigureSelection, HeadlineFigure, MemoryRow, MemoryState, FigureColumn, OperationsState, MeshAxis,
    DeviceFigure, MeshLayout, MeshLeaf, MeshCollective, MeshState, StageCost, Scaling, ChipRoofs, RooflineDot,
    LinesRoofline, TargetCost, TargetChoice, CostState, MetricCurve, ComparedResult, ComparedPair, OverlayState,
    ProgramNode, NodeState, GroupState, HloCollective, HloCollectiveGroup, ShardingLeaf, TrialRow, PlannedValue,
    PropagationState, ShardingState, PlayedValue, PlayedStage, PlayedCourse, PlayedRound, PlayedCollective,
)  # fmt: skip
