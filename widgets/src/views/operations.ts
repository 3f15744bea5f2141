// Every figure of the program on the user's functions, modules and lines: a tree table, an icicle, the code of a node.

import { badge, onReport } from "../lib/badges";
import { facts } from "../lib/details";
import { button, type Child, h, menu, type Option, replace, setTabIndex } from "../lib/dom";
import { formatAs, formatCount } from "../lib/format";
import { consume } from "../lib/keyboard";
import { shortened, wordsOf } from "../lib/matches";
import { split } from "../lib/split";
import { type Column, type TreeTable, treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";
import { Calls } from "./calls";
import { icicleBars, skipChain } from "./icicle";
import { Inspector } from "./inspector";
import { sparkHeights } from "./layers";

const LESSER = new Set(["matmul", "constants"]); // figures that go first where there is no room for all
const FIRST_ROWS = 24;
const LEAST_OPEN = 0.01; // a share of the program; smaller nodes are folded at first
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

class Operations {
  private readonly calls: Calls;
  private readonly inspector: Inspector;
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
    private readonly context: ViewContext<"operations">,
  ) {
    this.calls = new Calls(context);
    this.search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "function, module, line, operation",
      "aria-label": "Search operations",
    });
    const { node, main, detail } = split(context, "Details of the selected node", 0.62);
    this.table = this.makeTable();
    main.append(this.tools(), this.table.node);
    replace(detail, this.metricMenu(), this.icicle, this.facts);
    this.inspector = new Inspector(context, this.facts, { calls: this.calls });
    host.append(node);
    this.table.expandTo(
      FIRST_ROWS,
      (i) => this.value(i),
      (i) => i in this.calls.layers || this.value(i) < LEAST_OPEN * this.value(0),
    );
    this.zoom = skipChain(this.calls.tree, 0, (i) => this.value(i));
    context.onSelection(() => this.follow());
    onReport(context, () => this.table.draw());
    this.filter();
    this.drawIcicle();
    this.follow();
  }

  private value(node: number): number {
    return this.calls.value(this.metric, node);
  }

  private makeTable(): TreeTable {
    const { calls } = this;
    const isSummed = calls.columns.some(({ key }) => key === "sent");
    const columns: Column[] = this.calls.columns.map(({ key, title, unit, tip }, i) => ({
      key,
      title,
      unit,
      tip,
      value: (node) => (Number.isNaN(this.calls.totals[i][node]) ? null : this.calls.totals[i][node]),
      atLeast: (node) => calls.isLeast(i, node),
      full: this.calls.totals[i][0] || undefined,
      width: `${Math.max(104, 30 + 7.4 * title.length)}px`,
      lesser: LESSER.has(key) || (isSummed && key.startsWith("sent/")),
    }));
    const place: Column = {
      key: "place",
      title: "source",
      text: (node) => this.calls.places[node],
      width: "150px",
      lesser: true,
    };
    return treeTable({
      label: "Operations by function, module and line",
      parent: calls.tree.parent,
      title: "function, line, operation",
      nameWidth: 340,
      name: (node) => this.calls.title(node),
      mark: (node) => [
        h(
          "span",
          { class: `wb-glyph wb-glyph-${this.calls.kinds[node]}`, "aria-hidden": "true" },
          GLYPHS[this.calls.kinds[node]],
        ),
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

  /** The figure of every one of equal layers, as small bars in the order of the layers. */
  private spark(node: number): Child {
    const members = this.calls.layers[node];
    if (!members) return null;
    const bars = sparkHeights(members.map((member) => this.value(member)));
    const column = this.calls.columns[this.metric];
    const tip = `${column.title} of each: ${this.calls.spread(this.metric, members)}`;
    const drawn = bars.map((height) => {
      const bar = h("i", {});
      bar.style.height = `${height}%`;
      return bar;
    });
    return h("span", { class: "wb-spark", role: "img", "aria-label": tip, "data-tip": tip }, drawn);
  }

  private tools(): HTMLElement {
    const axes = this.calls.columns
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
      new Set(this.calls.passes).size > 1 ? pass : null,
      open,
      close,
      this.status,
    );
  }

  private metricMenu(): HTMLElement {
    const options = this.calls.columns.map(({ title }, i): Option<number> => [i, title]);
    const choose = menu("Figure of the nested bars", options, this.metric, (i) => {
      this.metric = i;
      this.zoom = skipChain(this.calls.tree, 0, (node) => this.value(node));
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
    if (node in this.calls.layers) return false; // each layer answers for itself
    if (this.pass && this.calls.passes[node] !== this.pass) return false;
    if (
      this.only === "*" &&
      (this.calls.tree.children[node].length || !Object.hasOwn(this.context.state("collectives"), node))
    )
      return false;
    const sent = this.only.startsWith("sent/") ? this.calls.columns.findIndex(({ key }) => key === this.only) : -1;
    if (sent >= 0 && (this.calls.tree.children[node].length || !(this.calls.totals[sent][node] > 0))) return false;
    const text =
      `${this.calls.names[node]} ${this.calls.places[node]} ${this.context.state("scopes")[node]}`.toLowerCase();
    return this.words.every((word) => text.includes(word));
  }

  private filter(): void {
    const on = Boolean(this.words.length || this.only || this.pass);
    const count = this.table.filter(on ? (node) => this.passesFilter(node) : null);
    const among = `${formatCount(count)} of ${formatCount(this.calls.names.length)}`;
    const together = on ? this.calls.together((node) => this.passesFilter(node)) : "";
    const rows = count ? "; the rows above a match count everything inside" : "";
    this.status.textContent = on ? `${among}${together && `, together ${together}`}${rows}` : "";
  }

  private choose(node: number): void {
    const instructions = this.context.state("instructions")[node];
    this.context.select({
      node: String(node),
      line: this.calls.keys[node] || null,
      instruction: instructions?.[0] ?? null,
    });
  }

  private isKin(node: number): boolean {
    const { line, node: chosen } = this.context.selection;
    return Boolean(line) && this.calls.keys[node] === line && String(node) !== chosen;
  }

  private follow(): void {
    const node = this.calls.chosen(this.context.selection);
    this.table.select(node);
    for (const bar of this.icicle.querySelectorAll<HTMLElement>("[data-node]"))
      bar.classList.toggle("wb-selected", (bar.dataset.nodes ?? "").split(" ").includes(String(node)));
    if (!this.inspector.show()) this.inspector.showRoot();
  }

  private zoomTo(node: number): void {
    this.zoom = node;
    this.drawIcicle();
  }

  private drawIcicle(): void {
    const bars = icicleBars(this.calls.tree, this.zoom, (node) => this.value(node), LEVELS, LEAST_WIDTH, {
      layers: (node) => node in this.calls.layers,
      name: (node) => `${this.calls.names[node]}/${this.calls.places[node]}/${this.calls.passes[node]}`,
    });
    const unit = this.calls.columns[this.metric]?.unit ?? "count";
    const depth = Math.max(0, ...bars.map((bar) => bar.depth)) + 1;
    this.icicle.style.height = `${depth * 22}px`;
    replace(
      this.icicle,
      bars.map(({ node, nodes, value, depth: level, x, width }) => {
        const title = nodes.length > 1 ? `${nodes.length} × ${this.calls.title(node)}` : this.calls.title(node);
        const words = `${title}: ${formatAs(unit, value)}`;
        const bar = h(
          "div",
          {
            class: `wb-icebar wb-ice-${this.calls.kinds[node]}`,
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

export const operations: RenderView<"operations"> = (host, context) => {
  if (context.state("names").length) new Operations(host, context);
  else host.append(h("div", { class: "wb-scrolls" }, facts(context, [["operations", "none known for this program"]])));
};
