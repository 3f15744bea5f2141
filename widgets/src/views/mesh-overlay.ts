// Links drawn over the picture of a mesh: what a collective sends over which of them.

import { replace, s, uniqueId } from "../lib/dom";
import { formatBytes, plural } from "../lib/format";
import type { Box } from "../lib/pixels";
import type { MeshCollective } from "../lib/states";
import type { Mesh } from "./mesh-data";
import { groupsOver, isRing, type Link, ringLinks, routed, type Torus, torusLinks } from "./mesh-links";

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

export const spotIn = ([x, y, width, height]: Box): Spot => ({
  x: x + width / 2,
  y: y + height / 2,
  half: [width / 2, height / 2],
});

const MOST = 640; // links drawn at once; beyond, those of one group
const INSIDE = 3; // pixels that a link reaches over the edge of a card
const STUB = 11; // and away from it, where it goes around
const WIDEST = 4;
const NONE: Links = { links: [], idle: [], words: "" };

/** The messages of a permute, which the compiled program names one by one. */
function pairLinks(sending: MeshCollective, pairs: readonly (readonly [number, number])[], torus: Torus | null) {
  const messages = pairs.map(([from, to]): Link => ({ from, to, bytes: sending.sent, wrap: false }));
  const words =
    `${sending.label}: ${plural(pairs.length, "device")} ` +
    `${pairs.length === 1 ? "sends" : "send"} ${formatBytes(sending.sent)} each to one other device in one call.`;
  return { links: torus ? routed(messages, torus) : messages, words };
}

/** To whom a device sends, of a collective that is not a ring. */
function recipients(mesh: Mesh, { kind, axes, sent }: MeshCollective): string {
  if (kind.startsWith("collective-permute")) return " to at most one other device";
  const size = mesh.axes.reduce((product, { name, size }) => product * (axes.includes(name) ? size : 1), 1);
  if (!kind.startsWith("all-to-all") || size < 2) return " to the others of its group";
  return `, ${formatBytes(sent / (size - 1))} to each of the ${size - 1} others of its group,`;
}

/** What is drawn for a collective; `torus` where devices are shown at their coordinates. */
export function linksOf(mesh: Mesh, sending: MeshCollective | null, torus: Torus | null, device: number): Links {
  const count = mesh.ids.length;
  const idle = torus && count <= MOST ? torusLinks(torus) : [];
  if (!sending) return { ...NONE, idle };
  if (sending.pairs?.length) return { ...pairLinks(sending, sending.pairs, torus), idle };
  if (!isRing(sending.kind)) {
    const amount = `${formatBytes(sending.sent)}${recipients(mesh, sending)}`;
    const words = `${sending.label}: not drawn as a ring. Every device sends ${amount} in one call.`;
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
  const part = few.length < groups.length ? `; shown: the selected device's ring, of ${groups.length} rings` : "";
  const how = torus ? "each link of the torus carries" : "each link of the rings carries";
  const around = links.some(({ wrap }) => wrap) ? " Dashed: wrap-around links." : "";
  const aside = torus && torus.dimensions > 2 ? " Slanted: to another panel." : "";
  const words =
    `${sending.label}: ${how} ${each} in one call${part} ` +
    `(rings in the mesh's order; the compiler may choose others).${around}${aside}`;
  return { links, idle, words };
}

/** Draws links between spots; those that have to go around others are bent. */
export function drawLinks(layer: SVGGElement, { links, idle }: Links, spotOf: (device: number) => Spot): void {
  const head = uniqueId();
  const shape = s("path", { d: "M0 0 L6 3 L0 6 z", class: "wb-linkhead" });
  const marker = s(
    "marker",
    {
      id: head,
      viewBox: "0 0 6 6",
      refX: 5,
      refY: 3,
      markerWidth: 11,
      markerHeight: 11,
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
  ].map(({ link, look, width, shift }) => {
    const path = s("path", {
      d: pathBetween(spotOf(link.from), spotOf(link.to), shift, link.wrap),
      class: `wb-meshlink ${look}${link.wrap ? " wb-link-wrap" : ""}`,
      "stroke-width": width.toFixed(1),
      "data-link": `${link.from}>${link.to}`,
      ...(link.bytes ? { "marker-end": `url(#${head})` } : {}),
    });
    if (link.bytes) path.append(s("title", {}, formatBytes(link.bytes)));
    return path;
  });
  replace(layer, s("defs", {}, marker), lines);
}

const DIAGONAL = [0.6, 0.8];

/** From the middle of a spot to its edge in a direction. */
const edgeOf = ({ half }: Spot, x: number, y: number): number =>
  Math.min(half[0] / Math.max(Math.abs(x), 1e-6), half[1] / Math.max(Math.abs(y), 1e-6));

function point(spot: Spot, x: number, y: number, away: number, shift: number): string {
  return `${(spot.x + x * away - y * shift).toFixed(1)},${(spot.y + y * away + x * shift).toFixed(1)}`;
}

const line = (from: string, to: string): string => `M${from} L${to}`;

/**
 * Straight between neighbours, from edge to edge; from the end of a row to the start of the next between the two rows.
 * What others stand between leaves one place and enters the other: in the picture of a torus a link that goes around
 * crosses nothing.
 */
export function pathBetween(from: Spot, to: Spot, shift: number, wrap: boolean): string {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  const [ux, uy] = [dx / length, dy / length];
  const gap = length - edgeOf(from, ux, uy) - edgeOf(to, ux, uy);
  const straight = Math.abs(dx) < 1 || Math.abs(dy) < 1;
  if (!wrap && straight && gap <= 1.2 * Math.min(2 * from.half[0], 2 * from.half[1]))
    return line(
      point(from, ux, uy, edgeOf(from, ux, uy) - INSIDE, shift),
      point(to, ux, uy, INSIDE - edgeOf(to, ux, uy), shift),
    );
  const down = Math.sign(dy);
  const between = Math.abs(dy) - from.half[1] - to.half[1];
  if (!wrap && !straight && between > 0 && between <= 2 * from.half[1]) {
    const [start, end] = [from.y + down * (from.half[1] - INSIDE), to.y - down * (to.half[1] - INSIDE)];
    return `M${from.x.toFixed(1)},${start.toFixed(1)} V${(from.y + dy / 2).toFixed(1)} H${to.x.toFixed(1)} V${end.toFixed(1)}`;
  }
  const forward = down * 2 + Math.sign(dx) > 0 ? 1 : -1;
  const around = straight ? [-ux, -uy] : [0, -down];
  const [ox, oy] = wrap ? around : DIAGONAL.map((value) => forward * value);
  const [out, into] = [edgeOf(from, ox, oy), edgeOf(to, ox, oy)];
  const at = (spot: Spot, away: number) => point(spot, ox, oy, away, shift);
  return `${line(at(from, out - INSIDE), at(from, out + STUB))} ${line(at(to, -into - STUB), at(to, INSIDE - into))}`;
}
