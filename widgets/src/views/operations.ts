// Every figure of the program on the user's functions, modules and lines: a tree table, an icicle, the code of a node.

import { badge, onReport } from "../lib/badges";
import { type Block, facts, showDetails } from "../lib/details";
import { button, type Child, h, menu, type Option, replace, setTabIndex } from "../lib/dom";
import { formatAs, formatCount } from "../lib/format";
import { consume } from "../lib/keyboard";
import { shortened, wordsOf } from "../lib/matches";
import { split } from "../lib/split";
import type { FigureColumn, OperationsState } from "../lib/states";
import { type Column, type TreeTable, treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";
import { icicleBars, skipChain, type Tree, treeFrom } from "./icicle";
import { extremes, sparkHeights } from "./layers";

const LESSER = new Set(["matmul", "constants"]); // figures that go first where there is no room for all
const FIRST_ROWS = 24;
const LEVELS = 9;
const LEAST_WIDTH = 0.004;
const GLYPHS: Record<string, string> = {
  root: "◆",
  function: "ƒ",
  call: "→",
  line: "≡",
  scope: "▢",
  loop: "↻",
  operation: "·",
  unattributed: "?",
};
const WHOLE = new Set(["measured", "peak", "constants"]); // what a loop of unknown length leaves whole
const PASS_WORDS: Record<string, string> = { transpose: "backward", remat: "recomputed", mixed: "" };

/** A table without the columns that say 1 in every row. */
function telling(columns: readonly string[], rows: readonly (readonly string[])[]) {
  const kept = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== "1"));
  return { columns: kept.map((i) => columns[i]), rows: rows.map((row) => kept.map((i) => row[i])) };
}

class Operations {
  private readonly names: OperationsState["names"];
  private readonly keys: OperationsState["keys"];
  private readonly places: OperationsState["places"];
  private readonly kinds: string[];
  private readonly passes: string[];
  private readonly tree: Tree;
  private readonly totals: Float32Array[];
  private readonly own: Float32Array[];
  private readonly columns: readonly FigureColumn[];
  private readonly layers: OperationsState["layers"]; // rows of several equal layers
  private readonly atLeast: ReadonlySet<number>; // of an unknown number of iterations one is counted
  private readonly table: TreeTable;
  private readonly icicle = h("div", {
    class: "wb-icicle",
    role: "group",
    "aria-label": "The selected figure as nested bars",
  });
  private readonly facts = h("div", {});
  private readonly status = h("span", { class: "wb-note", role: "status" });
  private readonly search: HTMLInputElement;
  private words: string[] = [];
  private only = "";
  private pass = "";
  private metric = 0;
  private zoom = 0;

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext,
  ) {
    this.names = context.state("names");
    this.keys = context.state("keys");
    this.places = context.state("places");
    const kinds = context.state<string[]>("kinds");
    const passes = context.state<string[]>("passes");
    this.kinds = Array.from(context.array("tree.kind"), (i) => kinds[i]);
    this.passes = Array.from(context.array("tree.pass"), (i) => passes[i]);
    const parent = context.array("tree.parent");
    this.tree = treeFrom(parent);
    this.columns = context.state("columns");
    this.layers = context.state<OperationsState["layers"] | undefined>("layers") ?? {};
    this.atLeast = new Set(context.state<number[] | undefined>("at_least") ?? []);
    this.totals = this.columns.map(({ key }) => context.array(`tree.${key}`));
    this.own = this.columns.map(({ key }) => context.array(`tree.${key}.own`));
    this.search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "function, module, line, operation",
      "aria-label": "Search operations",
    });
    const { node, main, detail } = split(context, "Details of the selected node", 0.62);
    this.table = this.makeTable(parent);
    main.append(this.tools(), this.table.node);
    replace(detail, this.metricMenu(), this.icicle, this.facts);
    host.append(node);
    this.table.expandTo(
      FIRST_ROWS,
      (i) => this.value(i),
      (i) => i in this.layers,
    );
    this.zoom = skipChain(this.tree, 0, (i) => this.value(i));
    context.onSelection(() => this.follow());
    onReport(context, () => this.table.draw());
    this.filter();
    this.drawIcicle();
    this.follow();
  }

  private value(node: number): number {
    return this.totals[this.metric]?.[node] || 0;
  }

  private makeTable(parent: Float32Array): TreeTable {
    const columns: Column[] = this.columns.map(({ key, title, unit, tip }, i) => ({
      key,
      title,
      unit,
      tip,
      value: (node) => (Number.isNaN(this.totals[i][node]) ? null : this.totals[i][node]),
      atLeast: (node) => !WHOLE.has(key) && this.atLeast.has(node),
      full: this.totals[i][0] || undefined,
      width: `${Math.max(104, 30 + 7.4 * title.length)}px`,
      lesser: LESSER.has(key),
    }));
    const place: Column = {
      key: "place",
      title: "source",
      text: (node) => this.places[node],
      width: "150px",
      lesser: true,
    };
    return treeTable({
      label: "Operations by function, module and line",
      parent,
      title: "function, line, operation",
      nameWidth: 340,
      name: (node) => this.title(node),
      mark: (node) => [
        h("span", { class: `wb-glyph wb-glyph-${this.kinds[node]}`, "aria-hidden": "true" }, GLYPHS[this.kinds[node]]),
        badge(this.context, "nodes", node),
      ],
      after: (node) => this.spark(node),
      columns: [...columns, place],
      sort: { key: columns[0]?.key ?? "", descending: true },
      rowClass: (node) => (this.isKin(node) ? "wb-kin" : ""),
      choose: (node) => this.choose(node),
      signal: this.context.signal,
    });
  }

  private title(node: number): string {
    const pass = PASS_WORDS[this.passes[node]];
    const iterations = this.context.state<OperationsState["iterations"]>("iterations")[node];
    const parent = this.tree.parent[node];
    const said = pass && (parent < 0 || this.passes[parent] !== this.passes[node]) ? ` (${pass})` : "";
    return `${this.names[node]}${iterations === undefined ? "" : ` × ${formatCount(iterations)}`}${said}`;
  }

  /** The figure of every one of equal layers, as small bars in the order of the layers. */
  private spark(node: number): Child {
    const members = this.layers[node];
    if (!members) return null;
    const bars = sparkHeights(members.map((member) => this.value(member)));
    const column = this.columns[this.metric];
    const tip = `${column.title} of each: ${this.spread(this.metric, members)}`;
    const drawn = bars.map((height) => {
      const bar = h("i", {});
      bar.style.height = `${height}%`;
      return bar;
    });
    return h("span", { class: "wb-spark", role: "img", "aria-label": tip, "data-tip": tip }, drawn);
  }

  /** Least and most of a figure over equal layers, and which layer has the most, where they differ. */
  private spread(column: number, members: readonly number[]): string {
    const [least, most] = extremes(members.map((member) => this.totals[column][member]));
    const text = (at: number) => formatAs(this.columns[column].unit, this.totals[column][members[at]]);
    if (text(least) === text(most)) return `${text(least)}, all equal`;
    return `${text(least)} in ${this.names[members[least]]} to ${text(most)} in ${this.names[members[most]]}`;
  }

  private tools(): HTMLElement {
    const axes = this.columns
      .filter(({ key }) => key.startsWith("sent/"))
      .map(({ key, title }): Option<string> => [key, title]);
    const only = menu("Only operations", [["", "everything"], ["*", "collectives"], ...axes], "", (value) => {
      this.only = value;
      this.filter();
    });
    const pass = menu(
      "Only pass",
      [
        ["", "both passes"],
        ["forward", "forward"],
        ["transpose", "backward"],
        ["remat", "recomputed"],
      ],
      "",
      (value) => {
        this.pass = value;
        this.filter();
      },
    );
    this.search.addEventListener("input", () => {
      this.words = wordsOf(this.search.value);
      this.table.highlight(this.words);
      this.filter();
    });
    const open = button("Open largest", () => this.table.expandTo(2 * FIRST_ROWS, (i) => this.value(i)));
    const close = button("Fold all", () => this.table.collapseAll());
    return h(
      "div",
      { class: "wb-tools" },
      this.search,
      only,
      new Set(this.passes).size > 1 ? pass : null,
      open,
      close,
      this.status,
    );
  }

  private metricMenu(): HTMLElement {
    const options = this.columns.map(({ title }, i): Option<number> => [i, title]);
    const choose = menu("Figure of the nested bars", options, this.metric, (i) => {
      this.metric = i;
      this.zoom = skipChain(this.tree, 0, (node) => this.value(node));
      this.drawIcicle();
    });
    return h(
      "div",
      { class: "wb-row wb-icicletools" },
      h("label", { class: "wb-row" }, "Width: ", choose),
      button("Whole program", () => this.zoomTo(0)),
    );
  }

  private passesFilter(node: number): boolean {
    if (this.pass && this.passes[node] !== this.pass) return false;
    if (
      this.only === "*" &&
      (this.tree.children[node].length || !Object.hasOwn(this.context.state<object>("collectives"), node))
    )
      return false;
    const sent = this.only.startsWith("sent/") ? this.columns.findIndex(({ key }) => key === this.only) : -1;
    if (sent >= 0 && (this.tree.children[node].length || !(this.totals[sent][node] > 0))) return false;
    const text =
      `${this.names[node]} ${this.places[node]} ${this.context.state<string[]>("scopes")[node]}`.toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  private filter(): void {
    const on = Boolean(this.words.length || this.only || this.pass);
    const count = this.table.filter(on ? (node) => this.passesFilter(node) : null);
    const all = this.context.state<string>("made_from") === "jaxpr";
    const known = this.context.state<string | null>("counted");
    const note = known ?? (all ? "not compiled: figures of all devices together" : "one device, one call");
    this.status.textContent = on ? `${formatCount(count)} of ${formatCount(this.names.length)} · ${note}` : note;
  }

  private choose(node: number): void {
    const instructions = this.context.state<OperationsState["instructions"]>("instructions")[node];
    this.context.select({ node: String(node), line: this.keys[node] || null, instruction: instructions?.[0] ?? null });
  }

  private isKin(node: number): boolean {
    const { line, node: chosen } = this.context.selection;
    return Boolean(line) && this.keys[node] === line && String(node) !== chosen;
  }

  /** The chosen node; else the one of a line or an instruction that was chosen in another view. */
  private chosen(): number | null {
    const { node, line, instruction } = this.context.selection;
    if (node !== undefined && Number(node) < this.names.length) return Number(node);
    const known = Object.entries(this.context.state<OperationsState["instructions"]>("instructions"));
    const holding = instruction ? known.find(([, names]) => names.includes(instruction)) : undefined;
    if (holding) return Number(holding[0]);
    if (!line) return null;
    const same = this.keys.map((_, i) => i).filter((i) => this.keys[i] === line);
    return same.sort((a, b) => this.value(b) - this.value(a))[0] ?? null;
  }

  private follow(): void {
    const node = this.chosen();
    this.table.select(node);
    for (const bar of this.icicle.querySelectorAll<HTMLElement>("[data-node]"))
      bar.classList.toggle("wb-selected", (bar.dataset.nodes ?? "").split(" ").includes(String(node)));
    this.describe(node ?? 0);
  }

  private describe(node: number): void {
    const rows = this.columns.map(({ title, unit }, i): [string, string] => {
      const [total, own] = [this.totals[i][node], this.own[i][node]];
      const share = node > 0 && this.totals[i][0] > 0 ? ` · ${((100 * total) / this.totals[i][0]).toFixed(1)} %` : "";
      const itself = this.tree.children[node].length && own > 0 ? `, ${formatAs(unit, own)} of it directly here` : "";
      const least = this.atLeast.has(node) && !WHOLE.has(this.columns[i].key) ? "≥ " : "";
      return [title, `${least}${formatAs(unit, total)}${share}${itself}`];
    });
    const blocks: Block[] = [
      { form: "facts", title: "", rows: rows.filter(([, text]) => !/^(≥ )?(0 |unknown)/.test(text)) },
    ];
    const members = this.layers[node];
    if (members)
      blocks.push({
        form: "facts",
        title: "Each of these layers",
        rows: this.columns.map(({ title }, i): [string, string] => [title, this.spread(i, members)]),
      });
    const collectives = this.context.state<OperationsState["collectives"]>("collectives")[node];
    if (collectives)
      blocks.push({
        form: "table",
        title: "Collectives",
        ...telling(["collective", "mesh axis", "count", "executions", "payload", "sent"], collectives),
      });
    const code = this.context.state<OperationsState["code"]>("code")[this.keys[node]];
    if (code) blocks.push({ form: "code", title: this.places[node], lines: code });
    for (const text of this.notesOf(node)) blocks.push({ form: "note", title: "", text });
    const subtitle = [this.kinds[node], this.context.state<string[]>("scopes")[node], this.places[node]]
      .filter(Boolean)
      .join(" · ");
    showDetails(this.context, this.facts, {
      title: this.title(node),
      kind: collectives ? "reduce" : "clients",
      subtitle,
      blocks,
    });
  }

  private notesOf(node: number): string[] {
    const has = (name: string) => this.context.state<number[]>(name).includes(node);
    const notes = node === 0 ? this.context.state<string[]>("notes") : [];
    return [
      ...(has("shared")
        ? ["The compiler fused or combined instructions of several lines: this node has its share of them."]
        : []),
      ...(has("at_least") ? ["A loop of unknown length is inside; one iteration is counted."] : []),
      ...notes,
    ];
  }

  private zoomTo(node: number): void {
    this.zoom = node;
    this.drawIcicle();
  }

  private drawIcicle(): void {
    const bars = icicleBars(this.tree, this.zoom, (node) => this.value(node), LEVELS, LEAST_WIDTH, {
      layers: (node) => node in this.layers,
      name: (node) => `${this.names[node]}/${this.places[node]}/${this.passes[node]}`,
    });
    const unit = this.columns[this.metric]?.unit ?? "count";
    const depth = Math.max(0, ...bars.map((bar) => bar.depth)) + 1;
    this.icicle.style.height = `${depth * 22}px`;
    replace(
      this.icicle,
      bars.map(({ node, nodes, value, depth: level, x, width }) => {
        const title = nodes.length > 1 ? `${nodes.length} × ${this.title(node)}` : this.title(node);
        const words = `${title}: ${formatAs(unit, value)}`;
        const bar = h(
          "div",
          {
            class: `wb-icebar wb-ice-${this.kinds[node]}`,
            role: "button",
            "data-node": node,
            "data-nodes": nodes.join(" "),
            "data-tip": words,
            "aria-label": words,
          },
          h("span", {}, shortened(title, [])),
        );
        setTabIndex(bar, level === 0 ? 0 : -1);
        bar.style.cssText = `left:${100 * x}%;width:${100 * width}%;top:${22 * level}px`;
        bar.addEventListener("click", () => this.choose(node));
        bar.addEventListener("dblclick", () => this.zoomTo(node));
        bar.addEventListener("keydown", (event) => this.onBarKey(event, node));
        return bar;
      }),
    );
    if (!bars.length) replace(this.icicle, h("p", { class: "wb-note" }, "Nothing is counted for this figure."));
  }

  private onBarKey(event: KeyboardEvent, node: number): void {
    const bars = [...this.icicle.querySelectorAll<HTMLElement>("[data-node]")];
    const at = bars.indexOf(event.currentTarget as HTMLElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) bars[Math.min(Math.max(at + step, 0), bars.length - 1)].focus();
    else if (event.key === "Enter" || event.key === " ") this.choose(node);
    else if (event.key === "+" || event.key === "z") this.zoomTo(node);
    else return;
    consume(event);
  }
}

export const operations: RenderView = (host, context) => {
  if (context.state<string[]>("names").length) new Operations(host, context);
  else
    host.append(h("div", { class: "wb-scrolls" }, facts(context, [["operations", "none are known of this program"]])));
};
