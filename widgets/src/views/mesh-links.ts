// What a collective sends over which links: its ring in the mesh's order, on a torus hop by hop.

export interface Link {
  from: number;
  to: number;
  bytes: number;
  /** Joins the two ends of a torus dimension, or of a ring. */
  wrap: boolean;
}
export interface Torus {
  /** Coordinates of every device, and how many each has. */
  coords: ArrayLike<number>;
  dimensions: number;
  wraps: readonly boolean[];
}

/** Kinds that send to the next device of a ring. */
const RINGS = new Set(["all-reduce", "all-gather", "reduce-scatter"]);
export const isRing = (kind: string): boolean => RINGS.has(kind.replace(/-(start|done)$/, ""));

/** Groups of devices that communicate over some axes, each in the mesh's order. */
export function groupsOver(
  positions: readonly ArrayLike<number>[],
  over: readonly number[],
  count: number,
): number[][] {
  const groups = new Map<string, number[]>();
  for (let i = 0; i < count; i++) {
    const key = positions.map((column, axis) => (over.includes(axis) ? "" : column[i])).join();
    groups.set(key, [...(groups.get(key) ?? []), i]);
  }
  return [...groups.values()];
}

/** From every device to the next of its ring; the last one closes it. */
export function ringLinks(group: readonly number[], bytes: number): Link[] {
  if (group.length < 2) return [];
  return group.map((from, i) => ({ from, to: group[(i + 1) % group.length], bytes, wrap: i === group.length - 1 }));
}

/**
 * The links of a torus that carry what is sent: one dimension after the other, the short way around. What is sent where
 * the torus has no device on the way stays as it is.
 */
export function routed(links: readonly Link[], { coords, dimensions, wraps }: Torus): Link[] {
  const at = (device: number) => Array.from({ length: dimensions }, (_, d) => coords[device * dimensions + d]);
  const count = coords.length / dimensions;
  const byPlace = new Map<string, number>();
  const low = at(0);
  const high = at(0);
  for (let device = 0; device < count; device++) {
    const place = at(device);
    if (!byPlace.has(place.join())) byPlace.set(place.join(), device);
    place.forEach((value, d) => {
      low[d] = Math.min(low[d], value);
      high[d] = Math.max(high[d], value);
    });
  }
  const sums = new Map<string, Link>();
  const put = ({ from, to, bytes, wrap }: Link) => {
    const known = sums.get(`${from}>${to}`);
    if (known) known.bytes += bytes;
    else sums.set(`${from}>${to}`, { from, to, bytes, wrap });
  };
  for (const link of links) {
    const hops = hopsOf(at(link.from), at(link.to), { low, high, wraps });
    const devices = hops.map(({ place }) => byPlace.get(place.join()));
    if (!hops.length || devices.includes(undefined)) {
      put(link);
      continue;
    }
    let from = byPlace.get(at(link.from).join()) as number;
    hops.forEach(({ wrap }, i) => {
      const to = devices[i] as number;
      put({ from, to, bytes: link.bytes, wrap });
      from = to;
    });
  }
  return [...sums.values()];
}

interface Bounds {
  low: readonly number[];
  high: readonly number[];
  wraps: readonly boolean[];
}

function hopsOf(from: readonly number[], to: readonly number[], { low, high, wraps }: Bounds) {
  const place = [...from];
  const hops: { place: number[]; wrap: boolean }[] = [];
  for (let d = 0; d < place.length; d++) {
    const extent = high[d] - low[d] + 1;
    const straight = to[d] - place[d];
    const around = wraps[d] && 2 * Math.abs(straight) > extent;
    const step = Math.sign(straight) * (around ? -1 : 1);
    while (place[d] !== to[d]) {
      const next = place[d] + step;
      const wrap = next < low[d] || next > high[d];
      place[d] = wrap ? (step > 0 ? low[d] : high[d]) : next;
      hops.push({ place: [...place], wrap });
    }
  }
  return hops;
}

/** The links of a torus between neighbours, each once. */
export function torusLinks({ coords, dimensions, wraps }: Torus): Link[] {
  const count = coords.length / dimensions;
  const byPlace = new Map<string, number>();
  const at = (device: number) => Array.from({ length: dimensions }, (_, d) => coords[device * dimensions + d]);
  for (let device = 0; device < count; device++)
    if (!byPlace.has(at(device).join())) byPlace.set(at(device).join(), device);
  const links: Link[] = [];
  for (let d = 0; d < dimensions; d++) {
    const values = [...byPlace.values()].map((device) => at(device)[d]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    for (const device of byPlace.values()) {
      const place = at(device);
      const wrap = place[d] === high;
      if (wrap && (!wraps[d] || high - low < 2)) continue;
      place[d] = wrap ? low : place[d] + 1;
      const to = byPlace.get(place.join());
      if (to !== undefined) links.push({ from: device, to, bytes: 0, wrap });
    }
  }
  return links;
}
