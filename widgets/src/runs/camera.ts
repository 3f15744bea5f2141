// What part of a time axis is in sight: zooming, moving, ticks.
import { formatSeconds } from "../lib/format";
import { ticks } from "../lib/scale";

export interface Camera {
  from: number;
  to: number;
}

const CLOSEST = 2e-9; // seconds in sight at most zoom

const moved = (camera: Camera, from: number, span: number): Camera =>
  from === camera.from && from + span === camera.to ? camera : { from, to: from + span };

/** Keeps the camera inside of 0 … `end`. */
export function inside(camera: Camera, end: number): Camera {
  const span = Math.min(Math.max(camera.to - camera.from, Math.min(CLOSEST, end)), end);
  const from = Math.min(Math.max(camera.from, 0), end - span);
  return moved(camera, from, span);
}

/** `factor` below 1 shows less; the moment at `share` of the width stays where it is. */
export function zoomed(camera: Camera, factor: number, share: number, end: number): Camera {
  const span = camera.to - camera.from;
  const wanted = Math.min(Math.max(span * factor, Math.min(CLOSEST, end)), end);
  const from = camera.from + share * (span - wanted);
  return inside({ from, to: from + wanted }, end);
}

/** Moves by a share of what is in sight. */
export function panned(camera: Camera, share: number, end: number): Camera {
  const by = share * (camera.to - camera.from);
  return inside({ from: camera.from + by, to: camera.to + by }, end);
}

/** Shows a stretch of time with some room around it. */
export function framed(from: number, to: number, end: number, room = 0.15): Camera {
  const margin = Math.max((to - from) * room, CLOSEST);
  return inside({ from: from - margin, to: to + margin }, end);
}

export interface Axis {
  /** Where the labels count from; 0 while they can be read as they are. */
  base: number;
  ticks: readonly { at: number; text: string }[];
}

/** Ticks of an axis; far in, they count from a moment that is named once. */
export function axisOf(camera: Camera, width: number): Axis {
  const count = Math.max(2, Math.floor(width / 110));
  const span = camera.to - camera.from;
  const deep = camera.from > 20 * span;
  const base = deep ? ticks(camera.from, camera.to, 1)[0] : 0;
  const made = ticks(camera.from - base, camera.to - base, count).map((each) => ({
    at: base + each,
    text:
      deep && each > 0
        ? `+${formatSeconds(each)}`
        : deep && each < 0
          ? `−${formatSeconds(-each)}`
          : formatSeconds(each),
  }));
  return { base, ticks: made.filter(({ at }) => at >= camera.from && at <= camera.to) };
}

/** A moment with as many digits as the zoom can tell apart. */
export function exactSeconds(moment: number, resolution: number): string {
  const units: [number, string][] = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
  ];
  const [size, unit] = units.find(([each]) => moment >= each) ?? [1e-9, "ns"];
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(Math.max(resolution, 1e-9) / size))));
  return `${(moment / size).toFixed(digits)} ${unit}`;
}
