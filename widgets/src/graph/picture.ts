// The graph as SVG: frames, boxes, routes. Boxes stay the same elements between drawings, so that they can move.
import { s, setTabIndex, uniqueId } from "../lib/dom";
import { formatBytes } from "../lib/format";
import type { Labels, Words } from "./labels";
import type { Arc, Box } from "./model";
import { crossPath, type Layout, type Place, pathOf, type Route, TITLE } from "./routes";

const LETTER = 7.8; // pixels of a letter of a title
const SMALL = 6.6;
const HEIGHT = 40;
const LEAST_SHARE = 0.005;
const FEW_ROUTES = 30; // up to here every route is labelled with its bytes

export interface Scene {
  boxes: readonly Box[];
  arcs: readonly Arc[];
  layout: Layout;
  labels: Labels;
  cursor: number;
  on: { choose(id: number): void; toggle(id: number): void; key(event: KeyboardEvent, id: number): void };
}
export interface Drawn {
  root: SVGSVGElement;
  world: SVGGElement;
  nodes: Map<number, SVGGElement>;
  scene: Scene;
  look(scale: number, offset: readonly [number, number]): void;
  mark(chosen: number | null, marked: ReadonlySet<number | null>, cursor: number): void;
  focus(id: number): void;
}

/** The size of a closed box. */
export function measure({ title, facts }: Words): readonly [number, number] {
  return [Math.max(96, LETTER * title.length + 44, SMALL * facts.length + 24), HEIGHT];
}

export function drawGraph(host: HTMLElement, before: Drawn | null, scene: Scene): Drawn {
  const drawn = before ?? createDrawn(host, scene);
  drawn.scene = scene;
  const { boxes, arcs, layout, labels } = scene;
  const shown = new Set(boxes.map(({ id }) => id));
  for (const [id, node] of drawn.nodes) {
    if (shown.has(id)) continue;
    node.remove();
    drawn.nodes.delete(id);
  }
  const heaviest = Math.max(1, ...layout.routes.map(({ bytes }) => bytes));
  const few = layout.routes.length <= FEW_ROUTES;
  const head = drawn.root.querySelector("marker")?.id ?? "";
  const known = new Set(layout.routes.map(({ from, to }) => `${from}>${to}`));
  const lines = layout.routes.map((route) => {
    const back = route.from > route.to && known.has(`${route.to}>${route.from}`);
    return routeOf(route, { heaviest, labelled: few, head, back }, labels);
  });
  const frames: SVGGElement[] = [];
  const cards: SVGGElement[] = [];
  for (const box of boxes) {
    const place = layout.places.get(box.id);
    if (!place) continue;
    const node = drawn.nodes.get(box.id) ?? createBox(box.id, scene);
    drawn.nodes.set(box.id, node);
    const inputs = arcs.filter(({ to }) => to === box.id).length;
    const outputs = arcs.filter(({ from }) => from === box.id).length;
    fillBox(node, box, place, labels, labels.spoken(box, inputs, outputs));
    (box.open ? frames : cards).push(node);
  }
  // Only the order of what changed: moving an element in the document would end its transition and its focus.
  const wanted = [...frames, ...lines, ...cards];
  for (const old of drawn.world.querySelectorAll(":scope > .wb-arc, :scope > .wb-cross")) old.remove();
  wanted.forEach((node, i) => {
    if (drawn.world.children[i] !== node) drawn.world.insertBefore(node, drawn.world.children[i] ?? null);
  });
  return drawn;
}

function createDrawn(host: HTMLElement, scene: Scene): Drawn {
  const head = uniqueId();
  const world = s("g", {});
  const marker = s(
    "marker",
    { id: head, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto-start-reverse" },
    s("path", { d: "M0 0 L8 4 L0 8 z", class: "wb-archead" }),
  );
  const root = s(
    "svg",
    { role: "group", "aria-label": "Data flow of the module as nested boxes", class: "wb-graphsvg" },
    s("defs", {}, marker),
    world,
  );
  host.append(root);
  const nodes = new Map<number, SVGGElement>();
  const drawn: Drawn = {
    root,
    world,
    nodes,
    scene,
    look: (scale, [x, y]) =>
      world.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${scale})`),
    mark(chosen, marked, cursor) {
      for (const [id, node] of nodes) {
        node.classList.toggle("wb-selected", id === chosen);
        node.classList.toggle("wb-kin", id !== chosen && marked.has(id));
        setTabIndex(node, id === cursor ? 0 : -1);
      }
      drawCrossings(drawn, chosen ?? cursor, head);
    },
    focus: (id) => nodes.get(id)?.focus({ preventScroll: true }),
  };
  return drawn;
}

/** What one box reads and feeds, over all frames. */
function drawCrossings({ world, scene }: Drawn, centre: number, head: string): void {
  for (const arc of world.querySelectorAll<SVGElement>(".wb-arc")) {
    const [from, to] = (arc.dataset.arc ?? "").split(">").map(Number);
    arc.classList.toggle("wb-related", from === centre || to === centre);
  }
  for (const old of world.querySelectorAll(":scope > .wb-cross")) old.remove();
  const direct = new Set(scene.layout.routes.map(({ from, to }) => `${from}>${to}`));
  for (const { from, to, bytes } of scene.arcs) {
    if ((from !== centre && to !== centre) || direct.has(`${from}>${to}`)) continue;
    const [a, b] = [scene.layout.places.get(from), scene.layout.places.get(to)];
    if (!a || !b) continue;
    const words = `${scene.labels.title(from)} → ${scene.labels.title(to)}: ${formatBytes(bytes)}`;
    const path = s("path", { d: crossPath(a, b), "marker-end": `url(#${head})` });
    world.append(s("g", { class: "wb-cross", "aria-hidden": "true" }, s("title", {}, words), path));
  }
}

function createBox(id: number, { on }: Scene): SVGGElement {
  const node = s("g", { class: "wb-box", role: "button", "data-box": id, tabindex: -1 });
  node.addEventListener("click", (event) => {
    if ((event.target as Element).closest(".wb-boxtwist")) on.toggle(id);
    else on.choose(id);
  });
  node.addEventListener("dblclick", () => on.toggle(id));
  node.addEventListener("keydown", (event) => on.key(event, id));
  return node;
}

function fillBox(node: SVGGElement, box: Box, place: Place, labels: Labels, spoken: string): void {
  const { title, facts, kind, share } = labels.words(box);
  const folds = box.rest > 0 || labels.folds(box.id);
  node.style.transform = `translate(${place.x.toFixed(1)}px, ${place.y.toFixed(1)}px)`;
  node.setAttribute(
    "class",
    `wb-box wb-fill-${kind || "none"}${box.open ? " wb-frame" : ""}${box.rest ? " wb-rest" : ""}`,
  );
  node.setAttribute("aria-label", spoken);
  if (folds && !box.rest) node.setAttribute("aria-expanded", String(box.open));
  const { width, height } = place;
  const twist = folds && !box.rest ? twistOf(width, box.open) : null;
  const texts = box.open
    ? [s("text", { x: 10, y: 16, class: "wb-boxtitle" }, `${title}`)]
    : [
        s("text", { x: 10, y: 17, class: "wb-boxtitle" }, title),
        s("text", { x: 10, y: 32, class: "wb-boxfacts" }, facts),
      ];
  const bar =
    box.open || share < LEAST_SHARE
      ? []
      : [s("rect", { y: height - 4, width: width * share, height: 4, class: "wb-boxbar" })];
  const parts = [
    s("rect", { width, height, rx: box.open ? 8 : 5, class: "wb-boxbody" }),
    ...bar,
    ...texts,
    s("title", {}, spoken),
  ];
  node.replaceChildren(...parts, ...(twist ? [twist] : []));
}

function twistOf(width: number, open: boolean): SVGGElement {
  return s(
    "g",
    { class: "wb-boxtwist", transform: `translate(${width - TITLE} 3)` },
    s("rect", { width: 18, height: 18, rx: 4 }),
    s("path", { d: open ? "M5 9 H13" : "M5 9 H13 M9 5 V13" }),
  );
}

interface RouteLook {
  heaviest: number;
  labelled: boolean;
  head: string;
  /** The other direction is drawn as well, with its bytes on the right. */
  back: boolean;
}

function routeOf(route: Route, { heaviest, labelled, head, back }: RouteLook, labels: Labels): SVGGElement {
  const { points, bytes, from, to, values } = route;
  const width = 1 + 2.5 * Math.sqrt(bytes / heaviest);
  const path = s("path", { d: pathOf(points), "stroke-width": width.toFixed(2), "marker-end": `url(#${head})` });
  const middle = points[Math.floor(points.length / 2)];
  const text =
    labelled && middle && bytes > 0
      ? s(
          "text",
          {
            x: middle[0] + (back ? -6 : 5),
            y: middle[1] + 4,
            class: "wb-arcbytes",
            "text-anchor": back ? "end" : "start",
          },
          formatBytes(bytes),
        )
      : null;
  const many = values === 1 ? "" : ` in ${values} values`;
  const words = `${labels.title(from)} → ${labels.title(to)}: ${formatBytes(bytes)}${many}`;
  return s(
    "g",
    { class: "wb-arc", "data-arc": `${from}>${to}`, "aria-hidden": "true" },
    s("title", {}, words),
    path,
    text,
  );
}
