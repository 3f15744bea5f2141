// Links drawn over the picture of a mesh: what a collective sends over which of them.
import { replace, s, uniqueId } from "../lib/dom";
import { formatBytes } from "../lib/format";
import type { Mesh } from "./mesh-data";
import { groupsOver, isRing, type Link, ringLinks, routed, type Torus, torusLinks } from "./mesh-links";

export interface Sending {
  name: string;
  kind: string;
  axes: readonly string[];
  /** Bytes that one device sends in one call. */
  sent: number;
}
export interface Spot {
  x: number;
  y: number;
  /** Half of the width and of the height of what stands there. */
  half: readonly [number, number];
}
export interface Links {
  links: readonly Link[];
  /** Links of the torus that carry nothing now. */
  idle: readonly Link[];
  words: string;
}

const MOST = 640; // links drawn at once; beyond, those of one group
const INSIDE = 5; // pixels that a link reaches over the edge of a card
const WIDEST = 5;
const NONE: Links = { links: [], idle: [], words: "" };

/** What is drawn for a collective; `torus` where devices are shown at their coordinates. */
export function linksOf(mesh: Mesh, sending: Sending | null, torus: Torus | null, device: number): Links {
  const count = mesh.ids.length;
  const idle = torus && count <= MOST ? torusLinks(torus) : [];
  if (!sending) return { ...NONE, idle };
  const axes = sending.axes.join(" and ");
  if (!isRing(sending.kind)) {
    const words = `${sending.name} (${sending.kind}) is no ring: every device sends ${formatBytes(sending.sent)} to the others of its group over ${axes}.`;
    return { links: [], idle, words };
  }
  const over = sending.axes.map((name) => mesh.axes.findIndex((axis) => axis.name === name));
  const positions = mesh.axes.map((_, axis) => Float32Array.from(mesh.ids, (_id, i) => mesh.position(i, axis)));
  const groups = groupsOver(positions, over, count);
  const few = count <= MOST ? groups : groups.filter((group) => group.includes(Math.max(device, 0)));
  const rings = few.flatMap((group) => ringLinks(group, sending.sent));
  const links = torus ? routed(rings, torus) : rings;
  const [least, most] = [Math.min(...links.map((link) => link.bytes)), Math.max(...links.map((link) => link.bytes))];
  const each = least === most ? formatBytes(most) : `${formatBytes(least)} to ${formatBytes(most)}`;
  const part = few.length < groups.length ? `, of ${groups.length} rings the selected device's` : "";
  const how = torus ? "each link of the torus carries" : "each link of the rings carries";
  const words = `${sending.name} over ${axes}: ${how} ${each} in one call${part} (rings in the mesh's order; the compiler may choose others).`;
  return { links, idle, words };
}

/** Draws links between spots; those that have to go around others are bent. */
export function drawLinks(svg: SVGSVGElement, { links, idle }: Links, spotOf: (device: number) => Spot | null): void {
  const head = uniqueId();
  const shape = s("path", { d: "M0 0 L6 3 L0 6 z", class: "wb-linkhead" });
  const marker = s(
    "marker",
    {
      id: head,
      viewBox: "0 0 6 6",
      refX: 5,
      refY: 3,
      markerWidth: 7,
      markerHeight: 7,
      orient: "auto",
      markerUnits: "userSpaceOnUse",
    },
    shape,
  );
  const most = Math.max(1, ...links.map(({ bytes }) => bytes));
  const both = new Set(links.map(({ from, to }) => `${to}>${from}`));
  const lines = [
    ...idle.map((link) => ({ link, look: "wb-link-idle", width: 1, shift: 0 })),
    ...links.map((link) => ({
      link,
      look: "wb-link-busy",
      width: 1.5 + (WIDEST - 1.5) * (link.bytes / most),
      shift: both.has(`${link.from}>${link.to}`) ? 4 : 0,
    })),
  ].flatMap(({ link, look, width, shift }) => {
    const [from, to] = [spotOf(link.from), spotOf(link.to)];
    if (!from || !to) return [];
    const path = s("path", {
      d: pathBetween(from, to, shift, link.wrap),
      class: `wb-meshlink ${look}${link.wrap ? " wb-link-wrap" : ""}`,
      "stroke-width": width.toFixed(1),
      "data-link": `${link.from}>${link.to}`,
      ...(link.bytes ? { "marker-end": `url(#${head})` } : {}),
    });
    if (link.bytes) path.append(s("title", {}, formatBytes(link.bytes)));
    return [path];
  });
  replace(svg, s("defs", {}, marker), lines);
}

/** Straight between neighbours, from edge to edge; bent around what stands between. */
export function pathBetween(from: Spot, to: Spot, shift: number, wrap: boolean): string {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  const [sx, sy] = [-uy * shift, ux * shift];
  const edge = ({ half }: Spot) =>
    Math.max(0, Math.min(half[0] / Math.max(Math.abs(ux), 1e-6), half[1] / Math.max(Math.abs(uy), 1e-6)) - INSIDE);
  const gap = length - edge(from) - edge(to);
  const near = !wrap && gap <= 1.2 * Math.min(2 * from.half[0], 2 * from.half[1]) + 2 * INSIDE;
  if (near) {
    const start = [from.x + ux * edge(from) + sx, from.y + uy * edge(from) + sy];
    const end = [to.x - ux * edge(to) + sx, to.y - uy * edge(to) + sy];
    return `M${start.map((value) => value.toFixed(1))} L${end.map((value) => value.toFixed(1))}`;
  }
  // Along the lower or the right edge, so that text in the middle stays free.
  const flat = Math.abs(dx) >= Math.abs(dy);
  const out: readonly [number, number] = flat ? [0, 1] : [1, 0];
  const room = flat ? from.half[1] : from.half[0];
  const lift = room + Math.min(26, 8 + length / 12);
  const [ax, ay] = [from.x + out[0] * (room - INSIDE), from.y + out[1] * (room - INSIDE)];
  const [bx, by] = [to.x + out[0] * (room - INSIDE), to.y + out[1] * (room - INSIDE)];
  const [cx, cy] = [out[0] * lift, out[1] * lift];
  const at = (x: number, y: number) => `${x.toFixed(1)},${y.toFixed(1)}`;
  return `M${at(ax, ay)} C${at(from.x + cx + 0.12 * dx, from.y + cy + 0.12 * dy)} ${at(to.x + cx - 0.12 * dx, to.y + cy - 0.12 * dy)} ${at(bx, by)}`;
}
