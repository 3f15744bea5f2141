// A run prepared for drawing: rows from the top to the bottom, and what is found at a place.

import type { TimelinePath, TimelineState } from "../lib/states";
import {
  type Columns,
  lowerBound,
  type Prefixes,
  prefixesOf,
  type Slices,
  slicesOf,
  type Track,
  tracksOf,
} from "./spans";

/** One line of the picture: the operations of a track (`depth` −1), or its slices of one depth. */
export interface Row {
  track: number;
  depth: number;
  top: number;
  height: number;
}

export type Levels = "operations" | "stages" | "all";

const SLICE = 15;
const SPAN = 20;
const GAP = 9;
const MOST_DEPTH = 6;

/**
 * Rows of all tracks; `depth` is how many levels of slices a device has above its operations. What a device does beside
 * that, its other lanes, has operations only: the first lane names stage and functions.
 */
export function rowsOf(lanes: readonly number[], depth: number): { rows: Row[]; height: number } {
  const rows: Row[] = [];
  let top = GAP / 2;
  for (let track = 0; track < lanes.length; track++) {
    if (lanes[track]) top -= GAP - 2;
    for (let level = 0; level < (lanes[track] ? 0 : depth); level++) {
      rows.push({ track, depth: level, top, height: SLICE });
      top += SLICE + 1;
    }
    rows.push({ track, depth: -1, top, height: SPAN });
    top += SPAN + GAP;
  }
  return { rows, height: top };
}

export const depthOf = (levels: Levels, depth: number): number =>
  levels === "operations" ? 0 : levels === "stages" ? Math.min(1, depth) : Math.min(depth, MOST_DEPTH);

/** How many spans before the i-th have one of the wanted names, per track: tells whether a merged bar holds one. */
export function countBefore(columns: Columns, track: Track, wanted: Uint8Array): Uint32Array {
  const before = new Uint32Array(track.spans.length + 1);
  for (let i = 0; i < track.spans.length; i++) before[i + 1] = before[i] + wanted[columns.name[track.spans[i]]];
  return before;
}

export class Scene {
  readonly tracks: readonly Track[];
  readonly prefixes: Prefixes;
  readonly end: number;
  rows: Row[] = [];
  height = 0;
  private readonly slices = new Map<number, Slices>();

  constructor(
    readonly data: TimelineState,
    readonly columns: Columns,
  ) {
    this.tracks = tracksOf(columns, data.devices.length);
    this.prefixes = prefixesOf(data.paths);
    this.end = Math.max(1e-9, ...this.tracks.map(({ end }) => end[end.length - 1] ?? 0));
  }

  show(levels: Levels): void {
    const { rows, height } = this.layout(levels);
    this.rows = rows;
    this.height = height;
  }

  private layout(levels: Levels): { rows: Row[]; height: number } {
    const lanes = this.tracks.map(({ lane }) => lane);
    return rowsOf(lanes, depthOf(levels, this.prefixes.depth));
  }

  /** The most levels with which all devices are in sight at once; operations only where none fits. */
  fitting(height: number): Levels {
    return (["all", "stages"] as const).find((levels) => this.layout(levels).height <= height) ?? "operations";
  }

  slicesAt(track: number, depth: number): Slices {
    const key = track * 256 + depth;
    let made = this.slices.get(key);
    if (!made) {
      made = slicesOf(this.columns, this.tracks[track], this.prefixes, depth, this.data.rounds);
      this.slices.set(key, made);
    }
    return made;
  }

  rowAt(y: number): Row | undefined {
    return this.rows.find(({ top, height }) => y >= top - 1 && y < top + height + 1);
  }

  labelOf(track: number): string {
    const { device, lane } = this.tracks[track];
    return lane ? `${this.data.devices[device]} · ${lane + 1}` : this.data.devices[device];
  }

  nameOf(span: number): string {
    return this.data.names[this.columns.name[span]];
  }

  placeOf(span: number): TimelinePath | undefined {
    return this.data.paths[this.columns.path[span]];
  }

  /** The track of a span and its place there. */
  find(span: number): { track: number; at: number } | undefined {
    const start = this.columns.start[span];
    for (let track = 0; track < this.tracks.length; track++) {
      const { start: starts, spans } = this.tracks[track];
      for (let at = lowerBound(starts, start); at < spans.length && starts[at] === start; at++)
        if (spans[at] === span) return { track, at };
    }
    return undefined;
  }

  operationRow(track: number): Row | undefined {
    return this.rows.find((row) => row.track === track && row.depth < 0);
  }
}
