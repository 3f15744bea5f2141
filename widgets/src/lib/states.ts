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
  facts: readonly (readonly string[])[];
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
  attributed: Readonly<Record<string, number>>;
  notes: readonly string[];
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

/** An arrangement of the devices in cells, and its picture. */
export interface MeshLayout {
  key: string;
  label: string;
  columns: number;
  rows: number;
  reading: string;
  svg: string;
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

/** A collective: the bytes that one device sends per call, and the device pairs of a permutation. */
export interface MeshCollective {
  name: string;
  kind: string;
  axes: readonly string[];
  sent: number;
  pairs: readonly (readonly [number, number])[];
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

/** Predicted cost of a stage; `unknown` explains missing figures. */
export interface StageCost {
  stage: string;
  kind: string;
  name: string;
  flops: number | null;
  elementwise: number | null;
  accessed: number | null;
  wire: Readonly<Record<string, number>>;
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

/** Predicted cost of a program on one target. */
export interface TargetCost {
  target: string;
  chip: string;
  seconds: number | null;
  roofline: string | null;
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

/** The present state of a group of nodes. */
export interface GroupState {
  said: string;
  hue: string;
  load: string;
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
  device_count: number;
  total: string;
  fullest: string;
  notes: readonly string[];
  can_try: boolean;
  propagation: PropagationState | null;
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
