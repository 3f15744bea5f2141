// The graph of the module: groups that fold, at most about eighty boxes, search, keys.

import { button, h, menu, type Option, replace } from "../lib/dom";
import { formatBytes } from "../lib/format";
import { clamp, consume } from "../lib/keyboard";
import { wordsOf } from "../lib/matches";
import type { HloGraph } from "../lib/states";
import type { ViewContext } from "../lib/view";
import { isTrivial, type Module } from "../views/hlo-data";
import { Labels, plural } from "./labels";
import { Minimap } from "./minimap";
import { around, type Box, closeOldest, type Frontier, Graph, groupOfRest, isRest, mergeChains } from "./model";
import { type Drawn, drawGraph, measure } from "./picture";
import { Planner } from "./planner";
import type { Layout } from "./routes";

const MOST_BOXES = 80;
const FIRST_BOXES = 18;
const PAGE = 40;
const STEPS = 2; // inputs and outputs of a box: how far
const NESTINGS: readonly Option<string>[] = [
  ["calls", "functions and lines"],
  ["scopes", "stages and name scopes"],
];
export interface GraphOptions {
  module: Module;
  choose(instruction: number): void;
  chooseGroup(node: number, key: string): void;
}

export class GraphPane {
  private graph!: Graph;
  private labels!: Labels;
  private groups: HloGraph["groups"][string] = [];
  private order: number[] = []; // open groups, those that were opened last at the end
  private pages = new Map<number, number>();
  private all = false;
  private near = false;
  private cursor = Number.NaN;
  private chosen = -1;
  private marked: readonly number[] = [];
  private shown: Frontier = { boxes: [], arcs: [] };
  private layout: Layout = { places: new Map(), routes: [], width: 1, height: 1 };
  private drawn: Drawn | null = null;
  private readonly planner: Planner;
  private readonly minimap: Minimap;
  private matches: number[] = [];
  private match = -1;
  private readonly canvas = h("div", { class: "wb-graph" });
  private readonly status = h("p", { class: "wb-note wb-graphtip", role: "status" });
  private readonly nearButton = button("Only inputs and outputs", () => this.toggleNear(), {
    "aria-pressed": "false",
    "data-tip": `Shows the selected box with its inputs and users, up to ${STEPS} steps away.`,
  });
  private scale = 1;
  private offset: [number, number] = [0, 0];

  constructor(
    private readonly context: ViewContext<"hlo">,
    host: HTMLElement,
    private readonly options: GraphOptions,
  ) {
    this.planner = new Planner(context.signal);
    this.minimap = new Minimap(context, (x, y) => this.centre(x, y));
    this.canvas.append(this.minimap.node);
    host.append(this.tools(), this.canvas, this.status);
    this.listen();
    this.nest(this.nestings()[0][0]);
  }

  private get state(): HloGraph {
    return this.context.state("graph") ?? { groups: {}, kinds: [] };
  }

  private nestings(): readonly Option<string>[] {
    const known = this.state.groups;
    return NESTINGS.filter(([key]) => key in known);
  }

  /** Groups by the call tree, or by stages. */
  private nest(name: string): void {
    const { groups, kinds } = this.state;
    const { module } = this.options;
    this.groups = groups[name];
    const weights = module.names.map((_, i) => (module.traffic[i] + module.size[i]) * module.runs(i) || 0);
    const trivial = (i: number) => isTrivial(module.opcodes[module.opcode[i]]) && !module.jointOf(i);
    const { nesting, chains } = mergeChains(
      { parent: this.context.array(`hlo.parent.${name}`), fusions: this.groups.map((group) => group[1]) },
      trivial,
    );
    const edges = this.context.array("hlo.edges");
    this.graph = new Graph(nesting, { edges, sizes: module.size, weights, trivial });
    const labels = this.groups.map(([, , kind], group) => ({
      title: [...chains[group], group].map((each) => this.groups[each][0]).join(" › "),
      kind: kinds[kind],
    }));
    const kind = this.context.array("hlo.kind");
    this.labels = new Labels(
      this.graph,
      module,
      labels,
      module.names.map((_, i) => kinds[kind[i]]),
    );
    this.order = [...this.graph.firstLook(FIRST_BOXES)];
    this.pages = new Map();
    this.cursor = Number.NaN;
    this.update(() => this.fit());
  }

  private tools(): HTMLElement {
    const search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "instruction, line; Enter: next",
      "aria-label": "Search the graph",
      oninput: () => this.search(search.value),
      onkeydown: (event: KeyboardEvent) => {
        if (event.key !== "Enter") return;
        this.nextMatch(event.shiftKey ? -1 : 1);
        consume(event);
      },
    });
    const trivial = h("input", { type: "checkbox", onchange: () => this.showAll(trivial.checked) });
    const options = this.nestings();
    return h(
      "div",
      { class: "wb-tools" },
      search,
      options.length > 1 ? menu("Group by", options, options[0][0], (name) => this.nest(name)) : null,
      button("+", () => this.zoom(1.4), { "aria-label": "Zoom in" }),
      button("−", () => this.zoom(1 / 1.4), { "aria-label": "Zoom out" }),
      button("Fit", () => this.fit(LEAST_SCALE), { "aria-label": "Whole graph" }),
      button("Fold all", () => this.foldAll()),
      this.nearButton,
      h("label", { class: "wb-row" }, trivial, "constants and tuples"),
    );
  }

  private listen(): void {
    const { canvas } = this;
    let drag: { x: number; y: number; from: [number, number] } | null = null;
    canvas.addEventListener("pointerdown", (event) => {
      if ((event.target as Element).closest("[data-box]")) return;
      drag = { x: event.clientX, y: event.clientY, from: [...this.offset] };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return;
      this.offset = [drag.from[0] + event.clientX - drag.x, drag.from[1] + event.clientY - drag.y];
      this.look();
    });
    canvas.addEventListener("pointerup", () => {
      drag = null;
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
        consume(event);
        const box = canvas.getBoundingClientRect();
        this.zoom(Math.exp(-event.deltaY / 300), [event.clientX - box.left, event.clientY - box.top]);
      },
      { passive: false },
    );
    const watch = new ResizeObserver(() => this.look());
    watch.observe(canvas);
    this.context.signal.addEventListener("abort", () => watch.disconnect());
  }

  private frontier(open: ReadonlySet<number>): Frontier {
    return this.graph.frontier(open, { all: this.all, page: PAGE, pages: this.pages });
  }

  /** Shows what is open now, then goes where it has to; a newer call makes one that still waits void. */
  private update(then: () => void = () => {}): void {
    this.lay(then).catch((error) => this.context.fail(error));
  }

  private async lay(then: () => void): Promise<void> {
    let made = this.frontier(new Set(this.order));
    const box = this.boxOf(this.chosen >= 0 ? this.graph.nodeOf(this.chosen) : this.cursor, made.boxes);
    if (this.near && box !== null) {
      const kept = around(made.arcs, box, STEPS);
      for (const id of [...kept]) for (const each of this.graph.pathTo(id < -1 ? groupOfRest(id) : id)) kept.add(each);
      made = {
        boxes: made.boxes.filter(({ id }) => kept.has(id)),
        arcs: made.arcs.filter(({ from, to }) => kept.has(from) && kept.has(to)),
      };
    }
    const { labels } = this;
    const sizes = new Map(made.boxes.map((each) => [each.id, measure(labels.words(each))] as const));
    const slow = setTimeout(() => this.wait(), SLOW);
    const layout = await this.planner.plan({ ...made, sizes }).finally(() => clearTimeout(slow));
    if (!layout || this.context.signal.aborted) return;
    this.shown = made;
    this.layout = layout;
    if (!made.boxes.some(({ id }) => id === this.cursor)) this.cursor = made.boxes[0]?.id ?? Number.NaN;
    this.drawn = drawGraph(this.canvas, this.drawn, {
      boxes: made.boxes,
      arcs: made.arcs,
      layout,
      labels,
      cursor: this.cursor,
      on: { choose: (id) => this.act(id), toggle: (id) => this.toggle(id), key: (event, id) => this.key(event, id) },
    });
    this.canvas.dataset.boxes = String(made.boxes.length);
    const boxes = made.boxes.flatMap((each) => {
      const place = layout.places.get(each.id);
      return place ? [{ place, kind: labels.words(each).kind, open: each.open }] : [];
    });
    this.minimap.set(layout, boxes);
    this.canvas.removeAttribute("aria-busy");
    this.highlight();
    this.look();
    then();
  }

  private wait(): void {
    this.canvas.setAttribute("aria-busy", "true");
    this.status.textContent = "Laying out the graph …";
  }

  /** The box that shows a node: itself, or the closed group around it. */
  private boxOf(node: number, boxes: readonly Box[] = this.shown.boxes): number | null {
    if (Number.isNaN(node)) return null;
    const ids = new Set(boxes.map(({ id }) => id));
    if (isRest(node)) return ids.has(node) ? node : null;
    const found = this.graph.pathTo(node).filter((id) => ids.has(id));
    return found.length ? found[found.length - 1] : null;
  }

  private highlight(): void {
    const chosen = this.chosen >= 0 ? this.boxOf(this.graph.nodeOf(this.chosen)) : null;
    const marked = new Set(this.marked.map((i) => this.boxOf(this.graph.nodeOf(i))));
    this.drawn?.mark(chosen, marked, this.cursor);
    const count = plural(this.shown.boxes.length, "box").replace("boxs", "boxes");
    const arcs = this.shown.arcs.reduce((sum, { bytes }) => sum + bytes, 0);
    const tail = this.matches.length ? ` · ${this.match + 1} of ${plural(this.matches.length, "match")}` : "";
    this.status.textContent =
      `${count}, ${formatBytes(arcs)} between them${tail.replace("matchs", "matches")}. ` +
      "Arrow keys follow the data, Enter selects, Space opens and folds; drag to move, Ctrl and wheel to zoom.";
  }

  /** A click or Enter: selects, everywhere. */
  private act(id: number): void {
    this.cursor = id;
    if (isRest(id)) return this.turnPage(groupOfRest(id));
    const instruction = this.graph.instructionOf(id);
    if (instruction >= 0) return this.options.choose(instruction);
    const [, , , node, key] = this.groups[id];
    this.options.chooseGroup(node, key);
    this.highlight();
  }

  private turnPage(group: number): void {
    this.pages.set(group, (this.pages.get(group) ?? 0) + 1);
    this.update(() => this.focus(this.cursor));
  }

  private toggle(id: number): void {
    if (isRest(id)) return this.turnPage(groupOfRest(id));
    if (!this.graph.isGroup(id)) return this.act(id);
    this.cursor = id;
    if (this.order.includes(id)) {
      const inside = (group: number) => this.graph.pathTo(group).includes(id);
      this.order = this.order.filter((group) => !inside(group));
    } else this.openGroup(id);
    this.update(() => this.focus(id));
  }

  /** Opens a group; others fold where too many boxes would show. */
  private openGroup(id: number): void {
    const open = new Set<number>();
    this.graph.openChain(id, open, this.all);
    this.order = [...this.order.filter((group) => !open.has(group)), ...open];
    const kept = new Set([...open, ...this.graph.pathTo(id)]);
    this.order = [...closeOldest(this.order, kept, (groups) => this.frontier(groups).boxes.length, MOST_BOXES)];
  }

  private foldAll(): void {
    this.order = [];
    this.pages.clear();
    this.update(() => this.fit());
  }

  private showAll(all: boolean): void {
    this.all = all;
    this.update();
  }

  private toggleNear(): void {
    this.near = !this.near;
    this.nearButton.setAttribute("aria-pressed", String(this.near));
    this.update(() => this.fit());
  }

  /** What is chosen anywhere: the instruction is opened and brought into view, all of `marked` are outlined. */
  mark(marked: readonly number[], chosen: number): void {
    const changed = chosen !== this.chosen;
    this.chosen = chosen;
    this.marked = marked;
    if (!this.canvas.clientWidth) return;
    if (chosen >= 0 && changed) this.reveal(this.graph.nodeOf(chosen));
    else this.highlight();
  }

  private reveal(node: number): void {
    const path = this.graph.pathTo(node).slice(0, -1);
    if (path.some((group) => !this.order.includes(group))) {
      for (const group of path) if (!this.order.includes(group)) this.openGroup(group);
    }
    this.turnTo(node);
    this.update(() => {
      const found = this.boxOf(node);
      if (found === null) return;
      this.cursor = found;
      this.highlight();
      this.bringIntoView(found);
    });
  }

  /** The page of its group on which a node is. */
  private turnTo(node: number): void {
    const parent = this.graph.parentOf(node);
    const place = this.graph.membersOf(parent, this.all).indexOf(node);
    if (place >= 0) this.pages.set(parent, Math.floor(place / PAGE));
  }

  open(): void {
    requestAnimationFrame(() => {
      if (this.chosen >= 0) this.reveal(this.graph.nodeOf(this.chosen));
      else this.fit();
    });
  }

  private search(text: string): void {
    const words = wordsOf(text);
    const { module } = this.options;
    this.matches = [];
    if (words.length)
      for (let i = 0; i < module.count; i++)
        if (module.matches(i, words) && this.graph.parentOf(this.graph.nodeOf(i)) >= -1) this.matches.push(i);
    this.match = -1;
    this.marked = this.matches;
    this.highlight();
  }

  private nextMatch(step: number): void {
    if (!this.matches.length) return;
    this.match = (this.match + step + this.matches.length) % this.matches.length;
    this.options.choose(this.matches[this.match]);
  }

  private key(event: KeyboardEvent, id: number): void {
    const next = this.neighbour(event.key, id);
    if (event.key === "Enter") this.act(id);
    else if (event.key === " ") this.toggle(id);
    else if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? 1.2 : 1 / 1.2);
    else if (event.key === "Escape") this.foldAround(id);
    else if (next !== null) this.focus(next);
    else if (!event.key.startsWith("Arrow")) return;
    consume(event);
  }

  private foldAround(id: number): void {
    const parent = isRest(id) ? groupOfRest(id) : this.graph.parentOf(id);
    if (parent >= 0) this.toggle(parent);
  }

  /** Down and up along the data, left and right to what stands there; Home to the first box. */
  private neighbour(key: string, id: number): number | null {
    const { places } = this.layout;
    const here = places.get(id);
    if (!here) return null;
    if (key === "Home") return this.shown.boxes[0]?.id ?? null;
    const ids =
      key === "ArrowDown"
        ? this.shown.arcs.filter(({ from }) => from === id).map(({ to }) => to)
        : key === "ArrowUp"
          ? this.shown.arcs.filter(({ to }) => to === id).map(({ from }) => from)
          : [];
    if (ids.length) return closest(ids, places, here);
    return closest(
      this.shown.boxes.map((box) => box.id).filter((each) => isTowards(key, here, places.get(each))),
      places,
      here,
    );
  }

  private focus(id: number): void {
    this.cursor = id;
    this.highlight();
    this.bringIntoView(id);
    this.drawn?.focus(id);
  }

  private zoom(
    factor: number,
    at: [number, number] = [this.canvas.clientWidth / 2, this.canvas.clientHeight / 2],
  ): void {
    const next = clamp(this.scale * factor, LEAST_SCALE, 3);
    for (const axis of [0, 1] as const)
      this.offset[axis] = at[axis] - ((at[axis] - this.offset[axis]) * next) / this.scale;
    this.scale = next;
    this.look();
  }

  private fit(least = READABLE): void {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const scale = Math.min(width / this.layout.width, height / this.layout.height);
    this.scale = clamp(scale, least, 1.1);
    this.offset = [Math.max(0, (width - this.layout.width * this.scale) / 2), 0];
    const top = (box: Box) => this.layout.places.get(box.id)?.y ?? 0;
    const [first] = this.shown.boxes.filter(({ open }) => !open).sort((a, b) => top(a) - top(b));
    this.bringIntoView(first?.id ?? Number.NaN); // a small view would show only the frames around it
    this.look();
  }

  /** Moves as little as needed until a box is inside the view. */
  private bringIntoView(id: number): void {
    const place = this.layout.places.get(id);
    if (!place) return;
    const room = [this.canvas.clientWidth, this.canvas.clientHeight];
    const starts = [place.x, place.y];
    const sizes = [place.width, place.height];
    for (const axis of [0, 1] as const) {
      const start = starts[axis] * this.scale + this.offset[axis];
      const end = start + sizes[axis] * this.scale;
      if (start < EDGE) this.offset[axis] += EDGE - start;
      else if (end > room[axis] - EDGE) this.offset[axis] -= Math.min(end - room[axis] + EDGE, start - EDGE);
    }
    this.look();
  }

  /** Brings a point of the layout into the middle. */
  private centre(x: number, y: number): void {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.offset = [width / 2 - x * this.scale, height / 2 - y * this.scale];
    this.look();
  }

  private look(): void {
    this.drawn?.look(this.scale, [this.offset[0] + INSET, this.offset[1] + INSET]);
    this.minimap.look(this.scale, this.offset, [this.canvas.clientWidth, this.canvas.clientHeight]);
  }
}

const READABLE = 0.92; // text of 12 px has 11 px on the screen when a graph opens
const LEAST_SCALE = 0.1;
const EDGE = 24;
const SLOW = 150; // milliseconds after which a reader is told what is waited for
const INSET = 12;

const middle = (place: { x: number; y: number; width: number; height: number }): [number, number] => [
  place.x + place.width / 2,
  place.y + place.height / 2,
];

function closest(ids: readonly number[], places: Layout["places"], here: Parameters<typeof middle>[0]): number | null {
  const [x, y] = middle(here);
  const distance = (id: number) => {
    const place = places.get(id);
    return place ? Math.hypot(middle(place)[0] - x, 3 * (middle(place)[1] - y)) : Number.POSITIVE_INFINITY;
  };
  return [...ids].sort((a, b) => distance(a) - distance(b))[0] ?? null;
}

function isTowards(key: string, here: Parameters<typeof middle>[0], place: Parameters<typeof middle>[0] | undefined) {
  if (!place || place === here) return false;
  const [dx, dy] = [middle(place)[0] - middle(here)[0], middle(place)[1] - middle(here)[1]];
  if (key === "ArrowLeft") return dx < -8;
  if (key === "ArrowRight") return dx > 8;
  if (key === "ArrowUp") return dy < -8;
  return key === "ArrowDown" && dy > 8;
}

export function graphPane(context: ViewContext<"hlo">, host: HTMLElement, options: GraphOptions): GraphPane {
  replace(host);
  return new GraphPane(context, host, options);
}
