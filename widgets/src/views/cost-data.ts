// What a program costs on one target, as Python sends it.
import type { Chip } from "../lib/roofline";

export interface StageCost {
  stage: string;
  kind: string;
  name: string;
  flops: number | null;
  elementwise: number | null;
  accessed: number | null;
  wire: Record<string, number>;
  wire_seconds: Record<string, number>;
  compute: number | null;
  memory: number | null;
  collective: number | null;
  seconds: number | null;
  bound: string;
  /** Why figures of it are not predicted. */
  unknown: string[];
}
export interface Scaling {
  placement: string;
  clients: number[];
  clients_now: number;
  model: number[];
  at_once: (number | string)[];
  at_once_now: string;
  devices: number[];
  devices_now: number;
  axes: string;
  chips: string[];
  chip_now: string | null;
}
/** The lines of a program under the roofs of a chip. */
export interface LinesRoofline {
  chip: Chip;
  /** The program names no chip: this one is taken. */
  assumed: boolean;
  /** Of compute and memory traffic of all lines, those without dots too; communication is not in it. */
  seconds: number;
  /** Seconds that collectives add to a call; null where the time of any of them is unknown. */
  communication: number | null;
  dots: {
    place: string;
    line: string | null;
    instruction: string;
    flops: number;
    bytes: number;
    seconds: number;
    dtype: string;
  }[];
  /** Lines that multiply no matrices: how many, and their share of the seconds. */
  without_products: [number, number];
}
export interface Target {
  lines: LinesRoofline | null;
  target: string;
  /** FLOPs of one device in words: their sum, and by kind. */
  total: string;
  work: string;
  /** A loop of unknown length is inside: figures are lower bounds. */
  at_least: boolean;
  chip: string;
  seconds: number | null;
  roofline: string | null;
  assumptions: string[];
  notes: string[];
  flops: number | null;
  elementwise: number | null;
  peak: number | null;
  available: number | null;
  fits: boolean | null;
  mesh: string;
  strategies: Record<string, string>;
  buffers: string[][];
  stages: StageCost[];
  scaling: Scaling | null;
}

/** Whether anything is counted for a stage. */
export const costsSomething = (stage: StageCost): boolean =>
  Boolean(
    stage.unknown.length ||
      stage.flops ||
      stage.elementwise ||
      stage.accessed ||
      stage.seconds ||
      Object.values(stage.wire).some(Boolean),
  );

export const axesOf = (stages: readonly StageCost[]): string[] => [
  ...new Set(stages.flatMap(({ wire }) => Object.keys(wire))),
];

/** Parts of a stage's time: compute and memory run together, so the longer of them counts, then each axis. */
export function timeParts(stage: StageCost): [string, number][] {
  const [compute, memory] = [stage.compute ?? 0, stage.memory ?? 0];
  const long: [string, number] = compute >= memory ? ["compute", compute] : ["memory", memory];
  return [long, ...Object.entries(stage.wire_seconds)];
}
