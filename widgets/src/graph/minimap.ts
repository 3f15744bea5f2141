// The whole graph, small, with the part that is in view: where a graph is larger than its place.
import { liveCanvas } from "../lib/canvas";
import { h } from "../lib/dom";
import { clamp } from "../lib/keyboard";
import { token } from "../lib/theme";
import type { ViewContext } from "../lib/view";
import { type Layout, type Place, TITLE } from "./routes";

export const MOST = [170, 120] as const; // pixels
const MOST_SHARE = 0.3; // of a side of the view, so that a map of a small view leaves room for the graph
const SMALLER = 1.3; // a graph that is larger than its place by less needs no map
const MARGIN = 8; // pixels between the map and the edges, as in graph.css
const ARROW = 8; // pixels: as wide as the head of an arrow
const WORDS = 180; // pixels of a title, about
const LEAST = 12; // pixels of a side: a map of a very long graph still can be hit

export interface Window {
  x: number;
  y: number;
  width: number;
  height: number;
}
export interface Box {
  place: Place;
  kind: string;
  open: boolean;
}

/** Pixels of the map for one of the layout; null where all of the graph is in view anyway. */
export function mapScale(layout: Layout, scale: number, room: readonly [number, number]): number | null {
  const { width, height } = layout;
  if (width * scale <= room[0] * SMALLER && height * scale <= room[1] * SMALLER) return null;
  const most = MOST.map((size, axis) => Math.min(size, MOST_SHARE * room[axis]));
  return Math.min(most[0] / width, most[1] / height);
}

/** The part of the layout that a view at this scale and offset shows, within the layout. */
export function inView(
  layout: Layout,
  scale: number,
  offset: readonly [number, number],
  room: readonly [number, number],
): Window {
  const x = clamp(-offset[0] / scale, 0, layout.width);
  const y = clamp(-offset[1] / scale, 0, layout.height);
  const right = clamp((room[0] - offset[0]) / scale, 0, layout.width);
  const bottom = clamp((room[1] - offset[1]) / scale, 0, layout.height);
  return { x, y, width: right - x, height: bottom - y };
}

const CORNERS = ["right bottom", "left bottom", "right top", "left top"] as const;
export type Corner = (typeof CORNERS)[number];

/** What a map should not cover: closed boxes, titles of open boxes, and arrows, a thin box for each of their pieces. */
export function obstacles(layout: Layout, boxes: readonly Box[]): Window[] {
  const titles = boxes.map(({ place, open }) =>
    open ? { ...place, width: Math.min(place.width, WORDS), height: TITLE } : place,
  );
  const pieces = layout.routes.flatMap(({ points }) =>
    points.slice(1).map(([x, y], i) => ({
      x: Math.min(x, points[i][0]) - ARROW / 2,
      y: Math.min(y, points[i][1]) - ARROW / 2,
      width: Math.abs(x - points[i][0]) + ARROW,
      height: Math.abs(y - points[i][1]) + ARROW,
    })),
  );
  return [...titles, ...pieces];
}

/** The corner of the view in which a map of this size covers least of these; where it is now, if that is as good. */
export function quietCorner(
  boxes: readonly Window[],
  map: readonly [number, number],
  room: readonly [number, number],
  present: Corner,
): Corner {
  const covered = (corner: Corner): number => {
    const left = corner.startsWith("right") ? room[0] - map[0] - MARGIN : MARGIN;
    const top = corner.endsWith("bottom") ? room[1] - map[1] - MARGIN : MARGIN;
    const overlap = (from: number, size: number, start: number, length: number) =>
      Math.max(0, Math.min(from + size, start + length) - Math.max(from, start));
    return boxes.reduce(
      (sum, { x, y, width, height }) => sum + overlap(x, width, left, map[0]) * overlap(y, height, top, map[1]),
      0,
    );
  };
  return [present, ...CORNERS].reduce((best, corner) => (covered(corner) < covered(best) ? corner : best));
}

export class Minimap {
  readonly node = h("canvas", { class: "wb-minimap", "aria-hidden": "true", hidden: true });
  private layout: Layout = { places: new Map(), routes: [], width: 1, height: 1 };
  private boxes: readonly Box[] = [];
  private covered: readonly Window[] = [];
  private window: Window = { x: 0, y: 0, width: 0, height: 0 };
  private scale = 1;
  private corner: Corner = "right bottom";
  private readonly draw: () => void;

  /** `move` gets the point of the layout that shall be in the middle of the view. */
  constructor(context: ViewContext, move: (x: number, y: number) => void) {
    this.draw = liveCanvas(context, this.node, (pen) => this.paint(pen));
    const go = (event: PointerEvent) => {
      event.stopPropagation(); // the graph below is not dragged
      const box = this.node.getBoundingClientRect();
      move((event.clientX - box.left) / this.scale, (event.clientY - box.top) / this.scale);
    };
    this.node.addEventListener("pointerdown", (event) => {
      this.node.setPointerCapture(event.pointerId);
      go(event);
    });
    this.node.addEventListener("pointermove", (event) => {
      if (event.buttons) go(event);
    });
  }

  set(layout: Layout, boxes: readonly Box[]): void {
    this.layout = layout;
    this.boxes = boxes;
    this.covered = obstacles(layout, boxes);
  }

  look(scale: number, offset: readonly [number, number], room: readonly [number, number]): void {
    const map = room[0] ? mapScale(this.layout, scale, room) : null;
    this.node.hidden = map === null;
    if (map === null) return;
    this.scale = map;
    this.window = inView(this.layout, scale, offset, room);
    const size = [Math.max(LEAST, this.layout.width * map), Math.max(LEAST, this.layout.height * map)] as const;
    this.node.style.width = `${size[0]}px`;
    this.node.style.height = `${size[1]}px`;
    const shown = this.covered.map(({ x, y, width, height }) => ({
      x: x * scale + offset[0],
      y: y * scale + offset[1],
      width: width * scale,
      height: height * scale,
    }));
    this.corner = quietCorner(shown, size, room, this.corner);
    this.node.dataset.corner = this.corner;
    this.draw();
  }

  private paint(pen: CanvasRenderingContext2D): void {
    const { scale } = this;
    const colour = (name: string) => token(this.node, name === "none" || !name ? "server" : name);
    for (const { place, kind, open } of this.boxes) {
      pen.fillStyle = pen.strokeStyle = colour(kind === "collective" ? "reduce" : kind);
      const size = [place.x, place.y, place.width, place.height].map((value) => value * scale);
      if (open) pen.strokeRect(size[0], size[1], size[2], size[3]);
      else pen.fillRect(size[0], size[1], Math.max(1, size[2]), Math.max(1, size[3]));
    }
    const { x, y, width, height } = this.window;
    pen.strokeStyle = token(this.node, "accent");
    pen.lineWidth = 2;
    pen.strokeRect(x * scale + 1, y * scale + 1, Math.max(3, width * scale - 2), Math.max(3, height * scale - 2));
  }
}
