// Spans of a run as columns of numbers: tracks per device, slices of stages and functions above them, sums over areas.

export const KINDS = ["compute", "collective", "wait", "other", "copy"] as const;
export type Kind = (typeof KINDS)[number];
export const NOTHING = 0xffffffff;

const KIND_BITS = 3;
const KIND_MASK = (1 << KIND_BITS) - 1;

/** One number per span, in order of time. */
export interface Columns {
  /** Seconds from the start of the first span. */
  start: Float64Array;
  seconds: Float32Array;
  /** Device and kind in one number. */
  place: Uint32Array;
  name: Uint32Array;
  path: Uint32Array;
  /** Of a waiting span, the span that is waited for. */
  awaited: Uint32Array;
}

export const deviceOf = (columns: Columns, span: number): number => columns.place[span] >>> KIND_BITS;
export const kindOf = (columns: Columns, span: number): number => columns.place[span] & KIND_MASK;
export const placeOf = (device: number, kind: number): number => (device << KIND_BITS) | kind;
export const endOf = (columns: Columns, span: number): number => columns.start[span] + columns.seconds[span];

/** Spans of one device that follow each other; a device that does two things at once has two tracks. */
export interface Track {
  device: number;
  lane: number;
  /** Indices into the columns. */
  spans: Uint32Array;
  start: Float64Array;
  end: Float64Array;
  /** Per kind, the seconds of all spans before the i-th; one entry more than there are spans. */
  before: readonly Float64Array[];
}

/** The first index whose value is not below `wanted`. */
export function lowerBound(sorted: Float64Array, wanted: number, from = 0, to = sorted.length): number {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Clocks of a profiler are whole nanoseconds, and 32-bit durations round: that much overlap is none. */
const SLACK = 2e-9;

function lanesOf(columns: Columns, spans: readonly number[]): number[][] {
  const lanes: number[][] = [];
  const ends: number[] = [];
  for (const span of spans) {
    const start = columns.start[span];
    const slack = SLACK + 2e-7 * columns.seconds[span];
    let lane = ends.findIndex((end) => end <= start + slack);
    if (lane < 0) lane = ends.length;
    (lanes[lane] ??= []).push(span);
    ends[lane] = Math.max(ends[lane] ?? 0, endOf(columns, span) - slack);
  }
  return lanes;
}

function trackOf(columns: Columns, device: number, lane: number, spans: readonly number[]): Track {
  const count = spans.length;
  const start = new Float64Array(count);
  const end = new Float64Array(count);
  const before = KINDS.map(() => new Float64Array(count + 1));
  for (let i = 0; i < count; i++) {
    const span = spans[i];
    start[i] = columns.start[span];
    end[i] = Math.max(endOf(columns, span), i ? end[i - 1] : 0);
    const kind = kindOf(columns, span);
    for (let k = 0; k < KINDS.length; k++) before[k][i + 1] = before[k][i] + (k === kind ? columns.seconds[span] : 0);
  }
  return { device, lane, spans: Uint32Array.from(spans), start, end, before };
}

/** Tracks in the order of devices. */
export function tracksOf(columns: Columns, devices: number): Track[] {
  const perDevice: number[][] = Array.from({ length: devices }, () => []);
  for (let span = 0; span < columns.start.length; span++) perDevice[deviceOf(columns, span)].push(span);
  return perDevice.flatMap((spans, device) =>
    lanesOf(columns, spans).map((lane, number) => trackOf(columns, device, number, lane)),
  );
}

/** Stretches of time with one label, such as a stage or a function. */
export interface Slices {
  start: Float64Array;
  end: Float64Array;
  label: Uint32Array;
}

/** Names of the nested places of every path: equal prefixes have equal numbers. */
export interface Prefixes {
  depth: number;
  /** `of[path][depth]` is a number of `labels`; NOTHING where the path is shorter. */
  of: readonly Uint32Array[];
  labels: readonly string[];
}

export function prefixesOf(paths: readonly { frames: readonly string[] }[]): Prefixes {
  const known = new Map<string, number>();
  const labels: string[] = [];
  const depth = Math.max(0, ...paths.map(({ frames }) => frames.length));
  const of = paths.map(({ frames }) => {
    const row = new Uint32Array(depth).fill(NOTHING);
    let prefix = "";
    frames.forEach((frame, at) => {
      prefix += `\u0000${frame}`;
      if (!known.has(prefix)) {
        known.set(prefix, labels.length);
        labels.push(frame);
      }
      row[at] = known.get(prefix) as number;
    });
    return row;
  });
  return { depth, of, labels };
}

/** Neighbouring spans of the same place, as one slice; none reaches over the beginning of a call of the program. */
export function slicesOf(
  columns: Columns,
  track: Track,
  prefixes: Prefixes,
  depth: number,
  calls: readonly number[],
): Slices {
  const starts: number[] = [];
  const ends: number[] = [];
  const labels: number[] = [];
  let call = 0;
  let open = NOTHING;
  for (let i = 0; i < track.spans.length; i++) {
    const label = prefixes.of[columns.path[track.spans[i]]]?.[depth] ?? NOTHING;
    const before = call;
    while (call < calls.length && calls[call] <= track.start[i]) call++;
    if (label !== NOTHING && label === open && call === before) ends[ends.length - 1] = track.end[i];
    else if (label !== NOTHING) {
      starts.push(track.start[i]);
      ends.push(track.end[i]);
      labels.push(label);
    }
    open = label;
  }
  return { start: Float64Array.from(starts), end: Float64Array.from(ends), label: Uint32Array.from(labels) };
}

/** Where sorted stretches without overlap can be seen between two moments: from … to (excluded). */
export function inSight({ start, end }: Pick<Slices, "start" | "end">, from: number, to: number): [number, number] {
  return [lowerBound(end, from), lowerBound(start, to)];
}

/** What is drawn of a track: bars of a kind; `share` is how much of a bar's time is filled. */
export interface Bars {
  count: number;
  x: Float32Array;
  width: Float32Array;
  kind: Uint8Array;
  share: Float32Array;
  /** Index in the track of a bar's first span, and how many spans it stands for. */
  first: Uint32Array;
  spans: Uint32Array;
}

export function emptyBars(size: number): Bars {
  return {
    count: 0,
    x: new Float32Array(size),
    width: new Float32Array(size),
    kind: new Uint8Array(size),
    share: new Float32Array(size),
    first: new Uint32Array(size),
    spans: new Uint32Array(size),
  };
}

const ROUNDING = 1e-6; // of a pixel
const SHADES = 4; // of merged pixels, so that neighbours of nearly the same load are one bar

/**
 * Fills `bars` with what `width` pixels show of a track between two moments. A span of a pixel or more is a bar of its
 * own. Shorter ones are merged: a pixel takes the kind that fills most of it, and is as strong as it is filled. The work
 * depends on the pixels, not on the number of spans.
 */
export function mergePixels(track: Track, from: number, to: number, width: number, bars: Bars): void {
  const scale = width / (to - from);
  const [first, last] = inSight(track, from, to);
  bars.count = 0;
  let merged = false; // whether the last bar stands for a pixel, and so can be joined by the next
  const add = (x: number, wide: number, kind: number, share: number, at: number, spans: number, pixel: boolean) => {
    const last = bars.count - 1;
    const alike = pixel && merged && bars.kind[last] === kind && bars.share[last] === share;
    if (alike && bars.x[last] + bars.width[last] === x) {
      bars.width[last] += wide;
      bars.spans[last] += spans;
    } else if (bars.count < bars.x.length) {
      const next = bars.count++;
      bars.x[next] = x;
      bars.width[next] = wide;
      bars.kind[next] = kind;
      bars.share[next] = share;
      bars.first[next] = at;
      bars.spans[next] = spans;
    }
    merged = pixel;
  };
  let i = first;
  while (i < last) {
    const left = (track.start[i] - from) * scale;
    const right = (track.end[i] - from) * scale;
    if (right - left >= 1) {
      add(left, right - left, kindAt(track, i), 1, i, 1, false);
      i++;
      continue;
    }
    const pixel = Math.floor(left + ROUNDING);
    let next = lowerBound(track.start, from + (pixel + 1 - ROUNDING) / scale, i + 1, last);
    if (next - i > 1 && (track.end[next - 1] - track.start[next - 1]) * scale >= 1) next--;
    const [kind, seconds] = dominant(track, i, next);
    const share = Math.max(1, Math.min(SHADES, Math.ceil(seconds * scale * SHADES - ROUNDING))) / SHADES;
    add(pixel, 1, kind, share, i, next - i, true);
    i = next;
  }
}

export function kindAt(track: Track, i: number): number {
  for (let kind = 0; kind < KINDS.length; kind++) if (track.before[kind][i + 1] > track.before[kind][i]) return kind;
  return 0;
}

function dominant(track: Track, from: number, to: number): [number, number] {
  let best = 0;
  let most = -1;
  let sum = 0;
  for (let kind = 0; kind < KINDS.length; kind++) {
    const seconds = track.before[kind][to] - track.before[kind][from];
    sum += seconds;
    if (seconds > most) {
      most = seconds;
      best = kind;
    }
  }
  return [best, sum];
}

/** Seconds per kind of a track between two moments; spans that reach over an end count with what lies inside. */
export function sumsBetween(track: Track, from: number, to: number): number[] {
  const [first, last] = inSight(track, from, to);
  const sums = KINDS.map((_, kind) => (last > first ? track.before[kind][last] - track.before[kind][first] : 0));
  if (last <= first) return sums;
  const cut = (i: number, seconds: number) => {
    if (seconds > 0) sums[kindAt(track, i)] -= seconds;
  };
  cut(first, from - track.start[first]);
  cut(last - 1, track.end[last - 1] - to);
  return sums;
}

export interface OperationSum {
  name: number;
  kind: number;
  count: number;
  seconds: number;
  longest: number;
}

/** Every operation of some tracks between two moments, the largest sum first. */
export function operationsBetween(
  columns: Columns,
  tracks: readonly Track[],
  from: number,
  to: number,
): OperationSum[] {
  const found = new Map<number, OperationSum>();
  for (const track of tracks) {
    const [first, last] = inSight(track, from, to);
    for (let i = first; i < last; i++) {
      const span = track.spans[i];
      const kind = kindOf(columns, span);
      const key = columns.name[span] * KINDS.length + kind;
      const seconds = Math.min(track.end[i], to) - Math.max(track.start[i], from);
      const known = found.get(key);
      if (!known) found.set(key, { name: columns.name[span], kind, count: 1, seconds, longest: seconds });
      else {
        known.count++;
        known.seconds += seconds;
        known.longest = Math.max(known.longest, seconds);
      }
    }
  }
  return [...found.values()].sort((a, b) => b.seconds - a.seconds);
}

/** The span of a track at a moment, or the nearest within `slack` seconds; -1 where there is none. */
export function spanAt(track: Track, moment: number, slack: number): number {
  const i = lowerBound(track.end, moment);
  let best = -1;
  let nearest = slack;
  for (const at of [i - 1, i, i + 1]) {
    if (at < 0 || at >= track.spans.length) continue;
    const away = Math.max(track.start[at] - moment, moment - track.end[at], 0);
    if (away < nearest || (away === 0 && best < 0)) {
      nearest = away;
      best = at;
    }
    if (away === 0) return at;
  }
  return best;
}
