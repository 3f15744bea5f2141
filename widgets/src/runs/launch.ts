// A program of nodes: its graph with a mark per node, what each node does, its history and log, a button that stops all.

import { type Block, showDetails } from "../lib/details";
import { button, type Child, h, pictureFrom, replace, s } from "../lib/dom";
import { formatBytes, formatCount, formatSeconds, plural } from "../lib/format";
import { rove } from "../lib/keyboard";
import { floats } from "../lib/model";
import { split } from "../lib/split";
import type { NodeState, ProgramNode } from "../lib/states";
import type { RenderView, ViewContext } from "../lib/view";
import { factsOf, formatCores, formatRate, listed, NUMBERS, nextSort, type Sort, sparkOf } from "./launch-data";

const CARD = 220; // pixels of text in a card of the graph
const MOST_ROWS = 300;
const LONG_LOG = 200; // lines that the kernel sends without being asked
const HISTORIES: readonly (readonly [string, string, (value: number) => string])[] = [
  ["calls per second", "calls", formatRate],
  ["calls waiting", "queue", formatCount],
  ["cores", "cpu", formatCores],
  ["memory", "memory", formatBytes],
];

type Bytes = DataView | ArrayBuffer | null | undefined;
interface Row {
  node: HTMLTableRowElement;
  state: HTMLElement;
  numbers: readonly HTMLElement[];
  last: HTMLElement;
}

const line = (text: string): HTMLElement => h("div", { class: "wb-line" }, h("code", {}, text || " "));

function put(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** One history with its present and its largest value. */
function sparkRow(name: string, bytes: Bytes, show: (value: number) => string): HTMLElement | null {
  const made = sparkOf(floats(bytes));
  if (!made) return null;
  const label = `${name}: ${show(made.low)} to ${show(made.high)}, now ${show(made.now)}`;
  const stroke = { class: "wb-stroke-broadcast", fill: "none", "stroke-width": 1.5 };
  const svg = s(
    "svg",
    { viewBox: "0 0 200 38", preserveAspectRatio: "none", role: "img", class: "wb-spark", "aria-label": label },
    s("path", { d: made.area, class: "wb-fill-broadcast-soft" }),
    s("path", { d: made.line, ...stroke, "vector-effect": "non-scaling-stroke" }),
  );
  const words = h("span", { class: "wb-note" }, `${name} · peak ${show(made.high)}`);
  return h("div", { class: "wb-sparkrow" }, h("div", { class: "wb-row" }, h("b", {}, show(made.now)), words), svg);
}

class Launch {
  private readonly status = h("div", { class: "wb-big", role: "status" });
  private readonly totals = h("span", { class: "wb-note" });
  private readonly stop = button("Stop", () => this.stopAll(), { class: "wb-stop" });
  private readonly pictures = h("div", { class: "wb-nodes" });
  private readonly filter = h("select", { "aria-label": "Show nodes of", onchange: () => this.fill() });
  private readonly tools = h("div", { class: "wb-tools" }, h("label", {}, "Show nodes of ", this.filter));
  private readonly note = h("p", { class: "wb-note" });
  private readonly body = h("tbody", { onclick: (event: Event) => this.chooseFrom(event) });
  private readonly heads: HTMLElement[];
  private readonly table: HTMLElement;
  private readonly panel: HTMLElement;
  private readonly marks = new Map<string, SVGElement>();
  private readonly rows = new Map<string, Row>();
  private groups = new Map<string, SVGElement>();
  private sort: Sort | null = null;
  /** The node whose whole log is open for reading: it is not replaced by newer lines. */
  private reading: string | null = null;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"launch">,
  ) {
    this.heads = NUMBERS.map(({ name }, column) => {
      const turn = () => {
        this.sort = nextSort(this.sort, column);
        this.fill();
      };
      return h("th", { scope: "col", class: "wb-num" }, button(name, turn, { class: "wb-sortable" }));
    });
    const column = (name: string) => h("th", { scope: "col" }, name);
    const head = h("tr", {}, column("node"), column("state"), this.heads, column("last line of the log"));
    const table = h("table", { "aria-label": "Nodes" }, h("thead", {}, head), this.body);
    const region = { class: "wb-tablebox", tabindex: 0, role: "region", "aria-label": "Nodes, table" };
    this.table = h("div", {}, h("div", region, table), this.note);
    const { node, main, detail } = split(context, "Details of the selected node", 0.64);
    this.panel = detail;
    main.append(h("div", { class: "wb-scrolls" }, this.pictures, this.tools, this.table));
    const bar = h("div", { class: "wb-row wb-runhead" }, this.status, this.stop, this.totals);
    host.append(h("div", { class: "wb-runbar" }, bar), node);
    context.onLive(() => this.draw());
    context.onSelection(() => this.follow());
    context.onState(() => this.build());
    this.build();
  }

  private get nodes(): Readonly<Record<string, ProgramNode>> {
    return this.context.state("nodes");
  }

  private get states(): Map<string, NodeState> {
    return new Map((this.context.live("nodes") ?? []).map((each) => [each.label, each]));
  }

  private get chosen(): string | null {
    const label = this.context.selection.node;
    return label !== undefined && this.nodes[label] ? label : null;
  }

  private hue(state: string): string {
    return this.context.state("hues")[state] ?? "muted";
  }

  private sign(state: string): string {
    return this.context.state("signs")[state] ?? "";
  }

  private choose(label: string | null): void {
    this.context.select({ node: label });
  }

  private chooseFrom(event: Event): void {
    const row = (event.target as Element).closest<HTMLElement>("[data-node]");
    if (row) this.choose(row.dataset.node ?? null);
  }

  private stopAll(): void {
    this.stop.disabled = true;
    this.context.request("stop").then(
      () => this.context.say("All nodes were asked to stop."),
      () => (this.stop.disabled = false),
    );
  }

  private build(): void {
    const groups = this.context.state("groups");
    const kept = this.filter.value;
    replace(
      this.filter,
      h("option", { value: "" }, "all groups"),
      groups.map((label) => h("option", { value: `=${label}` }, label)),
      h("option", { value: "failed" }, "all groups, failed only"),
    );
    this.filter.value = kept;
    this.rows.clear();
    this.drawGraph();
    this.draw();
  }

  private drawGraph(): void {
    const svg = pictureFrom(this.context.state("svg"));
    const width = Number(svg.getAttribute("width"));
    svg.setAttribute("role", "group");
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.style.minWidth = `${Math.min(width, 480)}px`;
    const frame = h("div", { class: "wb-frame" }, svg);
    frame.style.maxWidth = `${width}px`;
    const region = { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "The program's graph" };
    replace(this.pictures, h("div", region, frame));
    const found = (kind: string) => [...svg.querySelectorAll<SVGElement>(`[data-${kind}]`)];
    this.groups = new Map(found("group").map((each) => [each.dataset.group ?? "", each]));
    this.marks.clear();
    for (const each of found("node")) {
      each.setAttribute("role", "button");
      this.marks.set(each.dataset.node ?? "", each);
    }
    svg.addEventListener("click", (event) => this.clickGraph(event.target as Element));
    rove(svg, {
      items: () => [...this.marks.values()],
      choose: (node) => this.choose(node.dataset.node ?? null),
      escape: () => this.choose(null),
    });
  }

  private clickGraph(target: Element): void {
    const node = target.closest<SVGElement>("[data-node]");
    const group = target.closest<SVGElement>("[data-group]");
    if (node) this.choose(node.dataset.node ?? null);
    else if (group) {
      const wanted = `=${group.dataset.group}`;
      this.filter.value = this.filter.value === wanted ? "" : wanted;
      this.fill();
    }
  }

  private paintGraph(states: Map<string, NodeState>): void {
    const glyphs = this.context.state("glyphs");
    for (const [label, node] of this.marks) {
      const state = states.get(label)?.state ?? "waiting";
      const text = states.size ? `${label}: ${state}` : label;
      node.classList.toggle("wb-selected", label === this.chosen);
      node.setAttribute("aria-pressed", String(label === this.chosen));
      if (node.dataset.painted === text) continue;
      node.dataset.painted = text;
      node.dataset.state = state;
      node.setAttribute("aria-label", text);
      const title = node.querySelector("title");
      if (title) title.textContent = text;
      node.querySelector("rect")?.setAttribute("class", `wb-fill-bg wb-stroke-${this.hue(state)}`);
      node.querySelector("path")?.remove();
      const stroke = { fill: "none", "stroke-width": 2, class: `wb-stroke-${this.hue(state)}` };
      if (glyphs[state]) node.append(s("path", { d: glyphs[state], ...stroke }));
    }
    this.paintGroups();
  }

  private paintGroups(): void {
    const groups = this.context.live("groups") ?? {};
    for (const [label, node] of this.groups) {
      const said = node.querySelector(".wb-told");
      const load = node.querySelector<SVGTextElement>(".wb-load");
      const now = groups[label];
      if (now && said && load) {
        said.textContent = now.said;
        said.setAttribute("class", `wb-told wb-fill-${now.hue}`);
        load.textContent = now.load;
        load.removeAttribute("textLength");
        if (load.getComputedTextLength() > CARD) load.setAttribute("textLength", String(CARD));
        load.setAttribute("lengthAdjust", "spacingAndGlyphs");
      }
      node.classList.toggle("wb-selected", this.filter.value === `=${label}`);
    }
    const mine = this.chosen === null ? undefined : this.nodes[this.chosen].group;
    for (const wire of this.pictures.querySelectorAll<SVGElement>(".wb-graph-edge")) {
      const touches = wire.dataset.source === mine || wire.dataset.target === mine;
      wire.classList.toggle("wb-related", mine !== undefined && touches);
    }
  }

  private rowOf(label: string): Row {
    const found = this.rows.get(label);
    if (found) return found;
    const [state, last] = [h("td", {}), h("td", { class: "wb-lastline" })];
    const numbers = NUMBERS.map(() => h("td", { class: "wb-num" }));
    const name = h(
      "td",
      {},
      button(label, () => {}, { class: "wb-link" }),
    );
    const made = { node: h("tr", { "data-node": label }, name, state, numbers, last), state, numbers, last };
    this.rows.set(label, made);
    return made;
  }

  private fillRow(label: string, now: NodeState | undefined): HTMLElement {
    const { node, state, numbers, last } = this.rowOf(label);
    node.classList.toggle("wb-selected", label === this.chosen);
    put(state, now ? `${this.sign(now.state)} ${now.state}` : "");
    state.className = `wb-state-${now ? this.hue(now.state) : "muted"}`;
    NUMBERS.forEach(({ value, show }, i) => put(numbers[i], show(now && value(now))));
    put(last, now?.last[0] ?? "");
    last.title = now?.last[0] ?? "";
    return node;
  }

  private fill(): void {
    const states = this.states;
    const labels = listed(this.nodes, states, this.filter.value, this.sort);
    const shown = labels.slice(0, MOST_ROWS);
    this.table.hidden = !states.size;
    this.tools.hidden = !states.size || (this.groups.size < 2 && states.size < 12);
    this.heads.forEach((head, column) => {
      if (this.sort?.column !== column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
    });
    const made = shown.map((label) => this.fillRow(label, states.get(label)));
    const same = made.length === this.body.childElementCount && made.every((node, i) => this.body.children[i] === node);
    if (!same) replace(this.body, made);
    const hidden = labels.length - shown.length;
    const none = labels.length ? "" : "No node matches the filter.";
    this.note.textContent = hidden ? `${formatCount(hidden)} more nodes are not listed. Select a group.` : none;
    this.paintGraph(states);
  }

  private aboutProgram(): void {
    const engine = this.context.live("engine");
    const rows: [string, string][] = [
      ["nodes", formatCount(Object.keys(this.nodes).length)],
      ["groups", this.context.state("groups").join(", ")],
      ["runs on", engine ?? "not launched yet"],
    ];
    const live = "Select a mark in the graph or a row of the table to see a node's history and its log.";
    const before =
      "Select a node with the mouse, or with the arrow keys and Enter. To see a launched program live, show the " +
      "return value of `launch`.";
    const blocks: Block[] = [
      { form: "facts", title: "", rows },
      { form: "note", title: "Details of a node", text: engine ? live : before },
    ];
    const title = this.context.state("name");
    showDetails(this.context, this.panel, { title, kind: "server", subtitle: "the whole program", blocks });
  }

  private logOf(label: string, lines: readonly string[]): { node: HTMLElement; all: HTMLElement | null } {
    const region = { class: "wb-code wb-log", tabindex: 0, role: "log", "aria-label": `Log of ${label}` };
    const none = h("div", { class: "wb-line wb-note" }, "No lines yet.");
    const node = h("div", region, lines.length ? lines.map(line) : none);
    const open = async () => {
      const whole = await this.context.request("log", { node: label });
      replace(node, whole.map(line));
      this.reading = label;
    };
    const all = button("Whole log", () => void open().catch(() => {}), { class: "wb-link" });
    return { node, all: lines.length >= LONG_LOG ? all : null };
  }

  private follow(): void {
    const label = this.chosen;
    this.fill();
    if (this.reading !== null && this.reading === label) return;
    this.reading = null;
    if (label === null) this.aboutProgram();
    else this.aboutNode(label);
  }

  private aboutNode(label: string): void {
    const node = this.nodes[label];
    const now = this.states.get(label);
    const sent = this.context.live("chosen");
    const more = sent?.label === label ? sent : undefined;
    const before = this.panel.querySelector(".wb-log");
    const same = before !== null && this.panel.dataset.node === label;
    const atEnd = !same || before.scrollHeight - before.scrollTop - before.clientHeight < 24;
    const top = before?.scrollTop ?? 0;
    this.panel.dataset.node = label;
    const sparks = HISTORIES.map(([name, key, show]) => sparkRow(name, more?.history[key], show)).filter(Boolean);
    const log = this.logOf(label, more?.log ?? now?.last ?? []);
    const region = { class: "wb-code wb-failed", tabindex: 0, role: "region", "aria-label": "Error" };
    const extra: Child[] = [
      more?.error ? [h("h3", {}, "Error"), h("div", region, more.error.trimEnd().split("\n").map(line))] : null,
      sparks.length ? [h("h3", {}, "Recent history"), sparks] : null,
      now ? [h("div", { class: "wb-row wb-loghead" }, h("h3", {}, "Log"), log.all), log.node] : null,
    ];
    const rows = factsOf(node, now, now ? this.sign(now.state) : "");
    const blocks: Block[] = [{ form: "facts", title: "", rows }];
    const subtitle = `${node.kind} ${node.target}`;
    showDetails(this.context, this.panel, { title: label, kind: node.hue, subtitle, blocks, extra });
    log.node.scrollTop = atEnd ? log.node.scrollHeight : top;
  }

  private draw(): void {
    const { context } = this;
    const state = context.live("status");
    const count = this.states.size;
    this.status.textContent = state ? `${state} · ${formatSeconds(context.live("elapsed"))}` : "not launched";
    this.status.dataset.status = state ?? "";
    this.stop.hidden = !context.hasKernel || !state || !["running", "stopping"].includes(state);
    this.stop.disabled = state === "stopping";
    const live = [`${plural(count, "node")} on ${context.live("engine")}`, context.live("said"), context.live("load")];
    const declared = `${plural(Object.keys(this.nodes).length, "node")} in ${plural(this.groups.size, "group")}`;
    this.totals.textContent = state ? live.filter(Boolean).join(" · ") : declared;
    this.follow();
  }
}

export const launch: RenderView<"launch"> = (host, context) => {
  new Launch(host, context);
};
