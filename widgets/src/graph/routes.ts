// Places and routes of a layout, and how routes are drawn; apart from what makes layouts, which a worker holds.
import type { Arc } from "./model";

export interface Place {
  x: number;
  y: number;
  width: number;
  height: number;
}
export type Point = readonly [number, number];
/** What flows between two members of one group, with everything that is inside of them. */
export interface Route extends Arc {
  points: Point[];
}
export interface Layout {
  places: Map<number, Place>;
  routes: Route[];
  width: number;
  height: number;
}

export const TITLE = 24; // pixels of the title of a frame

/** A route as a smooth path: through the middles of its pieces, bent at its points. */
export function pathOf(points: readonly Point[]): string {
  if (points.length < 2) return "";
  const at = ([x, y]: Point) => `${x.toFixed(1)},${y.toFixed(1)}`;
  const middle = (a: Point, b: Point): Point => [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
  let text = `M${at(points[0])}`;
  for (let i = 1; i < points.length - 1; i++)
    text += ` Q${at(points[i])} ${at(i === points.length - 2 ? points[i + 1] : middle(points[i], points[i + 1]))}`;
  return points.length === 2 ? `${text} L${at(points[1])}` : text;
}

/** A curve from one box to another at any depth. */
export function crossPath(from: Place, to: Place): string {
  const down = to.y >= from.y + from.height - 1;
  const start: Point = [from.x + from.width / 2, down ? from.y + from.height : from.y];
  const end: Point = [to.x + to.width / 2, down ? to.y : to.y + to.height];
  const bend = Math.max(30, Math.abs(end[1] - start[1]) / 3) * (down ? 1 : -1);
  return `M${start[0]},${start[1]} C${start[0]},${start[1] + bend} ${end[0]},${end[1] - bend} ${end[0]},${end[1]}`;
}
