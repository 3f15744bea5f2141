// The states that Python sends. Written by `python widgets/state_types.py` from `states.py`.

/** A tab of an explorer. */
export interface TabState {
  key: string;
  title: string;
  help: string;
  place: "where" | "when" | "what-if" | "learn";
}

/** Items that a number in the headline selects. */
export interface FigureSelection {
  line?: string | null;
  instruction?: string;
}

/** A number in the headline, with the view that explains the number. */
export interface HeadlineFigure {
  text: string;
  help: string;
  look: "strong" | "plain" | "good" | "bad";
  view: string | null;
  select: FigureSelection | null;
}

/** State of a view with tabs, without the states of the tabs. */
export interface ExplorerState {
  views: readonly TabState[];
  title: string;
  headline: readonly HeadlineFigure[];
  target?: string;
}

/** A picture of a program's stages; paths of stages begin with the prefix. */
export interface ProgramPicture {
  svg: string;
  width: number;
  name: string;
  prefix: string;
}

/** Terms and their values. */
export interface FactsBlock {
  form: "facts";
  title: string;
  rows: readonly (readonly [string, string])[];
}

/** A small table. */
export interface TableBlock {
  form: "table";
  title: string;
  columns: readonly string[];
  rows: readonly (readonly string[])[];
  note?: string;
}

/** Lines of code: number, text, and whether the line is marked. */
export interface CodeBlock {
  form: "code";
  title: string;
  lines: readonly (readonly [number | null, string, boolean])[];
  folded?: boolean;
  source?: string;
}

/** A paragraph. */
export interface NoteBlock {
  form: "note";
  title: string;
  text: string;
}

/** A panel about a stage or about the whole program. */
export interface StageDetails {
  title: string;
  kind: string;
  subtitle?: string;
  blocks: readonly (FactsBlock | TableBlock | CodeBlock | NoteBlock)[];
}

/** Clients of a placement inside another placement: one row per outer client, with `size` clients. */
export interface ClientGroups {
  outer: string;
  inner: string;
  size: number;
}

/** A figure of all clients; the kind is "predicted", "measured", and so on. */
export interface ClientColumn {
  key: string;
  label: string;
  unit: string;
  kind: string;
}

/** Clients of a program; a range has the first client, the last client + 1, and ids and names of its devices. */
export interface ClientsState {
  count: number;
  group_size: number;
  placement: string;
  groups: ClientGroups | null;
  columns: readonly ClientColumn[];
  ranges: readonly (readonly [number, number, readonly number[], readonly string[]])[];
  neighbours: boolean;
  shares: readonly (readonly string[])[];
  stage: string | null;
  sentence: string;
  measuring: string;
}

/** State of the program view; keys of `stages` and `lines` are paths of stages. */
export interface ProgramState {
  pictures: readonly ProgramPicture[];
  stages: Readonly<Record<string, StageDetails>>;
  lines: Readonly<Record<string, string>>;
  clients: ClientsState;
  overview: StageDetails;
}

/** A column of numbers in the call tree. */
export interface FigureColumn {
  key: string;
  title: string;
  unit: string;
  tip: string;
}

/** State of the operations view; keys of dicts and numbers in lists are row numbers. */
export interface OperationsState {
  names: readonly string[];
  keys: readonly string[];
  places: readonly string[];
  scopes: readonly string[];
  iterations: Readonly<Record<string, number>>;
  instructions: Readonly<Record<string, readonly string[]>>;
  collectives: Readonly<Record<string, readonly (readonly string[])[]>>;
  layers: Readonly<Record<string, readonly number[]>>;
  shared: readonly number[];
  at_least: readonly number[];
  kinds: readonly string[];
  passes: readonly string[];
  columns: readonly FigureColumn[];
  code: Readonly<Record<string, readonly (readonly [number, string, boolean])[]>>;
  made_from: "compiled" | "jaxpr";
  counted: string | null;
  notes: readonly string[];
}

/** A collective; a line has a key, a place and its code. */
export interface HloCollective {
  name: string;
  axis_names: readonly string[];
  axes: string;
  payload: number;
  times: number | null;
  sent: number;
  stages: readonly string[];
  lines: readonly (readonly [string, string, string])[];
  rows: readonly (readonly [string, string])[];
}

/** Collectives of one kind, over the same axes, from the same lines; members are positions. */
export interface HloCollectiveGroup {
  kind: string;
  axes: string;
  axis_names: readonly string[];
  places: string;
  lines: readonly (readonly [string, string, string])[];
  payload: number;
  sent: number;
  times: number | null;
  members: readonly number[];
  stages: readonly string[];
}

/** Groups of instructions, by nesting: a title, an instruction, a kind, a node of the call tree, and a key. */
export interface HloGraph {
  groups: Readonly<Record<string, readonly (readonly [string, number, number, number, string])[]>>;
  kinds: readonly string[];
}

/** State of the HLO view; a file of code has a path, a title and lines. Long lists are joined lines. */
export interface HloState {
  count: number;
  names: string;
  shapes: string;
  operands: string;
  op_names: readonly string[];
  opcodes: readonly string[];
  stages: readonly string[];
  computations: readonly string[];
  sources: readonly (readonly [string, number, string])[];
  collectives: readonly HloCollective[];
  groups: readonly HloCollectiveGroup[];
  axes: readonly string[];
  stable: string;
  compiled: string;
  code: readonly (readonly [string, string, readonly (readonly [number, string])[]])[];
  graph: HloGraph | null;
  sentence: string;
  facts: string;
  missing: string;
  can_explain: boolean;
}

/** A buffer alive at the peak, or (if the row has a count of buffers) a level of the tree. */
export interface MemoryRow {
  name: string;
  parent: number;
  count: number;
  group: string;
  bytes: number;
  padding: number;
  shape: string;
  key: string;
  place: string;
  op_name: string;
}

/** State of the memory view; `drawn` is the curve as SVG. */
export interface MemoryState {
  drawn: string;
  facts: readonly (readonly [string, string])[];
  peak: number | null;
  capacity: number | null;
  capacity_of: string;
  moments: readonly string[];
  keys: readonly string[];
  places: readonly string[];
  buffers: readonly MemoryRow[];
  notes: readonly string[];
  sentence: string;
}

/** An arrangement of the devices in cells, and its picture. */
export interface MeshLayout {
  key: string;
  label: string;
  columns: number;
  rows: number;
  reading: string;
  svg: string;
}

/** An axis of a mesh, with the links of a torus that a step along the axis crosses. */
export interface MeshAxis {
  name: string;
  size: number;
  type: string;
  hops: string | null;
}

/** A figure of all devices, which the mesh view shows by colour or by group. */
export interface DeviceFigure {
  key: string;
  label: string;
  unit: string;
  kind: "number" | "group";
}

/** Collectives from one place: the bytes that one device sends per call, and the device pairs of a permutation. */
export interface MeshCollective {
  names: readonly string[];
  label: string;
  kind: string;
  axes: readonly string[];
  sent: number;
  pairs: readonly (readonly [number, number])[];
}

/** An array on the mesh. */
export interface MeshLeaf {
  name: string;
  type: string;
  spec: string;
  shape: readonly number[];
  shard_shape: readonly number[];
  bytes: number;
}

/** State of the mesh view; `held` has the placement, first client, last client + 1 and padding of each device. */
export interface MeshState {
  layouts: readonly MeshLayout[];
  count: number;
  few: boolean;
  axes: readonly MeshAxis[];
  abstract: boolean;
  choices: readonly DeviceFigure[];
  names: Readonly<Record<string, string | readonly string[]>>;
  kinds: readonly string[];
  hosts: number;
  coords: number;
  wraps: readonly boolean[];
  collectives: readonly MeshCollective[];
  held: Readonly<Record<string, readonly (readonly [string, number, number, number])[]>>;
  leaves: readonly MeshLeaf[];
  sentence: string;
}

/** State of the clients view. */
export interface ClientsViewState {
  count: number;
  group_size: number;
  placement: string;
  groups: ClientGroups | null;
  columns: readonly ClientColumn[];
  ranges: readonly (readonly [number, number, readonly number[], readonly string[]])[];
  neighbours: boolean;
  shares: readonly (readonly string[])[];
  stage: string | null;
  sentence: string;
  measuring: string;
  jaxpr: string;
  opens: boolean;
}

/** The stage of a span and the functions around it, outermost first. */
export interface TimelinePath {
  frames: readonly string[];
  stage: string | null;
  line: string | null;
}

/** State of the timeline; spans are columns of numbers. */
export interface TimelineState {
  title: string;
  devices: readonly string[];
  device_ids: readonly (number | null)[];
  names: readonly string[];
  paths: readonly TimelinePath[];
  rounds: readonly number[];
  calls: number;
  sentence: string;
  notes: readonly string[];
}

/** A picture for wide pages and one for narrow pages. */
export interface PictureState {
  drawn: readonly string[];
  sentence: string;
}

/** A metric over the rounds: rows of round, mean, minimum, maximum; and of seconds and percentiles. */
export interface SentCurve {
  name: string;
  points: DataView;
  spread: DataView;
}

/** Curves of another run. */
export interface NamedCurves {
  name: string;
  curves: readonly SentCurve[];
}

/** State of the run view; the picture shows a simulated round. */
export interface RunState {
  gantt: PictureState | null;
  unit: string;
  others: readonly NamedCurves[];
}

/** The devices view has only live values. */
export type DevicesState = Readonly<Record<never, never>>;

/** A metric of a result: means over seeds, intervals, and the values of each seed. */
export interface MetricCurve {
  metric: string;
  rounds: readonly number[];
  mean: readonly (number | null)[];
  low: readonly (number | null)[];
  high: readonly (number | null)[];
  seeds: readonly (readonly (number | null)[])[];
  final: number | null;
  final_low: number | null;
  final_high: number | null;
}

/** A result of several seeds. */
export interface ComparedResult {
  name: string;
  status: string;
  seeds: readonly number[];
  compared: number;
  left_out: readonly string[];
  metrics: readonly MetricCurve[];
}

/** A paired test of two results. */
export interface ComparedPair {
  metric: string;
  a: string;
  b: string;
  pairs: number;
  difference: number | null;
  low: number | null;
  high: number | null;
  p: number | null;
  p_corrected: number | null;
}

/** State of the view of several runs. */
export interface OverlayState {
  metric: string;
  minimize: boolean;
  confidence: number;
  sentence: string;
  results: readonly ComparedResult[];
  pairs: readonly ComparedPair[];
}

/** An array, and the device of each shard. */
export interface ShardingLeaf {
  path: string;
  shape: readonly number[];
  shard_shape: readonly number[];
  blocks: readonly number[];
  spec: readonly (readonly string[])[];
  itemsize: number;
  type: string;
  spec_text: string;
  devices: readonly number[];
  rows: readonly (readonly [string, string])[];
  notes: readonly string[];
  left_out: number;
  sentence: string;
}

/** A value in the propagation of shardings. */
export interface PlannedValue {
  name: string;
  title: string;
  leaf: string;
  stage: string | null;
  line: string | null;
  rows: readonly (readonly [string, string])[];
}

/** State of the propagation view; an arrival has an axis, dimensions, a frame, a source value and a sentence. */
export interface PropagationState {
  svg: string;
  page: number;
  values: readonly PlannedValue[];
  place: Readonly<Record<string, number>>;
  why: Readonly<Record<string, readonly (readonly [string, readonly number[], number, string | null, string])[]>>;
  axes: readonly string[];
  steps: readonly number[];
  sentence: string;
  engine: string;
  notes: readonly string[];
}

/** State of the sharding view; an axis has a name and a size. */
export interface ShardingState {
  leaves: readonly ShardingLeaf[];
  axes: readonly (readonly [string, number])[];
  names: Readonly<Record<string, string>>;
  total: string;
  fullest: string;
  notes: readonly string[];
  can_try: boolean;
  propagation: PropagationState | null;
  sentence: string;
}

/** State of the advice view; `missing` explains why there is no advice, `rules` are sentences. */
export interface AdviceState {
  can_advise: boolean;
  can_search: boolean;
  missing: string | null;
  rules: readonly string[];
}

/** Bytes per second, and FLOP/s by dtype, of one device. */
export interface ChipRoofs {
  name: string;
  bandwidth: number;
  peaks: Readonly<Record<string, number>>;
  source: string;
}

/** A source line with matrix products. */
export interface RooflineDot {
  place: string;
  line: string | null;
  instruction: string;
  flops: number;
  bytes: number;
  seconds: number;
  dtype: string;
  most: number;
}

/** Source lines below the roofs of a chip; lines without products have a number and a share of the seconds. */
export interface LinesRoofline {
  chip: ChipRoofs;
  assumed: boolean;
  seconds: number;
  communication: number | null;
  dots: readonly RooflineDot[];
  without_products: readonly [number, number];
}

/** Predicted cost of a stage; `unknown` explains missing figures. */
export interface StageCost {
  stage: string;
  kind: string;
  name: string;
  flops: number | null;
  elementwise: number | null;
  accessed: number | null;
  wire: Readonly<Record<string, number>>;
  wire_least: readonly string[];
  wire_seconds: Readonly<Record<string, number>>;
  compute: number | null;
  memory: number | null;
  collective: number | null;
  seconds: number | null;
  bound: string;
  unknown: readonly string[];
}

/** Sizes and positions of the sliders. */
export interface Scaling {
  placement: string;
  axes: string;
  clients: readonly number[];
  clients_now: number;
  model: readonly number[];
  devices: readonly number[];
  devices_now: number;
  at_once: readonly (number | string)[];
  at_once_now: number | string;
  chips: readonly string[];
  chip_now: string;
}

/** Predicted cost of a program on one target. */
export interface TargetCost {
  target: string;
  chip: string;
  seconds: number | null;
  roofs: ChipRoofs | null;
  lines: LinesRoofline | null;
  assumptions: readonly string[];
  notes: readonly string[];
  total: string;
  work: string;
  at_least: boolean;
  flops: number | null;
  elementwise: number | null;
  peak: number | null;
  available: number | null;
  fits: boolean | null;
  mesh: string;
  strategies: Readonly<Record<string, string>>;
  buffers: readonly (readonly string[])[];
  stages: readonly StageCost[];
  scaling: Scaling | null;
}

/** A chip to compile for, with its topologies that fit the mesh. */
export interface TargetChoice {
  chip: string;
  description: string;
  targets: readonly string[];
  default: string | null;
  install: string | null;
  terms: string;
}

/** State of the cost view. */
export interface CostState {
  targets: readonly TargetCost[];
  elsewhere: readonly TargetChoice[];
  other_size: string;
  sentence: string;
}

/** A value of all clients, with norms, distances and a small picture. */
export interface PlayedValue {
  name: string;
  shape: readonly number[];
  dtype: string;
  size_bytes: number;
  norms: readonly number[];
  distances: readonly number[];
  picture: readonly number[];
  picture_shape: readonly number[];
}

/** A stage of a played round. */
export interface PlayedStage {
  path: string;
  kind: "server" | "broadcast" | "clients" | "reduce" | "loop" | "branch" | "program";
  name: string;
  clients: number;
  moved_bytes: number;
  line: string | null;
  values: readonly PlayedValue[];
}

/** Numbers that clients emit at each local step. */
export interface PlayedCourse {
  name: string;
  values: readonly (readonly (number | null)[])[];
}

/** A round, played with actual values. */
export interface PlayedRound {
  name: string;
  stages: readonly PlayedStage[];
  courses: readonly PlayedCourse[];
  pictured: readonly number[];
  clients: number;
}

/** A collective to play; pairs are positions in `devices`. */
export interface PlayedCollective {
  label: string;
  kind: string;
  axes: string;
  payload_bytes: number;
  devices: readonly string[];
  groups: number;
  pairs: readonly (readonly [number, number])[];
  executions: number | null;
  line: string | null;
}

/** State of the player. */
export interface PlayerState {
  title: string;
  played: PlayedRound | null;
  collectives: readonly PlayedCollective[];
  notes: readonly string[];
  can_play: boolean;
}

/** A setting of the playground: a menu, or a slider whose steps may be factors. */
export interface PlaygroundField {
  name: string;
  label: string;
  help: string;
  choices?: readonly string[];
  low?: number;
  high?: number;
  factor?: number;
  step?: number;
  last?: string;
}

/** State of the playground. */
export interface PlaygroundState {
  fields: readonly PlaygroundField[];
  usual: Readonly<Record<string, string | number>>;
  run: RunState;
}

/** A column of the merged call tree. */
export interface ComparedFigure {
  key: string;
  title: string;
  unit: string;
}

/** A figure of all compared programs. */
export interface ComparedRow {
  group: string;
  name: string;
  values: readonly (number | string | null)[];
  unit: string;
  status: "same" | "changed" | "added" | "removed" | "unknown";
  place: string;
}

/** State of the comparison of programs. */
export interface CompareState {
  tree_names: readonly string[];
  tree_places: readonly string[];
  kinds: readonly string[];
  tree_columns: readonly ComparedFigure[];
  counted: string;
  names: readonly string[];
  targets: readonly string[];
  rows: readonly ComparedRow[];
  notes: readonly string[];
  sentence: string;
}

/** Operations of a profile; their figures are columns of numbers. */
export interface MeasuredState {
  names: readonly string[];
  categories: readonly string[];
  programs: readonly string[];
  op_names: readonly string[];
  hlo: readonly string[];
  dtypes: readonly string[];
  bounds: readonly string[];
  lines: readonly (string | null)[];
  places: readonly string[];
  left_out: number;
  chip: ChipRoofs | null;
  error_bar: string;
}

/** Time of a profiled device; the seconds are in the order of the parts. */
export interface SplitDevice {
  where: string;
  kind: string;
  seconds: readonly number[];
  overlapped: number;
  span: number;
  events: number;
}

/** Time of all profiled devices, the programs, and events without instructions. */
export interface SplitState {
  parts: readonly string[];
  longest: number;
  devices: readonly SplitDevice[];
  programs: readonly (readonly string[])[];
  unjoined: readonly (readonly string[])[];
  notes: readonly string[];
}

/** An allocator of a profiled device. */
export interface AllocatorFacts {
  where: string;
  name: string;
  peak: number;
  events: number;
}

/** Allocators of a profile; their bytes over time are columns of numbers. */
export interface AllocatorsState {
  allocators: readonly AllocatorFacts[];
}

/** A node as the launched program declares it. */
export interface ProgramNode {
  group: string;
  kind: string;
  hue: string;
  target: string;
  methods: readonly string[];
  calls: readonly string[];
  callers: readonly string[];
  concurrency: number;
  restarts: number;
  resources: readonly string[];
  shares: readonly string[];
}

/** State of the view of a launched program; glyphs, signs and hues are keyed by the state of a node. */
export interface LaunchState {
  name: string;
  svg: string;
  nodes: Readonly<Record<string, ProgramNode>>;
  groups: readonly string[];
  glyphs: Readonly<Record<string, string>>;
  signs: Readonly<Record<string, string>>;
  hues: Readonly<Record<string, string>>;
}

/** An error of the kernel. */
export interface JobError {
  message: string;
  traceback: string;
}

/** Work of the kernel in a thread. */
export interface JobState {
  status: "running" | "done" | "stopped" | "failed";
  phase: string;
  seconds: number;
  error?: JobError;
  target?: string;
}

/** A predicted or verified gain of a change. */
export interface Gain {
  quantity: string;
  before: string;
  after: string;
  saved_share: number;
  verified: boolean;
  how: string;
  text: string;
}

/** A line that a finding names. */
export interface FindingLine {
  line: string;
  source: string;
  function: string;
}

/** A finding about the program, and the parts of the program that it names. */
export interface Finding {
  number: number;
  rule: string;
  title: string;
  why: string;
  change: string;
  code: string;
  evidence: readonly string[];
  weight: number;
  bytes: string | null;
  seconds: string | null;
  verified: boolean;
  gain: Gain | null;
  compared: readonly Gain[];
  nodes: readonly number[];
  instructions: readonly string[];
  leaves: readonly string[];
  axes: readonly string[];
  lines: readonly FindingLine[];
}

/** All findings, most important first, and the checked rules. */
export interface AdviceReport {
  sentence: string;
  findings: readonly Finding[];
  checked: readonly string[];
  notes: readonly string[];
}

/** Specs that a search found, by pattern of argument names, and their predicted cost. */
export interface ShardingChoice {
  name: string;
  seconds: string | null;
  peak: string | null;
  fits: boolean | null;
  chunk: number | null;
  sent: Readonly<Record<string, string>>;
  how: string;
  pareto: boolean;
  specs: Readonly<Record<string, string>>;
  axes: Readonly<Record<string, readonly (readonly string[])[]>>;
  code: string;
}

/** Choices of a search for shardings, the chosen one first. */
export interface SearchState {
  sentence: string;
  rows: readonly ShardingChoice[];
  groups: readonly string[];
  notes: readonly string[];
}

/** Live values of the advice view. */
export interface AdviceLive {
  job: JobState;
  report: AdviceReport;
  search_job: JobState;
  search: SearchState;
}

/** A metric of all clients, and the last round that reported it. */
export interface ClientMetric {
  key: string;
  round: number;
}

/** Metrics of clients: the last round, and the first and last stored rounds. */
export interface ClientsLive {
  metrics: readonly ClientMetric[];
  rounds: readonly [number, number];
  values: DataView;
}

/** Live values of the cost view. */
export interface CostLive {
  job: JobState;
  compiled: readonly TargetCost[];
}

/** The last sample of a device. */
export interface DeviceReading {
  where: string;
  kind: string;
  id: number;
  present: boolean;
  bytes: number | null;
  peak: number | null;
  limit: number | null;
  source: string;
  utilisation: number | null;
  power: number | null;
  temperature: number | null;
}

/** Live values of the devices view; a course has one number per device and sample. */
export interface DevicesLive {
  devices: readonly DeviceReading[];
  left_out: number;
  seconds: DataView;
  memory: DataView;
  courses: Readonly<Record<string, DataView>>;
  host_courses: Readonly<Record<string, DataView>>;
  arrays: readonly (readonly string[])[];
  live_arrays: number;
  host: readonly (readonly [string, string])[];
}

/** The present state of a group of nodes. */
export interface GroupState {
  said: string;
  hue: string;
  load: string;
}

/** The present state of a node. */
export interface NodeState {
  label: string;
  state: string;
  where: string;
  beat: number | null;
  uptime: number | null;
  calls: number;
  rate: number | null;
  errors: number;
  active: number;
  queue: number | null;
  cpu: number | null;
  memory: number | null;
  restarts: number;
  code: number | null;
  failed: boolean;
  last: readonly string[];
}

/** Log, error and history of the selected node. */
export interface ChosenNode {
  label: string;
  log: readonly string[];
  error: string | null;
  history: Readonly<Record<string, DataView>>;
}

/** Live values of the view of a launched program. */
export interface LaunchLive {
  status: string;
  engine: string;
  elapsed: number;
  load: string;
  said: string;
  groups: Readonly<Record<string, GroupState>>;
  nodes: readonly NodeState[];
  chosen: ChosenNode | null;
}

/** Live values of the view of several runs. */
export interface OverlayLive {
  results: readonly ComparedResult[];
  pairs: readonly ComparedPair[];
  running: boolean;
}

/** An experiment; experiments of one group differ only in their seeds. */
export interface PlaygroundRun {
  number: number;
  name: string;
  group: string;
  accuracies: readonly number[];
  sent: number;
}

/** Live values of the playground. */
export interface PlaygroundLive {
  reported: readonly string[];
  runs: readonly PlaygroundRun[];
  drift_rounds: readonly number[];
}

/** A metric of all clients over the rounds, averaged over neighbours if there are too many. */
export interface ClientMap {
  name: string;
  rows: number;
  columns: number;
  together: number;
  each: number;
  clients: number;
  first: number;
  last: number;
  values: DataView;
  latest: DataView;
}

/** Memory and utilisation of devices over the time since a run began. */
export interface RunSamples {
  devices: readonly string[];
  seconds: DataView;
  columns: Readonly<Record<string, DataView>>;
}

/** Live values of the run view. */
export interface RunLive {
  status: string;
  finished: number;
  rounds: number | null;
  elapsed: string;
  left: string;
  pace: string;
  curves: readonly SentCurve[];
  map: ClientMap | null;
  problems: readonly string[];
  samples?: RunSamples | null;
}

/** A collective before and after a trial of other shardings. */
export interface TrialRow {
  change: "added" | "removed" | "more" | "less" | "same";
  sign: string;
  kind: string;
  axes: readonly string[];
  stage: string | null;
  stage_name: string;
  runs: readonly [string, string];
  bytes: readonly [string, string];
  line: string | null;
  source: string;
}

/** A trial of other shardings, which has a result after planning. */
export interface TrialState {
  sentence?: string;
  how?: "planned" | "compiled";
  amounts?: readonly (readonly [string, string, string])[];
  rows?: readonly TrialRow[];
  notes?: readonly string[];
  status?: "planning" | "compiling" | "done" | "stopped" | "failed";
  phase?: string;
  seconds?: number;
  number?: number;
  error?: JobError;
}

/** Live values of the sharding view. */
export interface ShardingLive {
  trial: TrialState;
}

/** A metric of one client over the stored rounds, and over the local steps of the last round. */
export interface ClientMetricCourse {
  name: string;
  rounds: readonly number[];
  values: readonly (number | null)[];
  mean: readonly (number | null)[];
  steps: readonly (number | null)[];
}

/** Paths of clients in one round, relative to the model that the server sent, in two directions. */
export interface ClientDrift {
  round: number;
  clients: readonly number[];
  steps: readonly number[];
  paths: readonly (readonly (readonly [number, number])[])[];
  mean: readonly (readonly [number, number])[];
  shares: readonly [number, number];
  apart: readonly number[];
  moved: number;
}

/** All values that one client computes. */
export interface ClientValues {
  html: string;
  text: string;
}

/** Predicted amounts for one device and one call, summed over all stages. */
export interface ScaledAmounts {
  seconds: number | null;
  flops: number | null;
  elementwise: number | null;
  peak: number | null;
  sent: number;
}

/** Predicted cost of a program of another size. */
export interface ScaledState {
  seconds: number | null;
  flops: number | null;
  elementwise: number | null;
  peak: number | null;
  sent: number;
  as_is: ScaledAmounts;
  target: string;
  chip: string;
  assumptions: readonly string[];
  chunks: string;
  error: string;
  available: number | null;
  fits: boolean | null;
  clients: number;
  per_device: number;
  devices: number;
  idle: number;
  stages: readonly StageCost[];
}

/** The state of each view. */
export interface States {
  explorer: ExplorerState;
  program: ProgramState;
  operations: OperationsState;
  hlo: HloState;
  memory: MemoryState;
  mesh: MeshState;
  clients: ClientsViewState;
  timeline: TimelineState;
  run: RunState;
  devices: DevicesState;
  overlay: OverlayState;
  sharding: ShardingState;
  propagation: PropagationState;
  advice: AdviceState;
  cost: CostState;
  player: PlayerState;
  playground: PlaygroundState;
  compare: CompareState;
  measured: MeasuredState;
  split: SplitState;
  allocators: AllocatorsState;
  launch: LaunchState;
  picture: PictureState;
}

/** The live values of each view that has some. */
export interface Live {
  advice: AdviceLive;
  clients: ClientsLive;
  cost: CostLive;
  devices: DevicesLive;
  launch: LaunchLive;
  overlay: OverlayLive;
  playground: PlaygroundLive;
  run: RunLive;
  sharding: ShardingLive;
}

/** The answer to each request. */
export interface Answers {
  name_in_notebook: string | null;
  advise: null;
  client_course: readonly ClientMetricCourse[];
  clients_in_round: Readonly<Record<string, readonly (number | null)[]>>;
  code: string;
  compile: null;
  drift: ClientDrift;
  forget: null;
  holdings: readonly (readonly number[])[];
  log: readonly string[];
  open_client: ClientValues;
  pause_run: string;
  play_round: PlayerState;
  player_page: string;
  propagation_page: string;
  resume_run: string;
  scale: ScaledState;
  search_shardings: null;
  start: null;
  stop: string;
  stop_run: string;
  stop_work: null;
  tried_propagation: PropagationState | null;
  what_if: null;
  why: Readonly<Record<string, string>>;
}
