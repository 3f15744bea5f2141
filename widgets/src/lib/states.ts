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

/** State of the memory view. */
export interface MemoryState {
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
