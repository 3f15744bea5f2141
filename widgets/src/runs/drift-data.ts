import type { ClientDrift } from "../lib/states";
// The plane of a drift picture: the same scale on both axes, and marks at round numbers.
export type Point = readonly [number, number];

export interface Plane {
  x: (value: number) => number;
  y: (value: number) => number;
  marksX: number[];
  marksY: number[];
  step: number;
}

const MARKS = 6;

/** The distance of marks: 1, 2 or 5 times a power of ten, about so many on a span. */
export function markStep(span: number, count = MARKS): number {
  const rough = Math.max(span, 1e-12) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5].find((each) => each * power >= rough) ?? 10);
}

function marksIn(low: number, high: number, step: number): number[] {
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

/** A plane that holds all points in a box of pixels. */
export function planeOf(
  points: readonly Point[],
  box: { left: number; top: number; width: number; height: number },
): Plane {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const perPixel = 1.1 * Math.max((right - left) / box.width, (high - low) / box.height, 1e-12);
  const [middleX, middleY] = [(left + right) / 2, (low + high) / 2];
  const [halfX, halfY] = [(perPixel * box.width) / 2, (perPixel * box.height) / 2];
  const step = markStep(2 * Math.max(halfX, halfY));
  return {
    x: (value) => box.left + box.width / 2 + (value - middleX) / perPixel,
    y: (value) => box.top + box.height / 2 - (value - middleY) / perPixel,
    marksX: marksIn(middleX - halfX, middleX + halfX, step),
    marksY: marksIn(middleY - halfY, middleY + halfY, step),
    step,
  };
}

/** What the picture shows, in words. */
export function sentenceOf({ round, clients, steps, apart, moved }: ClientDrift): string {
  const mean = apart.reduce((sum, each) => sum + each, 0) / (apart.length || 1);
  const ratio = moved > 0 ? `, ${(mean / moved).toPrecision(2)} times the distance of that mean from the server` : "";
  const last = steps[steps.length - 1];
  return (
    `Round ${round + 1}, ${clients.length} clients: after ${last} local step${last === 1 ? "" : "s"}, clients are on ` +
    `average ${mean.toPrecision(2)} away from the mean of all clients${ratio} (${moved.toPrecision(2)}). ` +
    "Distances are over all parameters."
  );
}
