"""Types of view states and live values; `widgets/state_types.py` writes the TypeScript types from these.

`STATES` and `LIVE` name the state and the live values of each view. All types that they contain are written.
"""

from typing import Literal, NotRequired, TypedDict

from workbench.render import StageDetails

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
    facts: list[tuple[str, str]]
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
    """Collectives from one place: the bytes that one device sends per call, and the device pairs of a permutation."""

    names: list[str]
    label: str
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
    wire_least: list[str]
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
    roofs: ChipRoofs | None
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


class PlayerState(TypedDict):
    """State of the player."""

    title: str
    played: PlayedRound | None
    collectives: list[PlayedCollective]
    notes: list[str]
    can_play: bool


class ExplorerState(TypedDict):
    """State of a view with tabs, without the states of the tabs."""

    views: list[TabState]
    title: str
    headline: list[HeadlineFigure]
    target: NotRequired[str]


class ClientColumn(TypedDict):
    """A figure of all clients; the kind is "predicted", "measured", and so on."""

    key: str
    label: str
    unit: str
    kind: str


class ClientGroups(TypedDict):
    """Clients of a placement inside another placement: one row per outer client, with `size` clients."""

    outer: str
    inner: str
    size: int


class ClientsState(TypedDict):
    """Clients of a program; a range has the first client, the last client + 1, and ids and names of its devices."""

    count: int
    group_size: int
    placement: str
    groups: ClientGroups | None
    columns: list[ClientColumn]
    ranges: list[tuple[int, int, list[int], list[str]]]
    neighbours: bool
    shares: list[list[str]]
    stage: str | None
    sentence: str
    measuring: str


class ClientsViewState(ClientsState):
    """State of the clients view."""

    jaxpr: str
    opens: bool


class ClientMetric(TypedDict):
    """A metric of all clients, and the last round that reported it."""

    key: str
    round: int


class ClientsLive(TypedDict):
    """Metrics of clients: the last round, and the first and last stored rounds."""

    metrics: list[ClientMetric]
    rounds: tuple[int, int]
    values: bytes


class ClientMetricCourse(TypedDict):
    """A metric of one client over the stored rounds, and over the local steps of the last round."""

    name: str
    rounds: list[int]
    values: list[float | None]
    mean: list[float | None]
    steps: list[float | None]


class ClientValues(TypedDict):
    """All values that one client computes."""

    html: str
    text: str


class ProgramPicture(TypedDict):
    """A picture of a program's stages; paths of stages begin with the prefix."""

    svg: str
    width: int
    name: str
    prefix: str


class ProgramState(TypedDict):
    """State of the program view; keys of `stages` and `lines` are paths of stages."""

    pictures: list[ProgramPicture]
    stages: dict[str, StageDetails]
    lines: dict[str, str]
    clients: ClientsState
    overview: StageDetails


class HloGraph(TypedDict):
    """Groups of instructions, by nesting: a title, an instruction, a kind, a node of the call tree, and a key."""

    groups: dict[str, list[tuple[str, int, int, int, str]]]
    kinds: list[str]


class HloState(TypedDict):
    """State of the HLO view; a file of code has a path, a title and lines. Long lists are joined lines."""

    count: int
    names: str
    shapes: str
    operands: str
    op_names: list[str]
    opcodes: list[str]
    stages: list[str]
    computations: list[str]
    sources: list[tuple[str, int, str]]
    collectives: list[HloCollective]
    groups: list[HloCollectiveGroup]
    axes: list[str]
    stable: str
    compiled: str
    code: list[tuple[str, str, list[tuple[int, str]]]]
    graph: HloGraph | None
    sentence: str
    facts: str
    missing: str
    can_explain: bool


class TimelinePath(TypedDict):
    """The stage of a span and the functions around it, outermost first."""

    frames: list[str]
    stage: str | None
    line: str | None


class TimelineState(TypedDict):
    """State of the timeline; spans are columns of numbers."""

    title: str
    devices: list[str]
    device_ids: list[int | None]
    names: list[str]
    paths: list[TimelinePath]
    rounds: list[float]
    calls: int
    sentence: str
    notes: list[str]


class PictureState(TypedDict):
    """A picture for wide pages and one for narrow pages."""

    drawn: list[str]
    sentence: str


class SentCurve(TypedDict):
    """A metric over the rounds: rows of round, mean, minimum, maximum; and of seconds and percentiles."""

    name: str
    points: bytes
    spread: bytes


class NamedCurves(TypedDict):
    """Curves of another run."""

    name: str
    curves: list[SentCurve]


class RunState(TypedDict):
    """State of the run view; the picture shows a simulated round."""

    gantt: PictureState | None
    unit: str
    others: list[NamedCurves]


class ClientMap(TypedDict):
    """A metric of all clients over the rounds, averaged over neighbours if there are too many."""

    name: str
    rows: int
    columns: int
    together: int
    each: int
    clients: int
    first: int
    last: int
    values: bytes
    latest: bytes


class RunSamples(TypedDict):
    """Memory and utilisation of devices over the time since a run began."""

    devices: list[str]
    seconds: bytes
    columns: dict[str, bytes]


class RunDigestLive(TypedDict):
    """Progress, curves and problems of a run."""

    status: str
    finished: int
    rounds: int | None
    elapsed: str
    left: str
    pace: str
    curves: list[SentCurve]
    map: ClientMap | None
    problems: list[str]


class RunLive(RunDigestLive):
    """Live values of the run view."""

    samples: NotRequired[RunSamples | None]


class DevicesState(TypedDict):
    """The devices view has only live values."""


class DeviceReading(TypedDict):
    """The last sample of a device."""

    where: str
    kind: str
    id: int
    present: bool
    bytes: int | None
    peak: int | None
    limit: int | None
    source: str
    utilisation: float | None
    power: float | None
    temperature: float | None


class DevicesLive(TypedDict):
    """Live values of the devices view; a course has one number per device and sample."""

    devices: list[DeviceReading]
    left_out: int
    seconds: bytes
    memory: bytes
    courses: dict[str, bytes]
    host_courses: dict[str, bytes]
    arrays: list[list[str]]
    live_arrays: int
    host: list[tuple[str, str]]


class MeasuredState(TypedDict):
    """Operations of a profile; their figures are columns of numbers."""

    names: list[str]
    categories: list[str]
    programs: list[str]
    op_names: list[str]
    hlo: list[str]
    dtypes: list[str]
    bounds: list[str]
    lines: list[str | None]
    places: list[str]
    left_out: int
    chip: ChipRoofs | None
    error_bar: str


class SplitDevice(TypedDict):
    """Time of a profiled device; the seconds are in the order of the parts."""

    where: str
    kind: str
    seconds: list[float]
    overlapped: float
    span: float
    events: int


class SplitState(TypedDict):
    """Time of all profiled devices, the programs, and events without instructions."""

    parts: list[str]
    longest: float
    devices: list[SplitDevice]
    programs: list[list[str]]
    unjoined: list[list[str]]
    notes: list[str]


class AllocatorFacts(TypedDict):
    """An allocator of a profiled device."""

    where: str
    name: str
    peak: int
    events: int


class AllocatorsState(TypedDict):
    """Allocators of a profile; their bytes over time are columns of numbers."""

    allocators: list[AllocatorFacts]


class ComparedRow(TypedDict):
    """A figure of all compared programs."""

    group: str
    name: str
    values: list[float | str | None]
    unit: str
    status: Literal["same", "changed", "added", "removed", "unknown"]
    place: str


class ComparedFigure(TypedDict):
    """A column of the merged call tree."""

    key: str
    title: str
    unit: str


class ComparedTreeState(TypedDict):
    """The call trees of the first and the last program, merged."""

    tree_names: list[str]
    tree_places: list[str]
    kinds: list[str]
    tree_columns: list[ComparedFigure]
    counted: str


class CompareState(ComparedTreeState):
    """State of the comparison of programs."""

    names: list[str]
    targets: list[str]
    rows: list[ComparedRow]
    notes: list[str]
    sentence: str


class JobError(TypedDict):
    """An error of the kernel."""

    message: str
    traceback: str


class JobState(TypedDict):
    """Work of the kernel in a thread."""

    status: Literal["running", "done", "stopped", "failed"]
    phase: str
    seconds: float
    error: NotRequired[JobError]
    target: NotRequired[str]


class Gain(TypedDict):
    """A predicted or verified gain of a change."""

    quantity: str
    before: str
    after: str
    saved_share: float
    verified: bool
    how: str
    text: str


class FindingLine(TypedDict):
    """A line that a finding names."""

    line: str
    source: str
    function: str


class Finding(TypedDict):
    """A finding about the program, and the parts of the program that it names."""

    number: int
    rule: str
    title: str
    why: str
    change: str
    code: str
    evidence: list[str]
    weight: float
    bytes: str | None
    seconds: str | None
    verified: bool
    gain: Gain | None
    compared: list[Gain]
    nodes: list[int]
    instructions: list[str]
    leaves: list[str]
    axes: list[str]
    lines: list[FindingLine]


class AdviceReport(TypedDict):
    """All findings, most important first, and the checked rules."""

    sentence: str
    findings: list[Finding]
    checked: list[str]
    notes: list[str]


class ShardingChoice(TypedDict):
    """Specs that a search found, by pattern of argument names, and their predicted cost."""

    name: str
    seconds: str | None
    peak: str | None
    fits: bool | None
    chunk: int | None
    sent: dict[str, str]
    how: str
    pareto: bool
    specs: dict[str, str]
    axes: dict[str, list[list[str]]]
    code: str


class SearchState(TypedDict):
    """Choices of a search for shardings, the chosen one first."""

    sentence: str
    rows: list[ShardingChoice]
    groups: list[str]
    notes: list[str]


class AdviceState(TypedDict):
    """State of the advice view; `missing` explains why there is no advice, `rules` are sentences."""

    can_advise: bool
    can_search: bool
    missing: str | None
    rules: list[str]


class AdviceLive(TypedDict):
    """Live values of the advice view."""

    job: JobState
    report: AdviceReport
    search_job: JobState
    search: SearchState


class CostLive(TypedDict):
    """Live values of the cost view."""

    job: JobState
    compiled: list[TargetCost]


class ScaledAmounts(TypedDict):
    """Predicted amounts for one device and one call, summed over all stages."""

    seconds: float | None
    flops: float | None
    elementwise: float | None
    peak: int | None
    sent: float


class ScaledState(ScaledAmounts):
    """Predicted cost of a program of another size."""

    as_is: ScaledAmounts
    target: str
    chip: str
    assumptions: list[str]
    chunks: str
    error: str
    available: int | None
    fits: bool | None
    clients: int
    per_device: int
    devices: int
    idle: int
    stages: list[StageCost]


class TrialResult(TypedDict, total=False):
    """Result of a trial of other shardings; an amount has a name and values before and after."""

    sentence: str
    how: Literal["planned", "compiled"]
    amounts: list[tuple[str, str, str]]
    rows: list[TrialRow]
    notes: list[str]


class TrialState(TrialResult, total=False):
    """A trial of other shardings, which has a result after planning."""

    status: Literal["planning", "compiling", "done", "stopped", "failed"]
    phase: str
    seconds: float
    number: int
    error: JobError


class ShardingLive(TypedDict):
    """Live values of the sharding view."""

    trial: TrialState


class OverlayLive(TypedDict):
    """Live values of the view of several runs."""

    results: list[ComparedResult]
    pairs: list[ComparedPair]
    running: bool


class LaunchState(TypedDict):
    """State of the view of a launched program; glyphs, signs and hues are keyed by the state of a node."""

    name: str
    svg: str
    nodes: dict[str, ProgramNode]
    groups: list[str]
    glyphs: dict[str, str]
    signs: dict[str, str]
    hues: dict[str, str]


class ChosenNode(TypedDict):
    """Log, error and history of the selected node."""

    label: str
    log: list[str]
    error: str | None
    history: dict[str, bytes]


class LaunchLive(TypedDict):
    """Live values of the view of a launched program."""

    status: str
    engine: str
    elapsed: float
    load: str
    said: str
    groups: dict[str, GroupState]
    nodes: list[NodeState]
    chosen: ChosenNode | None


class PlaygroundField(TypedDict):
    """A setting of the playground: a menu, or a slider whose steps may be factors."""

    name: str
    label: str
    help: str
    choices: NotRequired[list[str]]
    low: NotRequired[float]
    high: NotRequired[float]
    factor: NotRequired[float]
    step: NotRequired[float]
    last: NotRequired[str]


class PlaygroundState(TypedDict):
    """State of the playground."""

    fields: list[PlaygroundField]
    usual: dict[str, str | float]
    run: RunState


class PlaygroundRun(TypedDict):
    """An experiment; experiments of one group differ only in their seeds."""

    number: int
    name: str
    group: str
    accuracies: list[float]
    sent: float


class PlaygroundLive(TypedDict):
    """Live values of the playground."""

    reported: list[str]
    runs: list[PlaygroundRun]
    drift_rounds: list[int]


class ClientDrift(TypedDict):
    """Paths of clients in one round, relative to the model that the server sent, in two directions."""

    round: int
    clients: list[int]
    steps: list[int]
    paths: list[list[tuple[float, float]]]
    mean: list[tuple[float, float]]
    shares: tuple[float, float]
    apart: list[float]
    moved: float


STATES: dict[str, type] = {
    "explorer": ExplorerState,
    "program": ProgramState,
    "operations": OperationsState,
    "hlo": HloState,
    "memory": MemoryState,
    "mesh": MeshState,
    "clients": ClientsViewState,
    "timeline": TimelineState,
    "run": RunState,
    "devices": DevicesState,
    "overlay": OverlayState,
    "sharding": ShardingState,
    "propagation": PropagationState,
    "advice": AdviceState,
    "cost": CostState,
    "player": PlayerState,
    "playground": PlaygroundState,
    "compare": CompareState,
    "measured": MeasuredState,
    "split": SplitState,
    "allocators": AllocatorsState,
    "launch": LaunchState,
    "picture": PictureState,
}
LIVE: dict[str, type] = {
    "advice": AdviceLive,
    "clients": ClientsLive,
    "cost": CostLive,
    "devices": DevicesLive,
    "launch": LaunchLive,
    "overlay": OverlayLive,
    "playground": PlaygroundLive,
    "run": RunLive,
    "sharding": ShardingLive,
}
