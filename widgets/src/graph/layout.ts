// Where boxes stand: every open group is laid out by itself, in layers from top to bottom (dagre, MIT).
import { Graph as Layered, layout } from "@dagrejs/dagre";
import { type Arc, type Box, ROOT } from "./model";
import { type Layout, type Place, type Point, type Route, TITLE } from "./routes";

const PADDING = 12;
const GAP = 16;
const ROW = 760; // pixels after which members that are connected to nothing go on in the next row

type Size = (box: Box) => readonly [number, number];

/** Arcs between members of the same group: those between deeper boxes count for the members that they are in. */
export function lift(boxes: readonly Box[], arcs: readonly Arc[]): Map<number, Arc[]> {
  const parent = new Map(boxes.map((box) => [box.id, box.parent]));
  const pathOf = (id: number) => {
    const path = [id];
    for (let at = parent.get(id) ?? ROOT; at >= 0; at = parent.get(at) ?? ROOT) path.unshift(at);
    return path;
  };
  const found = new Map<string, Arc>();
  const levels = new Map<number, Arc[]>();
  for (const { from, to, bytes, values } of arcs) {
    const [first, second] = [pathOf(from), pathOf(to)];
    const depth = first.findIndex((id, i) => id !== second[i]);
    const [a, b] = [first[depth], second[depth]];
    if (depth < 0 || a === undefined || b === undefined) continue; // one is inside of the other
    const known = found.get(`${a}>${b}`);
    if (known) {
      known.bytes += bytes;
      known.values += values;
      continue;
    }
    const made = { from: a, to: b, bytes, values };
    found.set(`${a}>${b}`, made);
    const group = parent.get(a) ?? ROOT;
    levels.set(group, [...(levels.get(group) ?? []), made]);
  }
  return levels;
}

/** Places of all boxes and the routes between members; `size` is asked for boxes that are not open. */
export function arrange(boxes: readonly Box[], arcs: readonly Arc[], size: Size): Layout {
  const members = new Map<number, Box[]>();
  const shown = new Set(boxes.map(({ id }) => id));
  for (const box of boxes) {
    const parent = shown.has(box.parent) ? box.parent : ROOT;
    members.set(parent, [...(members.get(parent) ?? []), box]);
  }
  const levels = lift(boxes, arcs);
  const made = level(ROOT, members, levels, size);
  return { ...made, width: made.width + 2 * PADDING, height: made.height + 2 * PADDING };
}

/** One group: its members at places relative to it, those of open members included. */
function level(
  group: number,
  members: ReadonlyMap<number, Box[]>,
  arcs: ReadonlyMap<number, Arc[]>,
  size: Size,
): Layout {
  const inside = new Map<number, Layout>();
  const sizes = new Map<number, readonly [number, number]>();
  const all = members.get(group) ?? [];
  for (const box of all) {
    if (box.open && members.has(box.id)) {
      const made = level(box.id, members, arcs, size);
      inside.set(box.id, made);
      sizes.set(box.id, [Math.max(made.width + 2 * PADDING, size(box)[0]), made.height + TITLE + 2 * PADDING]);
    } else sizes.set(box.id, size(box));
  }
  const made = place(
    all.map(({ id }) => id),
    arcs.get(group) ?? [],
    sizes,
  );
  for (const [id, deep] of inside) {
    const { x, y, width } = made.places.get(id) as Place;
    const dx = x + (width - deep.width) / 2;
    const dy = y + TITLE + PADDING;
    for (const [inner, at] of deep.places) made.places.set(inner, { ...at, x: at.x + dx, y: at.y + dy });
    for (const route of deep.routes)
      made.routes.push({ ...route, points: route.points.map(([px, py]): Point => [px + dx, py + dy]) });
  }
  return made;
}

function place(
  ids: readonly number[],
  arcs: readonly Arc[],
  sizes: ReadonlyMap<number, readonly [number, number]>,
): Layout {
  const joined = new Set(arcs.flatMap(({ from, to }) => [from, to]));
  const made = layered(
    ids.filter((id) => joined.has(id)),
    arcs,
    sizes,
  );
  const alone = ids.filter((id) => !joined.has(id));
  const most = Math.max(ROW, made.width);
  let [x, y, row] = [0, made.height ? made.height + GAP : 0, 0];
  for (const id of alone) {
    const [width, height] = sizes.get(id) as readonly [number, number];
    if (x > 0 && x + width > most) {
      y += row + GAP;
      [x, row] = [0, 0];
    }
    made.places.set(id, { x, y, width, height });
    x += width + GAP;
    row = Math.max(row, height);
    made.width = Math.max(made.width, x - GAP);
    made.height = Math.max(made.height, y + height);
  }
  return made;
}

function layered(
  ids: readonly number[],
  arcs: readonly Arc[],
  sizes: ReadonlyMap<number, readonly [number, number]>,
): Layout {
  const places = new Map<number, Place>();
  if (!ids.length) return { places, routes: [], width: 0, height: 0 };
  const graph = new Layered({ multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: GAP, ranksep: 28, edgesep: 12, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of ids) {
    const [width, height] = sizes.get(id) as readonly [number, number];
    graph.setNode(String(id), { width, height });
  }
  for (const { from, to } of arcs) graph.setEdge(String(from), String(to), {}, `${from}>${to}`);
  layout(graph);
  for (const id of ids) {
    const { x = 0, y = 0, width = 0, height = 0 } = graph.node(String(id));
    places.set(id, { x: x - width / 2, y: y - height / 2, width, height });
  }
  const routes = arcs.map((arc): Route => {
    const made = graph.edge(String(arc.from), String(arc.to), `${arc.from}>${arc.to}`) as { points?: Corner[] };
    return { ...arc, points: (made?.points ?? []).map(({ x, y }): Point => [x, y]) };
  });
  const { width = 0, height = 0 } = graph.graph();
  return { places, routes, width, height };
}

interface Corner {
  x: number;
  y: number;
}
